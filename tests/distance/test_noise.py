"""Noise floor, correction and standard error of distances, on made-up tasks whose noise is known."""

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import spearmanr

from task2vec.distance import NoisyDistance, find_basis, find_floor, pairwise, pairwise_corrected, symmetric, with_error
from task2vec.distance.noise import find_directions, find_noise, subtract_floor
from task2vec.errors import ProbeMismatchError, SettingsMismatchError, UsageError
from tests.distance.material import make
from tests.oracles import distances as slow_distances
from tests.oracles.distances import spread_distance

FILTERS, TASK_FILTERS, REPEATS = 1000, 400, 60
# Spread of the logarithms of all filters that move on their own, and of a few directions along which they all do.
NOISES = {"each filter on its own": (0.5, 0.0), "filters together": (0.15, 0.4), "huge": (3.0, 0.0)}


def estimate(logs, rng, *, alone=0.5, together=0.0, **own):
    """An embedding from two halves, each of twice the variance; its log is their mean, so its variance is as given."""
    ways = np.random.default_rng(99).normal(size=(3, len(logs)))
    noise = alone * rng.normal(size=(2, len(logs))) + together / math.sqrt(3) * rng.normal(size=(2, 3)) @ ways
    halves = np.exp(logs + math.sqrt(2) * noise)
    whole = make(np.sqrt(halves[0] * halves[1]), **own)
    return replace(whole, halves=halves, stderr=alone * whole.fisher)


def numbers(distances):
    """(value, stderr, floor, corrected) of all."""
    return np.array([(one.value, one.stderr, one.floor, one.corrected) for one in distances]).T


def repeat(one, other, count, **noise):
    """The numbers of estimates of two tasks, again and again."""
    rng = np.random.default_rng(0)
    return numbers(with_error(estimate(one, rng, **noise), estimate(other, rng, **noise)) for _ in range(count))


@pytest.fixture(scope="module")
def logs():
    return 2 * np.random.default_rng(1).normal(size=FILTERS)


# --- two estimates ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("alone", "together"), NOISES.values(), ids=NOISES)
def test_the_floor_is_the_distance_of_two_estimates_and_nothing_is_left_above_it(logs, alone, together):
    rng = np.random.default_rng(0)
    tasks = [[estimate(logs, rng, alone=alone, together=together) for _ in range(2)] for _ in range(REPEATS)]
    value, _, floor, corrected = numbers(with_error(*pair) for pair in tasks)
    own = np.array([find_floor(one) for one, _ in tasks])  # that of one task is that of two such
    for apart in (value - floor, value - own, corrected):
        assert abs(apart.mean()) < 4 * apart.std(ddof=1) / math.sqrt(REPEATS)
    assert (corrected < 0).any() and (corrected > 0).any() and abs(corrected.mean()) < 0.1 * value.mean()
    if not together:  # and they are where the formula for a normal spread has them
        expected = spread_distance(2 * alone**2)
        assert [value.mean(), floor.mean()] == pytest.approx([expected] * 2, rel=0.02)
        # Three points stand for a normal distribution: exact for small noise, 2 % low at a relative error of a half.
        bare = np.mean([find_floor(replace(one, halves=None)) for one, _ in tasks])
        assert bare == pytest.approx(expected, rel=2e-3 + alone**2 / 10)


@pytest.mark.parametrize(("alone", "together", "apart"), [(0.2, 0.3, 0.2), (1.5, 0.0, 3.0)])
def test_the_corrected_distance_is_nearer_to_the_one_without_noise(logs, alone, together, apart):
    others = logs + apart * np.random.default_rng(2).normal(size=FILTERS)
    truth = symmetric(make(np.exp(logs)), make(np.exp(others)))
    value, _, _, corrected = repeat(logs, others, REPEATS, alone=alone, together=together)
    assert value.mean() > truth  # noise moves tasks apart
    assert abs(corrected.mean() - truth) < 0.15 * (value.mean() - truth)
    assert np.abs(corrected - truth).mean() < np.abs(value - truth).mean()


def test_the_standard_error_is_how_much_the_distance_varies():
    one, other = np.random.default_rng(3).normal(size=(2, 100))
    value, stderr, _, _ = repeat(one, other, 200, alone=0.1, together=0.4)
    assert np.sqrt(np.square(stderr).mean()) == pytest.approx(value.std(), rel=0.25)


