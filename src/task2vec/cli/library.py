"""`task2vec library`: list, show, edit, verify and share what is in it; and how other commands open it."""

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import typer
from typer import Argument, Option

import task2vec
from task2vec.cli import app, inputs, options
from task2vec.errors import (
    DataError,
    EmbeddingFileError,
    LibraryError,
    NotInLibraryError,
    ResourceError,
    Task2VecError,
    UsageError,
)
from task2vec.library import check_tags, find_library, has_library
from task2vec.progress import show_progress
from task2vec.text import format_percent, pluralize, printable

MOST_CLASSES, MOST_ERRORS = 20, 12
FIX_EMBEDDING = "Replace a damaged embedding: task2vec embed FOLDER, or add an intact copy: task2vec library add FILE"
FIX_LIBRARY = "Rebuild the library from what can be read: task2vec library repair"
FIX_EXPERT = (
    "Restore the file or train it again (task2vec metatask train), or remove: task2vec library rm NAME --expert"
)
FIX_CONFLICT = "Existing entries were kept. To replace one with a saved embedding: task2vec library add FILE --force"
TRAIN = (
    "Train one: task2vec metatask train FOLDER; or measure a model: task2vec metatask measure FOLDER --expert resnet34"
)
FIRST = "Add a first task: task2vec embed FOLDER"
# What a word on the command line can stand for.
LIBRARY, FILE, PATH = "library", "file", "path"
Name = Annotated[str, Argument(metavar="NAME", help="Name of a task, or the first digits of its id.")]


# --- opening it ------------------------------------------------------------------------------------------------------


def find_library_folder(folder: Path | None) -> Path:
    """The folder of the library, whether or not it exists; a file in its place is refused before any work."""
    path = find_library(folder)
    if path.is_file() and path.suffix != ".sqlite":
        raise UsageError(f"'{path}' is a file, but a library is a folder. Name its folder: --library DIR")
    return path


def open_if_any(folder: Path | None) -> "AbstractContextManager[task2vec.Library | None]":
    """The library, or None if there is none: looking at it creates no folders."""
    return task2vec.Library.open(folder) if has_library(find_library_folder(folder)) else nullcontext()


def open_existing(folder: Path | None) -> "task2vec.Library":
    """The library, which must exist."""
    if not has_library(path := find_library_folder(folder)):
        raise UsageError(f"there is no library in '{path}'. {FIRST}, or choose another one: --library DIR")
    return task2vec.Library.open(path)


@contextmanager
def open_for_run(
    folder: Path | None, command: str, details: dict[str, Any], *, no_library: bool = False
) -> "Iterator[task2vec.Library | None]":
    """The library, with the run recorded in it; None, with a warning, if it cannot be opened, or if it is not wanted.

    One that cannot record the run is read-only: what follows may take hours, and must not end with the same error.

    Raises:
        LibraryError: The library is damaged or of a newer version: better reported now than after the work.
    """
    library = None
    with ExitStack() as stack:
        try:
            if not no_library:
                library = stack.enter_context(task2vec.Library.open(find_library_folder(folder)))
                stack.enter_context(library.record(command, details))
        except ResourceError as error:
            app.say(f"warning: nothing will be saved to the library: {printable(error)}")
            if library is not None and not library.is_read_only:  # such as on a full disk
                library = stack.enter_context(task2vec.Library.open(library.folder, read_only=True))
        except LibraryError as error:
            raise LibraryError(f"{error} To work without the library this time: --no-library") from error
        yield library


def format_empty(folder: Path | None) -> str:
    """What to print for a library without tasks."""
    return f"The library in '{printable(find_library(folder))}' is empty. {app.name_library(FIRST)}"


def find_origin(query: str, library: "task2vec.Library | None") -> str:
    """Whether a word stands for a task of the library, a saved embedding, or a folder or table.

    What exists as a path is that, unless it is a mere name without a separator and the library has a task of that name.
    """
    path = Path(query)
    if not path.exists():
        return LIBRARY
    is_path = any(mark in query for mark in (os.sep, os.altsep) if mark) or query in (os.curdir, os.pardir)
    if not is_path and library is not None and any(task.name == query for task in library.tasks()):
        return LIBRARY
    return FILE if path.is_file() and path.suffix == ".safetensors" else PATH


