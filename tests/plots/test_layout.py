"""Places on a plane: deterministic, faithful to neighbourhoods, and old ones stay when new tasks come."""

import sys
from functools import cache

import numpy as np
import pytest

from task2vec.atlas import lay_out
from task2vec.errors import MissingExtraError, UsageError
from tests.atlas.spaces import make_space, measure


@cache
def lay_out_space(count=43):
    """The map of a made-up space; it is read-only, so that tests can share it."""
    return lay_out(make_space(count)[0])


def nearest(row, places):
    return int(np.linalg.norm(places - row, axis=1).argmin())


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 30])
def test_any_number_of_tasks_has_places(count):
    found = lay_out_space(count)
    assert found.places.shape == (count, 2)
    assert np.isfinite(found.places).all()
    assert found.names == tuple(map(str, range(count)))
    assert (found.method == "t-SNE") == (count >= 8)


def test_few_tasks_of_a_plane_keep_their_distances():
    distances = measure(np.random.default_rng(0).normal(size=(6, 2)))
    np.testing.assert_allclose(measure(lay_out(distances).places), distances, atol=1e-9)


def test_two_tasks_stand_as_far_apart_as_they_are():
    np.testing.assert_allclose(measure(lay_out([[0, 0.3], [0.3, 0]]).places), [[0, 0.3], [0.3, 0]], atol=1e-12)


def test_the_same_distances_give_the_same_map():
    distances, _ = make_space()
    one, other = lay_out_space(), lay_out(distances)
    assert one.places.tobytes() == other.places.tobytes()
    assert one.places.tobytes() != lay_out(distances, seed=4).places.tobytes()


@pytest.mark.parametrize("count", [10, 43])
def test_the_last_digits_of_the_distances_do_not_turn_the_map_over(count):
    distances, _ = make_space(count)
    noise = np.triu(np.random.default_rng(0).normal(scale=1e-8, size=distances.shape), 1)
    one, other = lay_out_space(count).places, lay_out(distances + noise + noise.T).places
    assert abs(one - other).max() < 0.05 * np.ptp(one)


def test_neighbours_stay_neighbours():
    _, datasets = make_space()
    places = lay_out_space().places
    apart = measure(places) + np.diag([np.inf] * len(places))
    assert all(datasets[near] == dataset for near, dataset in zip(apart.argmin(axis=1), datasets, strict=True))


@pytest.mark.parametrize("count", [4, 12])
def test_tasks_that_are_all_the_same_have_places(count):
    found = lay_out(np.zeros((count, count)))
    assert np.isfinite(found.places).all()
    assert np.isfinite(found.place(np.zeros(count))).all()


@pytest.mark.parametrize("count", [1, 2, 5, 8, 43])
def test_a_copy_of_a_known_task_lands_beside_it_and_nothing_else_moves(count):
    distances, _ = make_space(count)
    found = lay_out_space(count)
    before = found.places.tobytes(), found.distances.tobytes()
    placed = found.place(distances)
    assert (found.places.tobytes(), found.distances.tobytes()) == before
    assert [nearest(row, found.places) for row in placed] == list(range(count))
    assert nearest(found.place(distances[-1])[0], found.places) == count - 1


def test_new_tasks_do_not_see_one_another():
    distances, _ = make_space(44)
    found = lay_out(distances[:40, :40])
    together = found.place(distances[40:, :40])
    alone = np.vstack([found.place(row) for row in distances[40:, :40]])
    np.testing.assert_allclose(together, alone, atol=1e-6)


def test_a_new_task_joins_its_dataset():
    distances, datasets = make_space(45, seed=1)
    new = [0, 20, 44]
    known = [number for number in range(45) if number not in new]
    found = lay_out(distances[np.ix_(known, known)])
    for row, task in zip(found.place(distances[np.ix_(new, known)]), new, strict=True):
        assert datasets[known[nearest(row, found.places)]] == datasets[task]


def test_a_new_task_of_a_plane_is_placed_exactly_among_few():
    points = np.random.default_rng(2).normal(size=(6, 2))
    distances = measure(points)
    found = lay_out(distances[:5, :5])
    placed = found.place(distances[5, :5])
    np.testing.assert_allclose(np.linalg.norm(found.places - placed, axis=1), distances[5, :5], atol=1e-9)


def test_perplexity_follows_the_number_of_tasks():
    assert lay_out(make_space(25)[0]).perplexity == 5
    assert lay_out(make_space(25)[0], perplexity=8).perplexity == 8
    assert lay_out(make_space(5)[0]).perplexity is None


def test_nobody_moves_a_map():
    found = lay_out(make_space(3)[0])
    with pytest.raises(ValueError, match="read-only"):
        found.places[0] = 1


@pytest.mark.parametrize(
    "distances",
    [
        np.zeros((2, 3)),
        np.zeros(4),
        np.zeros((0, 0)),
        [[0, np.nan], [np.nan, 0]],
        [[0, 1], [2, 0]],
        [[1, 2], [2, 1]],
        [[0, -1], [-1, 0]],
    ],
)
def test_what_is_no_distance_matrix_is_refused(distances):
    with pytest.raises(UsageError):
        lay_out(np.array(distances))


def test_names_and_perplexity_must_fit():
    distances, _ = make_space(9)
    with pytest.raises(UsageError, match="2 names do not fit 9"):
        lay_out(distances, ["a", "b"])
    for perplexity in (0, 9, np.inf):
        with pytest.raises(UsageError, match="perplexity"):
            lay_out(distances, perplexity=perplexity)


@pytest.mark.parametrize("row", [[1, 2], [[[1, 2, 3]]], [1, 2, np.nan], [1, 2, -3]])
def test_distances_that_place_nothing_are_refused(row):
    with pytest.raises(UsageError, match=r"\(new, 3\)"):
        lay_out(make_space(3)[0]).place(row)


def test_without_opentsne_the_command_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "openTSNE", None)
    assert len(lay_out(make_space(4)[0])) == 4
    with pytest.raises(MissingExtraError, match=r"pip install 'task2vec\[map\]'"):
        lay_out(make_space(20)[0])


def test_classical_scaling_can_be_asked_for(monkeypatch):
    points = np.random.default_rng(0).normal(size=(30, 2))
    apart = np.linalg.norm(points[:, None] - points[None, :], axis=2)
    monkeypatch.setitem(sys.modules, "openTSNE", None)
    made = lay_out(apart, method="classical scaling")
    assert made.method == "classical scaling" and made.perplexity is None
    found = np.linalg.norm(made.places[:, None] - made.places[None, :], axis=2)
    np.testing.assert_allclose(found, apart, atol=1e-9)  # points of a plane are found again