def test_steps_and_floors_by_hand():
    halves = [np.array([[1.0, 4.0], [4.0, 1.0]]), np.array([[2.0, 2.0], [1.0, 4.0]])]
    a, b = (replace(make(fisher, prior=1e-12), halves=h) for fisher, h in zip(([2, 2], [1, 4]), halves, strict=True))
    e_a, e_b, u = np.log([1 / 4, 4]) / 2, np.log([2, 1 / 2]) / 2, np.log([2, 0.5])
    np.testing.assert_allclose(find_noise(a), e_a, rtol=1e-10)

    def apart(u):
        return symmetric(make(np.exp(u)), make(np.ones(2)))

    found = with_error(a, b)
    assert found.value == pytest.approx(apart(u))
    assert found.floor == pytest.approx((apart(e_a + e_b) + apart(e_a - e_b)) / 2)
    steps = [(apart(u + e) - apart(u - e)) / 2 for e in (e_a, e_b)]
    assert found.stderr == pytest.approx(math.hypot(*steps)) and found.stderr > 0.1
    assert found.corrected == pytest.approx(float(subtract_floor(np.array(found.value), np.array(found.floor))))
    # The prior of the whole stands beside the halves.
    a = replace(make([1.0, 1.0], prior=[1.0, 1e-3]), halves=np.array([[1.0, 2.0], [3.0, 0.0]]))
    np.testing.assert_allclose(find_noise(a), np.log([2 / 4, 2.001 / 0.001]) / 2)


@pytest.mark.parametrize("has_halves", [True, False])
def test_itself_there_and_back_and_no_noise(logs, has_halves):
    rng = np.random.default_rng(0)
    a, b = estimate(logs, rng), estimate(logs + rng.normal(size=FILTERS), rng, alone=0.2)
    a = a if has_halves else replace(a, halves=None)
    same, there, back = with_error(a, a), with_error(a, b), with_error(b, a)
    assert same.value == same.corrected == 0 < same.floor < 1 and (same.stderr == 0) == has_halves
    np.testing.assert_allclose(numbers([there]), numbers([back]), rtol=1e-12)
    assert there.value == symmetric(a, b) and math.isnan(there.stderr) != has_halves
    assert there.basis == back.basis == find_basis(a) == ("halves" if has_halves else "stderr")
    still = [replace(make(one.fisher), halves=np.stack([one.fisher] * 2) if has_halves else None) for one in (a, b)]
    assert with_error(*still).floor == find_floor(still[0]) == 0
    assert with_error(*still).corrected == pytest.approx(there.value, rel=1e-12)


@pytest.mark.parametrize("has_halves", [True, False])
def test_filters_that_are_dead_in_both_do_not_count(logs, has_halves):
    def bury(one, more):
        stderr, halves = np.pad(one.stderr, (0, more)), np.pad(one.halves, [(0, 0), (0, more)])
        whole = make(np.pad(one.fisher, (0, more)), prior=1e-9)
        return replace(whole, stderr=stderr, halves=halves if has_halves else None)

    rng = np.random.default_rng(0)
    tasks = [estimate(logs, rng) for _ in range(2)]
    alive, buried = ([bury(one, more) for one in tasks] for more in (0, 50))
    np.testing.assert_allclose(numbers([with_error(*buried)]), numbers([with_error(*alive)]), rtol=1e-9)
    assert find_floor(buried[0]) == pytest.approx(find_floor(alive[0]), rel=1e-9)


def test_filters_that_are_dead_in_a_half_or_everywhere_are_borne():
    a = replace(make([1.0, 1.0, 0.0], prior=1e-300), halves=np.array([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]]))
    b = replace(make([0.0, 1.0, 1.0], prior=1e-300), halves=np.array([[0.0, 1.0, 1e-200], [0.0, 1.0, 1e200]]))
    found = with_error(a, b)
    assert np.isfinite(numbers([found])).all() and 0 < find_floor(a) < 1
    assert 0 < found.value < 1 and 0 < found.floor < 1 and -1 < found.corrected < 1
    nothing = make(np.zeros(5), prior=1e-9)
    assert with_error(nothing, nothing) == NoisyDistance(0, 0, 0, 0, "stderr") and find_floor(nothing) == 0


def test_refusals_and_words(logs):
    a = estimate(logs, np.random.default_rng(0))
    with pytest.raises(ProbeMismatchError):
        with_error(a, make(np.exp(logs), fingerprint="q"))
    with pytest.raises(SettingsMismatchError, match="method=direct"):
        with_error(a, make(np.exp(logs), method="direct"))
    one = NoisyDistance(0.2345, 0.0129, 0.1, -0.0312, "halves")
    assert str(one) == "0.234 ± 0.013 (noise floor 0.100; corrected -0.031)"
    assert str(replace(one, basis="stderr")) == "0.234 (noise floor 0.100 or more; corrected -0.031)"


