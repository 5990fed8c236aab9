"""W3, W5 and W6: full disks, older and newer libraries, folders that cannot be written to, no home."""

import errno
import os
import shutil
import sqlite3
import stat
import tempfile
import time
from pathlib import Path

import pytest

from task2vec.errors import LibraryError, ResourceError
from task2vec.library import Library, connecting, schema, viewing
from tests.library.making import make, read_bytes

forked = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are made by fork")
NOBODY = 65534


# --- W3: no room -----------------------------------------------------------------------------------------------------


@forked
@pytest.mark.parametrize(
    ("limit", "filters", "file"), [(100_000, 21_008, "safetensors"), (70_000, 50, "sqlite"), (700_000, 25_000, "f32")]
)
def test_a_file_that_cannot_grow(forge, tmp_path, limit, filters, file):
    forge.said.clear()
    worker = forge.make("fill", folder=str(tmp_path / "library"), limit=limit, filters=filters)
    assert forge.wait(worker) == 0, forge.tell_errors()
    full, after = forge.said
    assert full == ["full", "5", file]
    assert after == ["after", "1", "0", "0"]


def check_then_go_on(library):
    """Nothing of the seventh task is there, the six are whole, and it can be added now."""
    assert len(library) == 6 and library.stats()["embeddings"] == 6
    assert library.verify().is_sound
    assert len(library.nearest("task 1", 5)) == 5
    library.add(make("task 6", 6))
    library.compact()
    found = library.verify()
    assert found.is_sound and found.entries == 7 and found.orphans == 0


@pytest.fixture
def six(tmp_path):
    with Library.open(tmp_path / "library") as library:
        library.add(*(make(f"task {seed}", seed) for seed in range(6)))
        yield library


def test_an_index_that_is_full(six):
    with six._database.borrowing() as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(ResourceError, match="full") as caught:
        for seed in range(100, 200):
            six.add(make("much " * 200, seed))
    assert caught.value.exit_code == 5
    with six._database.borrowing() as connection:
        connection.execute("PRAGMA max_page_count = 1000000")
    for task in [task for task in six.tasks() if task.name.startswith("much")]:
        six.remove(task.fingerprint)
    check_then_go_on(six)


