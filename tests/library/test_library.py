"""The library from the door: removing, tagging, finding, noting runs, races between finding and reading."""

import os
import subprocess
import sys

import numpy as np
import pytest

from task2vec.embedding.settings import RECIPE
from task2vec.errors import LibraryError, NotInLibraryError, UsageError
from task2vec.library import Expert, Library, MeasuredError, library
from tests.library.making import find_blob, fingerprint_of, make


def test_what_is_added_is_there_after_opening_again(filled):
    filled.close()
    with Library.open(filled.folder) as again:
        assert repr(again) == "Library(6 tasks, 6 embeddings, 0 experts, 0 errors)"
        for seed in range(6):
            assert np.array_equal(again.get(f"task {seed}").vector, make("", seed).vector)


def test_neighbours_are_of_one_space_and_never_the_task_itself(filled):
    filled.add(
        make("direct", 1, settings={"method": "direct", "seed": 0}),
        make("again", 1, settings={"method": "robust", "seed": 5}),
        make("stranger", 30, probe_fingerprint="cd" * 32),
    )
    for what in ("task 0", make("task 0", 0), make("not in the library", 40)):
        near = filled.nearest(what, 20)
        names = [one.task.name for one in near]
        assert "stranger" not in names and ("task 0" in names) == (getattr(what, "task", "") == "not in the library")
        assert [one.distance for one in near] == sorted(one.distance for one in near)
        assert all(one.embedding.settings["method"] == "robust" for one in near)
    assert [one.task.name for one in filled.nearest(make("x", 31, probe_fingerprint="cd" * 32))] == ["stranger"]
    with pytest.raises(UsageError, match="at least one"):
        filled.nearest("task 0", 0)


def test_removing(filled):
    filled.add(make("task 1", 1, settings={"method": "direct", "seed": 0}))
    key = filled.task("task 1").embeddings[0].key
    (gone,) = filled.remove(key[:10])
    assert gone.key == key and len(filled.task("task 1").embeddings) == 1
    filled.add(Expert("e", "timm", "x"), MeasuredError(fingerprint_of(2), "e", 0.5, "p"))
    for remove in (filled.remove, lambda name, **rest: filled.remove_expert("e", **rest)):
        with pytest.raises(UsageError, match="1 errors were measured"):
            remove("task 2")
    filled.remove("task 2", with_errors=True)
    assert filled.errors() == [] and len(filled) == 5
    filled.remove_expert("e")
    assert filled.experts() == []
    with pytest.raises(NotInLibraryError):
        filled.remove_expert("e")
    with pytest.raises(NotInLibraryError):
        filled.remove("task 2")
    assert filled.verify().is_sound and filled.verify().orphans == 0


def test_tags_and_names(filled):
    assert filled.tag("task 1", "a", "b").tags == ("a", "b", "small")
    assert filled.tag("task 1", "a", "unknown", remove=True).tags == ("b", "small")
    assert filled.rename("task 1", "new name").name == "new name"
    assert filled.get("new name").task == "new name"  # the blob says "task 1"
    with pytest.raises(UsageError):
        filled.rename("new name", " ")


def test_runs(filled):
    with filled.record("embed", {"folder": "x"}) as number:
        (run,) = filled.runs()
        assert (run.id, run.what, run.ended) == (number, "embed", None)
    with pytest.raises(ZeroDivisionError), filled.record("fail"):
        raise ZeroDivisionError("by zero")
    assert [run.outcome for run in filled.runs()] == ["done", "ZeroDivisionError: by zero"]
    for story in ({"x": object()}, {"x": float("nan")}):
        with pytest.raises(UsageError), filled.record("bad", story):
            pass
    assert len(filled.runs()) == 2


def test_finding_what_was_embedded_already(filled):
    task = type("Task", (), {"fingerprint": fingerprint_of(1)})()
    probe = type("Probe", (), {"fingerprint": "ab" * 32})()
    settings = type("Settings", (), {"as_dict": lambda self: {"method": "robust", "seed": 0}})()
    filled.add(make("task 1", 1, recipe=RECIPE), replace=True)
    found = filled.find(task, probe, settings=settings)
    assert found is not None and np.array_equal(found.fisher, make("", 1).fisher)
    (entry,) = (one for one in filled.task("task 1").embeddings if one.recipe == RECIPE)
    filled._blobs.path(entry.sha256).unlink()
    assert filled.find(task, probe, settings=settings) is None  # to be made again, which mends it
    probe.fingerprint = "cd" * 32
    assert filled.find(task, probe, settings=settings) is None


def test_an_embedding_that_is_replaced_between_finding_and_reading(filled, monkeypatch):
    load, calls = library.load_blob, []

    def load_late(blobs, sha256, *, name):
        if not calls:
            calls.append(name)
            with Library.open(filled.folder) as other:
                other.add(make("task 1", 1, numbers=9), replace=True)
        return load(blobs, sha256, name=name)

    monkeypatch.setattr(library, "load_blob", load_late)
    assert np.array_equal(filled.get("task 1").fisher, make("", 9).fisher)


def test_an_embedding_that_is_removed_between_finding_and_reading(filled, monkeypatch):
    load = library.load_blob

    def load_late(blobs, sha256, *, name):
        with Library.open(filled.folder) as other:
            other.remove(name)
        return load(blobs, sha256, name=name)

    monkeypatch.setattr(library, "load_blob", load_late)
    with pytest.raises(NotInLibraryError):
        filled.get("task 1")


def test_one_that_is_removed_between_finding_and_describing(filled, monkeypatch):
    """Neighbours come from one view of the index: what is removed meanwhile was there at that moment."""
    nearest = filled._search.nearest

    def remove_meanwhile(*args, **options):
        found = nearest(*args, **options)
        with Library.open(filled.folder) as other:
            other.remove("task 1")
        return found

    monkeypatch.setattr(filled._search, "nearest", remove_meanwhile)
    assert len(filled.nearest("task 0")) == 5
    monkeypatch.undo()
    assert len(filled.nearest("task 0")) == 4


def test_no_room_for_sketches_is_no_reason_not_to_answer(filled, monkeypatch):
    filled._search.sketch_from = 3

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("task2vec.library.spaces.write_whole", fail)
    assert len(filled.nearest("task 0")) == 5
    monkeypatch.undo()
    assert len(filled.nearest("task 0")) == 5 and list(filled.folder.glob("search/*.basis"))
    assert filled.verify().is_sound


def test_a_library_imports_no_torch(filled):
    filled.close()
    script = (
        "import sys\nfrom task2vec.library import Library\nlibrary = Library.open(sys.argv[1])\n"
        "library.tasks(), library.nearest('task 0'), library.verify(), library.close()\n"
        "assert 'torch' not in sys.modules"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    subprocess.run([sys.executable, "-c", script, str(filled.folder)], check=True, env=env)


def test_what_an_index_of_a_stranger_cannot_do(filled, tmp_path):
    """Its entries name blobs outside of the library: these are neither read nor removed."""
    outside = tmp_path / "xx" / "secret.t2v.safetensors"
    outside.parent.mkdir()
    outside.write_bytes(find_blob(filled, "task 2").read_bytes())
    with filled._database.writing() as connection:
        connection.execute("UPDATE embeddings SET sha256 = '/../../../xx/secret' WHERE id = 2")
    with pytest.raises(LibraryError, match="no SHA-256"):
        filled.get("task 1")
    assert not filled.verify().is_sound
    filled.remove("task 1")
    assert outside.exists() and filled.verify().is_sound
