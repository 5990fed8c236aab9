"""The index: one SQLite file, opened by any number of processes and threads.

Writers take SQLite's write lock before they touch anything, the blobs included. So whoever holds it may sweep: what
no entry knows then, nobody is about to know. In WAL mode readers neither wait nor make anybody wait, and
`synchronous=FULL` flushes every commit to the disk before it returns.
"""

import os
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from task2vec.errors import LibraryError, ResourceError
from task2vec.library import schema

INDEX = "index.sqlite"
BACKUPS = "backups"
_PATIENCE = 120.0  # seconds that a writer waits for the others
_VERIFY = "See what is damaged: task2vec library verify; then take a good copy, or: task2vec library repair"


class Database:
    """Connections to the index of one library."""

    patience = int(1000 * _PATIENCE)  # the same in SQLite's milliseconds

    def __init__(self, folder: Path, *, read_only: bool):
        """Opens the index, and makes it if it is not there and may be made."""
        self.folder, self.path, self.is_read_only = folder, folder / INDEX, read_only
        self._lock = threading.Lock()
        self._idle: list[sqlite3.Connection] = []
        self._inherited: list[list[sqlite3.Connection]] = []
        self._process = os.getpid()
        self._is_closed = False
        self._copy: tempfile.TemporaryDirectory | None = None
        self._address = self._find_address() if read_only else _address(self.path, "mode=rwc")
        try:
            with self.reading() as connection:
                self._prepare(connection)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection, for as long as it takes; the same one is never in two hands."""
        connection = self._take()
        try:
            with translated(self.path):
                yield connection
        finally:
            self._give_back(connection)

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A connection inside a transaction that holds the write lock: all of it is committed at the end, or none."""
        if self.is_read_only:
            raise ResourceError(
                f"the library '{self.folder}' is open for reading only, so nothing can be kept in it. "
                "Choose another one: --library DIR"
            )
        with self.reading() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Closes all connections; the last one of all processes puts the journal back into the file."""
        with self._lock:
            self._is_closed = True
            if self._process == os.getpid():
                for connection in self._idle:
                    with suppress(sqlite3.Error):
                        connection.close()
                self._idle = []
        if self._copy is not None:
            self._copy.cleanup()
            self._copy = None

    def _take(self) -> sqlite3.Connection:
        with self._lock:
            if self._is_closed:
                raise LibraryError(f"the library '{self.folder}' is closed. Open it again: Library.open()")
            if self._process != os.getpid():  # a fork: its parent's connections are neither used nor closed here
                self._inherited.append(self._idle)
                self._idle, self._process = [], os.getpid()
            if self._idle:
                return self._idle.pop()
        with translated(self.path):
            return self._connect(self._address)

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            if not self._is_closed:
                self._idle.append(connection)
                return
        connection.close()

    def _connect(self, address: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            address, uri=True, timeout=_PATIENCE, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA trusted_schema = OFF")
        return connection

    def _find_address(self) -> str:
        """How to read without being allowed to write.

        SQLite reads a WAL database if its two companions are there or can be made. On a disk that nobody can write to
        it may be told so; in a folder that others can write to, a copy is the only view that stays whole.
        """
        if not self.path.exists():
            raise LibraryError(f"there is no library in '{self.folder}'. Make one: task2vec embed FOLDER")
        usual = _address(self.path, "mode=ro")
        try:
            connection = self._connect(usual)
            try:
                connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            finally:
                connection.close()
            return usual
        except sqlite3.OperationalError:
            pass
        journal = self.path.with_name(f"{INDEX}-wal")
        has_journal = journal.exists() and journal.stat().st_size > 0
        if not has_journal and os.statvfs(self.folder).f_flag & os.ST_RDONLY:
            return _address(self.path, "immutable=1")
        self._copy = tempfile.TemporaryDirectory(prefix="task2vec-")
        for file in (self.path, journal):
            if file.exists():
                shutil.copyfile(file, Path(self._copy.name, file.name))
        return _address(Path(self._copy.name, INDEX), "mode=rw")

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Makes or brings up to date the tables of the index, or refuses what is no index of ours."""
        version, application = (
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("user_version", "application_id")
        )
        is_empty = not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if not is_empty and application != schema.APPLICATION:
            raise LibraryError(
                f"'{self.path}' is a database of something else, and nothing was changed in it. Choose another folder: "
                "--library DIR"
            )
        if version > schema.SCHEMA:
            raise LibraryError(
                f"the library '{self.folder}' has schema {version}, and this version reads up to {schema.SCHEMA}: it "
                "was made by a newer task2vec. Upgrade: pip install -U task2vec"
            )
        if version == schema.SCHEMA:
            return
        if self.is_read_only:
            wish = "has no tables" if is_empty else f"has the older schema {version}"
            raise LibraryError(
                f"the library '{self.folder}' {wish} and cannot be written to. Open it for writing once."
            )
        if is_empty:
            _use_journal(connection)
        else:
            self._back_up(connection, version)
        connection.execute("BEGIN IMMEDIATE")
        try:
            self._bring_up_to_date(connection)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _bring_up_to_date(self, connection: sqlite3.Connection) -> None:
        """Runs what is missing; another process may have done it meanwhile."""
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            schema.create_tables(connection)
            return
        while version < schema.SCHEMA:
            schema.MIGRATIONS[version](connection)
            version += 1
            connection.execute(f"PRAGMA user_version = {version}")

    def _back_up(self, connection: sqlite3.Connection, version: int) -> None:
        """Keeps the index as it was before a migration."""
        folder = self.folder / BACKUPS
        folder.mkdir(exist_ok=True)
        moment = datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")
        connection.execute("VACUUM INTO ?", (str(folder / f"index-schema-{version}-{moment}.sqlite"),))


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Errors of SQLite in our words: what is damaged, what is full, who waits for whom."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        name = getattr(error, "sqlite_errorname", "") or ""
        if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError):
            raise
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            raise ResourceError(
                f"'{path}' has been busy for {_PATIENCE:.0f} s: another process writes to the library without end. "
                "Nothing was changed. Try again when it is done."
            ) from error
        if name.startswith(("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM")):
            raise ResourceError(
                f"'{path}' cannot be read or written ({error}). Nothing was changed. Make room on the disk, or choose "
                "another folder: --library DIR"
            ) from error
        raise LibraryError(f"'{path}' is damaged ({error}). {_VERIFY}") from error


def _use_journal(connection: sqlite3.Connection) -> None:
    """Turns on the write-ahead journal; SQLite does not wait here for others that do the same, so we do."""
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.01)


def _address(path: Path, mode: str) -> str:
    """A path as SQLite's address, whatever letters it has."""
    return f"file:{quote(str(path.absolute()))}?{mode}"
