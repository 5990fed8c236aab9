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

from task2vec.head.cross_validation import cross_validate
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
    is_multilabel = targets.ndim == 2
    onehot = targets.double() if is_multilabel else functional.one_hot(targets, classes).double()
    weights = image_weights(onehot, is_multilabel=is_multilabel, balance=balance)
    mean, scale = _standardise(features, weights)
    problem, basis = _compress(Problem(features, mean, scale, onehot, weights, is_multilabel))
    tried, cv_losses, cv_errors = cross_validate(problem, L2_GRID if l2 is None else (l2,))
    is_judged = not bool(cv_losses.isnan().any())
    # Where nothing can be validated nothing speaks for any structure, so the least is assumed.
    best = int(torch.argmin(cv_losses)) if is_judged else len(tried) - 1
    penalty = torch.tensor([tried[best]], dtype=torch.float64, device=features.device)
    solution, loss, converged = problem.solve(weights[None], penalty, tolerance=_TOLERANCE, max_steps=_MAX_STEPS)
    compact, bias = solution[0, :-1], solution[0, -1]
    weight = (compact if basis is None else basis @ compact) / scale
    return Head(
        weight=weight.T.contiguous(),
        bias=bias - mean @ weight,
        l2=tried[best],
        train_loss=float(loss[0]) - tried[best] / 2 * float(compact.square().sum()),
        cv_loss=float(cv_losses[best]) if is_judged else math.log(classes),
        cv_error=float(cv_errors[best]),
        has_converged=bool(converged[0]),
    )


def image_weights(onehot: Tensor, *, is_multilabel: bool, balance: bool) -> Tensor:
    """(n,) weights summing to one: every class the same weight in all, or every image the same.

    Attributes have no single class to balance, so their images always weigh the same.
    """
    count = len(onehot)
    if is_multilabel or not balance:
        return torch.full((count,), 1 / count, dtype=torch.float64, device=onehot.device)
    per_class = onehot.sum(0)
    return onehot @ (1 / per_class.clamp_min(1)) / int((per_class > 0).sum())


def _standardise(features: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted mean of the features and root mean squared distance from it, in float64 but part by part."""
    parts = list(zip(features.split(_PART), weights.split(_PART), strict=True))
    mean = torch.stack([w @ x.double() for x, w in parts]).sum(0)
    spread = torch.stack([w @ (x.double() - mean).square().sum(1) for x, w in parts]).sum().sqrt()
    length = torch.stack([w @ x.double().square().sum(1) for x, w in parts]).sum().sqrt()
    # Below this part of their length the features differ by rounding only; a unit of rounding would blow up the head.
    return mean, torch.maximum(spread, _LEAST_SPREAD * length).clamp_min(1e-12)


def _compress(problem: Problem) -> tuple[Problem, Tensor | None]:
    """The problem in coordinates of the features' own span, where that is smaller, and the basis of the span.

    The penalised optimum is a combination of the images, so nothing outside their span is ever used.
    """
    if len(problem) > 0.7 * problem.features.shape[1] or len(problem) > _COMPRESSED:
        return problem, None
    basis, upper = torch.linalg.qr(((problem.features.double() - problem.shift) / problem.scale).T)
    nothing, one = torch.zeros_like(upper[:, 0]), torch.ones_like(problem.scale)
    return replace(problem, features=upper.T.contiguous(), shift=nothing, scale=one), basis
