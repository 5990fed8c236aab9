"""Full-batch L-BFGS on many convex problems at once.

Cross-validation fits one head per fold and penalty on the same features; solved together they are a few large matrix
products per step instead of many small ones, on a CPU and on a GPU alike. Every problem keeps its own history, step
length and end; one that is done stands still while the others go on.
"""

from collections.abc import Callable

import torch
from torch import Tensor

_ARMIJO = 1e-4
_HISTORY = 10
_TINY = torch.finfo(torch.float32).tiny  # a divisor for what is thrown away afterwards


def minimise(
    loss_and_gradient: Callable[[Tensor], tuple[Tensor, Tensor]], start: Tensor, *, tolerance: float, max_steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The minimisers (p, d) of p problems from `start`, their losses, and whether each gradient fell below `tolerance`.

    `loss_and_gradient` maps (p, d) points to (p,) losses and (p, d) gradients. The tolerance is on the largest entry
    of the gradient. Backtracking keeps every step a decrease; for convex problems the curvature condition then holds by
    itself.
    """
    point = start
    loss, gradient = loss_and_gradient(point)
    steps: list[tuple[Tensor, Tensor, Tensor]] = []
    stuck = torch.zeros(len(start), dtype=torch.bool, device=start.device)
    for _ in range(max_steps):
        done = stuck | (gradient.abs().amax(1) <= tolerance)
        if bool(done.all()):
            break
        direction = -_apply_inverse_hessian(gradient, steps)
        direction = direction.masked_fill(done[:, None], 0)
        new_point, new_loss, new_gradient = _search_line(loss_and_gradient, point, loss, gradient, direction)
        step, change = new_point - point, new_gradient - gradient
        moved = (step * change).sum(1)
        steps = [*steps[-(_HISTORY - 1) :], (step, change, moved)]
        stuck |= (new_point == point).all(1)  # no step decreases the loss any more: as far as this precision goes
        point, loss, gradient = new_point, new_loss, new_gradient
    return point, loss, gradient.abs().amax(1) <= tolerance


def _apply_inverse_hessian(gradient: Tensor, steps: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """The two-loop recursion, row by row; a step without curvature is passed over."""
    q = gradient
    alphas = []
    for step, change, moved in reversed(steps):
        alpha = torch.where(moved > 0, (step * q).sum(1) / moved.clamp_min(_TINY), 0)
        q = q - alpha[:, None] * change
        alphas.append(alpha)
    if steps:
        _, change, moved = steps[-1]
        scale = moved / change.square().sum(1).clamp_min(_TINY)
        q = q * torch.where(scale > 0, scale, 1.0)[:, None]
    for (step, change, moved), alpha in zip(steps, reversed(alphas), strict=True):
        beta = torch.where(moved > 0, (change * q).sum(1) / moved.clamp_min(_TINY), 0)
        q = q + (alpha - beta)[:, None] * step
    return q


def _search_line(
    loss_and_gradient: Callable, point: Tensor, loss: Tensor, gradient: Tensor, direction: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Halves the step of each problem until its loss falls by enough; a problem that never does stays where it was."""
    slope = (direction * gradient).sum(1)
    length = torch.ones_like(loss)
    best = (point, loss, gradient)
    waiting = slope < 0
    for _ in range(30):
        trial = point + length[:, None] * direction
        trial_loss, trial_gradient = loss_and_gradient(trial)
        accepted = waiting & (trial_loss <= loss + _ARMIJO * length * slope) & torch.isfinite(trial_loss)
        best = (
            torch.where(accepted[:, None], trial, best[0]),
            torch.where(accepted, trial_loss, best[1]),
            torch.where(accepted[:, None], trial_gradient, best[2]),
        )
        waiting = waiting & ~accepted
        if not bool(waiting.any()):
            break
        length = torch.where(waiting, length / 2, length)
    return best
