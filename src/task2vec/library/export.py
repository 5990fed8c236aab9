"""Copying from one library file to another: what import, export and repair have in common.

An exported file is a library of its own: the same tables in one SQLite file, without the paths of this machine. Every
row that is copied is checked as if it were added today, so that a file from anybody, or a damaged one, brings nothing
that could not have been added here.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, fields
from itertools import islice
from pathlib import Path
from sqlite3 import Connection, IntegrityError
from typing import Any, TypeVar

from task2vec.embedding.embedding import decode_embedding
from task2vec.errors import ConflictError, LibraryError
from task2vec.library import tables
from task2vec.library.database import DAMAGE, Database, read_blob
from task2vec.library.entries import Expert, MeasuredError, check_tags, check_text, read_task
from task2vec.progress import Report, silent

SUFFIX = ".t2vlib"
_MAX_ROWS = 10_000_000  # a damaged tree of pages can be endless
# What damaged or forged rows raise, our own refusals among them; a full disk raises none of these.
INVALID = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, IntegrityError)
T = TypeVar("T")
Record = TypeVar("Record", Expert, MeasuredError)


@dataclass
class Merged:
    """The outcome of a merge.

    Attributes:
        added: how many of each kind were new.
        known: how many were here already.
        conflicts: what is here under the same key with another content, and was left as it is.
    """

    added: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("task", "embedding", "expert", "error"), 0))
    known: int = 0
    conflicts: list[str] = field(default_factory=list)


@contextmanager
def open_origin(path: Path) -> Iterator[Connection]:
    """The library in a file of someone else, whose pages are sound; whatever is refused in the block names the file."""
    try:
        if path.exists() and not path.is_file():  # opening a pipe would wait for ever
            raise LibraryError("it is not a regular file")
        with closing(Database(path, read_only=True)) as origin, origin.read() as old:
            (answer,) = old.execute("PRAGMA quick_check(1)").fetchone()
            if answer != "ok":
                raise LibraryError(f"it is damaged ({answer})")
            yield old
    except LibraryError as error:
        why = error.__cause__ or error  # what SQLite says of a damaged file
        raise LibraryError(
            f"'{path}' was refused, and nothing in it was imported: {why}. Ask for a good copy."
        ) from error


def refuse_damage(description: str) -> None:
    """For copies that must be whole."""
    raise LibraryError(f"{description} is damaged, so nothing was copied. List all damage: task2vec library verify")


def copy_to_file(old: Connection, path: Path, **options: Any) -> Merged:
    """A new library at `path`, with everything in one file; see `copy_library`."""
    with closing(Database(path, read_only=False)) as database:
        with database.write() as new:
            merged = copy_library(old, new, **options)
        with database.connect() as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return merged


def copy_library(
    old: Connection,
    new: Connection,
    *,
    on_damage: Callable[[str], None] = refuse_damage,
    tag: str | None = None,
    is_own: bool = False,
    report: Report = silent,
) -> Merged:
    """Adds everything of one file to another, in a transaction of the caller.

    Args:
        old: where to read.
        new: where to write.
        on_damage: is told what cannot be read or is not valid, which is then left out.
        tag: take only the tasks with this tag, and what was measured for them.
        is_own: take the log of runs and the paths of images, too.
        report: opens a progress bar, see `task2vec.progress`.
    """
    merged = Merged()
    tags = defaultdict(list)

    def read(table: str, make: Callable[[dict[str, Any]], T]) -> dict[int, T]:
        """What `make` returns for every valid row, by its first column."""
        values = {}
        for number, row in _read_rows(old, new, table, on_damage):
            try:
                values[number] = make(row)
            except INVALID as error:
                on_damage(f"row {number} of {table} ({type(error).__name__}: {error})"[:300])
        return values

    def copy_run(row: dict[str, Any]) -> None:
        json.loads(row["details"])
        tables.insert(new, "runs", row)

    def add(thing: Any, **options: Any) -> bool:
        try:
            added = tables.write(new, thing, **options)
        except ConflictError as error:
            merged.conflicts.append(str(error))
            return False
        merged.known += not added.is_new
        merged.added[added.kind] += added.is_new
        return True

    def copy_embedding(number: int) -> None:
        content = read_blob(old, "contents", "content", number)
        try:
            added = check_text(known.get(number, {}).get("added"), "added", may_be_none=True)
            add(decode_embedding(content or b"", f"embedding {number}"), added=added)
        except INVALID:
            on_damage(f"embedding {number} (missing or unreadable, or its SHA-256 differs)")

    read("tags", lambda row: tags[row["task"]].extend(check_tags(row["tag"])))
    tasks = read("tasks", lambda row: _make_task(row, tags[row["id"]]))
    experts = read("experts", lambda row: _make(Expert, row, recipe=json.loads(row["recipe"])))
    errors = read(
        "errors",
        lambda row: _make(MeasuredError, row, task=tasks[row["task"]].fingerprint, expert=experts[row["expert"]].name),
    )
    known = read("embeddings", dict)
    ids = sorted({number for number, _ in _read_rows(old, new, "contents", on_damage)} | known.keys())
    if tag is not None:
        tasks = {number: task for number, task in tasks.items() if tag in task.tags}
        chosen = {task.fingerprint for task in tasks.values()}
        errors = {number: error for number, error in errors.items() if error.task in chosen}
        needed = {error.expert for error in errors.values()}
        experts = {number: expert for number, expert in experts.items() if expert.name in needed}
        ids = [number for number in ids if number in known and known[number]["task"] in tasks]
    for task in tasks.values():
        add(task, about={} if is_own else {"source": ""})  # a path on that machine
    step = report("copying", len(ids))
    for number in ids:
        copy_embedding(number)
        step(1)
    conflicting = {expert.name for expert in experts.values() if not add(expert)}
    for error in errors.values():
        if error.expert not in conflicting:
            add(error)
        else:
            conflict = f"an error measured with '{error.expert}' was left out: the name belongs to another expert here."
            merged.conflicts.append(f"{conflict} Rename one of them, and merge again.")
    if is_own:
        read("runs", copy_run)
    return merged


def _make_task(row: dict[str, Any], tags: list[str]) -> tables.TaskEntry:
    lists = {name: json.loads(row[name]) for name in ("classes", "counts")}
    return read_task(row | lists | {"tags": sorted(tags), "is_multilabel": bool(row["is_multilabel"])})


def _make(kind: type[Record], row: dict[str, Any], **changes: Any) -> Record:
    return kind(**{field.name: row[field.name] for field in fields(kind)} | changes)


def _read_rows(
    old: Connection, new: Connection, table: str, on_damage: Callable[[str], None]
) -> list[tuple[int, dict[str, Any]]]:
    """The rows of a table with their first columns, from its beginning to where it is damaged, and from its end back.

    The columns are those that the new file has.
    """
    columns = [row[1] for row in new.execute(f"PRAGMA table_info({table})") if row[1] != "content"]
    keys = columns[: 2 if table == "tags" else 1]
    rows = {}
    failure = "there is none"
    for direction in ("ASC", "DESC"):
        try:
            root = old.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
            if root is not None and root[0]:  # a view could compute for ever
                order = ", ".join(f"{key} {direction}" for key in keys)
                cursor = old.execute(f"SELECT {', '.join(columns)} FROM {table} ORDER BY {order}")
                rows.update((row, dict(zip(columns, row, strict=True))) for row in islice(cursor, _MAX_ROWS))
                failure = None
            break
        except (*DAMAGE, OverflowError) as error:
            failure = error
    if failure is not None:
        on_damage(f"a part of the table {table} ({failure})")
    return [(values[0], row) for values, row in rows.items()]
