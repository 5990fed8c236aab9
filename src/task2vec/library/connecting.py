"""Connections to an index, set up alike, and SQLite's errors in our words."""

import random
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from task2vec.errors import LibraryError, ResourceError

PATIENCE = 120.0  # seconds that a writer waits for the others
_PAUSE = (0.001, 0.006)  # seconds between two looks for the write lock
_VERIFY = "See what is damaged: task2vec library verify; then take a good copy, or: task2vec library repair"
DAMAGE = (sqlite3.Error, UnicodeDecodeError)  # what a connection raises that meets a damaged index
_ENVIRONMENT = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM", "SQLITE_NOLFS")


class Connection(sqlite3.Connection):
    """A connection that knows which file it is to.

    Attributes:
        file: device and number of the file that had the name of the index when this was opened.
        is_stale: whether it is to be closed instead of used again.
    """

    file: tuple[int, int] | None = None
    is_stale: bool = False


def connect(address: str) -> Connection:
    """A connection in which every statement is a transaction of its own, unless one is begun."""
    connection = sqlite3.connect(
        address, uri=True, timeout=PATIENCE, isolation_level=None, check_same_thread=False, factory=Connection
    )
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def take_lock(connection: sqlite3.Connection) -> None:
    """Begins a transaction that writes, as soon as no other one does.

    SQLite itself would sleep for a tenth of a second at a time, and eight writers would mostly be asleep.
    """
    end = time.monotonic() + PATIENCE
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                is_busy = (getattr(error, "sqlite_errorname", None) or "").startswith("SQLITE_BUSY")
                if not is_busy or time.monotonic() > end:
                    raise
            time.sleep(random.uniform(*_PAUSE))
    finally:
        connection.execute(f"PRAGMA busy_timeout = {int(1000 * PATIENCE)}")


def make_address(path: Path, mode: str) -> str:
    """A path as SQLite's address, whatever letters it has."""
    return f"file:{quote(str(path.absolute()))}?{mode}"


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Errors of SQLite in our words: what is damaged, what is full, who waits for whom."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        name = getattr(error, "sqlite_errorname", "") or ""
        if isinstance(error, sqlite3.ProgrammingError):
            raise
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            raise ResourceError(
                f"'{path}' has been busy for {PATIENCE:.0f} s: another process writes to the library without end. "
                "Nothing was changed. Try again when it is done."
            ) from error
        if name.startswith(_ENVIRONMENT):
            raise ResourceError(
                f"'{path}' cannot be read or written ({error}). Nothing was changed. Make room on the disk, or choose "
                "another folder: --library DIR"
            ) from error
        raise LibraryError(f"'{path}' is damaged ({error}). {_VERIFY}") from error
    except UnicodeDecodeError as error:  # in the words of SQLite's own error, which quotes what is damaged
        raise LibraryError(f"'{path}' is damaged ({error}). {_VERIFY}") from error
