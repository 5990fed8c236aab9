"""Finding damage, and repairing a library from all that can still be read.

SQLite's integrity check finds damaged trees of pages, and our SHA-256 per embedding finds changed bytes. A repair
copies everything readable into a new file, which then takes the place of the old one.
"""

import hashlib
import json
import os
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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
from task2vec.library.database import DAMAGE, SCHEMA, Database, read_blob
from task2vec.library.entries import Expert, MeasuredError, check_text, identify, read_embedding, read_task
from task2vec.library.library import write_embedding, write_error, write_expert, write_task
from task2vec.library.search import Search
from task2vec.progress import Report, silent
from task2vec.storage import sync_folder

BACKUPS = "backups"
_MOST_ROWS = 10_000_000  # a damaged tree of pages can be endless
_TOGETHER = 64  # embeddings that are written in one transaction
_INVALID = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)  # from damaged rows
_FAILURES = (*DAMAGE, Task2VecError, *_INVALID)
_REFUSALS = (LibraryError, EmbeddingFileError, DataError, ConflictError, UsageError)  # a full disk is none of these
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
    search = Search()
    with database.read() as connection:  # one snapshot: others may write meanwhile
        problems = list(_check_tables(connection, _SMALL_TABLES if quick else ("",)))
        entries = _select(
            connection,
            "SELECT e.id, e.key, e.sha256, e.space, t.name, e.bytes FROM embeddings e JOIN tasks t ON t.id = e.task "
            "ORDER BY t.name, e.id",
            problems,
        )
        lengths = {}
        if quick:
            lengths = dict(_select(connection, "SELECT embedding, length(content) FROM contents", problems))
        else:
            problems += _check_bases(connection, search)
        step = report("verifying", len(entries))
        for number, key, sha256, space, name, size in entries:
            what = None
            if not quick:
                what = _check_entry(connection, search, space, number, key, sha256, name)
            elif size != lengths.get(number):
                what = f"its content has {lengths.get(number, 0)} bytes, and had {size} when it was written"
            if what is not None:
                problems.append(Problem(f"{name} ({str(key)[:8]})", what))
            step(1)
        experts = () if quick else tuple(_check_experts(connection, report))
        return Verification(len(entries), tuple(problems), experts)


def _check_entry(
    connection: sqlite3.Connection, search: Search, space: int, number: int, key: str, sha256: str, name: str
) -> str | None:
    """What is wrong with an embedding, its row or its sketch, or None."""
    try:
        embedding = read_embedding(connection, number, sha256, name=name)
        if identify(embedding).key != key:
            return "its content is the embedding of something else. Run: task2vec library repair"
        return search.find_damage(connection, space, number, embedding)
    except _FAILURES as error:
        return str(error)


def _check_tables(connection: sqlite3.Connection, tables: tuple[str, ...]) -> Iterator[Problem]:
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


def _check_bases(connection: sqlite3.Connection, search: Search) -> list[Problem]:
    """Spaces whose basis is damaged."""
    found: list[Problem] = []
    for number, probe in _select(connection, "SELECT id, probe FROM spaces WHERE basis_sha256 IS NOT NULL", found):
        try:
            why = "its basis is damaged" if search.open(connection, number).sketcher is None else None
        except _FAILURES as error:
            why = str(error)
        if why is not None:
            fix = "so all entries are compared. Fit them again: task2vec library repair"
            found.append(Problem("search", f"the sketches of the embeddings by {probe} are unusable ({why}), {fix}"))
    return found


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
    database = Database(new, read_only=False)
    try:
        try:
            with _open_damaged(path) as old:
                with database.write() as connection:
                    _copy_tables(old, connection, lost)
                _copy_embeddings(old, database, lost, report)
        except DAMAGE as error:
            lost.append(f"the tables ({error})")
        with database.connect() as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    finally:
        database.close()
    return tuple(lost)


