"""Finding damage, and repairing a library from all that can still be read.

SQLite's integrity check finds damaged trees of pages, and our SHA-256 per embedding finds changed bytes. A repair
copies everything readable into a new file, which then takes the place of the old one.
"""

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from task2vec.embedding.embedding import decode_embedding
from task2vec.errors import (
    ConflictError,
    DataError,
    EmbeddingFileError,
    LibraryError,
    ResourceError,
    Task2VecError,
    UsageError,
)
from task2vec.library import database as files
from task2vec.library.database import DAMAGE, PAGE, SCHEMA, Database, read_blob
from task2vec.library.entries import Expert, MeasuredError, check_text
from task2vec.library.identity import identify, read_task
from task2vec.library.search import Search, Sketcher, find_search_damage, load_sketcher, read_space
from task2vec.library.writes import LARGEST, read_embedding, write_embedding
from task2vec.progress import Report, silent
from task2vec.storage import sync_folder

BACKUPS = "backups"
_MOST_ROWS = 10_000_000  # a damaged tree of pages can be endless
_TOGETHER = 64  # embeddings that are written in one transaction
_INVALID = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)  # from damaged rows
_FAILURES = (*DAMAGE, Task2VecError, *_INVALID)
_REFUSALS = (LibraryError, EmbeddingFileError, DataError, ConflictError, UsageError)  # not those of a full disk
_SMALL_TABLES = ("tasks", "tags", "spaces", "embeddings", "sketches", "experts", "errors", "runs")


@dataclass(frozen=True)
class Problem:
    """Something damaged.

    Attributes:
        entry: the name of the task and the key of the embedding, or "library" or "search".
        what: what is wrong with it.
    """

    entry: str
    what: str


@dataclass(frozen=True)
class Verification:
    """What verifying a library found.

    Attributes:
        entries: embeddings that were read.
        problems: what is damaged.
        experts: those whose file of weights is missing or was changed. Such files are not part of the library, and what
            was measured with them stays true, but nothing more can be measured.
    """

    entries: int
    problems: tuple[Problem, ...]
    experts: tuple[Problem, ...] = ()

    @property
    def is_sound(self) -> bool:
        """Whether nothing is damaged."""
        return not self.problems


def verify(database: Database, *, quick: bool = False, report: Report = silent) -> Verification:
    """Checks the whole file, every embedding against its hash and key, and every row and sketch against those.

    `quick` checks the small tables, and that every embedding has its length, without reading it.
    """
    with database.read() as connection:  # one snapshot: others may write meanwhile
        problems = list(_check_tables(connection, _SMALL_TABLES if quick else ("",)))
        entries = _select(
            connection,
            "SELECT e.id, e.key, e.sha256, e.space, t.name, e.bytes FROM embeddings e JOIN tasks t ON t.id = e.task "
            "ORDER BY t.name, e.id",
            problems,
        )
        lengths, sketchers = {}, {}
        if quick:
            lengths = dict(_select(connection, "SELECT embedding, length(content) FROM contents", problems))
        else:
            sketchers = _load_sketchers(connection, problems)
        step = report("verifying", len(entries))
        for number, key, sha256, space, name, size in entries:
            if not quick:
                what = _check_entry(connection, number, key, sha256, name, sketchers.get(space))
            elif size != lengths.get(number):
                what = f"its content has {lengths.get(number, 0)} bytes, and had {size} when it was written"
            else:
                what = None
            if what is not None:
                problems.append(Problem(f"{name} ({str(key)[:8]})", what))
            step(1)
        experts = () if quick else tuple(_check_experts(connection, report))
        return Verification(len(entries), tuple(problems), experts)


def _check_entry(
    connection: sqlite3.Connection, number: int, key: str, sha256: str, name: str, sketcher: Sketcher | None
) -> str | None:
    """What is wrong with an embedding, its row or its sketch, or None."""
    try:
        embedding = read_embedding(connection, number, sha256, name=name)
        if identify(embedding).key != key:
            return "its content is the embedding of something else. Run: task2vec library repair"
        return find_search_damage(connection, number, embedding, sketcher)
    except _FAILURES as error:
        return str(error)


def _check_tables(connection: sqlite3.Connection, tables: Iterable[str]) -> Iterator[Problem]:
    """What SQLite finds wrong with these tables; an empty name stands for the whole file."""
    try:
        for table in tables:
            for (text,) in connection.execute(f"PRAGMA integrity_check({table or 20})").fetchall():
                if text != "ok":
                    yield Problem("library", text)
        for table, row, parent, _ in connection.execute("PRAGMA foreign_key_check").fetchall():
            yield Problem("library", f"row {row} of {table} belongs to a row of {parent} that is not there")
    except DAMAGE as error:
        yield Problem("library", str(error))


