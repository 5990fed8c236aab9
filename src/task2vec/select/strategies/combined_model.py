"""A model of errors that learns from similar tasks as far as they are similar, and knows how little it knows.

On a scale y on which errors differ by factors (`scale_errors`), for task t and expert e,

    y_te = hard_t + drift_te · slope + good_e + suit_e(t) + noise_te

- hard_t: how hard the task is: a constant, its classes, its dataset, what similar tasks have in common, and its own;
- drift_te: what was measured about the pair: whether the expert has seen the task, and its transferability score;
- good_e: the static effect of the expert, and suit_e(t): where it is better than usual, alike for similar tasks:
  a Gaussian process with the covariance exp(-distance / width), the same for all experts but independent;
- noise_te: the spread over seeds, which is known, and a rest; cells whose expert has seen the task have one of their
  own: they tell something, but less, and how much less is learned.

All of it is Gaussian, so errors, intervals and chances follow exactly once the eight scales (variances and a width) are
known. Those are the most probable ones under weak priors, whose centres were set with our own meta-task in sight.
Far from all known tasks suit_e has the mean zero: what is left is static.
Given hard_t and the slopes, experts are independent: every matrix has the size of the tasks, and nothing of tasks times
experts is ever formed.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.linalg import get_lapack_funcs
from scipy.optimize import minimize

# Errors this small are told from none by luck: a few images of a small test set.
_OFFSET = 0.03
# Scales are learned on no more experts than this; all others are predicted with them.
_MOST = 24
# Variances of what scales have no say in: the level of all errors, their slope by log classes, slopes by drifts.
_LEVEL, _CLASSES, _SLOPES = 4.0, 0.1, 1.0
# Where scales start and are drawn to, and by how much (standard deviation of their logarithms): good, rest, own, near,
# seen, dataset, suit, and width in parts of the median distance.
_STARTS = np.log([0.03, 0.005, 0.02, 0.2, 0.5, 0.3, 0.05, 2.0])
_SPREADS = np.array([1.5, 1.5, 1.5, 1.5, 1.5, 0.7, 1.5, 1.0])
_FINEST = 1e-5
# LAPACK's Cholesky factor of a matrix, and the inverse of the matrix from it.
_factor, _invert_factor = get_lapack_funcs(("potrf", "potri"), dtype=np.float64)


def scale_errors(errors: np.ndarray) -> np.ndarray:
    """Errors on the scale of the model: log(error + 0.03), on which tasks of any difficulty have alike differences."""
    return np.log(errors + _OFFSET)


def unscale(values: np.ndarray) -> np.ndarray:
    """Back to errors, between 0 and 1."""
    return np.clip(np.exp(np.minimum(values, 1.0)) - _OFFSET, 0, 1)


@dataclass(frozen=True, eq=False)
class Cells:
    """What is known of T tasks and E experts.

    Attributes:
        values: (T, E) errors on the model's scale; anything where not known.
        known: (T, E) whether there is one.
        seen: (T, E) whether the expert has seen the task.
        noise: (T) variance of a value by seeds.
        distances: (T, T) infinite where not known.
        classes: (T) logarithm of their number, centred.
        groups: (T) number of the dataset.
        drifts: (E, T, D).
    """

    values: np.ndarray
    known: np.ndarray
    seen: np.ndarray
    noise: np.ndarray
    distances: np.ndarray
    classes: np.ndarray
    groups: np.ndarray
    drifts: np.ndarray

    @cached_property
    def masked(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(E, T) values, (E, T) whether known, (E, T, D) drifts, with zeros where nothing is known."""
        known = self.known.T.astype(np.float64)
        return np.where(self.known, self.values, 0).T, known, self.drifts * known[:, :, None]

    @cached_property
    def patterns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(P, T) whether known, (P, T) whether known and seen, of experts that are alike in both, and (E) which."""
        patterns, which = np.unique(np.stack([self.known, self.seen & self.known]), axis=2, return_inverse=True)
        known, seen = patterns.transpose(0, 2, 1).astype(np.float64)
        return known, seen, which.reshape(-1)

    @cached_property
    def is_same(self) -> np.ndarray:
        """(T, T) whether two tasks are of one dataset."""
        return (self.groups[:, None] == self.groups).astype(np.float64)

    def thin(self, most: int) -> "Cells":
        """The same with fewer experts, evenly taken from those that are known at all."""
        columns = np.flatnonzero(self.known.any(0))
        columns = columns[np.unique(np.linspace(0, len(columns) - 1, most).astype(int))]
        parts = {name: getattr(self, name)[:, columns] for name in ("values", "known", "seen")}
        return replace(self, **parts, drifts=self.drifts[columns])


@dataclass(frozen=True, eq=False)
class Scales:
    """Variances by what they belong to, and how far similarity reaches."""

    good: float
    rest: float
    own: float
    near: float
    seen: float
    dataset: float
    suit: float
    width: float


@dataclass(frozen=True, eq=False)
class Likeness:
    """(T, T) covariance of tasks by distance, lifted so that it is one.

    A distance need not be Euclidean, and then exp(-distance / width) can have eigenvalues below zero. Raising the
    diagonal by the lowest mends that: each task has something of its own.
    """

    raw: np.ndarray
    lift: float
    lowest: np.ndarray

    def pull(self, change: np.ndarray) -> np.ndarray:
        """The change of the lifted matrix, from that of the raw one."""
        moved = -self.lowest @ change @ self.lowest if self.lift > 0 else 0.0
        return change + moved * np.eye(len(change))

    @cached_property
    def whole(self) -> np.ndarray:
        """The lifted matrix."""
        return self.raw + self.lift * np.eye(len(self.raw))


def liken(distances: np.ndarray, width: float) -> Likeness:
    """The covariance of tasks at these distances."""
    raw = np.exp(-distances / width)
    values, vectors = np.linalg.eigh(raw)
    return Likeness(raw, max(0.0, -float(values[0])), vectors[:, 0])


@dataclass(frozen=True, eq=False)
class Solution:
    """The model solved for some scales: all that predictions and the likelihood need.

    Attributes:
        inverses: (E, T, T) of the covariances of good_e + suit_e + noise; zero where nothing is known.
        pulled: (E, T, D) they times the drifts.
        shared: (T + D) posterior means of hard_t and the slopes.
        spread: (T + D, T + D) their posterior covariance.
        precision: (T + D, T + D) inverse of their prior covariance.
        weights: (E, T) inverses times what shared effects leave.
        cost: minus the log likelihood, up to a constant.
    """

    inverses: np.ndarray
    pulled: np.ndarray
    shared: np.ndarray
    spread: np.ndarray
    precision: np.ndarray
    weights: np.ndarray
    cost: float


def solve(cells: Cells, scales: Scales, likeness: Likeness) -> Solution:
    """Posterior of the shared effects, experts integrated out one by one."""
    values, known, drifts = cells.masked
    tasks, count = len(cells.noise), drifts.shape[2]
    inverses, logdet = _invert(cells, scales, likeness)
    pulled = inverses @ drifts
    crossed = pulled.sum(0)
    slopes = np.einsum("etd,etf->df", drifts, pulled)
    information = np.block([[inverses.sum(0), crossed], [crossed.T, slopes]])
    prior = np.zeros((tasks + count, tasks + count))
    prior[:tasks, :tasks] = spread_hardness(cells, scales, likeness)
    prior[tasks:, tasks:] = _SLOPES * np.eye(count)
    (precision,), logdet_prior = _invert_all(prior[None])
    (spread,), logdet_posterior = _invert_all((precision + information)[None])
    told = np.einsum("eij,ej->ei", inverses, values)
    evidence = np.concatenate([told.sum(0), np.einsum("etd,et->d", drifts, told)])
    shared = spread @ evidence
    left = values - known * (shared[:tasks] + drifts @ shared[tasks:])
    logdet += float(logdet_prior[0] + logdet_posterior[0])
    cost = 0.5 * (logdet + float((values * told).sum() - evidence @ shared))
    return Solution(inverses, pulled, shared, spread, precision, np.einsum("eij,ej->ei", inverses, left), cost)


def spread_hardness(cells: Cells, scales: Scales, likeness: Likeness) -> np.ndarray:
    """(T, T) prior covariance of how hard tasks are."""
    by_classes = _LEVEL + _CLASSES * np.outer(cells.classes, cells.classes)
    own = scales.own * np.eye(len(cells.classes))
    return by_classes + own + scales.near * likeness.whole + scales.dataset * cells.is_same


def place_hardness(
    cells: Cells, scales: Scales, *, classes: float, near: np.ndarray, is_same: np.ndarray
) -> tuple[np.ndarray, float]:
    """(T) prior covariances of how hard a new task is with those of the known ones, and its variance."""
    crossed = _LEVEL + _CLASSES * classes * cells.classes + scales.near * near + scales.dataset * is_same
    return crossed, _LEVEL + _CLASSES * classes**2 + scales.own + scales.near + scales.dataset


def _invert(cells: Cells, scales: Scales, likeness: Likeness) -> tuple[np.ndarray, float]:
    """Inverse covariances of all experts, and the sum of the log determinants; once for those with the same cells."""
    known, seen, which = cells.patterns
    whole = scales.good + scales.suit * likeness.whole + np.diag(scales.rest + cells.noise)
    matrices = whole * known[:, :, None] * known[:, None, :]
    diagonal = np.arange(len(whole))
    matrices[:, diagonal, diagonal] += 1 - known + scales.seen * seen
    inverses, logdets = _invert_all(matrices)
    inverses[:, diagonal, diagonal] -= 1 - known
    return inverses[which], float(logdets[which].sum())


def _invert_all(matrices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(N, T, T) inverses of covariances, and (N) log determinants: by Cholesky, in half the time of `inv`."""
    inverses, roots = np.empty_like(matrices), np.empty(matrices.shape[:2])
    for number, matrix in enumerate(matrices):
        lower, failed = _factor(matrix, lower=True)
        if failed:
            raise np.linalg.LinAlgError("a covariance of the combined model is not positive definite")
        roots[number] = lower.diagonal()
        inverses[number], _ = _invert_factor(lower, lower=True)  # of which the other half is zero
    inverses += inverses.transpose(0, 2, 1).copy()
    diagonal = np.arange(matrices.shape[1])
    inverses[:, diagonal, diagonal] /= 2
    return inverses, 2 * np.log(roots).sum(1)


