"""Evaluation: who is asked with what left out, what the numbers are, and that they are the slow ones."""

import csv
import json
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
from scipy import stats

from task2vec.errors import ResourceError, UndefinedScoreError, UsageError
from task2vec.select.evaluation import evaluate
from task2vec.select.evaluation.measures import (
    choose_honestly,
    compare_groups,
    compare_paired,
    draw_weights,
    expect_first,
    find_brier,
    find_fidelity,
    find_interval,
    hit,
    weigh_tau,
)
from task2vec.select.evaluation.summary import to_plain, write_csv
from task2vec.select.evidence import Answer
from tests.select.evidence_making import make_evidence

NAMES = ["chance", "static", "symmetric", "kernel symmetric"]


@dataclass
class Watching:
    """A strategy that notes what it was shown, and ranks in the order of the list."""

    name: str = "watching"
    looks_at_images: bool = False

    def __post_init__(self):
        self.fits, self.asked = [], []

    def fit(self, evidence):
        self.fits.append(evidence.tasks)
        return self

    def rank(self, question):
        self.asked.append((question.name, self.fits[-1], tuple(question.is_candidate), question.distances))
        ends = np.arange(len(question.is_candidate)) / 10
        return Answer(ends, low=ends, high=ends + 0.3, chances=np.full(len(ends), 1 / len(ends)))


def test_the_task_is_left_out_and_nothing_else():
    evidence, watching = make_evidence(), Watching()
    found = evaluate(evidence, [watching])
    assert found.tasks == evidence.tasks
    for name, known, allowed, distances in watching.asked:
        row = evidence.tasks.index(name)
        assert known == tuple(task for task in evidence.tasks if task != name)
        assert allowed == tuple(evidence.is_candidate[row])
        np.testing.assert_array_equal(distances["symmetric"], np.delete(evidence.distances["symmetric"][row], row))


@pytest.mark.parametrize("leave", ["dataset", "domain"])
def test_all_tasks_of_the_dataset_are_left_out_and_it_is_fitted_once(leave):
    evidence, watching = make_evidence(), Watching()
    found = evaluate(evidence, [watching], leave=leave)
    assert len(watching.fits) == 3 and found.tasks == evidence.tasks
    for name, known, allowed, _ in watching.asked:
        row = evidence.tasks.index(name)
        own = evidence.groups[row]
        assert own not in {evidence.groups[evidence.tasks.index(task)] for task in known}
        is_taught = np.array([group == own for group in evidence.lesson_groups])
        wanted = evidence.is_candidate[row] & ~is_taught if leave == "domain" else evidence.is_candidate[row]
        assert allowed == tuple(wanted) and is_taught.any()


@pytest.mark.parametrize("leave", ["task", "dataset"])
def test_answers_are_those_about_the_task(leave):
    @dataclass
    class ByName(Watching):
        def rank(self, question):
            badness = np.ones(len(question.is_candidate))
            badness[int(question.name.split()[1]) % 6] = 0
            return Answer(badness)

    found = evaluate(make_evidence(tasks=8), [ByName()], leave=leave)
    assert found.outcomes["watching"].chosen.tolist() == [0, 0, 2, 3, 4, 5, 0, 1]  # the expert 1 has seen the task 1


def test_unknown_errors_are_never_chosen_nor_counted():
    evidence = make_evidence(missing=0.3)
    found = evaluate(evidence, ["static", "chance"])
    means = np.where(evidence.is_candidate, evidence.mean, np.nan)
    rows = [evidence.tasks.index(name) for name in found.tasks]
    np.testing.assert_allclose(found.outcomes["chance"].errors, np.nanmean(means[rows], axis=1))
    np.testing.assert_allclose(found.smallest, np.nanmin(means[rows], axis=1))
    chosen = found.outcomes["static"].chosen
    np.testing.assert_allclose(found.outcomes["static"].errors, means[rows, chosen])


def test_only_some_tasks_are_asked_about():
    evidence = make_evidence()
    found = evaluate(evidence, ["static"], asked=["task 4", "task 2"])
    assert found.tasks == ("task 2", "task 4")
    whole = evaluate(evidence, ["static"])
    assert found.outcomes["static"].errors.tolist() == whole.outcomes["static"].errors[[2, 4]].tolist()