# --- subtracting variances --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("variance", "noise"), [(1e-8, 1e-8), (0.5, 20.0), (20.0, 0.5), (1e4, 1e-8), (1e-8, 1e4)])
def test_variances_are_subtracted_as_the_integral_says(variance, noise):
    value, floor = (np.array(spread_distance(v)) for v in (variance + noise, noise))
    left = subtract_floor(value, floor)
    # The curve has 100 points a decade, and tails beyond 1 in 4000 are cut: so exact are the variances.
    room = 1e-3 * variance + 2e-4 * (variance + noise)
    low = variance - room
    assert math.copysign(spread_distance(abs(low)), low) <= left <= spread_distance(variance + room)


def test_subtraction_is_monotonic_antisymmetric_and_finite():
    values = np.concatenate([[0, 1e-300, 1e-12], np.linspace(0.001, 0.9999, 99)])
    np.testing.assert_allclose(subtract_floor(values, np.zeros_like(values)), values, rtol=1e-9, atol=0)
    for floor in (0.0, 0.3, 0.9):
        assert (np.diff(subtract_floor(np.linspace(0, 1, 99), np.full(99, floor))) > 0).all()
    ends = np.array([0, 5e-324, 1e-300, 1e-17, 0.5, 1 - 1e-6, np.nextafter(1, 0), 1.0])
    left = subtract_floor(ends[:, None], ends[None])
    assert np.isfinite(left).all() and (abs(left) <= 1).all() and (np.diag(left) == 0).all()
    np.testing.assert_array_equal(left, -left.T)


# --- a whole collection -----------------------------------------------------------------------------------------------


def halve(truth, rng, *, along=0.0, factor=0.0, alone=0.1):
    """Embeddings of rows of logs that are off along one direction, by a factor, and each filter on its own."""
    noise = alone * rng.normal(size=(2, *truth.shape)) + factor * rng.normal(size=(2, len(truth), 1))
    layers = np.linspace(-1, 1, TASK_FILTERS)  # from early layers to late ones
    noise += along * rng.normal(size=(2, len(truth), 1)) * layers
    halves = np.exp(truth + np.sqrt(2) * noise)
    whole = np.sqrt(halves[0] * halves[1])
    return [replace(make(whole[i], task=f"t{i}"), halves=halves[:, i].copy()) for i in range(len(truth))]


@pytest.fixture(scope="module")
def truth():
    """The logs of twenty tasks of five kinds."""
    rng = np.random.default_rng(0)
    kinds = 0.5 * rng.normal(size=(5, TASK_FILTERS))
    return kinds[np.arange(20) % 5] + 0.15 * rng.normal(size=(20, TASK_FILTERS)) + rng.normal(size=TASK_FILTERS)


@pytest.fixture(scope="module")
def tasks(truth):
    return halve(truth, np.random.default_rng(1), along=1.0, factor=0.5)


def correct(embeddings, directions=None):
    return pairwise_corrected(embeddings, directions=directions, device="cpu").values


def test_neighbours_and_distances_are_found_again(truth, tasks):
    exact = np.asarray(pairwise([make(np.exp(row)) for row in truth], device="cpu"))
    others = ~np.eye(20, dtype=bool)

    def agree(found):
        """Mean rank correlation of the distances from each task."""
        return np.mean([spearmanr(found[i][others[i]], exact[i][others[i]])[0] for i in range(20)])

    raw = np.asarray(pairwise(tasks, device="cpu"))
    bare, shaped = (correct(tasks, count) for count in (0, 1))
    assert agree(raw) < 0.6 < 0.75 < agree(shaped) and agree(bare) < agree(shaped) - 0.1
    assert np.abs(shaped - exact)[others].mean() < 0.1 * np.abs(raw - exact)[others].mean()
    assert shaped[others].mean() == pytest.approx(exact[others].mean(), rel=0.1)


@pytest.mark.parametrize("directions", [0, 1])
def test_one_task_again_and_again_is_at_zero(directions):
    rng = np.random.default_rng(0)
    same = halve(np.tile(rng.normal(size=TASK_FILTERS), (16, 1)), rng, alone=0.4)
    above = correct(same, directions)[np.triu_indices(16, 1)]
    raw = np.asarray(pairwise(same, device="cpu"))[np.triu_indices(16, 1)].mean()
    assert raw > 0.06 and abs(above.mean()) < 0.1 * raw
    assert directions or ((above < 0).any() and (above > 0).any())


