"""Diversity of collections, against loops over pairs, and on made-up collections whose spread is known."""

import math
from functools import partial
from itertools import chain

import numpy as np
import pytest

from task2vec.distance import cosine, cross_diversity, diversity, symmetric
from task2vec.errors import ProbeMismatchError, UsageError
from tests.distance.material import make
from tests.failures import refuse
from tests.oracles.distances import slow_coefficient, slow_cross, slow_error, slow_floor

FILTERS = 60


def draw(count, seed, *, between=0.5, noise=0.3, centre=0.0):
    """Batches and twins: each pair has a kind of its own, `between` apart, and each of the two has its own noise."""
    rng = np.random.default_rng(seed)
    base = np.random.default_rng(99).normal(size=FILTERS) + centre * np.random.default_rng(98).normal(size=FILTERS)
    kinds = base + between * rng.normal(size=(count, FILTERS))
    return [[make(np.exp(kind + noise * rng.normal(size=FILTERS))) for kind in kinds] for _ in range(2)]


measure, measure_cross = partial(diversity, device="cpu"), partial(cross_diversity, device="cpu")


def check(found, numbers, *collections):
    """Whether values and standard errors are those of the slow numbers."""
    for name, number in numbers.items():
        assert getattr(found, name).value == pytest.approx(number(*collections), abs=1e-6)
        assert getattr(found, name).stderr == pytest.approx(slow_error(number, *collections), rel=1e-4)


@pytest.mark.parametrize(("kind", "distance", "has_twins"), [("symmetric", symmetric, False), ("cosine", cosine, True)])
def test_it_is_what_loops_over_pairs_give(kind, distance, has_twins):
    collection = draw(6, 0)[: 1 + has_twins]

    def coefficient(members):
        return slow_coefficient(members[0], members[1] if has_twins else None, distance)

    def floor(members):
        return slow_floor(*members, distance)

    found = measure(*collection, kind=kind)
    check(found, {"coefficient": coefficient}, collection)
    assert (found.batches, found.kind) == (6, kind)
    if has_twins:
        check(found, {"floor": floor, "excess": lambda members: coefficient(members) - floor(members)}, collection)
    else:
        assert found.floor is None and found.excess is None


@pytest.mark.parametrize("count", [1, 2])
def test_two_collections_are_what_loops_give_with_twins_or_without(count):
    ones, others = draw(5, 1)[:count], draw(7, 2, centre=0.5)[:count]

    def cross(one, other):
        return slow_cross([*chain(*one)], [*chain(*other)], symmetric)

    def own(*both):
        return np.mean([slow_coefficient(side[0], side[1] if count == 2 else None, symmetric) for side in both])

    found = measure_cross(ones[0], others[0], twins=(ones[1], others[1]) if count == 2 else None)
    excess = {"excess": lambda *both: cross(*both) - own(*both)}
    check(found, {"coefficient": cross, "own": own} | excess, ones, others)
    assert found.alignment.value == 1 - found.coefficient.value
    assert found.alignment.stderr == found.coefficient.stderr and found.batches == (5, 7)


def test_one_kind_and_two_draws_of_one_collection_have_no_excess_and_others_do():
    kind = [measure(*draw(6, seed, between=0.0)) for seed in range(12)]
    draws = [measure_cross(draw(6, seed)[0], draw(6, seed + 1000)[0]) for seed in range(12)]
    for same in (kind, draws):
        excess = np.array([one.excess.value for one in same])
        assert abs(excess.mean()) < 4 * excess.std(ddof=1) / math.sqrt(len(excess))
    assert np.mean([abs(one.excess.value) < 2 * one.excess.stderr for one in kind]) > 0.8
    spread = math.sqrt(np.mean([one.excess.stderr**2 for one in draws]))
    assert 0.6 * excess.std(ddof=1) < spread < 2.5 * excess.std(ddof=1)
    for other in (measure(*draw(8, 0, between=0.6)), measure_cross(draw(8, 0)[0], draw(8, 1, centre=1.0)[0])):
        assert other.excess.value > 5 * other.excess.stderr


def test_identical_batches_alignment_and_words():
    batches, twins = draw(4, 0)
    found = measure([batches[0]] * 4, [batches[0]] * 4)
    assert found.coefficient.value == found.coefficient.stderr == found.excess.value == 0
    assert measure_cross(batches[:1] * 3, batches[:1] * 3).alignment.value == 1
    assert measure_cross(batches, twins, kind="correlation").alignment is None  # its highest value is 2
    line = str(measure(batches, twins))
    assert line.count("±") == 3 and "4 batches" in line and "noise floor" in line
    assert str(measure(batches)).count("±") == 1 and "4 and 4 batches" in str(measure_cross(batches, twins))


def test_invalid_arguments_are_refused():
    batches, twins = draw(4, 0)
    refuse(UsageError, r"2 batches are too few .* at least 3", measure, batches[:2])
    refuse(UsageError, "2 others are too few", measure_cross, batches, twins[:2])
    refuse(UsageError, "3 twins for 4 batches", measure, batches, twins[:3])
    refuse(UsageError, "has a direction", measure, batches, kind="asymmetric")
    refuse(UsageError, "no distance called 'far'", measure, batches, kind="far")
    refuse(ProbeMismatchError, None, measure, [*batches[:3], make(np.ones(FILTERS), fingerprint="q")])
