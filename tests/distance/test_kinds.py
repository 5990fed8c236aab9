"""What every distance promises (N2), and each against its definition."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.spatial import distance as scipy_distance

from task2vec import distance
from task2vec.distance import KINDS, asymmetric, symmetric
from task2vec.embedding import trivial
from task2vec.errors import ProbeMismatchError, SettingsMismatchError, UsageError
from tests.distance.material import make, make_many
from tests.oracles import slow_distances

NAMES = sorted(KINDS)
PROPER = sorted(set(KINDS) - {"asymmetric"})
METRICS = [name for name in NAMES if KINDS[name].is_metric]
anything = st.one_of(st.just(0.0), st.floats(1e-300, 1e300), st.floats(1e-3, 1e3))
alive = st.one_of(st.floats(1e-300, 1e300), st.floats(1e-3, 1e3))
moderate = st.floats(1e-3, 1e3)
priors = st.one_of(st.floats(1e-300, 1e300), st.just(1e-9))


def vectors(elements, count, *, least=1):
    sizes = st.integers(least, 20)
    return sizes.flatmap(lambda n: st.tuples(*[arrays.arrays(float, n, elements=elements)] * count))


def test_the_kinds_are_the_public_names():
    assert all(getattr(distance, name) is kind and kind.name == name for name, kind in KINDS.items())
    assert METRICS == ["centred_log_euclidean", "euclidean", "jensen_shannon", "log_euclidean"]
    assert [name for name in NAMES if not KINDS[name].is_symmetric] == ["asymmetric", "kl"]
    assert all(kind.lower_is_closer for kind in KINDS.values())


@pytest.mark.parametrize("name", PROPER)
@settings(max_examples=25, deadline=None)
@given(vectors(anything, 2), priors, priors)
def test_any_two_embeddings_have_a_distance(name, pair, one, other):
    kind = KINDS[name]
    a, b = make(pair[0], prior=one), make(pair[1], prior=other)
    there, back = kind(a, b), kind(b, a)
    assert math.isfinite(there) and 0 <= there <= kind.highest
    assert kind(a, a) == 0.0 and kind(a, make(pair[0], prior=one)) == 0.0
    if kind.is_symmetric:
        assert there == back


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25, deadline=None)
@given(vectors(st.one_of(st.just(0.0), moderate), 2), st.randoms(use_true_random=False))
def test_a_common_permutation_changes_nothing(name, pair, random):
    order = list(range(len(pair[0])))
    random.shuffle(order)
    found = KINDS[name](make(pair[0], prior=0.1), make(pair[1], prior=0.2))
    turned = KINDS[name](make(pair[0][order], prior=0.1), make(pair[1][order], prior=0.2))
    assert turned == pytest.approx(found, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", PROPER)
@settings(max_examples=25, deadline=None)
@given(vectors(moderate, 2, least=2))
def test_each_is_its_definition(name, pair):
    a, b = pair
    if name == "correlation":
        assume(np.ptp(np.log(a)) > 1e-3 and np.ptp(np.log(b)) > 1e-3)
    expected = getattr(slow_distances, name)(a.tolist(), b.tolist())
    # The definitions lose digits to cancellation, 1e-16 of a square at most where a root is taken at the end.
    tolerance = 1e-7 if name == "jensen_shannon" else 1e-10
    assert KINDS[name](make(a), make(b)) == pytest.approx(expected, rel=1e-9, abs=tolerance)


def test_they_are_what_scipy_calls_by_their_names():
    rng = np.random.default_rng(0)
    a, b = np.exp(rng.normal(size=(2, 300)))
    one, other = make(a), make(b)
    assert distance.cosine(one, other) == pytest.approx(scipy_distance.cosine(a, b), rel=1e-10)
    assert distance.euclidean(one, other) == pytest.approx(scipy_distance.euclidean(a, b), rel=1e-10)
    root = scipy_distance.jensenshannon(a, b, base=2)
    assert distance.jensen_shannon(one, other) == pytest.approx(root, rel=1e-10)
    pearson = scipy_distance.correlation(np.log(a), np.log(b))
    assert distance.correlation(one, other) == pytest.approx(pearson, rel=1e-10)


def test_known_values():
    a, b = make([4.0, 4.0]), make([1.0, 1.0])
    assert distance.kl(a, b) == pytest.approx((1 / 4 - 1 + math.log(4)) / 2)
    assert distance.kl(b, a) == pytest.approx((4 - 1 - math.log(4)) / 2)
    assert distance.jeffreys(a, b) == pytest.approx(9 / 8)
    assert distance.log_euclidean(a, b) == pytest.approx(math.log(4))
    assert distance.centred_log_euclidean(a, b) == 0 and distance.correlation(a, b) == 0
    assert distance.euclidean(a, b) == pytest.approx(3 * math.sqrt(2))
    opposite = make([1e200, 1e-200]), make([1e-200, 1e200])
    assert distance.jensen_shannon(*opposite) == pytest.approx(1) == distance.cosine(*opposite)
    assert distance.correlation(*opposite) == pytest.approx(2)
    assert distance.correlation(a, make([1.0, 2.0])) == 1
    assert distance.correlation.from_logs(np.array([0.0, 1e-310]), np.array([0.0, 1.0])) == pytest.approx(0)


@pytest.mark.parametrize("name", METRICS)
@settings(max_examples=50, deadline=None)
@given(vectors(st.one_of(alive, moderate), 3))
def test_metrics_obey_the_triangle_inequality(name, triple):
    a, b, c = (make(values) for values in triple)
    kind = KINDS[name]
    assert kind(a, c) <= (kind(a, b) + kind(b, c)) * (1 + 1e-9) + 1e-9


COUNTEREXAMPLES = {
    "symmetric": ([1, 1], [1, 3], [1, 9]),
    "cosine": ([1, 1e-9], [1, 1], [1e-9, 1]),
    "correlation": ([1, 2, 1], [1, 2, 2], [1, 1, 2]),
    "jeffreys": ([1.0], [2.0], [4.0]),
    "kl": ([4.0], [2.0], [1.0]),
    "asymmetric": ([1, 1], [1, 3], [1, 9]),
}


def test_every_kind_is_a_metric_or_has_a_counterexample():
    assert sorted([*METRICS, *COUNTEREXAMPLES]) == NAMES


@pytest.mark.parametrize("name", sorted(COUNTEREXAMPLES))
def test_the_others_do_not(name):
    a, b, c = (make(values, prior=1e-12) for values in COUNTEREXAMPLES[name])
    kind = KINDS[name]
    assert kind(a, c) > (kind(a, b) + kind(b, c)) + 1e-3


def test_the_counterexample_of_the_symmetric_distance_is_no_matter_of_rounding():
    a, b, c = COUNTEREXAMPLES["symmetric"]
    direct, first, second = (
        1 - math.sqrt(slow_distances.exact_symmetric_cosine(*pair)) for pair in ((a, c), (a, b), (b, c))
    )
    assert direct > first + second + 0.01


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


def test_asymmetric_is_the_papers_formula():
    source, target, _ = make_many(3, 50, dead=0.1, priors=1.0)
    complexity = symmetric(source, trivial(source))
    assert asymmetric(source, target) == symmetric(source, target) - 0.15 * complexity
    assert asymmetric(source, target, alpha=0.5) == symmetric(source, target) - 0.5 * complexity
    assert replace(asymmetric, alpha=0.5)(source, target) == asymmetric(source, target, alpha=0.5)
    assert asymmetric(source, source) == -0.15 * complexity < 0
    logs = [np.log(e.vector) for e in make_many(2, 20)] + [np.log(trivial(make_many(2, 20)[0]).vector)]
    assert asymmetric.from_logs(*logs) == pytest.approx(asymmetric(*make_many(2, 20)), rel=1e-12)


def test_asymmetric_brings_complex_sources_closer():
    target = make([1.0, 1.0, 1.0], prior=1.0)
    easy, hard = make([0.2, 0.1, 0.2], prior=1.0), make([3.0, 30.0, 400.0], prior=1.0)
    gain = {e: symmetric(e, target) - asymmetric(e, target) for e in (easy, hard)}
    assert gain[hard] > 10 * gain[easy] > 0


@pytest.mark.parametrize("alpha", [-0.1, float("nan"), float("inf")])
def test_a_senseless_alpha_is_refused(alpha):
    a = make([1.0, 2.0])
    with pytest.raises(UsageError, match="alpha="):
        asymmetric(a, a, alpha=alpha)
    with pytest.raises(UsageError, match="alpha="):
        replace(asymmetric, alpha=alpha)


@pytest.mark.parametrize("name", NAMES)
def test_other_probes_and_settings_are_refused(name):
    a = make([1.0, 2.0], task="birds")
    with pytest.raises(ProbeMismatchError, match="task2vec embed --probe net a"):
        KINDS[name](a, make([1.0, 2.0], fingerprint="q"))
    with pytest.raises(SettingsMismatchError, match="beta"):
        KINDS[name](a, make([1.0, 2.0], beta=1.0))
