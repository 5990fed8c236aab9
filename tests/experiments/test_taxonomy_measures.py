"""Agreement with a tree: against a loop over pairs, uniform where there is nothing, and by hand."""

from itertools import permutations

import numpy as np
import pytest

from experiments.taxonomy_measures import (
    WITHIN,
    agree,
    agree_within,
    chance_shares,
    mean_interval,
    nearest_shares,
    pool,
    rank_pairs,
)
from tests.oracles.slow_mantel import correlate_pairs, permute_tasks


def random_distances(count, *, seed):
    places = np.random.default_rng(seed).normal(size=(count, 3))
    return np.linalg.norm(places[:, None] - places, axis=2)


def random_taxa(count, *, seed):
    """Distances in a tree of three ranks, with many ties."""
    labels = np.random.default_rng(seed).integers(3, size=(count, 2))
    same = labels[:, None] == labels
    taxa = np.where(same.all(axis=2), 2, np.where(same[:, :, 0], 4, 6))
    np.fill_diagonal(taxa, 0)
    return taxa


def test_the_correlation_is_spearmans_over_pairs():
    for seed in range(5):
        space, taxa = random_distances(9, seed=seed), random_taxa(9, seed=seed + 50)
        found = agree([space, -space], taxa, permutations=99, seed=seed)
        assert found.rho[0] == pytest.approx(correlate_pairs(space, taxa), abs=1e-12)
        assert found.rho[1] == pytest.approx(-found.rho[0], abs=1e-12)
        assert found.pairs == 36


def test_permutations_are_those_of_tasks():
    """Of four tasks there are 24 orders; those drawn give the correlations that a loop over all of them gives."""
    space, taxa = random_distances(4, seed=1), np.array([[0, 2, 6, 6], [2, 0, 6, 6], [6, 6, 0, 4], [6, 6, 4, 0]])
    slow = permute_tasks(space, taxa, np.array(list(permutations(range(4)))))
    found = agree([space], taxa, permutations=5000, seed=0)
    assert sorted(set(np.round(found.null[:, 0], 9))) == sorted(set(np.round(slow, 9)))
    assert found.null[:, 0].mean() == pytest.approx(np.mean(slow), abs=0.02)
    as_good = np.mean(np.array(slow) >= found.rho[0] - 1e-12)
    assert found.p[0] == pytest.approx(as_good, abs=0.03)
    assert found.p[0] == (1 + (found.null[:, 0] >= found.rho[0] - 1e-12).sum()) / 5001


def test_p_is_uniform_where_there_is_nothing_and_tiny_where_all_is_the_same():
    ps = []
    for seed in range(120):
        found = agree(
            [random_distances(8, seed=seed)], random_distances(8, seed=seed + 999), permutations=199, seed=seed
        )
        ps.append(float(found.p[0]))
    for level in (0.1, 0.25, 0.5, 0.75):
        assert np.mean(np.array(ps) <= level) == pytest.approx(level, abs=0.13)
    taxa = random_taxa(14, seed=3)
    same = agree([taxa.astype(float), -taxa.astype(float)], taxa, permutations=999, seed=0)
    assert same.p[0] == 1 / 1000
    assert same.p[1] > 0.99
    assert same.rho[0] == pytest.approx(1)


def test_runs_are_repeatable_and_seeds_differ():
    space, taxa = random_distances(9, seed=0), random_taxa(9, seed=1)
    first, again, other = (agree([space], taxa, permutations=600, seed=seed) for seed in (4, 4, 5))
    assert (first.null == again.null).all() and np.array_equal(first.draws, again.draws, equal_nan=True)
    assert (first.null != other.null).any()


def test_draws_lie_around_the_correlation_and_are_those_of_tasks():
    taxa = random_taxa(24, seed=2)
    space = taxa + np.random.default_rng(0).normal(scale=2.0, size=taxa.shape)
    space = (space + space.T) / 2
    found = agree([space, taxa.astype(float)], taxa, permutations=99, seed=0)
    low, high = found.interval(0)
    assert low < found.rho[0] < high
    assert high - low > 2 * 1.96 / np.sqrt(found.pairs) * (
        1 - found.rho[0] ** 2
    )  # wider than if pairs were independent
    assert found.interval(1) == pytest.approx((1.0, 1.0))
    below, above = found.interval(0, minus=1)
    assert below <= above < 0


