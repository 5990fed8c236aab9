"""What nobody needs goes, what anybody needs stays."""

import pytest

from task2vec.library import Library, sweeping
from tests.library.making import find_blob, make


def leave_behind(library):
    """What killed writers leave: an unfinished blob, a whole one without an entry, rows of no generation."""
    folder = find_blob(library, "task 1").parent
    left = [folder / f".{'e' * 64}.partial", folder / f"{'e' * 64}.t2v.safetensors"]
    left.append(library.folder / "search" / f"{'0' * 16}-7.f32")
    for path in left:
        path.write_bytes(b"left")
    return left


def test_opening_sweeps_after_a_crash_and_not_otherwise(filled):
    left = leave_behind(filled)
    filled.close()
    Library.open(filled.folder).close()
    assert all(path.exists() for path in left)  # nobody was killed: listing all files is saved
    (filled.folder / "index.sqlite-wal").write_bytes(b"")  # what a process leaves that is killed before it commits
    with Library.open(filled.folder) as library:
        assert not any(path.exists() for path in left)
        assert library.verify().is_sound and len(library) == 6


def test_nothing_is_swept_while_another_writes(filled):
    """A writer that has not committed has blobs that no entry knows."""
    with filled._database.writing() as connection:
        blob = filled._blobs.write(b"of an entry to come")
        with Library.open(filled.folder) as other:
            assert len(other) == 6
        assert filled._blobs.is_whole(blob)
        connection.execute("SELECT 1")


def test_a_large_library_is_swept_by_compact_alone(filled, monkeypatch):
    monkeypatch.setattr(sweeping, "_SWEPT_AT_OPEN", 5)
    left = leave_behind(filled)
    with Library.open(filled.folder) as other:
        assert all(path.exists() for path in left)
        other.compact()
    assert not any(path.exists() for path in left)


def test_a_removed_task_leaves_no_blob_and_no_row(filled):
    blobs = [find_blob(filled, name) for name in ("task 1", "task 2")]
    (gone,) = filled.remove("task 1")
    assert gone.sha256 in blobs[0].name
    assert [blob.exists() for blob in blobs] == [False, True]
    sizes = filled.compact()
    assert sizes["after"] < sizes["before"]
    assert next(filled.folder.glob("search/*.f32")).stat().st_size == 5 * 4 * 50
    assert filled.verify().is_sound and "task 1" not in {one.task.name for one in filled.nearest("task 0")}


def test_a_blob_that_came_back_is_not_dropped(filled):
    (entry,) = filled.task("task 1").embeddings
    filled._sweeper.drop_blobs([entry.sha256])
    assert filled.get("task 1")


def test_two_entries_of_one_blob(filled):
    """The same bytes under two keys cannot be, for the key is in the bytes; an index could say so all the same."""
    with filled._database.writing() as connection:
        connection.execute("UPDATE embeddings SET sha256 = (SELECT sha256 FROM embeddings WHERE id = 1) WHERE id = 2")
    filled.remove("task 1")
    assert filled.get("task 0")


@pytest.mark.parametrize("damage", ["UPDATE spaces SET key = 5", "UPDATE spaces SET basis = x'00'"])
def test_a_damaged_index_can_still_be_opened(filled, damage):
    with filled._database.writing() as connection:
        connection.execute(damage)
    with Library.open(filled.folder) as library:
        assert len(library.tasks()) == 6 and len(list(library._blobs.list_files())) == 6


def test_an_older_index_loses_no_embedding(filled):
    """An index that was put back does not know the newest ones: neither a crash nor compacting takes them away."""
    filled.close()
    older = (filled.folder / "index.sqlite").read_bytes()
    with Library.open(filled.folder) as library:
        library.add(make("newer", 77))
        blob = find_blob(library, "newer")
    (filled.folder / "index.sqlite").write_bytes(older)
    (filled.folder / "index.sqlite-wal").write_bytes(b"")
    with Library.open(filled.folder) as library:
        library.compact()
        found = library.verify()
        assert blob.exists() and found.is_sound and (found.orphans, found.strangers) == (0, 1)
    Library.repair(filled.folder)
    with Library.open(filled.folder) as library:
        assert library.get("newer") and library.verify().strangers == 0


def test_a_blob_that_a_killed_writer_noted_is_swept(filled):
    with pytest.raises(ZeroDivisionError), filled._database.writing():
        left = filled._blobs.path(filled._blobs.write(b"of an entry that never came"))
        raise ZeroDivisionError  # as if it were killed: nothing is committed, nothing taken away
    assert left.exists() and filled.verify().orphans == 1
    filled.compact()
    assert not left.exists() and not filled._blobs.noted()


def test_notes_are_forgotten_when_their_entries_are_there(filled):
    filled.add(make("task 50", 50))
    filled.add(make("task 50", 50, numbers=3), replace=True)
    filled.remove("task 50")
    assert not filled._blobs.noted()
    with pytest.raises(ZeroDivisionError), filled._database.writing():
        left = filled._blobs.write(b"of an entry that never came")
        raise ZeroDivisionError
    filled.add(make("task 51", 51))
    assert left in filled._blobs.noted()  # not forgotten with the notes of others
