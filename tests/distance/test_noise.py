"""Noise floor, correction and standard error of a distance, on made-up tasks whose noise is known."""

import math
from dataclasses import replace

import numpy as np
import pytest

from task2vec.distance import NoisyDistance, symmetric, with_error
from task2vec.distance.noise import find_basis, find_floor, find_noise, subtract_floor
from task2vec.errors import ProbeMismatchError, SettingsMismatchError
from tests.distance.material import make
from tests.oracles.normal_spread import spread_distance

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


@pytest.mark.parametrize(("alone", "together"), [(0.5, 0.0), (0.2, 0.3), (1.5, 0.0)])
@pytest.mark.parametrize("apart", [0.2, 1.0, 3.0])
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

VARIANCES = [1e-8, 1e-4, 0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 20.0, 100.0, 1e4]


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


def test_the_integral_is_the_mean_of_many_filters():
    rng = np.random.default_rng(0)
    for variance in (0.01, 1.0, 30.0):
        u = math.sqrt(variance) * rng.normal(size=400_000)
        found = symmetric(make(np.exp(u)), make(np.ones(len(u))))
        assert found == pytest.approx(spread_distance(variance), rel=0.01)


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
