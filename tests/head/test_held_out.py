"""Held-out probabilities: those of heads fitted fold by fold, without the image and its group."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from task2vec.head import fit_head, predict_held_out
from task2vec.head.fit import FOLDS, assign_folds
from tests.head.material import KINDS, problem
from tests.oracles import heads


@pytest.mark.parametrize("kind", list(KINDS))
def test_scikit_learn_agrees_fold_by_fold(kind, monkeypatch):
    monkeypatch.setattr("task2vec.head.fit.REPETITIONS", 2)
    (x, targets, onehot), is_multilabel = problem(kind, 90), KINDS[kind][1]
    groups = torch.arange(90) // 3
    found, _, is_judged = predict_held_out(x, targets, classes=onehot.shape[1], penalty=0.02, groups=groups)
    folds, expected_judged = assign_folds(
        torch.from_numpy(onehot).double()[None], is_multilabel=is_multilabel, groups=groups, repetitions=2
    )
    assert torch.equal(is_judged, expected_judged[0]) and found.dtype == torch.float32
    omega = heads.weights_of(onehot, is_multilabel=is_multilabel, balance=True)
    strength = 1 / (0.02 * heads.spread(x.numpy(), omega))
    strength *= 2 if kind == "2 classes" else 1  # scikit-learn then has one column, the difference of our two
    solver = LogisticRegression(C=strength, tol=1e-10, max_iter=50000)
    expected = np.zeros(onehot.shape)
    for fold in folds[0].numpy():
        assert all(len(set(fold[groups == group])) == 1 for group in range(30))
        for k in range(FOLDS):
            train, test = fold != k, fold == k
            own = omega[train] / omega[train].sum()
            if not is_multilabel:
                solver.fit(x.numpy()[train], targets.numpy()[train], own)
                expected[test] += solver.predict_proba(x.numpy()[test]) / 2
            for column in range(3) if is_multilabel else ():
                solver.fit(x.numpy()[train], onehot[train, column], own)
                expected[test, column] += solver.predict_proba(x.numpy()[test])[:, 1] / 2
    # Folds are solved in single precision and stopped early.
    assert np.allclose(found.numpy(), expected, atol=0.01)


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("count", [60, 200])
def test_the_error_is_the_one_that_the_head_reports(kind, count):
    """Over all repetitions, by the votes."""
    x, targets, onehot = problem(kind, count, 12, noise=1.5)
    found, votes, is_judged = predict_held_out(x, targets, classes=onehot.shape[1])
    assert is_judged.all()
    is_multilabel = KINDS[kind][1]
    assert is_multilabel or torch.allclose(found.sum(1), torch.ones(count), atol=1e-5)
    wrong = (votes - targets).abs() if is_multilabel else 1 - votes[torch.arange(count), targets]
    error = heads.balanced_error(wrong.numpy(), onehot, is_multilabel=is_multilabel)
    assert 0.03 < error < 0.6
    l2 = 1e-3 / heads.penalty_of(1, onehot, is_multilabel=is_multilabel)  # the setting that leads to the same penalty
    assert fit_head(x, targets, classes=onehot.shape[1], l2=l2).cv_error == pytest.approx(error, abs=1e-6)


def test_all_images_of_a_large_task_get_probabilities(monkeypatch):
    monkeypatch.setattr("task2vec.head.fit.MAX_VALIDATED", 30)
    x, targets, _ = problem("4 classes", 90)
    found, *_ = predict_held_out(x, targets, classes=4)
    assert torch.allclose(found.sum(1), torch.ones(90), atol=1e-5)


def test_the_only_image_of_a_class_is_not_judged():
    x, targets, _ = problem("4 classes", 60)
    targets[targets == 3] = 2
    targets[5] = 3
    found, _, is_judged = predict_held_out(x, targets, classes=4)
    assert not is_judged[5] and is_judged.sum() == 59 and torch.isfinite(found).all()


def test_attributes_of_images_in_one_group_are_not_judged():
    x, targets, onehot = problem(next(kind for kind in KINDS if KINDS[kind][1]), 30)
    assert predict_held_out(x, targets, classes=onehot.shape[1])[2].all()
    assert not predict_held_out(x, targets, classes=onehot.shape[1], groups=torch.zeros(30, dtype=torch.long))[2].any()
