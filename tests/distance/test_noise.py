"""Noise floor, correction and standard error of distances, on made-up tasks whose noise is known."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import spearmanr

from task2vec.distance import NoisyDistance, find_basis, find_floor, pairwise, pairwise_corrected, symmetric, with_error
from task2vec.distance.noise import find_directions, find_noise, subtract_floor
from task2vec.errors import ProbeMismatchError, SettingsMismatchError, UsageError
from tests.distance.material import make
from tests.oracles import distances as slow_distances
from tests.oracles.distances import spread_distance

FILTERS = 1000
# Spread of the logarithms of all filters that move on their own, and of a few directions along which they all do.
NOISES = {
    "each filter on its own": (0.5, 0.0),
    "filters together": (0.15, 0.4),
    "tiny": (1e-3, 0.0),
    "huge": (3.0, 0.0),
}


def estimate(logs, rng, *, alone=0.5, together=0.0, **own):
    """An embedding from two halves, each of twice the variance; its log is their mean, so its variance is as given."""
    ways = np.random.default_rng(99).normal(size=(3, len(logs)))
    noise = alone * rng.normal(size=(2, len(logs))) + together / math.sqrt(3) * rng.normal(size=(2, 3)) @ ways
    halves = np.exp(logs + math.sqrt(2) * noise)
    whole = make(np.sqrt(halves[0] * halves[1]), **own)
    return replace(whole, halves=halves, stderr=alone * whole.fisher)


def repeat(one, other, count, *, seed=0, **noise):
    """Distances of estimates of two tasks, again and again."""
    rng = np.random.default_rng(seed)
    return [with_error(estimate(one, rng, **noise), estimate(other, rng, **noise)) for _ in range(count)]


def table(distances):
    """(value, stderr, floor, corrected) of all."""
    return np.array([(one.value, one.stderr, one.floor, one.corrected) for one in distances]).T


@pytest.fixture(scope="module")
def logs():
    return 2 * np.random.default_rng(1).normal(size=FILTERS)


# --- one task, twice ---


@pytest.mark.parametrize(("alone", "together"), NOISES.values(), ids=NOISES)
def test_the_floor_is_the_distance_of_two_estimates_and_nothing_is_left_above_it(logs, alone, together):
    value, _, floor, corrected = table(repeat(logs, logs, 60, alone=alone, together=together))
    apart = value - floor
    assert abs(apart.mean()) < 4 * apart.std(ddof=1) / math.sqrt(60)
    assert abs(corrected.mean()) < 4 * corrected.std(ddof=1) / math.sqrt(60)
    assert (corrected < 0).any() and (corrected > 0).any()
    assert abs(corrected.mean()) < 0.1 * value.mean()
    # And both are where the formula for a normal spread has them.
    if not together:
        assert value.mean() == pytest.approx(spread_distance(2 * alone**2), rel=0.01)
        assert floor.mean() == pytest.approx(spread_distance(2 * alone**2), rel=0.01)


def test_standard_errors_tell_the_same_floor_where_filters_move_on_their_own(logs):
    rng = np.random.default_rng(0)
    pairs = [[replace(estimate(logs, rng, alone=0.1), halves=None) for _ in range(2)] for _ in range(40)]
    found = [with_error(a, b) for a, b in pairs]
    assert {one.basis for one in found} == {"stderr"}
    value, _, floor, corrected = table(found)
    # Every filter has one step up and one down, and not a normal spread: a little too far, the more so the larger.
    assert floor.mean() == pytest.approx(value.mean(), rel=0.02)
    assert abs(corrected.mean()) < 0.02 * value.mean()


def test_halves_know_what_standard_errors_do_not(logs):
    rng = np.random.default_rng(0)
    a, b = (estimate(logs, rng, alone=0.1, together=0.5) for _ in range(2))
    known, unknown = with_error(a, b), with_error(replace(a, halves=None), b)
    assert (known.basis, unknown.basis) == ("halves", "stderr")
    assert known.value == unknown.value
    assert unknown.floor == pytest.approx(spread_distance(2 * 0.1**2), rel=1e-3)
    assert math.isnan(unknown.stderr) and known.stderr > 0
    assert known.floor > 5 * unknown.floor


# --- two tasks ---


@pytest.mark.parametrize(("alone", "together"), [(0.2, 0.3), (1.5, 0.0)])
@pytest.mark.parametrize("apart", [0.2, 3.0])
def test_the_corrected_distance_is_nearer_to_the_one_without_noise(logs, alone, together, apart):
    others = logs + apart * np.random.default_rng(2).normal(size=FILTERS)
    truth = symmetric(make(np.exp(logs)), make(np.exp(others)))
    value, _, _, corrected = table(repeat(logs, others, 40, alone=alone, together=together))
    assert value.mean() > truth  # noise moves tasks apart
    assert abs(corrected.mean() - truth) < 0.15 * (value.mean() - truth)
    assert np.abs(corrected - truth).mean() < np.abs(value - truth).mean()


@pytest.mark.parametrize(("alone", "together"), [(0.3, 0.0), (0.1, 0.4)])
def test_the_standard_error_is_how_much_the_distance_varies(alone, together):
    rng = np.random.default_rng(3)
    one, other = rng.normal(size=(2, 200))
    value, stderr, _, _ = table(repeat(one, other, 400, alone=alone, together=together))
    assert np.sqrt(np.square(stderr).mean()) == pytest.approx(value.std(), rel=0.25)


def test_steps_and_floors_by_hand():
    halves = [np.array([[1.0, 4.0], [4.0, 1.0]]), np.array([[2.0, 2.0], [1.0, 4.0]])]
    a, b = (replace(make(fisher, prior=1e-12), halves=h) for fisher, h in zip(([2, 2], [1, 4]), halves, strict=True))
    e_a, e_b = np.log([1 / 4, 4]) / 2, np.log([2, 1 / 2]) / 2
    np.testing.assert_allclose(find_noise(a), e_a, rtol=1e-10)
    found = with_error(a, b)

    def apart(u):
        return symmetric(make(np.exp(u)), make(np.ones(2)))

    u = np.log([2, 0.5])
    assert found.value == pytest.approx(apart(u))
    assert found.floor == pytest.approx((apart(e_a + e_b) + apart(e_a - e_b)) / 2)
    steps = [(apart(u + e) - apart(u - e)) / 2 for e in (e_a, e_b)]
    assert found.stderr == pytest.approx(math.hypot(*steps)) and found.stderr > 0.1
    assert found.corrected == pytest.approx(float(subtract_floor(np.array(found.value), np.array(found.floor))))


def test_the_prior_of_the_whole_stands_beside_the_halves():
    a = replace(make([1.0, 1.0], prior=[1.0, 1e-3]), halves=np.array([[1.0, 2.0], [3.0, 0.0]]))
    np.testing.assert_allclose(find_noise(a), np.log([2 / 4, 2.001 / 0.001]) / 2)


# --- what must hold ---


def test_an_embedding_and_itself(logs):
    a = estimate(logs, np.random.default_rng(0))
    found = with_error(a, a)
    assert (found.value, found.corrected, found.stderr) == (0, 0, 0)
    assert 0 < found.floor < 1
    assert with_error(replace(a, halves=None), replace(a, halves=None)).corrected == 0


def test_there_and_back(logs):
    rng = np.random.default_rng(0)
    a, b = estimate(logs, rng), estimate(logs + rng.normal(size=FILTERS), rng, alone=0.2)
    for one, other in ((a, b), (replace(a, halves=None), b)):
        there, back = with_error(one, other), with_error(other, one)
        np.testing.assert_allclose(table([there]), table([back]), rtol=1e-12)
        assert there.value == symmetric(one, other) and there.basis == back.basis


def test_no_noise_takes_nothing_off(logs):
    a, b = make(np.exp(logs)), make(np.exp(logs + np.random.default_rng(0).normal(size=FILTERS)))
    for halves in (lambda one: None, lambda one: np.stack([one.fisher] * 2)):
        found = with_error(replace(a, halves=halves(a)), replace(b, halves=halves(b)))
        assert found.floor == 0 and (math.isnan(found.stderr) if found.basis == "stderr" else found.stderr == 0)
        assert found.corrected == pytest.approx(found.value, rel=1e-12)


def test_filters_that_are_dead_in_both_do_not_count(logs):
    rng = np.random.default_rng(0)
    a, b = (estimate(logs, rng, prior=1e-9) for _ in range(2))

    def bury(one):
        def pad(values):
            return np.concatenate([values, np.zeros((*values.shape[:-1], 50))], axis=-1)

        return replace(
            make(pad(one.fisher), prior=1e-9),
            stderr=pad(one.stderr),
            halves=None if one.halves is None else pad(one.halves),
        )

    for one, other in ((a, b), (replace(a, halves=None), b)):
        np.testing.assert_allclose(
            table([with_error(bury(one), bury(other))]), table([with_error(one, other)]), rtol=1e-9
        )
        assert find_floor(bury(one)) == pytest.approx(find_floor(one), rel=1e-9)
    nothing = make(np.zeros(5), prior=1e-9)
    assert with_error(nothing, nothing) == NoisyDistance(0, 0, 0, 0, "stderr")


def test_filters_that_are_dead_in_one_half_or_one_task_are_borne():
    a = replace(make([1.0, 1.0, 0.0], prior=1e-300), halves=np.array([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]]))
    b = replace(make([0.0, 1.0, 1.0], prior=1e-300), halves=np.array([[0.0, 1.0, 1e-200], [0.0, 1.0, 1e200]]))
    found = with_error(a, b)
    assert all(math.isfinite(number) for number in table([found]).ravel())
    assert 0 < found.value < 1 and 0 < found.floor < 1 and -1 < found.corrected < 1
    assert 0 < find_floor(a) < 1


def test_what_cannot_be_compared_is_refused(logs):
    a = estimate(logs, np.random.default_rng(0))
    with pytest.raises(ProbeMismatchError):
        with_error(a, make(np.exp(logs), fingerprint="q"))
    with pytest.raises(SettingsMismatchError, match="method=direct"):
        with_error(a, make(np.exp(logs), method="direct"))


def test_in_words():
    one = NoisyDistance(0.2345, 0.0129, 0.1, -0.0312, "halves")
    assert str(one) == "0.234 ± 0.013 (noise floor 0.100; corrected -0.031)"
    assert str(replace(one, basis="stderr")) == "0.234 (noise floor 0.100 or more; corrected -0.031)"


# --- taking variances off ---

VARIANCES = [1e-8, 0.01, 0.5, 2.0, 20.0, 1e4]


@pytest.mark.parametrize("noise", VARIANCES)
@pytest.mark.parametrize("variance", VARIANCES)
def test_variances_are_taken_off_as_the_integral_says(variance, noise):
    value, floor = (np.array(spread_distance(v)) for v in (variance + noise, noise))
    left = subtract_floor(value, floor)
    # The curve has 100 points a decade, and tails beyond 1 in 4000 are cut: so exact are the variances.
    room = 1e-3 * variance + 2e-4 * (variance + noise)
    low = variance - room
    assert math.copysign(spread_distance(abs(low)), low) <= left <= spread_distance(variance + room)
    assert subtract_floor(floor, value) == -left


def test_no_floor_takes_nothing_off():
    values = np.concatenate([[0, 1e-300, 1e-12], np.linspace(0.001, 0.9999, 999)])
    np.testing.assert_allclose(subtract_floor(values, np.zeros_like(values)), values, rtol=1e-9, atol=0)


def test_more_distance_leaves_more_and_more_noise_less():
    values = np.linspace(0, 1, 400)
    for floor in (0.0, 0.01, 0.3, 0.9):
        assert (np.diff(subtract_floor(values, np.full(400, floor))) > 0).all()
        assert (np.diff(subtract_floor(np.full(400, floor), values)) < 0).all()
    left = subtract_floor(np.array([0.1, 0.3, 0.2]), np.array([0.2, 0.3, 0.1]))
    assert left[0] < 0 == left[1] < left[2]


def test_the_ends_are_borne():
    ends = np.array([0, 5e-324, 1e-300, 1e-17, 0.5, 1 - 1e-6, np.nextafter(1, 0), 1.0])
    left = subtract_floor(ends[:, None], ends[None])
    assert np.isfinite(left).all() and (abs(left) <= 1).all()
    assert (np.diag(left) == 0).all()
    np.testing.assert_array_equal(left, -left.T)


# --- the floor of one task ---


@pytest.mark.parametrize(("alone", "together"), NOISES.values(), ids=NOISES)
def test_the_floor_of_one_is_that_of_two_such(logs, alone, together):
    rng = np.random.default_rng(0)
    tasks = [estimate(logs, rng, alone=alone, together=together) for _ in range(60)]
    ours = np.array([find_floor(one) for one in tasks])
    pairs = np.array([symmetric(a, b) for a, b in zip(tasks[::2], tasks[1::2], strict=True)])
    error = math.hypot(ours.std(ddof=1) / math.sqrt(60), pairs.std(ddof=1) / math.sqrt(30))
    assert abs(ours.mean() - pairs.mean()) < 4 * error
    if not together:
        bare = [find_floor(replace(one, halves=None)) for one in tasks]
        # Three places stand for a normal distribution: exact for small noise, 2 % low at a relative error of a half.
        assert np.mean(bare) == pytest.approx(spread_distance(2 * alone**2), rel=2e-3 + alone**2 / 10)


def test_the_basis_and_the_floor_of_nothing(logs):
    one = estimate(logs, np.random.default_rng(0))
    assert (find_basis(one), find_basis(replace(one, halves=None))) == ("halves", "stderr")
    assert find_floor(make(np.zeros(4), prior=1e-9)) == 0
    assert find_floor(make(np.ones(4))) == 0


# --- a whole collection -----------------------------------------------------------------------------------------------

TASK_FILTERS = 400


class World:
    """Tasks that are known, and estimates of them that are off along one direction, by a factor, and a little."""

    def __init__(self, tasks=20, *, seed=0, along=1.0, factor=0.5, alone=0.1):
        rng = np.random.default_rng(seed)
        kinds = 0.5 * rng.normal(size=(5, TASK_FILTERS))
        self.truth = (
            kinds[np.arange(tasks) % 5] + 0.15 * rng.normal(size=(tasks, TASK_FILTERS)) + rng.normal(size=TASK_FILTERS)
        )
        self.direction = np.linspace(-1, 1, TASK_FILTERS)  # from the early layers to the late ones
        noise = alone * rng.normal(size=(2, tasks, TASK_FILTERS)) + factor * rng.normal(size=(2, tasks, 1))
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


@pytest.mark.parametrize("seed", range(2))
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
    halves = np.exp(rng.normal(size=TASK_FILTERS) + 0.3 * rng.normal(size=(2, 12, TASK_FILTERS)))
    whole = np.sqrt(halves[0] * halves[1])
    found = correct([replace(make(whole[i]), halves=halves[:, i].copy()) for i in range(12)], 0).values
    above = found[np.triu_indices(12, 1)]
    assert np.std(above) < 0.01
    assert abs(above.mean()) < 0.003 and (above < 0).any() and (above > 0).any()


@pytest.mark.parametrize("tasks", [8, 23])
def test_a_direction_of_independent_noise_costs_little(tasks):
    rng = np.random.default_rng(0)
    halves = np.exp(rng.normal(size=2000) + 0.4 * np.sqrt(2) * rng.normal(size=(2, tasks, 2000)))
    whole = np.sqrt(halves[0] * halves[1])
    same = [replace(make(whole[i]), halves=halves[:, i].copy()) for i in range(tasks)]
    above = np.triu_indices(tasks, 1)
    raw = np.asarray(pairwise(same, device="cpu"))[above].mean()
    assert raw > 0.06
    assert abs(correct(same, 1).values[above].mean()) < 0.05 * raw


@pytest.mark.parametrize("directions", [0, 2])
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


def test_dead_filters_do_not_count_whoever_else_is_there():
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


def test_how_far_tasks_lie_along_the_direction_changes_nothing(world):
    doses = np.array([find_noise(one) for one in world.embeddings])
    (axis,) = find_directions(doses - doses.mean(1, keepdims=True), 1)
    steps = 3 * np.random.default_rng(0).normal(size=20)
    moved = [
        replace(one, fisher=one.fisher * np.exp(step * axis)) for one, step in zip(world.embeddings, steps, strict=True)
    ]
    np.testing.assert_allclose(correct(moved, 1).values, correct(world.embeddings, 1).values, atol=1e-5)
    assert abs(correct(moved, 0).values - correct(world.embeddings, 0).values).max() > 0.001


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


def test_a_filter_that_one_half_does_not_know_does_not_rule():
    rng = np.random.default_rng(0)
    direction = np.linspace(-1, 1, TASK_FILTERS)
    doses = 0.05 * rng.normal(size=(12, TASK_FILTERS)) + 0.3 * rng.normal(size=(12, 1)) * direction
    doses[np.arange(12), rng.integers(TASK_FILTERS, size=12)] = 10.7
    (found,) = find_directions(doses, 1)
    assert abs(found @ direction) / np.linalg.norm(direction) > 0.95


def test_no_more_directions_than_there_are():
    rows = np.outer([0.1, 0.2, -0.1], [3.0, 4.0])
    np.testing.assert_allclose(abs(find_directions(rows, 2)), [[0.6, 0.8]])
    assert find_directions(np.zeros((3, 5)), 2).shape == (0, 5)
    assert find_directions(rows, 0).shape == (0, 2)


# --- invalid collections ---


def test_invalid_collections_are_refused(world):
    a, b = world.embeddings[:2]
    for few in ([], [a]):
        with pytest.raises(UsageError, match=f"^{len(few)} embedding.*at least two"):
            correct(few)
    with pytest.raises(UsageError, match=r"'t1' has no halves.*EmbedSettings\(split_half=True\)"):
        correct([a, replace(b, halves=None)])
    with pytest.raises(UsageError, match=r"'t0' and 2 more have no halves"):
        correct([replace(one, halves=None) for one in world.embeddings[:3]])
    for directions in (-1, 1, 5):
        with pytest.raises(UsageError, match=f"^{directions} directions .* 2 tasks"):
            correct([a, b], directions)
    assert correct([a, b], 0).values.shape == (2, 2)
    with pytest.raises(ProbeMismatchError):
        correct([a, replace(b, provenance={"probe_fingerprint": "q"})])
    with pytest.raises(SettingsMismatchError, match="beta"):
        correct([a, replace(make(b.fisher, beta=1e-3), halves=b.halves)])
