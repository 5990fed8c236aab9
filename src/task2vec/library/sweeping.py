"""What nobody needs is taken away: blobs of removed entries, what killed writers left, empty room in the index.

Whoever holds the write lock knows that no living writer is about to need what no entry knows. But what an index does
not know because it is damaged, or older than the blobs, may be needed: a whole blob that no entry knows goes only if a
writer noted it as its own, and if the index is sound.
"""

import sqlite3
from contextlib import suppress
from pathlib import Path

from task2vec.errors import LibraryError, ResourceError, Task2VecError
from task2vec.library.blobs import Blobs, remove_files
from task2vec.library.connecting import Connection
from task2vec.library.database import INDEX, Database
from task2vec.library.keeping import make_loader
from task2vec.library.search import Search
from task2vec.progress import Report, silent
from task2vec.storage import PARTIAL

# Looking for what killed writers left means listing every file, so a large library is swept by `compact` alone.
_SWEPT_AT_OPEN = 20_000
# Milliseconds: a journal that somebody still reads is put back into the index another time.
_PATIENCE_WITH_READERS = 1000


class Sweeper:
    """Keeps one library clean."""

    def __init__(self, database: Database, blobs: Blobs, search: Search):
        """The parts of that library."""
        self.database, self.blobs, self.search = database, blobs, search

    def drop_blobs(self, hashes: list[str]) -> None:
        """Removes blobs that no entry needs; the lock is taken again, for one may have been added anew meanwhile.

        What cannot be removed is left for a sweep: what was asked for is done already.
        """
        if not hashes:
            return
        with suppress(ResourceError), self.database.writing() as connection:
            for sha256 in hashes:
                if not connection.execute("SELECT 1 FROM embeddings WHERE sha256 = ?", (sha256,)).fetchone():
                    with suppress(LibraryError):  # of a damaged index: it names no blob at all
                        self.blobs.remove(sha256)

    def settle(self) -> None:
        """Forgets the notes of a transaction that is committed."""
        query = "SELECT 1 FROM embeddings WHERE sha256 = ?"
        with suppress(Task2VecError), self.database.reading() as connection:
            self.blobs.settle(lambda sha256: connection.execute(query, (sha256,)).fetchone() is not None)

    def sweep_after_crash(self) -> None:
        """Sweeps after somebody seems to have been killed. If others are at work, or it fails, things are let be."""
        with self.database.borrowing() as connection:
            try:
                if connection.execute("SELECT count(*) FROM embeddings").fetchone()[0] > _SWEPT_AT_OPEN:
                    return
                connection.execute("PRAGMA busy_timeout = 0")
                connection.execute("BEGIN IMMEDIATE")
                self._sweep(connection)
            except (sqlite3.Error, Task2VecError, TypeError, ValueError):
                pass  # busy, or damaged: that is for `verify` to name
            finally:
                with suppress(sqlite3.Error):
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    connection.execute(f"PRAGMA busy_timeout = {self.database.patience}")

    def compact(self, *, report: Report = silent) -> dict[str, int]:
        """Sweeps, and gives back the room that removals left; returns the bytes of the folder before and after."""
        before = _count_bytes(self.database.folder)
        with self.database.writing() as connection:
            self._sweep(connection)
            for (space,) in connection.execute("SELECT id FROM spaces").fetchall():
                self.search.compact(connection, space, load=make_loader(connection, self.blobs), report=report)
            self.search.sync()
        with self.database.borrowing() as connection:
            connection.execute("VACUUM")
            connection.execute(f"PRAGMA busy_timeout = {_PATIENCE_WITH_READERS}")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()  # says if readers were in the way
            connection.execute(f"PRAGMA busy_timeout = {self.database.patience}")
        with self.database.writing() as connection:
            self.search.sweep(connection)
        return {"before": before, "after": _count_bytes(self.database.folder)}

    def _sweep(self, connection: Connection) -> None:
        self.search.sweep(connection)
        orphans = self.blobs.find_orphans(list_known(connection))
        if all(path.name.endswith(PARTIAL) for path in orphans) or _is_sound(connection):
            remove_files(orphans)
            self.blobs.forget_notes()
        else:
            remove_files([path for path in orphans if path.name.endswith(PARTIAL)])


def list_known(connection: sqlite3.Connection) -> set[str]:
    """The hashes of all blobs that an entry knows, from the entries and from the list that is sorted by hash.

    They are the same; if one of the two is damaged, the other one still protects the blobs.
    """
    ways = ("NOT INDEXED", "INDEXED BY embeddings_by_blob")
    return {row[0] for way in ways for row in connection.execute(f"SELECT sha256 FROM embeddings {way}")}


def _is_sound(connection: sqlite3.Connection) -> bool:
    return connection.execute("PRAGMA integrity_check(1)").fetchone()[0] == "ok"


def _count_bytes(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        with suppress(OSError):  # others may be taking it away
            total += file.stat().st_size if file.is_file() else 0
    return total


def is_left(folder: Path) -> bool:
    """Whether a journal lies beside the index: a process uses it now, or was killed."""
    return folder.joinpath(f"{INDEX}-wal").exists()
