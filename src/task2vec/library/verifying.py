"""Everything in a library is read, and what is damaged is named."""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

from task2vec.embedding.progress import Report, silent
from task2vec.errors import LibraryError, Task2VecError
from task2vec.library.blobs import Blobs
from task2vec.library.database import Database
from task2vec.library.identity import identify
from task2vec.library.keeping import load_blob
from task2vec.library.search import Search


@dataclass(frozen=True)
class Problem:
    """Something damaged: of which entry, and what.

    Attributes:
        entry: the name of the task and the key of the embedding, or "index".
        what: what is wrong with it, in words.
    """

    entry: str
    what: str


@dataclass(frozen=True)
class Verification:
    """What a look at everything found.

    Attributes:
        entries: embeddings that were read.
        problems: what is damaged.
        orphans: files that nothing knows; harmless, and swept by `compact`.
    """

    entries: int
    problems: tuple[Problem, ...]
    orphans: int

    @property
    def is_sound(self) -> bool:
        """Whether nothing is damaged."""
        return not self.problems


def verify(database: Database, blobs: Blobs, search: Search, *, report: Report = silent) -> Verification:
    """Checks the index, every blob against its hash and its entry, and the rows that are searched."""
    problems = list(_check_index(database))
    entries, known, damaged = [], set(), set()
    try:
        with database.reading() as connection:
            entries = connection.execute(
                "SELECT e.id, e.key, e.sha256, t.name FROM embeddings e JOIN tasks t ON t.id = e.task ORDER BY t.name"
            ).fetchall()
            known = {row[0] for row in connection.execute("SELECT sha256 FROM embeddings")}
    except LibraryError as error:
        problems.append(Problem("index", f"the list of embeddings cannot be read: {error}"))
    step = report("verifying", len(entries))
    for number, key, sha256, name in entries:
        problem = _check_blob(blobs, key, sha256, name)
        if problem:
            problems.append(Problem(f"{name} ({key[:8]})", problem))
            damaged.add(number)
        step(1)
    problems += _check_search(database, blobs, search, {row[0]: row for row in entries if row[0] not in damaged})
    return Verification(len(entries), tuple(problems), len(blobs.find_orphans(known)) if known or not problems else 0)


def _check_index(database: Database) -> Iterator[Problem]:
    """What SQLite itself finds wrong."""
    try:
        with database.reading() as connection:
            for (text,) in connection.execute("PRAGMA integrity_check(20)").fetchall():
                if text != "ok":
                    yield Problem("index", text)
            for table, row, parent, _ in connection.execute("PRAGMA foreign_key_check").fetchall():
                yield Problem("index", f"row {row} of {table} belongs to a row of {parent} that is not there")
    except LibraryError as error:
        yield Problem("index", str(error))


def _check_blob(blobs: Blobs, key: str, sha256: str, name: str) -> str | None:
    """What is wrong with one embedding, or None."""
    try:
        if identify(load_blob(blobs, sha256, name=name)).key != key:
            return f"'{blobs.path(sha256)}' is the embedding of something else"
    except Task2VecError as error:
        return str(error)
    return None


def _check_search(database: Database, blobs: Blobs, search: Search, entries: dict[int, tuple]) -> list[Problem]:
    """What is wrong with the rows that are searched; embeddings that are damaged themselves are left out."""

    def load(number: int):
        _, _, sha256, name = entries[number]
        return load_blob(blobs, sha256, name=name)

    problems = []
    try:
        with database.reading() as connection:
            for (space,) in connection.execute("SELECT id FROM spaces").fetchall():
                for number, what in search.verify(connection, space, load):
                    if number in entries:
                        problems.append(Problem(f"{entries[number][3]} ({entries[number][1][:8]})", what))
    except (LibraryError, sqlite3.Error) as error:
        problems.append(Problem("index", f"the places of rows cannot be read: {error}"))
    return problems
