"""W3, W5 and W6: full disks, older and newer libraries, folders that cannot be written to, no home."""

import os
import shutil
import sqlite3
import stat
import tempfile
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from task2vec.errors import LibraryError, ResourceError
from task2vec.library import Library
from task2vec.library import database as module
from task2vec.library.database import SCHEMA
from tests.failures import refuse
from tests.hostile import workers as jobs
from tests.hostile.workers import Worker
from tests.library.material import make, read_bytes

forked = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are made by fork")
NOBODY = 65534


# --- W3: no room -----------------------------------------------------------------------------------------------------


@forked
@pytest.mark.parametrize(("limit", "filters"), [(700_000, 21_008), (400_000, 50)])
def test_a_file_that_cannot_grow(tmp_path, limit, filters):
    worker = Worker(jobs.fill, folder=tmp_path / "library", limit=limit, filters=filters)
    assert worker.wait() == 0, worker.said
    assert worker.said == [("full", 5, "sqlite"), ("after", 1, 0)]


@pytest.mark.parametrize("statement", ["INSERT INTO embeddings", "INSERT INTO contents", "INSERT INTO rows", "COMMIT"])
@pytest.mark.parametrize("name", ["SQLITE_FULL", "SQLITE_IOERR_WRITE"])
def test_a_disk_that_fails_at_any_moment_of_an_add(filled, monkeypatch, statement, name):
    class Failing(sqlite3.Connection):
        def execute(self, text, *rest):
            if text.startswith(statement):
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorname = name
                raise error
            return super().execute(text, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Failing))
        refuse(ResourceError, "disk I/O error", filled.add, make("task 6", 6))
    # Nothing of the seventh task is there, the six are whole, and it can be added now.
    assert len(filled) == filled.stats()["embeddings"] == 6
    assert filled.verify().is_sound and len(filled.nearest("task 1", 5)) == 5
    filled.add(make("task 6", 6))
    assert filled.verify().is_sound and len(filled) == 7


# --- W5: other schemas -----------------------------------------------------------------------------------------------


@pytest.fixture
def old(filled):
    """A closed library."""
    filled.close()
    return filled.folder


def change_file(folder, statement):
    with closing(sqlite3.connect(folder / "library.sqlite", isolation_level=None)) as connection:
        connection.execute(statement)


def refuse_and_leave_alone(folder, words):
    """Opening fails with these words, for reading and for writing, and no byte changes."""
    before = read_bytes(folder)
    for read_only in (True, None):
        assert refuse(LibraryError, words, Library.open, folder, read_only=read_only).exit_code == 4
        assert {name: content for name, content in read_bytes(folder).items() if content} == before


@pytest.mark.parametrize("version", [SCHEMA + 1, 1, 0, -(1 << 31)])
def test_a_newer_older_or_unknown_schema_is_refused_and_left_alone(old, version):
    change_file(old, f"PRAGMA user_version = {version}")
    words = f"has schema {version}, but this version reads schema {SCHEMA}"
    refuse_and_leave_alone(old, "newer task2vec" if version > SCHEMA else words)
    assert version > SCHEMA or Library.repair(old).embeddings == 6


def test_what_is_no_library_is_refused_and_left_alone(tmp_path):
    for content in (b"a text, and no database" * 50, b"\x80\x04\x95pickle", b"PK\x03\x04" + bytes(90)):
        (tmp_path / "library.sqlite").write_bytes(content)
        refuse_and_leave_alone(tmp_path, "damaged")
    (tmp_path / "library.sqlite").unlink()
    change_file(tmp_path, "CREATE TABLE tasks(id)")
    refuse_and_leave_alone(tmp_path, "another program")


# --- W6: nowhere to write --------------------------------------------------------------------------------------------


@pytest.fixture
def public():
    """A folder that other users can reach, unlike those of pytest."""
    folder = Path(tempfile.mkdtemp(prefix="task2vec-test-"))
    folder.chmod(0o755)
    yield folder
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
    shutil.rmtree(folder)


@forked
@pytest.mark.parametrize("state", ["closed", "left with a WAL", "left without its shared memory"])
def test_a_folder_that_cannot_be_written_to(public, state):
    folder = public / "library"
    if state == "closed":
        with Library.open(folder) as library:
            library.add(*(make(f"task {seed}", seed) for seed in range(5)))
    else:
        worker = Worker(jobs.add, folder=folder, first=0, count=1000)
        worker.hear(2 * 5)
        worker.kill()
        assert (folder / "library.sqlite-wal").stat().st_size
    if state == "left without its shared memory":
        (folder / "library.sqlite-shm").unlink()
    for path in (*folder.rglob("*"), folder):  # only root may write now
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o222)
    before = read_bytes(folder)
    visitor = Worker(jobs.visit, folder=folder, owner=NOBODY)
    code = visitor.wait()
    assert read_bytes(folder) == before
    if state == "left without its shared memory":  # nothing acknowledged is silently left out
        assert code == 1 and "not merged" in visitor.said[-1][1]
        return
    assert code == 0, visitor.said
    (_, is_read_only, names, *rest), *refused = visitor.said
    assert is_read_only and names >= 5 and rest == [3, "task 0"] and refused == [("refused", 5)] * 2


def test_a_disk_that_nobody_can_write_to(old, monkeypatch):
    """As on a CD: SQLite cannot create its companion files, so the file is opened as immutable."""
    connect = module.connect

    def connect_immutably(path, mode):
        if mode == "mode=ro":
            raise sqlite3.OperationalError("unable to open database file")
        return connect(path, mode)

    monkeypatch.setattr(module, "connect", connect_immutably)
    before = read_bytes(old)
    with Library.open(old, read_only=True) as library:
        assert library._database._mode == "immutable=1"
        assert len(library) == 6 and library.verify().is_sound and len(library.nearest("task 1")) == 5
        refuse(ResourceError, "reading only", library.add, make("task 6", 6))
        refuse(ResourceError, "reading only", library.tag, "task 1", "x")
        with pytest.raises(ResourceError, match="changed while it was read"), library._database.read():
            os.utime(old / "library.sqlite", ns=(time.time_ns(), time.time_ns()))  # others write to it
        assert len(library) == 6
    assert read_bytes(old) == before
    refuse(LibraryError, "no library", Library.open, old / "none", read_only=True)
    assert not (old / "none").exists()


def test_a_file_where_the_folder_should_be(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("mine")
    monkeypatch.setenv("TASK2VEC_LIBRARY", str(file))
    assert refuse(ResourceError, "cannot be created", Library.open).exit_code == 5 and file.read_text() == "mine"