def test_strategies_that_cannot_answer_are_left_out_with_their_reason():
    evidence = replace(make_evidence(), simplicity=None)
    found = evaluate(evidence, ["static", "asymmetric"])
    assert list(found.outcomes) == ["static"] and "trivial task" in found.left_out["asymmetric"]
    assert "Left out: asymmetric (nothing says how far" in str(found)
    bare = replace(evidence, scores={})
    many = str(evaluate(bare, ["static", "logme", "knn", "parc"], resamples=9))
    assert "Left out: 3 strategies, 'logme' and others, for the evidence lacks what they go by" in many

    class Broken(Watching):
        def rank(self, question):
            if question.name == "task 5":
                raise UndefinedScoreError("not this one. Ask another.")
            return super().rank(question)

    assert "watching" in evaluate(evidence, ["static", Broken()]).left_out


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ({"leave": "universe"}, "leave='universe'"),
        ({"strategies": ["guess"]}, "no strategy called 'guess'"),
        ({"asked": ["task 99"]}, "'task 99' is none of the 9 tasks"),
    ],
)
def test_what_cannot_be_meant_is_refused(how, match):
    with pytest.raises(UsageError, match=match):
        evaluate(make_evidence(), how.pop("strategies", ["static"]), **how)


def test_one_dataset_or_one_expert_leaves_nothing():
    evidence = make_evidence(groups=1)
    with pytest.raises(UsageError, match="no task is left to learn from"):
        evaluate(evidence, ["static"], leave="dataset")
    with pytest.raises(UsageError, match="no task has two candidates"):
        evaluate(evidence.only(range(9), [0]), ["static"])
    with pytest.raises(UsageError, match="'task 0' is the only task"):
        evaluate(evidence.only([0]), ["static"])


def test_what_the_name_of_a_strategy_promises_must_be_known():
    evidence = make_evidence()
    evidence = replace(evidence, scores={}, distances={"symmetric": evidence.distances["symmetric"]})
    found = evaluate(evidence, ["combined", "combined domain", "combined + logme"])
    assert set(found.outcomes) == {"combined"}
    assert "no domain distance between tasks is known" in found.left_out["combined domain"]
    assert "the score 'logme' of these tasks and experts is not known" in found.left_out["combined + logme"]


def slow_honest(measured, allowed):
    """Chosen on all parts but one, measured on that."""
    found = []
    for row in range(len(measured)):
        parts = []
        for part in range(measured.shape[2]):
            rest = [other for other in range(measured.shape[2]) if other != part]
            best = min((float(measured[row, j, rest].mean()), j) for j in range(measured.shape[1]) if allowed[row, j])[
                1
            ]
            parts.append(measured[row, best, part])
        found.append(np.mean(parts))
    return np.array(found)


def test_the_optimum_is_chosen_on_halves_or_on_other_seeds():
    evidence = make_evidence()
    found = evaluate(evidence, ["static"])
    assert found.chosen_on == "halves"
    np.testing.assert_allclose(found.optimum, slow_honest(evidence.halves, evidence.is_candidate))
    seeds = evaluate(replace(evidence, halves=None), ["static"])
    assert seeds.chosen_on == "seeds"
    np.testing.assert_allclose(seeds.optimum, slow_honest(evidence.errors, evidence.is_candidate))
    single = evaluate(replace(evidence, halves=None, errors=evidence.errors[:, :, :1]), ["static"])
    assert single.optimum is None and single.chosen_on is None and "cannot be chosen honestly" in str(single)
    assert (found.smallest <= np.where(evidence.is_candidate, evidence.mean, 9).min(1) + 1e-12).all()


def test_an_honest_optimum_shares_among_equals_and_skips_the_unknown():
    measured = np.array([[[0.2, 0.2], [0.2, 0.6], [0.9, 0.9]]])
    assert choose_honestly(measured, np.ones((1, 3), dtype=bool)) == pytest.approx([(0.4 + 0.2) / 2])
    measured[0, 0] = np.nan
    assert choose_honestly(measured, np.ones((1, 3), dtype=bool)) == pytest.approx([(0.6 + 0.2) / 2])
    assert np.isnan(choose_honestly(np.full((1, 2, 1), 0.1), np.ones((1, 2), dtype=bool)))[0]


