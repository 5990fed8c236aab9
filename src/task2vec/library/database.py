"""The library's SQLite file: its place, its tables, and connections for any number of processes and threads.

The file is in WAL mode, so readers neither wait nor block anybody, and `synchronous=FULL` flushes every commit to the
disk before it returns. Columns that are listed and searched are in small tables; the large BLOBs are in tables of their
own (`contents`, `rows`), so that listing and scanning never read them.
"""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from task2vec.errors import LibraryError, ResourceError
from task2vec.storage import sync_folder

FILE = "library.sqlite"
REPAIRED = f"{FILE}.repaired"  # a finished repair that has not yet taken the place of the file
SCHEMA = 2
APPLICATION = 0x54325643  # "T2VC" in the header of the file: distinguishes a library from other databases
VARIABLE = "TASK2VEC_LIBRARY"
PATIENCE = 120.0  # seconds that a writer waits for the others
DAMAGE = (sqlite3.Error, UnicodeDecodeError)  # what reading a damaged file raises
PAGE = 16384  # bytes: an embedding of 0.5 MB takes 31 pages instead of 124
_OLD_FILE = "index.sqlite"  # of schema 1, which had its embeddings in files beside it
_ENVIRONMENT = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM", "SQLITE_NOLFS")
_UNREADABLE = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_IOERR_READ", "SQLITE_IOERR_SHORT_READ")
_VERIFY = "List what is damaged: task2vec library verify; then restore a copy, or run: task2vec library repair"

TABLES = """
CREATE TABLE tasks(
    id INTEGER PRIMARY KEY AUTOINCREMENT, fingerprint TEXT NOT NULL UNIQUE, name TEXT NOT NULL,
    images INTEGER NOT NULL, classes TEXT NOT NULL, counts TEXT NOT NULL, is_multilabel INTEGER NOT NULL,
    taxon TEXT, source TEXT NOT NULL DEFAULT '', added TEXT NOT NULL
) STRICT;
CREATE TABLE tags(
    task INTEGER NOT NULL REFERENCES tasks(id) ON DELETE CASCADE, tag TEXT NOT NULL, PRIMARY KEY (task, tag)
) STRICT, WITHOUT ROWID;
CREATE TABLE spaces(
    id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, probe TEXT NOT NULL, probe_fingerprint TEXT NOT NULL,
    settings TEXT NOT NULL, filters INTEGER NOT NULL, changes INTEGER NOT NULL DEFAULT 0, basis_sha256 TEXT, basis BLOB
) STRICT;
CREATE TABLE embeddings(
    id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE,
    task INTEGER NOT NULL REFERENCES tasks(id) ON DELETE CASCADE, space INTEGER NOT NULL REFERENCES spaces(id),
    settings TEXT NOT NULL, recipe INTEGER, sha256 TEXT NOT NULL, bytes INTEGER NOT NULL, norm REAL NOT NULL,
    cv_error REAL, has_halves INTEGER NOT NULL, added TEXT NOT NULL
) STRICT;
CREATE TABLE contents(
    embedding INTEGER PRIMARY KEY REFERENCES embeddings(id) ON DELETE CASCADE, content BLOB NOT NULL
) STRICT;
CREATE TABLE rows(
    embedding INTEGER PRIMARY KEY REFERENCES embeddings(id) ON DELETE CASCADE, vector BLOB NOT NULL
) STRICT;
CREATE TABLE sketches(
    embedding INTEGER PRIMARY KEY REFERENCES embeddings(id) ON DELETE CASCADE,
    space INTEGER NOT NULL REFERENCES spaces(id), sketch BLOB
) STRICT;
CREATE TABLE experts(
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, source TEXT NOT NULL, location TEXT NOT NULL,
    task TEXT, recipe TEXT NOT NULL, parameters INTEGER, input_size INTEGER, cost REAL, sha256 TEXT, added TEXT NOT NULL
) STRICT;
CREATE TABLE errors(
    id INTEGER PRIMARY KEY AUTOINCREMENT, task INTEGER NOT NULL REFERENCES tasks(id),
    expert INTEGER NOT NULL REFERENCES experts(id), protocol TEXT NOT NULL, seed INTEGER NOT NULL, error REAL NOT NULL,
    low REAL, high REAL, measured TEXT NOT NULL, measured_by TEXT NOT NULL, UNIQUE (task, expert, protocol, seed)
) STRICT;
CREATE TABLE runs(
    id INTEGER PRIMARY KEY AUTOINCREMENT, what TEXT NOT NULL, details TEXT NOT NULL, started TEXT NOT NULL,
    ended TEXT, outcome TEXT
) STRICT;
CREATE INDEX tasks_by_name ON tasks(name);
CREATE INDEX embeddings_by_task ON embeddings(task);
CREATE INDEX embeddings_by_space ON embeddings(space);
CREATE INDEX sketches_by_space ON sketches(space);
"""


