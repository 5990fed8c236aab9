"""Noise floor, correction and standard error of distances, on made-up tasks whose noise is known."""

import math
from dataclasses import replace

import numpy as np
import pytest

from task2vec.distance import NoisyDistance, find_basis, find_floor, symmetric, with_error
from task2vec.distance.noise import EMBED_AGAIN, find_noise, subtract_floor
from task2vec.embedding import trivial
from task2vec.errors import ProbeMismatchError, SettingsMismatchError
from task2vec.metatask import bundled_metatask
from tests.distance.material import make
from tests.failures import refuse
from tests.oracles.distances import spread_distance

FILTERS, REPEATS = 1000, 60
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


@pytest.fixture(scope="module")
def logs():
    return 2 * np.random.default_rng(1).normal(size=FILTERS)


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
        # Three points stand for a normal distribution: exact for small noise, 2% low at a relative error of a half.
        bare = np.mean([find_floor(replace(one, halves=None)) for one, _ in tasks])
        assert bare == pytest.approx(expected, rel=2e-3 + alone**2 / 10)


def test_the_standard_error_is_how_much_the_distance_varies():
    one, other = np.random.default_rng(3).normal(size=(2, 100))
    rng = np.random.default_rng(0)
    pairs = [[estimate(logs, rng, alone=0.1, together=0.4) for logs in (one, other)] for _ in range(200)]
    value, stderr, _, _ = numbers(with_error(*pair) for pair in pairs)
    assert np.sqrt(np.square(stderr).mean()) == pytest.approx(value.std(), rel=0.25)


def test_steps_and_floors_by_hand():
    halves = [np.array([[1.0, 4.0, 0], [4.0, 1.0, 0]]), np.array([[2.0, 2.0, 0], [1.0, 4.0, 0]])]
    fishers = [2, 2, 0], [1, 4, 0]  # the last filter is dead in both and does not count
    a, b = (replace(make(fisher, prior=1e-12), halves=h) for fisher, h in zip(fishers, halves, strict=True))
    e_a, e_b, u = np.log([1 / 4, 4]) / 2, np.log([2, 1 / 2]) / 2, np.log([2, 0.5])
    np.testing.assert_allclose(find_noise(a)[:2], e_a, rtol=1e-10)

    def apart(u):
        return symmetric(make(np.exp(u)), make(np.ones(len(u))))

    found = with_error(a, b)
    assert found.value == pytest.approx(apart(u))
    assert found.floor == pytest.approx((apart(e_a + e_b) + apart(e_a - e_b)) / 2)
    steps = [(apart(u + e) - apart(u - e)) / 2 for e in (e_a, e_b)]
    assert found.stderr == pytest.approx(math.hypot(*steps)) and found.stderr > 0.1
    assert found.corrected == pytest.approx(float(subtract_floor(np.array(found.value), np.array(found.floor))))
    assert find_floor(a) == pytest.approx(apart(math.sqrt(2) * e_a))
    # A normal error by three points, of weight 4 : 1 : 1.
    a, b = (replace(one, halves=None, stderr=one.fisher / 5) for one in (a, b))
    points = np.append(np.zeros(8), np.sqrt(2 * 3) / 5 * np.array([1, 1, -1, -1]))
    assert find_floor(a) == pytest.approx(apart(points)) == with_error(a, b).floor
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


def test_filters_that_are_dead_in_a_half_or_everywhere_are_borne():
    a = replace(make([1.0, 1.0, 0.0], prior=1e-300), halves=np.array([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]]))
    b = replace(make([0.0, 1.0, 1.0], prior=1e-300), halves=np.array([[0.0, 1.0, 1e-200], [0.0, 1.0, 1e200]]))
    found = with_error(a, b)
    assert math.isfinite(found.stderr) and 0 < find_floor(a) < 1
    assert 0 < found.value < 1 and 0 < found.floor < 1 and -1 < found.corrected < 1
    nothing = make(np.zeros(5), prior=1e-9)
    assert with_error(nothing, nothing) == NoisyDistance(0, 0, 0, 0, "stderr") and find_floor(nothing) == 0


def test_refusals_and_words(logs):
    a = estimate(logs, np.random.default_rng(0))
    refuse(ProbeMismatchError, None, with_error, a, make(np.exp(logs), fingerprint="q"))
    refuse(SettingsMismatchError, "method=direct", with_error, a, make(np.exp(logs), method="direct"))
    one = NoisyDistance(0.2345, 0.0129, 0.1, -0.0312, "halves")
    assert str(one) == "0.234 ± 0.013 (noise floor 0.100; corrected -0.031)"
    assert str(replace(one, basis="stderr")) == "0.234 (noise floor 0.100 or more; corrected -0.031)"


def test_without_standard_errors_the_noise_is_unknown_and_not_none():
    rng = np.random.default_rng(0)
    a, b = estimate(np.zeros(FILTERS), rng), estimate(rng.normal(size=FILTERS), rng)
    blank = replace(a, halves=None, stderr=np.full(FILTERS, math.nan))
    exact = replace(a, halves=None, stderr=np.zeros(FILTERS))  # as of all images of a task: known to be none
    assert exact.has_stderr and find_floor(exact) == 0 and find_basis(exact) == "stderr"
    assert not blank.has_stderr and math.isnan(find_floor(blank)) and find_basis(blank) == "unknown"
    for found in (with_error(blank, b), with_error(b, blank), with_error(blank, exact)):
        assert found.basis == "unknown" and np.isnan((found.floor, found.stderr, found.corrected)).all()
        assert str(found) == f"{found.value:.3f} (noise floor unknown; {EMBED_AGAIN})" and "task2vec embed" in str(
            found
        )
    assert with_error(blank, b).value == symmetric(a, b)
    assert np.isnan(blank.interval()).all()
    dead = replace(make(np.zeros(5)), stderr=np.full(5, math.nan))  # no filter counts: at distance 0, by what error?
    assert math.isnan(find_floor(dead)) and find_floor(trivial(dead)) == 0  # the prior alone has no noise
    for found in (with_error(dead, dead), with_error(dead, trivial(dead))):
        assert (found.value, found.basis) == (0, "unknown")
        assert np.isnan((found.floor, found.stderr, found.corrected)).all()
    bundled = bundled_metatask().embeddings["tf_efficientnet_lite0 robust"]
    assert with_error(*bundled[:2]).basis == "unknown" and with_error(*bundled[:2]).value > 0


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
