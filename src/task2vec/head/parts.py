"""One task on common features, and many parts of its images to train on: seeds and sizes of splits, fitted together.

Every part has its own mean, unit, folds, penalty and head, as if its images were all there are: an image outside of it
weighs nothing, so nothing of it is learned. Folds, penalties and the heads of all penalties on the whole part are
problems of one call of the solver, since its steps cost a GPU the same for one problem and for hundreds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from task2vec.head.cross_validation import FOLDS, find_judged, spread_folds
from task2vec.head.linear import compress, image_weights, measure_features
from task2vec.head.problem import Problem

# Between two decades the error of a head hardly moves.
DECADES = tuple(10.0**e for e in (-6, -5, -4, -3, -2, -1, 0))
TOLERANCE, MAX_STEPS = 1e-3, 200
# Ten steps would save a tenth of the steps, and cost a half more of the time of each on a GPU.
_HISTORY = 4
# Parts share a call as long as a pass over their images takes no more products than this: each part then reads the
# images of all, which is only worth while where starting the work costs more than doing it.
_CHEAP = {"cpu": 1 << 26, "cuda": 1 << 33}
# Bytes that the heads of one call may take: the solver keeps some copies of all weights, a pass some of all logits.
_ROOM = 1 << 29
_COPIES_OF_WEIGHTS, _COPIES_OF_LOGITS = 25, 8
_LEAST_ROOM = 1 << 20

# Logits of all images, penalties, held-out losses, and who converged.
_Found = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Parts:
    """Parts of a task's images, and all of them that does not depend on features.

    Attributes:
        train: (m, n) which images each part has.
        onehot: (n, c) one-hot or 0/1 targets.
        weights: (m, n) what each image counts in each part; nothing outside of it.
        folds: (m, n) the fold of each image within each part; -1 outside of it.
        is_judged: (m, n) which images say something about penalties.
        is_multilabel: whether classes are independent attributes.
    """

    train: np.ndarray
    onehot: Tensor
    weights: Tensor
    folds: Tensor
    is_judged: Tensor
    is_multilabel: bool

    def __len__(self) -> int:
        """Number of parts."""
        return len(self.train)

    def to(self, device: torch.device | str) -> "Parts":
        """The same, where the features are."""
        names = ("onehot", "weights", "folds", "is_judged")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def only(self, some: Sequence[int]) -> "Parts":
        """Some of the parts."""
        rows = list(some)
        tables = {name: getattr(self, name)[rows] for name in ("weights", "folds", "is_judged")}
        return replace(self, train=self.train[rows], **tables)


@dataclass(frozen=True)
class PartHeads:
    """What the heads of all parts say.

    Attributes:
        logits: (m, n, c) of all images, those outside of the part included.
        l2: (m,) the penalties that were chosen.
        cv_losses: (m,) held-out losses within the part; NaN where nothing could be told.
        has_converged: (m,).
    """

    logits: Tensor
    l2: Tensor
    cv_losses: Tensor
    has_converged: Tensor


def divide(targets: Tensor, train: np.ndarray, *, classes: int, balance: bool = True) -> Parts:
    """The parts of a task with (n,) class indices or (n, c) zeros and ones, one for each row of `train` (m, n).

    Example:
        >>> parts = divide(torch.tensor([0, 0, 1, 1]), np.array([[True, True, True, False]]), classes=2)
        >>> parts.weights.tolist()
        [[0.25, 0.25, 0.5, 0.0]]
    """
    is_multilabel = targets.ndim == 2
    onehot = targets.double() if is_multilabel else functional.one_hot(targets, classes).double()
    weights = torch.zeros(train.shape, dtype=torch.float64)
    folds = torch.full(train.shape, -1)
    is_judged = torch.zeros(train.shape, dtype=torch.bool)
    for part, mask in enumerate(train):
        rows = torch.from_numpy(np.flatnonzero(mask))
        own = onehot[rows]
        weights[part, rows] = image_weights(own, is_multilabel=is_multilabel, balance=balance)
        # As for a task that has these images alone: attributes have no order, classes are spread evenly.
        order = torch.arange(len(rows)) if is_multilabel else torch.argsort(own.argmax(1), stable=True)
        fold = spread_folds(order, FOLDS)
        folds[part, rows] = fold
        is_judged[part, rows] = torch.ones_like(fold, dtype=torch.bool) if is_multilabel else find_judged(own, fold)
    return Parts(train, onehot, weights, folds, is_judged, is_multilabel)


def fit_parts(
    features: Tensor,
    parts: Parts,
    *,
    grid: tuple[float, ...] = DECADES,
    dtype: torch.dtype = torch.float32,
    tolerance: float = TOLERANCE,
    max_steps: int = MAX_STEPS,
) -> PartHeads:
    """The heads of all `parts` on (n, d) `features`, each with the penalty of `grid` that its own folds prefer.

    `parts` lie where the features are. The tolerance is on the length of the gradient, as a part of that at the start.
    """
    whole = measure_features(features, parts.onehot[None], parts.weights, is_multilabel=parts.is_multilabel)
    if not features.is_cuda:  # a GPU takes longer to find the span than it saves
        whole, _ = compress(whole)
    whole = replace(whole, dtype=dtype)
    ending = {"tolerance": tolerance, "max_steps": max_steps, "is_relative": True, "history": _HISTORY}
    room = torch.cuda.get_device_properties(features.device).total_memory // 8 if features.is_cuda else _ROOM
    groups = _gather(whole, parts, (FOLDS + 1) * len(grid))
    found = [_fit_within(_Some(whole, parts, some, grid, ending), room) for some in groups]
    return PartHeads(*(torch.cat(columns) for columns in zip(*found, strict=True)))


def _fit_within(some: "_Some", room: int) -> _Found:
    """What is found, in smaller portions if a GPU has not enough memory."""
    while True:
        try:
            return some.fit(room)
        except torch.cuda.OutOfMemoryError:
            if room < _LEAST_ROOM:
                raise
        torch.cuda.empty_cache()
        room //= 4


def _gather(whole: Problem, parts: Parts, problems: int) -> Iterator[list[int]]:
    """Parts that are fitted together, `problems` for each, in their order."""
    cost = problems * whole.columns * whole.features.shape[1]
    group: list[int] = []
    is_read = np.zeros(parts.train.shape[1], dtype=bool)
    for part, mask in enumerate(parts.train):
        if group and (len(group) + 1) * (is_read | mask).sum() * cost > _CHEAP[whole.kind]:
            yield group
            group, is_read = [], np.zeros_like(is_read)
        group.append(part)
        is_read |= mask
    yield group


class _Some:
    """Parts on their way to heads: the problem on their images alone, and what is found."""

    def __init__(self, whole: Problem, parts: Parts, some: list[int], grid: tuple[float, ...], ending: dict):
        device = whole.features.device
        self.whole, self.ending = whole, ending
        self.numbers = torch.tensor(some, device=device)
        rows = torch.from_numpy(np.flatnonzero(parts.train[some].any(0))).to(device)
        weights, folds, is_judged = (
            table[self.numbers][:, rows] for table in (whole.weights, parts.folds, parts.is_judged)
        )
        self.problem = replace(
            whole,
            features=whole.features[rows],
            onehot=whole.onehot[:, rows],
            weights=weights,
            shifts=whole.shifts[self.numbers],
            scales=whole.scales[self.numbers],
        )
        self.folds, self.judging = folds, weights * is_judged
        self.grid = torch.tensor(grid, dtype=torch.float64, device=device)

    def fit(self, room: int) -> _Found:
        """Logits of all images, penalties, held-out losses, and who converged, in `room` bytes at a time."""
        count, device = len(self.numbers), self.grid.device
        steps = (torch.arange(size, device=device) for size in (count, FOLDS + 1, len(self.grid)))
        # The last "fold" holds nothing out: its heads are those that are wanted in the end.
        jobs = torch.cartesian_prod(*steps)
        losses = torch.zeros(count * len(self.grid), dtype=torch.float64, device=device)
        heads, converged = [], []
        for some in jobs.split(self._count_together(room)):
            owners, held, chosen = some.T
            is_out = self.folds[owners] == held[:, None]
            solution, is_done = self._solve(owners, is_out, chosen)
            missed = self.problem.losses(self.problem.logits(solution, owners), self.problem.onehot.to(solution))
            losses.index_add_(0, owners * len(self.grid) + chosen, (missed * is_out * self.judging[owners]).sum(1))
            is_whole = held == FOLDS
            heads.append(solution[is_whole])
            converged.append(is_done[is_whole])
        shape = (count, len(self.grid))
        losses = losses.view(shape) / self.judging.sum(1, keepdim=True)
        # Where nothing can be told, nothing speaks for any structure, so the least is assumed.
        best = torch.where(losses.isnan().any(1), len(self.grid) - 1, losses.nan_to_num().argmin(1))
        each = torch.arange(count, device=device)
        head = torch.cat(heads).unflatten(0, shape)[each, best]
        is_done = torch.cat(converged).view(shape)[each, best]
        return self.whole.logits(head, self.numbers), self.grid[best], losses[each, best], is_done

    def _solve(self, owners: Tensor, is_out: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """The heads without what is held out, and who converged."""
        train = self.problem.weights[owners] * ~is_out
        train /= train.sum(1, keepdim=True).clamp_min(1e-12)
        biases = None
        if self.problem.is_multilabel:  # from where they would be without features: rare attributes are far from zero
            least = 0.5 / (train > 0).sum(1, keepdim=True).clamp_min(1)
            biases = torch.clamp(train @ self.problem.onehot[0], least, 1 - least).logit()
        solution, _, is_done = self.problem.solve(train, self.grid[chosen], owners, biases=biases, **self.ending)
        return solution, is_done

    def _count_together(self, room: int) -> int:
        """How many heads are fitted at a time."""
        problem = self.problem
        weights, logits = problem.features.shape[1] * problem.columns, len(problem) * problem.onehot.shape[2]
        each = (_COPIES_OF_WEIGHTS * weights + _COPIES_OF_LOGITS * logits) * problem.dtype.itemsize
        return max(1, room // each)
