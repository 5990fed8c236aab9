"""Heads on many training splits at once are those that each split has alone, and use nothing else."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from task2vec.head import fit, fit_split_heads, make_training_splits, train_split_heads
from task2vec.head.fit import FOLDS
from task2vec.head.problem import Problem
from tests.head.material import KINDS, problem
from tests.oracles import heads

GRID = (1e-3, 1e-2, 1e-1, 1.0)


@pytest.fixture(autouse=True)
def fine(monkeypatch):
    """Few penalties, and heads that are fitted to the end."""
    monkeypatch.setattr(fit, "SPLIT_L2_GRID", GRID)
    monkeypatch.setattr(fit, "_SPLIT_STOP", {"tolerance": 1e-6, "max_steps": 1000})


def masks(count, seed=0):
    """A half and a third of the images."""
    rng = np.random.default_rng(seed)
    return np.stack([np.isin(np.arange(count), rng.permutation(count)[:size]) for size in (count // 2, count // 3)])


def fit_splits(x, targets, train):
    classes = int(targets.max()) + 1 if targets.ndim == 1 else targets.shape[1]
    return fit_split_heads(x, make_training_splits(targets, train, classes=classes))


@pytest.mark.parametrize(("kind", "width"), [("2 classes", 60), ("4 classes", 5), ("3 attributes", 5)])
def test_a_plain_loop_over_splits_gives_the_same(kind, width):
    is_multilabel = KINDS[kind][1]
    x, targets, onehot = problem(kind, 40, width, noise=1.2 if width == 5 else 4.0)
    train = masks(len(x))
    chosen = set()
    for ours, mask in zip(fit_splits(x, targets, train), train, strict=True):
        best, logits = heads.fit_part(x.numpy(), onehot, mask, GRID, folds=FOLDS, is_multilabel=is_multilabel)
        if is_multilabel:
            assert torch.equal(ours > 0, logits > 0)
        else:
            assert torch.equal(ours.argmax(1), logits.argmax(1))
            ours, logits = ours.log_softmax(1), logits.log_softmax(1)
        assert torch.allclose(ours, logits, atol=1e-4)
        chosen.add(best)
    assert not chosen <= {GRID[0], GRID[-1]}, "some minimum should lie inside the grid, or the test shows little"


LIMITS = {
    "2 classes": {"_MAX_PRODUCTS": {"cpu": 1}},  # one call each
    "4 classes": {"MEMORY": 10 * 8 * (8 * 40 * 4 + 25 * 5 * 4)},  # few heads a call
    "3 attributes": {"_MAX_PRODUCTS": {"cpu": 10**12}},  # all in one
}


@pytest.mark.parametrize("kind", LIMITS)
def test_splits_fitted_together_are_as_alone(kind, monkeypatch):
    x, targets, _ = problem(kind, 40, 5)
    train = masks(len(x))
    alone = torch.cat([fit_splits(x, targets, mask[None]) for mask in train])
    calls, solve = [], Problem.solve
    monkeypatch.setattr(Problem, "solve", lambda *a, **k: (calls.append(len(a[1])), solve(*a, **k))[1])
    for name, value in LIMITS[kind].items():
        monkeypatch.setattr(fit, name, value)
    assert torch.allclose(fit_splits(x, targets, train), alone, atol=1e-5)
    problems = len(GRID) * (FOLDS + 1)
    wanted = {"3 attributes": [2 * problems], "2 classes": [problems] * 2}
    assert calls == wanted[kind] if kind in wanted else max(calls) < problems


def test_without_validation_the_strongest_penalty_is_taken_and_missing_classes_are_never_predicted(monkeypatch):
    x, targets, _ = problem("4 classes", 40, 5)
    one_of_each = np.isin(np.arange(40), [int((targets == label).nonzero()[0]) for label in range(4)])
    train = np.stack([one_of_each, np.ones(40, dtype=bool), (targets != 3).numpy()])
    found = fit_splits(x, targets, train)
    monkeypatch.setattr(fit, "SPLIT_L2_GRID", GRID[-1:])
    strongest = fit_splits(x, targets, train)
    assert torch.allclose(found[0], strongest[0], atol=1e-6)
    assert not torch.allclose(found[1], strongest[1], atol=0.1) and bool(torch.isfinite(found).all())
    assert 3 in found[1].argmax(1) and 3 not in found[2].argmax(1)


def test_a_gpu_out_of_memory_fits_fewer_heads_at_a_time(monkeypatch):
    x, targets, _ = problem("4 classes", 40, 5)
    whole, asked, solve = fit_splits(x, targets, masks(len(x))), [], Problem.solve

    def full(self, weights, *args, **options):
        asked.append(len(weights))
        if len(weights) > 10:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory (pretended)")
        return solve(self, weights, *args, **options)

    monkeypatch.setattr(Problem, "solve", full)
    monkeypatch.setattr(fit, "MEMORY", 1 << 21)
    monkeypatch.setattr(fit, "_MIN_MEMORY", 1 << 10)
    assert torch.allclose(fit_splits(x, targets, masks(len(x))), whole, atol=1e-5)
    assert max(asked) > 10
    monkeypatch.setattr(fit, "_MIN_MEMORY", 1 << 30)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        fit_splits(x, targets, masks(len(x)))


@pytest.mark.parametrize("is_multilabel", [False, True])
def test_torch_trains_the_same_heads_by_adam_one_by_one(is_multilabel):
    how = {"batch": 8, "rate": 0.02, "weight_decay": 0.03}
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(30, 5, generator=generator, dtype=torch.float64)
    onehot = functional.one_hot(torch.randint(0, 3, (30,), generator=generator), 3)
    if is_multilabel:
        onehot = torch.randint(0, 2, (30, 3), generator=generator)
    loss_of = functional.binary_cross_entropy_with_logits if is_multilabel else functional.cross_entropy
    draws = torch.randint(0, 30, (2, 3, 20), generator=generator)  # 20 is no multiple of the batch
    found = train_split_heads(features, onehot, draws, **how, is_multilabel=is_multilabel)
    for own, logits in zip(draws, found, strict=True):
        head = nn.Linear(5, 3).double()
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        optimiser = torch.optim.Adam(head.parameters(), lr=how["rate"], weight_decay=how["weight_decay"])
        for some in (some for epoch in own for some in epoch.split(how["batch"])):
            optimiser.zero_grad()
            loss_of(head(features[some]), onehot[some].double()).backward()
            optimiser.step()
        assert torch.allclose(logits, head(features), atol=1e-10)
