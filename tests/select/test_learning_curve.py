"""The learning curve against heads fitted one by one, and its sentences."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from task2vec.head.fit import REPETITIONS, assign_folds, to_onehot
from task2vec.select import learning_curve
from task2vec.select.learning_curve import describe, measure_learning_curve, measure_losses
from task2vec.select.measure import PENALTY, Folds


def draw(count, *, classes=3, width=20, seed=0, signal=0.5, shuffled=False):
    random = np.random.default_rng(seed)
    targets = random.permutation(count) % classes if shuffled else np.arange(count) % classes
    centres = signal * random.normal(size=(classes, width))
    return torch.from_numpy(centres[targets] + random.normal(size=(count, width))).float(), targets


def curve_slowly(features, targets, classes):
    """Errors at a quarter, a half and all: every subset, repetition and fold by scikit-learn in float64."""
    onehot = to_onehot(torch.from_numpy(targets), classes, is_multilabel=False)[None]
    folds = assign_folds(onehot, is_multilabel=False, repetitions=REPETITIONS)[0][0].numpy()
    x, ranks = features.double().numpy(), np.empty(len(targets), dtype=int)
    for kind in range(classes):
        ranks[targets == kind] = np.arange((targets == kind).sum())
    errors = []
    for parts in (4, 2, 1):
        is_wrong = []
        for turn in range(parts):
            is_in = ranks % parts == turn
            scale = np.sqrt(np.square(x[is_in] - x[is_in].mean(0)).sum(1).mean())
            for fold in folds:
                for number in range(5):
                    train, held = is_in & (fold != number), fold == number
                    head = LogisticRegression(C=1 / (PENALTY * train.sum()), tol=1e-7, max_iter=20000)
                    predicted = head.fit(x[train] / scale, targets[train]).predict(x[held] / scale)
                    is_wrong += list(predicted != targets[held])
        errors.append(np.mean(is_wrong))
    return errors


def test_errors_are_those_of_heads_fitted_one_by_one():
    features, targets = draw(96)
    curve = measure_learning_curve(features, targets, classes=3)
    assert curve.errors == pytest.approx(curve_slowly(features, targets, 3), abs=0.012)
    assert curve.images == (24, 48, 96) and curve.errors[0] > curve.errors[1] > curve.errors[2]
    assert all(low < error < high for low, error, high in zip(curve.low, curve.errors, curve.high, strict=True))


def test_the_last_error_is_the_measured_one():
    features, targets = draw(200, classes=4)
    folds = Folds(targets, np.arange(200), classes=4)
    curve = measure_learning_curve(features, targets, classes=4)
    assert curve.errors[-1] == pytest.approx(np.nanmean(folds.judge(features)), abs=0.01)


def test_copies_stay_together():
    features, targets = draw(120, width=300, signal=0.0)
    doubled, labels = features.repeat_interleave(2, 0), targets.repeat(2)
    curve = measure_learning_curve(doubled, labels, classes=3, groups=np.arange(120).repeat(2))
    assert min(curve.errors) > 0.5
    assert measure_learning_curve(doubled, labels, classes=3).errors[-1] < 0.3  # each is tested on its copy


def test_attributes_have_a_curve():
    features, targets = draw(160, classes=2, shuffled=True)
    columns = np.stack([targets, 1 - targets], axis=1).astype(np.uint8)
    losses = measure_losses(features, Folds(columns, np.arange(160), classes=2))
    assert losses.shape == (3, 160) and np.isfinite(losses).all()
    assert losses[2].mean() < losses[0].mean() < 0.5


def test_a_small_drop_over_many_attributes_is_clear(monkeypatch):
    columns = (np.arange(100)[:, None] + np.arange(12)) % 2
    losses = np.zeros((3, 100))
    losses[1, ::5] = 1 / 12  # one answer of every fifth image, which twice the images put right
    monkeypatch.setattr(learning_curve, "measure_losses", lambda *_: losses)
    curve = learning_curve.measure_learning_curve(torch.zeros(100, 2), columns.astype(np.uint8), classes=12)
    assert curve.sentence == "Still falling: twice the images, about 1 point less."


@pytest.mark.parametrize(("count", "classes"), [(30, 2), (60, 10)])
def test_small_tasks_have_none(count, classes):
    features, targets = draw(count, classes=classes)
    assert measure_learning_curve(features, targets, classes=classes) is None


def test_sentences_name_a_number_only_if_the_drop_is_clear():
    assert describe(0.06, 0.01) == "Still falling: twice the images, about 4 points less."
    assert describe(0.015, 0.005) == "Still falling: twice the images, about 1 point less."
    for drop, spread in ((0.05, 0.03), (0.01, 0.001), (-0.01, 0.001), (0.0, 0.0)):
        assert "twice" not in describe(drop, spread)


def test_the_sentence_is_about_the_last_doubling(monkeypatch):
    losses = np.zeros((3, 200))
    losses[0, :180], losses[1, :40], losses[2, :20] = 1, 1, 1  # errors of 90, 20 and 10 %
    monkeypatch.setattr(learning_curve, "measure_losses", lambda *_: losses)
    curve = learning_curve.measure_learning_curve(torch.zeros(200, 2), np.arange(200) % 2, classes=2)
    assert curve.errors == (0.9, 0.2, 0.1)
    assert curve.sentence == "Still falling: twice the images, about 7 points less."  # 0.7 of the last 10
