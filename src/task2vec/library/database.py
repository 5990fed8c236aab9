"""The index: one SQLite file, opened by any number of processes and threads.

Writers take SQLite's write lock before they touch anything, the blobs included. So whoever holds it may sweep: what
no entry knows then, nobody is about to know. In WAL mode readers neither wait nor make anybody wait, and
`synchronous=FULL` flushes every commit to the disk before it returns.
"""

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from task2vec.errors import LibraryError, ResourceError
from task2vec.library import preparing
from task2vec.library.connecting import PATIENCE, Connection, connect, make_address, take_lock, translated
from task2vec.library.viewing import View, find_view

INDEX = "index.sqlite"


class Database:
    """Connections to the index of one library."""

    patience = int(1000 * PATIENCE)  # the same in SQLite's milliseconds

    def __init__(self, folder: Path, *, read_only: bool, may_make: bool = True):
        """Opens the index, and makes it if it is not there and may be made."""
        self.folder, self.path, self.is_read_only = folder, folder / INDEX, read_only
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._inherited: list[list[Connection]] = []
        self._is_closed = False
        self._view: View | None = None
        self.in_child: list[Callable[[], None]] = []  # what else is to be done after a fork
        _open.add(self)
        try:
            with translated(self.path):
                self._view = find_view(self.path) if read_only else None
                self._address = self._view.address if self._view else make_address(self.path, "mode=rwc")
            with self.borrowing() as connection:
                preparing.prepare(connection, self.path, read_only=read_only, may_make=may_make)
            if not read_only:  # an index that disappears later is not to be made anew, empty
                self._address = make_address(self.path, "mode=rw")
        except BaseException:
            self.close()
            raise

    @contextmanager
    def borrowing(self) -> Iterator[Connection]:
        """A connection, for as long as it takes; the same one is never in two hands."""
        connection = self._take()
        try:
            with translated(self.path):
                yield connection
        finally:
            self._give_back(connection)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection that sees the index as it is now until the end of the block, whatever others write meanwhile."""
        with self.borrowing() as connection:
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                _roll_back(connection)

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A connection inside a transaction that holds the write lock: all of it is committed at the end, or none."""
        if self.is_read_only:
            raise ResourceError(
                f"the library '{self.folder}' is open for reading only, so nothing can be kept in it. "
                "Choose another one: --library DIR"
            )
        with self._locking() as connection:
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                _roll_back(connection)
                raise

    @contextmanager
    def _locking(self) -> Iterator[Connection]:
        """A connection with the write lock of the index that is there now: a repair may have put another in its place.

        What would be written to the old one would be lost.
        """
        for _ in range(2):
            with self.borrowing() as connection:
                take_lock(connection)
                if connection.file == _identify(self.path):
                    yield connection
                    return
                _roll_back(connection)
                self._drop_idle()
                connection.is_stale = True
        raise ResourceError(
            f"'{self.path}' is being replaced or was taken away, so nothing was changed. Open the library again."
        )

    def close(self) -> None:
        """Closes all connections; the last one of all processes puts the journal back into the file."""
        with self._lock:
            self._is_closed = True
        self._drop_idle()
        if self._view is not None:
            self._view.close()

    def _take(self) -> Connection:
        with self._lock:
            if self._is_closed:
                raise LibraryError(f"the library '{self.folder}' is closed. Open it again: Library.open()")
            while self._idle:
                connection = self._idle.pop()
                if self.is_read_only or connection.file == _identify(self.path):
                    return connection
                connection.close()
        with translated(self.path):
            while True:
                before, connection = _identify(self.path), connect(self._address)
                connection.file = _identify(self.path)
                if before in (None, connection.file):
                    return connection
                connection.close()  # another file took the name at this very moment

    def _give_back(self, connection: Connection) -> None:
        with self._lock:
            if not (self._is_closed or connection.is_stale or connection.in_transaction):
                self._idle.append(connection)
                return
        connection.close()

    def _drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            with suppress(sqlite3.Error):
                connection.close()

    def _become_child(self) -> None:
        """After a fork: the parent's connections are neither used nor closed here, nor is its lock waited for."""
        self._lock = threading.Lock()
        self._inherited.append(self._idle)
        self._idle = []
        for renew in self.in_child:
            renew()


def _roll_back(connection: sqlite3.Connection) -> None:
    with suppress(sqlite3.Error):
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _identify(path: Path) -> tuple[int, int] | None:
    """What tells a file from another one that has taken its name."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _leave_parents() -> None:
    for database in list(_open):
        database._become_child()


_open: "weakref.WeakSet[Database]" = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_parents)