def _select(connection: sqlite3.Connection, query: str, problems: list[Problem]) -> list[tuple]:
    try:
        return connection.execute(query).fetchall()
    except _FAILURES as error:
        problems.append(Problem("library", f"a table cannot be read: {error}"))
        return []


def _load_sketchers(connection: sqlite3.Connection, problems: list[Problem]) -> dict:
    sketchers = {}
    for number, probe in _select(connection, "SELECT id, probe FROM spaces", problems):
        try:
            space = read_space(connection, number)
            sketchers[number] = load_sketcher(connection, space)
            if space.basis_sha256 is not None and sketchers[number] is None:
                raise LibraryError("their basis is damaged, so all entries are compared")
        except _FAILURES as error:
            fix = "Fit them again in Python: Library.open(FOLDER).refit_search()"
            problems.append(
                Problem("search", f"the sketches of the embeddings by {probe} are unusable ({error}). {fix}")
            )
    return sketchers


def _check_experts(connection: sqlite3.Connection, report: Report) -> Iterator[Problem]:
    """Experts whose file of weights is missing or was changed."""
    rows = _select(
        connection,
        "SELECT name, location, sha256 FROM experts WHERE source = 'file' AND sha256 IS NOT NULL ORDER BY name",
        [],
    )
    step = report("experts", len(rows))
    for name, location, sha256 in rows:
        try:
            what = _check_file(Path(location), sha256)
        except (OSError, *_FAILURES) as error:
            what = f"'{location}' cannot be read ({error})"
        if what is not None:
            yield Problem(str(name), what)
        step(1)


def _check_file(path: Path, sha256: str) -> str | None:
    """What is wrong with a file of weights, or None; a device or pipe may be endless, and is not read."""
    if not path.is_file():
        return f"there is no file '{path}'"
    with path.open("rb") as file:
        is_same = hashlib.file_digest(file, "sha256").hexdigest() == sha256
    return None if is_same else f"'{path}' was changed: its SHA-256 differs"


# --- repair ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Repaired:
    """The outcome of a repair.

    Attributes:
        embeddings: how many are in the library now.
        lost: what could not be read.
        kept: the folder that holds the damaged file.
    """

    embeddings: int
    lost: tuple[str, ...]
    kept: Path


def repair(path: Path, *, report: Report = silent) -> Repaired:
    """Copies everything readable into a new file, which takes the place of the one at `path`."""
    new = path.with_name(files.REPAIRED)
    kept = path.with_name(BACKUPS) / f"damaged-{datetime.now(UTC).strftime('%Y%m%d-%H%M%S-%f')}"
    if not path.exists() and not new.exists():
        raise LibraryError(f"there is no library in '{path.parent}', so there is nothing to repair. Check the path.")
    try:
        lost: tuple[str, ...] = ()
        with files.translate_errors(path), ExitStack() as stack:
            if path.exists():  # else the last repair was interrupted at its end, and its new file is whole
                stack.enter_context(_hold_lock(path))
                _refuse_newer(path)
                for left in path.parent.glob(f"{BACKUPS}/*/new.sqlite*"):  # of a repair that was killed
                    left.unlink()
                kept.mkdir(parents=True)
                lost = _rebuild(path, kept / "new.sqlite", report)
                os.replace(kept / "new.sqlite", new)
            kept.mkdir(parents=True, exist_ok=True)
            _swap(path, new, kept)
        with closing(files.connect(path, "mode=ro")) as connection:
            count = connection.execute("SELECT count(*) FROM embeddings").fetchone()[0]
        return Repaired(count, lost, kept)
    except OSError as error:
        if isinstance(error, ResourceError):
            raise
        raise ResourceError(
            f"the library '{path.parent}' cannot be repaired: {error.strerror} ('{error.filename}'). Nothing is lost. "
            "Free space on the disk or get the right to write there, and try again."
        ) from error


def _swap(path: Path, new: Path, kept: Path) -> None:
    """Moves the damaged file away, then its WAL, which would corrupt the new file, and puts that in its place."""
    for name in (path.name, f"{path.name}-wal"):
        if path.with_name(name).exists():
            os.replace(path.with_name(name), kept / name)
    path.with_name(f"{path.name}-shm").unlink(missing_ok=True)
    sync_folder(path.parent)
    os.replace(new, path)
    sync_folder(path.parent)


