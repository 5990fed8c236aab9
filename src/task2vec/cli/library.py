"""`task2vec library`: list, show, edit, verify and share what is in the library."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from task2vec.cli import inputs, options, output
from task2vec.errors import (
    ConflictError,
    DataError,
    EmbeddingFileError,
    LibraryError,
    NotInLibraryError,
    Task2VecError,
    UsageError,
)
from task2vec.text import format_percent, pluralize, printable

if TYPE_CHECKING:
    from task2vec.library import EmbeddingEntry, TaskEntry

MOST_CLASSES = 20
FIX_EMBEDDING = "Replace a damaged embedding: task2vec embed FOLDER, or add an intact copy: task2vec library add FILE"
FIX_EXPERT = (
    "Restore the file, train it again (task2vec train-expert FOLDER), or remove the expert: "
    "task2vec library rm NAME --expert"
)
FIX_CONFLICT = "Existing entries were kept. To replace one by a saved embedding: task2vec library add FILE --force"
TRAIN = "Train one: task2vec train-expert FOLDER; or measure a model: task2vec error-matrix FOLDER --expert resnet34"
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of a task, or the first digits of its id.")]


def ls(tag: options.Tag = None, probe: options.AnyProbe = None, library: options.LibraryFolder = None) -> None:
    """List the tasks of the library.

    The numbers of a task with several embeddings are those of the newest one.
    """
    opened = inputs.open_if_any(library)
    tasks, is_empty = [], True
    if opened is not None:
        with opened:
            tasks, is_empty = opened.tasks(tag=tag, probe=probe), not len(opened)
    if output.wants_json():
        rows = [describe_task(task) for task in tasks]
        output.print_json({"library": str(inputs.find_library_folder(library)), "count": len(tasks), "tasks": rows})
    elif tasks:
        _print_tasks(tasks, probe=probe)
    elif is_empty:
        print(inputs.format_empty(library))
    else:
        given = inputs.list_given({"tag": tag, "probe": probe})
        output.print_text(f"No task of the library matches {given}. List all of them: task2vec library ls")


def describe_task(task: "TaskEntry") -> dict[str, Any]:
    """A task as plain values."""
    return asdict(task) | {"embeddings": [describe_embedding(one) for one in task.embeddings]}


def describe_embedding(entry: "EmbeddingEntry") -> dict[str, Any]:
    """An embedding as plain values, without the internal row number."""
    return {name: value for name, value in asdict(entry).items() if name != "id"}


def _print_tasks(tasks: "Sequence[TaskEntry]", *, probe: str | None) -> None:
    rows = []
    for task in tasks:
        newest = next((one for one in reversed(task.embeddings) if probe in (None, one.probe)), None)
        row = {"task": task.name, "images": task.images, "classes": len(task.classes)}
        row |= {"error": format_percent(newest.cv_error) if newest else None}
        row |= {"norm": f"{newest.norm:.3g}" if newest else None}
        row |= {"embeddings": len(task.embeddings) if len(task.embeddings) > 1 else None}
        row |= {"probe": newest.probe if newest else None, "added": task.added[:10], "tags": ", ".join(task.tags)}
        rows.append(row | {"task id": task.fingerprint[: output.DIGITS]})
    drop = ("probe", "added", "norm", "classes", "tags", "error", "embeddings", "images")
    output.print_table(rows, text=("task", "probe", "tags"), drop=drop)
    if several := sum(len(task.embeddings) > 1 for task in tasks):
        output.print_text(f"{pluralize(several, 'task')} with several embeddings: task2vec library show NAME")


def show_task(name: Name, library: options.LibraryFolder = None) -> None:
    """Show a task: classes, tags, embeddings, errors."""
    with inputs.open_existing(library) as opened:
        task = opened.task(name)
        measured = [asdict(error) for error in opened.errors() if error.task == task.fingerprint]
    if output.print_json(describe_task(task) | {"errors": measured}):
        return
    pairs = list(zip(task.classes, task.counts, strict=True))
    classes = ", ".join(f"{name} ({count})" for name, count in pairs[:MOST_CLASSES])
    more = f" and {len(pairs) - MOST_CLASSES} more (--json)" if len(pairs) > MOST_CLASSES else ""
    facts = {
        "task": f"{task.name}: {pluralize(task.images, 'image')}{', multi-label' if task.is_multilabel else ''}",
        "classes": f"{len(pairs)}: {classes}{more}",
        "tags": ", ".join(task.tags) or "none",
        "source": task.source or "unknown",
        "taxon": task.taxon,
        "added": task.added,
        "errors": f"{len(measured)} measured" if measured else None,
        "task id": task.fingerprint,
    }
    output.print_facts((name, value) for name, value in facts.items() if value)
    print()
    rows = [
        {"embedding": one.key[: output.DIGITS], "probe": one.probe, "method": one.settings.get("method")}
        | {"norm": f"{one.norm:.3g}", "error": format_percent(one.cv_error), "added": one.added[:10]}
        | {"size": output.format_bytes(one.bytes)}
        for one in task.embeddings
    ]
    output.print_table(rows, text=("embedding", "probe", "method"), drop=("size", "added", "method", "error"))
    if not rows:
        output.print_text("no embedding yet: task2vec embed FOLDER")


def stats(library: options.LibraryFolder = None) -> None:
    """Count the entries of the library, and show which embeddings can be compared."""
    opened = inputs.open_if_any(library)
    counts: dict[str, Any] = dict.fromkeys(("tasks", "embeddings", "experts", "errors", "runs", "bytes"), 0)
    counts["spaces"], is_read_only = [], False
    if opened is not None:
        with opened:
            counts, is_read_only = opened.stats(), opened.is_read_only
    folder = str(inputs.find_library_folder(library))
    if output.wants_json():
        output.print_json({"library": folder, "is_read_only": is_read_only, **counts})
    elif not counts["tasks"] and not counts["experts"]:
        print(inputs.format_empty(library))
    else:
        rows = [("library", folder + (" (read-only)" if is_read_only else ""))]
        rows += [(kind, str(counts[kind])) for kind in ("tasks", "embeddings", "experts", "errors", "runs")]
        output.print_facts([*rows, ("size", f"{output.format_bytes(counts['bytes'])} of embeddings")])
        for space in counts["spaces"]:
            print(f"comparable: {pluralize(space['embeddings'], 'embedding')} by {format_space(space)}")


def format_space(space: dict[str, Any]) -> str:
    """A probe and the settings that embeddings must share to be compared."""
    settings = space["settings"]
    others = [f"{key} {value}" for key, value in list_unusual(settings).items() if key != "method"]
    methods = ", ".join([settings.get("method") or "unknown method", *others])
    return f"{printable(space['probe'])} ({space['probe_fingerprint'][: output.DIGITS]}), {printable(methods)}"


def list_unusual(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that differ from the defaults."""
    from task2vec.embedding import EmbedSettings, VariationalSettings

    usual = vars(VariationalSettings()) | vars(EmbedSettings())
    return {key: value for key, value in settings.items() if value is not None and value != usual.get(key)}