@pytest.mark.parametrize("call", ["fsync", "replace", "open"])
def test_a_disk_that_fails_while_a_blob_is_written(six, monkeypatch, call):
    def fail(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        where = "task2vec.storage." + ("open" if call == "open" else f"os.{call}")
        patch.setattr(where, fail, raising=call != "open")
        with pytest.raises(ResourceError, match="No space left") as caught:
            six.add(make("task 6", 6))
    assert caught.value.exit_code == 5
    assert not list(six.folder.rglob("*.partial"))
    check_then_go_on(six)


def test_a_disk_that_fails_at_the_commit(six, monkeypatch):
    """All is written but the commit: the blob is an orphan, and nothing is to be seen of it."""

    class Failing(connecting.Connection):
        def execute(self, statement, *rest):
            if statement == "COMMIT":
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorname = "SQLITE_IOERR_WRITE"
                raise error
            return super().execute(statement, *rest)

    six._database._drop_idle()
    with monkeypatch.context() as patch:
        patch.setattr(connecting, "Connection", Failing)
        with pytest.raises(ResourceError):
            six.add(make("task 6", 6))
    assert six.verify().orphans == 1
    six._database._drop_idle()
    check_then_go_on(six)


# --- W5: other schemas -----------------------------------------------------------------------------------------------


def set_version(folder, number):
    connection = sqlite3.connect(folder / "index.sqlite")
    connection.execute(f"PRAGMA user_version = {number}")
    connection.commit()
    connection.close()


@pytest.fixture
def old(six):
    """A closed library."""
    six.close()
    return six.folder


@pytest.mark.parametrize("read_only", [True, None])
def test_a_newer_library_is_refused_and_left_alone(old, read_only):
    set_version(old, schema.SCHEMA + 1)
    before = read_bytes(old)
    with pytest.raises(LibraryError, match="newer task2vec") as caught:
        Library.open(old, read_only=read_only)
    assert caught.value.exit_code == 4
    assert {name: content for name, content in read_bytes(old).items() if content} == before


@pytest.mark.parametrize("version", [0, -1, -(1 << 31)])
def test_a_schema_that_there_never_was(old, version):
    set_version(old, version)
    before = read_bytes(old)
    with pytest.raises(LibraryError, match="no way leads to"):
        Library.open(old)
    assert read_bytes(old) == before
    assert Library.repair(old).embeddings == 6


def add_a_column(connection):
    connection.execute("ALTER TABLE tasks ADD COLUMN colour TEXT")


def test_an_older_library_is_brought_up_to_date_after_a_backup(old, monkeypatch):
    with Library.open(old) as library:
        names = [task.name for task in library.tasks()]
    monkeypatch.setattr(schema, "SCHEMA", 3)
    monkeypatch.setattr(schema, "MIGRATIONS", {1: add_a_column, 2: lambda connection: None})
    with Library.open(old) as library:
        assert [task.name for task in library.tasks()] == names
        with library._database.reading() as connection:
            assert connection.execute("SELECT count(colour) FROM tasks").fetchone() == (0,)
            assert connection.execute("PRAGMA user_version").fetchone() == (3,)
    (backup,) = (old / "backups").iterdir()
    assert "schema-1" in backup.name
    monkeypatch.undo()
    shutil.copy(backup, old / "index.sqlite")
    with Library.open(old) as library:
        assert [task.name for task in library.tasks()] == names
        assert library.verify().is_sound


def test_a_migration_that_fails_leaves_the_old_library(old, monkeypatch):
    def fail(connection):
        add_a_column(connection)
        connection.execute("DELETE FROM embeddings")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(schema, "SCHEMA", 2)
        patch.setattr(schema, "MIGRATIONS", {1: fail})
        with pytest.raises(KeyboardInterrupt):
            Library.open(old)
    with Library.open(old) as library:
        assert library.verify().is_sound and library.stats()["embeddings"] == 6


def test_a_library_that_is_older_and_read_only(old, monkeypatch):
    monkeypatch.setattr(schema, "SCHEMA", 2)
    monkeypatch.setattr(schema, "MIGRATIONS", {1: add_a_column})
    with pytest.raises(LibraryError, match="older schema"):
        Library.open(old, read_only=True)
    assert not (old / "backups").exists()


@forked
def test_eight_processes_bring_one_library_up_to_date(forge, old, tmp_path):
    connection = sqlite3.connect(old / "index.sqlite")
    connection.execute("ALTER TABLE runs RENAME TO old_runs")
    connection.close()
    start = tmp_path / "start"
    workers = [forge.make("migrate", folder=str(old), start=str(start)) for _ in range(8)]
    forge.said.clear()
    start.touch()
    assert [forge.wait(worker) for worker in workers] == [0] * 8, forge.tell_errors()
    assert forge.said == [["tasks", "6"]] * 8
    (backup,) = (old / "backups").iterdir()
    connection = sqlite3.connect(backup)
    assert connection.execute("SELECT count(*) FROM old_runs").fetchone() == (0,)  # as it was before
    connection.close()


def test_a_database_of_something_else(tmp_path):
    connection = sqlite3.connect(tmp_path / "index.sqlite")
    connection.execute("CREATE TABLE tasks(id)")
    connection.commit()
    connection.close()
    before = read_bytes(tmp_path)
    for read_only in (True, None):
        with pytest.raises(LibraryError, match="something else"):
            Library.open(tmp_path, read_only=read_only)
    assert read_bytes(tmp_path) == before


@pytest.mark.parametrize("content", [b"a text, and no database" * 50, b"\x80\x04\x95pickle", b"PK\x03\x04" + bytes(90)])
@pytest.mark.parametrize("read_only", [True, None])
def test_a_file_that_is_no_database(tmp_path, content, read_only):
    (tmp_path / "index.sqlite").write_bytes(content)
    with pytest.raises(LibraryError, match="damaged") as caught:
        Library.open(tmp_path, read_only=read_only)
    assert caught.value.exit_code == 4
    assert read_bytes(tmp_path) == {"index.sqlite": content}


@pytest.mark.parametrize(
    "what", ["VIEW extra AS SELECT 1", "TRIGGER extra AFTER INSERT ON tasks BEGIN DELETE FROM tasks; END"]
)
def test_an_index_that_would_do_things_by_itself(old, what):
    connection = sqlite3.connect(old / "index.sqlite")
    connection.execute(f"CREATE {what}")
    connection.close()
    with pytest.raises(LibraryError, match="extra"):
        Library.open(old)


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


def forbid(folder):
    """Takes the right to write away from everybody but root."""
    for path in (*folder.rglob("*"), folder):
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o222)


