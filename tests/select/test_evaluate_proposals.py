"""Proposals evaluated: what is judged is never what was chosen by, nothing of a left-out task is known, and columns."""

import csv
from dataclasses import replace

import numpy as np
import pytest

import task2vec as t2v
from task2vec.metatask import SYMMETRIC, View, bundled_metatask
from task2vec.select.evaluate import (
    ALL,
    ORDERS,
    RULE,
    ProposalEvaluation,
    compare_paired,
    evaluate_proposals,
    judge_chosen,
    learn_orders,
)
from task2vec.select.propose import choose_width, propose
from task2vec.select.strategies import find_known_errors
from tests.failures import refuse


@pytest.fixture(scope="module")
def view() -> View:
    """Seven networks on label sets, taxa of two datasets and some sources."""
    whole = bundled_metatask().select("half")
    taxa = [row for row, task in enumerate(whole.tasks) if task.family == "taxa" and task.dataset in ("cub200", "dogs")]
    others = [row for row, task in enumerate(whole.tasks) if task.family == "labels"][:8]
    return whole.only([*taxa[:6], *taxa[-6:], *others])


def test_what_is_judged_never_moves_the_choice():
    halves = np.array([[0.9, 0.8], [0.2, 0.5], [0.0, 0.0], [0.6, 0.3], [0.7, 0.9]])
    noise = np.random.default_rng(0).normal(0, 0.5, (5, 3, 2))
    noise -= noise.mean(1, keepdims=True)  # of splits: the choice is by their mean

    def judge(errors):
        return float(judge_chosen((errors[:, None] + noise)[None], [np.array([1, 3, 4])])[0])

    assert judge(halves) == pytest.approx((0.5 + 0.6) / 2)  # model 1 by the first half, 3 by the second
    for half, model, gain in ((1, 1, 0.4), (0, 3, -0.35), (1, 4, 0.05), (0, 0, -0.9)):
        moved = halves.copy()
        moved[model, half] += gain  # changes what is judged, and no choice
        share = gain / 2 if model in (1, 3) else 0
        assert judge(moved) == pytest.approx((0.5 + 0.6) / 2 + share)


def test_errors_are_those_of_plain_loops(view):
    """The rule, one dataset left out: every step by itself, with the smallest error of the chosen on either half."""
    evaluation = evaluate_proposals(view, known="all", leave="dataset", counts=(1, 3))
    assert view.halves is not None and evaluation.tasks == tuple(task.name for task in view.tasks)
    errors, halves = find_known_errors(view), view.halves.mean(2)
    for row in (0, 9, 15):
        known = [other for other, task in enumerate(view.tasks) if task.dataset != view.tasks[row].dataset]
        distances, sources = view.between(SYMMETRIC)[row, known], view.to_sources(SYMMETRIC)[row]
        width = choose_width(errors[known], view.between(SYMMETRIC)[np.ix_(known, known)])
        order = propose(errors[known], distances, sources, view.is_candidate[row], width=width, count=3)
        for place, count in enumerate((1, 3)):
            first = order[:count]
            judged = [halves[row, first[halves[row, first, half].argmin()], 1 - half] for half in (0, 1)]
            assert evaluation.errors[RULE][place, row] == pytest.approx(np.mean(judged))


def test_all_measured_is_the_unbiased_optimum(view):
    evaluation = evaluate_proposals(view, family="taxa")
    outcome = t2v.evaluate(bundled_metatask(), ["chance"], family="taxa")
    optimum = dict(zip(outcome.tasks, outcome.optimum, strict=True))
    assert evaluation.errors[ALL][0] == pytest.approx([optimum[name] for name in evaluation.tasks])
    for name in ORDERS:  # after all seven, every order has measured the same
        assert evaluation.errors[name][6] == pytest.approx(evaluation.errors[ALL][0])


def test_the_task_that_is_left_out_does_not_matter_for_its_order(view):
    known = np.arange(1, len(view.tasks))
    hidden = view.errors.copy()
    hidden[0] = 1 - hidden[0]
    orders = [
        learn_orders(each, known, count=7)(0, view.is_candidate[0]) for each in (view, replace(view, errors=hidden))
    ]
    assert set(orders[0]) == set(ORDERS)
    for name in ORDERS:
        assert orders[0][name].tolist() == orders[1][name].tolist()
        assert view.is_candidate[0][orders[0][name]].all()


