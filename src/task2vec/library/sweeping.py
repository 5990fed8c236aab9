"""What nobody needs is taken away: blobs of removed entries, what killed writers left, empty room in the index.

Whoever holds the write lock knows that no living writer is about to need what no entry knows.
"""

import sqlite3
from pathlib import Path

from task2vec.library.blobs import Blobs, remove_files
from task2vec.library.database import INDEX, Database
from task2vec.library.search import Search

# Looking for what killed writers left means listing every file, so a large library is swept by `compact` alone.
_SWEPT_AT_OPEN = 20_000


class Sweeper:
    """Keeps one library clean."""

    def __init__(self, database: Database, blobs: Blobs, search: Search):
        """The parts of that library."""
        self.database, self.blobs, self.search = database, blobs, search

    def drop_blobs(self, hashes: list[str]) -> None:
        """Removes blobs that no entry needs; the lock is taken again, for one may have been added anew meanwhile."""
        if not hashes:
            return
        with self.database.writing() as connection:
            for sha256 in hashes:
                if not connection.execute("SELECT 1 FROM embeddings WHERE sha256 = ?", (sha256,)).fetchone():
                    self.blobs.remove(sha256)

    def sweep_after_crash(self) -> None:
        """Sweeps if somebody seems to have been killed: a journal is left. If others are at work, they are let be."""
        journal = self.database.folder / f"{INDEX}-wal"
        if not journal.exists() or journal.stat().st_size == 0:
            return
        with self.database.reading() as connection:
            if connection.execute("SELECT count(*) FROM embeddings").fetchone()[0] > _SWEPT_AT_OPEN:
                return
            connection.execute("PRAGMA busy_timeout = 0")
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return
            finally:
                connection.execute(f"PRAGMA busy_timeout = {self.database.patience}")
            try:
                self._sweep(connection)
            finally:
                connection.execute("ROLLBACK")

    def compact(self) -> dict[str, int]:
        """Sweeps, and gives back the room that removals left; returns the bytes of the folder before and after."""
        before = _count_bytes(self.database.folder)
        with self.database.writing() as connection:
            self._sweep(connection)
            for (space,) in connection.execute("SELECT id FROM spaces").fetchall():
                self.search.compact(connection, space)
            self.search.sync()
        with self.database.reading() as connection:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        with self.database.writing() as connection:
            self.search.sweep(connection)
        return {"before": before, "after": _count_bytes(self.database.folder)}

    def _sweep(self, connection: sqlite3.Connection) -> None:
        known = {row[0] for row in connection.execute("SELECT sha256 FROM embeddings")}
        self.search.sweep(connection)
        remove_files(self.blobs.find_orphans(known))


def _count_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