def weigh_scales(logs: np.ndarray, cells: Cells, median: float) -> tuple[float, np.ndarray]:
    """Minus the log posterior of the scales' logarithms, and its gradient."""
    scales = _name_scales(logs, median)
    likeness = liken(cells.distances, scales.width)
    solution = solve(cells, scales, likeness)
    tasks = len(cells.noise)
    both = np.concatenate([solution.inverses, solution.pulled], axis=2)
    taken = both @ solution.spread
    # Derivatives of the cost by the covariance of an expert's cells, summed over experts, and by that of hard_t.
    by_cells = solution.inverses.sum(0) - np.tensordot(taken, both, axes=([0, 2], [0, 2]))
    by_cells = 0.5 * (by_cells - solution.weights.T @ solution.weights)
    own = np.einsum("eii->ei", solution.inverses) - (taken * both).sum(2)
    by_seen = 0.5 * ((own - solution.weights**2) * (cells.seen & cells.known).T).sum()
    prior = solution.precision @ solution.shared
    by_hard = solution.precision - solution.precision @ solution.spread @ solution.precision - np.outer(prior, prior)
    by_hard = 0.5 * by_hard[:tasks, :tasks]
    steps = np.where(np.isfinite(cells.distances), cells.distances, 0) / scales.width
    widened = likeness.pull(likeness.raw * steps)
    gradient = np.array(
        [
            scales.good * by_cells.sum(),
            scales.rest * np.trace(by_cells),
            scales.own * np.trace(by_hard),
            scales.near * (by_hard * likeness.whole).sum(),
            scales.seen * by_seen,
            scales.dataset * (by_hard * cells.is_same).sum(),
            scales.suit * (by_cells * likeness.whole).sum(),
            ((scales.suit * by_cells + scales.near * by_hard) * widened).sum(),
        ]
    )
    away = (logs - _STARTS) / _SPREADS
    return solution.cost + 0.5 * float(away @ away), gradient + away / _SPREADS


def learn_scales(cells: Cells) -> Scales:
    """The scales under which the cells are the least surprising."""
    finite = cells.distances[np.triu_indices(len(cells.noise), 1)]
    finite = finite[np.isfinite(finite) & (finite > 0)]
    median = float(np.median(finite)) if len(finite) else 1.0
    bounds = [(np.log(_FINEST), np.log(100.0))] * 7 + [(np.log(0.02), np.log(50.0))]
    found = minimize(
        weigh_scales,
        _STARTS,
        args=(cells.thin(_MOST), median),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": 40, "ftol": 1e-5},
    )
    return _name_scales(found.x, median)


def _name_scales(logs: np.ndarray, median: float) -> Scales:
    values = np.exp(logs)
    return Scales(*values[:7].tolist(), width=float(values[7]) * median)
