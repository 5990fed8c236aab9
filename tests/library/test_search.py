"""Neighbours are found exactly, or by sketches; whatever is damaged, the embedding itself is compared."""

import sqlite3
import subprocess
import sys
import threading

import numpy as np
import pytest

from task2vec.distance import symmetric
from task2vec.errors import DataError, LibraryError, ProbeMismatchError, UsageError
from task2vec.library import rows
from task2vec.library.memory import BLOCK, Memory
from task2vec.library.search import Search
from tests.distance.material import make
from tests.library.shelf import KEY, Shelf, load_real, make_clusters

# Of the tasks with sketches: more than a sketch has numbers.
FILTERS = 400


def find_truth(shelf, embedding, k, *, without=()):
    ranked = sorted((symmetric(embedding, one), number) for number, one in shelf.kept.items() if number not in without)
    return [(number, pytest.approx(distance, abs=1e-6)) for distance, number in ranked[:k]]


@pytest.fixture
def small(tmp_path):
    """Thirty tasks, all compared."""
    shelf = Shelf(tmp_path, filters=60)
    shelf.add(make_clusters(30))
    return shelf


@pytest.fixture
def large(tmp_path):
    """Three hundred tasks with sketches."""
    shelf = Shelf(tmp_path, filters=FILTERS, sketch_from=100)
    shelf.add(make_clusters(300, FILTERS))
    shelf.fit()
    return shelf


def test_neighbours_of_real_tasks(tmp_path):
    real = load_real()
    shelf = Shelf(tmp_path, filters=len(real[0]))
    shelf.add(real[1:])
    assert shelf.nearest(real[0], k=5) == find_truth(shelf, real[0], 5)
    assert not shelf.loaded  # rows were enough


def test_a_task_is_its_own_nearest_unless_left_out(small):
    assert small.nearest(small.kept[7], k=1) == [(7, 0.0)]
    assert small.nearest(small.kept[7], k=3, without={7, 9}) == find_truth(small, small.kept[7], 3, without={7, 9})


def test_equal_distances_are_ordered_by_id(tmp_path):
    shelf = Shelf(tmp_path, filters=60)
    one = make_clusters(1)[0]
    shelf.add([one] * 5)
    assert shelf.nearest(one, k=3) == [(1, 0.0), (2, 0.0), (3, 0.0)]


def test_more_neighbours_than_there_are(small):
    assert len(small.nearest(small.kept[1], k=100)) == 30


def test_an_empty_space_has_no_neighbours(tmp_path):
    assert Shelf(tmp_path, filters=60).nearest(make_clusters(1)[0]) == []


def test_no_neighbours_cannot_be_asked_for(small):
    with pytest.raises(UsageError, match="k=0"):
        small.nearest(small.kept[1], k=0)


def test_an_unknown_space_is_named(small):
    with pytest.raises(UsageError, match="no space 77"):
        small.nearest(small.kept[1], space=77)


def test_spaces_do_not_mix(small):
    other = small.add_space("f" * 64, 60)
    ids = small.add(make_clusters(4, seed=5), space=other)
    assert {one for one, _ in small.nearest(small.kept[1], space=other, k=50)} == set(ids)
    assert not {one for one, _ in small.nearest(small.kept[1], k=50)} & set(ids)


def test_an_embedding_of_another_length_is_refused(small):
    with pytest.raises(DataError, match="59 filters and its space 60"):
        small.add(make_clusters(1, filters=59))


def test_a_space_whose_key_is_a_path_is_refused(small):
    small.connection.execute("UPDATE spaces SET key = '../../../../../etc/passwd'")
    with pytest.raises(LibraryError, match="no hash"):
        small.nearest(small.kept[1])


# --- sketches --------------------------------------------------------------------------------------------------------


def test_sketches_find_what_comparing_all_finds(large):
    for query in make_clusters(20, FILTERS, seed=9):
        found = large.nearest(query, k=5, candidates=60)
        assert found == large.nearest(query, k=5, exact=True) == find_truth(large, query, 5)


def test_only_candidates_are_compared(large):
    query = make_clusters(1, FILTERS, seed=9)[0]
    assert len(large.nearest(query, k=300, exact=True)) == 300
    near = large.nearest(query, k=20, candidates=20)
    assert len(near) == 20
    clusters = {round(symmetric(query, large.kept[one]), 1) for one, _ in near}
    assert max(clusters) < 0.1  # all of them of the query's own cluster