def add_and_die(forge, folder, tasks):
    worker = forge.make("add", folder=str(folder), first=0, count=1000)
    forge.said.clear()
    forge.hear(2 * tasks)
    forge.kill(worker)


@forked
@pytest.mark.parametrize("is_left", [False, True], ids=["closed", "left with a journal"])
def test_a_folder_that_cannot_be_written_to(forge, public, is_left):
    folder = public / "library"
    if is_left:
        add_and_die(forge, folder, 5)
        assert (folder / "index.sqlite-wal").stat().st_size
        for name in ("index.sqlite-shm",):
            (folder / name).unlink()
    else:
        with Library.open(folder) as library:
            library.add(*(make(f"task {seed}", seed) for seed in range(5)))
    forbid(folder)
    before = read_bytes(folder)
    forge.said.clear()
    assert forge.wait(forge.make("visit", folder=str(folder), owner=NOBODY)) == 0, forge.tell_errors()
    read, *refused = forge.said
    assert read[:2] == ["read", "True"] and int(read[2]) >= 5 and read[3:] == ["3", "task_0"]
    assert refused == [["refused", "5"]] * 3
    assert read_bytes(folder) == before
    assert not list(Path(tempfile.gettempdir()).glob("task2vec-*/index.sqlite"))  # no copy was left


def test_a_disk_that_nobody_can_write_to(old, monkeypatch):
    """As on a CD: SQLite cannot make its companions, and is told that nothing will change."""
    monkeypatch.setattr(viewing, "_can_read", lambda address: False)
    monkeypatch.setattr(viewing, "_is_disk_read_only", lambda folder: True)
    before = read_bytes(old)
    with Library.open(old, read_only=True) as library:
        assert library._database._address.endswith("immutable=1")
        assert len(library) == 6 and library.verify().is_sound and len(library.nearest("task 1")) == 5
    assert read_bytes(old) == before


def test_a_copy_is_of_one_moment(old, monkeypatch):
    """While it is made somebody writes; so it is made again, and given up if that never ends."""
    monkeypatch.setattr(viewing, "_can_read", lambda address: False)
    copy, calls = shutil.copyfile, []

    def disturb(source, target):
        calls.append(source)
        copy(source, target)
        if len(calls) < limit:
            os.utime(source, ns=(time.time_ns(), time.time_ns() + len(calls)))

    monkeypatch.setattr(viewing.shutil, "copyfile", disturb)
    limit = 3
    with Library.open(old, read_only=True) as library:
        assert len(calls) == 3 and len(library) == 6
        folder = Path(library._database._address.removeprefix("file:").split("?")[0]).parent
        assert folder.exists()
    assert not folder.exists()
    limit = 10**6
    with pytest.raises(ResourceError, match="changed while it was copied"):
        Library.open(old, read_only=True)


def test_a_library_for_reading_that_is_not_there(tmp_path):
    with pytest.raises(LibraryError, match="no library"):
        Library.open(tmp_path / "none", read_only=True)
    assert not (tmp_path / "none").exists()


def test_read_only_changes_nothing(old):
    before = read_bytes(old)
    with Library.open(old, read_only=True) as library:
        library.nearest("task 1"), library.verify()
        with pytest.raises(ResourceError, match="reading only"):
            library.add(make("task 6", 6))
        for change in (library.compact, library.refit_search, lambda: library.tag("task 1", "x")):
            with pytest.raises(ResourceError):
                change()
    assert {name: content for name, content in read_bytes(old).items() if content} == before
    with Library.open(old) as library:
        assert len(library) == 6


def test_a_file_where_the_folder_should_be(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("mine")
    monkeypatch.setenv("TASK2VEC_LIBRARY", str(file))
    with pytest.raises(ResourceError, match="cannot be made") as caught:
        Library.open()
    assert caught.value.exit_code == 5 and file.read_text() == "mine"


@pytest.mark.parametrize("name", ["blobs", "search"])
def test_a_file_where_a_folder_of_the_library_should_be(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with Library.open(tmp_path) as library:
        with pytest.raises(ResourceError):
            library.add(make("task", 1))
        assert len(library) == 0 and library.verify().entries == 0
    assert (tmp_path / name).read_text() == "mine"