def get_named(query: str, library: "task2vec.Library | None") -> "task2vec.Embedding":
    """The embedding of the library with that name or key."""
    if library is None:
        raise NotInLibraryError(
            f"there is no folder or file '{query}', and no library that could have a task of that name. Check the "
            "spelling, or embed a folder: task2vec embed FOLDER"
        )
    try:
        return library.get(query)
    except NotInLibraryError as error:
        raise NotInLibraryError(f"{error} (There is no folder or file '{query}' either.)") from error


def list_embedding_files(paths: Sequence[Path]) -> list[Path]:
    """The files that were named, and the embeddings of the folders that were, each once."""
    listed: dict[Path, Path] = {}
    for path in paths:
        files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path] if path.exists() else []
        if not files:
            raise UsageError(
                f"there is no embedding (*.safetensors) at '{path}', so there is nothing to read. Check the spelling; "
                f"a folder of images must be embedded first: task2vec embed {path}"
            )
        listed |= {file.resolve(): file for file in files}
    return list(listed.values())


# --- listing it ------------------------------------------------------------------------------------------------------


def describe_task(task: Any) -> dict[str, Any]:
    """A task as plain values."""
    return asdict(task) | {"embeddings": [describe_embedding(embedding) for embedding in task.embeddings]}


def describe_embedding(entry: Any) -> dict[str, Any]:
    """An embedding as plain values, without the internal row number."""
    return {name: value for name, value in asdict(entry).items() if name != "id"}


def ls(tag: options.Tag = None, probe: options.AnyProbe = None, library: options.LibraryFolder = None) -> None:
    """List the tasks of the library, count its entries, and show which embeddings can be compared.

    For a task with several embeddings, the numbers are those of the newest.
    """
    with open_if_any(library) as opened:
        tasks, is_empty = opened.tasks(tag=tag, probe=probe) if opened else [], not opened
        stats = opened.stats() if opened else {}
    if app.wants_json():
        rows, folder = [describe_task(task) for task in tasks], find_library(library)
        app.print_json({"library": folder, "count": len(rows), "tasks": rows, "stats": stats})
    elif is_empty:
        print(format_empty(library))
    elif not tasks:
        given = inputs.list_given({"tag": tag, "probe": probe})
        app.print_text(f"No task of the library matches {given}. List all of them: task2vec library ls")
    else:
        rows = []
        for task in tasks:
            embeddings = [entry for entry in task.embeddings if probe in (None, entry.probe)]
            rows.append(vars(task) | {"newest": embeddings[-1] if embeddings else None})
        columns = "task=name, images, classes, head error=newest.cv_error, norm=newest.norm, embeddings"
        drop = "probe, added, norm, classes, tags, head error, embeddings, images"
        app.print_table(rows, f"{columns}, probe=newest.probe, added, tags, task id=fingerprint", drop=drop)
        if several := sum(len(task.embeddings) > 1 for task in tasks):
            app.print_text(f"{pluralize(several, 'task')} with several embeddings: task2vec library show NAME")
        if not (tag or probe):
            _print_stats(stats)


def show_task(name: Name, library: options.LibraryFolder = None) -> None:
    """Show a task: classes, tags, embeddings, errors."""
    with open_existing(library) as opened:
        task = opened.task(name)
        measured = [error for error in opened.errors() if error.task == task.fingerprint]
    app.print_report(describe_task(task) | {"errors": measured}, _print_task)


def _print_task(task: dict[str, Any]) -> None:
    pairs = list(zip(task["classes"], task["counts"], strict=True))
    classes = ", ".join(f"{name} ({count})" for name, count in pairs[:MOST_CLASSES])
    more = f" and {len(pairs) - MOST_CLASSES} more (--json)" if len(pairs) > MOST_CLASSES else ""
    kind = ", multi-label" if task["is_multilabel"] else ""
    facts = {
        "task": f"{task['name']}: {pluralize(task['images'], 'image')}{kind}",
        "classes": f"{len(pairs)}: {classes}{more}",
        "tags": ", ".join(task["tags"]) or "none",
        "source": task["source"] or "unknown",
        "taxon": task["taxon"],
        "added": task["added"],
        "errors": ", ".join(map(_format_error, task["errors"][:MOST_ERRORS])),
        "task id": task["fingerprint"],
    }
    app.print_facts((name, value) for name, value in facts.items() if value)
    print()
    columns = "embedding=key, probe, method=settings.method, norm, head error=cv_error, added, size=bytes"
    app.print_table(task["embeddings"], columns, drop="size, added, method, head error")
    if not task["embeddings"]:
        app.print_text("no embedding yet: task2vec embed FOLDER")