def test_left_out_entries_take_no_candidate_away(large):
    query = make_clusters(1, FILTERS, seed=9)[0]
    nearest = [one for one, _ in large.nearest(query, k=10)]
    again = large.nearest(query, k=5, candidates=5, without=set(nearest[:5]))
    assert len(again) == 5 and not {one for one, _ in again} & set(nearest[:5])


def test_a_new_task_is_found_without_a_new_basis(large):
    before = large.connection.execute("SELECT basis, changes FROM spaces").fetchall()
    large.nearest(large.kept[1])
    new = make_clusters(1, FILTERS, seed=11)[0]
    (number,) = large.add([new])
    assert large.nearest(new, k=1, candidates=5) == [(number, 0.0)]
    assert large.connection.execute("SELECT basis, changes FROM spaces").fetchall() == before


def test_a_removed_task_is_found_no_more(large):
    assert large.nearest(large.kept[5], k=1, candidates=5)[0][0] == 5
    query = large.kept[5]
    large.remove(5)
    assert 5 not in {one for one, _ in large.nearest(query, k=50)}


def test_other_processes_see_what_was_added_and_removed(large):
    other = Search(large.folder, sketch_from=100)
    query = make_clusters(1, FILTERS, seed=11)[0]
    large.nearest(query, search=other)
    (number,) = large.add([query])
    assert large.nearest(query, search=other, k=1) == [(number, 0.0)]
    large.remove(number)
    assert large.nearest(query, search=other, k=1)[0][0] != number
    large.add(make_clusters(50, FILTERS, seed=12, own=3))
    large.fit()
    assert large.nearest(query, search=other, k=4, candidates=80) == find_truth(large, query, 4)


def test_an_addition_that_was_rolled_back_is_forgotten(large):
    large.nearest(large.kept[1])
    new = make_clusters(2, FILTERS, seed=11)
    large.connection.execute("BEGIN IMMEDIATE")
    large.search.enter(large.connection, large.space, 301, new[0])
    large.connection.execute("ROLLBACK")
    (number,) = large.add([new[1]])
    assert number == 301
    assert large.nearest(new[1], k=1) == [(301, 0.0)]
    assert large.nearest(new[0], k=1)[0][1] > 0


def test_a_basis_is_wanted_from_some_number_on(tmp_path):
    shelf = Shelf(tmp_path, filters=60, sketch_from=100)
    shelf.add(make_clusters(99))
    assert not shelf.search.needs_fit(shelf.connection, shelf.space)
    shelf.fit()  # too few: nothing happens
    assert not list(tmp_path.rglob("*.basis"))
    shelf.add(make_clusters(1, seed=1))
    assert shelf.search.needs_fit(shelf.connection, shelf.space)
    steps = []
    shelf.fit(report=lambda stage, total: steps.append((stage, total)) or steps.append)
    assert not shelf.search.needs_fit(shelf.connection, shelf.space)
    assert steps[0] == ("sketches", 100) and sum(steps[1:]) == 100
    assert shelf.connection.execute("SELECT count(sketch) FROM places").fetchone()[0] == 100


def test_without_its_basis_all_are_compared(large):
    next(large.folder.rglob("*.basis")).unlink()
    other = Search(large.folder, sketch_from=100)
    query = make_clusters(1, FILTERS, seed=9)[0]
    assert len(large.nearest(query, search=other, k=300, candidates=5)) == 300
    assert other.needs_fit(large.connection, large.space)
    large.fit()
    assert len(large.nearest(query, search=other, k=300, candidates=300)) == 300
    assert not other.needs_fit(large.connection, large.space)


def test_a_damaged_basis_is_not_used(large):
    file = next(large.folder.rglob("*.basis"))
    content = bytearray(file.read_bytes())
    content[-3] ^= 64
    file.write_bytes(content)
    other = Search(large.folder, sketch_from=100)
    assert other.needs_fit(large.connection, large.space)
    assert [number for number, _ in large.verify()] == [None]
    assert "refit" in large.verify()[0][1]


