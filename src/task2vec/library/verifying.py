"""Everything in a library is read, and what is damaged is named.

Others may write meanwhile. So whatever looks damaged is looked for once more: what was removed or moved in between is
not damaged.
"""

import hashlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from task2vec.embedding import Embedding
from task2vec.errors import LibraryError, Task2VecError
from task2vec.library.blobs import Blobs
from task2vec.library.database import Database
from task2vec.library.identity import identify
from task2vec.library.keeping import load_blob
from task2vec.library.search import Search
from task2vec.library.sweeping import list_known
from task2vec.progress import Report, silent

_TRIES = 5  # looks at the rows of a space that others change
_DAMAGE = (sqlite3.Error, Task2VecError, TypeError, ValueError, OverflowError, AttributeError)


@dataclass(frozen=True)
class Problem:
    """Something damaged: of which entry, and what.

    Attributes:
        entry: the name of the task and the key of the embedding, or "index" or "search".
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
        orphans: files that nobody needs; harmless, and swept by `compact`.
        strangers: whole embeddings that the index does not know, as if it were older than they are; `Library.repair`
            takes them in.
        experts: those whose file of weights is missing or another than it was. Such files lie elsewhere: the library is
            whole without them, and what was measured with them stays true, but nothing more can be measured.
    """

    entries: int
    problems: tuple[Problem, ...]
    orphans: int
    strangers: int = 0
    experts: tuple[Problem, ...] = ()

    @property
    def is_sound(self) -> bool:
        """Whether nothing is damaged."""
        return not self.problems


@dataclass(frozen=True)
class _Entry:
    number: int
    key: str
    sha256: str
    name: str

    def __str__(self) -> str:
        return f"{self.name} ({str(self.key)[:8]})"


def verify(database: Database, blobs: Blobs, search: Search, *, report: Report = silent) -> Verification:
    """Checks the index, every blob against its hash and its entry, and the rows that are searched."""
    with database.borrowing():
        pass  # a library that is closed says so, and is not damaged
    problems = list(_check_index(database))
    entries: list[_Entry] = []
    try:
        with database.reading() as connection:
            entries = _list_entries(connection)
    except Task2VecError as error:
        problems.append(Problem("index", f"the list of embeddings cannot be read: {error}"))
    step = report("verifying", len(entries))
    good: dict[int, _Entry] = {}
    for entry in entries:
        problem = _check_blob(blobs, entry)
        if problem is None:
            good[entry.number] = entry
        elif _is_there(database, entry):
            problems.append(Problem(str(entry), problem))
        step(1)
    problems += _check_search(database, blobs, search, good)
    experts = tuple(_check_experts(database, report))
    return Verification(len(entries), tuple(problems), *_count_unknown(database, blobs), experts)


def glance(database: Database, blobs: Blobs) -> Verification:
    """Checks the index, and that every blob has its length, without opening one: flipped bytes are not found."""
    with database.borrowing():
        pass
    problems, rows, sizes = list(_check_index(database)), [], {}
    try:
        with database.reading() as connection:
            sizes = dict(connection.execute("SELECT id, bytes FROM embeddings").fetchall())
            rows = _list_entries(connection)
    except Task2VecError as error:
        problems.append(Problem("index", f"the list of embeddings cannot be read: {error}"))
    for entry in rows:
        problem = _check_length(blobs, entry, sizes[entry.number])
        if problem is not None and _is_there(database, entry):
            problems.append(Problem(str(entry), problem))
    return Verification(len(rows), tuple(problems), orphans=0)  # which takes reading them


def _list_entries(connection: sqlite3.Connection) -> list[_Entry]:
    rows = connection.execute(
        "SELECT e.id, e.key, e.sha256, t.name FROM embeddings e JOIN tasks t ON t.id = e.task ORDER BY t.name, e.id"
    )
    return [_Entry(*row) for row in rows]


def _check_index(database: Database) -> Iterator[Problem]:
    """What SQLite itself finds wrong."""
    try:
        with database.reading() as connection:
            for (text,) in connection.execute("PRAGMA integrity_check(20)").fetchall():
                if text != "ok":
                    yield Problem("index", text)
            for table, row, parent, _ in connection.execute("PRAGMA foreign_key_check").fetchall():
                yield Problem("index", f"row {row} of {table} belongs to a row of {parent} that is not there")
    except Task2VecError as error:
        yield Problem("index", str(error))


