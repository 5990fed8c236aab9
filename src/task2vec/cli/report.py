"""`task2vec report`: one page on a dataset, to read, store and share."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

import task2vec
from task2vec.cli import app, inputs, options
from task2vec.cli.library import open_for_run
from task2vec.errors import UsageError
from task2vec.storage import write_file
from task2vec.text import format_percent, pluralize, printable

SUFFIXES = (".html", ".csv")
OUT = "File to write: .html, or .csv with one line per image. Can be repeated. Default: NAME-report.html."
TEST = "Another split, which should have no copies of the images. Default: other splits in PATH."
# What the first bytes of a page of ours contain: such a file may be replaced without --force.
MARK = b": task2vec report</title>"


def report(
    path: options.Folder,
    reading: Annotated[options.Reading, options.OWN],
    probe: options.ProbeOptions,
    compute: Annotated[options.Compute, "device batch_size"],
    out: Annotated[list[Path] | None, Option("--out", metavar="FILE", help=OUT)] = None,
    test: Annotated[Path | None, Argument(metavar="[TEST]", help=TEST)] = None,
    no_images: Annotated[bool, Option("--no-images", help="Write a page without images.")] = False,
    force: options.Force = False,
    library: options.LibraryFolder = None,
    no_library: options.NoLibrary = False,
) -> None:
    """Write a report on a dataset as one HTML file: what is in it, what is wrong with it, and what to do next.

    It shows suspected label errors, copies, confused classes, hard and typical images and outliers, how hard the task
    is, its nearest known tasks, and which model to start from. A folder with train and test folders is checked for
    images that are in both. The page is self-contained; it is also kept in the library, and `task2vec serve` shows it.
    """
    from task2vec.audit.report import MAX_THUMBNAILS

    name = path.resolve().stem if path.is_file() else path.resolve().name
    named = out or [Path(f"{name}-report.html")]
    for file in named:
        if file.suffix.lower() not in SUFFIXES:
            raise UsageError(f"--out '{file}' has an unknown format. Use a name that ends in {', '.join(SUFFIXES)}.")
        inputs.check_output(file, is_forced=force or _is_report(file))
    app.say(f"reading {printable(path)} ...")
    task, tests = _read(path, test, reading)
    arguments: dict[str, Any] = {"num_workers": reading.num_workers, "device": compute.device}
    arguments |= {"batch_size": compute.batch_size, "progress": app.is_watched()}
    loaded = inputs.load_probe(probe)
    with open_for_run(library, "report", {"path": str(path)}, no_library=no_library) as opened:
        command, measuring = _format_commands(path, test, reading, probe, no_library=no_library)
        analysis = task2vec.report(task, loaded, test=tests, library=opened, command=command, **arguments)
        suggestions = tuple(
            replace(suggestion, command=measuring)
            if suggestion.command.startswith("task2vec recommend ")
            else suggestion
            for suggestion in analysis.suggestions
        )
        analysis = replace(analysis, suggestions=suggestions)
        page = analysis.to_html(max_thumbnails=0 if no_images else MAX_THUMBNAILS)
        for file in named:
            is_page = file.suffix.lower() == ".html"
            write_file(file, page.encode("utf-8", errors="replace")) if is_page else analysis.to_csv(file)
        if opened is not None and not opened.is_read_only:
            analysis.keep(opened, page)
    facts = analysis.to_dict() | {"written": named, "seconds": app.count_seconds()}
    app.print_report(facts, lambda _: _print_report(analysis, named))


def _is_report(file: Path) -> bool:
    """Whether a file is a page or a table that this command wrote."""
    from task2vec.audit.report import COLUMNS

    if not file.is_file():
        return False
    with file.open("rb") as stream:
        start = stream.read(16_000)
    return MARK in start if file.suffix.lower() == ".html" else start.startswith(",".join(COLUMNS).encode())


def _format_commands(
    path: Path, test: Path | None, reading: options.Reading, probe: options.ProbeOptions, *, no_library: bool
) -> tuple[str, str]:
    """The command that makes the same report, and the one that measures models on the same task."""
    from task2vec.audit.suggestions import format_path

    same = [format_path(path), options.format_options(replace(reading, num_workers=None))]
    tests = [] if test is None else [format_path(test)]
    last = ["--no-library"] if no_library else []
    report_words = ["task2vec report", *same, *tests, options.format_options(probe), *last]
    return " ".join(filter(None, report_words)), " ".join(filter(None, ["task2vec recommend", *same, *last]))


def _read(path: Path, test: Path | None, reading: options.Reading) -> "tuple[task2vec.Task, dict[str, task2vec.Task]]":
    """The task, and the splits that it is compared with: the one that is named, or those beside it."""
    from task2vec.tasks.folder import list_splits

    splits = list_splits(path)
    if splits and reading.split is None:
        reading = replace(reading, split=splits[0])
        app.say(f"reporting on the split '{printable(splits[0])}'; for another one: --split NAME")
    task = inputs.read_own(path, reading)
    if test is not None:
        return task, {test.resolve().name or "test": inputs.read_own(test, replace(reading, split=None))}
    others = [name for name in splits if name != reading.split]
    return task, {name: inputs.read_own(path, replace(reading, split=name)) for name in others}


def _print_report(analysis: "task2vec.TaskReport", named: list[Path]) -> None:
    """The facts and the suggestions, and where the page is."""
    task, shown = analysis.task, analysis.format_interval()
    if analysis.error is not None:
        shown = f"{format_percent(analysis.error.error)} ({shown}), cross-validated with copies kept together"
    near = ", ".join(f"{neighbour.task} ({neighbour.distance:.2f})" for neighbour in analysis.neighbours[:3])
    rows = [
        ("task", f"{task.name}: {pluralize(len(task), 'image')}, {pluralize(len(task.classes), 'class')}"),
        ("error", shown),
        ("labels", pluralize(len(analysis.label_issues), "suspected error")),
        ("copies", f"{pluralize(analysis.n_copies, 'image')} in {pluralize(len(analysis.copies), 'group')}"),
        ("nearest", near or "no known task"),
    ]
    if analysis.recommendation.choice is not None:
        rows.append(("start from", analysis.recommendation.choice))
    app.print_facts(rows)
    for number, suggestion in enumerate(analysis.suggestions, 1):
        print()
        app.print_text(f"{number}. {suggestion.text} {suggestion.evidence}")
        print(f"   {printable(app.name_library(suggestion.command))}")
    pages = ", ".join(printable(file) for file in named)
    print(f"\nwritten: {pages}   ({app.count_seconds():.0f} s)")
