"""The library's SQLite file: its place, its tables, and connections for any number of processes and threads.

The file is in WAL mode, so readers neither wait nor block anybody, and `synchronous=FULL` flushes every commit to the
disk before it returns. Columns that are listed and searched are in small tables; the large BLOBs are in tables of their
own (`contents`, `rows`), so that listing and scanning never read them. The columns `changes`, `basis` and
`basis_sha256` of `spaces` are no longer used; they stay, so that the schema is that of earlier versions.
"""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
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
MAX_BYTES = 1 << 28  # of an embedding; one of a million filters has 40 MB
_ENVIRONMENT = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM", "SQLITE_NOLFS")
_UNREADABLE = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_IOERR_READ", "SQLITE_IOERR_SHORT_READ", "SQLITE_TOOBIG")
_REPAIR = "task2vec library repair"
_VERIFY = f"List what is damaged: task2vec library verify; then restore a copy, or run: {_REPAIR}"

TABLES = """
CREATE TABLE IF NOT EXISTS tasks(
    id INTEGER PRIMARY KEY AUTOINCREMENT, fingerprint TEXT NOT NULL UNIQUE, name TEXT NOT NULL,
    images INTEGER NOT NULL, classes TEXT NOT NULL, counts TEXT NOT NULL, is_multilabel INTEGER NOT NULL,
    taxon TEXT, source TEXT NOT NULL DEFAULT '', added TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS tags(
    task INTEGER NOT NULL REFERENCES tasks(id) ON DELETE CASCADE, tag TEXT NOT NULL, PRIMARY KEY (task, tag)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS spaces(
    id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, probe TEXT NOT NULL, probe_fingerprint TEXT NOT NULL,
    settings TEXT NOT NULL, filters INTEGER NOT NULL, changes INTEGER NOT NULL DEFAULT 0, basis_sha256 TEXT, basis BLOB
) STRICT;
CREATE TABLE IF NOT EXISTS embeddings(
    id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE,
    task INTEGER NOT NULL REFERENCES tasks(id) ON DELETE CASCADE, space INTEGER NOT NULL REFERENCES spaces(id),
    settings TEXT NOT NULL, recipe INTEGER, sha256 TEXT NOT NULL, bytes INTEGER NOT NULL, norm REAL NOT NULL,
    cv_error REAL, has_halves INTEGER NOT NULL, added TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS contents(
    embedding INTEGER PRIMARY KEY REFERENCES embeddings(id) ON DELETE CASCADE, content BLOB NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS rows(
    embedding INTEGER PRIMARY KEY REFERENCES embeddings(id) ON DELETE CASCADE, vector BLOB NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS sketches(
    embedding INTEGER PRIMARY KEY REFERENCES embeddings(id) ON DELETE CASCADE,
    space INTEGER NOT NULL REFERENCES spaces(id), sketch BLOB
) STRICT;
CREATE TABLE IF NOT EXISTS experts(
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, source TEXT NOT NULL, location TEXT NOT NULL,
    task TEXT, recipe TEXT NOT NULL, parameters INTEGER, input_size INTEGER, cost REAL, sha256 TEXT, added TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS errors(
    id INTEGER PRIMARY KEY AUTOINCREMENT, task INTEGER NOT NULL REFERENCES tasks(id),
    expert INTEGER NOT NULL REFERENCES experts(id), protocol TEXT NOT NULL, seed INTEGER NOT NULL, error REAL NOT NULL,
    low REAL, high REAL, measured TEXT NOT NULL, measured_by TEXT NOT NULL, UNIQUE (task, expert, protocol, seed)
) STRICT;
CREATE TABLE IF NOT EXISTS runs(
    id INTEGER PRIMARY KEY AUTOINCREMENT, what TEXT NOT NULL, details TEXT NOT NULL, started TEXT NOT NULL,
    ended TEXT, outcome TEXT
) STRICT;
CREATE INDEX IF NOT EXISTS tasks_by_name ON tasks(name);
CREATE INDEX IF NOT EXISTS embeddings_by_task ON embeddings(task);
CREATE INDEX IF NOT EXISTS embeddings_by_space ON embeddings(space);
CREATE INDEX IF NOT EXISTS sketches_by_space ON sketches(space);
"""


def find_library(given: str | Path | None = None) -> Path:
    """The folder of the library: `given`, else the variable TASK2VEC_LIBRARY, else the user's data folder.

    Example:
        >>> find_library("team/library").as_posix()
        'team/library'
    """
    if given is None and not (given := os.environ.get(VARIABLE)):
        data = os.environ.get("XDG_DATA_HOME", "")
        given = Path(data if os.path.isabs(data) else "~/.local/share", "task2vec")  # a relative path is ignored (XDG)
    try:
        return Path(given).expanduser()
    except RuntimeError as error:
        raise ResourceError(
            f"there is no home folder for '{given}', so the library has no default place. Name a folder: --library "
            f"DIR, or set {VARIABLE}."
        ) from error


def find_file(folder: Path) -> Path:
    """The SQLite file of the library in `folder`; a path that ends in .sqlite is the file itself."""
    return folder if folder.suffix == ".sqlite" else folder / FILE


def has_library(folder: str | Path | None = None) -> bool:
    """Whether there is a library, even a damaged one or one whose repair was interrupted."""
    file = find_file(find_library(folder))
    return file.exists() or file.with_name(REPAIRED).exists()


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """A connection in autocommit mode; `mode` is a parameter of SQLite's URIs, for instance "mode=ro"."""
    address = f"file:{quote(str(path.absolute()))}?{mode}"
    connection = sqlite3.connect(address, uri=True, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_BYTES + PAGE)  # of a row: a foreign file could fill the memory
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
        if not _name_error(error).startswith(_UNREADABLE):
            raise
        return None
    return row[0] if row is not None and isinstance(row[0], bytes) else None