def _format_error(error: "task2vec.MeasuredError") -> str:
    interval = "" if error.low is None or error.high is None else f" ({100 * error.low:.1f} to {100 * error.high:.1f}%)"
    return f"{error.expert} {format_percent(error.error)}{interval}"


def _print_stats(stats: dict[str, Any]) -> None:
    counts = ", ".join(f"{stats[kind]} {kind}" for kind in ("embeddings", "experts", "errors"))
    print(f"\n{counts}; {app.format_bytes(stats['bytes'])}")
    for space in stats["spaces"]:
        print(f"comparable: {pluralize(space['embeddings'], 'embedding')} by {format_space(space)}")


def format_space(space: dict[str, Any]) -> str:
    """A probe and the settings that embeddings must share to be compared, if they are not the defaults."""
    usual = vars(task2vec.VariationalSettings()) | vars(task2vec.EmbedSettings())
    method = space["settings"].get("method") or "unknown method"
    others = {key: value for key, value in space["settings"].items() if key != "method" and value is not None}
    unusual = [f"{key} {value}" for key, value in others.items() if value != usual.get(key)]
    methods = printable(", ".join([method, *unusual]))
    return f"{printable(space['probe'])} ({space['probe_fingerprint'][: app.DIGITS]}), {methods}"


# --- editing ---------------------------------------------------------------------------------------------------------


def add(
    files: Annotated[list[Path], Argument(help="Saved embeddings, or folders of them.")],
    tags: options.Tags = None,
    force: options.Force = False,
    library: options.LibraryFolder = None,
) -> None:
    """Add saved embeddings to the library.

    Files that are damaged, or that conflict with an existing embedding, are listed and left out (exit code 4 or 3). If
    writing fails midway, embeddings that were already added are kept.
    """
    files = list_embedding_files(files)
    check_tags(tags or ())
    rows: list[dict[str, Any]] = []
    failed: list[dict[str, Any]] = []
    codes, stopped = [0], None
    with task2vec.Library.open(library) as opened, show_progress(app.is_watched()) as report:
        step = report("adding", len(files))
        for file in files:
            try:
                embedding = task2vec.load_embedding(file)
                (added,) = opened.add(embedding, tags=tags or (), replace=force)
            except Task2VecError as error:
                codes.append(error.exit_code)
                if not isinstance(error, EmbeddingFileError | DataError):  # the library takes no other file
                    stopped = f"stopped at '{file}', after {len(rows)} of {len(files)} files: {error}"
                    break
                failed.append({"file": file, "reason": str(error)})
                continue
            known_as = added.name if added.name != embedding.task else None
            row = {"file": file, "task": embedding.task, "known_as": known_as}
            rows.append(row | {"key": added.key, "is_new": added.is_new})
            step(1)
        folder = opened.folder
    if not app.print_json({"library": folder, "added": rows, "failed": failed, "error": stopped}):
        for row in rows:
            known_as = f", known as '{printable(row['known_as'])}'" if row["known_as"] else ""
            state = "added" if row["is_new"] else "known"
            print(f"{state}: {printable(row['task'])} ({row['key'][: app.DIGITS]}){known_as}")
        new = sum(row["is_new"] for row in rows)
        print(f"{new} added, {len(rows) - new} known; in {printable(folder)}")
        app.say_all("failed", (f"{failure['file']}: {failure['reason']}" for failure in failed))
    if stopped:
        app.say(f"error: {printable(stopped)}")
    if max(codes):
        raise typer.Exit(codes[-1] if stopped else max(codes))


def rm(
    name: Annotated[str, Argument(help="A task (name or id), an embedding (key), or an expert.")],
    is_expert: Annotated[bool, Option("--expert", help="Remove the expert with this name; its file is kept.")] = False,
    tags: Annotated[list[str] | None, Option("--tag", help="Remove only this tag of the task.")] = None,
    force: Annotated[bool, Option("--force", help="Also remove the errors measured for it.")] = False,
    library: options.LibraryFolder = None,
) -> None:
    """Remove a task with its embeddings, one embedding, an expert, or tags of a task."""
    with open_existing(library) as opened:
        if tags:
            _print_tags(opened.tag(name, *tags, remove=True))
            return
        if is_expert:
            count = sum(error.expert == name for error in opened.errors())
            opened.remove_expert(name, with_errors=force)
            gone = f"removed: expert {printable(name)}, {pluralize(count, 'error')}"
            app.print_report({"expert": name, "errors": count}, gone)
            return
        task = None
        with suppress(NotInLibraryError):  # then it is the key of an embedding
            task = opened.task(name)
        entries = opened.remove(name, with_errors=force)
    lines = [f"removed: {printable(task.name)} ({task.fingerprint[: app.DIGITS]})"] if task else []
    for entry in entries:
        size = app.format_bytes(entry.bytes)
        lines.append(f"removed: embedding {entry.key[: app.DIGITS]} by {printable(entry.probe)}, {size}")
    removed = [describe_embedding(entry) for entry in entries]
    app.print_report({"task": describe_task(task) if task else None, "embeddings": removed}, "\n".join(lines))


