"""The head: a linear classifier on pooled features, fitted to convergence with an explicit L2 penalty.

    minimise  sum_i omega_i loss(W x_i + b, y_i) + (l2 / 2) s^2 |W|^2

with softmax cross-entropy for one label per image and the sum of binary cross-entropies for independent attributes. The
image weights omega sum to one; balanced, every class weighs the same, as when the paper draws images uniformly over
classes. s^2 is the mean squared distance of the features from their mean, so `l2` has no unit and means the same for
every probe; the bias is free.

The penalty decides how soft the probabilities are, and so the scale of the Fisher: too small, and the head is certain
of every training image, which leaves no Fisher at all. By default it is chosen by cross-validated loss.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from task2vec.head.lbfgs import minimise

L2_GRID = tuple(10.0**e for e in (-5, -4.5, -4, -3.5, -3, -2.5, -2, -1.5, -1, -0.5, 0))
FOLDS = 5
# Beyond this many images cross-validation sees a part of them, evenly over the classes: the best penalty hardly moves.
CROSS_VALIDATED_IMAGES = 4000
_LEAST_SPREAD = 1e-4
_TOLERANCE, _MAX_STEPS = 1e-6, 1000
_CV_TOLERANCE, _CV_MAX_STEPS = 1e-3, 100


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
        return features.double() @ self.weight.T + self.bias


def fit_head(features: Tensor, targets: Tensor, *, classes: int, l2: float | None = None, balance: bool = True) -> Head:
    """The head of a task on (n, d) `features`; `targets` are (n,) class indices or (n, c) zeros and ones.

    Deterministic: folds follow from the order of the images, and the solver starts at zero.
    """
    x = features.double()
    onehot = targets.double() if targets.ndim == 2 else functional.one_hot(targets, classes).double()
    is_multilabel = targets.ndim == 2
    weights = image_weights(onehot, is_multilabel=is_multilabel, balance=balance)
    mean = weights @ x
    # Below this part of their length the features differ by rounding only; a unit of rounding would blow up the head.
    least = _LEAST_SPREAD * (weights @ x.square().sum(1)).sqrt()
    scale = torch.maximum((weights @ (x - mean).square().sum(1)).sqrt(), least).clamp_min(1e-12)
    compact, basis = _compress((x - mean) / scale)
    problem = _Problem(compact, onehot, weights, is_multilabel)
    grid = L2_GRID if l2 is None else (l2,)
    cv_losses, cv_errors = _cross_validate(problem, grid)
    best = int(torch.argmin(cv_losses))
    solution, loss, converged = problem.solve(
        weights[None],
        torch.tensor([grid[best]], dtype=torch.float64, device=x.device),
        tolerance=_TOLERANCE,
        max_steps=_MAX_STEPS,
    )
    weight, bias = solution[0, :-1], solution[0, -1]
    weight = ((basis @ weight) if basis is not None else weight) / scale
    penalty = grid[best] / 2 * float(solution[0, :-1].square().sum())
    return Head(
        weight=weight.T.contiguous(),
        bias=bias - mean @ weight,
        l2=grid[best],
        train_loss=float(loss[0]) - penalty,
        cv_loss=float(cv_losses[best]),
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


def _compress(x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Coordinates of the features within their own span, where that is smaller; the fit is the same.

    The penalised optimum is a combination of the images, so nothing outside their span is ever used.
    """
    if len(x) > 0.7 * x.shape[1]:
        return x, None
    basis, upper = torch.linalg.qr(x.T)
    return upper.T.contiguous(), basis


