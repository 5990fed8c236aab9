"""What can still be read of a damaged index: row by row, each checked, and what cannot is named."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from task2vec.errors import UsageError
from task2vec.library.connecting import DAMAGE, connect, make_address
from task2vec.library.entries import Expert, MeasuredError
from task2vec.library.identity import TaskFacts, read_facts
from task2vec.library.keeping import Note, check_tags
from task2vec.library.texts import check_text

_MOST_ROWS = 10_000_000  # a damaged tree of pages can have no end


@dataclass
class Salvaged:
    """What could be read of a damaged index.

    Attributes:
        tasks: what was noted of them.
        experts: with the moment they were added.
        errors: of tasks and experts that could be read.
        runs: their rows.
        embeddings: the moment they were added, by the hash of the blob.
        lost: what could not be read, in words.
    """

    tasks: list[tuple[TaskFacts, Note]] = field(default_factory=list)
    experts: list[tuple[Expert, str | None]] = field(default_factory=list)
    errors: list[MeasuredError] = field(default_factory=list)
    runs: dict[tuple, None] = field(default_factory=dict)
    embeddings: dict[str, str | None] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)


def salvage(path: Path, salvaged: Salvaged) -> None:
    """Adds what the index at `path` still tells; it may be changed by that, so it should be a copy."""
    try:
        connection = connect(make_address(path, "mode=rw"))
    except DAMAGE as error:
        salvaged.lost.append(f"the old index ({error})")
        return
    try:
        connection.text_factory = bytes  # so that a text that is none spoils its own row alone
        _read(connection, salvaged)
    finally:
        connection.close()


def _read(connection: sqlite3.Connection, salvaged: Salvaged) -> None:
    """Fills in what the old index still tells."""
    tags: dict[Any, list[str]] = {}
    for task, tag in _rows(connection, salvaged, "tags", "task, tag", order="task {0}, tag {0}"):
        with _losing(salvaged, "a tag"):
            tags.setdefault(task, []).append(*check_tags([_text(tag)]))
    tasks: dict[Any, str] = {}
    columns = "id, fingerprint, name, images, classes, counts, is_multilabel, taxon, source, added"
    for number, *fields in _rows(connection, salvaged, "tasks", columns):
        with _losing(salvaged, f"task {number}, if it has no embedding"):
            facts, note = _read_task(fields, tags.get(number, []))
            salvaged.tasks.append((facts, note))
            tasks[number] = facts.fingerprint
    experts: dict[Any, str] = {}
    columns = "id, name, source, location, task, recipe, parameters, input_size, cost, sha256, added"
    for number, *fields, added in _rows(connection, salvaged, "experts", columns):
        with _losing(salvaged, f"expert {number}"):
            told = _read_texts(fields)
            told[4] = json.loads(told[4])
            expert = Expert(*told)
            salvaged.experts.append((expert, _text(added)))
            experts[number] = expert.name
    columns = "id, task, expert, error, protocol, seed, low, high, measured, measured_by"
    for number, task, expert, *fields in _rows(connection, salvaged, "errors", columns):
        with _losing(salvaged, f"error {number}, or its task or expert"):
            told = _read_texts(fields)
            salvaged.errors.append(MeasuredError(tasks[task], experts[expert], *told))
    _read_rest(connection, salvaged)


def _read_rest(connection: sqlite3.Connection, salvaged: Salvaged) -> None:
    """Runs, and which blobs there were."""
    for number, *fields in _rows(connection, salvaged, "runs", "id, what, story, begun, ended, outcome"):
        with _losing(salvaged, f"run {number}"):
            what, story, begun = (_text(one) for one in fields[:3])
            json.loads(story)
            ended, outcome = (None if one is None else _text(one) for one in fields[3:])
            salvaged.runs[what, story, begun, ended, outcome] = None
    for number, sha256, added in _rows(connection, salvaged, "embeddings", "id, sha256, added"):
        with _losing(salvaged, f"when embedding {number} was added"):
            salvaged.embeddings[_text(sha256)] = _text(added)


def _read_task(fields: list[Any], tags: list[str]) -> tuple[TaskFacts, Note]:
    fingerprint, name, images, classes, counts, is_multilabel, taxon, source, added = fields
    told = {"fingerprint": _text(fingerprint), "name": _text(name), "images": images}
    told |= {"classes": json.loads(classes), "counts": json.loads(counts), "is_multilabel": bool(is_multilabel)}
    return read_facts(told), Note(tuple(tags), None if taxon is None else _text(taxon), _text(source), _text(added))


@contextmanager
def _losing(salvaged: Salvaged, what: str) -> Iterator[None]:
    """Notes that something is lost if it turns out to be no such thing."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        salvaged.lost.append(f"{what} ({type(error).__name__}: {error})"[:300])


def _read_texts(fields: list[Any]) -> list[Any]:
    return [_text(one) if isinstance(one, bytes) else one for one in fields]


def _text(value: Any) -> str:
    if not isinstance(value, bytes):
        raise UsageError(f"{type(value).__name__} instead of a text")
    return check_text(value.decode(), "text")


def _rows(
    connection: sqlite3.Connection, salvaged: Salvaged, table: str, columns: str, *, order: str = "id {0}"
) -> list[tuple]:
    """The rows of a table from its beginning to where it is damaged, and from its end back to there."""
    rows: dict[tuple, None] = {}
    for direction in ("ASC", "DESC"):
        try:
            found = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
            if found is None or not found[0]:  # a view could compute for ever
                salvaged.lost.append(f"the table of {table}: there is none")
                return []
            cursor = connection.execute(f"SELECT {columns} FROM {table} ORDER BY {order.format(direction)}")
            for _, row in zip(range(_MOST_ROWS), cursor, strict=False):
                rows[row] = None
            return list(rows)
        except (*DAMAGE, OverflowError) as error:
            failure = error
    salvaged.lost.append(f"a part of the table of {table} ({failure})")
    return list(rows)