# --- editing ---------------------------------------------------------------------------------------------------------


def add(
    files: Annotated[list[Path], typer.Argument(help="Saved embeddings, or folders of them.")],
    tags: options.Tags = None,
    force: options.Force = False,
    library: options.LibraryFolder = None,
) -> None:
    """Add saved embeddings to the library.

    Files that are damaged, or that conflict with an existing embedding, are named and left out (exit code 4 or 3). If
    the library cannot be written to any more, what was added before stays.
    """
    places = inputs.list_embedding_files(files)
    import task2vec
    from task2vec.library import Library, check_tags
    from task2vec.progress import show_progress

    check_tags(tags or ())
    rows: list[dict[str, Any]] = []
    failed: list[tuple[Path, Task2VecError]] = []
    stopped: Task2VecError | None = None
    with Library.open(library) as opened, show_progress(output.is_watched()) as report:
        step = report("adding", len(places))
        for place in places:
            try:
                embedding = task2vec.load_embedding(place)
                (added,) = opened.add(embedding, tags=tags or (), replace=force)
            except (EmbeddingFileError, DataError) as error:
                failed.append((place, error))
                continue
            except Task2VecError as error:  # of the library, which will not take the next file either
                stopped = type(error)(f"stopped at '{place}', after {len(rows)} of {len(places)} files: {error}")
                break
            known_as = added.name if added.name != embedding.task else None
            row = {"file": str(place), "task": embedding.task, "known_as": known_as}
            rows.append(row | {"key": added.key, "is_new": added.is_new})
            step(1)
        folder = str(opened.folder)
    if output.wants_json():
        failures = [{"file": str(place), "reason": str(error)} for place, error in failed]
        output.print_json(
            {"library": folder, "added": rows, "failed": failures, "error": str(stopped) if stopped else None}
        )
    else:
        for row in rows:
            known_as = f", known as '{printable(row['known_as'])}'" if row["known_as"] else ""
            state = "added" if row["is_new"] else "known"
            print(f"{state}: {printable(row['task'])} ({row['key'][: output.DIGITS]}){known_as}")
        new = sum(row["is_new"] for row in rows)
        print(f"{new} added, {len(rows) - new} known; in {printable(folder)}")
        output.say_all(
            "failed", (str(error) if str(place) in str(error) else f"{place}: {error}" for place, error in failed)
        )
    if stopped:
        raise stopped
    if failed:
        raise typer.Exit(max(error.exit_code for _, error in failed))