def find_library(given: str | Path | None = None) -> Path:
    """The folder of the library: `given`, else the variable TASK2VEC_LIBRARY, else the user's data folder.

    Example:
        >>> find_library("team/library").as_posix()
        'team/library'
    """
    named = os.environ.get(VARIABLE) if given is None else given
    data = os.environ.get("XDG_DATA_HOME", "")
    try:
        if given is not None or named:
            return Path(str(named)).expanduser()
        if os.path.isabs(data):  # the XDG rule: a relative path is ignored
            return Path(data, "task2vec")
        return Path.home() / ".local" / "share" / "task2vec"
    except RuntimeError as error:
        raise ResourceError(
            f"there is no home folder for {str(named or '~')!r}, so the library has no default place. "
            f"Name a folder: --library DIR, or set {VARIABLE}."
        ) from error


def find_file(folder: Path) -> Path:
    """The SQLite file of the library in `folder`; a path that ends in .sqlite is the file itself."""
    return folder if folder.suffix == ".sqlite" else folder / FILE


def has_library(folder: str | Path | None = None) -> bool:
    """Whether there is a library, even a damaged one or one whose repair was interrupted."""
    file = find_file(find_library(folder))
    return any(file.with_name(name).exists() for name in (file.name, REPAIRED, _OLD_FILE))


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """A connection in autocommit mode; `mode` is a parameter of SQLite's URIs, for instance "mode=ro"."""
    address = f"file:{quote(str(path.absolute()))}?{mode}"
    connection = sqlite3.connect(address, uri=True, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
    try:
        for setting in ("foreign_keys = ON", "synchronous = FULL", "trusted_schema = OFF", "cell_size_check = ON"):
            connection.execute(f"PRAGMA {setting}")
    except BaseException:
        connection.close()
        raise
    return connection


def read_blob(connection: sqlite3.Connection, table: str, column: str, number: int) -> bytes | None:
    """The BLOB of the embedding with that id; None if it is missing, or its pages are damaged or unreadable."""
    try:
        row = connection.execute(f"SELECT {column} FROM {table} WHERE embedding = ?", (number,)).fetchone()
    except sqlite3.DatabaseError as error:
        if not (getattr(error, "sqlite_errorname", None) or "").startswith(_UNREADABLE):
            raise
        return None
    return row[0] if row is not None and isinstance(row[0], bytes) else None


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """SQLite's errors as ours: the environment, or a damaged file."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise
    except DAMAGE as error:
        name = getattr(error, "sqlite_errorname", "") or ""
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            raise ResourceError(
                f"'{path}' has been locked by another process for {PATIENCE:.0f} s. Nothing was changed. Try again "
                "when that process has finished."
            ) from error
        if name.startswith(_ENVIRONMENT):
            raise ResourceError(
                f"'{path}' cannot be read or written ({error}). Nothing was changed. Free space on the disk, or choose "
                "another folder: --library DIR"
            ) from error
        raise LibraryError(f"'{path}' is damaged ({error}). {_VERIFY}") from error


class Database:
    """Connections to the file of one library.

    Every block of `read` and `write` has a connection of its own, so threads and forks share none. One more is open all
    the time and never used: the last connection that closes merges the WAL, which would otherwise happen every time.
    """

    def __init__(self, path: Path, *, read_only: bool):
        """Opens the file, and creates it if it is not there and may be written."""
        self.path, self.is_read_only, self._is_closed = path, read_only, False
        self._owner = os.getpid()
        with translate_errors(path):
            _check_place(path, read_only=read_only)
            self._mode = _find_mode(path) if read_only else "mode=rw"  # a file that disappears is not created again
            self._idle = connect(path, self._mode if read_only else "mode=rwc")
            try:
                _prepare(self._idle, path, read_only=read_only)
            except BaseException:
                self._idle.close()
                raise

    def close(self) -> None:
        """Closes the library; the last connection of all processes merges the WAL into the file."""
        self._is_closed = True
        if self._owner == os.getpid():  # a forked child leaves the connection of its parent alone
            self._idle.close()

    @contextmanager
    def connect(self) -> Iterator[sqlite3.Connection]:
        """A connection that nobody else uses until the end of the block."""
        if self._is_closed:
            raise LibraryError(f"the library '{self.path.parent}' is closed. Open it again: Library.open()")
        with translate_errors(self.path), closing(connect(self.path, self._mode)) as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """A connection that sees one snapshot until the end of the block, whatever others write meanwhile."""
        before = self._identify()
        with self.connect() as connection:
            connection.execute("BEGIN")
            yield connection
        if "immutable" in self._mode and before != self._identify():
            raise ResourceError(
                f"'{self.path}' changed while it was read, and without the right to write there it cannot be locked. "
                "Nothing was changed. Try again when others have finished writing."
            )

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """A connection with the write lock, in a transaction: all of the block is committed at its end, or none."""
        if self.is_read_only:
            raise ResourceError(
                f"the library '{self.path.parent}' is open for reading only, so nothing can be saved in it. "
                "Choose another one: --library DIR"
            )
        before = self._identify()
        with self.connect() as connection:
            connection.execute("BEGIN IMMEDIATE")
            if before[:2] != self._identify()[:2]:  # by a repair: what is written to the old file is lost
                raise ResourceError(
                    f"'{self.path}' was replaced or removed by another process, so nothing was changed. Try again."
                )
            yield connection
            connection.execute("COMMIT")

    def _identify(self) -> tuple[int, ...]:
        """Device, inode, size and time of change of the file; nothing if it is not there."""
        try:
            found = self.path.stat()
        except OSError:
            return ()
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _check_place(path: Path, *, read_only: bool) -> None:
    """Refuses a place without a usable library, and makes the folder of a new one."""
    if path.exists():
        return
    if path.with_name(REPAIRED).exists():
        raise LibraryError(
            f"a repair of '{path}' was interrupted before its last step. Nothing is lost. Finish it: task2vec library "
            "repair"
        )
    if path.with_name(_OLD_FILE).exists():
        raise LibraryError(
            f"the library '{path.parent}' has the older schema 1 (an index with embeddings in files beside it), and "
            f"this version reads schema {SCHEMA}. Export it with the version that made it, and import that file here."
        )
    if read_only:
        raise LibraryError(f"there is no library in '{path.parent}'. Create one: task2vec embed FOLDER")
    folder = path.parent
    new = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for place in new:
            sync_folder(place.parent)
        if not os.access(folder, os.W_OK):
            raise PermissionError(0, "the folder is read-only")
    except OSError as error:
        raise ResourceError(
            f"the library cannot be created in '{folder}': {error.strerror}. Choose a folder that you can write to: "
            f"--library DIR, or set {VARIABLE}."
        ) from error


def cannot_write(path: Path) -> bool:
    """Whether there is a library at `path` that this process may not change."""
    return path.exists() and not (os.access(path.parent, os.W_OK) and os.access(path, os.W_OK))


def _find_mode(path: Path) -> str:
    """How the file can be read without the right to write.

    SQLite needs the WAL's two companion files, or the right to create them. Where it has neither, a file whose WAL is
    merged is opened as immutable, and every reader checks that it has not changed meanwhile.
    """
    try:
        with closing(connect(path, "mode=ro")) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        return "mode=ro"
    except sqlite3.OperationalError:
        pass
    journal = path.with_name(f"{path.name}-wal")
    if journal.exists() and journal.stat().st_size > 0:
        raise ResourceError(
            f"'{path}' has a WAL that was not merged, because its last writer was killed, and merging needs the right "
            "to write. Open it once with that right (task2vec library ls), or copy the folder to where you can write."
        )
    return "immutable=1"


def _prepare(connection: sqlite3.Connection, path: Path, *, read_only: bool) -> None:
    """Creates the tables of an empty file; refuses what is not a library of this schema."""
    connection.execute("BEGIN")  # one snapshot: others may be creating the tables right now
    try:
        is_ready = _is_ready(connection, path, read_only=read_only)
    finally:
        connection.execute("ROLLBACK")
    if is_ready:
        return
    connection.execute(f"PRAGMA page_size = {PAGE}")
    end = time.monotonic() + PATIENCE
    while not _use_wal(connection):  # SQLite does not wait for others that do the same
        if time.monotonic() > end:
            raise sqlite3.OperationalError("another process is creating the library")
        time.sleep(0.01)
    connection.execute("BEGIN IMMEDIATE")
    if not _is_ready(connection, path, read_only=read_only):  # again: another process may have been faster
        for statement in filter(str.strip, TABLES.split(";")):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {SCHEMA}")
    connection.execute("COMMIT")


def _is_ready(connection: sqlite3.Connection, path: Path, *, read_only: bool) -> bool:
    """Whether it is a library of this schema; False if it is an empty file that may become one."""
    version, application = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("user_version", "application_id")
    )
    objects = connection.execute("SELECT name, rootpage FROM sqlite_master").fetchall()
    if not (version or application or objects):
        if read_only:
            raise LibraryError(
                f"'{path}' is empty, and cannot be written to, so there is no library to read. Choose another folder: "
                "--library DIR"
            )
        return False
    if application != APPLICATION:
        raise LibraryError(
            f"'{path}' is the database of another program, and nothing was changed in it. Choose another folder: "
            "--library DIR"
        )
    if version != SCHEMA:
        fix = (
            "it was made by a newer task2vec. Upgrade: pip install -U task2vec"
            if version > SCHEMA
            else "its tables may mean something else. Copy what can be read: task2vec library repair"
        )
        raise LibraryError(
            f"the library '{path.parent}' has schema {version}, and this version reads schema {SCHEMA}: {fix}"
        )
    foreign = [str(name) for name, page in objects if not page]
    if foreign:
        raise LibraryError(
            f"'{path}' has a view, trigger or virtual table ({foreign[0]!r}), which task2vec never creates and which "
            "could run anything while the library is used. Copy only the data: task2vec library repair"
        )
    return True


def _use_wal(connection: sqlite3.Connection) -> bool:
    """Turns on WAL mode; False if the file is locked."""
    with suppress(sqlite3.OperationalError):
        return connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] == "wal"
    return False
