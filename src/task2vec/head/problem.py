"""The convex problem of a head, for many tasks on the same images, image weights and penalties at once.

All heads read the same features, so their products are one matrix product with a column for every class of every head.
Tasks differ in the mean and the scale of their features, which enter as a rank-one correction:
w . (x - m) / s = (w / s) . (x - x0) - (w / s) . (m - x0) for any common x0.

Two classes take one column instead of two. From zero, the two columns of a softmax only ever move in opposite
directions, w_1 = -w_0 = v / sqrt(2); v has the length of both, so penalty and solver see the same problem.

The solver takes a third of the steps in coordinates in which the curvature is about the same in all directions. At zero
the Hessian is k P with P = Sigma + (q / k) I, the second moment Sigma of the features and k = 1 / C for C classes or
1 / 4 for attributes (half of it is best, since the curvature falls as the head grows confident). With P = L L', the
features L^-1 x and v = L' w the problem is the same, since the penalty is q |w|^2 = k (|v|^2 - mean (v . L^-1 x)^2).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from task2vec.head.lbfgs import minimise

# Features are converted to the precision of the arithmetic in chunks of so many images; once, for at most `_KEPT`
# images. A GPU has memory for larger chunks, and each costs it the launch of a dozen kernels.
CHUNK = {"cpu": 1024, "cuda": 8192}
_KEPT = {"cpu": 4096, "cuda": 1 << 17}
_ROOT_TWO = math.sqrt(2)
# Above this, log(1 + exp(x)) and x are the same number even in double precision.
_EXACT = 40
# A spread below this part of the length of the features is rounding; such a scale would blow up the head.
_MIN_SPREAD = 1e-4
_MAX_COMPRESSED = 4096
_CURVATURE = 0.5
_WHITENED_HISTORY = 5  # a longer history saves no steps
# The penalty of a whitened problem is a difference, which needs this part of the curvature to survive rounding.
_MIN_PENALTY = 1e-4
# With fewer images per class, the images held out are too large a part of the second moment for whitening to help.
MIN_IMAGES_PER_CLASS = 16
# Above these, whitening takes a CPU longer than it saves: multiplications, and features per column.
_MAX_PRODUCTS = 1 << 28
_MAX_FEATURES_PER_COLUMN = 400
# Bytes for the heads of one call: the solver keeps copies of all weights, and a pass of all logits.
MEMORY = 1 << 29
_COPIES_OF_WEIGHTS = 25
_COPIES_OF_LOGITS = 8


@dataclass(frozen=True)
class Problem:
    """Tasks on common features.

    Attributes:
        features: (n, d).
        centre: (d,) the point x0 from which they are measured.
        shifts: (tasks, d) the mean of each task, from that point.
        scales: (tasks,) the scale of each task.
        onehot: (tasks, n, c) one-hot or 0/1 targets; (1, n, c) where they are the same for all tasks.
        weights: (tasks, n) weight of each image.
        is_multilabel: whether classes are independent attributes.
        dtype: of the arithmetic.
        factor: (d, d) L of the module's docstring, if features, shifts and scales are those of `whiten`.
        curvature: k, by which the loss is divided; 1 without `factor`.
    """

    features: Tensor
    centre: Tensor
    shifts: Tensor
    scales: Tensor
    onehot: Tensor
    weights: Tensor
    is_multilabel: bool
    dtype: torch.dtype = torch.float64
    factor: Tensor | None = None
    curvature: float = 1.0

    def __len__(self) -> int:
        """Number of images."""
        return len(self.features)

    @property
    def columns(self) -> int:
        """Columns of one head: one per class, or a single one for two classes."""
        classes = self.onehot.shape[2]
        return 1 if classes == 2 and not self.is_multilabel else classes

    @property
    def device_type(self) -> str:
        """Where it is computed: "cpu" or "cuda"."""
        return "cuda" if self.features.is_cuda else "cpu"

    def select(self, tasks: Tensor | slice = slice(None), images: Tensor | slice = slice(None)) -> "Problem":
        """The problem of the given tasks on the given images."""
        onehot = self.onehot[tasks] if len(self.onehot) > 1 else self.onehot
        return replace(
            self,
            features=self.features[images],
            shifts=self.shifts[tasks],
            scales=self.scales[tasks],
            onehot=onehot[:, images],
            weights=self.weights[tasks][:, images],
        )

    def targets(self, tasks: Tensor) -> Tensor:
        """(p, n, c) targets of the given `tasks` (p,); (1, n, c) where they are the same for all."""
        return (self.onehot[tasks] if len(self.onehot) > 1 else self.onehot).to(self.dtype)

    def count_together(self, memory: int = MEMORY) -> int:
        """How many heads fit into so many bytes at a time."""
        weights = self.features.shape[1] * self.columns
        logits = len(self) * self.onehot.shape[2]
        bytes_per_head = (_COPIES_OF_WEIGHTS * weights + _COPIES_OF_LOGITS * logits) * self.dtype.itemsize
        return max(1, memory // bytes_per_head)

    def chunks(self) -> Iterator[tuple[slice, Tensor]]:
        """Slices of images with their features, measured from the centre."""
        centre = self.centre.to(self.dtype)
        size = CHUNK[self.device_type]
        for start in range(0, len(self), size):
            rows = slice(start, start + size)
            yield rows, self.features[rows].to(self.dtype) - centre

    def logits(self, solution: Tensor, tasks: Tensor) -> Tensor:
        """(p, n, c) for (p, d + 1, columns) solutions of the given `tasks` (p,)."""
        weight, offset = _to_weights(solution, *self._measures(tasks, solution))
        values = torch.cat([_apply(x, weight, offset) for _, x in self.chunks()])
        return self._to_classes(values).transpose(0, 1)

    def losses(self, logits: Tensor, onehot: Tensor) -> Tensor:
        """Losses of (..., c) logits."""
        if self.is_multilabel:
            return (functional.softplus(logits, threshold=_EXACT) - logits * onehot).sum(-1)
        return -(logits.log_softmax(-1) * onehot).sum(-1)

    def solve(
        self, weights: Tensor, l2: Tensor, tasks: Tensor, *, biases: Tensor | None = None, **stop
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(p, d + 1, columns) solutions for p rows of image weights, penalties and tasks, losses, and who converged.

        All start at zero, or at the (p, columns) `biases`. `stop` are arguments of `lbfgs.minimise`. Whitened problems
        have the penalty that they were whitened for.
        """
        width = self.features.shape[1] + 1
        columns = self.columns
        l2 = l2.to(self.dtype) if self.factor is None else torch.ones_like(l2, dtype=self.dtype)
        weights = weights.T.to(self.dtype) / self.curvature
        onehot = self.onehot.transpose(0, 1).to(self.dtype)
        kept = list(self.chunks()) if len(self) <= _KEPT[self.device_type] else None
        selected: Tensor | None = None
        constants: tuple[Tensor, ...] = ()

        def loss_and_gradient(flat: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
            nonlocal selected, constants
            if selected is not numbers:  # the constants of these problems stay the same for many steps
                selected = numbers
                owners = tasks[numbers]
                scales, shifts = self._measures(owners, l2)
                lengths = scales[:, 0].square() / len(self)
                constants = (owners, l2[numbers, None, None], weights[:, numbers], scales, shifts, lengths)
            owners, penalty, shares, scales, shifts, lengths = constants
            w = flat.view(len(numbers), width, columns)
            weight, offset = _to_weights(w, scales, shifts)
            total = flat.new_zeros(len(numbers))
            slope = flat.new_zeros(width - 1, len(numbers) * columns)
            mass = flat.new_zeros(len(numbers), columns)
            for rows, x in kept or self.chunks():
                values = _apply(x, weight, offset)
                share = shares[rows]
                losses, residuals = self._slopes(values, onehot[rows], owners)
                total += (losses * share).sum(0)
                residuals *= share[..., None]
                mass += residuals.sum(0)
                if self.factor is not None:
                    values -= offset
                    excess = values * lengths
                    total.sub_((values * excess).sum((0, 2)), alpha=0.5)
                    residuals -= excess
                slope.addmm_(x.T, residuals.flatten(1))
            slope = slope.view(width - 1, len(numbers), columns).transpose(0, 1)
            gradient = torch.empty_like(w)
            torch.sub(slope, shifts.mT * mass[:, None, :], out=gradient[:, :-1])
            gradient[:, :-1].div_(scales).addcmul_(penalty, w[:, :-1])
            gradient[:, -1] = mass
            total.addcmul_(penalty[:, 0, 0], w[:, :-1].square().sum((1, 2)), value=0.5)
            return total, gradient.flatten(1)

        start = torch.zeros(len(l2), width, columns, dtype=self.dtype, device=self.features.device)
        if biases is not None:
            start[:, -1] = biases.to(start)
        if self.factor is not None:
            stop.setdefault("history", _WHITENED_HISTORY)
        solution, loss, converged = minimise(loss_and_gradient, start.flatten(1), **stop)
        return solution.view(len(l2), width, columns), loss * self.curvature, converged

    def to_heads(self, solution: Tensor, tasks: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (p, c, d) and biases (p, c) of (p, d + 1, columns) solutions on the features from the centre."""
        weight, offset = _to_weights(solution, *self._measures(tasks, solution))
        if self.factor is not None:
            weight = torch.linalg.solve_triangular(self.factor.T, weight, upper=True)
        weight = self._to_classes(weight.unflatten(1, offset.shape))
        return weight.permute(1, 2, 0).contiguous(), self._to_classes(offset)

    def _measures(self, tasks: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """(p, 1, 1) scales and (p, 1, d) shifts of the given `tasks` (p,), in the precision of `like`."""
        return self.scales[tasks].to(like)[:, None, None], self.shifts[tasks].to(like)[:, None]

    def _to_classes(self, values: Tensor) -> Tensor:
        """(..., c) logits of (..., columns) values: two of opposite sign where one column stands for two classes."""
        if self.is_multilabel or self.onehot.shape[2] != 2:
            return values
        return torch.cat([-values, values], dim=-1) / _ROOT_TWO

    def _slopes(self, values: Tensor, onehot: Tensor, tasks: Tensor) -> tuple[Tensor, Tensor]:
        """(n, p) losses of (n, p, columns) values, and their derivatives."""
        targets = onehot[:, tasks] if onehot.shape[1] > 1 else onehot
        if self.is_multilabel:
            return (functional.softplus(values, threshold=_EXACT) - values * targets).sum(2), values.sigmoid() - targets
        if self.columns > 1:
            log_p = values.log_softmax(2)
            return -(log_p * targets).sum(2), log_p.exp() - targets
        gap = values[..., 0] * _ROOT_TWO
        is_second = targets[..., 1]
        losses = functional.softplus(gap, threshold=_EXACT) - gap * is_second
        return losses, ((gap.sigmoid() - is_second) * _ROOT_TWO)[..., None]


def make_problem(features: Tensor, onehot: Tensor, weights: Tensor, *, is_multilabel: bool) -> Problem:
    """The problem of tasks with these (tasks, n) weights; means and scales are float64, computed chunk by chunk.

    Images of weight zero have no part in the mean and scale of a task.
    """
    size = CHUNK["cpu"]
    centre = torch.stack([x.double().sum(0) for x in features.split(size)]).sum(0) / len(features)
    means = torch.zeros_like(centre).repeat(len(weights), 1)
    squares = 0
    lengths = 0
    for x, w in zip(features.split(size), weights.split(size, dim=1), strict=True):
        lengths = lengths + w @ x.double().square().sum(1)
        x = x.double() - centre
        means += w @ x
        squares = squares + w @ x.square().sum(1)
    spread = (squares - means.square().sum(1)).clamp_min(0).sqrt()
    scales = torch.maximum(spread, _MIN_SPREAD * torch.as_tensor(lengths).sqrt()).clamp_min(1e-12)
    return Problem(features, centre, means, scales, onehot, weights, is_multilabel)


def compress(problem: Problem) -> tuple[Problem, Tensor | None]:
    """The problem in coordinates of the span of the features, where that is smaller, and the basis of the span.

    The penalised optimum is a combination of the images, so nothing outside their span is ever used.
    """
    if len(problem) > 0.7 * problem.features.shape[1] or len(problem) > _MAX_COMPRESSED:
        return problem, None
    basis, upper = torch.linalg.qr((problem.features.double() - problem.centre).T)
    inside = problem.shifts @ basis
    return replace(problem, features=upper.T.contiguous(), centre=torch.zeros_like(upper[:, 0]), shifts=inside), basis


def whiten(problem: Problem, l2: float) -> Problem:
    """The problem in coordinates in which the solver takes few steps, for the penalty `l2` (see the module).

    The problem stays as it is where whitening takes too much memory, would be lost in rounding, or saves no time. The
    choice does not depend on the tasks, so they take the same steps together and alone.
    """
    count, width = problem.features.shape
    classes = 2 if problem.is_multilabel else problem.onehot.shape[2]
    curvature = _CURVATURE / (4 if problem.is_multilabel else classes)
    is_useless = count < MIN_IMAGES_PER_CLASS * classes or l2 < _MIN_PENALTY * curvature
    is_slow = count * width**2 > _MAX_PRODUCTS and width > _MAX_FEATURES_PER_COLUMN * problem.columns
    is_large = max(count, width) * width * 8 > MEMORY // 2
    if is_useless or is_large or (is_slow and problem.device_type == "cpu"):
        return problem
    x = problem.features.double() - problem.centre
    spread = x.square().sum().div(count).clamp_min(1e-24)
    moment = x.T @ x / count
    moment.diagonal().add_(spread * l2 / curvature)
    factor = torch.linalg.cholesky(moment)
    x, shifts = (torch.linalg.solve_triangular(factor.T, a, upper=True, left=False) for a in (x, problem.shifts))
    return replace(
        problem,
        features=x,
        centre=torch.zeros_like(problem.centre),
        shifts=shifts,
        scales=problem.scales / spread.sqrt(),
        factor=factor,
        curvature=curvature,
    )


def _to_weights(solution: Tensor, scales: Tensor, shifts: Tensor) -> tuple[Tensor, Tensor]:
    """(d, p * columns) weights and (p, columns) offsets that act on the features from the centre."""
    weight = solution[:, :-1] / scales
    offset = torch.baddbmm(solution[:, -1:], shifts, weight, alpha=-1)[:, 0]
    return weight.transpose(0, 1).flatten(1), offset


def _apply(x: Tensor, weight: Tensor, offset: Tensor) -> Tensor:
    """(n, p, columns) values of the heads."""
    return torch.addmm(offset.flatten(), x, weight).view(len(x), *offset.shape)
