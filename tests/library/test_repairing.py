"""A damaged index is made anew: from the blobs, and from what can still be read of it."""

import os
import random
import shutil
import sqlite3
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest

from task2vec.errors import LibraryError, ResourceError, Task2VecError
from task2vec.library import Expert, Library, MeasuredError, repairing
from tests.library.making import find_blob, fingerprint_of, flip, make


@pytest.fixture
def folder(filled):
    """A closed library with something of every kind."""
    filled.add(
        Expert("e", "timm", "resnet34", recipe={"epochs": 3}, cost=2.5), MeasuredError(fingerprint_of(3), "e", 0.2, "p")
    )
    filled.tag("task 2", "rare")
    filled.rename("task 4", "other name")
    with filled.record("embed", {"folder": "x"}):
        pass
    filled.close()
    return filled.folder


NAMES = ["other name", "task 0", "task 1", "task 2", "task 3", "task 5"]


def tell(library):
    """What a library says, without what a repair may change: numbers of rows."""
    tasks = [(task.name, task.fingerprint, task.tags, task.added, task.source) for task in library.tasks()]
    blobs = [[(one.key, one.sha256, one.added) for one in task.embeddings] for task in library.tasks()]
    return tasks, blobs, library.experts(), library.errors(), [run.story for run in library.runs()]


def test_a_repair_of_a_sound_library_changes_nothing_that_is_told(folder):
    with Library.open(folder) as library:
        before = tell(library)
    repaired = Library.repair(folder)
    assert (repaired.embeddings, repaired.lost) == (6, ())
    with Library.open(folder) as library:
        assert tell(library) == before
        assert library.verify().is_sound and library.verify().orphans == 0
        assert [one.task.name for one in library.nearest("task 0", 5)] and np.array_equal(
            library.get("task 1").fisher, make("task 1", 1).fisher
        )


def test_an_index_that_is_gone_is_not_replaced_by_an_empty_one(folder):
    """An empty index would make every blob an orphan, to be swept."""
    (folder / "index.sqlite").unlink()
    for _ in range(2):
        with pytest.raises(LibraryError, match="library repair"):
            Library.open(folder)
    assert len(list(folder.glob("blobs/*/*"))) == 6
    (folder / "index.sqlite").write_bytes(b"")
    with pytest.raises(LibraryError, match="library repair"):
        Library.open(folder)
    assert Library.repair(folder).embeddings == 6
    with Library.open(folder) as library:
        assert len(library) == 6 and library.verify().is_sound


@pytest.mark.parametrize("content", [b"", b"not a database, but a text " * 40, b"SQLite format 3\0" + bytes(100)])
def test_an_index_that_is_something_else(folder, content):
    (folder / "index.sqlite").write_bytes(content)
    repaired = Library.repair(folder)
    assert repaired.embeddings == 6 and repaired.lost
    assert (repaired.kept / "index.sqlite").is_file()
    with Library.open(folder) as library:
        assert [task.name for task in library.tasks()] == [f"task {seed}" for seed in range(6)]
        assert library.verify().is_sound


def test_what_lies_in_the_journal_alone_comes_back(folder):
    script = (
        "import os, sys\nfrom task2vec.library import Library\nfrom tests.library.making import make\n"
        "library = Library.open(sys.argv[1])\nlibrary.add(make('late', 9), tags=['new'])\nos._exit(0)"
    )
    subprocess.run([sys.executable, "-c", script, str(folder)], check=True, env=_env())
    assert (folder / "index.sqlite-wal").stat().st_size
    Library.repair(folder)
    with Library.open(folder) as library:
        assert library.task("late").tags == ("new",) and len(library) == 7


def test_a_repair_that_was_killed_is_done_again(folder, monkeypatch):
    with Library.open(folder) as library:
        before = tell(library)

    def stop(*_):
        raise KeyboardInterrupt

    for name in ("_refill", "_swap"):
        with monkeypatch.context() as patch:
            patch.setattr(repairing, name, stop)
            with pytest.raises(KeyboardInterrupt):
                Library.repair(folder)
        with pytest.raises(LibraryError, match="not finished"):
            Library.open(folder)
    # The worst moment: the old index is gone, and the new one is not there yet.
    with monkeypatch.context() as patch:
        patch.setattr(repairing, "sync_folder", lambda folder: None)
        replace = os.replace
        patch.setattr(
            repairing.os, "replace", lambda old, new: stop() if new == folder / "index.sqlite" else replace(old, new)
        )
        with pytest.raises(KeyboardInterrupt):
            Library.repair(folder)
    (folder / "index.sqlite").unlink()
    assert Library.repair(folder).embeddings == 6
    with Library.open(folder) as library:
        assert tell(library) == before
        assert library.verify().is_sound


