"""W4: a damaged blob, row, basis or page is found and named, the rest still works, and adding again mends."""

import hashlib
import random

import numpy as np
import pytest

from task2vec.errors import LibraryError
from task2vec.library import Expert, Library
from task2vec.library.sweeping import list_known
from tests.library.making import find_blob, flip, make


def name_problems(library):
    """The entries that something is wrong with."""
    return sorted({problem.entry.split(" (")[0] for problem in library.verify().problems})


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(path):
    path.write_bytes(path.read_bytes() + b"\0")


def make_a_folder(path):
    path.unlink()
    path.mkdir()


DAMAGES = {
    "first byte": lambda path: flip(path, 0),
    "header": lambda path: flip(path, 200),
    "last byte": lambda path: flip(path, -1),
    "truncated": truncate,
    "longer": lengthen,
    "empty": lambda path: path.write_bytes(b""),
    "missing": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_blob(filled, damage):
    damage(find_blob(filled, "task 2"))
    assert name_problems(filled) == ["task 2"]
    with pytest.raises(LibraryError, match="task 2") as caught:
        filled.get("task 2")
    assert caught.value.exit_code == 4
    for seed in (0, 1, 3, 4, 5):
        assert np.array_equal(filled.get(f"task {seed}").fisher, make("", seed).fisher)
    assert len(filled.nearest("task 1", 10)) == 5  # its row is good
    (added,) = filled.add(make("task 2", 2))
    assert added.is_new and filled.verify().is_sound and filled.verify().orphans == 0
    assert filled.task("task 2").tags == ("small",)
    assert np.array_equal(filled.get("task 2").fisher, make("", 2).fisher)


def test_blobs_that_have_changed_places(filled):
    one, two = find_blob(filled, "task 1"), find_blob(filled, "task 2")
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second), two.write_bytes(first)
    assert name_problems(filled) == ["task 1", "task 2"]
    for name in ("task 1", "task 2"):
        with pytest.raises(LibraryError, match="SHA-256"):
            filled.get(name)
    filled.add(make("task 1", 1), make("task 2", 2))
    assert filled.verify().is_sound


def test_an_entry_that_names_the_blob_of_another(filled):
    with filled._database.writing() as connection:
        connection.execute("UPDATE embeddings SET sha256 = (SELECT sha256 FROM embeddings WHERE id = 1) WHERE id = 2")
    assert name_problems(filled) == ["task 1"]
    assert "something else" in filled.verify().problems[0].what


def test_a_blob_without_end_is_not_read(filled):
    path = find_blob(filled, "task 1")
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(LibraryError, match="no file"):
        filled.get("task 1")
    assert name_problems(filled) == ["task 1"]


def rows_of(library):
    return next(library.folder.glob("search/*.f32"))


@pytest.mark.parametrize(
    "damage", [lambda path: flip(path, 450), truncate, lambda path: path.unlink(), lambda path: path.write_bytes(b"")]
)
def test_damaged_rows(filled, damage):
    near = [(one.task.name, one.distance) for one in filled.nearest("task 0")]
    damage(rows_of(filled))
    problems = name_problems(filled)
    assert problems and all(name.startswith("task") for name in problems)
    with Library.open(filled.folder) as library:
        assert [(one.task.name, pytest.approx(one.distance, abs=1e-6)) for one in library.nearest("task 0")] == near
        library.compact()
        assert library.verify().is_sound
        assert [(one.task.name, pytest.approx(one.distance, abs=1e-6)) for one in library.nearest("task 0")] == near


def test_rows_and_a_blob_that_are_damaged(filled):
    """Nothing is left to compare that one by; the others are found."""
    rows_of(filled).unlink()
    find_blob(filled, "task 2").unlink()
    with Library.open(filled.folder) as library:
        assert {one.task.name for one in library.nearest("task 0", 10)} == {f"task {seed}" for seed in (1, 3, 4, 5)}
        assert "task 2" in name_problems(library)


def test_a_damaged_basis(filled):
    filled._search.sketch_from = 4
    filled.refit_search()
    (basis,) = filled.folder.glob("search/*.basis")
    for damage in (lambda path: flip(path, 3000), truncate, lambda path: path.unlink()):
        damage(basis)
        assert name_problems(filled) == ["search"]
        with Library.open(filled.folder) as library:
            library._search.sketch_from = 4
            assert len(library.nearest("task 0")) == 5
            library.refit_search()
            assert library.verify().is_sound