def is_busy(error: BaseException) -> bool:
    """Whether SQLite gave up because another process holds the lock."""
    return _name_error(error).startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


def _name_error(error: BaseException) -> str:
    return getattr(error, "sqlite_errorname", None) or ""


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """SQLite's errors as ours: the environment, or a damaged file."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise
    except DAMAGE as error:
        if is_busy(error):
            problem = f"has been locked by another process for {PATIENCE:.0f} s"
            fix = "Try again when it has finished."
        elif _name_error(error).startswith(_ENVIRONMENT):
            problem = f"cannot be read or written ({error})"
            fix = "Free space on the disk, or choose --library DIR."
        else:
            raise LibraryError(f"'{path}' is damaged ({error}). {_VERIFY}") from error
        raise ResourceError(f"'{path}' {problem}. Nothing was changed. {fix}") from error


class Database:
    """Connections to the file of one library.

    Every block of `read` and `write` has a connection of its own, so threads and forks share none. One more is open all
    the time and never used: the last connection that closes merges the WAL, which would otherwise happen every time.
    """

    def __init__(self, path: Path, *, read_only: bool):
        """Opens the file, and creates it if it is not there and may be written."""
        self.path = path
        self.is_read_only = read_only
        self._is_closed = False
        self._owner = os.getpid()
        with translate_errors(path), ExitStack() as stack:
            if not path.exists():
                _make_folder(path, read_only=read_only)
            self._mode = _find_mode(path) if read_only else "mode=rw"  # a file that disappears is not created again
            self._idle = connect(path, self._mode if read_only else "mode=rwc")
            stack.callback(self._idle.close)
            if not _is_ready(self._idle, path, read_only=read_only):
                _create_tables(self._idle)
            stack.pop_all()

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
        before = stamp(self.path)
        with self.connect() as connection:
            connection.execute("BEGIN")
            yield connection
        if "immutable" in self._mode and before != stamp(self.path):
            raise ResourceError(
                f"'{self.path}' changed while it was read, and it cannot be locked without write permission. "
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
        before = stamp(self.path)
        with self.connect() as connection:
            connection.execute("BEGIN IMMEDIATE")
            if before[:2] != stamp(self.path)[:2]:  # by a repair: what is written to the old file is lost
                raise ResourceError(
                    f"'{self.path}' was replaced or removed by another process, so nothing was changed. Try again."
                )
            yield connection
            connection.execute("COMMIT")


def stamp(path: Path) -> tuple[int, ...]:
    """Device, inode, size and time of change of a file; nothing if it is not there."""
    with suppress(OSError):
        status = path.stat()
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
    return ()


def _make_folder(path: Path, *, read_only: bool) -> None:
    """Makes the folder of a new library; refuses a place where one was, or none may be created."""
    folder = path.parent
    problem = None
    if path.with_name(REPAIRED).exists():
        problem = f"a repair of '{path}' was interrupted before its last step. Nothing is lost. Finish it: {_REPAIR}"
    elif read_only:
        problem = f"there is no library in '{folder}'. Create one: task2vec embed FOLDER"
    if problem is not None:
        raise LibraryError(problem)
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for parent in missing:
            sync_folder(parent.parent)
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
    with suppress(sqlite3.OperationalError), closing(connect(path, "mode=ro")) as connection:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        return "mode=ro"
    journal = path.with_name(f"{path.name}-wal")
    if journal.exists() and journal.stat().st_size > 0:
        raise ResourceError(
            f"'{path}' has a WAL that was not merged, because its last writer was killed, and merging needs write "
            "permission. Get that and run task2vec library ls once, or copy the folder to where you can write."
        )
    return "immutable=1"


def _is_ready(connection: sqlite3.Connection, path: Path, *, read_only: bool) -> bool:
    """Whether it is a library of this schema; False if it is an empty file that may become one."""
    connection.execute("BEGIN")  # one snapshot: others may be creating the tables right now
    names = ("user_version", "application_id")
    version, application = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
    objects = connection.execute("SELECT name, rootpage FROM sqlite_master").fetchall()
    connection.execute("ROLLBACK")
    if not (version or application or objects or read_only):
        return False
    foreign = [name for name, page in objects if not page]
    problem = None
    if application != APPLICATION:
        problem = "is empty or the database of another program, and was not changed. Choose another one: --library DIR"
    elif version != SCHEMA:
        problem = f"has schema {version}, but this version reads schema {SCHEMA}: " + (
            "it was made by a newer task2vec. Upgrade: pip install -U task2vec"
            if version > SCHEMA
            else f"its tables may mean something else. Copy what can be read: {_REPAIR}"
        )
    elif foreign:
        problem = (
            f"has a view, trigger or virtual table ({foreign[0]!r}), which task2vec never creates and which could run "
            f"anything while the library is used. Copy only the data: {_REPAIR}"
        )
    if problem is not None:
        raise LibraryError(f"'{path}' {problem}")
    return True


def _create_tables(connection: sqlite3.Connection) -> None:
    """Creates the tables in an empty file; another process may do the same, now or just before."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            connection.executescript(
                f"PRAGMA page_size = {PAGE}; PRAGMA journal_mode = WAL; BEGIN IMMEDIATE; {TABLES}"
                f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {SCHEMA}; COMMIT;"
            )
            return
        except sqlite3.OperationalError as error:  # SQLite does not wait for others that turn on WAL mode
            if not is_busy(error) or time.monotonic() > end:
                raise
            time.sleep(0.01)
