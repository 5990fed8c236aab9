"""Errors and intervals against those of scikit-learn and scipy, and against simulated test sets."""

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import average_precision_score, balanced_accuracy_score

from task2vec.experts.scoring import score_balanced, score_precision, score_wrong


@pytest.mark.parametrize(("wrong", "count"), [(0, 1), (1, 1), (0, 40), (3, 40), (20, 40), (40, 40), (1, 5000)])
def test_wilsons_interval(wrong, count):
    score = score_wrong(wrong, count)
    ends = binomtest(wrong, count).proportion_ci(method="wilson")
    assert score.error == wrong / count
    assert (score.low, score.high) == pytest.approx((ends.low, ends.high), abs=1e-6)
    assert 0 <= score.low <= score.error <= score.high <= 1


def test_balanced_errors_of_classes():
    rng = np.random.default_rng(0)
    targets = rng.choice(4, size=200, p=[0.7, 0.2, 0.06, 0.04])
    answers = np.where(rng.random(200) < 0.6, targets, rng.integers(0, 4, 200))
    score = score_balanced(answers != targets, targets)
    assert score.error == pytest.approx(1 - balanced_accuracy_score(targets, answers))
    assert 0 < score.low < score.error < score.high < 1
    assert abs(score.error - (answers != targets).mean()) > 0.01  # otherwise the test shows nothing


def test_balanced_errors_of_attributes():
    rng = np.random.default_rng(0)
    targets = (rng.random((150, 3)) < [0.5, 0.1, 0.8]).astype(np.uint8)
    answers = np.where(rng.random((150, 3)) < 0.8, targets, 1 - targets)
    score = score_balanced(answers != targets, targets)
    wanted = [1 - balanced_accuracy_score(targets[:, column], answers[:, column]) for column in range(3)]
    assert score.error == pytest.approx(np.mean(wanted))
    assert score.low < score.error < score.high


def test_precision_with_ties():
    rng = np.random.default_rng(0)
    targets = (rng.random((150, 3)) < [0.5, 0.1, 0.8]).astype(np.uint8)
    logits = np.round(targets + rng.normal(size=(150, 3)), 1)
    score = score_precision(logits, targets)
    wanted = [average_precision_score(targets[:, column], logits[:, column]) for column in range(3)]
    assert score.error == pytest.approx(1 - np.mean(wanted))
    assert score.low < score.error < score.high


def test_a_resample_without_a_class_has_an_interval():
    targets = np.array([0] * 9 + [1])
    score = score_balanced(np.array([False] * 9 + [True]), targets)
    assert score.error == 0.5 and (score.low, score.high) == (0.0, 0.5)


def test_nothing_wrong_is_no_proof_that_nothing_will_be():
    targets = np.repeat([0, 1, 2], [30, 30, 30])
    score = score_balanced(np.zeros(90, dtype=bool), targets)
    assert (score.error, score.low) == (0, 0) and score.high == pytest.approx(score_wrong(0, 90).high)
    uneven = score_balanced(np.zeros(90, dtype=bool), np.repeat([0, 1, 2], [84, 3, 3]))
    assert score.high < uneven.high < score_wrong(0, 9).high  # a class of three weighs as much as one of 84
    one = np.repeat([0, 1], 45)[:, None]
    for columns in (1, 4):  # the same attribute four times is no more evidence than once
        score = score_balanced(np.zeros((90, columns), dtype=bool), np.repeat(one, columns, axis=1))
        assert score.low == 0 and score.high == pytest.approx(score_wrong(0, 90).high)
    perfect = score_precision(one * 2.0 - 1, one)
    assert perfect.error == perfect.low == 0 and perfect.high == pytest.approx(score_wrong(0, 45).high)
    worst = score_balanced(np.ones(90, dtype=bool), targets)
    assert (worst.error, worst.high) == (1, 1) and worst.low == pytest.approx(score_wrong(90, 90).low)


def test_bounds_where_nothing_is_wrong_hold_the_truth():
    rng, held, seen = np.random.default_rng(0), 0, 0
    targets = np.repeat([0, 1, 2], [20, 20, 10])
    for _ in range(120):
        score = score_balanced(rng.random(50) < 0.03, targets)
        if score.error == 0:
            seen, held = seen + 1, held + (score.high >= 0.03)
    assert seen > 10 and held == seen


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(100):
        targets = rng.choice(3, size=120, p=[0.6, 0.3, 0.1])
        score = score_balanced(rng.random(120) < np.array([0.1, 0.3, 0.5])[targets], targets)
        held += score.low <= 0.3 <= score.high
    assert 86 <= held <= 100
