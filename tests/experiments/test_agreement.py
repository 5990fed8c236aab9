"""Agreement with a tree: against a loop over pairs, uniform where there is nothing, and by hand."""

from itertools import permutations

import numpy as np
import pytest
from scipy.spatial.distance import squareform

from experiments.agreement import WITHIN, agree, agree_within, neighbour_shares, retrieve
from tests.experiments.material import ROOT, read_csv
from tests.oracles.distances import correlate_pairs, permute_tasks


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


def test_the_correlation_is_spearmans_over_pairs_and_permutations_are_those_of_tasks():
    """Of four tasks there are 24 orders; those drawn give the correlations that a loop over all of them gives."""
    space, taxa = random_distances(9, seed=0), random_taxa(9, seed=50)
    found = agree([space, -space], taxa, permutations=99, seed=0)
    assert found.rho == pytest.approx(np.array([1, -1]) * correlate_pairs(space, taxa), abs=1e-12) and found.pairs == 36
    space, taxa = random_distances(4, seed=1), np.array([[0, 2, 6, 6], [2, 0, 6, 6], [6, 6, 0, 4], [6, 6, 4, 0]])
    slow = permute_tasks(space, taxa, np.array(list(permutations(range(4)))))
    found = agree([space], taxa, permutations=3000, seed=0)
    assert sorted(set(np.round(found.null[:, 0], 9))) == sorted(set(np.round(slow, 9)))
    assert found.null.mean() == pytest.approx(np.mean(slow), abs=0.04)
    assert found.p[0] == (1 + (abs(found.null[:, 0]) >= abs(found.rho[0]) - 1e-12).sum()) / 3001


def test_p_is_two_sided_as_much_for_what_disagrees_as_for_what_agrees():
    space, taxa = random_distances(7, seed=3), random_taxa(7, seed=50)
    same, opposite, nothing = agree([space, -space, np.ones((7, 7))], taxa, permutations=199, seed=0).p
    assert same == opposite and nothing == 1
    tree = agree([taxa, -taxa], taxa, permutations=199, seed=0)
    assert tree.p[0] == tree.p[1] < 0.1
    worst = np.ones((8, 8)) + np.kron(1 - np.eye(2), np.eye(4))  # of four label sets none is ever found again
    found = retrieve(worst, permutations=999)
    assert found["rate"] == 0 and found["p"] == pytest.approx(
        1 / 24, abs=0.02
    )  # the one order of 24 that is so far off


def test_within_permutes_each_dataset_skips_those_without_ranks_and_pools_by_pairs():
    tree = 8.0 * (1 - np.kron(np.eye(3), np.ones((6, 6))))
    tree[:5, :5], tree[5:12, 5:12] = random_taxa(5, seed=0), random_taxa(7, seed=0)
    tree[12:, 12:] = 2.0 - 2 * np.eye(6)  # all alike: nothing to rank
    space = tree.copy()
    space[5:12, 5:12] = 9 - random_taxa(7, seed=0)
    np.fill_diagonal(space, 0)
    names = [*"aaaaabbbbbbbcccccc"]
    agreements = agree_within([space], tree, names, permutations=199, seed=0)
    assert list(agreements) == ["a", "b", WITHIN]
    assert [agreements[name].rho[0] for name in agreements] == pytest.approx([1, -1, (10 - 21) / 31], abs=1e-12)
    assert agreements[WITHIN].pairs == 10 + 21
    assert (agreements["a"].null[:, 0] != agreements["b"].null[:, 0]).any()  # each has permutations of its own
    assert agree_within([space[12:, 12:]], tree[12:, 12:], names[12:], permutations=99, seed=0) == {}


def test_neighbours_count_ties_alike_and_only_where_there_is_a_relative():
    distances = np.array([[0.0, 1.0, 1.0, 5.0], [1.0, 0.0, 2.0, 5.0], [1.0, 2.0, 0.0, 5.0], [5.0, 5.0, 5.0, 0.0]])
    shares, chance = neighbour_shares(distances, ["a", "a", "b", "c"])
    assert np.array_equal(shares, [0.5, 1.0, np.nan, np.nan], equal_nan=True)
    assert np.array_equal(chance, [1 / 3, 1 / 3, np.nan, np.nan], equal_nan=True)


def test_label_sets_are_found_again_by_labels_and_not_by_images():
    rng = np.random.default_rng(0)
    by_label = np.tile(rng.normal(size=(6, 4)), (2, 1)) + 0.01 * rng.normal(size=(12, 4))
    by_image = np.repeat(rng.normal(size=(2, 4)), 6, axis=0)
    rows = [retrieve(np.linalg.norm(x[:, None] - x, axis=2), permutations=999) for x in (by_label, by_image)]
    assert rows[0]["rate"] == 1.0 and rows[0]["p"] < 0.01
    assert rows[1]["rate"] == pytest.approx(rows[1]["chance"]) and rows[1]["p"] == 1.0


def test_the_committed_correlations_follow_from_the_committed_distances():
    folder = ROOT / "docs" / "results" / "taxonomy" / "resnet34"
    pairs, kind = read_csv(folder / "distances.csv"), {"measure": "spearman", "tree": "graph", "scope": "all pairs"}
    whole = [row for row in read_csv(folder / "measures.csv") if kind.items() <= row.items()]
    spaces, (tree,) = (
        [squareform([row[column] for row in pairs]) for column in columns]
        for columns in ([row["space"] for row in whole], ["graph"])
    )
    found = agree(spaces, tree, permutations=99, seed=0)
    for number, row in enumerate(whole):
        assert found.rho[number] == pytest.approx(row["value"], abs=2e-5)  # rounding made ties
        assert found.interval(number) == pytest.approx((row["low"], row["high"]), abs=2e-4)
