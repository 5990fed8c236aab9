"""`task2vec library`: what is in the library: its tasks, one of them, and how much of everything."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from task2vec.cli import options
from task2vec.cli.listing import Column, print_columns
from task2vec.cli.shelf import open_if_any, open_known, place_of, word_empty
from task2vec.cli.speech import name_library, open_page, print_facts, print_json, say
from task2vec.errors import LibraryError, UsageError
from task2vec.text import format_percent, pluralize, printable

if TYPE_CHECKING:
    from task2vec.library import EmbeddingEntry, Library, TaskEntry

# Digits of a fingerprint or key that are shown, and are enough to ask by.
DIGITS = 8
# What goes first where the page is narrow.
LS_IN_TURN = ("probe", "added", "norm", "classes", "tags", "error", "embeddings", "images")
SHOW_IN_TURN = ("size", "added", "method", "noise", "error")
MOST_CLASSES, MOST_ERRORS = 20, 20
_UNITS = {3: "kB", 6: "MB", 9: "GB"}

Name = Annotated[str, typer.Argument(metavar="NAME", help="A task by its name, or the first digits of its id.")]


def ls(
    tag: Annotated[str | None, typer.Option(help="Only tasks with this tag.")] = None,
    probe: Annotated[str | None, typer.Option(help="Only tasks with an embedding by this probe.")] = None,
    limit: Annotated[int | None, typer.Option(help="Rows to show; default: all.")] = None,
    library: options.LibraryFolder = None,
    as_json: options.AsJson = False,
) -> None:
    """List the tasks of the library.

    Where a task has several embeddings, the numbers are those of the newest one.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"--limit {limit} shows nothing. Give 1 or more, or leave it out.")
    opened = open_if_any(library)
    tasks, is_empty = [], True
    if opened is not None:
        with opened:
            tasks, is_empty = opened.tasks(tag=tag, probe=probe), not len(opened)
    if as_json:
        rows = [tell_task(task) for task in tasks[:limit]]
        print_json({"library": str(place_of(library)), "count": len(tasks), "tasks": rows})
    elif tasks:
        _print_tasks(tasks, probe=probe, limit=limit)
    elif is_empty:
        print(word_empty(library))
    else:
        asked = " and ".join(
            f"{word} {printable(value)}" for word, value in (("--tag", tag), ("--probe", probe)) if value
        )
        print(f"No task of the library fits {asked}. {name_library('See all of them: task2vec library ls')}")


def tell_task(task: "TaskEntry") -> dict[str, Any]:
    """A task of the index as plain values."""
    return asdict(task) | {"embeddings": [tell_embedding(one) for one in task.embeddings]}


def tell_embedding(entry: "EmbeddingEntry") -> dict[str, Any]:
    """An embedding of the index as plain values; the number of its row is nobody's business."""
    return {name: value for name, value in asdict(entry).items() if name != "id"}


def _print_tasks(tasks: "Sequence[TaskEntry]", *, probe: str | None, limit: int | None) -> None:
    shown = tasks[:limit]
    newest = [next((one for one in reversed(task.embeddings) if probe in (None, one.probe)), None) for task in shown]
    columns = [
        Column("task", tuple(printable(task.name) for task in shown), "name", is_name=True),
        Column("images", tuple(str(task.images) for task in shown), "images", is_number=True),
        Column("classes", tuple(str(len(task.classes)) for task in shown), "classes", is_number=True),
        Column("error", tuple(format_percent(one.cv_error) if one else "-" for one in newest), "error", is_number=True),
        Column("norm", tuple(f"{one.norm:.3g}" if one else "-" for one in newest), "norm", is_number=True),
        Column("embeddings", tuple(str(len(task.embeddings)) for task in shown), "embeddings", is_number=True),
        Column("probe", tuple(printable(one.probe) if one else "-" for one in newest), "probe"),
        Column("added", tuple(printable(task.added[:10]) for task in shown), "added", is_number=True),
        Column("tags", tuple(printable(", ".join(task.tags)) for task in shown), "tags"),
        Column("task id", tuple(task.fingerprint[:DIGITS] for task in shown), "id", is_number=True),
    ]
    several = sum(len(task.embeddings) > 1 for task in shown)
    told = {"tags": any(task.tags for task in shown), "embeddings": several > 0}
    print_columns([one for one in columns if told.get(one.part, True)], in_turn=LS_IN_TURN)
    if len(tasks) > len(shown):
        print(f"and {len(tasks) - len(shown)} more; --limit {len(tasks)} shows all")
    if several:
        newest_shown = name_library("the newest shown: task2vec library show NAME")
        print(f"{pluralize(several, 'task')} with several embeddings, {newest_shown}")