def test_a_damaged_blob_is_named_and_the_rest_comes_back(folder):
    with Library.open(folder) as library:
        flip(find_blob(library, "task 1"), 700)
    repaired = Library.repair(folder)
    assert repaired.embeddings == 5 and len(repaired.lost) == 1 and "SHA-256" in repaired.lost[0]
    with Library.open(folder) as library:
        assert [task.name for task in library.tasks()] == NAMES
        assert not library.task("task 1").embeddings
        library.add(make("task 1", 1))
        assert library.verify().is_sound


def test_a_full_disk_ends_the_repair_and_loses_nothing(folder, monkeypatch):
    with Library.open(folder) as library:
        before = tell(library)
    with monkeypatch.context() as patch:
        patch.setattr("task2vec.library.keeping.Keeper.keep_embedding", _no_room)
        with pytest.raises(ResourceError):
            Library.repair(folder)
    assert Library.repair(folder).lost == ()
    with Library.open(folder) as library:
        assert tell(library) == before


def _no_room(*_, **__):
    raise ResourceError("no room. It matters. Make room.")


def test_nothing_to_repair(tmp_path):
    with pytest.raises(LibraryError, match="nothing to repair"):
        Library.repair(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_view_in_the_place_of_a_table_is_not_read(folder):
    with sqlite3.connect(folder / "index.sqlite") as connection:
        connection.execute("DROP TABLE runs")
        connection.execute(
            "CREATE VIEW runs AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT i FROM n"
        )
    connection.close()
    with pytest.raises(LibraryError, match="view"):
        Library.open(folder)
    repaired = Library.repair(folder)
    assert repaired.embeddings == 6 and any("runs" in text for text in repaired.lost)


@pytest.mark.parametrize("seed", range(6))
def test_random_damage_of_the_index(folder, tmp_path, seed):
    """Whatever fifty bytes are flipped, a repair brings all embeddings back."""
    shake(folder, tmp_path / "copy", random.Random(seed), flips=50 if seed % 2 else 3)


@pytest.mark.long
def test_much_random_damage_of_the_index(folder, tmp_path):
    rng = random.Random(0)
    for _ in range(300):
        shake(folder, tmp_path / "copy", rng, flips=rng.choice((1, 2, 5, 50, 500)))


def shake(folder, copy, rng, *, flips):
    """Damages a copy of a library, asks everything of it, and repairs it."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    index = copy / "index.sqlite"
    content = bytearray(index.read_bytes())
    for _ in range(flips):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    if rng.random() < 0.1:
        del content[rng.randrange(len(content)) :]
    index.write_bytes(content)
    ask_everything(copy)
    assert Library.repair(copy).embeddings >= 6  # perhaps one that was added to the damaged library
    with Library.open(copy) as library:
        assert library.verify().is_sound
        assert {task.fingerprint for task in library.tasks()} >= {fingerprint_of(seed) for seed in range(6)}


def ask_everything(folder):
    """Every question is answered, or refused in our words; no blob is lost."""
    try:
        library = Library.open(folder)
    except LibraryError:
        return
    with library:
        library.verify()
        questions = [library.tasks, library.experts, library.errors, library.runs, library.stats]
        questions += [lambda: library.get("task 0"), lambda: library.nearest("task 1"), lambda: library.task("task 2")]
        questions += [lambda: library.nearest(make("new", 77)), lambda: library.add(make("new", 77)), library.compact]
        for ask in questions:
            with suppress(Task2VecError):
                ask()
    assert len(list(folder.glob("blobs/*/*"))) >= 6


def _env():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "OMP_NUM_THREADS": "1"}


def test_a_newer_library_is_not_repaired_into_an_older_one(filled):
    with filled._database.writing() as connection:
        connection.execute("PRAGMA user_version = 99")
    filled.close()
    before = (filled.folder / "index.sqlite").read_bytes()
    with pytest.raises(LibraryError, match="pip install -U"):
        Library.repair(filled.folder)
    assert (filled.folder / "index.sqlite").read_bytes() == before and not (filled.folder / "backups").exists()
