"""The symmetric distance against the paper's formula, and on vectors that formula cannot bear."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from task2vec.distance import symmetric
from task2vec.embedding import trivial
from task2vec.errors import ProbeMismatchError, SettingsMismatchError
from tests.distance.material import make


def papers_formula(a, b):
    """Cosine distance between a / (a + b) and b / (a + b), as it stands in the paper."""
    one, other = a / (a + b), b / (a + b)
    return 1 - one @ other / np.sqrt((one @ one) * (other @ other))


positive = st.floats(1e-6, 1e6)
anything = st.one_of(st.just(0.0), st.floats(1e-280, 1e280), st.floats(1e-3, 1e3))


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 40).flatmap(lambda n: st.tuples(*[arrays.arrays(float, n, elements=positive)] * 2)))
def test_equals_the_paper(pair):
    a, b = pair
    assert symmetric(make(a), make(b)) == pytest.approx(papers_formula(a, b), abs=1e-12)


def test_equals_the_paper_on_long_vectors():
    rng = np.random.default_rng(0)
    a, b = np.exp(2 * rng.normal(size=(2, 21008)))
    assert symmetric(make(a), make(b)) == pytest.approx(papers_formula(a, b), rel=1e-10)


def test_known_values():
    assert symmetric(make([1.0, 2.0]), make([2.0, 1.0])) == pytest.approx(0.2, rel=1e-12)
    # One filter: both vectors are a single positive number, so they point the same way.
    assert symmetric(make([3.0]), make([5.0])) == pytest.approx(0.0, abs=1e-15)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 30).flatmap(lambda n: st.tuples(*[arrays.arrays(float, n, elements=anything)] * 2)))
def test_any_two_vectors_have_a_distance(pair):
    a, b = make(pair[0]), make(pair[1])
    there, back = symmetric(a, b), symmetric(b, a)
    assert math.isfinite(there) and 0 <= there < 1
    assert there == back
    assert symmetric(a, a) == 0.0 and symmetric(a, make(pair[0])) == 0.0


def test_a_common_factor_is_no_difference_when_it_is_large():
    # a / (a + b) is then the same number for every filter, however far apart the two are.
    a = np.array([1.0, 2.0, 3.0])
    for factor in (1e3, 1e30, 1e250):
        assert symmetric(make(a * factor), make(a)) == pytest.approx(0, abs=1e-12)


def test_opposite_tasks_are_nearly_one_apart():
    a, b = make([1e200, 1e-200]), make([1e-200, 1e200])
    assert 0.999 < symmetric(a, b) < 1


def test_small_differences_do_not_drown_in_rounding():
    rng = np.random.default_rng(0)
    a, u = np.exp(rng.normal(size=1000)), rng.normal(size=1000)
    for step in (1e-3, 1e-6, 1e-9):
        # d = var(u) / 2 for a sigmoid of slope 1/4 on both sides: |(u - mean) / sqrt(n)|^2 / 2, to first order.
        expected = np.var(step * u) / 2
        assert symmetric(make(a), make(a * np.exp(step * u))) == pytest.approx(expected, rel=1e-2)


def test_dead_filters_that_two_tasks_share_do_not_count():
    rng = np.random.default_rng(0)
    a, b = np.exp(rng.normal(size=(2, 50)))
    a[:20] = b[:20] = 0
    found = symmetric(make(a, prior=1e-9), make(b, prior=1e-9))
    assert found == pytest.approx(papers_formula(a[20:] + 1e-9, b[20:] + 1e-9), rel=1e-9)
    nothing = make(np.zeros(50), prior=1e-9)
    assert symmetric(nothing, nothing) == 0 and symmetric(nothing, trivial(nothing)) == 0


def test_priors_of_different_sizes_count():
    assert symmetric(make([1.0, 1.0], prior=1.0), make([1.0, 3.0], prior=1.0)) == pytest.approx(
        papers_formula(np.array([2.0, 2.0]), np.array([2.0, 4.0])), rel=1e-10
    )


def test_different_probes_are_never_compared():
    a = make([1.0, 2.0], task="birds")
    with pytest.raises(ProbeMismatchError, match=r"'birds' with 'a'.*net and other.*task2vec embed --probe net a"):
        symmetric(a, make([1.0, 2.0], probe="other", fingerprint="q"))
    with pytest.raises(ProbeMismatchError, match="same name but with other weights"):
        symmetric(a, make([1.0, 2.0], fingerprint="q"))
    with pytest.raises(ProbeMismatchError):
        symmetric(a, make([1.0, 2.0, 3.0], fingerprint="q"))


@pytest.mark.parametrize(
    ("name", "value"), [("method", "direct"), ("dtype", "bfloat16"), ("beta", 1e-3), ("balance", False)]
)
def test_settings_that_change_the_numbers_are_never_mixed(name, value):
    a = make([1.0, 2.0])
    with pytest.raises(SettingsMismatchError, match=f"{name}={value}"):
        symmetric(a, make([1.0, 2.0], **{name: value}))


def test_settings_that_do_not_are_no_obstacle():
    a, b = make([1.0, 2.0], seed=0, engine="exact", images=400), make([2.0, 1.0], seed=1, engine="fast", images=50)
    assert symmetric(a, b) == pytest.approx(0.2)
    assert symmetric(a, replace(b, probe="renamed")) == pytest.approx(0.2)  # the fingerprint decides, not the name