def test_an_entry_without_a_sketch_is_always_compared(large):
    query = large.kept[5]
    large.connection.execute("UPDATE places SET sketch = NULL WHERE embedding IN (5, 6)")
    large.connection.execute("UPDATE places SET sketch = x'00' WHERE embedding = 7")
    search = Search(large.folder, sketch_from=100)
    assert large.nearest(query, search=search, k=1, candidates=1) == [(5, 0.0)]
    _, view = search.look(large.connection, large.space)
    found = view.find_candidates(np.zeros(130, np.float32), 1, without=np.array([6]))
    assert {5, 7} <= set(found.ids) and 6 not in found.ids


# --- damage ----------------------------------------------------------------------------------------------------------


def spoil_row(shelf, number):
    slot = shelf.connection.execute("SELECT slot FROM places WHERE embedding = ?", (number,)).fetchone()[0]
    content = bytearray(shelf.rows_file.read_bytes())
    content[slot * 4 * shelf.filters + 7] ^= 8
    shelf.rows_file.write_bytes(content)


def test_a_damaged_row_is_not_used_and_named(small):
    spoil_row(small, 4)
    assert small.nearest(small.kept[4], k=4) == find_truth(small, small.kept[4], 4)
    assert small.loaded == [4]
    assert [number for number, _ in small.verify()] == [4]
    assert "is not that of its embedding" in small.verify()[0][1]


def test_rows_that_are_missing_are_not_used_and_named(small):
    with open(small.rows_file, "r+b") as file:
        file.truncate(28 * 240 + 100)
    assert small.nearest(small.kept[29], k=4) == find_truth(small, small.kept[29], 4)
    assert small.loaded == [29, 30]
    assert [number for number, _ in small.verify()] == [29, 30]


def test_without_its_rows_everything_still_works(large):
    large.rows_file.unlink()
    query = make_clusters(1, FILTERS, seed=9)[0]
    assert large.nearest(query, k=4) == find_truth(large, query, 4)
    new = make_clusters(1, FILTERS, seed=13)
    large.add(new)
    assert large.nearest(new[0], k=1) == [(301, 0.0)]


def test_the_row_of_another_task_is_named(small):
    rows = small.rows_file.read_bytes()
    small.rows_file.write_bytes(rows[240:480] + rows[240:])
    small.connection.execute("UPDATE places SET crc = (SELECT crc FROM places WHERE embedding = 2) WHERE embedding = 1")
    assert [number for number, _ in small.verify()] == [1]


def test_a_wrong_sketch_is_named(large):
    large.connection.execute(
        "UPDATE places SET sketch = (SELECT sketch FROM places WHERE embedding = 2) WHERE embedding = 1"
    )
    assert [(number, "sketch" in text) for number, text in large.verify()] == [(1, True)]


def test_a_whole_library_has_nothing_wrong(large):
    assert large.verify() == []


def test_an_entry_that_nothing_can_be_read_of_is_left_out(small):
    spoil_row(small, 4)
    found = small.nearest(small.kept[4], k=30, load=lambda number: None)
    assert len(found) == 29 and 4 not in dict(found)
    assert list(small.search.verify(small.connection, small.space, lambda number: None)) == []


def test_vectors_that_float32_cannot_hold_are_compared_all_the_same(large):
    rng = np.random.default_rng(0)
    vast = [make(np.exp(rng.normal(size=FILTERS)) * 10.0**power) for power in (80, 81, -60)]
    ids = large.add(vast)
    assert large.connection.execute("SELECT count(*) FROM places WHERE slot IS NULL").fetchone()[0] == 3
    assert large.nearest(vast[0], k=3, exact=True) == find_truth(large, vast[0], 3)
    query = make_clusters(1, FILTERS, seed=9)[0]
    assert large.nearest(query, k=303, exact=True) == find_truth(large, query, 303)
    assert large.nearest(vast[1], k=1, candidates=5) == [(ids[1], 0.0)]
    assert large.verify() == []
    large.fit()  # their rows cannot be had, so they have no sketches and are always candidates
    large.loaded.clear()
    large.nearest(query, k=3, candidates=3)
    assert sorted(large.loaded) == ids
    large.fit(load=large.load)
    assert large.connection.execute("SELECT count(*) FROM places WHERE sketch IS NULL").fetchone()[0] == 0


def test_embeddings_of_another_probe_are_never_compared(small):
    stranger = make(np.ones(60), fingerprint="q")
    spoil_row(small, 4)
    with pytest.raises(ProbeMismatchError):
        small.nearest(stranger)


# --- slots, generations, files ---------------------------------------------------------------------------------------


