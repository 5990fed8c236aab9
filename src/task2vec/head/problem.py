"""The convex problem that a head solves, for many tasks on the same images, image weights and penalties at once.

All heads read the same features, so their products are one matrix product with a column for every class of every head.
What differs between tasks, the point from which features are measured and their unit, enters by a rank-one correction:
w . (x - m) / s = (w / s) . (x - x0) - (w / s) . (m - x0) for any common x0.

Two classes take one column instead of two. From zero, the two columns of a softmax only ever move in opposite
directions, w_1 = -w_0 = v / sqrt(2); v has the length of both, so penalty and solver see the same problem.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from task2vec.head.lbfgs import HISTORY, minimise

# Features are brought to the wanted precision in parts of so many images, once for tasks of at most `_KEPT` images. A
# GPU has the memory for more, and every part costs it the start of a dozen kernels.
_PART = {"cpu": 1024, "cuda": 8192}
_KEPT = {"cpu": 4096, "cuda": 1 << 17}
_ROOT_TWO = math.sqrt(2)
# Above this, log(1 + exp(x)) and x are the same number even in double precision.
_EXACT = 40


@dataclass(frozen=True)
class Problem:
    """Tasks on common features.

    Attributes:
        features: (n, d).
        centre: (d,) the point x0 from which they are measured.
        shifts: (tasks, d) the mean of each task, from that point.
        scales: (tasks,) the unit of each task.
        onehot: (tasks, n, c) one-hot or 0/1 targets; (1, n, c) where they are the same for all tasks.
        weights: (tasks, n) what each image counts.
        is_multilabel: whether classes are independent attributes.
        dtype: of the arithmetic.
    """

    features: Tensor
    centre: Tensor
    shifts: Tensor
    scales: Tensor
    onehot: Tensor
    weights: Tensor
    is_multilabel: bool
    dtype: torch.dtype = torch.float64

    def __len__(self) -> int:
        """Number of images."""
        return len(self.features)

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return len(self.weights)

    @property
    def columns(self) -> int:
        """Columns of one head: one per class, or a single one for two classes."""
        classes = self.onehot.shape[2]
        return 1 if classes == 2 and not self.is_multilabel else classes

    @property
    def kind(self) -> str:
        """What it is computed on: "cpu" or "cuda"."""
        return "cuda" if self.features.is_cuda else "cpu"

    def only(self, some: slice) -> "Problem":
        """The problem of some of the tasks alone."""
        parts = {"shifts": self.shifts, "scales": self.scales, "onehot": self.onehot, "weights": self.weights}
        return replace(self, **{name: part[some] for name, part in parts.items()})

    def subset(self, kept: Tensor) -> "Problem":
        """The problem of some of the images."""
        weights = self.weights[:, kept]
        return replace(
            self,
            features=self.features[kept],
            onehot=self.onehot[:, kept],
            weights=weights / weights.sum(1, keepdim=True),
        )

    def parts(self) -> Iterator[tuple[slice, Tensor]]:
        """Runs of images with their features, measured from the centre."""
        centre = self.centre.to(self.dtype)
        size = _PART[self.kind]
        for start in range(0, len(self), size):
            rows = slice(start, start + size)
            yield rows, self.features[rows].to(self.dtype) - centre

    def logits(self, solution: Tensor, owners: Tensor) -> Tensor:
        """(p, n, c) for (p, d + 1, columns) solutions, each of the task that `owners` (p,) names."""
        weight, offset = _unfold(solution, *self._measures(owners, solution))
        values = torch.cat([_apply(x, weight, offset) for _, x in self.parts()])
        return self._spread(values).transpose(0, 1)

    def losses(self, logits: Tensor, onehot: Tensor) -> Tensor:
        """Losses of (..., c) logits."""
        if self.is_multilabel:
            return (functional.softplus(logits, threshold=_EXACT) - logits * onehot).sum(-1)
        return -(logits.log_softmax(-1) * onehot).sum(-1)

    def solve(
        self,
        weights: Tensor,
        l2: Tensor,
        owners: Tensor,
        *,
        tolerance: float,
        max_steps: int,
        is_relative: bool = False,
        history: int = HISTORY,
        biases: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(p, d + 1, columns) solutions for p rows of image weights, penalties and tasks, losses, and who converged.

        All start at zero, or at the (p, columns) `biases`. How they end is told to `minimise`.
        """
        width, columns = self.features.shape[1] + 1, self.columns
        l2, weights = l2.to(self.dtype), weights.T.to(self.dtype)
        onehot = self.onehot.transpose(0, 1).to(self.dtype)
        kept = list(self.parts()) if len(self) <= _KEPT[self.kind] else None
        asked: _Asked | None = None

        def loss_and_gradient(flat: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
            nonlocal asked
            if asked is None or asked.which is not which:
                asked = self._ask(which, owners, l2, weights)
            w = flat.view(len(which), width, columns)
            weight, offset = _unfold(w, asked.scales, asked.shifts)
            total = flat.new_zeros(len(which))
            slope, mass = flat.new_zeros(width - 1, len(which) * columns), flat.new_zeros(len(which), columns)
            for rows, x in kept or self.parts():
                values, share = _apply(x, weight, offset), asked.weights[rows]
                losses, residuals = self._slopes(values, onehot[rows], asked.owners)
                total += (losses * share).sum(0)
                residuals *= share[..., None]
                slope.addmm_(x.T, residuals.flatten(1))
                mass += residuals.sum(0)
            slope = slope.view(width - 1, len(which), columns).transpose(0, 1)
            gradient = torch.empty_like(w)
            torch.sub(slope, asked.shifts.mT * mass[:, None, :], out=gradient[:, :-1])
            gradient[:, :-1].div_(asked.scales).addcmul_(asked.l2, w[:, :-1])
            gradient[:, -1] = mass
            total.addcmul_(asked.l2[:, 0, 0], w[:, :-1].square().sum((1, 2)), value=0.5)
            return total, gradient.flatten(1)

        start = torch.zeros(len(l2), width, columns, dtype=self.dtype, device=self.features.device)
        if biases is not None:
            start[:, -1] = biases.to(start)
        ending = {"tolerance": tolerance, "max_steps": max_steps, "is_relative": is_relative}
        solution, loss, converged = minimise(loss_and_gradient, start.flatten(1), **ending, history=history)
        return solution.view(len(l2), width, columns), loss, converged

    def unfold(self, solution: Tensor, task: int) -> tuple[Tensor, Tensor]:
        """Weight (c, d) and bias (c,) of a (d + 1, columns) solution on the features from the centre."""
        owner = torch.tensor([task], device=solution.device)
        weight, offset = _unfold(solution[None], *self._measures(owner, solution))
        return self._spread(weight).T.contiguous(), self._spread(offset)[0]

    def _measures(self, owners: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """(p, 1, 1) units and (p, 1, d) shifts of the tasks that `owners` (p,) names, in the precision of `like`."""
        return self.scales[owners].to(like)[:, None, None], self.shifts[owners].to(like)[:, None]

    def _ask(self, which: Tensor, owners: Tensor, l2: Tensor, weights: Tensor) -> "_Asked":
        scales, shifts = self._measures(owners[which], l2)
        return _Asked(which, owners[which], l2[which, None, None], weights[:, which], scales, shifts)

    def _spread(self, values: Tensor) -> Tensor:
        """(..., c) logits of (..., columns) values: two of opposite sign where one column stands for two classes."""
        if self.is_multilabel or self.onehot.shape[2] != 2:
            return values
        return torch.cat([-values, values], dim=-1) / _ROOT_TWO

    def _slopes(self, values: Tensor, onehot: Tensor, owners: Tensor) -> tuple[Tensor, Tensor]:
        """(n, p) losses of (n, p, columns) values, and their derivatives."""
        targets = onehot[:, owners] if onehot.shape[1] > 1 else onehot
        if self.is_multilabel:
            return (functional.softplus(values, threshold=_EXACT) - values * targets).sum(2), values.sigmoid() - targets
        if self.columns > 1:
            log_p = values.log_softmax(2)
            return -(log_p * targets).sum(2), log_p.exp() - targets
        gap, is_second = values[..., 0] * _ROOT_TWO, targets[..., 1]
        losses = functional.softplus(gap, threshold=_EXACT) - gap * is_second
        return losses, ((gap.sigmoid() - is_second) * _ROOT_TWO)[..., None]


@dataclass(frozen=True)
class _Asked:
    """What the problems with the numbers `which` have of their own: it stays the same for many steps of the solver."""

    which: Tensor
    owners: Tensor
    l2: Tensor
    weights: Tensor
    scales: Tensor
    shifts: Tensor


def _unfold(solution: Tensor, scales: Tensor, shifts: Tensor) -> tuple[Tensor, Tensor]:
    """(d, p * columns) weights and (p, columns) offsets that act on the features from the centre."""
    weight = solution[:, :-1] / scales
    offset = torch.baddbmm(solution[:, -1:], shifts, weight, alpha=-1)[:, 0]
    return weight.transpose(0, 1).flatten(1), offset


def _apply(x: Tensor, weight: Tensor, offset: Tensor) -> Tensor:
    """(n, p, columns) values of the heads."""
    return torch.addmm(offset.flatten(), x, weight).view(len(x), *offset.shape)
