"""Blobs: called by their hash, whole or absent, and nothing else is ever touched."""

import hashlib

import pytest

from task2vec.errors import DataError, LibraryError
from task2vec.library import blobs as room
from task2vec.library.blobs import Blobs, name_of


@pytest.fixture
def blobs(tmp_path):
    return Blobs(tmp_path)


def test_what_is_written_can_be_read(blobs):
    sha256 = blobs.write(b"content")
    assert sha256 == hashlib.sha256(b"content").hexdigest()
    assert blobs.read(sha256) == b"content"
    assert [path.name for path in blobs.list_files()] == [f"{sha256}.t2v.safetensors"]
    assert blobs.path(sha256).parent.name == sha256[:2]


def test_a_whole_blob_is_left_alone_and_a_damaged_one_written_anew(blobs):
    path = blobs.path(blobs.write(b"content"))
    number = path.stat().st_ino
    blobs.write(b"content")
    assert path.stat().st_ino == number
    path.write_bytes(b"damaged")
    assert blobs.read(blobs.write(b"content")) == b"content"


@pytest.mark.parametrize("change", [b"Content", b"conten", b"content ", b""])
def test_every_change_is_noticed(blobs, change):
    sha256 = blobs.write(b"content")
    blobs.path(sha256).write_bytes(change)
    with pytest.raises(LibraryError, match="SHA-256"):
        blobs.read(sha256)
    assert not blobs.is_whole(sha256)


@pytest.mark.parametrize("name", ["../../x", "", "a" * 63, "A" * 64, "a" * 65, "a" * 64 + "\n", None, 5, b"a" * 64])
def test_a_name_that_is_no_hash_leads_nowhere(blobs, name):
    for use in (blobs.path, blobs.read, blobs.remove):
        with pytest.raises(LibraryError, match="no SHA-256"):
            use(name)


def test_what_could_not_be_read_again_is_not_written(blobs, monkeypatch):
    monkeypatch.setattr(room, "LARGEST", 10)
    with pytest.raises(DataError, match="11 bytes"):
        blobs.write(b"x" * 11)
    sha256 = blobs.write(b"x" * 10)
    blobs.path(sha256).write_bytes(b"x" * 11)
    with pytest.raises(LibraryError, match="larger than any embedding"):
        blobs.read(sha256)


def test_orphans_are_unfinished_files_and_unknown_blobs(blobs):
    known, unknown = blobs.write(b"known"), blobs.write(b"unknown")
    folder = blobs.path(known).parent
    for name in (".x.partial", "notes.txt", "F" * 64 + ".t2v.safetensors", "f" * 63 + ".t2v.safetensors"):
        (folder / name).write_bytes(b"")
    (blobs.folder / ".outside.partial").write_bytes(b"")
    assert sorted(path.name for path in blobs.find_orphans({known})) == sorted(
        [".x.partial", f"{unknown}.t2v.safetensors"]
    )


def test_folders_that_are_links_are_not_entered(blobs, tmp_path):
    blobs.write(b"content")
    elsewhere = Blobs(tmp_path / "elsewhere")
    elsewhere.write(b"of another library")
    (blobs.folder / "00").symlink_to(next(elsewhere.folder.iterdir()))
    assert len(list(blobs.list_files())) == 1


def test_nothing_there(blobs):
    assert list(blobs.list_files()) == [] and blobs.is_empty()
    with pytest.raises(LibraryError, match="cannot be read"):
        blobs.read("0" * 64)
    blobs.remove("0" * 64)
    blobs.folder.write_text("a file")
    assert blobs.is_empty()


def test_names_of_blobs(tmp_path):
    assert name_of(tmp_path / ("a" * 64 + ".t2v.safetensors")) == "a" * 64
    assert name_of(tmp_path / ("a" * 64)) is None