def rm(
    name: Annotated[str, typer.Argument(help="A task (name or id), an embedding (key), or an expert.")],
    is_expert: Annotated[bool, typer.Option("--expert", help="Remove the expert of that name, not its file.")] = False,
    tags: Annotated[list[str] | None, typer.Option("--tag", help="Remove only this tag of the task.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Also remove the errors measured for it.")] = False,
    library: options.LibraryFolder = None,
) -> None:
    """Remove a task with its embeddings, one embedding, an expert, or tags of a task."""
    with inputs.open_existing(library) as opened:
        if tags:
            _print_tags(opened.tag(name, *tags, remove=True))
            return
        if is_expert:
            count = sum(error.expert == name for error in opened.errors())
            opened.remove_expert(name, with_errors=force)
            gone = f"removed: expert {printable(name)}, {pluralize(count, 'error')}"
            output.print_json({"expert": name, "errors": count}) if output.wants_json() else print(gone)
            return
        task = None
        with suppress(NotInLibraryError):  # then it is the key of an embedding
            task = opened.task(name)
        entries = opened.remove(name, with_errors=force)
    if output.wants_json():
        removed = [describe_embedding(entry) for entry in entries]
        output.print_json({"task": describe_task(task) if task else None, "embeddings": removed})
        return
    if task:
        print(f"removed: {printable(task.name)} ({task.fingerprint[: output.DIGITS]})")
    for entry in entries:
        size = output.format_bytes(entry.bytes)
        print(f"removed: embedding {entry.key[: output.DIGITS]} by {printable(entry.probe)}, {size}")


def tag(
    name: Name,
    tags: Annotated[list[str], typer.Argument(metavar="TAGS", help="One tag or more.")],
    library: options.LibraryFolder = None,
) -> None:
    """Add tags to a task.

    To remove one: task2vec library rm NAME --tag TAG
    """
    with inputs.open_existing(library) as opened:
        _print_tags(opened.tag(name, *tags))


def _print_tags(task: "TaskEntry") -> None:
    tags = ", ".join(task.tags) or "no tags"
    if not output.print_json(describe_task(task)):
        print(f"{printable(task.name)}: {printable(tags)}")


def rename(
    name: Name,
    new: Annotated[str, typer.Argument(metavar="NEW", help="The new name.")],
    library: options.LibraryFolder = None,
) -> None:
    """Rename a task."""
    with inputs.open_existing(library) as opened:
        before, task = opened.task(name), opened.rename(name, new)
    if not output.print_json(describe_task(task)):
        print(f"{printable(before.name)} is now {printable(task.name)}")