def show_entry(
    name: Name,
    library: options.LibraryFolder = None,
    as_json: options.AsJson = False,
) -> None:
    """Show a task: classes, tags, embeddings, errors."""
    with open_known(library) as opened:
        task = opened.task(name)
        embeddings, damaged = _look_at(opened, task)
        errors = [error for error in opened.errors() if error.task == task.fingerprint]
    report = tell_task(task) | {"embeddings": embeddings, "errors": [asdict(error) for error in errors]}
    print_json(report) if as_json else _print_entry(report)
    if damaged:
        for problem in damaged:
            say(f"damaged: {printable(problem)}")
        raise typer.Exit(LibraryError.exit_code)


def _look_at(library: "Library", task: "TaskEntry") -> tuple[list[dict[str, Any]], list[str]]:
    """The embeddings with their noise floors, for which they are opened, and why some of them cannot be."""
    from task2vec.distance.noise import find_floor

    told, damaged = [], []
    for entry in task.embeddings:
        floor = None
        try:
            floor = find_floor(library.get(entry.key))
        except LibraryError as error:
            damaged.append(str(error))
        told.append(tell_embedding(entry) | {"noise_floor": floor})
    return told, damaged


def _print_entry(report: dict[str, Any]) -> None:
    kind = ", multi-label" if report["is_multilabel"] else ""
    rows = [
        ("task", f"{printable(report['name'])}: {pluralize(report['images'], 'image')}{kind}"),
        ("classes", _word_classes(report["classes"], report["counts"])),
        ("tags", printable(", ".join(report["tags"])) or "none"),
        ("source", printable(report["source"]) or "unknown"),
    ]
    rows += [("taxon", printable(report["taxon"]))] if report["taxon"] else []
    rows += [("added", printable(report["added"])), ("task id", report["fingerprint"])]
    print_facts(rows)
    if report["embeddings"]:
        print()
        _print_embeddings(report["embeddings"])
    else:
        print("no embedding yet: task2vec embed FOLDER")
    if report["errors"]:
        print()
        _print_errors(report["errors"])


def _word_classes(classes: Sequence[str], counts: Sequence[int]) -> str:
    told = ", ".join(f"{printable(name)} ({count})" for name, count in zip(classes, counts, strict=True))
    if len(classes) > MOST_CLASSES:
        pairs = zip(classes[:MOST_CLASSES], counts[:MOST_CLASSES], strict=True)
        told = ", ".join(f"{printable(name)} ({count})" for name, count in pairs)
        told += f" and {len(classes) - MOST_CLASSES} more, which --json lists"
    return f"{len(classes)}: {told}"


