"""`task2vec report`, one page on a dataset, to read, store and share; and `task2vec apply`, which acts on it."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

import task2vec
from task2vec.cli import app, inputs, options
from task2vec.errors import UsageError
from task2vec.storage import write_file
from task2vec.text import format_percent, pluralize, printable

SUFFIXES = (".html", ".json")
CHECKS = ("copies", "leaks", "labels")
OUT = "File to write: .html, or .json with all of it as data. Can be repeated. Default: NAME-report.html."
TEST = "Another split, which should have no copies of the images. Default: other splits in PATH."
CORRECTIONS = "Also write a CSV table of what was found, to fill in decisions for `task2vec apply`."
FAIL_ON = "Exit with code 6 if there are any of these: copies, leaks, labels."
BASELINE = "Say what changed since an earlier report: its JSON file, or `last` for that of the library."
# What a page and the data of a report contain near their beginning: such a file may be replaced without --force.
MARKS = {".html": b": task2vec report</title>", ".json": b'"beats_chance"'}


def report(
    path: options.Folder,
    reading: Annotated[options.Reading, options.OWN],
    probe: options.ProbeOptions,
    device: options.Device = None,
    out: Annotated[list[Path] | None, Option("--out", metavar="FILE", help=OUT)] = None,
    test: Annotated[Path | None, Argument(metavar="[TEST]", help=TEST)] = None,
    corrections: Annotated[Path | None, Option(metavar="FILE.csv", help=CORRECTIONS)] = None,
    baseline: Annotated[str | None, Option(metavar="last|FILE", help=BASELINE)] = None,
    fail_on: Annotated[str | None, Option(metavar="CHECKS", help=FAIL_ON)] = None,
    no_images: Annotated[bool, Option("--no-images", help="Write a page without images.")] = False,
    force: options.Force = False,
    library: options.LibraryFolder = None,
    no_library: options.NoLibrary = False,
) -> None:
    """Write a report on a dataset as one HTML file: what is in it, what is wrong with it, and what to do next.

    It measures one model as `recommend` does, and shows copies, suspected label errors, confused classes, outliers, and
    whether more images would help. A folder with train and test folders is checked for images that are in both. The
    page is self-contained; it is also kept in the library, and `task2vec serve` shows it. Nothing is changed: with
    --corrections a table of decisions is written, and `task2vec apply` makes a corrected table of it.
    """
    app.say(f"reading {printable(path)} ...")  # before what takes seconds to import
    from task2vec.audit.html import MAX_BYTES
    from task2vec.cli.library import open_for_run

    checks = [name.strip() for name in (fail_on or "").split(",") if name.strip()]
    if unknown := [name for name in checks if name not in CHECKS]:
        raise UsageError(f"--fail-on {unknown[0]} is not a check, so it would never fail. Use {', '.join(CHECKS)}.")
    name = path.resolve().stem if path.is_file() else path.resolve().name
    named = out or [Path(f"{name}-report.html")]
    for file in named:
        if file.suffix.lower() not in SUFFIXES:
            raise UsageError(f"--out '{file}' has an unknown format. Use a name that ends in {', '.join(SUFFIXES)}.")
        inputs.check_output(file, is_forced=force or _is_ours(file))
    if corrections is not None and corrections.suffix.lower() != ".csv":
        raise UsageError(f"--corrections '{corrections}' is not a CSV file. Use a name that ends in .csv.")
    inputs.check_output(corrections, is_forced=force, option="--corrections")  # it may hold decisions
    with open_for_run(library, "report", {"path": str(path)}, no_library=no_library) as opened:
        path, reading, task, tests = _read(path, test, reading, opened)
        arguments: dict[str, Any] = {"num_workers": reading.num_workers, "device": device, "baseline": baseline}
        arguments |= {"progress": True, "test": tests, "library": opened}

        def command(name: str) -> str:
            return _format_command(name, path, test, reading, probe, no_library=no_library)

        result = task2vec.report(task, inputs.load_probe(probe), command=command, **arguments)
        page = result.to_html(max_bytes=0 if no_images else MAX_BYTES)
        for file in named:
            result.to_json(file) if file.suffix.lower() == ".json" else write_file(
                file, page.encode("utf-8", "replace")
            )
        if corrections is not None:
            named = [*named, result.to_corrections(corrections)]
        if opened is not None and not opened.is_read_only:
            result.keep(opened, page)
    failed = [name for name in checks if result.checks[name]]
    facts = result.to_dict() | {"written": named, "failed": failed, "seconds": app.count_seconds()}
    app.print_report(facts, lambda _: _print_report(result, named))
    if failed:
        app.say(f"failed: {', '.join(f'{result.checks[name]} {name}' for name in failed)} (--fail-on)")
        raise typer.Exit(app.FOUND)


def _is_ours(file: Path) -> bool:
    """Whether a file is a page or the data of a report that this command wrote."""
    if not file.is_file():
        return False
    with file.open("rb") as stream:
        return MARKS[file.suffix.lower()] in stream.read(64_000)


def _format_command(
    command: str,
    path: Path,
    test: Path | None,
    reading: options.Reading,
    probe: options.ProbeOptions,
    *,
    no_library: bool,
) -> str:
    """A command on the same data, read in the same way; options are those that are not the default."""
    from task2vec.audit.suggestions import format_path

    words = ["task2vec", command, format_path(path)]
    if command == "report" and test is not None:
        words.append(format_path(test))
    groups = [replace(reading, num_workers=None), *([] if command == "recommend" else [probe])]  # which measures others
    words.append(options.format_options(*groups))
    return " ".join(filter(None, [*words, *(["--no-library"] if no_library and command != "embed" else [])]))


def _read(
    path: Path, test: Path | None, reading: options.Reading, library: "task2vec.Library | None"
) -> "tuple[Path, options.Reading, task2vec.Task, dict[str, task2vec.Task]]":
    """Where and how the data is read, the task, and the splits that it is compared with: the named one, or the others.

    The name of a task in the library stands for its images where they were.
    """
    from task2vec.select.evidence import find_task
    from task2vec.tasks.folder import list_splits

    if not path.exists() and library is not None and str(path) in {task.name for task in library.tasks()}:
        task = find_task(str(path), library).data
        assert task is not None, "images that are gone are refused where something was measured on them before, too"
        return Path(task.source), reading, task, {}
    splits = list_splits(path)
    if splits and reading.split is None:
        reading = replace(reading, split=splits[0])
        app.say(f"reporting on the split '{printable(splits[0])}'; for another one: --split NAME")
    task = inputs.read_own(path, reading)
    if test is not None:
        return path, reading, task, {test.resolve().name or "test": inputs.read_own(test, replace(reading, split=None))}
    others = [name for name in splits if name != reading.split]
    tests = {name: inputs.read_own(path, replace(reading, split=name)) for name in others}
    return path, reading, task, tests


def _print_report(result: "task2vec.TaskReport", named: list[Path]) -> None:
    """The facts and the suggestions, and where the page is."""
    task, shown = result.task, result.format_interval()
    if result.model.error is not None:
        shown = f"{format_percent(result.model.error)} ({shown}), with a linear classifier on {result.model.model}"
    rows = [
        ("task", f"{task.name}: {pluralize(len(task), 'image')}, {pluralize(len(task.classes), 'class')}"),
        ("error", shown),
        ("copies", pluralize(result.checks["copies"], "group") + " of one picture"),
        ("leaks", pluralize(result.checks["leaks"], "group") + " in two splits" if result.splits else None),
        ("labels", f"{pluralize(len(result.label_issues), 'suspect')}, {result.format_precision()}"),
    ]
    app.print_facts((name, value) for name, value in rows if value)
    if result.changes is not None:
        changes = result.changes
        app.print_text(f"since {changes.since[:10]}: {len(changes.new)} new findings, {len(changes.solved)} solved")
    for number, suggestion in enumerate(result.suggestions, 1):
        print()
        app.print_text(f"{number}. {suggestion.text} {suggestion.evidence}")
        print(f"   {printable(app.name_library(suggestion.command))}")
    pages = ", ".join(printable(file) for file in named)
    print(f"\nwritten: {pages}   ({app.count_seconds():.0f} s)")


# --- acting on it ----------------------------------------------------------------------------------------------------


def apply(
    file: Annotated[Path, Argument(metavar="FILE.csv", help="Corrections, as `report --corrections` writes them.")],
    out: Annotated[Path, Option("--out", metavar="TABLE.csv", help="Table of images and labels to write.")],
    force: options.Force = False,
) -> None:
    """Make a corrected table of images and labels from a table of decisions; no image is moved, changed or deleted.

    A decision is `keep` (the same as nothing), `relabel` (to the class in the column `suggestion`, which you may edit),
    or `remove`, which leaves the image out of the table. `embed`, `report` and `recommend` read the table.
    """
    from task2vec.audit.corrections import apply_corrections

    if out.suffix.lower() != ".csv":
        raise UsageError(f"--out '{out}' is not a CSV file. Use a name that ends in .csv.")
    inputs.check_output(out, is_forced=force)
    applied = apply_corrections(file, out)

    def show(_: dict[str, Any]) -> None:
        counts = f"kept {applied.kept}, relabelled {applied.relabelled}, removed {applied.removed}"
        print(f"{counts}\nwritten: {printable(applied.table)}")
        print(f"   {printable(app.name_library(f'task2vec report {shlex.quote(str(out))} --baseline last'))}")

    app.print_report(vars(applied) | {"seconds": app.count_seconds()}, show)
