"""Intervals of the Fisher of the population: their closed forms, and how often they hold."""

import numpy as np
import pytest
import scipy.stats

from task2vec.embedding import Embedding, trivial
from task2vec.errors import UsageError
from task2vec.probe import FilterLayer


def make(fisher, stderr, *, images=100, layers=1):
    """An embedding whose filters are spread evenly over `layers`."""
    arrays = [np.array(values, dtype=float) for values in (fisher, stderr)]
    size = len(arrays[0]) // layers
    kinds = tuple(FilterLayer(f"conv{number}", "convolution", size, 9, 0.1) for number in range(layers))
    return Embedding("birds", "net", *arrays, np.ones(len(arrays[0])), kinds, {"counts": {"images_used": images}})


def test_it_is_students_in_the_logarithm_and_the_rule_of_three_above():
    """Of 100 equal images each has a hundredth of the Fisher, and fewer than 3 in 100 may be of another kind."""
    fisher, stderr = np.array([[1.0, 2.0, 3.0, 0.0], [0.0, 0.0, 0.0, 0.0]]), np.array([0.1, 0.4, 0.9, 0.0])
    embedding = make(fisher.ravel(), np.append(stderr, np.zeros(4)), layers=2)
    for level in (0.5, 0.95, 0.999):
        low, high = (each.reshape(2, 4) for each in embedding.interval(level))
        error = stderr[:3] / fisher[0, :3]
        images = 1 / (1 / 100 + error**2)
        half = scipy.stats.t.ppf((1 + level) / 2, images) * error
        rare = -np.log(1 - level) * (fisher[0, :3] / images).sum() / 4
        assert np.allclose(np.log(fisher[0, :3] / low[0, :3]), half)
        assert np.allclose(high[0], np.maximum([*(fisher[0, :3] * np.exp(half)), 0], rare))
        assert low[0, 3] == 0 and not low[1].any() and not high[1].any()  # a layer without Fisher
    low, high = make([1.0, 0.0], [0.0, 0.0]).interval()
    assert low.tolist() == [1, 0] and high == pytest.approx([1, 3 / 100 / 2], rel=0.01)


@pytest.mark.parametrize("level", [0, 1, 1.5, -0.1, float("nan")])
def test_refuses_what_is_no_level(level):
    with pytest.raises(UsageError, match="between 0 and 1"):
        make([1.0], [0.1]).interval(level)


def test_finite_whatever_the_error():
    rare = make([1e-30, 1.0], [1.0, 5.0])
    for embedding in (rare, trivial(rare), make([1.0], [0.0], images=float("inf"))):
        assert np.isfinite(embedding.interval(0.9999)).all()


def test_holds_for_heavy_tails_where_the_normal_interval_does_not():
    """Lognormal Fisher, by images of unequal size, in filters that respond to 3% to all of them."""
    rng, often = np.random.default_rng(0), np.geomspace(0.03, 1, 60)
    truth, normal, own = often * np.exp((0.6**2 + 0.8**2) / 2), [], []
    for _ in range(60):
        rows = np.exp(0.6 * rng.standard_normal((100, 1)) + 0.8 * rng.standard_normal((100, 60)))
        rows *= rng.random((100, 60)) < often
        embedding = make(rows.mean(0), rows.std(0, ddof=1) / 10)
        low, high = embedding.interval()
        own.append((low <= truth) & (truth <= high))
        normal.append(np.abs(embedding.fisher - truth) <= 1.96 * embedding.stderr)
    assert np.mean(normal) < 0.88
    assert 0.92 < np.mean(own) < 0.985
    assert min(part.mean() for part in np.array_split(np.array(own), 6, axis=1)) > 0.9  # also in rare filters
