"""Which penalty predicts images it has not seen, and how well: folds and penalties fitted together."""

from dataclasses import replace

import torch
from torch import Tensor

from task2vec.head.problem import Problem

FOLDS = 5
# Beyond this many images cross-validation sees a part of them, evenly over the classes: the best penalty hardly moves.
MOST_IMAGES = 4000
# Beyond this many products per pass, two folds and every second penalty must do.
_LARGE = 2 * 10**8
# Heads fitted together may have so many weights in all, for the solver keeps twenty copies of them.
_TOGETHER = 1 << 22
_TOLERANCE, _MAX_STEPS = 1e-3, 100


def cross_validate(problem: Problem, grid: tuple[float, ...]) -> tuple[tuple[float, ...], Tensor, Tensor]:
    """The penalties that were tried, and the held-out loss and class-balanced error of each.

    An image whose class has no other image tells nothing about penalties: no head could have known its class. Such
    images do not count for the loss; if all others are of one class, nothing can be told and the losses are NaN.

    Single precision is enough to compare penalties, and twice as fast.
    """
    problem = replace(_thin(problem), dtype=torch.float32)
    is_large = problem.features.numel() * problem.onehot.shape[1] > _LARGE
    grid = grid[::2] if is_large else grid
    fold = assign_folds(problem, 2 if is_large else FOLDS)
    losses = torch.zeros(len(grid), len(problem), dtype=torch.float64, device=fold.device)
    logits = torch.zeros(len(grid), *problem.onehot.shape, device=fold.device)
    pairs = [(k, g) for k in range(int(fold.max()) + 1) for g in range(len(grid))]
    size = max(1, _TOGETHER // (problem.features.shape[1] * problem.onehot.shape[1]))
    for start in range(0, len(pairs), size):
        some = pairs[start : start + size]
        train = problem.weights * torch.stack([fold != k for k, _ in some])
        l2 = torch.tensor([grid[g] for _, g in some], device=fold.device)
        options = {"tolerance": _TOLERANCE, "max_steps": _MAX_STEPS}
        solution, _, _ = problem.solve(train / train.sum(1, keepdim=True), l2, **options)
        found = problem.logits(solution)
        missed, _ = problem.losses(found)
        for i, (k, g) in enumerate(some):  # the held-out parts of all folds make up the task once
            losses[g, fold == k] = missed[i, fold == k].double()
            logits[g, fold == k] = found[i, fold == k]
    weights = problem.weights * _is_judged(problem, fold)
    return grid, losses @ weights / weights.sum(), torch.stack([balanced_error(z, problem) for z in logits])


def _is_judged(problem: Problem, fold: Tensor) -> Tensor:
    """(n,) whether another fold holds an image of the same class; with attributes every image has its say."""
    if problem.is_multilabel:
        return torch.ones_like(fold, dtype=torch.bool)
    per_fold = torch.stack([problem.onehot[fold == k].sum(0) for k in range(int(fold.max()) + 1)])
    elsewhere = problem.onehot.sum(0) - per_fold  # (folds, classes): images of a class that the fold is fitted without
    is_judged = (elsewhere[fold] * problem.onehot).sum(1) > 0
    return is_judged & ((problem.onehot[is_judged].sum(0) > 0).sum() > 1)


def assign_folds(problem: Problem, folds: int) -> Tensor:
    """(n,) fold of each image: round-robin through the images sorted by class, so each class is spread evenly."""
    order = _by_class(problem)
    fold = torch.empty_like(order)
    fold[order] = torch.arange(len(order), device=order.device) % min(folds, len(order))
    return fold


def balanced_error(logits: Tensor, problem: Problem) -> Tensor:
    """The mean over classes of the part of a class that is missed; for attributes, over their two values, averaged."""
    onehot = problem.onehot.bool()
    if problem.is_multilabel:
        wrong = (logits > 0) != onehot
        missed = (wrong & onehot).sum(0) / onehot.sum(0).clamp_min(1)
        false = (wrong & ~onehot).sum(0) / (~onehot).sum(0).clamp_min(1)
        return ((missed + false) / 2).double().mean()
    wrong = logits.argmax(1) != onehot.int().argmax(1)
    present = onehot.sum(0) > 0
    return ((wrong[:, None] & onehot).sum(0)[present] / onehot.sum(0)[present]).double().mean()


def _by_class(problem: Problem) -> Tensor:
    """The images in the order of their classes; attributes have none, so their images stay as they are."""
    if problem.is_multilabel:
        return torch.arange(len(problem), device=problem.features.device)
    return torch.argsort(problem.onehot.argmax(1), stable=True)


def _thin(problem: Problem) -> Problem:
    if len(problem) <= MOST_IMAGES:
        return problem
    order = _by_class(problem)
    return problem.subset(order[torch.linspace(0, len(order) - 1, MOST_IMAGES, device=order.device).long()])