def tag(
    name: Name,
    tags: Annotated[list[str], Argument(metavar="TAGS", help="One tag or more.")],
    library: options.LibraryFolder = None,
) -> None:
    """Add tags to a task.

    To remove one: task2vec library rm NAME --tag TAG
    """
    with open_existing(library) as opened:
        _print_tags(opened.tag(name, *tags))


def _print_tags(task: Any) -> None:
    tags = ", ".join(task.tags) or "no tags"
    app.print_report(describe_task(task), f"{printable(task.name)}: {printable(tags)}")


def rename(
    name: Name,
    new: Annotated[str, Argument(metavar="NEW", help="The new name.")],
    library: options.LibraryFolder = None,
) -> None:
    """Rename a task."""
    with open_existing(library) as opened:
        before, task = opened.task(name), opened.rename(name, new)
    app.print_report(describe_task(task), f"{printable(before.name)} is now {printable(task.name)}")


# --- verifying and sharing -------------------------------------------------------------------------------------------


def verify(library: options.LibraryFolder = None) -> None:
    """Read everything in the library, and report any damage.

    The exit code is 4 if anything is damaged. Files of experts are outside the library: missing or changed ones are
    reported, but do not count as damage.
    """
    with open_existing(library) as opened, show_progress(app.is_watched()) as report:
        verified, folder = opened.verify(report=report), opened.folder
    document = {
        "library": folder,
        "is_sound": verified.is_sound,
        "entries": verified.entries,
        "problems": verified.problems,
    }
    if not app.print_json(document | {"experts": verified.experts}):
        state = "intact" if verified.is_sound else pluralize(len(verified.problems), "problem")
        without = f", {pluralize(len(verified.experts), 'expert')} without a file" if verified.experts else ""
        print(f"{state}: {pluralize(verified.entries, 'embedding')} read in {printable(folder)}{without}")
        are_of_library = {problem.entry in ("library", "search") for problem in verified.problems}
        app.say_all("damaged", (f"{problem.entry}: {problem.what}" for problem in verified.problems))
        app.say_all("warning: expert", (f"{problem.entry}: {problem.what}" for problem in verified.experts))
        fixes = {
            FIX_EMBEDDING: False in are_of_library,
            FIX_LIBRARY: True in are_of_library,
            FIX_EXPERT: bool(verified.experts),
        }
        for fix in (fix for fix, applies in fixes.items() if applies):
            app.say(fix)
    if not verified.is_sound:
        raise typer.Exit(LibraryError.exit_code)


def repair(library: options.LibraryFolder = None) -> None:
    """Rebuild the library from everything that can still be read.

    The old file is kept in the folder `backups`. Anything that could not be read is reported (exit code 4). Make sure
    that no other process uses the library.
    """
    with show_progress(app.is_watched()) as report:
        repaired = task2vec.Library.repair(library, report=report)
    text = f"{pluralize(repaired.embeddings, 'embedding')} recovered; the old file is in {printable(repaired.kept)}"
    app.print_report({"library": find_library(library), **vars(repaired)}, text)
    if not app.wants_json():
        app.say_all("lost", repaired.lost)
    if repaired.lost:
        raise typer.Exit(LibraryError.exit_code)