@pytest.mark.parametrize("directions", [0, 2])
def test_equals_the_definition(tasks, directions):
    tasks = tasks[:9]
    logs = np.log([one.vector for one in tasks])
    noise = np.array([(np.log(one.halves[0]) - np.log(one.halves[1])) / 2 for one in tasks])
    logs, noise = (rows - rows.mean(1, keepdims=True) for rows in (logs, noise))

    def without(rows, others):
        axes = np.linalg.svd(np.clip(others, -1, 1))[2][:directions]
        return rows - rows @ axes.T @ axes

    logs = without(logs, noise)
    # Eight parts: the first and the ninth task are one of them.
    noise = [without(noise[i], np.delete(noise, [0, 8] if i in (0, 8) else i, axis=0)) for i in range(9)]

    def apart(u):
        return slow_distances.symmetric(np.exp(u).tolist(), [1.0] * len(u))

    found = correct(tasks, directions)
    for i, j in combinations(range(9), 2):
        value = apart(logs[i] - logs[j])
        floor = (apart(noise[i] + noise[j]) + apart(noise[i] - noise[j])) / 2
        assert found[i, j] == pytest.approx(float(subtract_floor(np.array(value), np.array(floor))), abs=2e-6)


def test_dead_filters_do_not_count_whoever_else_is_there_and_equal_halves_take_nothing_off():
    rng = np.random.default_rng(0)
    fishers = [np.where(np.arange(100) < live, np.exp(rng.normal(size=100)), 0) for live in (50, 50, 100)]
    three = [replace(make(fisher, prior=1e-6), halves=np.stack([fisher] * 2)) for fisher in fishers]
    plain = [make(np.exp(np.log(fisher[:50]) - np.log(fisher[:50]).mean())) for fisher in fishers[:2]]
    assert correct(three, 0)[0, 1] == pytest.approx(correct(three[:2])[0, 1], abs=1e-6)
    assert correct(three, 0)[0, 1] == pytest.approx(symmetric(*plain), abs=1e-5) and correct(three)[0, 1] > 0.1


def test_the_table_and_its_directions(tasks):
    found = pairwise_corrected(tasks, device="cpu")
    assert (found.kind, found.rows, found.columns) == ("corrected", tuple(f"t{i}" for i in range(20)), found.rows)
    assert (np.diag(found.values) == 0).all() and (found.values == found.values.T).all()
    for count, expected in ((8, 1), (7, 0)):  # one, where there are enough tasks
        np.testing.assert_array_equal(correct(tasks[:count]), correct(tasks[:count], expected))
    assert abs(correct(tasks, 0) - found.values).max() > 0.1
    # How far tasks lie along the direction changes nothing.
    noise = np.array([find_noise(one) for one in tasks])
    (axis,) = find_directions(noise - noise.mean(1, keepdims=True), 1)
    steps = 3 * np.random.default_rng(0).normal(size=20)
    moved = [replace(one, fisher=one.fisher * np.exp(step * axis)) for one, step in zip(tasks, steps, strict=True)]
    np.testing.assert_allclose(correct(moved, 1), found.values, atol=1e-5)
    assert abs(correct(moved, 0) - correct(tasks, 0)).max() > 0.001
    # There are no more directions than the noise has.
    np.testing.assert_allclose(abs(find_directions(np.outer([0.1, 0.2, -0.1], [3.0, 4.0]), 2)), [[0.6, 0.8]])
    assert find_directions(np.zeros((3, 5)), 2).shape == (0, 5)


def test_invalid_collections_are_refused(tasks):
    a, b, c = tasks[:3]
    bare = [replace(one, halves=None) for one in (a, b, c)]
    for few, directions, words in (
        ([a], None, "^1 embedding.*at least two"),
        ([a, bare[1]], None, r"'t1' has no halves.*EmbedSettings\(split_half=True\)"),
        (bare, None, "'t0' and 2 more have no halves"),
        ([a, b], -1, "^-1 directions .* 2 tasks"),
        ([a, b], 1, "^1 directions .* 2 tasks"),
    ):
        with pytest.raises(UsageError, match=words):
            correct(few, directions)
    with pytest.raises(ProbeMismatchError):
        correct([a, replace(b, provenance={"probe_fingerprint": "q"})])
    with pytest.raises(SettingsMismatchError, match="beta"):
        correct([a, replace(make(b.fisher, beta=1e-3), halves=b.halves)])
