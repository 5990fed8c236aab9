"""Libraries become one file, and files and libraries are merged: conflicts are named, and nothing is overwritten."""

import os
from unittest.mock import DEFAULT, Mock

import numpy as np
import pytest

from task2vec.embedding.embedding import decode_embedding
from task2vec.errors import LibraryError, ResourceError, UsageError
from task2vec.library import Expert, Library, MeasuredError, export
from tests.failures import refuse
from tests.library.material import describe, fingerprint_of, make, spoil


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
    assert other.task("task 5").source == ""  # a path of another machine
    assert b"/home/ada" not in (tmp_path / "x.t2vlib").read_bytes()
    assert other.verify().is_sound and len(other.nearest("task 0")) == 5
    again = other.merge(origin)
    assert sum(again.added.values()) == 0 and again.known == 16


def test_a_part_by_its_tag(full, other, tmp_path):
    merged = other.merge(full.export(tmp_path / "x.t2vlib", tag="rare"))
    assert merged.added == {"task": 1, "embedding": 1, "expert": 0, "error": 0}
    full.tag("task 1", "rare")
    merged = other.merge(full.export(tmp_path / "x.t2vlib", tag="rare"))
    assert merged.added == {"task": 1, "embedding": 1, "expert": 1, "error": 1}


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
    ask, given = (full.export, tmp_path / "x.t2vlib") if way == "export" else (other.merge, full)
    refuse(LibraryError, "SHA-256", ask, given)
    assert len(other) == 0 and [path.name for path in tmp_path.iterdir() if path.is_file()] == []


def test_a_library_is_neither_merged_with_itself_nor_overwritten_by_an_export(full):
    for origin in (full, full.folder, os.path.relpath(full.folder)):
        refuse(UsageError, "itself", full.merge, origin)
    for name in ("library.sqlite", "backups/x"):
        refuse(UsageError, "own folder", full.export, full.folder / name)
    assert full.verify().is_sound


def test_an_import_that_is_interrupted_leaves_nothing(full, other, tmp_path, monkeypatch):
    path = full.export(tmp_path / "x.t2vlib")
    interrupted = Mock(wraps=decode_embedding, side_effect=[DEFAULT] * 4 + [KeyboardInterrupt])
    with monkeypatch.context() as patch:
        patch.setattr(export, "decode_embedding", interrupted)
        refuse(KeyboardInterrupt, None, other.merge, path)
    assert len(other) == 0 and other.verify().is_sound
    other.merge(path)
    assert describe(other) == describe(full) and other.verify().is_sound


def test_an_export_is_one_file_of_one_moment(filled, other, tmp_path, monkeypatch):
    """What another process removes while a file is written is still in it."""

    def lose_and_decode(*given):
        if len(filled) == 6:
            with Library.open(filled.folder) as rival:
                rival.remove("task 5")
        return decode_embedding(*given)

    with monkeypatch.context() as patch:
        patch.setattr(export, "decode_embedding", lose_and_decode)
        path = filled.export(tmp_path / "six.t2vlib")
    assert other.merge(path).added["embedding"] == 6 and len(filled) == 5
    assert [one.name for one in tmp_path.iterdir() if one.is_file()] == ["six.t2vlib"]
    refuse(ResourceError, "a folder that exists", filled.export, tmp_path / "none" / "x.t2vlib")
    assert not (tmp_path / "none").exists()
