"""Distances between domains: formulas, rounding, and what may not be compared."""

import numpy as np
import pytest

from task2vec.distance import domain
from task2vec.embedding.domain import DomainEmbedding
from task2vec.errors import DataError, ProbeMismatchError, SettingsMismatchError, UsageError


def make(features, *, task="a", probe="net", fingerprint="p", dtype="float32"):
    features = np.asarray(features, dtype=float)
    story = {"probe_fingerprint": fingerprint, "settings": {"dtype": dtype}}
    return DomainEmbedding(task, probe, features.mean(0), np.square(features).mean(0), story)


@pytest.fixture
def pair():
    rng = np.random.default_rng(0)
    a, b = rng.gamma(2.0, size=(30, 8)), 1 + 2 * rng.gamma(1.0, size=(30, 8))
    return a, b


def test_cosine_of_the_means(pair):
    a, b = (features.mean(0) for features in pair)
    expected = 1 - a @ b / np.sqrt((a @ a) * (b @ b))
    assert domain(make(pair[0]), make(pair[1])) == pytest.approx(expected, rel=1e-10)
    assert domain(make([[1.0, 0.0]]), make([[0.0, 5.0]])) == pytest.approx(1.0)
    assert domain(make([[1.0, 0.0]]), make([[-3.0, 0.0]])) == pytest.approx(2.0)


def test_standardised_by_the_images_of_both(pair):
    # With as many images in each, s is the plain standard deviation of all of them together.
    s = np.concatenate(pair).std(0)
    gaps = [(pair[0].mean(0) - pair[1].mean(0)) / s, (pair[0].std(0) - pair[1].std(0)) / s]
    expected = np.sqrt(np.mean(gaps[0] ** 2 + gaps[1] ** 2))
    a, b = map(make, pair)
    assert domain(a, b, kind="standardised") == pytest.approx(expected, rel=1e-10)
    assert domain(b, a, kind="standardised") == domain(a, b, kind="standardised")


def test_standardised_does_not_depend_on_the_units_of_a_feature(pair):
    scale = np.logspace(-6, 6, 8)
    one, other = (
        domain(*map(make, pair), kind="standardised"),
        domain(*(make(features * scale) for features in pair), kind="standardised"),
    )
    assert one == pytest.approx(other, rel=1e-6)


@pytest.mark.parametrize("kind", ["cosine", "standardised"])
def test_a_domain_has_no_distance_to_itself(pair, kind):
    assert domain(make(pair[0]), make(pair[0]), kind=kind) == 0


def test_constant_features_do_not_make_noise_count():
    rng = np.random.default_rng(0)
    a, b = np.full((37, 50), 0.1), np.full((41, 50), 0.1)
    a[:, 0], b[:, 0] = rng.normal(size=37), rng.normal(size=41)
    one = make(a[:, :1]), make(b[:, :1])
    assert domain(make(a), make(b), kind="standardised") == pytest.approx(
        domain(*one, kind="standardised") / np.sqrt(50), rel=1e-6
    )
    # Dead in both: nothing. Constant at two values: as far as can be, but finite.
    assert domain(make(np.zeros((3, 2))), make(np.zeros((4, 2))), kind="standardised") == 0
    assert domain(make([[1.0]]), make([[2.0]]), kind="standardised") == pytest.approx(2.0)


def test_what_may_not_be_compared(pair):
    a = make(pair[0], task="birds")
    with pytest.raises(ProbeMismatchError, match=r"'birds' with that of 'a'.*net and other"):
        domain(a, make(pair[1], probe="other", fingerprint="q"))
    with pytest.raises(ProbeMismatchError):
        domain(DomainEmbedding("a", "net", [1.0], [1.0]), DomainEmbedding("b", "net", [1.0], [1.0]))
    with pytest.raises(SettingsMismatchError, match="dtype=float32 and dtype=bfloat16"):
        domain(a, make(pair[1], dtype="bfloat16"))
    with pytest.raises(UsageError, match=r"kind='euclidean'.*cosine, standardised"):
        domain(a, a, kind="euclidean")
    with pytest.raises(DataError, match="every mean feature of 'dead' is 0"):
        domain(a, make(np.zeros((3, 8)), task="dead"))
