"""A library whose index is damaged gets a new one, from all that can still be read.

Embeddings and their tasks come back from the blobs, which know everything about themselves. Tags, experts, errors and
runs come back as far as the old index can be read.
"""

import json
import os
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from task2vec.embedding.progress import Report, silent
from task2vec.embedding.store import decode_embedding
from task2vec.errors import LibraryError, Task2VecError
from task2vec.library.blobs import name_of
from task2vec.library.database import BACKUPS, INDEX, Database
from task2vec.library.entries import Expert, MeasuredError
from task2vec.library.identity import TaskFacts, read_facts
from task2vec.library.keeping import Keeper, Note

_COMPANIONS = ("", "-wal", "-shm")


@dataclass
class Salvaged:
    """What could be read of a damaged index.

    Attributes:
        kept: where the damaged index lies now.
        tasks: what was noted of them.
        experts: with the moment they were added.
        errors: of tasks and experts that could be read.
        runs: their rows.
        lost: tables that could not be read to their end.
    """

    kept: Path
    tasks: list[tuple[TaskFacts, Note]] = field(default_factory=list)
    experts: list[tuple[Expert, str]] = field(default_factory=list)
    errors: list[MeasuredError] = field(default_factory=list)
    runs: list[Sequence] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Repaired:
    """What a repair brought back.

    Attributes:
        embeddings: how many are in the library now.
        lost: what could not be read, in words.
        kept: where the damaged index lies.
    """

    embeddings: int
    lost: tuple[str, ...]
    kept: Path


def set_aside(folder: Path) -> Salvaged:
    """Moves the index into the folder of backups, and reads what can be read of it there."""
    if not (folder / INDEX).exists() and not (folder / "blobs").is_dir():
        raise LibraryError(f"there is no library in '{folder}', so there is nothing to repair. Check the path.")
    moment = datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")
    place = folder / BACKUPS / f"damaged-{moment}"
    place.mkdir(parents=True)
    for companion in _COMPANIONS:
        file = folder / f"{INDEX}{companion}"
        if file.exists():
            os.replace(file, place / file.name)
    salvaged = Salvaged(place)
    try:
        connection = sqlite3.connect(place / INDEX, isolation_level=None)
        try:
            _read(connection, salvaged)
        finally:
            connection.close()
    except sqlite3.Error as error:
        salvaged.lost.append(f"the old index ({error})")
    return salvaged


def refill(salvaged: Salvaged, database: Database, keeper: Keeper, *, report: Report = silent) -> Repaired:
    """Puts all of it, and every blob that is whole, into a new index."""
    lost = list(salvaged.lost)
    with database.writing() as connection:
        for facts, note in salvaged.tasks:
            keeper.keep_task(connection, facts, note)
        for expert, added in salvaged.experts:
            keeper.keep_expert(connection, expert, added=added)
        for error in salvaged.errors:
            keeper.keep_error(connection, error)
        connection.executemany(
            "INSERT INTO runs(what, story, begun, ended, outcome) VALUES (?, ?, ?, ?, ?)", salvaged.runs
        )
    hashes = [name for path in keeper.blobs.list_files() if (name := name_of(path))]
    count, step = 0, report("repairing", len(hashes))
    for sha256 in hashes:
        try:
            embedding = decode_embedding(keeper.blobs.read(sha256), keeper.blobs.path(sha256))
            with database.writing() as connection:
                count += keeper.keep_embedding(connection, embedding, Note())[0].is_new
                keeper.search.sync()
        except Task2VecError as error:
            lost.append(str(error))
        step(1)
    return Repaired(count, tuple(lost), salvaged.kept)


def _read(connection: sqlite3.Connection, salvaged: Salvaged) -> None:
    """Fills in what the old index still tells."""
    tags: dict[int, list[str]] = {}
    for task, tag in _rows(connection, salvaged, "tags", "task, tag"):
        tags.setdefault(task, []).append(tag)
    tasks, experts = {}, {}
    columns = "id, fingerprint, name, images, classes, counts, is_multilabel, taxon, source, added"
    for number, *fields, taxon, source, added in _rows(connection, salvaged, "tasks", columns):
        names = ("fingerprint", "name", "images", "classes", "counts", "is_multilabel")
        told = dict(zip(names, fields, strict=True))
        told |= {"classes": json.loads(told["classes"]), "counts": json.loads(told["counts"])}
        facts = read_facts(told | {"is_multilabel": bool(told["is_multilabel"])})
        tasks[number] = facts.fingerprint
        salvaged.tasks.append((facts, Note(tuple(tags.get(number, ())), taxon, source, added)))
    columns = "id, name, source, location, task, recipe, parameters, input_size, cost, sha256, added"
    for number, *fields, added in _rows(connection, salvaged, "experts", columns):
        fields[4] = json.loads(fields[4])
        expert = Expert(*fields)
        experts[number] = expert.name
        salvaged.experts.append((expert, added))
    columns = "task, expert, error, protocol, seed, low, high, measured, measured_by"
    for task, expert, *fields in _rows(connection, salvaged, "errors", columns):
        if task in tasks and expert in experts:
            salvaged.errors.append(MeasuredError(tasks[task], experts[expert], *fields))
        else:
            salvaged.lost.append("an error whose task or expert cannot be read")
    salvaged.runs += _rows(connection, salvaged, "runs", "what, story, begun, ended, outcome")


def _rows(connection: sqlite3.Connection, salvaged: Salvaged, table: str, columns: str) -> list[Sequence]:
    """The rows of a table, as far as they can be read."""
    rows: list[Sequence] = []
    try:
        for row in connection.execute(f"SELECT {columns} FROM {table}"):
            rows.append(row)
    except sqlite3.Error as error:
        salvaged.lost.append(f"the table of {table} after {len(rows)} rows ({error})")
    return rows
