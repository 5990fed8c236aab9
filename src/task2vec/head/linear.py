"""The head: a linear classifier on pooled features, fitted to convergence with an explicit L2 penalty.

    minimise  sum_i omega_i loss(W x_i + b, y_i) + (l2 / 2) s^2 |W|^2

with softmax cross-entropy for one label per image and the sum of binary cross-entropies for independent attributes. The
image weights omega sum to one; balanced, every class weighs the same, as when the paper draws images uniformly over
classes. s^2 is the mean squared distance of the features from their mean, so `l2` has no unit and means the same for
every probe; the bias is free.

The penalty decides how soft the probabilities are, and so the scale of the Fisher: too small, and the head is certain
of every training image, which leaves no Fisher at all. By default it is chosen by cross-validated loss; where
nothing can be validated, because all classes or all but one have a single image, it is the strongest one, and the task
embeds as trivial.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from task2vec.head.cross_validation import count_together, cross_validate
from task2vec.head.problem import Problem

# The last two leave next to nothing of the head: for tasks on which nothing can be learned.
L2_GRID = tuple(10.0**e for e in (-5, -4.5, -4, -3.5, -3, -2.5, -2, -1.5, -1, -0.5, 0, 1, 2))
_TOLERANCE, _MAX_STEPS = 1e-6, 1000
_LEAST_SPREAD = 1e-4
_PART = 1024  # images that are brought to float64 at a time
_COMPRESSED = 4096


@dataclass(frozen=True)
class Head:
    """A fitted classifier and how well it does; errors are class-balanced, or averaged over attributes."""

    weight: Tensor
    bias: Tensor
    l2: float
    train_loss: float
    cv_loss: float
    cv_error: float
    has_converged: bool

    def logits(self, features: Tensor) -> Tensor:
        """(n, c) in float64."""
        return torch.cat([part.double() @ self.weight.T + self.bias for part in features.split(_PART)])


def fit_head(features: Tensor, targets: Tensor, *, classes: int, l2: float | None = None, balance: bool = True) -> Head:
    """The head of a task on (n, d) `features`; `targets` are (n,) class indices or (n, c) zeros and ones.

    Deterministic: folds follow from the order of the images, and the solver starts at zero.
    """
    return fit_heads(features, targets[None], classes=classes, l2=l2, balance=balance)[0]


def fit_heads(
    features: Tensor, targets: Tensor, *, classes: int, l2: float | None = None, balance: bool = True
) -> list[Head]:
    """The heads of tasks on the same features; `targets` are (tasks, n) class indices or (tasks, n, c) zeros and ones.

    Fitted together, since that takes a fraction of the time; each is the one that its task has alone, but for rounding.
    """
    whole = _state(features, targets, classes, balance)
    problem, basis = compress(whole)
    tried, cv_losses, cv_errors = cross_validate(problem, L2_GRID if l2 is None else (l2,))
    is_judged = ~cv_losses.isnan().any(1)
    # Where nothing can be validated nothing speaks for any structure, so the least is assumed.
    best = torch.where(is_judged, cv_losses.nan_to_num().argmin(1), len(tried) - 1).tolist()
    penalties = torch.tensor([tried[b] for b in best], dtype=torch.float64, device=features.device)
    heads = []
    for owners in torch.arange(problem.tasks, device=features.device).split(count_together(problem)):
        options = {"tolerance": _TOLERANCE, "max_steps": _MAX_STEPS}
        solution, loss, converged = problem.solve(problem.weights[owners], penalties[owners], owners, **options)
        for i, task in enumerate(owners.tolist()):
            weight, bias = problem.unfold(solution[i], task)
            weight = weight if basis is None else weight @ basis.T
            judged, chosen = bool(is_judged[task]), best[task]
            heads.append(
                Head(
                    weight=weight,
                    bias=bias - weight @ whole.centre,
                    l2=tried[chosen],
                    train_loss=float(loss[i]) - tried[chosen] / 2 * float(solution[i, :-1].square().sum()),
                    cv_loss=float(cv_losses[task, chosen]) if judged else math.log(classes),
                    cv_error=float(cv_errors[task, chosen]),
                    has_converged=bool(converged[i]),
                )
            )
    return heads


def image_weights(onehot: Tensor, *, is_multilabel: bool, balance: bool) -> Tensor:
    """(n,) weights summing to one: every class the same weight in all, or every image the same.

    Attributes have no single class to balance, so their images always weigh the same.
    """
    count = len(onehot)
    if is_multilabel or not balance:
        return torch.full((count,), 1 / count, dtype=torch.float64, device=onehot.device)
    per_class = onehot.sum(0)
    return onehot @ (1 / per_class.clamp_min(1)) / int((per_class > 0).sum())


def _state(features: Tensor, targets: Tensor, classes: int, balance: bool) -> Problem:
    """The problem of all tasks."""
    is_multilabel = targets.ndim == 3
    onehot = targets.double() if is_multilabel else functional.one_hot(targets, classes).double()
    weights = torch.stack([image_weights(own, is_multilabel=is_multilabel, balance=balance) for own in onehot])
    return measure_features(features, onehot, weights, is_multilabel=is_multilabel)


def measure_features(features: Tensor, onehot: Tensor, weights: Tensor, *, is_multilabel: bool) -> Problem:
    """The problem of tasks with these weights, their means and units in float64 but gathered part by part.

    Images that weigh nothing in a task have no part in its mean and unit.
    """
    centre = torch.stack([x.double().sum(0) for x in features.split(_PART)]).sum(0) / len(features)
    means, squares, lengths = torch.zeros_like(centre).repeat(len(weights), 1), 0, 0
    for x, w in zip(features.split(_PART), weights.split(_PART, dim=1), strict=True):
        lengths = lengths + w @ x.double().square().sum(1)
        x = x.double() - centre
        means += w @ x
        squares = squares + w @ x.square().sum(1)
    spread = (squares - means.square().sum(1)).clamp_min(0).sqrt()
    # Below this part of their length the features differ by rounding only; a unit of rounding would blow up the head.
    scales = torch.maximum(spread, _LEAST_SPREAD * torch.as_tensor(lengths).sqrt()).clamp_min(1e-12)
    return Problem(features, centre, means, scales, onehot, weights, is_multilabel)


def compress(problem: Problem) -> tuple[Problem, Tensor | None]:
    """The problem in coordinates of the features' own span, where that is smaller, and the basis of the span.

    The penalised optimum is a combination of the images, so nothing outside their span is ever used.
    """
    if len(problem) > 0.7 * problem.features.shape[1] or len(problem) > _COMPRESSED:
        return problem, None
    basis, upper = torch.linalg.qr((problem.features.double() - problem.centre).T)
    inside = problem.shifts @ basis
    return replace(problem, features=upper.T.contiguous(), centre=torch.zeros_like(upper[:, 0]), shifts=inside), basis
