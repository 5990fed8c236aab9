"""Finding damage, and repairing a library from all that can still be read.

SQLite's integrity check finds damaged trees of pages, and our SHA-256 per embedding finds changed bytes. A repair
copies everything readable into a new file, which then takes the place of the old one.
"""

import hashlib
import os
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from sqlite3 import Connection

from task2vec.errors import LibraryError, ResourceError, Task2VecError
from task2vec.library import database as files
from task2vec.library import search, tables
from task2vec.library.database import DAMAGE, SCHEMA, Database
from task2vec.library.entries import identify
from task2vec.library.export import INVALID, copy_to_file
from task2vec.progress import Report, silent
from task2vec.storage import sync_folder

BACKUPS = "backups"
_FAILURES = (*DAMAGE, Task2VecError, *INVALID)
_EXPERTS = "SELECT name, location, sha256 FROM experts WHERE source = 'file' AND sha256 IS NOT NULL ORDER BY name"
_SMALL_TABLES = ("tasks", "tags", "spaces", "embeddings", "sketches", "experts", "errors", "runs")


@dataclass(frozen=True)
class Problem:
    """Something damaged.

    Attributes:
        entry: the name of the task and the key of the embedding, or "library".
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
    """Checks the whole file, every embedding against its hash and key, and every row and sketch against that.

    `quick` checks the small tables, and that every embedding has its length, without reading it.
    """
    problems = []
    with database.read() as connection:  # one snapshot: others may write meanwhile

        def select(query: str) -> list[tuple]:
            try:
                return connection.execute(query).fetchall()
            except _FAILURES as error:
                problems.append(Problem("library", f"a table cannot be read: {error}"))
                return []

        def examine(stage: str, rows: list[tuple], check: Callable[..., str | None]) -> list[Problem]:
            """The problems that `check` finds in the rows, of which the first value names the entry."""
            damaged = []
            step = report(stage, len(rows))
            for entry, *row in rows:
                try:
                    damage = check(*row)
                except _FAILURES as error:
                    damage = str(error)
                damaged += [] if damage is None else [Problem(str(entry), damage)]
                step(1)
            return damaged

        def check_embedding(number: int, key: str, sha256: str, name: str) -> str | None:
            embedding = tables.read_embedding(connection, number, sha256, name=name)
            if identify(embedding).key != key:
                return "its content is the embedding of something else. Run: task2vec library repair"
            return search.find_damage(connection, number, embedding)

        for table in _SMALL_TABLES if quick else ("20",):  # a number stands for the whole file, and so many problems
            answers = select(f"PRAGMA integrity_check({table})")
            problems += [Problem("library", text) for (text,) in answers if text != "ok"]
        for table, row, parent, _ in select("PRAGMA foreign_key_check"):
            problems.append(
                Problem("library", f"row {row} of {table} belongs to a row of {parent} that does not exist")
            )
        columns = "e.id, e.key, e.sha256, t.name"
        check = check_embedding
        experts = []
        if quick:
            columns = "(SELECT length(content) = e.bytes FROM contents WHERE embedding = e.id)"
            check = _check_length
        else:
            experts = examine("experts", select(_EXPERTS), _check_expert)
        entry = "t.name || ' (' || substr(e.key, 1, 8) || ')'"
        joined = "embeddings e JOIN tasks t ON t.id = e.task ORDER BY t.name, e.id"
        rows = select(f"SELECT {entry}, {columns} FROM {joined}")
        problems += examine("verifying", rows, check)
        return Verification(len(rows), tuple(problems), tuple(experts))


def _check_length(is_whole: int | None) -> str | None:
    return None if is_whole else "its content is missing, or does not have the length that was written"


def _check_expert(location: str, sha256: str) -> str | None:
    """The damage of an expert's file of weights, or None."""
    try:
        if not Path(location).is_file():  # a device or pipe may be endless
            return f"there is no file '{location}'"
        with open(location, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError) as error:
        return f"'{location}' cannot be read ({error})"
    return None if digest == sha256 else f"'{location}' was changed: its SHA-256 differs"


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
    lost = []
    kept = path.with_name(BACKUPS) / f"damaged-{datetime.now(UTC).strftime('%Y%m%d-%H%M%S-%f')}"
    if not path.exists() and not new.exists():
        raise LibraryError(f"there is no library in '{path.parent}', so there is nothing to repair. Check the path.")
    try:
        with files.translate_errors(path), ExitStack() as stack:
            if path.exists():  # else the last repair was interrupted at its end, and its new file is whole
                old = _open_damaged(path, stack)
                for leftover in path.parent.glob(f"{BACKUPS}/*/new.sqlite*"):  # of a repair that was killed
                    leftover.unlink()
                kept.mkdir(parents=True)
                copied = copy_to_file(old, kept / "new.sqlite", on_damage=lost.append, is_own=True, report=report)
                lost += copied.conflicts
                os.replace(kept / "new.sqlite", new)
            kept.mkdir(parents=True, exist_ok=True)
            # The damaged file goes first, then its WAL, which would corrupt the new file.
            for name in (path.name, f"{path.name}-wal"):
                if path.with_name(name).exists():
                    os.replace(path.with_name(name), kept / name)
            path.with_name(f"{path.name}-shm").unlink(missing_ok=True)
            sync_folder(path.parent)
            os.replace(new, path)
            sync_folder(path.parent)
        with closing(files.connect(path, "mode=ro")) as connection:
            count = connection.execute("SELECT count(*) FROM embeddings").fetchone()[0]
        return Repaired(count, tuple(lost), kept)
    except OSError as error:
        if isinstance(error, ResourceError):
            raise
        raise ResourceError(
            f"the library '{path.parent}' cannot be repaired: {error.strerror} ('{error.filename}'). Nothing is lost. "
            "Free space on the disk or get write permission there, and try again."
        ) from error


def _open_damaged(path: Path, stack: ExitStack) -> Connection:
    """A connection until the end of `stack`, with the write lock: what others wrote to the file now would be lost.

    It has nothing in it if the file is not a database, or one that cannot be opened.

    Raises:
        LibraryError: A newer version wrote the file, and may have written what would be lost here.
    """
    connection = None
    version = 0
    try:
        connection = stack.enter_context(closing(files.connect(path, "mode=rw")))
        connection.text_factory = lambda text: text.decode(errors="surrogateescape")  # damage stays within its row
        connection.execute("BEGIN IMMEDIATE")
        is_ours = connection.execute("PRAGMA application_id").fetchone()[0] == files.APPLICATION
        if is_ours and connection.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok":
            version = connection.execute("PRAGMA user_version").fetchone()[0]
    except DAMAGE as error:  # one that cannot be locked or checked can perhaps still be read
        if files.is_busy(error):
            raise
    if version > SCHEMA:
        raise LibraryError(
            f"'{path}' has schema {version}, but this version knows schema {SCHEMA}: a repair would lose what only a "
            "newer task2vec can read. Upgrade: pip install -U task2vec"
        )
    return connection or stack.enter_context(closing(sqlite3.connect(":memory:")))