def test_within_permutes_each_dataset_by_itself_and_skips_those_without_a_question():
    taxa = np.kron(np.eye(3), np.ones((5, 5)))
    tree = 8.0 * (1 - taxa)  # strangers between datasets
    inside = random_taxa(5, seed=0)
    tree[:5, :5], tree[5:10, 5:10] = inside, inside
    tree[10:, 10:] = 2.0 - 2 * np.eye(5)  # all alike: nothing to rank
    names = [name for name in "abc" for _ in range(5)]
    space = tree.copy()
    space[5:10, 5:10] = 9 - inside
    np.fill_diagonal(space, 0)
    found = agree_within([space], tree, names, permutations=199, seed=0)
    assert list(found) == ["a", "b", WITHIN]
    assert found["a"].rho[0] == pytest.approx(1)
    assert found["b"].rho[0] == pytest.approx(-1)
    assert found[WITHIN].rho[0] == pytest.approx(0, abs=1e-12)
    assert (found[WITHIN].tasks, found[WITHIN].pairs) == (10, 20)
    assert (found["a"].null[:, 0] != found["b"].null[:, 0]).any()  # each has permutations of its own
    assert agree_within([space[10:, 10:]], tree[10:, 10:], names[10:], permutations=99, seed=0) == {}
    alone = agree_within([space[:5, :5]], tree[:5, :5], names[:5], permutations=99, seed=0)
    assert alone[WITHIN] is alone["a"]


def test_pooling_weighs_by_pairs():
    small, large = (
        agree([random_distances(n, seed=n)], random_taxa(n, seed=1), permutations=50, seed=0) for n in (5, 9)
    )
    both = pool([small, large])
    assert both.rho[0] == pytest.approx((10 * small.rho[0] + 36 * large.rho[0]) / 46)
    assert both.null[7, 0] == pytest.approx((10 * small.null[7, 0] + 36 * large.null[7, 0]) / 46)


def test_a_space_without_differences_agrees_with_nothing():
    flat = 1.0 - np.eye(6)
    assert not rank_pairs(flat).any()
    found = agree([flat], random_taxa(6, seed=0), permutations=99, seed=0)
    assert (found.rho[0], found.p[0]) == (0.0, 1.0)
    assert all(np.isnan(bound) for bound in found.interval(0))


def test_neighbours_by_hand():
    places = np.array([0.0, 1.0, 2.0, 10.0, 10.5, 20.0])
    distances = abs(places[:, None] - places)
    labels = ["a", "b", "a", "c", "c", "d"]
    # 1 is as near to 0 as to 2 and alone of its kind; 0 and 2 have 1 between them; d has nobody.
    shares = nearest_shares(distances, labels)
    assert shares[[0, 2, 3, 4]].tolist() == [0, 0, 1, 1]
    assert np.isnan(shares[[1, 5]]).all()
    assert chance_shares(labels)[[0, 3]].tolist() == [0.2, 0.2]
    tied = nearest_shares(distances, ["a", "a", "b", "b", "c", "c"])
    assert tied[1] == 0.5
    within = nearest_shares(distances, labels, among=["x", "y", "x", "x", "z", "z"])
    assert within[[0, 2]].tolist() == [1, 1]
    assert np.isnan(within[3])  # the other c is elsewhere
    assert chance_shares(labels, among=["x", "y", "x", "x", "z", "z"])[0] == 0.5


def test_intervals_of_a_mean():
    values = np.array([1.0, 0.0, np.nan, 1.0, 1.0, 0.0, 1.0, 1.0])
    low, high = mean_interval(values, seed=0)
    assert 0.2 < low < 5 / 7 < high <= 1
    assert mean_interval(np.array([1.0, 1.0, np.nan]), seed=0) == (1.0, 1.0)