def _check_blob(blobs: Blobs, entry: _Entry) -> str | None:
    """What is wrong with one embedding, or None."""
    try:
        if identify(load_blob(blobs, entry.sha256, name=entry.name)).key != entry.key:
            return f"'{blobs.path(entry.sha256)}' is the embedding of something else"
    except _DAMAGE as error:
        return str(error)
    return None


def _check_length(blobs: Blobs, entry: _Entry, size: int) -> str | None:
    """What is wrong with the file of one embedding by its length, or None."""
    try:
        path = blobs.path(entry.sha256)
        found = path.stat().st_size if path.is_file() else None
    except (OSError, LibraryError) as error:
        return str(error)
    if found is None:
        return f"there is no file '{path}'"
    return None if found == size else f"'{path}' has {found} bytes, and had {size} when it was written"


def _is_there(database: Database, entry: _Entry) -> bool:
    """Whether the entry is still in the index, with the same blob; so if that cannot be told."""
    try:
        with database.reading() as connection:
            query = "SELECT 1 FROM embeddings WHERE id = ? AND sha256 = ?"
            return connection.execute(query, (entry.number, entry.sha256)).fetchone() is not None
    except _DAMAGE:
        return True


def _check_search(database: Database, blobs: Blobs, search: Search, good: dict[int, _Entry]) -> list[Problem]:
    """What is wrong with the rows that are searched; embeddings that are damaged themselves are left out."""

    def load(number: int) -> Embedding | None:
        try:
            return load_blob(blobs, good[number].sha256, name=good[number].name)
        except (KeyError, LibraryError):
            return None

    problems = []
    try:
        with database.reading() as connection:
            spaces = connection.execute("SELECT id, probe FROM spaces").fetchall()
        for space, probe in spaces:
            for number, what in _check_space(database, search, space, load):
                if number is None:
                    problems.append(Problem("search", f"of the embeddings by {probe}: {what}"))
                elif number in good and _is_there(database, good[number]):
                    problems.append(Problem(str(good[number]), what))
    except _DAMAGE as error:
        problems.append(Problem("index", f"the places of rows cannot be read: {error}"))
    return problems


def _check_space(database: Database, search: Search, space: int, load: Any) -> list[tuple[int | None, str]]:
    """What is wrong with one space, if nobody has moved its rows while they were read."""
    state, found = "SELECT generation, changes FROM spaces WHERE id = ?", []
    for _ in range(_TRIES):
        with database.reading() as connection:
            before = connection.execute(state, (space,)).fetchone()
            found = list(search.verify(connection, space, load))
        with database.reading() as connection:
            if not found or connection.execute(state, (space,)).fetchone() == before:
                return found
    return found


def _check_experts(database: Database, report: Report) -> Iterator[Problem]:
    """Which experts cannot be loaded as they were, by the hashes of their files."""
    try:
        with database.reading() as connection:
            query = "SELECT name, location, sha256 FROM experts WHERE source = 'file' AND sha256 IS NOT NULL"
            rows = connection.execute(f"{query} ORDER BY name").fetchall()
    except _DAMAGE:
        return  # which is told of the index
    step = report("experts", len(rows))
    for name, location, sha256 in rows:
        try:
            what = _check_file(Path(location), sha256)
        except (OSError, *_DAMAGE) as error:
            what = f"'{location}' cannot be read ({error})"
        if what is not None:
            yield Problem(str(name), what)
        step(1)


def _check_file(path: Path, sha256: str) -> str | None:
    """What is wrong with a file of weights, or None; what is no plain file may have no end, and is not read."""
    if not path.is_file():
        return f"there is no file '{path}'"
    with path.open("rb") as file:
        is_same = hashlib.file_digest(file, "sha256").hexdigest() == sha256
    return None if is_same else f"'{path}' is not the file that it was: its SHA-256 is another"


def _count_unknown(database: Database, blobs: Blobs) -> tuple[int, int]:
    """Orphans and strangers that were there before the index was asked; none if it cannot be."""
    try:
        files = list(blobs.list_files())
        with database.reading() as connection:
            known = list_known(connection)
    except Task2VecError:
        return 0, 0
    counts = []
    for found in (blobs.find_orphans(known), blobs.find_strangers(known)):
        counts.append(len(set(found) & set(files)))
    return counts[0], counts[1]
