"""`task2vec embed`: a folder or a table of images becomes an embedding on disk."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from task2vec.cli import options
from task2vec.cli.chosen import Layout, Request, read_task
from task2vec.cli.facts import describe, word_facts
from task2vec.cli.place import check_place, default_place
from task2vec.cli.reading import is_table, name_options, read_own, say_bad, tell_bad
from task2vec.cli.speech import is_watched, print_facts, print_json, visible
from task2vec.errors import BadImagesError, DataError, UsageError

if TYPE_CHECKING:
    from task2vec.tasks import Task


def embed(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="A folder of class folders, a .csv or .parquet table, or with --task a published dataset.",
        ),
    ],
    probe: options.ProbeName = "tf_efficientnet_lite0",
    weights: options.Weights = None,
    size: options.Size = None,
    download: options.Download = False,
    out: Annotated[Path | None, typer.Option(help="Where to write; default: NAME.t2v.safetensors here.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a different embedding.")] = False,
    name: Annotated[str | None, typer.Option(help="What to call the task; default: the folder's name.")] = None,
    path_column: options.PathColumn = None,
    label_column: options.LabelColumn = None,
    root: options.Root = None,
    task_name: Annotated[
        str | None, typer.Option("--task", help="Published dataset: one of its tasks, see `task2vec tasks`.")
    ] = None,
    kind: Annotated[str | None, typer.Option(help="With --task: its kind, where several have the name.")] = None,
    layout: Annotated[Layout | None, typer.Option("--as", help="With --task: which dataset it is.")] = None,
    split: Annotated[str | None, typer.Option(help="Only the images of train, val or test.")] = None,
    draw: Annotated[int | None, typer.Option(help="With --task: read this many of its images, drawn by seed.")] = None,
    labels: Annotated[Path | None, typer.Option(help="With --task: iMaterialist's table of names of labels.")] = None,
    method: options.Method = None,
    epochs: options.Epochs = None,
    engine: options.Engine = None,
    images: options.ImageCount = None,
    halves: options.Halves = False,
    precision: options.Precision = None,
    l2: options.L2 = None,
    beta: options.Beta = None,
    seed: options.Seed = None,
    dtype: options.Dtype = None,
    device: options.Device = None,
    workers: options.Workers = None,
    batch_size: options.BatchSize = None,
    allow_bad: options.AllowBad = False,
    as_json: options.AsJson = False,
) -> None:
    """Embed a folder of class folders, a table of images, or a task of a published dataset.

    Every image that cannot be read is named; nothing is skipped in silence.
    """
    begin = time.perf_counter()
    import task2vec

    given = {"method": method, "engine": engine, "images": images, "precision": precision, "l2": l2, "beta": beta}
    given |= {"seed": seed, "dtype": dtype, "halves": halves}
    settings = options.choose_settings(given, epochs=epochs)
    table = {"root": root, "path_column": path_column, "label_columns": label_column}
    catalogue = {"kind": kind, "layout": layout, "split": split, "draw": draw, "labels": labels}
    if task_name is None:
        task = _read(path, name=name, table=table, catalogue=catalogue, allow_bad=allow_bad, workers=workers)
    else:
        _refuse_options(path, table, "with --task")
        request = Request(path, task_name, **catalogue, seed=settings.seed, name=name)
        task = tell_bad(read_task, request, allow_bad=allow_bad, workers=workers)
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
    from task2vec.tasks.layouts import recognise_layout

    # A folder may have splits of its own; all else is for tasks of a published dataset.
    others = {key: value for key, value in catalogue.items() if key != "split"}
    split = catalogue["split"] if not is_table(path) and not any(others.values()) else None
    _refuse_options(path, others if split else catalogue, "without --task")
    if not is_table(path):
        _refuse_options(path, table, "because it is not a table")
    try:
        return read_own(path, table=table, split=split, allow_bad=allow_bad, workers=workers, name=name)
    except DataError as error:
        known = recognise_layout(path) if path.is_dir() else None
        if known is None or isinstance(error, BadImagesError):
            raise
        raise DataError(
            f"'{path}' is {known}, a dataset of many tasks, and not one of its own ({error}). "
            f"List them: task2vec tasks {path}; then name one: --task NAME, or embed many: task2vec embed-many"
        ) from error


def _refuse_options(path: Path, options: dict[str, Any], why: str) -> None:
    """Raise `UsageError` if any of the options was given, since they cannot be meant."""
    if asked := name_options(options):
        raise UsageError(
            f"{asked} cannot be meant for '{path}' {why}. Leave it out, or name a .csv or .parquet file "
            "(columns, --root), or a task of a published dataset (--task)."
        )


def _print_report(report: dict[str, Any]) -> None:
    rows = word_facts(report)
    rows += [("warning", visible(warning)) for warning in report["warnings"]]
    rows += [("time", f"{report['seconds']:.1f} s"), ("written", visible(report["written"]))]
    print_facts(rows)
    from task2vec.tasks import BadImage

    say_bad([BadImage(**bad) for bad in report["bad"]])
