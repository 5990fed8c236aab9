"""Full-batch L-BFGS on many convex problems at once.

Cross-validation fits one head per fold on the same features, and tasks on the same images fit theirs together: a few
large matrix products per step instead of many small ones, on a CPU and on a GPU alike. Every problem keeps its own
history, step length and end, so that it takes the steps that it would take alone; once enough of them have converged,
the others go on without them.

A step is a hundred small operations, which take Python five times as long to start as a GPU to run. So on a GPU most of
them are two kernels (`kernels`), which change the state in place, and whole steps are replayed from a CUDA graph.
"""

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch import Tensor

# Points (k, d) of the problems with the given numbers (k,) become losses (k,) and gradients (k, d). As long as it is
# called for the same problems, the numbers are the very same tensor.
LossAndGradient = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

_ARMIJO = 1e-4
HISTORY = 10
_TINY = torch.finfo(torch.float32).tiny  # a divisor for what is thrown away afterwards
_MIN_STEP = 2.0**-30  # a problem whose step would be shorter stays where it is
# Problems that are done are dropped when they are this share of all; recorded ones, only if all are at least so large.
_DROPPED_SHARE = 0.25
_MIN_DROPPED_SIZE = 1 << 20
# Longer problems keep a GPU busy with torch's operations; one kernel program per problem would take too long.
_MAX_RECORDED_LENGTH = 1 << 15
# Steps that a GPU replays before the host reads which problems are done, which makes it wait.
_REPLAYS_PER_CHECK = 4


def minimise(
    loss_and_gradient: LossAndGradient, start: Tensor, *, tolerance: float, max_steps: int, history: int = HISTORY
) -> tuple[Tensor, Tensor, Tensor]:
    """The minimisers (p, d) of p problems from `start`, their losses, and whether each gradient fell below `tolerance`.

    `loss_and_gradient` is called for some of the problems, by their numbers. The tolerance is on the length of the
    gradient as a part of that at the start: turned coordinates and other units change nothing. Backtracking keeps every
    step a decrease; for convex problems the curvature condition then holds by itself. `history` steps, at least two,
    make up the inverse Hessian.
    """
    points = torch.empty_like(start)
    losses = start.new_empty(len(start))
    converged = torch.empty_like(losses, dtype=torch.bool)
    is_recorded = start.is_cuda and start.shape[1] <= _MAX_RECORDED_LENGTH and _load_kernels() is not None
    run = (_RecordedRun if is_recorded else _Run)(
        loss_and_gradient, start, tolerance=tolerance, max_steps=max_steps, history=history
    )

    def store(rows: Tensor | slice) -> None:
        numbers = run.numbers[rows]
        points[numbers] = run.point[rows]
        losses[numbers] = run.loss[rows]
        converged[numbers] = run.is_flat()[rows]

    while not bool((done := run.done.cpu()).all()):
        if int(done.sum()) >= run.dropped:
            store(run.done)
            run.keep(torch.nonzero(~done).flatten().to(start.device))
        run.go_on()
    store(slice(None))
    return points, losses, converged


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
        return cls(step * ((moved > 0) / moved.clamp_min(_TINY))[:, None], change, moved)


class _Run:
    """Problems that are solved together.

    Attributes:
        numbers: (p,) their numbers.
        point, loss, gradient: where each is.
        limits: lengths of their gradients at which they are done.
        length: (p,) the part of the step that is tried next.
        left: (p,) how many more steps each may take.
        done: (p,) which have ended, and stay where they are.
        steps: the last steps of each, the latest at the end.
    """

    def __init__(self, objective: LossAndGradient, start: Tensor, *, tolerance: float, max_steps: int, history: int):
        self.objective = objective
        self.history = history
        self.numbers = torch.arange(len(start), device=start.device)
        self.point = start.clone()
        self.loss, self.gradient = objective(self.point, self.numbers)
        self.limits = tolerance * self.gradient.norm(dim=1).clamp_min(1e-6)
        self.length = torch.ones_like(self.loss)
        self.left = torch.full_like(self.numbers, max_steps)
        self.done = self.is_flat() | (self.left == 0)
        self.steps: list[_Step] = []

    @property
    def dropped(self) -> float:
        """How many problems must be done before they are dropped."""
        return max(1, _DROPPED_SHARE * len(self.numbers))

    def is_flat(self) -> Tensor:
        """(p,) whose gradient is small enough."""
        return self.gradient.norm(dim=1) <= self.limits

    def keep(self, rows: Tensor) -> None:
        """Drops all problems but these."""
        for name in ("numbers", "point", "loss", "gradient", "limits", "length", "left", "done"):
            setattr(self, name, getattr(self, name)[rows])
        self.steps = [_Step(*(values[rows] for values in step)) for step in self.steps]

    def go_on(self) -> None:
        """Takes one step or more."""
        self.step()

    def step(self) -> None:
        """Tries a step of each problem; if the loss does not fall by enough, the next one is half as long."""
        direction = -_apply_inverse_hessian(self.gradient, self.steps)
        slope = (direction * self.gradient).sum(1)
        trial = torch.addcmul(self.point, direction, self.length[:, None])
        loss, gradient = self.objective(trial, self.numbers)
        enough = torch.addcmul(self.loss, slope, self.length, value=_ARMIJO)
        moves = (loss - enough <= 0) & (slope < 0) & ~self.done  # false where the difference is NaN
        stays = (trial == self.point).all(1)
        step = _Step.between((self.point, trial), (self.gradient, gradient))
        if bool(moves.all()):  # as nearly always
            self.point = trial
            self.loss = loss
            self.gradient = gradient
            self.steps = [*self.steps[-(self.history - 1) :], step]
        else:
            _overwrite((self.point, self.loss, self.gradient), (trial, loss, gradient), moves)
            if len(self.steps) < self.history:  # steps of zeros are passed over
                self.steps = [_Step(*map(torch.zeros_like, step)), *self.steps]
            for kept, later in zip(self.steps, [*self.steps[1:], step], strict=True):
                _overwrite(kept, later, moves)
        self.left.sub_(moves.to(self.left))
        torch.where(moves, torch.ones_like(self.length), self.length / 2, out=self.length)
        self.done |= (moves & (self.is_flat() | stays | (self.left == 0))) | (self.length <= _MIN_STEP)