def test_rows_follow_from_the_errors():
    errors = {
        "average-best": np.array([[0.4, 0.3, 0.2], [0.3, 0.3, 0.2]]),
        "rule": np.array([[0.3, 0.2, 0.2], [0.1, 0.1, 0.2]]),
        "all": np.array([[0.1, 0.1, 0.1]]),
    }
    evaluation = ProposalEvaluation(
        tasks=("a", "b", "c"), datasets=("x", "x", "y"), leave="task", resamples=500, counts=(1, 4), errors=errors
    )
    rows = {(row["order"], row["measured"]): row for row in evaluation.rows}
    assert len(rows) == 5 and rows["all", "all"]["gap"] is None
    row, gaps = rows["rule", 1], np.array([-0.1, -0.1, 0])
    assert row["error"] == pytest.approx(100 * 0.7 / 3) and row["gap"] == pytest.approx(100 * gaps.mean())
    assert row["gap_se"] == pytest.approx(100 * gaps.std(ddof=1) / np.sqrt(3))
    assert row["gap_low"] == pytest.approx(-10) and row["gap_high"] == pytest.approx(0)
    assert row["p"] == compare_paired(gaps) and row["p_group"] == compare_paired(gaps, np.array(["x", "x", "y"]))
    assert row["all_gap"] == pytest.approx(100 * (0.7 / 3 - 0.1)) and row["p_all"] is not None
    assert row["domain_gap"] is None and row["p_domain"] is None
    assert rows["average-best", 4]["gap"] is None and rows["average-best", 4]["all_gap"] is not None
    assert row["error_low"] <= row["error"] <= row["error_high"]


def test_text_and_files(view, tmp_path):
    evaluation = t2v.evaluate_proposals(view, family="labels", counts=(1, 2, 4), resamples=100)
    text = str(evaluation)
    assert "8 tasks, each task left out in turn" in text and "4: over average-best" in text
    assert f"it is {100 * evaluation.errors[ALL].mean():.1f}." in text
    with open(evaluation.to_csv(tmp_path / "rows.csv"), newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4 * 3 + 1 and set(rows[0]) == set(evaluation.rows[0])
    values = evaluation.to_dict()
    assert values["counts"] == [1, 2, 4] and len(values["rows"]) == len(rows)
    assert rows[0]["p_group"] == ""  # label sets are of one dataset


def test_known_tasks_are_the_family_or_all(view):
    alone = evaluate_proposals(view.subset(family="taxa"), counts=(1,))
    within = evaluate_proposals(view, family="taxa", counts=(1,))
    every = evaluate_proposals(view, family="taxa", known="all", counts=(1,))
    assert alone.tasks == within.tasks == every.tasks
    assert (alone.errors[RULE] == within.errors[RULE]).all()
    # Of the only dataset of a family nothing would be known: all tasks are.
    labels = evaluate_proposals(view, family="labels", leave="dataset", counts=(1,))
    assert (labels.errors[RULE] == evaluate_proposals(
        view, family="labels", known="all", leave="dataset", counts=(1,)
    ).errors[RULE]).all()  # fmt: skip


def test_what_cannot_be_evaluated_is_refused(view):
    words = "no errors on two halves.*evaluate --strategy proposals"
    refuse(t2v.errors.DataError, words, evaluate_proposals, replace(view, halves=None))
    refuse(t2v.errors.UsageError, "leave='nothing' is unknown", evaluate_proposals, view, leave="nothing")
    refuse(t2v.errors.UsageError, "known='none' is unknown", evaluate_proposals, view, known="none")
    single = view.subset(family="labels")
    refuse(t2v.errors.UsageError, "no task to learn from", evaluate_proposals, single, leave="dataset")
    with pytest.raises(t2v.errors.UsageError, match="no tasks of the kind"):
        evaluate_proposals(view, family="weather")
