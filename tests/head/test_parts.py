"""Heads on many parts of the images at once are those that each part has alone, and know nothing of the rest."""

import numpy as np
import pytest
import torch

from task2vec.head import fit_head, fit_split_heads, make_training_splits
from task2vec.head import parts as parts_file
from task2vec.head.cross_validation import FOLDS
from tests.oracles import slow_parts

KINDS = {"2 classes": (2, False), "4 classes": (4, False), "3 attributes": (3, True)}
GRID = (1e-3, 1e-2, 1e-1, 1.0)
FINE = {"dtype": torch.float64, "tolerance": 1e-7, "max_steps": 2000}


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
    """Halves and smaller parts."""
    rng = np.random.default_rng(seed)
    sizes = (count // 2, count // 2, count // 3)
    found = np.zeros((len(sizes), count), dtype=bool)
    for mask, size in zip(found, sizes, strict=True):
        mask[rng.permutation(count)[:size]] = True
    return found


def fit(x, targets, train, *, classes, grid=GRID, **options):
    parts = make_training_splits(torch.from_numpy(targets), train, classes=classes)
    return fit_split_heads(torch.from_numpy(x), parts, grid=grid, **(FINE | options))


@pytest.mark.parametrize("width", [6, 120], ids=["many images", "many features"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_a_plain_loop_over_parts_gives_the_same(kind, width):
    classes, is_multilabel = KINDS[kind]
    x, targets, onehot = problem(kind, width=width, noise=1.2 if width == 6 else 4.0)
    train = masks(len(x))
    found = fit(x, targets, train, classes=classes)
    assert bool(found.has_converged.all())
    chosen = set()
    for part, mask in enumerate(train):
        best, losses, logits = slow_parts.fit_part(x, onehot, mask, GRID, folds=FOLDS, is_multilabel=is_multilabel)
        assert float(found.l2[part]) == best
        assert float(found.cv_losses[part]) == pytest.approx(min(losses), rel=1e-6)
        ours = found.logits[part]
        if is_multilabel:
            assert torch.equal(ours > 0, logits > 0)
        else:
            assert torch.equal(ours.argmax(1), logits.argmax(1))
            ours, logits = ours.log_softmax(1), logits.log_softmax(1)
        assert torch.allclose(ours, logits, atol=1e-4)
        chosen.add(best)
    assert not chosen <= {GRID[0], GRID[-1]}, "some minimum should lie inside the grid, or the test shows little"


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_task_of_these_images_alone_has_the_same_head(kind):
    classes, _ = KINDS[kind]
    x, targets, _ = problem(kind)
    (mask, *_) = train = masks(len(x))
    found = fit(x, targets, train[:1], classes=classes, grid=(0.05,))
    head = fit_head(torch.from_numpy(x[mask]), torch.from_numpy(targets[mask]), classes=classes, l2=0.05)
    assert torch.allclose(found.logits[0], head.logits(torch.from_numpy(x)), atol=1e-4)


@pytest.mark.parametrize("width", [6, 120], ids=["many images", "many features"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_nothing_is_learned_from_images_outside_of_the_part(kind, width):
    classes, _ = KINDS[kind]
    x, targets, _ = problem(kind, width=width)
    train = masks(len(x))[:1]
    (mask,) = train
    other, changed = x.copy(), targets.copy()
    other[~mask] = 100 + 30 * np.random.default_rng(1).normal(size=other[~mask].shape)
    changed[~mask] = changed[~mask][::-1]
    one = fit(x, targets, train, classes=classes, tolerance=1e-4)
    two = fit(other, changed, train, classes=classes, tolerance=1e-4)
    assert torch.equal(one.l2, two.l2)
    assert torch.allclose(one.cv_losses, two.cv_losses, rtol=1e-9)
    assert torch.allclose(one.logits[:, mask], two.logits[:, mask], atol=1e-7)
    assert not torch.allclose(one.logits[:, ~mask], two.logits[:, ~mask], atol=1)


@pytest.mark.parametrize("limits", ["one call each", "few heads a call", "all in one"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_parts_together_are_as_alone(kind, limits, monkeypatch):
    classes, _ = KINDS[kind]
    x, targets, _ = problem(kind)
    train = masks(len(x))
    alone = [fit(x, targets, mask[None], classes=classes) for mask in train]
    calls = []
    solve = parts_file.Problem.solve
    monkeypatch.setattr(parts_file.Problem, "solve", lambda *a, **k: (calls.append(len(a[1])), solve(*a, **k))[1])
    if limits == "all in one":
        monkeypatch.setattr(parts_file, "_CHEAP", {"cpu": 10**12})
    elif limits == "one call each":
        monkeypatch.setattr(parts_file, "_CHEAP", {"cpu": 1})
    else:
        monkeypatch.setattr(parts_file, "_ROOM", 10 * 8 * (8 * len(x) * classes + 25 * 6 * classes))
    found = fit(x, targets, train, classes=classes)
    problems = len(GRID) * (FOLDS + 1)
    wanted = {"all in one": [3 * problems], "one call each": [problems] * 3}
    assert calls == wanted[limits] if limits in wanted else max(calls) < problems
    for part, own in enumerate(alone):
        assert found.l2[part] == own.l2[0]
        assert torch.allclose(found.logits[part], own.logits[0], atol=1e-6)


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_default_is_precise_enough_to_decide(kind):
    classes, is_multilabel = KINDS[kind]
    x, targets, _ = problem(kind, count=300, width=20)
    parts = make_training_splits(torch.from_numpy(targets), masks(300), classes=classes)
    quick = fit_split_heads(torch.from_numpy(x).float(), parts)
    exact = fit_split_heads(torch.from_numpy(x), parts, **FINE)
    assert torch.equal(quick.l2, exact.l2) and bool(quick.has_converged.all())
    if is_multilabel:
        is_other = ((quick.logits > 0) != (exact.logits > 0)).double().mean()
    else:
        is_other = (quick.logits.argmax(2) != exact.logits.argmax(2)).double().mean()
    assert is_other < 0.01


def test_many_classes_are_learned_too():
    # Each of them is a small part of the loss, so a gradient that looks small may be far from the end.
    classes, each = 100, 8
    rng = np.random.default_rng(0)
    targets = np.repeat(np.arange(classes), each)
    x = rng.normal(size=(classes, 64))[targets] + 0.7 * rng.normal(size=(classes * each, 64))
    train = (np.arange(len(targets)) % 2 == 0)[None]
    parts = make_training_splits(torch.from_numpy(targets), train, classes=classes)
    found = fit_split_heads(torch.from_numpy(x).float(), parts)
    wrong = found.logits[0].argmax(1).numpy() != targets
    assert wrong[~train[0]].mean() < 0.1 and float(found.l2[0]) < 1


def test_where_nothing_can_be_validated_the_least_is_assumed():
    x, targets, _ = problem("4 classes")
    train = np.zeros((2, len(x)), dtype=bool)
    train[0, [np.flatnonzero(targets == label)[0] for label in range(4)]] = True  # one image of each class
    train[1] = True
    found = fit(x, targets, train, classes=4)
    assert float(found.l2[0]) == GRID[-1] and bool(found.cv_losses[0].isnan())
    assert float(found.l2[1]) < GRID[-1] and bool(torch.isfinite(found.logits).all())


def test_classes_that_a_part_lacks_are_never_guessed():
    x, targets, _ = problem("4 classes")
    train = (targets != 3)[None]
    found = fit(x, targets, train, classes=4)
    assert 3 not in found.logits[0].argmax(1)


def test_some_of_the_parts():
    x, targets, _ = problem("4 classes")
    parts = make_training_splits(torch.from_numpy(targets), masks(len(x)), classes=4)
    some = parts.only([2, 0])
    assert np.array_equal(some.train, parts.train[[2, 0]]) and torch.equal(some.folds, parts.folds[[2, 0]])
    assert torch.equal(some.weights, parts.weights[[2, 0]]) and len(some) == 2


def test_a_gpu_without_enough_memory_is_asked_for_less(monkeypatch):
    x, targets, _ = problem("4 classes")
    whole, asked = fit(x, targets, masks(len(x)), classes=4), []
    solve = parts_file.Problem.solve

    def full(self, weights, *args, **options):
        asked.append(len(weights))
        if len(weights) > 20:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory (pretended)")
        return solve(self, weights, *args, **options)

    monkeypatch.setattr(parts_file.Problem, "solve", full)
    monkeypatch.setattr(parts_file, "_ROOM", 1 << 22)
    monkeypatch.setattr(parts_file, "_LEAST_ROOM", 1 << 10)
    found = fit(x, targets, masks(len(x)), classes=4)
    assert max(asked) > 20 and torch.equal(found.l2, whole.l2)
    assert torch.allclose(found.logits, whole.logits, atol=1e-5)
    monkeypatch.setattr(parts_file, "_LEAST_ROOM", 1 << 30)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        fit(x, targets, masks(len(x)), classes=4)
