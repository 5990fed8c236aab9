"""Neighbours are found exactly, or by sketches; where a row cannot be used, the embedding itself is compared."""

import numpy as np
import pytest

from task2vec.errors import UsageError
from task2vec.library import Library
from task2vec.library.search import BLOCK, find_candidates, fit_sketcher, make_block
from tests.failures import refuse
from tests.library.material import change, find_truth, make

# Of the tasks with sketches: more than a sketch has numbers.
FILTERS = 400


def make_clusters(tasks, *, filters=FILTERS, seed=0, clusters=12, noise=0.1, own=0):
    """Tasks around some centres; `own` moves the centres into directions that other seeds do not have."""
    rng, centres = np.random.default_rng(seed), np.random.default_rng(own).normal(size=(clusters, filters))
    logs = centres[rng.integers(clusters, size=tasks)] + noise * rng.normal(size=(tasks, filters))
    logs += rng.normal(size=(tasks, 1))
    return [make(f"{seed}-{number}", 1000 * (seed + 1) + number, fisher=np.exp(one)) for number, one in enumerate(logs)]


def nearest(library, what, k=5, **options):
    return [(one.task.name, one.distance) for one in library.nearest(what, k, **options)]


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Two hundred tasks with sketches."""
    folder = tmp_path_factory.mktemp("large") / "library"
    with Library.open(folder) as library:
        library._search.sketch_from = 200
        library.add(*make_clusters(199))
        library.nearest("0-1")
        assert change(library, "SELECT basis FROM spaces") == [(None,)]  # too few
        library.add(make_clusters(200)[-1])
        steps = []
        library.nearest("0-1", report=lambda stage, total: steps.append((stage, total)) or steps.append)
        assert steps[0] == ("sketches", 200) and sum(steps[1:]) == 200
        assert change(library, "SELECT count(sketch) FROM sketches") == [(200,)]
    return folder


@pytest.fixture
def large(shared, tmp_path):
    """A copy of it."""
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "library.sqlite").write_bytes((shared / "library.sqlite").read_bytes())
    with open_sketched(tmp_path / "copy") as library:
        yield library


def open_sketched(folder):
    library = Library.open(folder)
    library._search.sketch_from = 100
    return library


def refit(library):
    """Drops the basis, and searches once."""
    change(library, "UPDATE spaces SET basis = NULL, basis_sha256 = NULL, changes = changes + 1")
    library.nearest("0-1")


def find_by(library, embedding, candidates, k=5):
    """Names found among so many candidates."""
    with library._database.read() as connection:
        found = library._search.nearest(connection, 1, embedding, k=k, candidates=candidates)
        names = dict(connection.execute("SELECT e.id, t.name FROM embeddings e JOIN tasks t ON t.id = e.task"))
    return [names[number] for number, _ in found]


# --- exact -----------------------------------------------------------------------------------------------------------


def test_equal_distances_are_ordered_by_id(library):
    one = np.exp(np.random.default_rng(0).normal(size=60))
    library.add(*(make(name, seed, fisher=one) for seed, name in enumerate("edcba")))
    assert nearest(library, make("x", 99, fisher=one), 3) == [("e", 0.0), ("d", 0.0), ("c", 0.0)]
    assert len(library.nearest("a", 100)) == 4


def test_vectors_that_float32_cannot_hold_are_compared_all_the_same(large):
    rng = np.random.default_rng(0)
    vast = [make(f"vast {power}", power, fisher=np.exp(rng.normal(size=FILTERS)) * 10.0**power) for power in (80, 81)]
    large.add(*vast)
    assert change(large, "SELECT count(*) FROM embeddings e WHERE e.id NOT IN (SELECT embedding FROM rows)") == [(2,)]
    query = make_clusters(1, seed=9)[0]
    for what in (vast[0], query):
        assert nearest(large, what, exact=True) == find_truth(large, what, 5)
    assert nearest(large, make("query", 5, fisher=vast[1].fisher), 1) == [("vast 81", 0.0)]
    assert large.verify().is_sound
    refit(large)
    assert change(large, "SELECT count(*) FROM sketches WHERE sketch IS NULL") == [(0,)]


# --- sketches --------------------------------------------------------------------------------------------------------


def test_sketches_find_what_comparing_all_finds_and_other_processes_see_what_changes(large):
    for query in make_clusters(5, seed=9):
        exact = nearest(large, query, exact=True)
        assert nearest(large, query) == exact and find_by(large, query, 60) == [name for name, _ in exact]
    assert exact == find_truth(large, query, 5)
    with open_sketched(large.folder) as other:
        query = make_clusters(1, seed=11)[0]
        asked = make("query", 5, fisher=query.fisher)
        before = nearest(other, asked, 1)
        large.add(query)
        assert nearest(other, asked, 1) == nearest(large, asked, 1) == [("11-0", 0.0)]
        assert change(large, "SELECT count(*) FROM sketches WHERE sketch IS NULL") == [(0,)]
        large.remove("11-0")
        assert nearest(other, asked, 1) == before
        large.add(*make_clusters(50, seed=12, own=3))
        refit(large)
        assert nearest(other, asked) == find_truth(large, asked, 5)
        with other._database.read() as connection:
            known = other._search.look(connection, 1)
            ((basis,),) = connection.execute("SELECT basis_sha256 FROM spaces").fetchall()
        assert known.basis_sha256 == basis and np.array_equal(known.ids, np.unique(known.ids))
    refuse(UsageError, "cannot be added", large.add, query, "something else")
    large.add(*make_clusters(2, seed=11)[1:])
    assert nearest(large, asked, 1)[0][1] > 0  # an addition that was rolled back is forgotten


def test_an_entry_without_a_sketch_is_always_compared(large):
    query = large.get("0-5")
    change(large, "UPDATE sketches SET sketch = NULL WHERE embedding IN (6, 7)")
    change(large, "UPDATE sketches SET sketch = x'00' WHERE embedding = 8")
    with open_sketched(large.folder) as other:
        assert find_by(other, query, 1, k=1) == ["0-5"]
        with other._database.read() as connection:
            known = other._search.look(connection, 1)
        assert {6, 7, 8} <= set(find_candidates(known.blocks, np.zeros(130, np.float32), 1))


def test_candidates_of_several_blocks():
    rng = np.random.default_rng(0)
    sketches = rng.normal(size=(BLOCK + 1000, 5)).astype("<f4")
    sketches[:, 3] = np.abs(sketches[:, 3])
    entries = [(2 * number, one.tobytes()) for number, one in enumerate(sketches)]
    blocks = [make_block(entries[:500], 5).join(make_block(entries[500:BLOCK], 5)), make_block(entries[BLOCK:], 5)]
    query = np.abs(rng.normal(size=5)).astype(np.float32)
    apart = np.square(sketches[:, :3] - query[:3]).sum(1) + 0.3 * (sketches[:, 3] ** 2 + query[3] ** 2)
    order = np.argsort(apart * (1 + 0.085 * np.square(sketches[:, 4] - query[4])))
    assert set(find_candidates(blocks, query, 40)) == set(2 * order[:40])
    assert len(find_candidates(blocks[:1], query, BLOCK + 900)) == BLOCK


# --- the basis -------------------------------------------------------------------------------------------------------


def make_vectors(tasks, *, rank=5, filters=300, noise=0.0, size=0.5):
    rng = np.random.default_rng(0)
    logs = size * rng.normal(size=(tasks, rank)) @ rng.normal(size=(rank, filters))
    return np.exp(logs + noise * rng.normal(size=(tasks, filters))).astype(np.float32)


def sketch_slowly(sketcher, vector):
    """The definition, in float64."""
    vector, size = vector.astype(np.float64), len(vector)
    alive = vector[vector > 0] if (vector > 0).any() else -vector
    level = np.log(alive).mean()
    parts = np.clip(np.log(np.abs(vector)) - level - sketcher.mean, -2.5, 2.5)
    parts[vector < 0] = -1.25
    held, rest = (parts @ directions / np.sqrt(size) for directions in (sketcher.principal, sketcher.random))
    return [*held, *rest, np.sqrt(np.square(parts).mean() - np.square(held).sum()), level]


def test_sketches_follow_their_definition():
    """Also of a task with dead filters, with none alive, with one that outlies, and of any size."""
    vectors = make_vectors(200, noise=0.1).astype(np.float64)
    vectors[:100, :50] *= np.where(np.random.default_rng(0).random((100, 50)) < 0.5, -1, 1)
    sketcher = fit_sketcher(vectors, size=9, principal=5)
    some = vectors[90:110].copy()
    some[0], some[1, 7], some[2] = -1e-5, 1e12, some[2] * 1e200
    some[3] = np.where(some[3] < 0, 1e-9 * some[3], some[3])  # the prior of a dead filter does not matter
    for one, sketch in zip(some, sketcher.project(some), strict=True):
        assert sketch == pytest.approx(sketch_slowly(sketcher, one), rel=1e-3, abs=1e-3)
    assert np.array_equal(sketcher.project(some[3:4]), sketcher.project(vectors[93:94]))


def test_the_directions_are_orthogonal_and_those_that_the_sample_does_not_have_are_drawn():
    sketcher = fit_sketcher(make_vectors(100, rank=20, size=0.1), size=30, principal=6)
    every = np.concatenate([sketcher.principal, sketcher.random], axis=1).astype(float)
    gram = every.T @ every
    assert gram == pytest.approx(np.diag(np.diag(gram)), abs=1e-3)
    assert np.diag(gram)[:6] == pytest.approx(np.ones(6), abs=1e-4)
    assert np.diag(gram)[6:] == pytest.approx(np.full(24, 0.7 * 294 / 24), rel=1e-4)
    sketcher = fit_sketcher(make_vectors(100, size=0.1), size=24, principal=20)
    assert 5 <= sketcher.principal.shape[1] < 12  # the rank, and what clipping adds
    assert sketcher.width == 26
    assert fit_sketcher(make_vectors(100, filters=10), size=24, principal=6).width == 12  # no more than filters
    vectors = np.repeat(make_vectors(1), 5, axis=0)  # equal tasks
    assert np.abs(fit_sketcher(vectors, size=4).project(vectors)[:, :-1]).max() < 1e-5