def test_numbers_of_one_ranking():
    places, errors = np.array([0, 1, 1, 3]), np.array([0.4, 0.1, 0.2, 0.3])
    assert expect_first(places, errors) == 0.4 and expect_first(np.array([1, 0, 0, 3]), errors) == pytest.approx(0.15)
    assert hit(places, errors, 1) == 0 and hit(places, errors, 2) == 0.5 and hit(places, errors, 3) == 1
    assert hit(np.zeros(4), np.array([0.1, 0.1, 0.3, 0.4]), 2) == pytest.approx(1 - 1 / 6)
    assert weigh_tau(places, errors) == pytest.approx(stats.weightedtau(-places.astype(float), -errors)[0])
    assert weigh_tau(np.argsort(np.argsort(errors)), errors) == pytest.approx(1) and weigh_tau(np.zeros(4), errors) == 0
    pairs = [(i, j) for i in range(4) for j in range(4)]
    badness = np.array([0.3, 0.1, 0.9, 0.2])
    gaps = np.array([[badness[i] - badness[j], errors[i] - errors[j]] for i, j in pairs])
    assert find_fidelity(badness, errors) == pytest.approx(np.corrcoef(gaps.T)[0, 1])
    assert find_fidelity(np.array([np.nan, 0.1, np.nan, np.nan]), errors) == 0
    assert find_brier(np.array([0.0, 1, 0, 0]), errors) == 0 and find_brier(np.array([1.0, 0, 0, 0]), errors) == 2


def test_intervals_come_from_samples_of_tasks_or_of_datasets():
    weights = draw_weights(np.arange(5), 400, 3)
    assert (weights.sum(1) == 5).all() and weights.mean() == pytest.approx(1)
    groups = draw_weights(np.array(["a", "a", "b"]), 400, 3)
    assert (groups[:, 0] == groups[:, 1]).all() and set(groups[:, 2]) == {0, 1, 2}
    above, below = np.array([1.0, 2, 3, 4, np.nan]), np.array([1.0, 1, 1, 1, 1])
    slow = [(w[:4] @ above[:4]) / w[:4].sum() for w in weights if w[:4].sum()]
    assert find_interval(weights, above, below) == pytest.approx(tuple(np.percentile(slow, [2.5, 97.5])))
    assert np.isnan(find_interval(weights, np.full(5, np.nan), below)).all()
    assert compare_paired(np.zeros(5)) == 1
    few = np.array([0.0] * 20 + [-3.0, -1.0, -1.0, -2.0, 0.5])
    ranks, signs = stats.rankdata(np.abs(few[20:])), np.array(list(product([-1, 1], repeat=5)))
    as_far = np.abs(signs @ ranks) >= abs(np.sign(few[20:]) @ ranks)
    assert compare_paired(few) == pytest.approx(as_far.mean())
    gaps = np.array([0.1, -0.2, 0.3, 0.4, 0.5, 0.1])
    assert compare_paired(gaps) == pytest.approx(stats.wilcoxon(gaps)[1])


def test_rows_are_the_formulas():
    evidence = make_evidence()
    found = evaluate(evidence, [*NAMES, Watching()], resamples=200)
    rows = {row["strategy"]: row for row in found.rows}
    static, own = found.outcomes["static"].errors, found.outcomes["symmetric"].errors
    row = rows["symmetric"]
    assert row["error"] == pytest.approx(100 * own.mean())
    assert row["increase"] == pytest.approx(100 * (own.sum() / found.optimum.sum() - 1))
    assert row["mean_increase"] == pytest.approx(100 * np.mean(own / found.optimum - 1))
    assert row["smallest_increase"] == pytest.approx(100 * (own.sum() / found.smallest.sum() - 1))
    assert row["regret"] == pytest.approx(100 * np.mean(own - found.optimum))
    assert row["gap"] == pytest.approx(100 * np.mean(own - static))
    assert row["p"] == pytest.approx(stats.wilcoxon(own - static)[1])
    assert row["increase_low"] <= row["increase"] <= row["increase_high"]
    assert row["increase_group_low"] <= row["increase_group_high"]
    assert row["gap_low"] <= row["gap"] <= row["gap_high"] and rows["static"]["p"] is None
    assert rows["symmetric"]["coverage"] is None
    means = np.where(evidence.is_candidate, evidence.mean, np.nan)
    low = np.arange(6) / 10
    inside = [np.nanmean(np.where(np.isnan(r), np.nan, (low <= r) & (r <= low + 0.3))) for r in means]
    assert rows["watching"]["coverage"] == pytest.approx(100 * np.mean(inside))
    assert rows["watching"]["width"] == pytest.approx(30) and rows["watching"]["brier"] > 0


