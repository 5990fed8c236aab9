"""Each distance against its definition, and what all of them promise (N2), also on extreme vectors."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from task2vec import distance
from task2vec.distance import KINDS, asymmetric, make_row, split_symmetric, symmetric, symmetric_to_rows
from task2vec.embedding import trivial
from task2vec.errors import ProbeMismatchError, SettingsMismatchError, UsageError
from tests.distance.material import make, make_many
from tests.failures import refuse
from tests.oracles import distances as slow_distances

NAMES = sorted(KINDS)
PROPER = sorted(set(KINDS) - {"asymmetric"})
METRICS = [name for name in NAMES if KINDS[name].is_metric]
alive = st.one_of(st.floats(1e-300, 1e300), st.floats(1e-3, 1e3))
anything = st.one_of(st.just(0.0), alive)
moderate = st.floats(1e-3, 1e3)


def vectors(elements, count, *, least=1):
    sizes = st.integers(least, 20)
    return sizes.flatmap(lambda n: st.tuples(*[arrays.arrays(float, n, elements=elements)] * count))


def test_the_kinds_are_the_public_names():
    assert all(getattr(distance, name) is kind and kind.name == name for name, kind in KINDS.items())
    assert METRICS == ["centred_log_euclidean", "euclidean", "jensen_shannon", "log_euclidean"]
    assert [name for name in NAMES if not KINDS[name].is_symmetric] == ["asymmetric", "kl"]


@pytest.mark.parametrize("name", PROPER)
@settings(max_examples=12, deadline=None)
@given(vectors(anything, 2), alive, alive)
def test_any_two_embeddings_have_a_distance(name, pair, one, other):
    kind = KINDS[name]
    a, b = make(pair[0], prior=one), make(pair[1], prior=other)
    there, back = kind(a, b), kind(b, a)
    assert math.isfinite(there) and 0 <= there <= kind.highest
    assert kind(a, a) == 0.0 and kind(a, make(pair[0], prior=one)) == 0.0
    if kind.is_symmetric:
        assert there == back


@pytest.mark.parametrize("name", PROPER)
@settings(max_examples=12, deadline=None)
@given(vectors(moderate, 2, least=2))
def test_each_is_its_definition(name, pair):
    a, b = pair
    if name == "correlation":
        assume(np.ptp(np.log(a)) > 1e-3 and np.ptp(np.log(b)) > 1e-3)
    expected = getattr(slow_distances, name)(a.tolist(), b.tolist())
    # The definitions lose digits to cancellation, 1e-16 of a square at most where a root is taken at the end.
    tolerance = 1e-7 if name == "jensen_shannon" else 1e-10
    assert KINDS[name](make(a), make(b)) == pytest.approx(expected, rel=1e-9, abs=tolerance)


def test_constant_opposite_and_nearly_equal_embeddings():
    a, b = make([4.0, 4.0]), make([1.0, 1.0])
    assert distance.centred_log_euclidean(a, b) == 0 and distance.correlation(a, b) == 0
    assert distance.correlation(a, make([1.0, 2.0])) == 1
    opposite = make([1e200, 1e-200]), make([1e-200, 1e200])
    assert 0.999 < symmetric(*opposite) < 1
    assert distance.jensen_shannon(*opposite) == pytest.approx(1) == distance.cosine(*opposite)
    assert distance.correlation(*opposite) == pytest.approx(2)
    assert distance.correlation.from_logs(np.array([0.0, 1e-310]), np.array([0.0, 1.0])) == pytest.approx(0)
    # a / (a + b) is the same number for every filter, however far apart the two are.
    assert symmetric(make(np.array([1.0, 2.0, 3.0]) * 1e250), make([1.0, 2.0, 3.0])) == pytest.approx(0, abs=1e-12)
    u = np.random.default_rng(0).normal(size=1000)
    for step in (1e-3, 1e-9):  # d = var(u) / 2 for a sigmoid of slope 1/4 on both sides, to first order
        near = symmetric(make(np.ones(1000)), make(np.exp(step * u)))
        assert near == pytest.approx(np.var(step * u) / 2, rel=1e-2)


@pytest.mark.parametrize("name", METRICS)
@settings(max_examples=20, deadline=None)
@given(vectors(alive, 3))
def test_metrics_obey_the_triangle_inequality(name, triple):
    a, b, c = (make(values) for values in triple)
    kind = KINDS[name]
    assert kind(a, c) <= (kind(a, b) + kind(b, c)) * (1 + 1e-9) + 1e-9


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("priors", [(1e-9, 1e-9), (1e-9, 1e-3)])
def test_filters_that_are_dead_in_both_do_not_count(name, priors):
    a, b = np.exp(np.random.default_rng(0).normal(size=(2, 30)))
    dead = np.zeros(12)
    a[0] = 0  # dead in one: this one counts
    found = KINDS[name](*(make(np.concatenate([dead, x]), prior=p) for x, p in zip((a, b), priors, strict=True)))
    without = KINDS[name](*(make(x, prior=p) for x, p in zip((a, b), priors, strict=True)))
    assert found == without > 0
    assert KINDS[name](make(dead, prior=priors[0]), make(dead, prior=priors[1])) == 0


def test_asymmetric_is_the_papers_formula_with_a_valid_alpha():
    source, target = make_many(2, 50, dead=0.1, priors=1.0)
    complexity = symmetric(source, trivial(source))
    assert asymmetric(source, target) == symmetric(source, target) - 0.15 * complexity
    assert replace(asymmetric, alpha=0.5)(source, target) == symmetric(source, target) - 0.5 * complexity
    assert asymmetric(source, source) == -0.15 * complexity < 0
    for alpha in (-0.1, math.nan, math.inf):
        refuse(UsageError, "alpha=", replace, asymmetric, alpha=alpha)


# --- what is compared -------------------------------------------------------------------------------------------------


def test_different_probes_are_never_compared():
    a = make([1.0, 2.0], task="birds")
    sizes = ({"probe_fingerprint": str(size), "image_size": [size, size]} for size in (64, 32))
    large, small = (replace(a, provenance=a.provenance | size) for size in sizes)
    other = make([1.0, 2.0], probe="other", fingerprint="q")
    for one, another, words in (
        (a, other, r"'birds' with 'a'.*net and other.*task2vec embed --probe net a"),
        (a, make([1.0, 2.0], fingerprint="q"), "same name but with other weights"),
        (large, small, "task2vec embed --probe net --size 64 birds"),
        (a, make([1.0, 2.0], fingerprint="unknown"), "unknown ones"),
    ):
        refuse(ProbeMismatchError, words, symmetric, one, another)
    refuse(UsageError, "a str is not a task embedding", symmetric, a, "birds")


def test_settings_that_change_the_numbers_are_never_mixed():
    for name, value in {"method": "direct", "dtype": "bfloat16", "beta": 1e-3, "balance": False}.items():
        refuse(SettingsMismatchError, f"{name}={value}", symmetric, make([1.0, 2.0]), make([1.0, 2.0], **{name: value}))
    a, b = make([1.0, 2.0], seed=0, max_samples=400), make([2.0, 1.0], seed=1, max_samples=50)
    assert symmetric(a, replace(b, probe="renamed")) == pytest.approx(0.2)  # the fingerprint decides, not the name


def test_the_parts_of_a_distance_sum_to_it_and_lie_where_tasks_differ():
    a, b = make_many(2, 50, dead=0.3)
    parts, is_dead = split_symmetric(a, b), (a.fisher == 0) & (b.fisher == 0)
    assert parts.sum() == pytest.approx(symmetric(a, b), rel=1e-12) and (parts >= 0).all()
    assert is_dead.any() and not parts[is_dead].any()
    fisher = np.ones(50)
    fisher[7] = 50
    parts = split_symmetric(make(np.ones(50)), make(fisher))
    assert parts.argmax() == 7 and parts[7] > 0.5 * parts.sum()
    assert not split_symmetric(make(np.zeros(3)), make(np.zeros(3))).any()


# --- one query against many rows --------------------------------------------------------------------------------------


@pytest.mark.parametrize("crowd", [{}, {"dead": 0.95, "priors": 1.0}, {"scales": 6.0, "spread": 9.0, "dead": 0.1}])
def test_rows_in_single_precision_give_the_same(crowd):
    tasks = make_many(12, 3000, **crowd)
    rows = np.stack([make_row(one) for one in tasks])
    found = symmetric_to_rows(rows[7], rows)
    assert found == pytest.approx([symmetric(tasks[7], one) for one in tasks], abs=1e-6)
    assert found[7] == 0 and (found < 1).all()
    assert symmetric_to_rows(rows[0], rows[:0]).shape == (0,)


def test_small_distances_of_rows_keep_their_digits_and_nothing_is_at_zero_from_nothing():
    a, u = np.exp(np.random.default_rng(0).normal(size=(2, 3000)))
    near = make(a * (1 + 1e-3 * u))
    found = symmetric_to_rows(make_row(make(a)), make_row(near)[None])
    assert found[0] == pytest.approx(symmetric(make(a), near), rel=1e-2)
    nothing = np.stack([make_row(make(np.zeros(5), prior=level)) for level in (1e-3, 2.0)])
    assert symmetric_to_rows(nothing[0], nothing).tolist() == [0, 0]
    assert make_row(make([1.0], prior=1e-38)) is not None and make_row(make([0.0], prior=1e-38)) is None
