"""`task2vec embed`: a folder or a table of images becomes an embedding on disk."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from task2vec.cli.chosen import Layout, Request, read_task
from task2vec.cli.facts import describe, word_facts
from task2vec.cli.place import check_place, default_place
from task2vec.cli.speech import is_watched, print_facts, print_json, say, visible
from task2vec.errors import BadImagesError, DataError, UsageError

if TYPE_CHECKING:
    from task2vec.tasks import BadImage, Task

TABLES = (".csv", ".parquet", ".pq")
MOST_NAMED = 10


def embed(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="A folder of class folders, a .csv or .parquet table, or with --task a published dataset.",
        ),
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
    task_name: Annotated[
        str | None, typer.Option("--task", help="Published dataset: one of its tasks, see `task2vec tasks`.")
    ] = None,
    kind: Annotated[str | None, typer.Option(help="With --task: its kind, where several have the name.")] = None,
    layout: Annotated[Layout | None, typer.Option("--as", help="With --task: which dataset it is.")] = None,
    split: Annotated[str | None, typer.Option(help="Only the images of train, val or test.")] = None,
    draw: Annotated[int | None, typer.Option(help="With --task: read this many of its images, drawn by seed.")] = None,
    labels: Annotated[Path | None, typer.Option(help="With --task: iMaterialist's table of names of labels.")] = None,
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
    """Embed a folder of class folders, a table of images, or a task of a published dataset.

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
    catalogue = {"kind": kind, "layout": layout, "split": split, "draw": draw, "labels": labels}
    if task_name is None:
        task = _read(path, name=name, table=table, catalogue=catalogue, allow_bad=allow_bad, workers=workers)
    else:
        _refuse_options(path, table, "with --task")
        request = Request(path, task_name, **catalogue, seed=settings.seed, name=name)
        task = _tell_bad(read_task, request, allow_bad=allow_bad, workers=workers)
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


def _read(
    path: Path,
    *,
    name: str | None,
    table: dict[str, Any],
    catalogue: dict[str, Any],
    allow_bad: bool,
    workers: int | None,
) -> "Task":
    """The task at `path`, by the reader that its kind asks for."""
    from task2vec.tasks import read_folder, read_table
    from task2vec.tasks.layouts import recognise_layout

    is_table = path.suffix.lower() in TABLES and not path.is_dir()
    # A folder may have splits of its own; all else is for tasks of a published dataset.
    others = {key: value for key, value in catalogue.items() if key != "split"}
    split = catalogue["split"] if not is_table and not any(others.values()) else None
    _refuse_options(path, others if split else catalogue, "without --task")
    if not is_table:
        _refuse_options(path, table, "because it is not a table")
    if path.is_file() and not is_table:
        raise UsageError(
            f"'{path}' is neither a folder nor a table, so there are no labels to learn from. "
            f"Name a folder of class folders, or a file ending in {', '.join(TABLES)}."
        )
    asked = {key: value for key, value in table.items() if value}
    read = partial(read_table, **asked) if is_table else partial(read_folder, split=split)
    try:
        return _tell_bad(read, path, name=name, allow_bad=allow_bad, workers=workers, progress=is_watched())
    except DataError as error:
        known = recognise_layout(path) if path.is_dir() else None
        if known is None or isinstance(error, BadImagesError):
            raise
        raise DataError(
            f"'{path}' is {known}, a dataset of many tasks, and not one of its own ({error}). "
            f"List them: task2vec tasks {path}; then name one: --task NAME"
        ) from error


def _refuse_options(path: Path, options: dict[str, Any], why: str) -> None:
    """Raise `UsageError` if any of the options was given, since they cannot be meant."""
    names = {"layout": "as", "label_columns": "label-column"}
    asked = [f"--{names.get(key, key.replace('_', '-'))}" for key, value in options.items() if value]
    if asked:
        raise UsageError(
            f"{', '.join(asked)} cannot be meant for '{path}' {why}. Leave it out, or name a .csv or .parquet file "
            "(columns, --root), or a task of a published dataset (--task)."
        )


def _tell_bad(read: "Callable[..., Task]", *args: Any, **options: Any) -> "Task":
    """What `read` gives; where it gives up, the unreadable images are named first."""
    try:
        return read(*args, **options)
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
