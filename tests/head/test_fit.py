"""The head sits at the minimum of its stated objective, and its penalty at the minimum of cross-validation."""

import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from task2vec.head import fit_head, fit_heads, image_weights
from task2vec.head.fit import FOLDS, L2_GRID
from task2vec.head.problem import CHUNK, Problem
from tests.head.material import KINDS, problem
from tests.oracles import heads

CASES = [(kind, 60, 8, True) for kind in KINDS] + [("4 classes", 60, 8, False)]
CASES += [(kind, 20, 40, True) for kind in KINDS]  # fewer images than features


@pytest.mark.parametrize(("kind", "count", "features", "balance"), CASES)
def test_optimum_of_the_stated_objective(kind, count, features, balance):
    (x, targets, onehot), is_multilabel = problem(kind, count, features), KINDS[kind][1]
    head = fit_head(x, targets, classes=onehot.shape[1], l2=0.02, balance=balance)
    omega = heads.weights_of(onehot, is_multilabel=is_multilabel, balance=balance)
    penalty = 0.02 * heads.spread(x.numpy(), omega)
    weight, bias = heads.fit(x.numpy(), onehot, omega, penalty, is_multilabel=is_multilabel)
    assert head.has_converged
    assert torch.allclose(head.weight, weight, atol=2e-4 * weight.abs().max())
    expected, ours = x @ weight.T + bias, head.logits(x)
    if not is_multilabel:  # a shift of all logits is free
        expected, ours = expected.log_softmax(1), ours.log_softmax(1)
    assert torch.allclose(ours, expected, atol=3e-4)
    y, o = torch.from_numpy(onehot).double(), torch.from_numpy(omega)
    ours = heads.objective(head.weight, head.bias, x, y, o, penalty, is_multilabel=is_multilabel)
    least = heads.objective(weight, bias, x, y, o, penalty, is_multilabel=is_multilabel)
    assert abs(ours - least) < 1e-9
    loss = heads.losses(weight, bias, x, y, is_multilabel=is_multilabel) @ o
    assert head.train_loss == pytest.approx(loss.item(), abs=1e-5)


@pytest.mark.parametrize("kind", ["4 classes", "3 attributes"])
def test_scikit_learn_agrees(kind):
    (x, targets, onehot), is_multilabel = problem(kind), KINDS[kind][1]
    omega = heads.weights_of(onehot, is_multilabel=is_multilabel, balance=True)
    strength = 1 / (0.05 * heads.spread(x.numpy(), omega))
    logits = fit_head(x, targets, classes=onehot.shape[1], l2=0.05).logits(x)
    for column in range(3) if is_multilabel else (None,):
        solver = LogisticRegression(C=strength, tol=1e-10, max_iter=50000)
        labels = targets if column is None else targets[:, column]
        theirs = solver.fit(x.numpy(), labels.numpy(), sample_weight=omega).predict_proba(x.numpy())
        ours = logits.softmax(1) if column is None else logits[:, column].sigmoid()
        assert np.allclose(ours.numpy(), theirs if column is None else theirs[:, 1], atol=1e-4)


def test_l2_has_no_unit():
    x, targets, _ = problem("4 classes")
    small, large = (fit_head(x * unit, targets, classes=4, l2=0.01) for unit in (1e-3, 1e3))
    assert torch.allclose(small.logits(x * 1e-3).softmax(1), large.logits(x * 1e3).softmax(1), atol=1e-6)


def test_balanced_weights_give_every_class_the_same():
    onehot = torch.eye(3).double()[[0, 0, 0, 0, 1, 2, 2]]
    weights = image_weights(onehot, is_multilabel=False, balance=True)
    assert torch.allclose(weights @ onehot, torch.full((3,), 1 / 3, dtype=torch.float64))
    assert torch.allclose(weights[:4], torch.full((4,), 1 / 12, dtype=torch.float64))
    for options in ({"is_multilabel": False, "balance": False}, {"is_multilabel": True, "balance": True}):
        assert torch.equal(image_weights(onehot, **options), torch.full((7,), 1 / 7, dtype=torch.float64))


GRID = (1e-3, 1e-2, 1e-1)


@pytest.mark.parametrize("kind", list(KINDS))
def test_penalty_is_the_minimum_of_an_explicit_cross_validation(kind, monkeypatch):
    monkeypatch.setattr("task2vec.head.fit.L2_GRID", GRID)
    is_multilabel = KINDS[kind][1]
    x, targets, onehot = problem(kind, 40, 6, seed=2 if is_multilabel else 0)
    head = fit_head(x, targets, classes=onehot.shape[1])
    slow = heads.cross_validate(x.numpy(), onehot, GRID, folds=FOLDS, is_multilabel=is_multilabel)
    best = int(np.argmin([loss for loss, _ in slow]))
    assert 0 < best < len(GRID) - 1, "the minimum should lie inside the grid, or the test shows nothing"
    assert head.l2 == GRID[best]
    # Penalties are compared in single precision, stopped early: a loss may move in its third digit, and one image.
    assert head.cv_loss == pytest.approx(slow[best][0], rel=3e-3)
    assert abs(slow[best - 1][0] / slow[best][0] - 1) > 3e-3 and abs(slow[best + 1][0] / slow[best][0] - 1) > 3e-3
    logits = slow[best][1]
    if is_multilabel:
        wrong = (logits > 0) != onehot.astype(bool)
        error = np.mean([(wrong[onehot[:, c] == v, c]).mean() for c in range(onehot.shape[1]) for v in (0, 1)])
    else:
        wrong = logits.argmax(1) != onehot.argmax(1)
        error = np.mean([wrong[onehot[:, c] == 1].mean() for c in range(onehot.shape[1])])
    assert head.cv_error == pytest.approx(error, abs=1.01 / (onehot.shape[1] * onehot.sum(0).min()))