@pytest.mark.parametrize("place", [0, 20, 100, 4096 + 3, 5 * 4096 + 1, 7 * 4096 + 8, 9 * 4096 + 5])
def test_a_damaged_page(filled, place):
    filled.close()
    index = filled.folder / "index.sqlite"
    content = bytearray(index.read_bytes())
    content[place : place + 40] = random.Random(place).randbytes(40)
    index.write_bytes(content)
    try:
        with Library.open(filled.folder) as library:
            assert not library.verify().is_sound
    except LibraryError as error:
        assert error.exit_code == 4 and "damaged" in str(error)
    assert Library.repair(filled.folder).embeddings == 6


def test_a_page_of_zeros_is_found_whichever_it_is(filled):
    filled.close()
    index = filled.folder / "index.sqlite"
    sound = index.read_bytes()
    for page in range(1, len(sound) // 4096):
        content = bytearray(sound)
        content[4096 * page : 4096 * (page + 1)] = bytes(4096)
        index.write_bytes(content)
        with Library.open(filled.folder) as library:
            assert not library.verify().is_sound, page
    assert len(list(filled.folder.glob("blobs/*/*"))) == 6


def test_a_name_with_a_flipped_bit_is_not_found_but_its_blob_is_not_swept(filled):
    """A hash in the index has changed. What no entry knows is kept then, for the index is damaged."""
    (sha256,) = {one.sha256 for task in filled.tasks() for one in task.embeddings if task.name == "task 3"}
    filled.close()
    index = filled.folder / "index.sqlite"
    content = index.read_bytes()
    assert content.count(sha256.encode()) == 2  # in the table, and in the list by hash
    for which in (0, 1):
        place = content.find(sha256.encode())
        for _ in range(which):
            place = content.find(sha256.encode(), place + 1)
        damaged = bytearray(content)
        damaged[place + 40] = ord("f") if damaged[place + 40] != ord("f") else ord("e")
        index.write_bytes(damaged)
        with Library.open(filled.folder) as library:
            library.compact()
            assert not library.verify().is_sound
        assert len(list(filled.folder.glob("blobs/*/*"))) == 6
    assert Library.repair(filled.folder).embeddings == 6


def test_entries_that_vanish_without_an_error_do_not_take_their_blobs_along(filled):
    """Two pages say that they are empty: the list of embeddings is, and to a sweep all blobs would be nobody's."""
    (sha256,) = {one.sha256 for task in filled.tasks() for one in task.embeddings if task.name == "task 3"}
    filled.close()
    index = filled.folder / "index.sqlite"
    content = bytearray(index.read_bytes())
    for page in range(0, len(content), 4096):
        if sha256.encode() in content[page : page + 4096]:
            content[page + 3 : page + 5] = bytes(2)  # the number of entries
    index.write_bytes(content)
    (filled.folder / "index.sqlite-wal").write_bytes(b"")  # as if somebody had been killed
    with Library.open(filled.folder) as library:
        with library._database.reading() as connection:
            assert list_known(connection) == set()
        assert not library.verify().is_sound
        library.compact()
    assert len(list(filled.folder.glob("blobs/*/*"))) == 6
    assert Library.repair(filled.folder).embeddings == 6


def test_what_is_removed_meanwhile_is_not_damaged(filled, monkeypatch):
    """Between the list and the look at the blobs, somebody else takes one out and replaces another."""
    from task2vec.library import verifying

    look = verifying._list_entries

    def look_and_change(connection):
        found = look(connection)
        with Library.open(filled.folder) as other:
            other.remove("task 1")
            other.add(make("task 2", 2, numbers=77), replace=True)
            other.compact()
        return found

    monkeypatch.setattr(verifying, "_list_entries", look_and_change)
    found = filled.verify()
    assert found.problems == () and found.orphans == 0


def test_orphans_are_counted_and_no_problem(filled):
    blob = find_blob(filled, "task 1")
    blob.with_name("f" * 64 + ".t2v.safetensors").write_bytes(b"left")
    blob.with_name(".something.partial").write_bytes(b"left")
    blob.with_name("notes.txt").write_bytes(b"of somebody else")
    assert filled.verify().is_sound and filled.verify().orphans == 2
    filled.compact()
    assert filled.verify().orphans == 0
    assert blob.with_name("notes.txt").exists()


# --- experts ---


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
    told = {problem.entry: problem.what for problem in found.experts}
    assert list(told) == ["changed", "endless", "missing"]
    assert "SHA-256" in told["changed"] and "no file" in told["missing"] and "no file" in told["endless"]
