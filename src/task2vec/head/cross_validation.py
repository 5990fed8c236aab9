"""Which penalty predicts held-out images best, and how well: folds and penalties fitted together."""

import torch
from torch import Tensor

from task2vec.head.problem import Problem

FOLDS = 5


def cross_validate(
    problem: Problem,
    grid: Tensor,
    folds: Tensor,
    is_judged: Tensor,
    *,
    together: int,
    fit_all: bool = False,
    from_base_rates: bool = False,
    **stop,
) -> tuple[Tensor, Tensor, Tensor]:
    """(tasks, penalties) held-out losses, held-out errors, and (tasks, penalties, d + 1, columns) solutions.

    Losses are NaN for a task without judged images. Errors are class-balanced; those of attributes are balanced over
    their two values and averaged over attributes. Solutions are those on all images, with `fit_all`; else there are
    none.

    Folds, penalties and (with `fit_all`) the heads on all images are problems of the same calls of the solver, since
    its steps take a GPU the same time for one problem and for hundreds.

    Args:
        problem: the tasks.
        grid: (penalties,).
        folds: (tasks, n) the fold of each image; -1 for images that are not of the task, which have no weight.
        is_judged: (tasks, n) which images count for the loss.
        together: how many heads are fitted at a time.
        fit_all: fit heads on all images as well.
        from_base_rates: start attributes (common to all tasks) at the log odds of their rates, for rare ones are far
            from zero.
        stop: arguments of `Problem.solve`.
    """
    tasks, device = len(folds), grid.device
    count = int(folds.max()) + 1
    shape = (tasks, count + fit_all, len(grid))
    losses = torch.zeros(shape, dtype=torch.float64, device=device)
    missed = torch.zeros(2, *shape, problem.onehot.shape[2], dtype=torch.float64, device=device)
    solutions = []
    judging = problem.weights * is_judged
    # The last "fold", if there is one too many, holds nothing out.
    jobs = torch.cartesian_prod(*(torch.arange(size, device=device) for size in shape))
    for some in jobs.split(together):
        own, held, chosen = some.T
        is_out = folds[own] == held[:, None]
        train = problem.weights[own] * ~is_out
        train = train / train.sum(1, keepdim=True).clamp_min(1e-12)
        biases = _log_odds(problem, train) if from_base_rates and problem.is_multilabel else None
        solution, _, _ = problem.solve(train, grid[chosen], own, biases=biases, **stop)
        logits, targets = problem.logits(solution, own), problem.targets(own)
        losses[own, held, chosen] = (problem.losses(logits, targets) * is_out * judging[own]).sum(1)
        missed[:, own, held, chosen] = _count_missed(logits, targets, is_out, is_multilabel=problem.is_multilabel)
        solutions.append(solution[held == count])
    mean_losses = losses.sum(1) / judging.sum(1, keepdim=True)
    solved = torch.cat(solutions).unflatten(0, (tasks if fit_all else 0, len(grid)))
    return mean_losses, _balance(missed.sum(2), problem, folds), solved


def _log_odds(problem: Problem, train: Tensor) -> Tensor:
    """(p, c) log odds of the common attributes among the training images."""
    least = 0.5 / (train > 0).sum(1, keepdim=True).clamp_min(1)
    return torch.clamp(train @ problem.onehot[0], least, 1 - least).logit()


def _count_missed(logits: Tensor, targets: Tensor, is_out: Tensor, *, is_multilabel: bool) -> Tensor:
    """(2, p, c) held-out images of a class that are missed and, for attributes, those that are taken for it."""
    if is_multilabel:
        wrong = ((logits > 0) != targets.bool()) & is_out[..., None]
        missed = torch.stack([wrong & targets.bool(), wrong & ~targets.bool()])
        return missed.sum(2).double()
    wrong = ((logits.argmax(2) != targets.argmax(2)) & is_out).to(targets)
    missed = torch.einsum("pn,pnc->pc", wrong, targets.expand(len(wrong), -1, -1))
    return torch.stack([missed, torch.zeros_like(missed)]).double()


def _balance(missed: Tensor, problem: Problem, folds: Tensor) -> Tensor:
    """(tasks, penalties) errors from (2, tasks, penalties, c) counts."""
    is_in = (folds >= 0).double()
    sizes = torch.einsum("tn,tnc->tc", is_in, problem.onehot.double().expand(len(folds), -1, -1))[:, None]
    if problem.is_multilabel:
        others = is_in.sum(1)[:, None, None] - sizes
        return ((missed[0] / sizes.clamp_min(1) + missed[1] / others.clamp_min(1)) / 2).mean(2)
    return (missed[0] / sizes.clamp_min(1)).sum(2) / (sizes > 0).sum(2)


def sort_by_class(onehot: Tensor, *, is_multilabel: bool) -> Tensor:
    """The numbers of the images in the order of their classes; attributes have none, so their images stay in order."""
    if is_multilabel:
        return torch.arange(len(onehot), device=onehot.device)
    return torch.argsort(onehot.argmax(1), stable=True)


def assign_folds(onehot: Tensor, *, is_multilabel: bool, folds: int = FOLDS) -> Tensor:
    """(n,) fold of each image: round-robin through the images sorted by class, so each class is spread evenly."""
    order = sort_by_class(onehot, is_multilabel=is_multilabel)
    fold = torch.empty_like(order)
    fold[order] = torch.arange(len(order), device=order.device) % min(folds, len(order))
    return fold


def find_judged(onehot: Tensor, fold: Tensor, *, is_multilabel: bool) -> Tensor:
    """(n,) which images count for the held-out loss: those with another image of their class in another fold.

    No head can predict a class that it has never seen, so such images say nothing about penalties. If all judged images
    are of one class, none is judged. With attributes every image is.
    """
    if is_multilabel:
        return torch.ones_like(fold, dtype=torch.bool)
    per_fold = torch.stack([onehot[fold == k].sum(0) for k in range(int(fold.max()) + 1)])
    elsewhere = onehot.sum(0) - per_fold  # (folds, classes): images of a class that the fold is fitted without
    is_judged = (elsewhere[fold] * onehot).sum(1) > 0
    return is_judged & ((onehot[is_judged].sum(0) > 0).sum() > 1)
