"""Full-batch L-BFGS on many convex problems at once.

Cross-validation fits one head per fold and penalty on the same features, and tasks on the same images fit theirs
together: a few large matrix products per step instead of many small ones, on a CPU and on a GPU alike. Every problem
keeps its own history, step length and end, so that it takes the steps that it would take alone; once half of them are
done, the others go on without them.
"""

from collections.abc import Callable

import torch
from torch import Tensor

# Points (k, d) of the problems with the given numbers (k,) become losses (k,) and gradients (k, d).
LossAndGradient = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

_ARMIJO = 1e-4
_HISTORY = 10
_TINY = torch.finfo(torch.float32).tiny  # a divisor for what is thrown away afterwards


def minimise(
    loss_and_gradient: LossAndGradient, start: Tensor, *, tolerance: float, max_steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The minimisers (p, d) of p problems from `start`, their losses, and whether each gradient fell below `tolerance`.

    `loss_and_gradient` is asked for some of the problems, by their numbers. The tolerance is on the largest entry of
    the gradient. Backtracking keeps every step a decrease; for convex problems the curvature condition then holds by
    itself.
    """
    found, losses = torch.empty_like(start), start.new_empty(len(start))
    slopes = torch.empty_like(losses)
    which = torch.arange(len(start), device=start.device)
    point = start
    loss, gradient = loss_and_gradient(point, which)
    steps: list[tuple[Tensor, Tensor, Tensor]] = []
    stuck = torch.zeros(len(start), dtype=torch.bool, device=start.device)

    def note(rows: Tensor | slice) -> None:
        found[which[rows]], losses[which[rows]] = point[rows], loss[rows]
        slopes[which[rows]] = gradient[rows].abs().amax(1)

    for _ in range(max_steps):
        done = (stuck | (gradient.abs().amax(1) <= tolerance)).cpu()  # one look at what a GPU has found, not several
        if bool(done.all()):
            break
        if 2 * int(done.sum()) >= len(done):
            note(torch.nonzero(done).flatten().to(which.device))
            rest = torch.nonzero(~done).flatten().to(which.device)
            which, point, loss, gradient, stuck = which[rest], point[rest], loss[rest], gradient[rest], stuck[rest]
            steps = [(step[rest], change[rest], moved[rest]) for step, change, moved in steps]
            done = torch.zeros(len(rest), dtype=torch.bool)
        direction = -_apply_inverse_hessian(gradient, steps)
        direction = direction.masked_fill(done.to(direction.device)[:, None], 0)
        new_point, new_loss, new_gradient = _search_line(
            loss_and_gradient, which, point, loss, gradient, direction, torch.nonzero(~done).flatten()
        )
        step, change = new_point - point, new_gradient - gradient
        moved = (step * change).sum(1)
        steps = [*steps[-(_HISTORY - 1) :], (step, change, moved)]
        # No step decreases the loss any more: as far as this precision goes.
        stuck = stuck | (new_point == point).all(1)
        point, loss, gradient = new_point, new_loss, new_gradient
    note(slice(None))
    return found, losses, slopes <= tolerance


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
    loss_and_gradient: LossAndGradient,
    which: Tensor,
    point: Tensor,
    loss: Tensor,
    gradient: Tensor,
    direction: Tensor,
    waiting: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Halves the step of each waiting problem until its loss falls by enough; one that never does stays put."""
    slope = (direction * gradient).sum(1)
    best = (point, loss, gradient)
    length = 1.0
    for _ in range(30):
        rows = waiting.to(point.device)
        trial = point[rows] + length * direction[rows]
        new = (trial, *loss_and_gradient(trial, which[rows]))
        enough = loss[rows] + _ARMIJO * length * slope[rows]
        accepted = ((new[1] <= enough) & torch.isfinite(new[1]) & (slope[rows] < 0)).cpu()
        if len(waiting) == len(point) and bool(accepted.all()):  # as nearly always
            return new
        good = torch.nonzero(accepted).flatten().to(point.device)
        into, (new_point, new_loss, new_gradient) = rows[good], (part[good] for part in new)
        best = (
            best[0].index_copy(0, into, new_point),
            best[1].index_copy(0, into, new_loss),
            best[2].index_copy(0, into, new_gradient),
        )
        waiting, length = waiting[~accepted], length / 2
        if not len(waiting):
            break
    return best
