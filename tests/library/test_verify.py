"""W4: damage is found and named, the rest still works, adding again or a repair fixes it."""

import hashlib
import os
import random
import shutil
import sqlite3
from contextlib import suppress
from unittest.mock import DEFAULT, Mock

import numpy as np
import pytest

from task2vec.errors import LibraryError, ResourceError, Task2VecError
from task2vec.library import Expert, Library, verify
from task2vec.library.database import PAGE
from tests.command import run_python
from tests.failures import fail, refuse
from tests.library.material import change, describe, make, read_bytes, read_content, spoil


def name_problems(library, **options):
    """The entries that something is wrong with."""
    return sorted({problem.entry.split(" (")[0] for problem in library.verify(**options).problems})


def cut(library, name):
    number, content = read_content(library, name)
    change(library, "UPDATE contents SET content = ? WHERE embedding = ?", content[:-1], number)


def drop(library, name):
    change(library, "DELETE FROM contents WHERE embedding = ?", read_content(library, name)[0])


@pytest.mark.parametrize("damage", [spoil, cut, drop])
def test_a_damaged_embedding(filled, damage):
    damage(filled, "task 2")
    assert name_problems(filled) == ["task 2"]
    assert name_problems(filled, quick=True) == (["task 2"] if damage in (cut, drop) else [])
    assert refuse(LibraryError, "task 2", filled.get, "task 2").exit_code == 4
    for seed in (0, 1, 3, 4, 5):
        assert np.array_equal(filled.get(f"task {seed}").fisher, make("", seed).fisher)
    assert len(filled.nearest("task 1", 10)) == 5  # its row is good
    (added,) = filled.add(make("task 2", 2))
    assert added.is_new and filled.verify().is_sound and filled.verify(quick=True).is_sound
    assert filled.task("task 2").tags == ("small",)
    assert np.array_equal(filled.get("task 2").fisher, make("", 2).fisher)
    damage(filled, "task 2")
    change(filled, "DELETE FROM rows")  # nothing is left to compare that one by; the others are found
    assert {one.task.name for one in filled.nearest("task 0", 10)} == {f"task {seed}" for seed in (1, 3, 4, 5)}


def test_contents_that_have_changed_places(filled):
    (one, first), (two, second) = read_content(filled, "task 1"), read_content(filled, "task 2")
    for number, content in ((one, second), (two, first)):
        change(filled, "UPDATE contents SET content = ? WHERE embedding = ?", content, number)
    assert name_problems(filled) == ["task 1", "task 2"]
    change(filled, "UPDATE embeddings SET sha256 = (SELECT sha256 FROM embeddings WHERE id = 1) WHERE id = 2")
    change(filled, "UPDATE contents SET content = ? WHERE embedding = 2", read_content(filled, "task 0")[1])
    assert any("something else" in problem.what for problem in filled.verify().problems)
    assert Library.repair(filled.folder).embeddings == 5  # the numbers of task 1 are gone


@pytest.mark.parametrize("damage", ["flip", "UPDATE rows SET vector = x'00'", "DELETE FROM rows"])
def test_damaged_rows(filled, damage):
    """A row that cannot be used is read from the embedding; one that differs is named, and a repair writes it again."""
    near = [(one.task.name, pytest.approx(one.distance, abs=1e-6)) for one in filled.nearest("task 0")]
    if damage == "flip":
        spoil(filled, "task 3", 3, "rows", "vector")
    else:
        change(filled, f"{damage} WHERE embedding = 4")
    assert name_problems(filled) == ["task 3"]
    found = [(one.task.name, one.distance) for one in filled.nearest("task 0")]
    assert len(found) == 5 and (damage == "flip" or found == near)
    assert Library.repair(filled.folder).lost == ()
    assert filled.verify().is_sound
    assert [(one.task.name, one.distance) for one in filled.nearest("task 0")] == near


def test_a_wrong_sketch(filled):
    change(filled, "UPDATE sketches SET sketch = (SELECT sketch FROM sketches WHERE embedding = 1) WHERE embedding = 2")
    assert name_problems(filled) == ["task 1"]
    Library.repair(filled.folder)
    assert filled.verify().is_sound