@contextmanager
def _hold_lock(path: Path) -> Iterator[None]:
    """The write lock of the damaged file, if it can still be locked: what others wrote to it now would be lost."""
    with ExitStack() as stack:
        try:
            if path.is_file():
                connection = files.connect(path, "mode=rw")
                stack.callback(connection.close)
                connection.execute("BEGIN IMMEDIATE")
        except DAMAGE as error:
            if (getattr(error, "sqlite_errorname", None) or "").startswith("SQLITE_BUSY"):
                raise
        yield


def _refuse_newer(path: Path) -> None:
    """Raises an error if a newer version wrote the file, and may have written what would be lost here."""
    version = 0
    with suppress(*DAMAGE), _open_damaged(path) as connection:
        is_ours = connection.execute("PRAGMA application_id").fetchone()[0] == files.APPLICATION
        if is_ours and connection.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok":
            version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA:
        raise LibraryError(
            f"'{path}' has schema {version}, and this version knows schema {SCHEMA}: a repair would lose what only a "
            "newer task2vec can read. Upgrade: pip install -U task2vec"
        )


@contextmanager
def _open_damaged(path: Path) -> Iterator[sqlite3.Connection]:
    connection = files.connect(path, "mode=rw")
    try:
        connection.text_factory = lambda text: text.decode(errors="surrogateescape")  # damage stays within its row
        yield connection
    finally:
        connection.close()


def _rebuild(path: Path, new: Path, report: Report) -> tuple[str, ...]:
    """Writes all that can be read at `path` into the file `new`, and returns what is lost."""
    lost: list[str] = []
    known: dict[int, tuple[str, str]] = {}  # SHA-256 and moment of embeddings by id
    database, is_sound = Database(new, read_only=False), False
    try:
        try:
            with _open_damaged(path) as old:
                is_sound = old.execute("PRAGMA integrity_check(1)").fetchone()[0] == "ok"
                with database.write() as connection:
                    for table in ("tasks", "tags", "experts", "errors", "runs"):
                        _copy_table(old, connection, table, lost)
                ids = {number for (number,) in _read_rows(old, "contents", ("embedding",), lost)}
                for number, sha256, added in _read_rows(old, "embeddings", ("id", "sha256", "added"), lost):
                    known[number] = (str(sha256), str(added))
                _copy_embeddings(old, database, sorted(ids | set(known)), known, report)
        except DAMAGE as error:
            lost.append(f"the tables ({error})")
        if not is_sound and path.is_file():
            _carve_embeddings(path, database, dict(known.values()))
        with database.connect() as connection:
            there = {sha256 for (sha256,) in connection.execute("SELECT sha256 FROM embeddings")}
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    finally:
        database.close()
    names = [
        f"embedding {number} ({sha256[:8]})" for number, (sha256, _) in sorted(known.items()) if sha256 not in there
    ]
    return (*lost, *(f"{name} is missing or unreadable, or its SHA-256 differs" for name in names))


def _copy_table(old: sqlite3.Connection, new: sqlite3.Connection, table: str, lost: list[str]) -> None:
    """Copies the rows of a small table, each checked."""
    columns = [row[1] for row in new.execute(f"PRAGMA table_info({table})")]
    insert = f"INSERT INTO {table}({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
    for row in _read_rows(old, table, columns, lost):
        try:
            _check_row(table, dict(zip(columns, row, strict=True)))
            new.execute(insert, row)
        except (sqlite3.IntegrityError, *_REFUSALS, *_INVALID) as error:
            lost.append(f"row {row[0]} of {table} ({type(error).__name__}: {error})"[:300])


def _check_row(table: str, row: dict[str, Any]) -> None:
    """Raises an error unless the row can be listed."""
    for name, value in row.items():
        if isinstance(value, str) and name not in ("classes", "counts"):
            check_text(value, name)
    if table == "tasks":
        lists = {name: json.loads(row[name]) for name in ("classes", "counts")}
        read_task(row | lists)
    elif table == "experts":
        fields = {name: row[name] for name in Expert.__dataclass_fields__}
        Expert(**fields | {"recipe": json.loads(row["recipe"])})
    elif table == "errors":
        names = ("error", "protocol", "seed", "low", "high", "measured", "measured_by")
        MeasuredError("", "", *(row[name] for name in names))
    elif table == "runs":
        json.loads(row["details"])


