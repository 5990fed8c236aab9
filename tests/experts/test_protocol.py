"""Protocols, splits and intervals: only seed and content decide, and errors are those of scikit-learn and scipy."""

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import average_precision_score, balanced_accuracy_score

from task2vec.errors import UsageError
from task2vec.experts import ErrorProtocol, choose_test_half, choose_training, wilson_interval
from task2vec.experts.protocol import score_balanced, score_precision
from task2vec.tasks import from_dataset
from tests.experts.material import make_attributes, make_task, pictures
from tests.library.making import refuse

SEEDS = range(4)


def test_keys_have_all_that_moves_numbers_and_protocols_that_cannot_be_are_refused():
    assert ErrorProtocol(5, "achille2019", "balanced").key == "linear-2, train 5, achille2019, balanced"
    wrong = {"shots": [0, True, "all", 2.5], "classifier": ["svm"], "measure": ["plain"]}
    for name, values in wrong.items():
        for value in values:
            refuse(UsageError, name, ErrorProtocol, **{name: value})


def test_copies_are_on_one_side_and_drawn_once():
    images, labels = pictures((8, 7, 6))
    task = from_dataset([(images[row], labels[row]) for row in [*range(21), 0, 0, 9, 20]], name="copied")
    for seed in SEEDS:
        is_test = choose_test_half(task, seed)
        assert len(set(zip(task.digests, is_test.tolist(), strict=True))) == len(set(task.digests))
        train = choose_training(task, is_test, shots=3, seed=seed)
        drawn = [task.digests[row] for row in np.flatnonzero(train)]
        assert len(set(drawn)) == len(drawn) and not (train & is_test).any()


def test_so_many_of_each_class_and_smaller_draws_within_larger_ones():
    task = make_task((20, 9, 3, 1))
    is_test = choose_test_half(task, 1)
    there = np.bincount(task.targets[~is_test])
    assert there.tolist() == [10, 5, 2, 1]  # halves
    before = np.zeros(len(task), dtype=bool)
    for train in (1, 2, 5, 100):
        mask = choose_training(task, is_test, shots=train, seed=1)
        assert np.bincount(task.targets[mask]).tolist() == np.minimum(there, train).tolist()
        assert not (mask & is_test).any() and (before <= mask).all()
        before = mask
    assert np.array_equal(before, choose_training(task, is_test, shots="half", seed=1))
    assert np.array_equal(before, ~is_test)


def test_attributes_have_both_answers_in_every_part():
    task = make_attributes(60)
    for seed in SEEDS:
        is_test = choose_test_half(task, seed)
        mask = choose_training(task, is_test, shots=2, seed=seed)
        for side in (is_test, ~is_test, mask):
            share = task.targets[side].mean(0)
            assert (share > 0).all() and (share < 1).all()
        for answer in (0, 1):
            assert ((task.targets[mask] == answer).sum(0) >= 2).all()
        assert mask.sum() < 20 and not (mask & is_test).any()


@pytest.mark.parametrize(("wrong", "count"), [(0, 1), (0, 40), (3, 40), (40, 40), (1, 5000)])
def test_wilsons_interval(wrong, count):
    score = wilson_interval(wrong, count)
    ends = binomtest(wrong, count).proportion_ci(method="wilson")
    assert score.error == wrong / count
    assert (score.low, score.high) == pytest.approx((ends.low, ends.high), abs=1e-6)
    assert 0 <= score.low <= score.error <= score.high <= 1


def test_balanced_errors_and_precision_with_ties():
    rng = np.random.default_rng(0)
    classes = rng.choice(4, size=200, p=[0.7, 0.2, 0.06, 0.04])
    is_wrong = rng.random(200) < 0.1 * (1 + classes)
    balanced = 1 - balanced_accuracy_score(classes, np.where(is_wrong, (classes + 1) % 4, classes))
    score = score_balanced(is_wrong, classes)
    assert score.error == pytest.approx(balanced) and score.low < score.error < score.high
    assert abs(score.error - is_wrong.mean()) > 0.01  # otherwise the test shows nothing
    targets = (rng.random((150, 3)) < [0.5, 0.1, 0.8]).astype(np.uint8)
    answers = np.where(rng.random((150, 3)) < 0.8, targets, 1 - targets)
    logits = np.round(targets + rng.normal(size=(150, 3)), 1)
    for score, oracle, given in (
        (score_balanced(answers != targets, targets), balanced_accuracy_score, answers),
        (score_precision(logits, targets), average_precision_score, logits),
    ):
        wanted = [1 - oracle(targets[:, column], given[:, column]) for column in range(3)]
        assert score.error == pytest.approx(np.mean(wanted)) and score.low < score.error < score.high


def test_nothing_wrong_is_no_proof_that_nothing_will_be():
    nothing, targets = np.zeros(90, dtype=bool), np.repeat([0, 1, 2], 30)
    score = score_balanced(nothing, targets)
    assert (score.error, score.low) == (0, 0) and score.high == pytest.approx(wilson_interval(0, 90).high)
    uneven = score_balanced(nothing, np.repeat([0, 1, 2], [84, 3, 3]))
    assert score.high < uneven.high < wilson_interval(0, 9).high  # a class of three weighs as much as one of 84
    one = np.repeat([0, 1], 45)[:, None]
    for columns in (1, 4):  # the same attribute four times is no more evidence than once
        score = score_balanced(np.zeros((90, columns), dtype=bool), np.repeat(one, columns, axis=1))
        assert score.low == 0 and score.high == pytest.approx(wilson_interval(0, 90).high)
    perfect = score_precision(one * 2.0 - 1, one)
    assert perfect.error == perfect.low == 0 and perfect.high == pytest.approx(wilson_interval(0, 45).high)
    worst = score_balanced(np.ones(90, dtype=bool), targets)
    assert (worst.error, worst.high) == (1, 1) and worst.low == pytest.approx(wilson_interval(90, 90).low)


def test_intervals_contain_the_true_error_about_as_often_as_they_should():
    rng = np.random.default_rng(0)
    draws = [rng.choice(3, size=120, p=[0.6, 0.3, 0.1]) for _ in range(60)]
    scores = [score_balanced(rng.random(120) < np.array([0.1, 0.3, 0.5])[targets], targets) for targets in draws]
    assert 52 <= sum(score.low <= 0.3 <= score.high for score in scores) <= 60