# --- verifying and sharing -------------------------------------------------------------------------------------------


def verify(library: options.LibraryFolder = None) -> None:
    """Read everything in the library, and report what is damaged.

    The exit code is 4 if anything is. Files of experts are outside the library: missing or changed ones are reported,
    and do not count as damage.
    """
    from task2vec.progress import show_progress

    with inputs.open_existing(library) as opened, show_progress(output.is_watched()) as report:
        found, folder = opened.verify(report=report), str(opened.folder)
    problems = [asdict(problem) for problem in found.problems]
    if output.wants_json():
        document = {"library": folder, "is_sound": found.is_sound, "entries": found.entries, "problems": problems}
        output.print_json(document | {"experts": [asdict(problem) for problem in found.experts]})
    else:
        state = "intact" if found.is_sound else pluralize(len(problems), "problem")
        without = f", {pluralize(len(found.experts), 'expert')} without a file" if found.experts else ""
        print(f"{state}: {pluralize(found.entries, 'embedding')} read in {printable(folder)}{without}")
        output.say_all("damaged", (f"{problem['entry']}: {problem['what']}" for problem in problems))
        if any(problem["entry"] not in ("library", "search") for problem in problems):
            output.say(FIX_EMBEDDING)
        if any(problem["entry"] in ("library", "search") for problem in problems):
            output.say("Rebuild the library from what can be read: task2vec library repair")
        output.say_all("warning: expert", (f"{problem.entry}: {problem.what}" for problem in found.experts))
        if found.experts:
            output.say(FIX_EXPERT)
    if not found.is_sound:
        raise typer.Exit(LibraryError.exit_code)


def repair(library: options.LibraryFolder = None) -> None:
    """Rebuild the library from everything that can still be read.

    The old file is kept in the folder `backups`. What could not be read is reported (exit code 4). No other process may
    use the library in the meantime.
    """
    from task2vec.library import Library
    from task2vec.progress import show_progress

    with show_progress(output.is_watched()) as report:
        found = Library.repair(library, report=report)
    if output.wants_json():
        folder = str(inputs.find_library_folder(library))
        output.print_json(
            {"library": folder, "embeddings": found.embeddings, "lost": list(found.lost), "kept": str(found.kept)}
        )
    else:
        print(f"{pluralize(found.embeddings, 'embedding')} recovered; the old file is in {printable(found.kept)}")
        output.say_all("lost", found.lost)
    if found.lost:
        raise typer.Exit(LibraryError.exit_code)


def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write, e.g. team.t2vlib.")],
    tag: options.Tag = None,
    force: options.Force = False,
    library: options.LibraryFolder = None,
) -> None:
    """Write the library, or the tasks with a tag, to one file that others can import.

    The paths of the images on this machine are left out.
    """
    if file.is_dir():
        raise UsageError(f"'{file}' is a folder, and a library is exported to a file: {file / 'tasks.t2vlib'}")
    if file.exists() and not force:
        raise UsageError(f"'{file}' exists and would be lost. Choose another name, or overwrite it with --force.")
    from task2vec.progress import show_progress

    with inputs.open_existing(library) as opened, show_progress(output.is_watched()) as report:
        chosen = opened.tasks(tag=tag)
        if tag is not None and not chosen:
            raise UsageError(f"no task has the tag '{tag}', so the export would be empty. See: task2vec library ls")
        place = opened.export(file, tag=tag, report=report)
    counts = {"tasks": len(chosen), "embeddings": sum(len(task.embeddings) for task in chosen)}
    size = place.stat().st_size
    if not output.print_json({"written": str(place), **counts, "bytes": size}):
        numbers = f"{pluralize(counts['tasks'], 'task')}, {pluralize(counts['embeddings'], 'embedding')}"
        print(f"{numbers}, {output.format_bytes(size)}: {printable(place)}")