def _copy_tables(old: sqlite3.Connection, new: sqlite3.Connection, lost: list[str]) -> None:
    """Writes everything but embeddings as if it were added today: each value is checked, and named if it is lost."""
    tags, tasks, experts = defaultdict(list), {}, {}

    def write_row_of_task(row: dict[str, Any]) -> None:
        lists = {name: json.loads(row[name]) for name in ("classes", "counts")}
        row |= lists | {"is_multilabel": bool(row["is_multilabel"]), "tags": tags[row["id"]]}
        write_task(new, replace(read_task(row), source=check_text(row["source"], "source")))
        tasks[row["id"]] = row["fingerprint"]

    def write_row_of_expert(row: dict[str, Any]) -> None:
        fields = {name: row[name] for name in Expert.__dataclass_fields__}
        write_expert(new, Expert(**fields | {"recipe": json.loads(row["recipe"])}))
        experts[row["id"]] = row["name"]

    def write_row_of_error(row: dict[str, Any]) -> None:
        fields = {name: row[name] for name in MeasuredError.__dataclass_fields__}
        write_error(new, MeasuredError(**fields | {"task": tasks[row["task"]], "expert": experts[row["expert"]]}))

    def write_row_of_run(row: dict[str, Any]) -> None:
        json.loads(row["details"])
        texts = [check_text(row[name], name, may_be_none=True) for name in ("what", "started", "ended", "outcome")]
        new.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?)", (row["id"], texts[0], row["details"], *texts[1:]))

    writers: dict[str, Callable[[dict[str, Any]], None]] = {
        "tags": lambda row: tags[row["task"]].append(row["tag"]),
        "tasks": write_row_of_task,
        "experts": write_row_of_expert,
        "errors": write_row_of_error,
        "runs": write_row_of_run,
    }
    for table, write in writers.items():
        for row in _read_rows(old, new, table, lost):
            try:
                write(row)
            except (sqlite3.IntegrityError, *_REFUSALS, *_INVALID) as error:
                lost.append(f"row {next(iter(row.values()))} of {table} ({type(error).__name__}: {error})"[:300])


def _read_rows(old: sqlite3.Connection, new: sqlite3.Connection, table: str, lost: list[str]) -> list[dict[str, Any]]:
    """The rows of a table from its beginning to where it is damaged, and from its end back to there."""
    columns = [row[1] for row in new.execute(f"PRAGMA table_info({table})") if row[1] != "content"]
    keys, rows, failure = columns[: 2 if table == "tags" else 1], {}, None
    for direction in ("ASC", "DESC"):
        try:
            found = old.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
            if found is None or not found[0]:  # a view could compute for ever
                lost.append(f"the table {table}: there is none")
                return []
            order = ", ".join(f"{key} {direction}" for key in keys)
            cursor = old.execute(f"SELECT {', '.join(columns)} FROM {table} ORDER BY {order}")
            for _, row in zip(range(_MOST_ROWS), cursor, strict=False):
                rows[row] = dict(zip(columns, row, strict=True))
            return list(rows.values())
        except (*DAMAGE, OverflowError) as error:
            failure = error
    lost.append(f"a part of the table {table} ({failure})")
    return list(rows.values())


def _copy_embeddings(old: sqlite3.Connection, database: Database, lost: list[str], report: Report) -> None:
    """Copies the embeddings whose content is whole, and makes their rows again."""
    with database.read() as connection:
        known = {row["id"]: row for row in _read_rows(old, connection, "embeddings", lost)}
        ids = sorted({row["embedding"] for row in _read_rows(old, connection, "contents", lost)} | set(known))
    search, step = Search(), report("repairing", len(ids))
    for start in range(0, len(ids), _TOGETHER):
        some = ids[start : start + _TOGETHER]
        with database.write() as connection:
            for number in some:
                row, content = known.get(number, {}), read_blob(old, "contents", "content", number)
                try:
                    embedding = decode_embedding(content or b"", f"embedding {number}")
                    write_embedding(connection, lambda: search, embedding, added=row.get("added"))
                except _REFUSALS:
                    name = f"embedding {number} ({str(row.get('sha256'))[:8]})"
                    lost.append(f"{name} is missing or unreadable, or its SHA-256 differs")
        step(len(some))
