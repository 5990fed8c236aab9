"""An index is made, brought up to date, or refused if it is not ours."""

import os
import sqlite3
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from task2vec.errors import LibraryError, ResourceError
from task2vec.library import schema
from task2vec.library.connecting import PATIENCE, connect, make_address
from task2vec.storage import PARTIAL, sync_folder

BACKUPS = "backups"


@dataclass(frozen=True)
class _State:
    """What an index says of itself; `foreign` are views, triggers and virtual tables, which none of ours has."""

    version: int
    application: int
    objects: int
    foreign: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        return self.version == self.application == self.objects == 0


def prepare(connection: sqlite3.Connection, path: Path, *, read_only: bool, may_make: bool) -> None:
    """Makes the tables of the index or brings them up to date.

    Raises:
        LibraryError: It is no index of ours, or of a version that cannot be read here.
    """
    connection.execute("BEGIN")  # one moment: others may be making the tables right now
    try:
        state = _look(connection)
    finally:
        connection.execute("ROLLBACK")
    if _is_ready(state, path, read_only=read_only, may_make=may_make):
        return
    if state.is_empty:
        _use_journal(connection)
    connection.execute("BEGIN IMMEDIATE")
    try:
        state = _look(connection)  # again: another process may have done it meanwhile
        if not _is_ready(state, path, read_only=read_only, may_make=may_make):
            _bring_up_to_date(connection, path, state)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _look(connection: sqlite3.Connection) -> _State:
    version, application = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("user_version", "application_id")
    )
    objects = connection.execute("SELECT name, rootpage FROM sqlite_master").fetchall()
    return _State(version, application, len(objects), tuple(str(name) for name, page in objects if not page))


def _is_ready(state: _State, path: Path, *, read_only: bool, may_make: bool) -> bool:
    """Whether nothing is to be done; an error if nothing can be."""
    if state.is_empty and not may_make:
        raise LibraryError(
            f"'{path}' is missing or empty, and there are embeddings beside it: the index was lost. Make it anew from "
            "them: task2vec library repair"
        )
    if not state.is_empty and state.application != schema.APPLICATION:
        raise LibraryError(
            f"'{path}' is a database of something else, and nothing was changed in it. Choose another folder: "
            "--library DIR"
        )
    if state.version > schema.SCHEMA:
        raise LibraryError(
            f"the library '{path.parent}' has schema {state.version}, and this version reads up to {schema.SCHEMA}: it "
            "was made by a newer task2vec. Upgrade: pip install -U task2vec"
        )
    if state.foreign:
        raise LibraryError(
            f"'{path}' has a view, trigger or virtual table ({state.foreign[0]!r}), which could do anything while the "
            "library is used, and which task2vec never makes. Take only what is sound: task2vec library repair"
        )
    if state.version == schema.SCHEMA:
        return True
    steps = range(state.version, schema.SCHEMA)
    if not state.is_empty and (state.version < 1 or any(step not in schema.MIGRATIONS for step in steps)):
        raise LibraryError(
            f"the library '{path.parent}' says it has schema {state.version}, from which no way leads to "
            f"{schema.SCHEMA}. Make its index anew: task2vec library repair"
        )
    if read_only:
        wish = "has no tables" if state.is_empty else f"has the older schema {state.version}"
        raise LibraryError(f"the library '{path.parent}' {wish} and cannot be written to. Open it for writing once.")
    return False


def _bring_up_to_date(connection: sqlite3.Connection, path: Path, state: _State) -> None:
    """Runs what is missing, inside the caller's transaction."""
    if state.is_empty:
        schema.create_tables(connection)
        return
    _back_up(path, state.version)
    for version in range(state.version, schema.SCHEMA):
        schema.MIGRATIONS[version](connection)
        connection.execute(f"PRAGMA user_version = {version + 1}")


def _back_up(path: Path, version: int) -> None:
    """Keeps the index as it was before a migration; the caller has the write lock, and has written nothing yet."""
    moment = datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")
    file = path.parent / BACKUPS / f"index-schema-{version}-{moment}.sqlite"
    unfinished = file.with_name(f"{file.name}{PARTIAL}")
    try:
        file.parent.mkdir(exist_ok=True)
        reader = connect(make_address(path, "mode=rw"))
        try:
            reader.execute("VACUUM INTO ?", (str(unfinished),))
        finally:
            reader.close()
        with unfinished.open("r+b") as copy:
            os.fsync(copy.fileno())  # SQLite does not do it for a copy
        os.replace(unfinished, file)
        sync_folder(file.parent)
        sync_folder(path.parent)
    except OSError as error:
        raise ResourceError(
            f"the library '{path.parent}' is older and needs a backup before it is brought up to date, which cannot be "
            f"written to '{file}': {error.strerror}. Nothing was changed. Make room on the disk."
        ) from error


def _use_journal(connection: sqlite3.Connection) -> None:
    """Turns on the write-ahead journal; SQLite does not wait here for others that do the same, so we do."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.01)