def import_tasks(
    origin: Annotated[Path, typer.Argument(help="An exported file, or the folder of another library.")],
    library: options.LibraryFolder = None,
) -> None:
    """Import an exported file, or another library.

    Everything is checked before anything is added. Entries that conflict with existing ones are reported and left out
    (exit code 3).
    """
    if not origin.exists():
        raise UsageError(f"'{origin}' does not exist, so nothing can be imported from it. Check the spelling.")
    from task2vec.library import Library
    from task2vec.progress import show_progress

    with Library.open(library) as opened, show_progress(output.is_watched()) as report:
        merged, folder = opened.merge(origin, report=report), str(opened.folder)
    conflicts = list(merged.conflicts)
    if output.wants_json():
        counts = {"added": merged.added, "known": merged.known, "conflicts": conflicts}
        output.print_json({"library": folder, "origin": str(origin), **counts})
    else:
        new = ", ".join(pluralize(count, kind) for kind, count in merged.added.items() if count) or "nothing"
        print(f"{new} added, {merged.known} known; in {printable(folder)}")
        output.say_all("conflict", conflicts)
        if conflicts:
            output.say(FIX_CONFLICT)
    if conflicts:
        raise typer.Exit(ConflictError.exit_code)


# --- experts and errors ----------------------------------------------------------------------------------------------


def experts(library: options.LibraryFolder = None) -> None:
    """List the experts of the library."""
    opened = inputs.open_if_any(library)
    found, names, counts = [], {}, Counter()
    if opened is not None:
        with opened:
            found = opened.experts()
            names = {task.fingerprint: task.name for task in opened.tasks()}
            counts = Counter(error.expert for error in opened.errors())
    folder = str(inputs.find_library_folder(library))
    if output.wants_json():
        rows = [asdict(expert) | {"errors": counts[expert.name]} for expert in found]
        output.print_json({"library": folder, "count": len(rows), "experts": rows})
    elif found:
        rows = [
            {"expert": one.name, "trained on": names.get(one.task, one.task[: output.DIGITS]) if one.task else None}
            | {"errors": counts[one.name], "size": None if one.input_size is None else f"{one.input_size} px"}
            | {"params": one.parameters, "cost": None if one.cost is None else f"{one.cost:.2g} G"}
            | {"location": one.location}
            for one in found
        ]
        output.print_table(rows, text=("expert", "trained on", "location"), drop=("location", "cost", "params", "size"))
    else:
        print(f"There is no expert in '{printable(folder)}'. {output.name_library(TRAIN)}")


def errors(
    task: Annotated[str | None, typer.Option(help="Only this task, by name or id.")] = None,
    expert: Annotated[str | None, typer.Option(help="Only with this expert.")] = None,
    shots: options.Shots = None,
    library: options.LibraryFolder = None,
) -> None:
    """List the measured errors, averaged over splits."""
    with inputs.open_existing(library) as opened:
        wanted = {"task": None if task is None else opened.task(task).fingerprint, "expert": expert}
        names = {one.fingerprint: one.name for one in opened.tasks()}
        found = [
            error
            for error in opened.errors()
            if all(value in (None, getattr(error, name)) for name, value in wanted.items())
            and (shots is None or f"train {shots}" in error.protocol.split(", "))
        ]
        is_empty = not len(opened)
    if output.wants_json():
        rows = [asdict(error) | {"name": names[error.task]} for error in found]
        output.print_json({"library": str(inputs.find_library_folder(library)), "count": len(found), "errors": rows})
    elif found:
        cells: dict[tuple[str, str, str], list[float]] = defaultdict(list)
        for error in found:
            cells[error.task, error.expert, error.protocol].append(error.error)
        table = [
            {"task": names[cell[0]], "expert": cell[1], "error": format_percent(mean(own)), "splits": len(own)}
            | {"range": f"{format_percent(min(own))} to {format_percent(max(own))}" if len(own) > 1 else None}
            | {"protocol": cell[2]}
            for cell, own in cells.items()
        ]
        output.print_table(table, text=("task", "expert", "protocol"), drop=("range", "splits"))
    else:
        advice = "Measure some: task2vec error-matrix FOLDER --expert NAME"
        print(inputs.format_empty(library) if is_empty else f"No error matches. {output.name_library(advice)}")