def test_coin_flips_cannot_be_learned_and_centres_can():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(200, 10, generator=generator, dtype=torch.float64)
    head = fit_head(x, torch.randperm(200, generator=generator) % 2, classes=2)
    assert 0.4 < head.cv_error < 0.6 and head.cv_loss < 1.1 * np.log(2)
    x, targets, _ = problem("4 classes", noise=0.1)
    assert fit_head(x, targets, classes=4).cv_error < 0.02


def test_separable_data_has_a_finite_head():
    x = torch.tensor([[-1.0], [-2.0], [1.0], [2.0]]).repeat(5, 1)
    targets = torch.tensor([0, 0, 1, 1]).repeat(5)
    head = fit_head(x, targets, classes=2)
    assert head.has_converged and torch.isfinite(head.weight).all()
    assert head.weight.abs().max() < 1e3 and head.cv_error == 0


@pytest.mark.parametrize("value", [0.0, 1234.567])
def test_constant_features_leave_only_the_class_sizes(value):
    x = torch.full((30, 7), value, dtype=torch.float64)
    targets = torch.tensor([0] * 20 + [1] * 10)
    head = fit_head(x, targets, classes=2, balance=False)
    assert torch.allclose(head.logits(x).softmax(1), torch.tensor([2 / 3, 1 / 3], dtype=torch.float64), atol=1e-4)
    assert head.weight.abs().max() * max(value, 1) < 1e-3
    assert head.cv_error == pytest.approx(0.5)  # all are taken for the larger class, and classes count the same


def test_features_in_chunks_give_the_same_head(monkeypatch):
    features, targets, _ = problem("4 classes", 90, 12)
    whole = fit_head(features, targets, classes=4)
    monkeypatch.setitem(CHUNK, "cpu", 32)
    monkeypatch.setattr("task2vec.head.problem._KEPT", {"cpu": 32})
    chunks = fit_head(features, targets, classes=4)
    assert chunks.l2 == whole.l2
    assert torch.allclose(chunks.weight, whole.weight, rtol=1e-5, atol=1e-7)
    assert torch.allclose(chunks.logits(features), whole.logits(features), rtol=1e-5, atol=1e-6)


def test_large_problems_use_two_folds_and_every_second_penalty(monkeypatch):
    features, targets, _ = problem("4 classes")
    monkeypatch.setattr("task2vec.head.fit._LARGE", 1)
    head = fit_head(features, targets, classes=4)
    assert head.l2 in L2_GRID[::2] and head.cv_error < 0.75


def test_one_image_per_class_gives_the_strongest_penalty():
    features = torch.randn(6, 20, generator=torch.Generator().manual_seed(0))
    head = fit_head(features, torch.arange(6), classes=6)
    assert head.l2 == max(L2_GRID)
    assert head.cv_loss == pytest.approx(math.log(6))
    assert head.cv_error == pytest.approx(1)


def test_the_only_image_of_a_class_does_not_decide_the_penalty():
    generator = torch.Generator().manual_seed(1)
    targets = torch.arange(40) % 2
    features = torch.randn(40, 8, generator=generator) + 2 * targets[:, None]
    single = torch.cat([features, 50 * torch.randn(1, 8, generator=generator)])
    with_it = fit_head(single, torch.cat([targets, torch.tensor([2])]), classes=3)
    # Its own held-out loss would be huge and grow with the penalty; only the images that can be judged count.
    assert with_it.cv_loss < math.log(3)


MANY = {
    "fewer images than features": ("2 classes", 12, 4000, 1 << 29),
    "a few heads at a time": ("4 classes", 40, 4000, 200_000),
    "a part of the images validated": ("4 classes", 60, 30, 1 << 29),
    "a part of the images, attributes": ("3 attributes", 60, 30, 1 << 29),
}


@pytest.mark.parametrize(("kind", "count", "validated", "memory"), MANY.values(), ids=MANY)
def test_heads_of_several_tasks_are_those_that_each_has_alone(kind, count, validated, memory, monkeypatch):
    monkeypatch.setattr("task2vec.head.fit.MAX_VALIDATED", validated)
    monkeypatch.setattr("task2vec.head.fit.L2_GRID", L2_GRID[::2])
    monkeypatch.setattr(Problem.count_together, "__defaults__", (memory,))
    classes, is_multilabel = KINDS[kind]
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(count, 20, generator=generator) * 3 + 5
    shape = (3, count, classes) if is_multilabel else (3, count)
    targets = torch.randint(0, 2 if is_multilabel else classes, shape, generator=generator)
    targets[0] = (features[:, :1] > 5).long() if is_multilabel else (features[:, 0] > 5).long()  # something to learn
    together = fit_heads(features, targets, classes=classes)
    for own, head in zip(targets, together, strict=True):
        alone = fit_head(features, own, classes=classes)
        assert (head.l2, head.cv_error, head.has_converged) == (alone.l2, alone.cv_error, True)
        assert head.cv_loss == pytest.approx(alone.cv_loss, rel=1e-4)  # folds are solved to a part of the gradient
        assert head.train_loss == pytest.approx(alone.train_loss, rel=1e-9)
        assert torch.allclose(head.weight, alone.weight, rtol=1e-8, atol=1e-10)
        assert torch.allclose(head.bias, alone.bias, rtol=1e-8, atol=1e-9)
    assert len({head.l2 for head in together}) > 1  # or the test would not see penalties mixed up