@dataclass(frozen=True)
class _Problem:
    x: Tensor
    onehot: Tensor
    weights: Tensor
    is_multilabel: bool

    def solve(self, weights: Tensor, l2: Tensor, *, tolerance: float, max_steps: int) -> tuple[Tensor, Tensor, Tensor]:
        """(p, d + 1, c) solutions for p rows of image weights and penalties, losses, and who converged."""
        classes = self.onehot.shape[1]
        x = torch.cat([self.x, torch.ones_like(self.x[:, :1])], dim=1)
        penalty = l2.to(x)[:, None, None].expand(-1, x.shape[1], classes).clone()
        penalty[:, -1] = 0
        weights = weights.to(x)

        def loss_and_gradient(flat: Tensor) -> tuple[Tensor, Tensor]:
            w = flat.view(len(l2), -1, classes)
            losses, residuals = self._losses(torch.matmul(x, w))
            loss = (losses * weights).sum(1) + (penalty * w.square()).sum((1, 2)) / 2
            gradient = torch.matmul(x.T, residuals * weights[..., None]) + penalty * w
            return loss, gradient.flatten(1)

        start = torch.zeros(len(l2), x.shape[1] * classes, dtype=x.dtype, device=x.device)
        solution, loss, converged = minimise(loss_and_gradient, start, tolerance=tolerance, max_steps=max_steps)
        return solution.view(len(l2), -1, classes), loss, converged

    def _losses(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """(p, n) losses and their (p, n, c) derivatives at the logits."""
        onehot = self.onehot.to(logits)
        if self.is_multilabel:
            losses = functional.softplus(logits) - logits * onehot
            return losses.sum(2), logits.sigmoid() - onehot
        log_p = logits.log_softmax(2)
        return -(log_p * onehot).sum(2), log_p.exp() - onehot


def _cross_validate(problem: _Problem, grid: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """Held-out loss and error of every penalty, all folds and penalties fitted together."""
    problem = _subset(problem)
    fold = _folds(problem)
    held_out = torch.stack([fold == k for k in range(int(fold.max()) + 1)])
    pairs = [(k, g) for k in range(len(held_out)) for g in range(len(grid))]
    masks = held_out[[k for k, _ in pairs]]
    train = problem.weights * ~masks
    train = train / train.sum(1, keepdim=True)
    l2 = torch.tensor([grid[g] for _, g in pairs], device=problem.x.device)
    # Single precision is enough to compare penalties, and twice as fast.
    single = _Problem(problem.x.float(), problem.onehot, problem.weights, problem.is_multilabel)
    solution, _, _ = single.solve(train, l2, tolerance=_CV_TOLERANCE, max_steps=_CV_MAX_STEPS)
    logits = torch.matmul(single.x, solution[:, :-1]) + solution[:, -1:]
    losses, _ = single._losses(logits)
    # Fold by fold the held-out parts make up the whole task once: (g, n) out-of-fold logits and losses.
    chosen = masks.view(len(held_out), len(grid), -1)
    losses = (losses.view(len(held_out), len(grid), -1).double() * chosen).sum(0)
    logits = (logits.view(len(held_out), len(grid), *logits.shape[1:]) * chosen[..., None]).sum(0)
    return losses @ problem.weights, torch.stack([_error(z, problem) for z in logits])


def _folds(problem: _Problem) -> Tensor:
    """(n,) fold of each image: round-robin through the images sorted by class, so each class is spread evenly."""
    count = len(problem.x)
    order = torch.arange(count, device=problem.x.device)
    if not problem.is_multilabel:
        order = torch.argsort(problem.onehot.argmax(1), stable=True)
    fold = torch.empty(count, dtype=torch.long, device=problem.x.device)
    fold[order] = torch.arange(count, device=problem.x.device) % min(FOLDS, count)
    return fold


def _subset(problem: _Problem) -> _Problem:
    count = len(problem.x)
    if count <= CROSS_VALIDATED_IMAGES:
        return problem
    order = torch.arange(count, device=problem.x.device)
    if not problem.is_multilabel:
        order = torch.argsort(problem.onehot.argmax(1), stable=True)
    kept = order[torch.linspace(0, count - 1, CROSS_VALIDATED_IMAGES, device=problem.x.device).long()]
    weights = problem.weights[kept]
    return _Problem(problem.x[kept], problem.onehot[kept], weights / weights.sum(), problem.is_multilabel)


def _error(logits: Tensor, problem: _Problem) -> Tensor:
    """Class-balanced error: the mean over classes of the part of a class that is missed."""
    onehot = problem.onehot.bool()
    if problem.is_multilabel:
        wrong = (logits > 0) != onehot
        missed = (wrong & onehot).sum(0) / onehot.sum(0).clamp_min(1)
        false = (wrong & ~onehot).sum(0) / (~onehot).sum(0).clamp_min(1)
        return ((missed + false) / 2).double().mean()
    wrong = logits.argmax(1) != onehot.int().argmax(1)
    present = onehot.sum(0) > 0
    return ((wrong[:, None] & onehot).sum(0)[present] / onehot.sum(0)[present]).double().mean()
