"""`task2vec train-expert`: folders of images become experts, networks that know one kind of images well."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from task2vec.cli import options
from task2vec.cli.reading import read_own, say_bad
from task2vec.cli.shelf import open_shelf
from task2vec.cli.speech import is_watched, open_page, print_facts, print_json, say, visible
from task2vec.errors import ConflictError

if TYPE_CHECKING:
    from task2vec.experts import Recipe
    from task2vec.experts.many import ExpertResult
    from task2vec.tasks import Task


def train_expert(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Folders of class folders, or .csv or .parquet tables.")
    ],
    recipe: Annotated[str, typer.Option(help="fast, or achille2019: the paper's, 12 times as long.")] = "fast",
    epochs: Annotated[int | None, typer.Option(help="Another number of epochs than the recipe's.")] = None,
    draws: Annotated[int | None, typer.Option(help="Another number of images per epoch than 10,000.")] = None,
    probe: options.ProbeName = "tf_efficientnet_lite0",
    weights: options.Weights = None,
    size: options.Size = None,
    download: options.Download = False,
    out: Annotated[Path, typer.Option(help="Folder for the experts, one file each.")] = Path("task2vec-experts"),
    library: options.LibraryFolder = None,
    no_library: options.NoLibrary = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite what else lies under the same name.")] = False,
    path_column: options.PathColumn = None,
    label_column: options.LabelColumn = None,
    root: options.Root = None,
    split: Annotated[str | None, typer.Option(help="Only the images of train, val or test.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of all randomness.")] = 0,
    engine: options.EngineName = "serial",
    jobs: options.Jobs = None,
    threads: options.Threads = None,
    address: options.Address = None,
    device: options.Device = None,
    workers: options.Workers = None,
    allow_bad: options.AllowBad = False,
    as_json: options.AsJson = False,
) -> None:
    """Fine-tune a pretrained network on each task, and keep it as an expert.

    An interrupted training goes on where it was, and an expert that is there is not trained again. On a CPU this takes
    hours for a large network: choose a small --size, few --epochs or few --draws.
    """
    begin = time.perf_counter()
    from task2vec.engine import open_engine
    from task2vec.experts.many import train_experts
    from task2vec.probe import load_probe

    chosen = _choose_recipe(recipe, {"epochs": epochs, "draws": draws})
    table = {"root": root, "path_column": path_column, "label_columns": label_column}
    reading = {"table": table, "split": split, "allow_bad": allow_bad, "workers": workers}
    tasks = [read_own(path, **reading) for path in paths]
    for task in tasks:
        say_bad(task.bad)
    base = load_probe(probe, weights=weights, size=size, download=download)
    shelf = None if no_library else open_shelf(library, is_backed=True)
    results = []
    with ExitStack() as stack:
        if shelf is not None:
            shelf.begin(stack, "train-expert", {"recipe": chosen.name, "tasks": [task.name for task in tasks]})
        runner = stack.enter_context(open_engine(engine, workers=jobs, threads=threads, address=address))
        how: dict[str, Any] = {"engine": runner, "seed": seed, "device": device, "replace_other": force}
        for result in _go_on(train_experts(tasks, base, chosen, folder=out, progress=is_watched(), **how), out):
            results.append(result)
            if result.error is not None:
                say(f"error: '{visible(result.task)}': {visible(result.error)}")
            elif shelf is not None:
                _keep(shelf.library, tasks[result.number], result, is_forced=force)
    results.sort(key=lambda result: result.number)
    report = {
        "experts": [_tell(result) for result in results],
        "folder": str(out),
        "seconds": round(time.perf_counter() - begin, 3),
    }
    print_json(report) if as_json else _print_report(report)
    failed = [result.error for result in results if result.error is not None]
    if failed:
        raise typer.Exit(failed[0].exit_code)


def _go_on(results: Iterator["ExpertResult"], out: Path) -> Iterator["ExpertResult"]:
    """The results; an interrupt is told what it leaves."""
    try:
        yield from results
    except KeyboardInterrupt:
        say(f"interrupted: what was trained up to the last minute is in '{visible(out)}'. The same command goes on.")
        raise typer.Exit(130) from None


def _choose_recipe(name: str, wanted: dict[str, int | None]) -> "Recipe":
    """The recipe of that name, with what is wanted otherwise, and said so in its name."""
    from task2vec.experts import find_recipe

    changed: dict[str, Any] = {key: value for key, value in wanted.items() if value is not None}
    words = ", ".join([name, *(f"{value} {key}" for key, value in changed.items())])
    return replace(find_recipe(name), name=words, **changed)


def _keep(library: Any, task: "Task", result: "ExpertResult", *, is_forced: bool) -> None:
    """Puts an expert with its task into the library; one of its name that is another stays, and that is said."""
    try:
        library.add(task)
        library.add(result.entry, replace=is_forced)
    except ConflictError as error:
        say(f"warning: {visible(error)}; --force")


def _tell(result: "ExpertResult") -> dict[str, Any]:
    """One training as plain values."""
    from task2vec.experts.files import read_story

    told: dict[str, Any] = {"task": result.task, "is_found": result.is_found, "error": None}
    if result.entry is None:
        return told | {"error": str(result.error)}
    story = read_story(Path(result.entry.location))
    kept = {"classes": len(story["classes"]), "images": story["images"], "metrics": story["metrics"]}
    return told | kept | {"file": result.entry.location, "recipe": story["recipe"], "seed": story["seed"]}


def _print_report(report: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name, where in (("expert", "left"), ("images", "right"), ("classes", "right"), ("loss", "right")):
        table.add_column(name, justify=where, overflow="fold")  # type: ignore[arg-type]
    table.add_column("train error", justify="right")
    table.add_column("")
    for one in report["experts"]:
        if one["error"] is not None:
            table.add_row(visible(one["task"]), "", "", "", "", "failed")
            continue
        last = one["metrics"][-1]
        numbers = (str(one["images"]), str(one["classes"]), f"{last['loss']:.3f}", f"{100 * last['error']:.1f} %")
        table.add_row(visible(one["task"]), *numbers, "there already" if one["is_found"] else "")
    open_page().print(table)
    print_facts([("experts", visible(report["folder"])), ("time", f"{report['seconds']:.1f} s")])
