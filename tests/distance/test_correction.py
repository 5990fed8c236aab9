"""Distances of a collection without the noise that its tasks have in common: planted, and taken out again."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import spearmanr

from task2vec.distance import pairwise, pairwise_corrected
from task2vec.distance.noise import find_directions, find_noise, subtract_floor
from task2vec.errors import ProbeMismatchError, SettingsMismatchError, UsageError
from tests.distance.material import make
from tests.oracles import slow_distances

FILTERS = 400


class World:
    """Tasks that are known, and estimates of them that are off along one direction, by a factor, and a little."""

    def __init__(self, tasks=20, *, seed=0, along=1.0, factor=0.5, alone=0.1):
        rng = np.random.default_rng(seed)
        kinds = 0.5 * rng.normal(size=(5, FILTERS))
        self.truth = kinds[np.arange(tasks) % 5] + 0.15 * rng.normal(size=(tasks, FILTERS)) + rng.normal(size=FILTERS)
        self.direction = np.linspace(-1, 1, FILTERS)  # from the early layers to the late ones
        noise = alone * rng.normal(size=(2, tasks, FILTERS)) + factor * rng.normal(size=(2, tasks, 1))
        noise += along * rng.normal(size=(2, tasks, 1)) * self.direction
        self.halves = np.exp(self.truth + np.sqrt(2) * noise)
        whole = np.sqrt(self.halves[0] * self.halves[1])
        self.embeddings = [
            replace(make(whole[i], task=f"t{i}"), halves=self.halves[:, i].copy()) for i in range(len(whole))
        ]

    @property
    def distances(self):
        """Without noise."""
        return np.asarray(pairwise([make(np.exp(row)) for row in self.truth], device="cpu"))


@pytest.fixture(scope="module")
def world():
    return World()


def correct(embeddings, directions=None):
    return pairwise_corrected(embeddings, directions=directions, device="cpu")


def agree(found, truth):
    """Mean rank correlation of the distances from each task."""
    others = ~np.eye(len(truth), dtype=bool)
    return np.mean([spearmanr(found[i][others[i]], truth[i][others[i]])[0] for i in range(len(truth))])


@pytest.mark.parametrize("seed", range(3))
def test_neighbours_are_found_again(seed):
    world = World(seed=seed)
    raw = agree(np.asarray(pairwise(world.embeddings, device="cpu")), world.distances)
    bare, shaped = (agree(correct(world.embeddings, count).values, world.distances) for count in (0, 1))
    assert raw < 0.6 < 0.75 < shaped
    assert bare < shaped - 0.1


def test_what_is_left_is_near_the_distance_without_noise(world):
    others = ~np.eye(20, dtype=bool)
    centred = World(along=0.0, factor=0.0, alone=0.0)
    truth = centred.distances[others]
    found = correct(world.embeddings, 1).values[others]
    raw = np.asarray(pairwise(world.embeddings, device="cpu"))[others]
    assert np.abs(found - truth).mean() < 0.1 * np.abs(raw - truth).mean()
    assert found.mean() == pytest.approx(truth.mean(), rel=0.1)


def test_one_task_again_and_again_is_at_zero():
    rng = np.random.default_rng(0)
    halves = np.exp(rng.normal(size=FILTERS) + 0.3 * rng.normal(size=(2, 12, FILTERS)))
    whole = np.sqrt(halves[0] * halves[1])
    found = correct([replace(make(whole[i]), halves=halves[:, i].copy()) for i in range(12)], 0).values
    above = found[np.triu_indices(12, 1)]
    assert np.std(above) < 0.01
    assert abs(above.mean()) < 0.003 and (above < 0).any() and (above > 0).any()


@pytest.mark.parametrize("tasks", [8, 12, 23])
def test_a_direction_of_independent_noise_costs_little(tasks):
    rng = np.random.default_rng(0)
    halves = np.exp(rng.normal(size=2000) + 0.4 * np.sqrt(2) * rng.normal(size=(2, tasks, 2000)))
    whole = np.sqrt(halves[0] * halves[1])
    same = [replace(make(whole[i]), halves=halves[:, i].copy()) for i in range(tasks)]
    above = np.triu_indices(tasks, 1)
    raw = np.asarray(pairwise(same, device="cpu"))[above].mean()
    assert raw > 0.06
    assert abs(correct(same, 1).values[above].mean()) < 0.05 * raw


@pytest.mark.parametrize("directions", [0, 1, 2])
def test_equals_the_definition(directions):
    tasks = World(tasks=9).embeddings
    logs = np.log([one.vector for one in tasks])
    doses = np.array([(np.log(one.halves[0]) - np.log(one.halves[1])) / 2 for one in tasks])
    logs, doses = (rows - rows.mean(1, keepdims=True) for rows in (logs, doses))

    def without(rows, others):
        axes = np.linalg.svd(np.clip(others, -1, 1))[2][:directions]
        return rows - rows @ axes.T @ axes

    logs = without(logs, doses)
    # Eight parts: the first and the ninth task are one of them.
    doses = [without(doses[i], np.delete(doses, [0, 8] if i in (0, 8) else i, axis=0)) for i in range(9)]

    def apart(u):
        return slow_distances.symmetric(np.exp(u).tolist(), [1.0] * len(u))

    found = correct(tasks, directions).values
    for i in range(9):
        for j in range(i):
            value = apart(logs[i] - logs[j])
            floor = (apart(doses[i] + doses[j]) + apart(doses[i] - doses[j])) / 2
            assert found[i, j] == pytest.approx(float(subtract_floor(np.array(value), np.array(floor))), abs=2e-6)


def test_filters_that_are_dead_in_both_do_not_count_whoever_else_is_there():
    def make_partly(rng, live, task):
        fisher = np.where(live, np.exp(rng.normal(size=100)), 0)
        return replace(make(fisher, task=task, prior=1e-6), halves=np.stack([fisher, fisher]))

    rng = np.random.default_rng(0)
    first, second = (make_partly(rng, np.arange(100) < 50, name) for name in "ab")
    alone = correct([first, second]).values[0, 1]
    with_third = correct([first, second, make_partly(rng, np.arange(100) >= 0, "c")], 0).values[0, 1]
    assert alone > 0.1
    assert with_third == pytest.approx(alone, abs=1e-6)


def test_the_table(world):
    found = correct(world.embeddings)
    assert (found.kind, found.rows, found.columns) == ("corrected", tuple(f"t{i}" for i in range(20)), found.rows)
    assert (np.diag(found.values) == 0).all()
    assert (found.values == found.values.T).all()


def test_one_direction_is_taken_out_where_there_are_enough_tasks(world):
    for tasks, expected in ((20, 1), (8, 1), (7, 0), (2, 0)):
        some = world.embeddings[:tasks]
        np.testing.assert_array_equal(correct(some).values, correct(some, expected).values)
    assert abs(correct(world.embeddings, 0).values - correct(world.embeddings, 1).values).max() > 0.1


def test_factors_change_nothing(world):
    before = correct(world.embeddings, 0).values
    rng = np.random.default_rng(0)
    scaled = []
    for one in world.embeddings:
        factor, factors = np.exp(3 * rng.normal()), np.exp(3 * rng.normal(size=(2, 1)))
        scaled.append(replace(one, fisher=one.fisher * factor, halves=one.halves * factors))
    np.testing.assert_allclose(correct(scaled, 0).values, before, atol=1e-5)


def test_how_far_tasks_lie_along_the_direction_changes_nothing(world):
    doses = np.array([find_noise(one) for one in world.embeddings])
    (axis,) = find_directions(doses - doses.mean(1, keepdims=True), 1)
    steps = 3 * np.random.default_rng(0).normal(size=20)
    moved = [
        replace(one, fisher=one.fisher * np.exp(step * axis)) for one, step in zip(world.embeddings, steps, strict=True)
    ]
    np.testing.assert_allclose(correct(moved, 1).values, correct(world.embeddings, 1).values, atol=1e-5)
    assert abs(correct(moved, 0).values - correct(world.embeddings, 0).values).max() > 0.001


def test_filters_that_are_dead_in_all_do_not_count(world):
    def bury(one):
        return replace(
            make(np.append(one.fisher, np.zeros(30)), task=one.task),
            halves=np.concatenate([one.halves, np.zeros((2, 30))], axis=1),
        )

    found = correct([bury(one) for one in world.embeddings]).values
    np.testing.assert_allclose(found, correct(world.embeddings).values, atol=1e-6)


def test_halves_without_a_difference_take_nothing_off(world):
    still = [replace(one, halves=np.stack([one.fisher] * 2)) for one in world.embeddings[:9]]
    logs = np.log([one.vector for one in still])
    plain = pairwise([make(np.exp(row - row.mean())) for row in logs], device="cpu")
    np.testing.assert_allclose(correct(still).values, np.asarray(plain), atol=1e-6)


# --- directions ---


def test_directions_are_those_of_the_largest_singular_values():
    rows = np.random.default_rng(0).normal(size=(9, 40)) * np.geomspace(0.2, 0.002, 40)
    _, _, axes = np.linalg.svd(rows, full_matrices=False)
    for count in (1, 2, 9):
        found = find_directions(rows, count)
        np.testing.assert_allclose(found @ found.T, np.eye(count), atol=1e-9)
        np.testing.assert_allclose(abs((found * axes[:count]).sum(1)), 1, atol=1e-9)  # the same, up to signs


def test_the_planted_direction_is_found(world):
    doses = (np.log(world.halves[0]) - np.log(world.halves[1])) / 2
    (found,) = find_directions(doses - doses.mean(1, keepdims=True), 1)
    assert abs(found @ world.direction) / np.linalg.norm(world.direction) > 0.99


def test_a_filter_that_one_half_does_not_know_does_not_rule():
    rng = np.random.default_rng(0)
    direction = np.linspace(-1, 1, FILTERS)
    doses = 0.05 * rng.normal(size=(12, FILTERS)) + 0.3 * rng.normal(size=(12, 1)) * direction
    doses[np.arange(12), rng.integers(FILTERS, size=12)] = 10.7
    (found,) = find_directions(doses, 1)
    assert abs(found @ direction) / np.linalg.norm(direction) > 0.95


def test_no_more_directions_than_there_are():
    rows = np.outer([0.1, 0.2, -0.1], [3.0, 4.0])
    np.testing.assert_allclose(abs(find_directions(rows, 2)), [[0.6, 0.8]])
    assert find_directions(np.zeros((3, 5)), 2).shape == (0, 5)
    assert find_directions(rows, 0).shape == (0, 2)


# --- what cannot be meant ---


def test_what_cannot_be_meant_is_refused(world):
    a, b = world.embeddings[:2]
    for few in ([], [a]):
        with pytest.raises(UsageError, match=f"^{len(few)} embedding.*at least two"):
            correct(few)
    with pytest.raises(UsageError, match=r"'t1' has no halves.*EmbedSettings\(halves=True\)"):
        correct([a, replace(b, halves=None)])
    with pytest.raises(UsageError, match=r"'t0' and 2 more have no halves"):
        correct([replace(one, halves=None) for one in world.embeddings[:3]])
    for directions in (-1, 1, 5):
        with pytest.raises(UsageError, match=f"directions={directions} .* 2 tasks"):
            correct([a, b], directions)
    assert correct([a, b], 0).values.shape == (2, 2)
    with pytest.raises(ProbeMismatchError):
        correct([a, replace(b, provenance={"probe_fingerprint": "q"})])
    with pytest.raises(SettingsMismatchError, match="beta"):
        correct([a, replace(make(b.fisher, beta=1e-3), halves=b.halves)])
