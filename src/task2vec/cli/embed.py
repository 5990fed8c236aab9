"""`task2vec embed`: a folder or a table of images becomes an embedding on disk."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from task2vec.cli.facts import describe, word_facts
from task2vec.cli.place import check_place, default_place
from task2vec.cli.speech import is_watched, print_facts, print_json, say, visible
from task2vec.errors import BadImagesError, UsageError

if TYPE_CHECKING:
    from task2vec.tasks import BadImage, Task

TABLES = (".csv", ".parquet", ".pq")
MOST_NAMED = 10


def embed(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A folder of class folders, or a .csv or .parquet table.")
    ],
    probe: Annotated[str, typer.Option(help="A timm or torchvision model.")] = "tf_efficientnet_lite0",
    weights: Annotated[Path | None, typer.Option(help="A local file of weights for the probe.")] = None,
    size: Annotated[int | None, typer.Option(help="Side of the images in pixels; smaller is faster.")] = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch weights that are not on this machine.")] = False,
    out: Annotated[Path | None, typer.Option(help="Where to write; default: NAME.t2v.safetensors here.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a different embedding.")] = False,
    name: Annotated[str | None, typer.Option(help="What to call the task; default: the folder's name.")] = None,
    path_column: Annotated[str | None, typer.Option(help="Table: the column of image paths; default: path.")] = None,
    label_column: Annotated[
        list[str] | None, typer.Option(help="Table: the column of labels; several are a multi-label task.")
    ] = None,
    root: Annotated[Path | None, typer.Option(help="Table: the folder that its paths start from.")] = None,
    method: Annotated[
        Literal["robust", "direct", "variational"] | None,
        typer.Option(help="Which Fisher; variational is slow, for a GPU."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Of the variational method; default: 10.")] = None,
    engine: Annotated[Literal["exact", "fast"] | None, typer.Option(help="How the Fisher is computed.")] = None,
    images: Annotated[int | None, typer.Option(help="How many (image, label) pairs to back-propagate at most.")] = None,
    halves: Annotated[
        bool, typer.Option("--halves", help="Embed both halves too, to tell the noise: twice the gradients, two heads.")
    ] = False,
    precision: Annotated[float | None, typer.Option(help="Stop at this relative error, e.g. 0.05.")] = None,
    l2: Annotated[float | None, typer.Option(help="Penalty of the head; default: cross-validated.")] = None,
    beta: Annotated[float | None, typer.Option(help="Weight of the prior; default: 1e-7.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all randomness.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, float64 or bfloat16.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; default: what is there.")] = None,
    workers: Annotated[int | None, typer.Option(help="How many threads decode images.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images per pass.")] = None,
    allow_bad: Annotated[bool, typer.Option("--allow-bad", help="Go on with over 5 % unreadable images.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Embed a folder of class folders, or a table of images.

    Every image that cannot be read is named; nothing is skipped in silence.
    """
    begin = time.perf_counter()
    import task2vec

    if epochs is not None and method != "variational":
        raise UsageError("--epochs is for --method variational alone: the other methods do not train. Leave it out.")
    training = None if epochs is None else task2vec.VariationalSettings(epochs=epochs)
    given = {"method": method, "engine": engine, "images": images, "precision": precision, "l2": l2, "beta": beta}
    given |= {"seed": seed, "dtype": dtype, "variational": training, "halves": halves}
    settings = task2vec.EmbedSettings(**{key: value for key, value in given.items() if value is not None})
    table = {"root": root, "path_column": path_column, "label_columns": label_column}
    task = _read(path, name=name, table=table, allow_bad=allow_bad, workers=workers)
    place = default_place(task.name, out)
    loaded = task2vec.load_probe(probe, weights=weights, size=size, download=download)
    if not force:
        check_place(place, task, loaded, settings)
    embedding = task2vec.embed(
        task, loaded, settings=settings, device=device, workers=workers, batch_size=batch_size, progress=is_watched()
    )
    embedding.save(place)
    report = {
        **describe(embedding),
        "bad": [{"path": bad.path, "reason": bad.reason} for bad in task.bad],
        "warnings": embedding.provenance["warnings"],
        "seconds": round(time.perf_counter() - begin, 3),
        "written": str(place),
    }
    print_json(report) if as_json else _print_report(report)


def _read(path: Path, *, name: str | None, table: dict[str, Any], allow_bad: bool, workers: int | None) -> "Task":
    """The task at `path`, by the reader that its kind asks for."""
    from task2vec.tasks import read_folder, read_table

    asked = {key: value for key, value in table.items() if value}
    is_table = path.suffix.lower() in TABLES and not path.is_dir()
    if asked and not is_table:
        options = ", ".join(f"--{key.rstrip('s').replace('_', '-')}" for key in asked)
        raise UsageError(
            f"'{path}' is not a table, so {options} cannot be meant. Leave it out, or name a .csv or .parquet file."
        )
    if path.is_file() and not is_table:
        raise UsageError(
            f"'{path}' is neither a folder nor a table, so there are no labels to learn from. "
            f"Name a folder of class folders, or a file ending in {', '.join(TABLES)}."
        )
    try:
        if is_table:
            return read_table(path, **asked, name=name, allow_bad=allow_bad, workers=workers, progress=is_watched())
        return read_folder(path, name=name, allow_bad=allow_bad, workers=workers, progress=is_watched())
    except BadImagesError as error:
        for line in _word_bad(error.bad):
            say(line)
        raise


def _print_report(report: dict[str, Any]) -> None:
    rows = word_facts(report)
    rows += [("warning", visible(warning)) for warning in report["warnings"]]
    rows += [("time", f"{report['seconds']:.1f} s"), ("written", visible(report["written"]))]
    print_facts(rows)
    from task2vec.tasks import BadImage

    for line in _word_bad([BadImage(**bad) for bad in report["bad"]]):
        say(line)


def _word_bad(bad: "tuple[BadImage, ...] | list[BadImage]") -> list[str]:
    """One line for each unreadable image, as many as a person would read."""
    lines = [f"unreadable: {visible(image.path)}: {visible(image.reason)}" for image in bad[:MOST_NAMED]]
    if len(bad) > MOST_NAMED:
        lines.append(f"and {len(bad) - MOST_NAMED} more; --json lists them all")
    return lines