def test_a_slot_is_given_once(small):
    assert [slot for (slot,) in small.connection.execute("SELECT slot FROM places ORDER BY embedding")] == [*range(30)]
    small.remove(30)
    (number,) = small.add(make_clusters(1, seed=3))
    assert small.connection.execute("SELECT slot FROM places WHERE embedding = ?", (number,)).fetchone()[0] == 30


def test_the_tail_of_a_killed_writer_does_no_harm(small):
    with open(small.rows_file, "ab") as file:
        file.write(b"x" * 100)
    (number,) = small.add(make_clusters(1, seed=3))
    assert small.nearest(small.kept[number], k=1) == [(number, 0.0)]
    assert small.verify() == [] and not [one for one in small.loaded if one != number and one > 31]


def test_compacting_leaves_no_holes(large):
    large.remove(*range(1, 201))
    spoil_row(large, 250)
    query = make_clusters(1, FILTERS, seed=9)[0]
    other = Search(large.folder, sketch_from=100)
    before = large.nearest(query, search=other, k=5)
    old = large.rows_file
    with large.writing() as connection:
        large.search.compact(connection, large.space, load=large.load)
    assert {path.name for path in old.parent.glob("*.f32")} == {f"{KEY[:16]}-0.f32", f"{KEY[:16]}-1.f32"}
    with large.writing() as connection:
        assert large.search.sweep(connection) == [old]
    assert large.rows_file.stat().st_size == 100 * 4 * FILTERS
    assert large.nearest(query, search=other, k=5) == large.nearest(query, k=5) == before
    assert large.verify() == []
    (number,) = large.add([query])
    assert large.nearest(query, search=other, k=1) == [(number, 0.0)]


def test_rows_are_on_the_disk_before_the_index_says_so(small, monkeypatch):
    flushed = []
    monkeypatch.setattr(rows.Rows, "sync", lambda self: flushed.append(self.path.name))
    small.add(make_clusters(2, seed=3))
    with small.writing() as connection:
        small.search.compact(connection, small.space)
    assert flushed == [f"{KEY[:16]}-0.f32", f"{KEY[:16]}-1.f32"]


def test_compacting_without_embeddings_drops_what_cannot_be_read(small):
    spoil_row(small, 4)
    with small.writing() as connection:
        small.search.compact(connection, small.space)
    assert small.connection.execute("SELECT slot FROM places WHERE embedding = 4").fetchone() == (None,)
    assert small.nearest(small.kept[4], k=4) == find_truth(small, small.kept[4], 4)


def test_a_compaction_that_was_cut_off_is_done_again(small):
    (small.folder / "search" / f"{KEY[:16]}-1.f32").write_bytes(b"x" * 99999)
    with small.writing() as connection:
        small.search.compact(connection, small.space)
        small.search.sweep(connection)
    assert small.rows_file.stat().st_size == 30 * 240
    assert small.verify() == []


def test_a_reader_that_looks_at_the_old_rows_is_not_misled(small):
    known, _ = small.search.look(small.connection, small.space)
    small.remove(3)
    with small.writing() as connection:
        small.search.compact(connection, small.space)
        small.search.sweep(connection)
    assert not known.rows.path.exists()
    assert small.nearest(small.kept[5], k=3) == find_truth(small, small.kept[5], 3)


def test_sweeping_takes_what_is_nobodys_and_leaves_the_rest(large):
    folder = large.folder / "search"
    mine = {path.name for path in folder.iterdir()}
    for name in ("ffff-0.f32", f"{KEY[:16]}-7.f32", "old.basis", ".x.partial", "readme.txt"):
        (folder / name).write_bytes(b"x")
    with large.writing() as connection:
        gone = large.search.sweep(connection)
    assert {path.name for path in gone} == {"ffff-0.f32", f"{KEY[:16]}-7.f32", "old.basis", ".x.partial"}
    assert {path.name for path in folder.iterdir()} == mine | {"readme.txt"}


def test_nothing_to_sweep(tmp_path):
    shelf = Shelf(tmp_path, filters=3)
    assert shelf.search.sweep(shelf.connection) == []


# --- many threads, many entries --------------------------------------------------------------------------------------