class _History(NamedTuple):
    """The last h steps as `_Step` has them, (h, p, d), (h, p, d) and (h, p), and the place of the latest (p,)."""

    scaled: Tensor
    change: Tensor
    moved: Tensor
    newest: Tensor


class _RecordedRun(_Run):
    """Problems on a GPU: a step is a few kernels that work in place, replayed from a CUDA graph."""

    def __init__(self, objective: LossAndGradient, start: Tensor, *, history: int, **ends: Any):
        super().__init__(objective, start, history=history, **ends)
        self.point = self.point.contiguous()
        self.gradient = self.gradient.contiguous()  # as the kernels read them
        scaled, change = torch.zeros(2, history, *start.shape, dtype=start.dtype, device=start.device)
        self.last = _History(scaled, change, torch.zeros_like(scaled[..., 0]), torch.zeros_like(self.numbers))
        self.graph: torch.cuda.CUDAGraph | None = None
        self.is_recordable = self.point.is_cuda

    @property
    def dropped(self) -> float:
        """As of `_Run`; a new recording only pays for large problems."""
        return torch.inf if self.point.numel() < _MIN_DROPPED_SIZE else len(self.numbers) / 2

    def keep(self, rows: Tensor) -> None:
        """Drops all problems but these."""
        super().keep(rows)
        *steps, newest = self.last
        self.last = _History(*(values[:, rows] for values in steps), newest[rows])
        self.graph = None

    def go_on(self) -> None:
        """Takes one step, or some from the recording."""
        if self.graph is None:
            self._record() if self.is_recordable else self.step()
            return
        for _ in range(_REPLAYS_PER_CHECK):
            self.graph.replay()

    def step(self) -> None:
        """The step of `_Run`, as two kernels around the objective."""
        kernels = _load_kernels()
        trial, slope, stays = kernels.propose(self.gradient, self.point, self.last, self.length)
        loss, gradient = self.objective(trial, self.numbers)
        ends = self.length, self.left, self.done.view(torch.int8), self.limits
        tried = trial, loss, gradient.contiguous(), slope, stays
        at = self.point, self.loss, self.gradient
        kernels.accept(tried, at, self.last, ends, armijo=_ARMIJO, shortest=_MIN_STEP)

    def _record(self) -> None:
        """Takes a step and records the next ones, if possible, on a stream beside the usual one.

        `torch.cuda.graph` would release all unused memory each time, which takes longer than many steps. Nothing else
        releases the memory of old recordings, so it is done here when memory runs short.
        """
        device = self.point.device
        free, total = torch.cuda.mem_get_info(device)
        if free < total / 2:
            torch.cuda.empty_cache()
        usual = torch.cuda.current_stream(device)
        side = _open_stream(get_ident(), device)
        side.wait_stream(usual)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(side):
            self.step()
            side.synchronize()
            try:
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    self.step()
                finally:
                    graph.capture_end()
                self.graph = graph
            except torch.cuda.OutOfMemoryError:
                raise
            except RuntimeError:  # an operation that a graph cannot hold: slower, not wrong
                self.is_recordable = False
        usual.wait_stream(side)


@cache
def _load_kernels() -> Any:
    """The module of Triton kernels; None without Triton, or where it cannot compile: it needs a C compiler."""
    zeros = torch.zeros(1, 1, 1, device="cuda" if torch.cuda.is_available() else "cpu")
    try:
        from task2vec.head import kernels

        kernels.propose(zeros[0], zeros[0], _History(zeros, zeros, zeros[0], zeros[0, 0].long()), zeros[0, 0])
    except Exception:  # Triton's own kinds are many
        return None
    return kernels


@lru_cache(maxsize=64)
def _open_stream(thread: int, device: torch.device) -> torch.cuda.Stream:
    """The stream for the recordings of a thread: every stream ever used keeps a workspace for matrix products."""
    return torch.cuda.Stream(device)


def _overwrite(old: Sequence[Tensor], new: Sequence[Tensor], rows: Tensor) -> None:
    """Overwrites the given rows (p,) of old tensors by those of new ones."""
    for values, replacement in zip(old, new, strict=True):
        torch.where(rows.view(-1, *[1] * (values.ndim - 1)), replacement, values, out=values)


def _apply_inverse_hessian(gradient: Tensor, steps: list[_Step]) -> Tensor:
    """The two-loop recursion, row by row.

    A compact form would take fewer products, but rounding errors would grow from step to step, and problems would end
    elsewhere together than alone.
    """
    q = gradient
    alphas = []
    for scaled, change, _ in reversed(steps):
        alphas.append((scaled * q).sum(1))
        q = torch.addcmul(q, alphas[-1][:, None], change, value=-1)
    if steps:
        _, change, moved = steps[-1]
        scale = moved / change.square().sum(1).clamp_min(_TINY)
        q = q * torch.where(scale > 0, scale, torch.ones_like(scale))[:, None]
    for (scaled, change, moved), alpha in zip(steps, reversed(alphas), strict=True):
        excess = torch.addcmul((change * q).sum(1), alpha, moved, value=-1)
        q = torch.addcmul(q, excess[:, None], scaled, value=-1)
    return q