def _read_rows(connection: sqlite3.Connection, table: str, columns: Sequence[str], lost: list[str]) -> list[tuple]:
    """The rows of a table from its beginning to where it is damaged, and from its end back to there."""
    rows: dict[tuple, None] = {}
    keys = columns[:2] if table == "tags" else columns[:1]
    failure: Exception | None = None
    for direction in ("ASC", "DESC"):
        try:
            found = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
            if found is None or not found[0]:  # a view could compute for ever
                lost.append(f"the table {table}: there is none")
                return []
            order = ", ".join(f"{key} {direction}" for key in keys)
            cursor = connection.execute(f"SELECT {', '.join(columns)} FROM {table} ORDER BY {order}")
            for _, row in zip(range(_MOST_ROWS), cursor, strict=False):
                rows[row] = None
            return list(rows)
        except (*DAMAGE, OverflowError) as error:
            failure = error
    lost.append(f"a part of the table {table} ({failure})")
    return list(rows)


def _copy_embeddings(
    old: sqlite3.Connection, database: Database, ids: list[int], known: dict[int, tuple[str, str]], report: Report
) -> None:
    """Copies the embeddings whose content is whole, and makes their rows again."""
    search, step = Search(), report("repairing", len(ids))
    for start in range(0, len(ids), _TOGETHER):
        some = ids[start : start + _TOGETHER]
        with database.write() as connection:
            for number in some:
                content = read_blob(old, "contents", "content", number)
                if content is not None:
                    with suppress(*_REFUSALS):  # what is not there in the end is reported as lost
                        embedding = decode_embedding(content, f"embedding {number}")
                        added = known[number][1] if number in known else None
                        write_embedding(connection, search, embedding, added=added)
        step(len(some))


# --- embeddings out of the raw pages of a file whose trees are damaged -----------------------------------------------


def _carve_embeddings(path: Path, database: Database, moments: dict[str, str]) -> None:
    """Adds embeddings that are whole in the file but not reachable; those removed or replaced lately may return."""
    search = Search()
    for content in _carve(path):
        with suppress(*_REFUSALS), database.write() as connection:
            embedding = decode_embedding(content, path)
            added = moments.get(hashlib.sha256(content).hexdigest())
            write_embedding(connection, search, embedding, added=added)


def _carve(path: Path) -> Iterator[bytes]:
    """What may be contents of embeddings: the large records of all leaf pages (https://sqlite.org/fileformat2.html)."""
    pages = path.stat().st_size // PAGE
    with path.open("rb") as file:
        for number in range(1, pages):  # the first page has the schema
            page = _read_page(file, number, pages)
            if page[0] == 0x0D:  # a leaf of a table
                for cell in range(min(int.from_bytes(page[3:5], "big"), PAGE // 4)):
                    start = int.from_bytes(page[8 + 2 * cell : 10 + 2 * cell], "big")
                    content = _read_record(file, page, start, pages)
                    if content[8:9] == b"{":  # the header of safetensors
                        yield content


def _read_page(file: BinaryIO, index: int, pages: int) -> bytes:
    """A page by its index from 0; empty if there is none."""
    if not 0 <= index < pages:
        return b""
    file.seek(index * PAGE)
    return file.read(PAGE)


def _read_record(file: BinaryIO, page: bytes, start: int, pages: int) -> bytes:
    """The BLOB of a record of an id and a BLOB that goes on in overflow pages; empty if it is something else."""
    size, start = _read_varint(page, start)
    _, start = _read_varint(page, start)
    least = (PAGE - 12) * 32 // 255 - 23
    local = least + (size - least) % (PAGE - 4)
    local = local if local <= PAGE - 35 else least
    if not PAGE - 35 < size <= LARGEST + 20:
        local, size = (size, size) if 0 < size <= PAGE - 35 else (0, 0)
    parts, left = [page[start : start + local]], size - local
    follow = int.from_bytes(page[start + local : start + local + 4], "big")
    while left > 0:
        page = _read_page(file, follow - 1, pages)
        if not page:
            return b""
        follow = int.from_bytes(page[:4], "big")
        parts.append(page[4 : 4 + min(left, PAGE - 4)])
        left -= PAGE - 4
    record = b"".join(parts)
    return record[record[0] :] if record else b""


def _read_varint(page: bytes, start: int) -> tuple[int, int]:
    """A big-endian integer of 7 bits per byte, and where it ends."""
    value = 0
    for at in range(start, min(start + 8, len(page))):
        value = value << 7 | page[at] & 0x7F
        if page[at] < 0x80:
            return value, at + 1
    return 0, start
