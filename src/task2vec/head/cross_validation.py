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
# Heads fitted together may have so many weights in all, for the solver keeps twenty copies of them, and so many logits.
TOGETHER = 1 << 22
HELD = 1 << 24
_TOLERANCE, _MAX_STEPS = 1e-3, 100


def cross_validate(problem: Problem, grid: tuple[float, ...]) -> tuple[tuple[float, ...], Tensor, Tensor]:
    """The penalties that were tried, and (tasks, penalties) held-out losses and class-balanced errors of each.

    An image whose class has no other image tells nothing about penalties: no head could have known its class. Such
    images do not count for the loss; if all others are of one class, nothing can be told and the losses are NaN.

    Single precision is enough to compare penalties, and twice as fast.
    """
    most = max(1, HELD // (len(grid) * min(len(problem), MOST_IMAGES) * problem.onehot.shape[2]))
    most = 1 if len(problem) > MOST_IMAGES else most  # beyond, every task keeps other images
    if problem.tasks > most:
        starts = range(0, problem.tasks, most)
        found = [cross_validate(problem.only(slice(start, start + most)), grid) for start in starts]
        return found[0][0], torch.cat([losses for _, losses, _ in found]), torch.cat([errors for *_, errors in found])
    problem = replace(_thin(problem), dtype=torch.float32)
    is_large = problem.features.numel() * problem.onehot.shape[2] > _LARGE
    grid = grid[::2] if is_large else grid
    folds = torch.stack([assign_folds(problem, task, 2 if is_large else FOLDS) for task in range(problem.tasks)])
    losses, logits = _hold_out(problem, grid, folds)
    judged = torch.ones_like(folds, dtype=torch.bool)
    if not problem.is_multilabel:  # with attributes every image has its say
        judged = torch.stack([find_judged(own, fold) for own, fold in zip(problem.onehot, folds, strict=True)])
    weights = problem.weights * judged
    means = torch.einsum("tgn,tn->tg", losses, weights) / weights.sum(1, keepdim=True)
    return grid, means, balanced_errors(logits, problem)


def count_together(problem: Problem) -> int:
    """How many heads are fitted at a time."""
    weights, logits = problem.features.shape[1] * problem.columns, len(problem) * problem.onehot.shape[2]
    return max(1, min(TOGETHER // weights, HELD // logits))


def _hold_out(problem: Problem, grid: tuple[float, ...], folds: Tensor) -> tuple[Tensor, Tensor]:
    """(tasks, penalties, n) losses and (tasks, penalties, n, c) logits of images by the heads that never saw them."""
    tasks, count = folds.shape
    losses = torch.zeros(tasks, len(grid), count, dtype=torch.float64, device=folds.device)
    logits = torch.zeros(tasks, len(grid), *problem.onehot.shape[1:], device=folds.device)
    jobs = [(t, k, g) for t in range(tasks) for k in range(int(folds[t].max()) + 1) for g in range(len(grid))]
    size = count_together(problem)
    for start in range(0, len(jobs), size):
        owners, held, chosen = torch.tensor(jobs[start : start + size], device=folds.device).T
        is_out = folds[owners] == held[:, None]
        train = problem.weights[owners] * ~is_out
        l2 = torch.tensor(grid, device=folds.device)[chosen]
        options = {"tolerance": _TOLERANCE, "max_steps": _MAX_STEPS}
        solution, _, _ = problem.solve(train / train.sum(1, keepdim=True), l2, owners, **options)
        found = problem.logits(solution, owners)
        missed = problem.losses(found, problem.onehot[owners].to(found)).double()
        rows = owners * len(grid) + chosen  # the held-out parts of all folds make up the task once
        losses.flatten(0, 1).index_add_(0, rows, missed * is_out)
        logits.flatten(0, 1).index_add_(0, rows, found * is_out[..., None])
    return losses, logits


def find_judged(onehot: Tensor, fold: Tensor) -> Tensor:
    """(n,) whether another fold holds an image of the same class; none, if such images are all of one class."""
    per_fold = torch.stack([onehot[fold == k].sum(0) for k in range(int(fold.max()) + 1)])
    elsewhere = onehot.sum(0) - per_fold  # (folds, classes): images of a class that the fold is fitted without
    is_judged = (elsewhere[fold] * onehot).sum(1) > 0
    return is_judged & ((onehot[is_judged].sum(0) > 0).sum() > 1)


def assign_folds(problem: Problem, task: int, folds: int) -> Tensor:
    """(n,) fold of each image: round-robin through the images sorted by class, so each class is spread evenly."""
    return spread_folds(_by_class(problem, task), folds)


def spread_folds(order: Tensor, folds: int) -> Tensor:
    """(n,) fold of each image, round-robin through the `order` of their numbers."""
    fold = torch.empty_like(order)
    fold[order] = torch.arange(len(order), device=order.device) % min(folds, len(order))
    return fold


def balanced_errors(logits: Tensor, problem: Problem) -> Tensor:
    """(tasks, penalties) the mean over classes of the part of a class that is missed.

    For attributes, over their two values, and averaged over attributes.
    """
    onehot = problem.onehot
    if problem.is_multilabel:
        wrong = ((logits > 0) != onehot[:, None].bool()).double()
        missed = (wrong * onehot[:, None]).sum(2) / onehot.sum(1).clamp_min(1)[:, None]
        false = (wrong * (1 - onehot[:, None])).sum(2) / (1 - onehot).sum(1).clamp_min(1)[:, None]
        return ((missed + false) / 2).mean(2)
    wrong = (logits.argmax(3) != onehot.argmax(2)[:, None]).double()
    sizes = onehot.sum(1)
    missed = torch.einsum("tgn,tnc->tgc", wrong, onehot) / sizes.clamp_min(1)[:, None]
    return missed.sum(2) / (sizes > 0).sum(1)[:, None]


def _by_class(problem: Problem, task: int) -> Tensor:
    """The images in the order of their classes; attributes have none, so their images stay as they are."""
    if problem.is_multilabel:
        return torch.arange(len(problem), device=problem.features.device)
    return torch.argsort(problem.onehot[task].argmax(1), stable=True)


def _thin(problem: Problem) -> Problem:
    """The problem of one task, if large with a part of its images, evenly over the classes."""
    if len(problem) <= MOST_IMAGES:
        return problem
    order = _by_class(problem, 0)
    return problem.subset(order[torch.linspace(0, len(order) - 1, MOST_IMAGES, device=order.device).long()])