def test_a_page_of_zeros_is_found_whichever_it_is(filled, tmp_path):
    """Every page but the free ones; embeddings whose own pages and table are whole come back."""
    filled.add(make("large", 7, filters=2000))
    filled.close()
    sound, copy = (filled.folder / "library.sqlite").read_bytes(), tmp_path / "copy"
    copy.mkdir()
    kept = []
    for page in range(len(sound) // PAGE):
        (copy / "library.sqlite").write_bytes(sound[: PAGE * page] + bytes(PAGE) + sound[PAGE * (page + 1) :])
        try:
            with Library.open(copy) as library:
                assert not library.verify().is_sound, page
        except LibraryError as error:
            assert error.exit_code == 4 and "damaged" in str(error)
        kept.append(Library.repair(copy).embeddings)
        with Library.open(copy) as library:
            assert library.verify().is_sound, page
        shutil.rmtree(copy / "backups")
    assert sum(count >= 6 for count in kept) > len(kept) - 5  # the first page, and the roots of the contents


# --- experts ---------------------------------------------------------------------------------------------------------


def test_files_of_experts_that_are_missing_or_changed_are_named(filled, tmp_path):
    for name in ("whole", "missing", "changed", "endless"):
        (tmp_path / name).write_bytes(name.encode())
        sha256 = hashlib.sha256(name.encode()).hexdigest()
        filled.add(Expert(name, "file", str(tmp_path / name), sha256=sha256))
    filled.add(Expert("a module", "file", "module Tiny"), Expert("resnet34", "timm", "resnet34"))
    assert not filled.verify().experts
    (tmp_path / "missing").unlink()
    (tmp_path / "changed").write_bytes(b"something else")
    (tmp_path / "endless").unlink()
    (tmp_path / "endless").symlink_to("/dev/zero")
    found = filled.verify()
    assert found.is_sound  # the library itself is whole
    problems = {problem.entry: problem.what for problem in found.experts}
    assert list(problems) == ["changed", "endless", "missing"]
    assert "SHA-256" in problems["changed"] and "no file" in problems["missing"] and "no file" in problems["endless"]


# --- repair ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(full):
    """A closed library with something of every kind."""
    full.close()
    return full.folder


def test_a_file_that_is_something_else(tmp_path):
    for content in (b"", b"not a database, but a text " * 40, b"SQLite format 3\0" + bytes(100)):
        (tmp_path / "library.sqlite").write_bytes(content)
        repaired = Library.repair(tmp_path)
        assert repaired.embeddings == 0 and repaired.lost
        assert (repaired.kept / "library.sqlite").read_bytes() == content
        with Library.open(tmp_path) as library:
            assert len(library) == 0 and library.verify().is_sound


def test_what_is_in_the_wal_alone_comes_back(folder):
    script = (
        "import os, sys\nfrom task2vec.library import Library\nfrom tests.library.material import make\n"
        "library = Library.open(sys.argv[1])\nlibrary.add(make('late', 9), tags=['new'])\nos._exit(0)"
    )
    run_python(script, folder)
    assert (folder / "library.sqlite-wal").stat().st_size
    Library.repair(folder)
    with Library.open(folder) as library:
        assert library.task("late").tags == ("new",) and len(library) == 7


@pytest.mark.parametrize("call", [0, 1, 2, 3])
def test_a_repair_loses_nothing_and_one_that_was_killed_is_done_again(folder, monkeypatch, call):
    """Never; before the new file is there; with the old one in its place; with neither under the name."""
    with Library.open(folder) as library:
        before, runs = describe(library), library.runs()
    if call:
        stop = Mock(wraps=os.replace, side_effect=[DEFAULT] * (call - 1) + [KeyboardInterrupt])
        with monkeypatch.context() as patch:
            patch.setattr(verify.os, "replace", stop)
            refuse(KeyboardInterrupt, None, Library.repair, folder)
    if call == 3:
        refuse(LibraryError, "interrupted", Library.open, folder)
    with monkeypatch.context() as patch:
        patch.setattr(verify.tables, "write", fail(ResourceError("the disk is full. Nothing was changed. Free space.")))
        if call != 3:  # when nothing is left to be written
            refuse(ResourceError, "the disk is full", Library.repair, folder)
    repaired = Library.repair(folder)
    assert (repaired.embeddings, repaired.lost) == (7, ()) and repaired.kept.is_dir()
    with Library.open(folder) as library:
        assert (describe(library), library.runs()) == (before, runs) and library.verify().is_sound
        assert np.array_equal(library.get("task 1").fisher, make("task 1", 1).fisher)
    assert not list(folder.glob("backups/*/new.sqlite*"))


def test_what_is_damaged_is_named_and_the_rest_comes_back(folder):
    with Library.open(folder) as library:
        spoil(library, "task 1")
        library.add(make("task 9", 9), Expert("g", "hub", "x"))
        change(library, "UPDATE tasks SET classes = '[' WHERE name = 'task 9'")
        change(library, "UPDATE experts SET source = 'ftp' WHERE name = 'g'")
        change(library, "UPDATE runs SET details = CAST(x'ff' AS TEXT)")
    repaired = Library.repair(folder)
    embedding, *rows = sorted(repaired.lost, key=lambda text: text.startswith("row"))
    assert repaired.embeddings == 7 and "SHA-256" in embedding
    assert sorted(text.split(" (")[0] for text in rows) == ["row 1 of runs", "row 3 of experts", "row 7 of tasks"]
    with Library.open(folder) as library:
        assert library.task("task 9").classes == ("a", "b")  # from its embedding
        assert [one.name for one in library.experts()] == ["e", "f"] and library.runs() == []
        assert len(library) == 7 and not library.task("task 1").embeddings
        library.add(make("task 1", 1))
        assert library.verify().is_sound


def test_what_comes_before_and_after_a_damaged_page_comes_back(folder):
    with Library.open(folder) as library, library._database.write() as connection:
        runs = [("x" * 100, f'{{"number": {number}}}', "now") for number in range(1000)]
        connection.executemany("INSERT INTO runs(what, details, started) VALUES (?, ?, ?)", runs)
    content = bytearray((folder / "library.sqlite").read_bytes())
    page = content.index(b'{"number": 500}') // PAGE
    content[PAGE * page : PAGE * (page + 1)] = bytes(PAGE)
    (folder / "library.sqlite").write_bytes(content)
    assert any("part of the table runs" in text for text in Library.repair(folder).lost)
    with Library.open(folder) as library:
        found = [run.details.get("number") for run in library.runs()]
    assert found[1] == 0 and found[-1] == 999 and 500 not in found and found[1:] == sorted(found[1:])


def test_a_view_in_the_place_of_a_table_is_not_read(folder):
    with sqlite3.connect(folder / "library.sqlite") as connection:
        connection.execute("DROP TABLE runs")
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT i FROM n"
        connection.execute(f"CREATE VIEW runs AS {endless}")
    connection.close()
    refuse(LibraryError, "view", Library.open, folder)
    repaired = Library.repair(folder)
    assert repaired.embeddings == 7 and any("runs" in text for text in repaired.lost)


def test_what_is_newer_or_not_there_is_not_repaired(filled, tmp_path):
    change(filled, "PRAGMA user_version = 99")
    filled.close()
    before = read_bytes(filled.folder)
    refuse(LibraryError, "pip install -U", Library.repair, filled.folder)
    refuse(LibraryError, "nothing to repair", Library.repair, tmp_path)
    assert read_bytes(filled.folder) == before and list(tmp_path.iterdir()) == [filled.folder]


@pytest.mark.parametrize("times", [3, pytest.param(300, marks=pytest.mark.long)])
def test_random_damage(folder, tmp_path, times):
    """Everything is called on damaged copies, which are repaired; embeddings are whole or named as lost."""
    rng, copy = random.Random(0), tmp_path / "copy"
    sound = (folder / "library.sqlite").read_bytes()
    for _ in range(times):
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        content = bytearray(sound)
        for _ in range(rng.choice((1, 2, 5, 50, 500))):
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        (copy / "library.sqlite").write_bytes(content)
        with suppress(LibraryError), Library.open(copy) as library:
            library.verify()
            for name in ("tasks", "experts", "errors", "runs", "stats"):
                with suppress(Task2VecError):
                    getattr(library, name)()
            for name, what in (("get", "task 0"), ("task", "task 2"), ("nearest", "task 1"), ("add", make("new", 77))):
                with suppress(Task2VecError):
                    getattr(library, name)(what)
        repaired = Library.repair(copy)
        with Library.open(copy) as library:
            assert library.verify().is_sound
            there = {one.key for task in library.tasks() for one in task.embeddings}
            assert len(there) == repaired.embeddings and (len(there) >= 7 or repaired.lost)