def test_a_task_of_no_error_at_all_breaks_no_ratio():
    evidence = make_evidence()
    errors = evidence.errors.copy()
    errors[3] = 0.0
    found = evaluate(replace(evidence, errors=errors, halves=None), ["static", "chance"], resamples=50)
    row = found.rows[1]
    kept = np.arange(9) != 3
    own = found.outcomes["chance"].errors
    assert row["mean_increase"] == pytest.approx(100 * np.mean(own[kept] / found.optimum[kept] - 1))
    assert np.isfinite([value for value in row.values() if isinstance(value, float)]).all()


def test_what_is_written_is_what_was_found(tmp_path):
    found = evaluate(make_evidence(), NAMES, resamples=50)
    with write_csv(found, tmp_path / "rows.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["strategy"] for row in rows] == NAMES
    assert float(rows[1]["increase"]) == pytest.approx(found.rows[1]["increase"], rel=1e-5)
    plain = json.loads(json.dumps(to_plain(found), allow_nan=False))
    assert plain["choices"]["static"][0]["expert"] == f"expert {found.outcomes['static'].chosen[0]}"
    assert plain["rows"][0]["strategy"] == "chance" and plain["optimum_chosen_on"] == "halves"
    with pytest.raises(ResourceError, match="cannot be written"):
        write_csv(found, tmp_path / "nowhere" / "rows.csv")
    text = str(found)
    assert text.splitlines()[0].startswith("strategy") and "9 tasks, each task left out in turn." in text
    assert repr(found) == "Evaluation(4 strategies, 9 tasks, leave one task out)"
    assert "chance" in repr(found.outcomes["chance"])


def test_the_same_seed_gives_the_same_rows():
    evidence = make_evidence()
    one, two = (evaluate(evidence, ["static"], resamples=99).rows[0] for _ in range(2))
    assert {**one, "seconds": 0} == {**two, "seconds": 0}


def test_the_p_of_datasets_flips_their_means_and_counts_each_once():
    groups = np.array(["a"] * 40 + ["b", "c", "d", "e", "f"])
    gaps = np.array([-1.0] * 40 + [-1.0, -0.5, -0.2, -0.1, -0.4])
    assert compare_paired(gaps) < 1e-7 and compare_groups(gaps, groups) == 2 / 64
    # Forty tasks of one dataset against five others: one voice of six.
    gaps[40:] = 0.3
    means = np.array([-1.0, 0.3, 0.3, 0.3, 0.3, 0.3])
    slow = [abs(sum(s * m for s, m in zip(signs, means, strict=True))) for signs in product((-1, 1), repeat=6)]
    expected = np.mean([one >= abs(means.sum()) - 1e-12 for one in slow])
    assert compare_groups(gaps, groups) == pytest.approx(expected) and expected > 0.5
    assert compare_groups(np.zeros(4), np.array(list("abcd"))) == 1.0
    many = np.random.default_rng(0).normal(-1, 0.1, 30)
    assert 0 < compare_groups(many, np.arange(30)) < 1e-3


def test_rows_compare_with_static_over_tasks_and_over_datasets():
    evidence = make_evidence()
    found = evaluate(evidence, ["static", "chance"], resamples=500)
    static, chance = found.rows
    gaps = 100 * (found.outcomes["chance"].errors - found.outcomes["static"].errors)
    assert chance["p_group"] == compare_groups(gaps, np.array(found.groups)) and static["p_group"] is None
    weights = draw_weights(np.array(found.groups), 500, 0)
    assert (chance["gap_group_low"], chance["gap_group_high"]) == find_interval(weights, gaps, np.ones(len(gaps)))
    datasets = len(set(found.groups))
    assert f"with {datasets} of them it cannot be below {2 / 2**datasets:.2g}" in str(found)
    assert "p datasets" in str(found).splitlines()[0]
    alone = evaluate(replace(evidence, groups=("one",) * len(evidence.tasks)), ["static", "chance"], resamples=50)
    assert alone.rows[1]["p_group"] is None and "p datasets" not in "".join(str(alone).splitlines()[5:])
