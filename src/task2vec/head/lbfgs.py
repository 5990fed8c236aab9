"""Full-batch L-BFGS on many convex problems at once.

Cross-validation fits one head per fold on the same features, and tasks on the same images fit theirs
together: a few large matrix products per step instead of many small ones, on a CPU and on a GPU alike. Every problem
keeps its own history, step length and end, so that it takes the steps that it would take alone; once half of them have
converged, the others go on without them.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

# Points (k, d) of the problems with the given numbers (k,) become losses (k,) and gradients (k, d). As long as it is
# called for the same problems, the numbers are the very same tensor.
LossAndGradient = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
# Gradients (k, d) of the problems with the given numbers become whether each is small enough (k,).
IsFlat = Callable[[Tensor, Tensor], Tensor]

_ARMIJO = 1e-4
HISTORY = 10
_TINY = torch.finfo(torch.float32).tiny  # a divisor for what is thrown away afterwards


def minimise(
    loss_and_gradient: LossAndGradient, start: Tensor, *, tolerance: float, max_steps: int, history: int = HISTORY
) -> tuple[Tensor, Tensor, Tensor]:
    """The minimisers (p, d) of p problems from `start`, their losses, and whether each gradient fell below `tolerance`.

    `loss_and_gradient` is called for some of the problems, by their numbers. The tolerance is on the length of the
    gradient as a part of that at the start: turned coordinates and other units change nothing. Backtracking keeps every
    step a decrease; for convex problems the curvature condition then holds by itself. `history` steps, at least two,
    make up the inverse Hessian.
    """
    found, losses = torch.empty_like(start), start.new_empty(len(start))
    converged = torch.empty_like(losses, dtype=torch.bool)
    which = torch.arange(len(start), device=start.device)
    point = start
    loss, gradient = loss_and_gradient(point, which)
    steps: list[_Step] = []
    limits = tolerance * gradient.norm(dim=1).clamp_min(1e-6)

    def is_flat(gradient: Tensor, which: Tensor) -> Tensor:
        return gradient.norm(dim=1) <= limits[which]

    done = is_flat(gradient, which).cpu()
    waiting = _Waiting(which, torch.nonzero(~done).flatten())

    def note(rows: Tensor | slice) -> None:
        found[which[rows]], losses[which[rows]] = point[rows], loss[rows]
        converged[which[rows]] = is_flat(gradient[rows], which[rows])

    for _ in range(max_steps):
        if bool(done.all()):
            break
        if 2 * int(done.sum()) >= len(done):
            note(torch.nonzero(done).flatten().to(which.device))
            rest = torch.nonzero(~done).flatten().to(which.device)
            which, point, loss, gradient = which[rest], point[rest], loss[rest], gradient[rest]
            steps = [_Step(*(part[rest] for part in step)) for step in steps]
            done = torch.zeros(len(rest), dtype=torch.bool)
            waiting = _Waiting(which, torch.arange(len(rest)))
        direction = -_apply_inverse_hessian(gradient, steps)
        new, ended = _search_line(loss_and_gradient, (point, loss, gradient), direction, waiting, is_flat)
        steps = [*steps[-(history - 1) :], _Step.between((point, new[0]), (gradient, new[2]))]
        point, loss, gradient = new
        if not torch.equal(ended, done):
            done, waiting = ended, _Waiting(which, torch.nonzero(~ended).flatten())
    note(slice(None))
    return found, losses, converged


class _Waiting:
    """Problems that need a step: their rows among those that go on together (here and on the device), and numbers."""

    def __init__(self, which: Tensor, places: Tensor):
        self.all, self.places = which, places
        self.is_whole = len(places) == len(which)
        self.rows = slice(None) if self.is_whole else places.to(which.device, non_blocking=True)
        self.which = which if self.is_whole else which[self.rows]

    def only(self, some: Tensor) -> "_Waiting":
        """Those of them that are marked in `some`."""
        return self if bool(some.all()) else _Waiting(self.all, self.places[some])


class _Step(NamedTuple):
    """One step of every problem, as the inverse Hessian needs it: s / s.y, the change y of the gradient, and s.y.

    The first is zero where s.y is not positive: a step without curvature is passed over.
    """

    scaled: Tensor
    change: Tensor
    moved: Tensor

    @classmethod
    def between(cls, points: tuple[Tensor, Tensor], gradients: tuple[Tensor, Tensor]) -> "_Step":
        """The step from the first of two points to the second."""
        step, change = points[1] - points[0], gradients[1] - gradients[0]
        moved = (step * change).sum(1)
        return cls(step * torch.where(moved > 0, 1 / moved.clamp_min(_TINY), 0)[:, None], change, moved)


def _apply_inverse_hessian(gradient: Tensor, steps: list[_Step]) -> Tensor:
    """The two-loop recursion, row by row.

    Its products are not gathered into those of a compact form, which would be fewer: rounding then grows from step to
    step, and problems would end elsewhere together than alone.
    """
    q = gradient
    alphas = []
    for scaled, change, _ in reversed(steps):
        alphas.append((scaled * q).sum(1))
        q = torch.addcmul(q, alphas[-1][:, None], change, value=-1)
    if steps:
        _, change, moved = steps[-1]
        scale = moved / change.square().sum(1).clamp_min(_TINY)
        q = q * torch.where(scale > 0, scale, 1.0)[:, None]
    for (scaled, change, moved), alpha in zip(steps, reversed(alphas), strict=True):
        excess = torch.addcmul((change * q).sum(1), alpha, moved, value=-1)
        q = torch.addcmul(q, excess[:, None], scaled, value=-1)
    return q


def _search_line(
    loss_and_gradient: LossAndGradient, now: tuple[Tensor, ...], direction: Tensor, waiting: _Waiting, is_flat: IsFlat
) -> tuple[tuple[Tensor, ...], Tensor]:
    """Halves the step of each waiting problem until its loss falls by enough; one that never does stays put.

    The new points, losses and gradients, and who is done now: those that need not or cannot go further, and those that
    did not wait. Nothing is read from a GPU but once per trial.
    """
    best, (point, loss, gradient) = now, now
    slope = (direction * gradient).sum(1)
    done = torch.ones(len(point), dtype=torch.bool)
    length = 1.0
    for _ in range(30):
        rows = waiting.rows
        trial = torch.add(point[rows], direction[rows], alpha=length)
        new = (trial, *loss_and_gradient(trial, waiting.which))
        missing = new[1] - torch.add(loss[rows], slope[rows], alpha=_ARMIJO * length)  # not a number between infinities
        accepted = (missing <= 0) & (slope[rows] < 0)
        ended = is_flat(new[2], waiting.which) | (trial == point[rows]).all(1)
        accepted, ended = torch.stack([accepted, ended]).cpu()
        done[waiting.places] = ended | ~accepted
        if waiting.is_whole and bool(accepted.all()):  # as nearly always
            return new, done
        good = torch.nonzero(accepted).flatten().to(point.device)
        into = good if isinstance(rows, slice) else rows[good]
        best = tuple(old.index_copy(0, into, part[good]) for old, part in zip(best, new, strict=True))
        waiting, length = waiting.only(~accepted), length / 2
        if not len(waiting.places):
            break
    return best, done