def test_threads_search_while_one_writes(large):
    queries, wrong, stop = make_clusters(5, FILTERS, seed=9), [], threading.Event()

    def ask(seed):
        connection = large.connect()
        while not stop.is_set():
            for query in queries:
                found = large.search.nearest(connection, large.space, query, k=3, load=large.load)
                if len(found) != 3 or found != sorted(found, key=lambda pair: pair[1]):
                    wrong.append(found)
        connection.close()

    large.connection.execute("PRAGMA journal_mode = WAL")
    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for seed in range(20, 30):
        large.add(make_clusters(5, FILTERS, seed=seed))
        large.remove(max(large.kept))
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert large.nearest(queries[0], k=5, candidates=150) == find_truth(large, queries[0], 5)


def test_candidates_of_several_blocks():
    rng = np.random.default_rng(0)
    sketches = rng.normal(size=(BLOCK + 1000, 5)).astype("<f4")
    sketches[:, 3] = np.abs(sketches[:, 3])
    memory = Memory(5)
    entries = [(2 * number, number, 0, one.tobytes()) for number, one in enumerate(sketches)]
    memory.add(entries[:500])
    early = memory.view()
    for at in range(500, len(entries), 8192):
        memory.add(entries[at : at + 8192])
    view = memory.view()
    assert len(early) == 500 and len(view) == BLOCK + 1000
    query = np.abs(rng.normal(size=5)).astype(np.float32)
    apart = np.square(sketches[:, :3] - query[:3]).sum(1) + 0.3 * (sketches[:, 3] ** 2 + query[3] ** 2)
    order = np.argsort(apart * (1 + 0.085 * np.square(sketches[:, 4] - query[4])))
    found = view.find_candidates(query, 40, without=2 * np.sort(order[:10]))
    assert set(found.ids) == set(2 * order[10:50])
    assert np.array_equal(found.slots, found.ids // 2)
    assert len(early.find_candidates(query, 900, without=np.empty(0, dtype=np.int64))) == 500


# --- checking --------------------------------------------------------------------------------------------------------


def test_checking_a_good_search(large):
    found = large.search.check(large.connection, large.space, queries=20, k=5, load=large.load)
    assert (found.entries, found.queries, found.recall) == (300, 20, 1.0)
    assert found.explained > 0.9 and np.isnan(found.explained_since)
    assert found.seconds_exact > 0 and found.seconds_sketch > 0
    assert found.advice == "Nothing to do."


def test_checking_sees_what_is_missed(large):
    # Sketches that say nothing: what they propose is as good as drawn at random.
    blobs = [(np.full(130, number, "<f4").tobytes(), number) for number in large.kept]
    with large.writing() as connection:
        connection.executemany("UPDATE places SET sketch = ? WHERE embedding = ?", blobs)
    found = large.search.check(large.connection, large.space, queries=20, k=5, load=large.load)
    assert 0.1 < found.recall < 0.7
    assert "missed" in found.advice


def test_checking_sees_strangers(large):
    large.add(make_clusters(40, FILTERS, seed=1, own=77))
    found = large.search.check(large.connection, large.space, queries=10, k=5, load=large.load)
    assert found.explained_since < found.explained - 0.2
    assert "task2vec library check-search --refit" in found.advice
    large.fit()
    found = large.search.check(large.connection, large.space, queries=10, k=5, load=large.load)
    assert found.advice == "Nothing to do."


def test_checking_what_needs_none(small):
    found = small.search.check(small.connection, small.space, queries=50, k=5, load=small.load)
    assert (found.entries, found.queries, found.recall) == (30, 30, 1.0)
    assert "all are compared" in found.advice


def test_checking_nothing(tmp_path):
    shelf = Shelf(tmp_path, filters=60)
    found = shelf.search.check(shelf.connection, shelf.space, load=shelf.load)
    assert (found.entries, found.queries, found.recall) == (0, 0, 1.0)


def test_searching_needs_no_torch():
    code = "import sys, task2vec.library.search; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_index_answers_without_reading_everything(small):
    """Finding the next slot must not grow with the library."""
    asked = []
    small.connection.set_trace_callback(asked.append)
    small.add(make_clusters(1, seed=3))
    small.connection.set_trace_callback(None)
    (wanted,) = (one for one in asked if one.startswith("SELECT slot"))
    plan = small.connection.execute(f"EXPLAIN QUERY PLAN {wanted}").fetchall()
    assert "USING INDEX places_by_space" in plan[0][-1] and not any("TEMP B-TREE" in row[-1] for row in plan)
    assert sqlite3.sqlite_version_info > (3, 37)  # STRICT tables
