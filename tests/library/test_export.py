"""Libraries become one file, and files and libraries are merged: conflicts are named, and nothing is overwritten."""

import os

import numpy as np
import pytest

from task2vec.errors import LibraryError, UsageError
from task2vec.library import Expert, Library, MeasuredError, export
from tests.library.making import change, describe, fingerprint_of, flip, make, spoil


@pytest.fixture
def full(filled):
    """Something of every kind."""
    filled.add(make("task 1", 1, settings={"method": "direct", "seed": 0}), source="/home/ada/photos")
    filled.add(Expert("e", "timm", "net", recipe={"epochs": 3}), Expert("f", "file", "x.pt"))
    filled.add(MeasuredError(fingerprint_of(1), "e", 0.25, "p", low=0.2, high=0.3, measured_by="me"))
    filled.tag("task 2", "rare")
    return filled


@pytest.fixture
def other(tmp_path):
    with Library.open(tmp_path / "other") as library:
        yield library


@pytest.mark.parametrize("way", ["file", "library", "folder"])
def test_everything_arrives(full, other, tmp_path, way):
    origin = {"file": full.export(tmp_path / "x.t2vlib"), "library": full, "folder": full.folder}[way]
    merged = other.merge(origin)
    assert merged.added == {"task": 6, "embedding": 7, "expert": 2, "error": 1} and not merged.conflicts
    assert describe(other) == describe(full)
    assert other.task("task 1").source == ""  # a path of another machine
    assert b"/home/ada" not in (tmp_path / "x.t2vlib").read_bytes()
    assert other.verify().is_sound and len(other.nearest("task 0")) == 5
    again = other.merge(origin)
    assert sum(again.added.values()) == 0 and again.known == 16


def test_a_part_by_its_tag(full, other, tmp_path):
    merged = other.merge(full.export(tmp_path / "x.t2vlib", tag="rare"))
    assert merged.added == {"task": 1, "embedding": 1, "expert": 0, "error": 0}
    full.tag("task 1", "rare")
    merged = other.merge(full.export(tmp_path / "x.t2vlib", tag="rare"))
    assert merged.added == {"task": 1, "embedding": 2, "expert": 1, "error": 1}


def test_conflicts_are_named_and_nothing_is_overwritten(full, other, tmp_path):
    other.add(make("mine", 2, numbers=50), make("task 1", 1))
    other.add(Expert("e", "timm", "another net"), MeasuredError(fingerprint_of(1), "e", 0.75, "p"))
    before = other.get("mine").fisher
    merged = other.merge(full.export(tmp_path / "x.t2vlib"))
    assert len(merged.conflicts) == 3
    for word in ("'mine'", "expert called 'e'", "another expert here"):
        assert sum(word in text for text in merged.conflicts) == 1, word
    assert np.array_equal(other.get("mine").fisher, before)
    assert [one.error for one in other.errors()] == [0.75] and other.experts()[0].location == "another net"
    assert len(other) == 6 and other.verify().is_sound


@pytest.mark.parametrize("way", ["export", "merge"])
def test_a_damaged_embedding_is_not_handed_on(full, other, tmp_path, way):
    spoil(full, "task 3")
    with pytest.raises(LibraryError, match="SHA-256"):
        full.export(tmp_path / "x.t2vlib") if way == "export" else other.merge(full)
    assert len(other) == 0 and [path.name for path in tmp_path.iterdir() if path.is_file()] == []


def test_an_index_that_lies_about_lengths(full, other, tmp_path):
    change(full, "UPDATE embeddings SET bytes = bytes + 1 WHERE id = 3")
    assert other.merge(full.export(tmp_path / "x.t2vlib")).added["embedding"] == 7 and describe(other) == describe(full)


def test_what_could_not_be_imported_is_not_exported(full, tmp_path, monkeypatch):
    for limit, value in (("_LARGEST_TEXT", 1000), ("_MOST_VALUES", 50)):
        with monkeypatch.context() as patch, pytest.raises(UsageError, match="--tag"):
            patch.setattr(export, limit, value)
            full.export(tmp_path / "x.t2vlib")
    assert not (tmp_path / "x.t2vlib").exists()


def test_a_library_is_neither_merged_with_itself_nor_overwritten_by_an_export(full):
    for origin in (full, full.folder, os.path.relpath(full.folder)):
        with pytest.raises(UsageError, match="itself"):
            full.merge(origin)
    for name in ("library.sqlite", "backups/x"):
        with pytest.raises(UsageError, match="own folder"):
            full.export(full.folder / name)
    assert full.verify().is_sound


def test_an_import_that_is_killed_leaves_whole_entries(full, other, tmp_path, monkeypatch):
    """Embeddings come in a few at a time; what has come is whole, and the same command brings the rest."""
    monkeypatch.setattr(export, "_TOGETHER", 2)
    path, load, calls = full.export(tmp_path / "x.t2vlib"), export.Shared.load, []

    def stop(self, number):
        calls.append(number)
        if len(calls) == 7 + 5:
            raise KeyboardInterrupt
        return load(self, number)

    monkeypatch.setattr(export.Shared, "load", stop)
    with pytest.raises(KeyboardInterrupt):
        other.merge(path)
    assert other.stats()["embeddings"] == 4 and other.verify().is_sound
    assert all(task.embeddings for task in other.tasks()) and 2 <= len(other) <= 4
    monkeypatch.undo()
    other.merge(path)
    assert describe(other) == describe(full) and other.verify().is_sound


def test_a_file_that_changes_after_it_was_checked(full, other, tmp_path, monkeypatch):
    path, merge = full.export(tmp_path / "x.t2vlib"), export.merge

    def change(*args, **options):
        flip(path, -1)
        return merge(*args, **options)

    monkeypatch.setattr(export, "merge", change)
    with pytest.raises(LibraryError, match="SHA-256"):
        other.merge(path)
    assert other.verify().is_sound


def test_an_export_is_of_one_moment(filled, tmp_path, monkeypatch):
    """What another process removes while a file is written is still in it."""
    share = export.share_library

    def share_and_lose(*args, **kwargs):
        shared = share(*args, **kwargs)
        filled.remove("task 3")
        return shared

    monkeypatch.setattr(export, "share_library", share_and_lose)
    with Library.open(tmp_path / "other") as other:
        other.merge(filled.export(tmp_path / "six.t2vlib"))
        assert len(other) == 6 and len(filled) == 5 and other.verify().is_sound
