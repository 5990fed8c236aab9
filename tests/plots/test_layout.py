"""Positions on a plane: deterministic, faithful to neighbourhoods, stable when tasks are added; and curves."""

import sys
from functools import cache

import numpy as np
import pytest

from task2vec.errors import MissingExtraError, UsageError
from task2vec.plots import lay_out
from tests.failures import refuse
from tests.plots.spaces import make_space, measure

# The map of a made-up space; it is read-only, so that tests can share it.
lay_out_space = cache(lambda count: lay_out(make_space(count)[0]))


def nearest(row, positions):
    return int(np.linalg.norm(positions - row, axis=1).argmin())


def test_few_tasks_of_a_plane_keep_their_distances_and_a_new_one_is_placed_exactly(monkeypatch):
    monkeypatch.setitem(sys.modules, "openTSNE", None)
    distances = measure(np.random.default_rng(2).normal(size=(30, 2)))
    for count, method in ((5, None), (29, "classical scaling")):
        known = lay_out(distances[:count, :count], method=method)
        assert known.method == "classical scaling" and known.perplexity is None
        np.testing.assert_allclose(measure(known.positions), distances[:count, :count], atol=1e-9)
        found = np.linalg.norm(known.positions - known.place(distances[count, :count]), axis=1)
        np.testing.assert_allclose(found, distances[count, :count], atol=1e-9)
    refuse(MissingExtraError, r"pip install 'task2vec\[map\]'", lay_out, distances)


def test_the_last_digits_of_the_distances_do_not_turn_the_map_over_and_neighbours_stay():
    distances, datasets = make_space()
    noise = np.triu(np.random.default_rng(0).normal(scale=1e-8, size=distances.shape), 1)
    one, other = lay_out_space(43).positions, lay_out(distances + noise + noise.T).positions
    assert abs(one - other).max() < 0.05 * np.ptp(one)
    again, seeded = (lay_out(distances, seed=seed).positions for seed in (0, 4))
    assert np.array_equal(one, again) and not np.array_equal(one, seeded)
    apart = measure(one) + np.diag([np.inf] * len(one))
    assert all(datasets[near] == dataset for near, dataset in zip(apart.argmin(axis=1), datasets, strict=True))


@pytest.mark.parametrize("count", [1, 7, 8, 43])
def test_a_copy_of_a_known_task_lands_beside_it_and_nothing_else_moves(count):
    alike = lay_out(np.zeros((count, count)))
    assert np.isfinite(alike.positions).all() and np.isfinite(alike.place(np.zeros(count))).all()
    distances, _ = make_space(count)
    found = lay_out_space(count)
    assert found.positions.shape == (count, 2) and np.isfinite(found.positions).all()
    assert found.names == tuple(map(str, range(count))) and (found.method == "t-SNE") == (count >= 8)
    before = found.positions.tobytes(), found.distances.tobytes()
    placed = found.place(distances)
    assert (found.positions.tobytes(), found.distances.tobytes()) == before
    assert [nearest(row, found.positions) for row in placed] == list(range(count))
    assert not found.positions.flags.writeable


def test_new_tasks_join_their_dataset_and_do_not_see_one_another():
    distances, datasets = make_space(24, seed=1)
    new = [0, 10, 23]
    known = [number for number in range(24) if number not in new]
    found = lay_out(distances[np.ix_(known, known)])
    together = found.place(distances[np.ix_(new, known)])
    for row, task in zip(together, new, strict=True):
        assert datasets[known[nearest(row, found.positions)]] == datasets[task]
    alone = np.vstack([found.place(distances[task, known]) for task in new])
    np.testing.assert_allclose(together, alone, atol=1e-6)


def test_what_is_no_distance_matrix_is_refused():
    square = ([[0, np.nan], [np.nan, 0]], [[0, 1], [2, 0]], [[1, 2], [2, 1]], [[0, -1], [-1, 0]])
    for distances in (np.zeros((2, 3)), np.zeros(4), np.zeros((0, 0)), *map(np.array, square)):
        refuse(UsageError, "no map or tree can show", lay_out, distances)


def test_names_and_new_distances_must_fit():
    distances, _ = make_space(9)
    assert lay_out(distances).perplexity == 3
    refuse(UsageError, "2 names do not match 9", lay_out, distances, names=["a", "b"])
    for row in ([1, 2], [[[1, 2, 3]]], [1, 2, np.nan], [1, 2, -3]):
        refuse(UsageError, r"\(new, 3\)", lay_out(distances[:3, :3]).place, row)