def _print_embeddings(rows: Sequence[dict[str, Any]]) -> None:
    floors = tuple("-" if row["noise_floor"] is None else f"{row['noise_floor']:.3f}" for row in rows)
    print_columns(
        [
            Column("embedding", tuple(row["key"][:DIGITS] for row in rows), "key"),
            Column("probe", tuple(printable(row["probe"]) for row in rows), "probe"),
            Column("method", tuple(printable(row["settings"].get("method", "-")) for row in rows), "method"),
            Column("norm", tuple(f"{row['norm']:.3g}" for row in rows), "norm", is_number=True),
            Column("error", tuple(format_percent(row["cv_error"]) for row in rows), "error", is_number=True),
            Column("noise", floors, "noise", is_number=True),
            Column("added", tuple(printable(row["added"][:10]) for row in rows), "added", is_number=True),
            Column("size", tuple(word_bytes(row["bytes"]) for row in rows), "size", is_number=True),
        ],
        in_turn=SHOW_IN_TURN,
    )


def _print_errors(rows: Sequence[dict[str, Any]]) -> None:
    shown = rows[:MOST_ERRORS]
    print_columns(
        [
            Column("expert", tuple(printable(row["expert"]) for row in shown), "expert"),
            Column("error", tuple(format_percent(row["error"]) for row in shown), "error", is_number=True),
            Column("protocol", tuple(printable(row["protocol"]) for row in shown), "protocol"),
            Column("seed", tuple(str(row["seed"]) for row in shown), "seed", is_number=True),
            Column("measured", tuple(printable((row["measured"] or "-")[:10]) for row in shown), "measured", True),
            Column("by", tuple(printable(row["measured_by"]) for row in shown), "by"),
        ],
        in_turn=("by", "measured", "seed"),
    )
    if len(rows) > len(shown):
        print(f"and {len(rows) - len(shown)} more errors, which --json lists")


def stats(library: options.LibraryFolder = None, as_json: options.AsJson = False) -> None:
    """Tell how much there is, and what can be compared."""
    opened = open_if_any(library)
    told: dict[str, Any] = dict.fromkeys(("tasks", "embeddings", "experts", "errors", "runs", "bytes"), 0)
    told["spaces"] = []
    is_read_only = False
    if opened is not None:
        with opened:
            told, is_read_only = opened.stats(), opened.is_read_only
    report = {"library": str(place_of(library)), "is_read_only": is_read_only, **told}
    if as_json:
        print_json(report)
        return
    if not told["tasks"] and not told["experts"]:
        print(word_empty(library))
        return
    rows = [("library", printable(report["library"]) + (" (read-only)" if is_read_only else ""))]
    rows += [(kind, str(told[kind])) for kind in ("tasks", "embeddings", "experts", "errors", "runs")]
    rows.append(("size", f"{word_bytes(told['bytes'])} of embeddings"))
    print_facts(rows)
    if told["spaces"]:
        open_page().print("\nWhat can be compared, one with another:")
        for space in told["spaces"]:
            print(f"  {pluralize(space['embeddings'], 'embedding')} by {word_space(space)}")


def word_space(space: dict[str, Any]) -> str:
    """A probe and the settings that matter to a comparison, in words."""
    settings = space["settings"]
    method = settings.get("method") or "unknown method"
    others = [f"{key} {value}" for key, value in find_unusual(settings).items() if key != "method"]
    return f"{printable(space['probe'])} ({space['probe_fingerprint'][:DIGITS]}), {printable(', '.join([method, *others]))}"


def find_unusual(settings: dict[str, Any]) -> dict[str, Any]:
    """Those of the settings that are not what they are when nobody says anything."""
    from task2vec.embedding.settings import EmbedSettings, VariationalSettings

    usual = vars(VariationalSettings()) | vars(EmbedSettings())
    return {key: value for key, value in settings.items() if value is not None and value != usual.get(key)}


def word_bytes(size: int) -> str:
    """A number of bytes in words.

    Example:
        >>> word_bytes(999), word_bytes(21_008), word_bytes(3_200_000_000)
        ('999 B', '21.0 kB', '3.2 GB')
    """
    if size < 1000:
        return f"{size} B"
    unit = next((unit for unit in (3, 6) if size < 10 ** (unit + 3)), 9)
    return f"{size / 10**unit:.1f} {_UNITS[unit]}"
