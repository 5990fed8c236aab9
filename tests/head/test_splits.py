"""Heads on many training splits at once are those that each split has alone, and use nothing else."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from task2vec.head import fit_split_heads, make_training_splits, train_split_heads
from task2vec.head.fit import FOLDS
from task2vec.head.problem import Problem
from tests.oracles import heads

KINDS = {"2 classes": (2, False), "4 classes": (4, False), "3 attributes": (3, True)}
GRID = (1e-3, 1e-2, 1e-1, 1.0)
FINE = {"dtype": torch.float64, "tolerance": 1e-6, "max_steps": 1000}


def problem(kind, *, count=70, width=6, noise=1.2, seed=0):
    """Features around class centres, far from the origin and of different scales; classes of unequal size."""
    classes, is_multilabel = KINDS[kind]
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, width))
    if is_multilabel:
        targets = (rng.random((count, classes)) < 0.35).astype(np.int64)
        x, onehot = targets @ centres, targets
    else:
        targets = rng.permutation(np.arange(count) % (classes + 1) % classes)
        x, onehot = centres[targets], np.eye(classes, dtype=np.int64)[targets]
    x = (x + noise * rng.normal(size=x.shape)) * np.geomspace(0.3, 3, width) + 5
    return x, targets, onehot


def masks(count, seed=0):
    """Halves and a smaller split."""
    rng = np.random.default_rng(seed)
    sizes = (count // 2, count // 2, count // 3)
    found = np.zeros((len(sizes), count), dtype=bool)
    for mask, size in zip(found, sizes, strict=True):
        mask[rng.permutation(count)[:size]] = True
    return found


def fit(x, targets, train, *, classes, grid=GRID, **options):
    splits = make_training_splits(torch.from_numpy(targets), train, classes=classes)
    return fit_split_heads(torch.from_numpy(x), splits, grid=grid, **(FINE | options))


@pytest.mark.parametrize(("kind", "width"), [("2 classes", 120), ("4 classes", 6), ("3 attributes", 6)])
def test_a_plain_loop_over_splits_gives_the_same(kind, width):
    classes, is_multilabel = KINDS[kind]
    x, targets, onehot = problem(kind, width=width, noise=1.2 if width == 6 else 4.0)
    train = masks(len(x))
    found = fit(x, targets, train, classes=classes)
    chosen = set()
    for part, mask in enumerate(train):
        best, logits = heads.fit_part(x, onehot, mask, GRID, folds=FOLDS, is_multilabel=is_multilabel)
        ours = found[part]
        if is_multilabel:
            assert torch.equal(ours > 0, logits > 0)
        else:
            assert torch.equal(ours.argmax(1), logits.argmax(1))
            ours, logits = ours.log_softmax(1), logits.log_softmax(1)
        assert torch.allclose(ours, logits, atol=1e-4)
        chosen.add(best)
    assert not chosen <= {GRID[0], GRID[-1]}, "some minimum should lie inside the grid, or the test shows little"


@pytest.mark.parametrize(("kind", "width"), [("2 classes", 6), ("4 classes", 120), ("3 attributes", 6)])
def test_nothing_is_learned_from_images_outside_of_the_split(kind, width):
    classes, _ = KINDS[kind]
    x, targets, _ = problem(kind, width=width)
    train = masks(len(x))[:1]
    (mask,) = train
    other, changed = x.copy(), targets.copy()
    other[~mask] = 100 + 30 * np.random.default_rng(1).normal(size=other[~mask].shape)
    changed[~mask] = changed[~mask][::-1]
    one = fit(x, targets, train, classes=classes, tolerance=1e-4)
    two = fit(other, changed, train, classes=classes, tolerance=1e-4)
    assert torch.allclose(one[:, mask], two[:, mask], atol=1e-7)
    assert not torch.allclose(one[:, ~mask], two[:, ~mask], atol=1)


@pytest.mark.parametrize(
    ("kind", "limits"),
    [("2 classes", "one call each"), ("4 classes", "few heads a call"), ("3 attributes", "all in one")],
)
def test_splits_fitted_together_are_as_alone(kind, limits, monkeypatch):
    classes, _ = KINDS[kind]
    x, targets, _ = problem(kind)
    train = masks(len(x))
    alone = [fit(x, targets, mask[None], classes=classes) for mask in train]
    calls = []
    solve = Problem.solve
    monkeypatch.setattr(Problem, "solve", lambda *a, **k: (calls.append(len(a[1])), solve(*a, **k))[1])
    if limits == "all in one":
        monkeypatch.setattr("task2vec.head.fit._CHEAP", {"cpu": 10**12})
    elif limits == "one call each":
        monkeypatch.setattr("task2vec.head.fit._CHEAP", {"cpu": 1})
    else:
        monkeypatch.setattr("task2vec.head.fit.MEMORY", 10 * 8 * (8 * len(x) * classes + 25 * 6 * classes))
    found = fit(x, targets, train, classes=classes)
    problems = len(GRID) * (FOLDS + 1)
    wanted = {"all in one": [3 * problems], "one call each": [problems] * 3}
    assert calls == wanted[limits] if limits in wanted else max(calls) < problems
    for part, own in enumerate(alone):
        assert torch.allclose(found[part], own[0], atol=1e-6)


def test_many_classes_are_learned_too():
    # Each of them is a small part of the loss, so a gradient that looks small may be far from the end.
    classes, each = 100, 8
    rng = np.random.default_rng(0)
    targets = np.repeat(np.arange(classes), each)
    x = rng.normal(size=(classes, 64))[targets] + 0.7 * rng.normal(size=(classes * each, 64))
    train = (np.arange(len(targets)) % 2 == 0)[None]
    splits = make_training_splits(torch.from_numpy(targets), train, classes=classes)
    found = fit_split_heads(torch.from_numpy(x).float(), splits)
    wrong = found[0].argmax(1).numpy() != targets
    assert wrong[~train[0]].mean() < 0.1


def test_where_nothing_can_be_validated_the_strongest_penalty_is_taken():
    x, targets, _ = problem("4 classes")
    train = np.zeros((2, len(x)), dtype=bool)
    train[0, [np.flatnonzero(targets == label)[0] for label in range(4)]] = True  # one image of each class
    train[1] = True
    found, strongest = (fit(x, targets, train, classes=4, grid=grid) for grid in (GRID, GRID[-1:]))
    assert torch.allclose(found[0], strongest[0], atol=1e-6)
    assert not torch.allclose(found[1], strongest[1], atol=0.1) and bool(torch.isfinite(found).all())


def test_classes_that_a_split_lacks_are_never_predicted():
    x, targets, _ = problem("4 classes")
    train = (targets != 3)[None]
    found = fit(x, targets, train, classes=4, tolerance=1e-3)
    assert 3 not in found[0].argmax(1)


def test_a_gpu_out_of_memory_fits_fewer_heads_at_a_time(monkeypatch):
    x, targets, _ = problem("4 classes")
    whole, asked = fit(x, targets, masks(len(x)), classes=4), []
    solve = Problem.solve

    def full(self, weights, *args, **options):
        asked.append(len(weights))
        if len(weights) > 20:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory (pretended)")
        return solve(self, weights, *args, **options)

    monkeypatch.setattr(Problem, "solve", full)
    monkeypatch.setattr("task2vec.head.fit.MEMORY", 1 << 22)
    monkeypatch.setattr("task2vec.head.fit._LEAST_MEMORY", 1 << 10)
    found = fit(x, targets, masks(len(x)), classes=4)
    assert max(asked) > 20
    assert torch.allclose(found, whole, atol=1e-5)
    monkeypatch.setattr("task2vec.head.fit._LEAST_MEMORY", 1 << 30)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        fit(x, targets, masks(len(x)), classes=4)


@pytest.mark.parametrize("is_multilabel", [False, True])
def test_torch_trains_the_same_heads_by_adam_one_by_one(is_multilabel):
    how = {"batch": 8, "rate": 0.02, "weight_decay": 0.03}
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(30, 5, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 3, (30,), generator=generator)
    attributes = torch.randint(0, 2, (30, 3), generator=generator)
    onehot = attributes if is_multilabel else functional.one_hot(labels, 3)
    draws = torch.randint(0, 30, (2, 3, 20), generator=generator)  # 20 is no multiple of the batch
    found = train_split_heads(features, onehot, draws, **how, is_multilabel=is_multilabel)
    for own, logits in zip(draws, found, strict=True):
        head = nn.Linear(5, 3).double()
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        optimiser = torch.optim.Adam(head.parameters(), lr=how["rate"], weight_decay=how["weight_decay"])
        for some in (some for epoch in own for some in epoch.split(how["batch"])):
            predicted = head(features[some])
            if is_multilabel:
                loss = functional.binary_cross_entropy_with_logits(predicted, attributes[some].double())
            else:
                loss = functional.cross_entropy(predicted, labels[some])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        assert torch.allclose(logits, head(features), atol=1e-10)
