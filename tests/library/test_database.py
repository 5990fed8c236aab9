"""Connections: one per block, one snapshot per reader, threads, forks, a file that is replaced meanwhile."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from task2vec.errors import LibraryError, ResourceError
from task2vec.library import Library, search
from task2vec.library import database as module
from tests.command import run_python
from tests.failures import refuse
from tests.library.material import find_truth, make


def test_settings_snapshots_and_rollback(filled):
    with filled._database.read() as connection:
        settings = ("journal_mode", "synchronous", "foreign_keys", "trusted_schema", "user_version")
        found = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in settings]
    assert found == ["wal", 2, 1, 0, 2]  # 2 is FULL
    count = "SELECT count(*) FROM tasks"
    with filled._database.read() as connection:
        before = connection.execute(count).fetchone()
        filled.add(make("new", 50))
        assert connection.execute(count).fetchone() == before == (6,)
    with pytest.raises(KeyboardInterrupt), filled._database.write() as connection:
        connection.execute("DELETE FROM tasks")
        raise KeyboardInterrupt
    assert len(filled) == 7


def test_a_closed_library_says_so(filled):
    filled.close()
    for ask, *given in ((filled.tasks,), (filled.add, make("x", 9)), (filled.get, "task 1"), (filled.verify,)):
        refuse(LibraryError, "closed", ask, *given)
    assert "closed" in repr(filled)
    filled.close()


def test_eight_threads_on_one_library(library, monkeypatch):
    """They add, remove and search, with sketches from the tenth task on."""
    monkeypatch.setattr(search, "SKETCH_FROM", 10)
    monkeypatch.setattr(search, "CANDIDATES", 10)
    start = threading.Barrier(8)

    def work(number):
        start.wait()
        for turn in range(5):
            seed = 100 * number + turn
            library.add(make(f"task {seed}", seed), make(f"passing {seed}", 50 + seed), tags=[f"thread {number}"])
            assert np.array_equal(library.get(f"task {seed}").fisher, make("", seed).fisher)
            found = [one.distance for one in library.nearest(make("query", 1000), 3)]
            assert len(found) >= min(turn, 3) and found == sorted(found)
            library.remove(f"passing {seed}")
            assert len(library.tasks(tag=f"thread {number}")) == turn + 1
        return library.verify().is_sound

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    assert len(library) == 40 and library.verify().is_sound
    query = make("query", 1000)
    found = [(one.task.name, one.distance) for one in library.nearest(query, 5, exact=True)]
    assert found == find_truth(library, query, 5)


FORK = """
import os, sys, threading
from task2vec.library import Library, search
from tests.library.material import make

library = Library.open(sys.argv[1])
library.add(make("a", 1))
library.nearest("a")
child = os.fork()
if child == 0:
    library.add(make("b", 2))
    assert [one.task.name for one in library.nearest("b")] == ["a"] and library.verify().is_sound
    library.close()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert len(library) == 2 and [one.task.name for one in library.nearest("a")] == ["b"]
library.add(make("c", 3))
child = os.fork()
if child == 0:
    sys.exit(len(library.tasks()))  # an end like any other, which closes what is left
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
library.add(make("d", 4))
library.close()
with Library.open(sys.argv[1]) as again:
    assert len(again) == 4 and again.verify().is_sound
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_fork_can_use_the_library_of_its_parent(tmp_path):
    run_python(FORK, tmp_path / "library")


def test_what_is_written_goes_to_the_file_that_a_repair_left(filled, monkeypatch):
    """A repair puts a new file in the place of the old one; to write to the old one would be to lose it."""
    assert Library.repair(filled.folder).embeddings == 6
    filled.add(make("late", 50))
    connect = module.connect

    def connect_then_replace(path, mode):
        connection = connect(path, mode)
        monkeypatch.undo()
        Library.repair(filled.folder)
        return connection

    monkeypatch.setattr(module, "connect", connect_then_replace)
    refuse(ResourceError, "was replaced", filled.add, make("later", 51))
    filled.add(make("later", 51))
    filled.close()
    with Library.open(filled.folder) as library:
        assert len(library) == 8 and library.verify().is_sound
        (filled.folder / "library.sqlite").unlink()  # a file that is taken away is not made anew
        refuse(ResourceError, "cannot be read or written", library.add, make("late", 52))
    assert not (filled.folder / "library.sqlite").exists()


def test_waiting_too_long_is_an_error(filled, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.1)
    other = Library.open(filled.folder)
    with filled._database.write():
        assert refuse(ResourceError, "locked by another process", other.add, make("late", 50)).exit_code == 5
        assert len(other.tasks()) == 6 and len(other.nearest("task 1")) == 5  # readers do not wait
        other.close()
        Library.open(filled.folder).close()  # nor does opening
    filled.add(make("late", 50))
