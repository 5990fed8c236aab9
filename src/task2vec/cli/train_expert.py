"""`task2vec train-expert`: folders of images become experts, networks that know one kind of images well."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from task2vec.cli import options
from task2vec.cli.cautions import check_folder, warn_of, warn_size
from task2vec.cli.listing import Column, print_columns
from task2vec.cli.reading import MOST_NAMED, read_own, say_bad
from task2vec.cli.shelf import open_shelf
from task2vec.cli.speech import print_facts, print_json, say
from task2vec.errors import ConflictError, DataError, ResourceError, Task2VecError, UsageError
from task2vec.text import format_percent, pluralize, printable

if TYPE_CHECKING:
    from task2vec.experts import Recipe
    from task2vec.experts.train import ExpertResult
    from task2vec.tasks import Task


def train_expert(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Folders of class folders, or .csv or .parquet tables.")
    ],
    name: Annotated[
        list[str] | None,
        typer.Option(help="What to call the expert and its file; once for each PATH. Default: the task's name."),
    ] = None,
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
    backend: options.BackendName = "serial",
    jobs: options.Jobs = None,
    threads: options.Threads = None,
    address: options.Address = None,
    device: options.Device = None,
    num_workers: options.Workers = None,
    allow_bad: options.AllowBad = False,
    as_json: options.AsJson = False,
) -> None:
    """Fine-tune a pretrained network on each task, and keep it as an expert.

    An interrupted training goes on where it was, and an expert that is there is not trained again. What fails is told,
    and the others go on. Another expert of the same images (--recipe, --seed, --probe) needs a --name of its own. On a
    CPU this takes hours for a large network: choose a small --size, few --epochs or few --draws.
    """
    begin = time.perf_counter()
    from task2vec.experts.train import train_experts
    from task2vec.parallel import open_backend
    from task2vec.probe import load_probe

    chosen = _choose_recipe(recipe, {"epochs": epochs, "draws": draws})
    _check_names(name, paths)
    check_folder(out, option="--out")
    warn_size(size)
    table = {"root": root, "path_column": path_column, "label_columns": label_column}
    reading = {"table": table, "split": split, "allow_bad": allow_bad, "workers": num_workers}
    tasks, names, failed = _read(paths, name, reading)
    if not tasks:
        raise typer.Exit(failed[0][1].exit_code)
    base = load_probe(probe, weights=weights, size=size, download=download)
    shelf = None if no_library else open_shelf(library, is_backed=True)
    say(_word_plan(tasks, chosen, base.size))
    results = []
    with ExitStack() as stack:
        if shelf is not None:
            shelf.begin(stack, "train-expert", {"recipe": chosen.name, "tasks": [task.name for task in tasks]})
        runner = stack.enter_context(open_backend(backend, jobs=jobs, threads=threads, address=address))
        how: dict[str, Any] = {"backend": runner, "seed": seed, "device": device, "replace_other": force}
        made = train_experts(tasks, base, chosen, folder=out, names=names, progress=True, **how)
        for result in _go_on(made, out):
            results.append(result)
            if result.error is not None:
                failed.append((result.name, result.error))
                say(f"failed: {printable(result.name)}: {printable(result.error)}")
            elif shelf is not None:
                _keep(shelf.library, tasks[result.number], result, is_forced=force)
    results.sort(key=lambda result: result.number)
    report = {
        "experts": [_tell(result) for result in results],
        "failed": [{"name": name, "reason": str(error)} for name, error in failed],
        "folder": str(out),
        "seconds": round(time.perf_counter() - begin, 3),
    }
    print_json(report) if as_json else _print_report(report)
    if failed:
        say(f"{pluralize(len(failed), 'expert')} failed: {', '.join(printable(name) for name, _ in failed)}")
        raise typer.Exit(failed[0][1].exit_code)


def _check_names(names: list[str] | None, paths: list[Path]) -> None:
    """Refuses names that cannot be told who they belong to, before anything is read."""
    if names and (len(names) != len(paths) or len(set(names)) < len(names) or not all(map(str.strip, names))):
        raise UsageError(
            f"--name was given {len(names)} times for {len(paths)} paths ({', '.join(names)}), so it is unclear which "
            "expert is called what. Give a different one for each path, in their order, or none."
        )


def _read(
    paths: list[Path], names: list[str] | None, reading: dict[str, Any]
) -> "tuple[list[Task], list[str], list[tuple[str, Task2VecError]]]":
    """The tasks that can be read with the names of their experts, and the paths that cannot, which are told now."""
    tasks: list[Task] = []
    called: list[str] = []
    failed: list[tuple[str, Task2VecError]] = []
    for number, path in enumerate(paths):
        try:
            task = read_own(path, **reading)
        except (DataError, ResourceError) as error:
            failed.append((str(path), error))
            say(f"failed: {printable(path)}: {printable(error)}")
            continue
        say_bad(task.bad)
        tasks.append(task)
        called.append(names[number] if names else task.name)
    warn_of(tasks)
    return tasks, called, failed


def _word_plan(tasks: "list[Task]", recipe: "Recipe", size: tuple[int, int]) -> str:
    """What is about to be done, before hours in which there is little to say."""
    images = ", ".join(f"{printable(task.name)} ({pluralize(len(task), 'image')})" for task in tasks[:MOST_NAMED])
    more = f" and {len(tasks) - MOST_NAMED} more" if len(tasks) > MOST_NAMED else ""
    each = f"{pluralize(recipe.epochs, 'epoch')} of {pluralize(recipe.draws, 'image')} at {size[0]} x {size[1]} pixels"
    return f"to train, unless it is there already: {images}{more}; for each {each}"


def _go_on(results: Iterator["ExpertResult"], out: Path) -> Iterator["ExpertResult"]:
    """The results; an interrupt is told what it leaves."""
    try:
        yield from results
    except KeyboardInterrupt:
        say(f"interrupted: what was trained up to the last minute is in '{printable(out)}'. The same command goes on.")
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
        say(f"warning: {printable(error)}; --force")


def _tell(result: "ExpertResult") -> dict[str, Any]:
    """One training as plain values."""
    from task2vec.experts.checkpoint import read_metadata

    told: dict[str, Any] = {"name": result.name, "task": result.task, "is_found": result.is_found, "error": None}
    if result.entry is None:
        return told | {"error": str(result.error)}
    story = read_metadata(Path(result.entry.location))
    kept = {"classes": len(story["classes"]), "images": story["images"], "metrics": story["metrics"]}
    return told | kept | {"file": result.entry.location, "recipe": story["recipe"], "seed": story["seed"]}


def _print_report(report: dict[str, Any]) -> None:
    rows = [_word_row(one) for one in report["experts"]]
    heads = ("expert", "train error", "state", "loss", "classes", "images")
    if rows:
        columns = [
            Column(head, cells, head, is_number=head not in ("expert", "state"), is_name=head == "expert")
            for head, cells in zip(heads, zip(*rows, strict=True), strict=True)
        ]
        print_columns(columns, in_turn=("loss", "classes", "images"))
    print_facts([("experts", printable(report["folder"])), ("time", f"{report['seconds']:.1f} s")])


def _word_row(one: dict[str, Any]) -> tuple[str, ...]:
    """One line of the table."""
    if one["error"] is not None:
        return printable(one["name"]), "-", "failed", "-", "-", "-"
    last, state = one["metrics"][-1], "there already" if one["is_found"] else "trained"
    numbers = (f"{last['loss']:.3f}", str(one["classes"]), str(one["images"]))
    return printable(one["name"]), format_percent(last["error"]), state, *numbers