def export(
    file: Annotated[Path, Argument(metavar="FILE", help="File to write, e.g. team.t2vlib.")],
    tag: options.Tag = None,
    force: options.Force = False,
    library: options.LibraryFolder = None,
) -> None:
    """Write the library, or the tasks with a tag, to one file that others can import.

    The paths of the images on this machine are left out.
    """
    inputs.check_output(file, is_forced=force, option="FILE")
    with open_existing(library) as opened, show_progress(app.is_watched()) as progress:
        chosen = opened.tasks(tag=tag)
        if tag is not None and not chosen:
            raise UsageError(f"no task has the tag '{tag}', so the export would be empty. See: task2vec library ls")
        written = opened.export(file, tag=tag, report=progress)
    tasks, embeddings, size = len(chosen), sum(len(task.embeddings) for task in chosen), written.stat().st_size
    numbers = f"{pluralize(tasks, 'task')}, {pluralize(embeddings, 'embedding')}, {app.format_bytes(size)}"
    report = {"written": written, "tasks": tasks, "embeddings": embeddings, "bytes": size}
    app.print_report(report, f"{numbers}: {printable(written)}")


def import_tasks(
    origin: Annotated[Path, Argument(help="An exported file, or the folder of another library.")],
    library: options.LibraryFolder = None,
) -> None:
    """Import an exported file, or another library.

    Everything is checked before anything is added. Entries that conflict with existing ones are reported and left out
    (exit code 3).
    """
    if not origin.exists():
        raise UsageError(f"'{origin}' does not exist, so nothing can be imported from it. Check the spelling.")
    with task2vec.Library.open(library) as opened, show_progress(app.is_watched()) as report:
        merged, folder = opened.merge(origin, report=report), opened.folder
    new = ", ".join(pluralize(count, kind) for kind, count in merged.added.items() if count) or "nothing"
    text = f"{new} added, {merged.known} known; in {printable(folder)}"
    app.print_report({"library": folder, "origin": origin, **vars(merged)}, text)
    if merged.conflicts:
        if not app.wants_json():
            app.say_all("conflict", merged.conflicts)
            app.say(FIX_CONFLICT)
        raise typer.Exit(DataError.exit_code)


# --- experts and errors ----------------------------------------------------------------------------------------------


def experts(library: options.LibraryFolder = None) -> None:
    """List the experts of the library."""
    rows: list[dict[str, Any]] = []
    names, folder = {}, find_library(library)
    with open_if_any(library) as opened:
        if opened is not None:
            counts = Counter(error.expert for error in opened.errors())
            rows = [{**asdict(expert), "errors": counts[expert.name]} for expert in opened.experts()]
            names = {task.fingerprint: task.name for task in opened.tasks()}
    if app.print_json({"library": folder, "count": len(rows), "experts": rows}):
        return
    if not rows:
        print(f"There is no expert in '{printable(folder)}'. {app.name_library(TRAIN)}")
        return
    for row in rows:
        row["task"] = row["task"] and names.get(row["task"], row["task"][: app.DIGITS])
    columns = "expert=name, trained on=task, errors, pixels=input_size, params=parameters, GMACs=cost, location"
    app.print_table(rows, columns, drop="location, GMACs, params, pixels")


def errors(
    task: Annotated[str | None, Option(help="Only this task, by name or id.")] = None,
    expert: Annotated[str | None, Option(help="Only errors of this expert.")] = None,
    shots: options.Shots = None,
    library: options.LibraryFolder = None,
) -> None:
    """List the measured errors, averaged over splits."""
    with open_existing(library) as opened:
        fingerprint = None if task is None else opened.task(task).fingerprint
        names = {task.fingerprint: task.name for task in opened.tasks()}
        sizes = {expert.name: expert.input_size for expert in opened.experts()}
        rows: list[dict[str, Any]] = [
            {**asdict(error), "name": names[error.task], "size": sizes[error.expert]}
            for error in opened.errors()
            if fingerprint in (None, error.task)
            and expert in (None, error.expert)
            and (shots is None or f"train {shots}" in error.protocol.split(", "))
        ]
        is_empty = not opened
    if app.print_json({"library": find_library(library), "count": len(rows), "errors": rows}):
        return
    if not rows:
        advice = "Measure some: task2vec metatask measure FOLDER --expert NAME"
        print(format_empty(library) if is_empty else f"No error matches. {app.name_library(advice)}")
        return
    cells: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for row in rows:
        cells[row["name"], row["expert"], row["size"], row["protocol"]].append(row["error"])
    table = [
        dict(zip(("task", "expert", "pixels", "protocol"), cell, strict=True))
        | {"error": mean(errors), "splits": len(errors)}
        | {"range": f"{format_percent(min(errors))} to {format_percent(max(errors))}" if len(errors) > 1 else None}
        for cell, errors in cells.items()
    ]
    app.print_table(table, "task, expert, pixels, error, splits, range, protocol", drop="range, splits")
