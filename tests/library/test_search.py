"""Neighbours are found exactly, or among candidates; where a row cannot be used, the embedding itself is compared."""

import sqlite3

import numpy as np
import pytest

from task2vec.errors import UsageError
from task2vec.library import Library, search
from task2vec.library.search import DIRECTIONS, draw_directions, make_sketch
from tests.failures import refuse
from tests.library.material import change, find_truth, make

FILTERS = 400


def make_clusters(tasks, *, seed=0, clusters=12, noise=0.1):
    """Tasks of different size around some centres."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(0).normal(size=(clusters, FILTERS))
    logs = centres[rng.integers(clusters, size=tasks)] + noise * rng.normal(size=(tasks, FILTERS))
    logs += rng.normal(size=(tasks, 1))
    return [make(f"{seed}-{number}", 1000 * (seed + 1) + number, fisher=np.exp(row)) for number, row in enumerate(logs)]


def nearest(library, what, k=5, **options):
    return [(neighbour.task.name, neighbour.distance) for neighbour in library.nearest(what, k, **options)]


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """The bytes of a library of two hundred tasks."""
    folder = tmp_path_factory.mktemp("large") / "library"
    with Library.open(folder) as library:
        library.add(*make_clusters(200))
    return (folder / "library.sqlite").read_bytes()


@pytest.fixture
def large(shared, tmp_path, monkeypatch):
    """A copy of it, in which sketches choose 60 of 200."""
    monkeypatch.setattr(search, "SKETCH_FROM", 100)
    monkeypatch.setattr(search, "CANDIDATES", 60)
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "library.sqlite").write_bytes(shared)
    with Library.open(tmp_path / "copy") as library:
        yield library


def choose(library, embedding, count):
    """The ids of so many candidates."""
    with library._database.read() as connection:
        return search.choose_candidates(connection, 1, make_sketch(embedding), count)


# --- exact -----------------------------------------------------------------------------------------------------------


def test_equal_distances_are_ordered_by_id(library):
    fisher = np.exp(np.random.default_rng(0).normal(size=60))
    library.add(*(make(name, seed, fisher=fisher) for seed, name in enumerate("edcba")))
    assert nearest(library, make("x", 99, fisher=fisher), 3) == [("e", 0.0), ("d", 0.0), ("c", 0.0)]
    assert len(library.nearest("a", 100)) == 4


@pytest.mark.parametrize("rows_at_once", [1, 7, 1000])
def test_blocks_of_any_size_find_the_same(large, monkeypatch, rows_at_once):
    monkeypatch.setattr(search, "ROWS_AT_ONCE", rows_at_once)
    (query,) = make_clusters(1, seed=9)
    assert nearest(large, query, exact=True) == find_truth(large, query, 5)


def test_vectors_that_float32_cannot_hold_are_compared_all_the_same(large):
    rng = np.random.default_rng(0)
    vast = [make(f"vast {power}", power, fisher=np.exp(rng.normal(size=FILTERS)) * 10.0**power) for power in (80, 81)]
    large.add(*vast)
    assert change(large, "SELECT count(*) FROM embeddings e WHERE e.id NOT IN (SELECT embedding FROM rows)") == [(2,)]
    (query,) = make_clusters(1, seed=9)
    for embedding in (vast[0], query):
        assert nearest(large, embedding, exact=True) == find_truth(large, embedding, 5)
    assert nearest(large, make("query", 5, fisher=vast[1].fisher), 1) == [("vast 81", 0.0)]
    assert large.verify().is_sound


# --- sketches --------------------------------------------------------------------------------------------------------


def test_sketches_find_what_comparing_all_finds_and_other_processes_see_what_changes(large, monkeypatch):
    for query in make_clusters(5, seed=9):
        assert nearest(large, query) == nearest(large, query, exact=True) == find_truth(large, query, 5)
    with Library.open(large.folder) as other:
        (query,) = make_clusters(1, seed=11)
        copy = make("query", 5, fisher=query.fisher)
        before = nearest(other, copy, 1)
        large.add(query)
        assert nearest(other, copy, 1) == nearest(large, copy, 1) == [("11-0", 0.0)]
        large.remove("11-0")
        assert nearest(other, copy, 1) == before
    refuse(UsageError, "cannot be added", large.add, query, "something else")
    assert nearest(large, copy, 1)[0][1] > 0  # an addition that was rolled back is not found


def test_the_closest_sketches_are_chosen_block_by_block(large, monkeypatch):
    (query,) = make_clusters(1, seed=9)
    monkeypatch.setattr(search, "SKETCHES_AT_ONCE", 30)
    *wanted, level = make_sketch(query).astype(float)
    scores = {}
    for number, blob in change(large, "SELECT embedding, sketch FROM sketches"):
        *projections, other_level = np.frombuffer(blob, "<f2").astype(float)
        apart = sum((np.array(projections) - wanted) ** 2)
        scores[number] = apart * (1 + 0.085 * (other_level - level) ** 2)
    assert choose(large, query, 20) == sorted(scores, key=scores.get)[:20]


def test_an_embedding_without_a_usable_sketch_is_always_compared(large):
    query = large.get("0-5")
    change(large, "UPDATE sketches SET sketch = NULL WHERE embedding = 6")
    change(large, "UPDATE sketches SET sketch = x'00' WHERE embedding = 7")
    change(large, f"UPDATE sketches SET sketch = x'{'ff' * 514}' WHERE embedding = 8")  # not a number
    change(large, "DELETE FROM sketches WHERE embedding = 9")
    assert set(choose(large, query, 1)) == {6, 7, 8, 9, choose(large, query, 1)[-1]}
    assert nearest(large, make("query", 5, fisher=query.fisher), 1) == [("0-5", 0.0)]


def test_a_library_with_the_sketches_of_an_earlier_version_is_searched_and_verified(large):
    """Those had 130 numbers in float32, along a basis that was stored with the space; a repair makes new ones."""
    change(large, "UPDATE sketches SET sketch = ?", np.ones(130, "<f4").tobytes())
    change(large, "UPDATE spaces SET basis = x'00', basis_sha256 = 'ab', changes = 7")
    (query,) = make_clusters(1, seed=9)
    assert len(choose(large, query, 1)) == 200
    assert nearest(large, query) == find_truth(large, query, 5)
    assert large.verify().is_sound
    large.close()
    Library.repair(large.folder)
    with sqlite3.connect(large.folder / "library.sqlite") as connection:
        assert connection.execute("SELECT DISTINCT length(sketch) FROM sketches").fetchall() == [(514,)]
    connection.close()


def sketch_slowly(embedding):
    """The definition, in float64."""
    vector = embedding.fisher + embedding.prior
    alive = vector[embedding.fisher > 0] if embedding.fisher.any() else vector
    level = np.log(alive).mean()
    signs = draw_directions(len(vector)).astype(float)
    return [*((np.log(vector) - level) @ signs / np.sqrt(len(vector))), level]


def test_sketches_follow_their_definition():
    """Also of a task with dead filters, with none alive, and of any size."""
    rng = np.random.default_rng(0)
    for scale, alive in ((1.0, 1.0), (1.0, 0.5), (1e-9, 0.9), (1e200, 1.0), (1.0, 0.0)):
        fisher = scale * np.exp(rng.normal(size=300)) * (rng.random(300) < alive)
        embedding = make("x", 1, fisher=fisher)
        assert make_sketch(embedding).tolist() == pytest.approx(sketch_slowly(embedding), rel=2e-3, abs=5e-3)


def test_directions_are_signs_that_never_change():
    """Stored sketches are along them: other signs would make every library wrong."""
    signs = draw_directions(300)
    assert set(signs.ravel()) == {-1.0, 1.0} and signs.shape == (300, DIRECTIONS)
    assert signs[0, :12].tolist() == FIRST_SIGNS
    assert np.array_equal(draw_directions(50), signs[:50])
    gram = signs.T @ signs / 300
    assert np.abs(gram - np.eye(DIRECTIONS)).max() < 0.35


FIRST_SIGNS = [1, 1, -1, 1, 1, 1, -1, 1, 1, 1, 1, -1]
