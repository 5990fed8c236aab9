"""Evaluation: what is left out, what the numbers are, and that they are the slow ones."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy import stats

import task2vec as t2v
from task2vec.errors import UsageError
from task2vec.select import Prediction, Strategy
from task2vec.select.evaluate import (
    choose_first,
    compare_paired,
    draw_weights,
    evaluate,
    find_interval,
    unbiased_optimum,
)
from tests.failures import refuse
from tests.select.material import make_metatask, with_errors

NAMES = ["chance", "average_best", "symmetric", "domain"]


def names_of(metatask):
    return tuple(task.name for task in metatask.tasks)


class Watching:
    """A strategy that notes what it was shown, and ranks in the order of the list, from the number of the task on."""

    def __init__(self):
        self.fits, self.asked = [], []
        self.strategy = Strategy("watching", self.fit)

    def fit(self, metatask):
        self.fits.append(names_of(metatask))
        return self.predict

    def predict(self, query):
        self.asked.append((query.name, self.fits[-1], tuple(query.is_candidate), query.distances))
        numbers = np.arange(len(query.is_candidate))
        first = int(query.name.split()[1])
        return Prediction((numbers - first) % len(numbers))


@pytest.mark.parametrize("leave", ["task", "dataset"])
def test_what_is_left_out_is_not_seen_and_nothing_else(leave):
    metatask, watching = make_metatask(), Watching()
    found = evaluate(metatask, [watching.strategy], leave=leave)
    names, datasets = names_of(metatask), np.array(metatask.datasets)
    assert found.tasks == names and len(watching.fits) == (9 if leave == "task" else 3)
    if leave != "domain":
        assert found.outcomes["watching"].chosen.tolist() == [0, 2, 2, 3, 4, 5, 0, 1, 2]  # model 1 has seen task 1
    for name, known, allowed, distances in watching.asked:
        row = names.index(name)
        others = np.flatnonzero(np.arange(9) != row if leave == "task" else datasets != datasets[row])
        assert known == tuple(names[other] for other in others)
        is_source = np.array([model.source_dataset == datasets[row] for model in metatask.models])
        wanted = metatask.is_candidate[row] & ~is_source if leave == "domain" else metatask.is_candidate[row]
        assert allowed == tuple(wanted) and is_source.any()
        np.testing.assert_array_equal(distances["symmetric"], metatask.between("symmetric")[row, others])


def test_unknown_errors_are_never_chosen_nor_counted():
    metatask = make_metatask(missing=0.3)
    found = evaluate(metatask, ["average_best", "chance"])
    means = np.where(metatask.is_candidate, metatask.mean, np.nan)
    rows = [names_of(metatask).index(name) for name in found.tasks]
    np.testing.assert_allclose(found.outcomes["chance"].errors, np.nanmean(means[rows], axis=1))
    np.testing.assert_allclose(found.smallest, np.nanmin(means[rows], axis=1))
    chosen = found.outcomes["average_best"].chosen
    np.testing.assert_allclose(found.outcomes["average_best"].errors, means[rows, chosen])


def test_a_family_of_one_dataset_learns_from_the_others_when_it_is_left_out():
    metatask = t2v.bundled_metatask()
    found = evaluate(metatask, ["average_best"], family="labels", leave="dataset", resamples=1)
    assert set(found.tasks) == {task.name for task in metatask.tasks if task.family == "labels"}
    assert len(evaluate(metatask, ["average_best"], family="labels", resamples=1).tasks) == 22


def test_strategies_that_cannot_be_fitted_are_left_out_with_their_reason():
    metatask = replace(make_metatask(), trivial_distances=None, distances={})
    found = evaluate(metatask, ["average_best", "asymmetric"])
    assert list(found.outcomes) == ["average_best"] and "symmetric distance" in found.left_out["asymmetric"]
    assert "Left out: asymmetric (no symmetric distance" in str(found)


def test_what_cannot_be_meant_is_refused():
    alike = make_metatask(datasets=1)
    for match, metatask, options in (
        ("leave='universe'", alike, {"leave": "universe"}),
        ("no strategy called 'guess'.*average_best; symmetric", alike, {"strategies": ["guess"]}),
        ("no task to learn from", alike, {"leave": "dataset"}),
        ("no task has two candidates", alike.only(range(9), [0]), {}),
        ("no task to learn from", alike.only([0]), {}),
    ):
        refuse(UsageError, match, evaluate, metatask, **{"strategies": ["average_best"]} | options)


def slow_optimum(halves, allowed):
    """(T, S) by split: chosen on one half by the mean over splits, measured on the other, both ways round."""
    found = np.zeros((len(halves), halves.shape[2]))
    for row, half in np.ndindex(len(halves), 2):
        means = [halves[row, j, :, half].mean() if allowed[row, j] else 1 for j in range(halves.shape[1])]
        found[row] += halves[row, int(np.argmin(means)), :, 1 - half] / 2
    return found


def test_the_optimum_is_selected_on_halves():
    metatask = make_metatask()
    found = evaluate(metatask, ["average_best"])
    np.testing.assert_allclose(found.optimum, slow_optimum(metatask.halves, metatask.is_candidate).mean(1))
    without = evaluate(replace(metatask, halves=None), ["average_best"])
    assert without.optimum is None and "biased low" in str(without) and without.rows[0]["increase"] is None


def test_an_optimum_shares_among_equals_and_skips_the_unknown():
    measured, everybody = np.array([[[0.2, 0.2], [0.2, 0.6], [0.9, 0.9]]]), np.ones((1, 3), dtype=bool)
    halves = np.stack([measured, measured + 0.1], axis=3)  # by the mean over splits the first is best on both halves
    np.testing.assert_allclose(unbiased_optimum(halves, everybody), [[0.25, 0.25]])
    np.testing.assert_allclose(unbiased_optimum(halves[:, :, :1], everybody), [[0.25]])  # the mean of two
    halves[0, 0, 1, 0] = np.nan  # one split of one half: that model counts no more
    np.testing.assert_allclose(unbiased_optimum(halves, everybody), [[0.25, 0.65]])
    assert unbiased_optimum(np.full_like(halves, np.nan), everybody) is None


def test_one_ranking_is_judged_by_its_first_model():
    places, errors = np.array([0, 1, 1, 3]), np.array([0.4, 0.1, 0.2, 0.3])
    assert choose_first(places, errors) == (0, 0.4)
    assert choose_first(np.argsort(np.argsort(errors)), errors) == (1, 0.1)
    assert choose_first(np.zeros(4), errors) == (0, pytest.approx(0.25))  # of equals the mean
    assert choose_first(places, np.array([np.nan, 0.1, 0.2, 0.3])) == (1, pytest.approx(0.15))


def test_intervals_come_from_samples_of_tasks_or_of_datasets():
    weights = draw_weights(np.arange(5), 400)
    assert (weights.sum(1) == 5).all() and weights.mean() == pytest.approx(1)
    groups = draw_weights(np.array(["a", "a", "b"]), 400)
    assert (groups[:, 0] == groups[:, 1]).all() and set(groups[:, 2]) == {0, 1, 2}
    above, below = np.array([1.0, 2, 3, 4, np.nan]), np.array([1.0, 1, 1, 1, 1])
    slow = [(w[:4] @ above[:4]) / w[:4].sum() for w in weights if w[:4].sum()]
    assert find_interval(weights, above, below) == pytest.approx(tuple(np.percentile(slow, [2.5, 97.5])))
    assert np.isnan(find_interval(weights, np.full(5, np.nan), below)).all()


def test_p_is_the_share_of_signs_of_either_side_and_never_zero():
    few = np.array([0.0] * 20 + [-3.0, -1.0, -1.0, -2.0, 0.5])
    signs = np.array(list(product([-1, 1], repeat=5)))
    assert compare_paired(few) == (np.abs(signs @ few[20:]) >= 6.5).mean() == 2 * 2 / 32
    assert compare_paired(np.zeros(5)) == compare_paired(np.array([0.3, -0.3, 0.1, 0.2, -0.2, -0.1])) == 1
    rng = np.random.default_rng(0)
    for count in (3, 12, 16, 17, 40):
        gaps = rng.normal(0.3, 1, count)
        groups = np.arange(count) % 5
        for own in (None, groups):
            assert compare_paired(gaps, own) == compare_paired(-gaps, own) == compare_paired(1e-4 * gaps, own)
        assert compare_paired(np.concatenate([gaps, -gaps])) == 1
    many = rng.normal(0.3, 1, 60)  # by t: with so many the sign flips agree
    assert compare_paired(many) == pytest.approx(stats.ttest_1samp(many, 0)[1], rel=0.1)
    surely = np.full(40, 0.5)
    assert compare_paired(surely) == compare_paired(-surely) == 1 / 20_001
    assert compare_paired(surely[:10]) == 2 / 2**10


def test_rows_are_the_formulas():
    metatask = make_metatask()
    assert list(evaluate(metatask, "symmetric", resamples=9).outcomes) == ["symmetric"]
    found = evaluate(metatask, [*NAMES, Watching().strategy], resamples=200)
    rows = {row["strategy"]: row for row in found.rows}
    average, own = found.outcomes["average_best"].errors, found.outcomes["symmetric"].errors
    row = rows["symmetric"]
    assert row["error"] == pytest.approx(100 * own.mean())
    assert row["increase"] == pytest.approx(100 * (own.sum() / found.optimum.sum() - 1))
    assert row["smallest_increase"] == pytest.approx(100 * (own.sum() / found.smallest.sum() - 1))
    gaps = 100 * (own - average)
    assert row["gap"] == pytest.approx(gaps.mean()) and row["p"] == pytest.approx(compare_paired(gaps))
    assert row["gap_se"] == pytest.approx(gaps.std(ddof=1) / 3)
    assert row["p_group"] == compare_paired(gaps, np.array(found.datasets)) and rows["average_best"]["p_group"] is None
    weights = draw_weights(np.array(found.datasets), 200)
    ends = (row["gap_group_low"], row["gap_group_high"])
    assert ends == pytest.approx(find_interval(weights, gaps, np.ones(len(gaps))))
    assert row["increase_low"] <= row["increase"] <= row["increase_high"]
    assert repr(found) == "Evaluation(5 strategies, 9 tasks, leave one task out)"
    assert "p is two-sided, from flipping the signs of gaps" in str(found) and str(found).count("two-sided") == 1
    assert "each of the 3 once, and cannot be below 0.25" in str(found)
    assert "p datasets" in str(found).splitlines()[0]
    again = evaluate(metatask, [*NAMES, Watching().strategy], resamples=200).rows
    assert again == found.rows
    errors = metatask.errors.copy()
    errors[:] = 0.0  # without any error there is no ratio
    assert evaluate(with_errors(metatask, errors), ["chance"], resamples=50).rows[0]["increase"] is None


def test_the_p_of_datasets_flips_their_means_and_counts_each_once():
    groups = np.array(["a"] * 40 + ["b", "c", "d", "e", "f"])
    gaps = np.array([-1.0] * 40 + [-1.0, -0.5, -0.2, -0.1, -0.4])
    assert compare_paired(gaps) < 1e-4 and compare_paired(gaps, groups) == 2 / 64
    gaps[40:] = 0.3  # forty tasks of one dataset against five others: one voice of six
    signs, means = np.array(list(product((-1, 1), repeat=6))), np.array([-1.0, 0.3, 0.3, 0.3, 0.3, 0.3])
    assert compare_paired(gaps, groups) == (np.abs(signs @ means) >= abs(means.sum()) - 1e-12).mean() > 0.5
    assert compare_paired(np.zeros(4), np.array(list("abcd"))) == 1.0


def test_p_leaves_out_unknown_gaps_and_keeps_their_datasets():
    gaps, groups = np.array([-1.0, -1, np.nan, -1, -2]), np.array(list("aabbc"))
    assert compare_paired(gaps, groups) == 2 / 2**3 and compare_paired(gaps) == 2 / 2**4
    assert compare_paired(np.array([-1.0, np.nan, -2]), np.array(list("abc"))) == 2 / 2**2  # nothing of b is known
    assert compare_paired(np.full(3, np.nan)) == compare_paired(np.full(3, np.nan), np.array(list("aab"))) == 1
