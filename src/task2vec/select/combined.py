"""The combined strategy: average and task evidence in one model of errors, with intervals, and when to abstain.

On the scale of log-odds y (`scale_errors`), for task t and model e,

    y_te = hard_t + drift_te · slope + good_e + suit_e(t) + noise_te

- hard_t: how hard the task is: a constant, its classes, its dataset, what similar tasks have in common, and its own;
- drift_te: what was measured about the pair: whether the model has seen the task, and its transferability score;
- good_e: the average effect of the model, and suit_e(t): where it is better than usual, alike for similar tasks:
  a Gaussian process with the covariance exp(-distance / width), the same for all models but independent;
- noise_te: the spread over seeds, which is known, and a rest; cells whose model has seen the task have one of their
  own: they carry less information, and how much less is learned.

All of it is Gaussian, so errors, intervals and probabilities follow exactly once the eight scales (variances and a
width) are known. Those are the most probable ones under weak priors, whose centres were set with our own meta-task in
sight. Far from all known tasks suit_e has the mean zero: what is left is the average. Given hard_t and the slopes,
models are independent: every matrix has the size of the tasks, and nothing of tasks times models is ever formed.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from importlib import resources
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, ndtr, ndtri, stdtrit
from threadpoolctl import threadpool_limits

from task2vec.embedding import Embedding
from task2vec.embedding.embedding import hash_content
from task2vec.experts.metatask import SYMMETRIC, MetaTask, Query
from task2vec.library import MeasuredError
from task2vec.select.strategies import Prediction, check_kind, check_score, find_average_best, find_errors

# Share of the errors that intervals are to cover.
COVERAGE = 0.9
# Similar is what is nearer than this many times the median distance of known tasks from their nearest.
REACH = 1.5
# How probable an advantage over the average-best model must be where nothing similar is known.
CONFIDENT = 0.6
# How probable an advantage over the best measured model must be for one that was not measured.
SURE = 0.8
_DRAWS = 200_000
# Errors this small cannot be distinguished from none: a few images of a small test set.
_OFFSET = 0.03
# Scales are learned on no more models than this; all others are predicted with them.
_MOST = 24
# Scores farther from the mean than so many standard deviations count as this far.
_STEEPEST = 4.0
# Fixed variances: of the level of all errors, their slope by log classes, slopes by drifts.
_LEVEL, _CLASSES, _SLOPES = 4.0, 0.1, 1.0
# Where scales start and are drawn to, and by how much (standard deviation of their logarithms): good, rest, own, near,
# seen, dataset, suit, and width in parts of the median distance.
_STARTS = np.log([0.03, 0.005, 0.02, 0.2, 0.5, 0.3, 0.05, 2.0])
_SPREADS = np.array([1.5, 1.5, 1.5, 1.5, 1.5, 0.7, 1.5, 1.0])
_BOUNDS = [(np.log(1e-5), np.log(100.0))] * 7 + [(np.log(0.02), np.log(50.0))]


def scale_errors(errors: np.ndarray) -> np.ndarray:
    """Errors on the scale of the model, log-odds, on which tasks of any difficulty have alike differences.

    Few errors then differ by factors and, unlike by the logarithm of the error, so do few hits.
    """
    return np.log(errors + _OFFSET) - np.log(1 + _OFFSET - errors)


def unscale(values: np.ndarray) -> np.ndarray:
    """Back to errors, between 0 and 1."""
    return np.clip((1 + 2 * _OFFSET) * expit(values) - _OFFSET, 0, 1)


def find_slopes(errors: np.ndarray) -> np.ndarray:
    """By how much the scale rises per unit of error."""
    return 1 / (errors + _OFFSET) + 1 / (1 + _OFFSET - errors)


def binomial_noise(errors: np.ndarray, images: float) -> np.ndarray:
    """Variance, on the scale of the model, of the share of so many test images that are wrong."""
    shares = (errors + 1 / images) / (1 + 2 / images)  # Laplace's: no error of few images is not no error
    return shares * (1 - shares) / images * find_slopes(shares) ** 2


# --- cells and scales ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Cells:
    """The known errors of T tasks and E models, on the model's scale.

    Attributes:
        values: (T, E) errors on the model's scale, centred; zero where not known.
        known: (T, E) whether there is one.
        seen: (T, E) whether the model has seen the task.
        noise: (T) variance of a value by seeds.
        distances: (T, T) infinite where not known.
        classes: (T) logarithm of their number, centred.
        is_same: (T, T) whether two tasks are of one dataset.
        drifts: (E, T, D) zero where no error is known.
    """

    values: np.ndarray
    known: np.ndarray
    seen: np.ndarray
    noise: np.ndarray
    distances: np.ndarray
    classes: np.ndarray
    is_same: np.ndarray
    drifts: np.ndarray

    @cached_property
    def patterns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(P, T) whether known, (P, T) whether known and seen, of models that are alike in both, and (E) which."""
        patterns, which = np.unique(np.stack([self.known, self.seen & self.known]), axis=2, return_inverse=True)
        known, seen = patterns.transpose(0, 2, 1).astype(np.float64)
        return known, seen, which.reshape(-1)


class Scales(NamedTuple):
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
class Solution:
    """The model solved for some scales: all that predictions and the likelihood need.

    A distance need not be Euclidean, and then exp(-distance / width) can have eigenvalues below zero. Raising the
    diagonal by the lowest fixes that: each task has something of its own.

    Attributes:
        similarity: (T, T) covariance of tasks by distance, lifted so that it is one.
        lift: by how much.
        lowest: (T) eigenvector of the lowest eigenvalue.
        inverses: (E, T, T) of the covariances of good_e + suit_e + noise; zero where nothing is known.
        pulled: (E, T, D) they times the drifts.
        shared: (T + D) posterior means of hard_t and the slopes.
        spread: (T + D, T + D) their posterior covariance.
        precision: (T + D, T + D) inverse of their prior covariance.
        weights: (E, T) inverses times what shared effects leave.
        cost: minus the log likelihood, up to a constant.
    """

    similarity: np.ndarray
    lift: float
    lowest: np.ndarray
    inverses: np.ndarray
    pulled: np.ndarray
    shared: np.ndarray
    spread: np.ndarray
    precision: np.ndarray
    weights: np.ndarray
    cost: float


def solve(cells: Cells, scales: Scales) -> Solution:
    """Posterior of the shared effects, models integrated out one by one."""
    values, drifts, (tasks, count) = cells.values.T, cells.drifts, cells.drifts.shape[1:]
    similarity = np.exp(-cells.distances / scales.width)
    eigenvalues, vectors = np.linalg.eigh(similarity)
    lift = max(0.0, -float(eigenvalues[0]))
    similarity += lift * np.eye(tasks)
    # Models with the same cells have the same covariance; where nothing is known it is the identity, and taken out.
    known, seen, which = cells.patterns
    whole = scales.good + scales.suit * similarity + np.diag(scales.rest + cells.noise)
    unknown = (1 - known)[:, :, None] * np.eye(tasks)
    matrices = whole * known[:, :, None] * known[:, None, :] + unknown + scales.seen * seen[:, :, None] * np.eye(tasks)
    inverses, logdets = _invert(matrices)
    inverses = (inverses - unknown)[which]
    pulled = inverses @ drifts
    crossed = pulled.sum(0)
    slopes = np.einsum("etd,etf->df", drifts, pulled)
    information = np.block([[inverses.sum(0), crossed], [crossed.T, slopes]])
    prior = _SLOPES * np.eye(tasks + count)
    prior[:tasks, :tasks] = _LEVEL + _CLASSES * np.outer(cells.classes, cells.classes) + scales.own * np.eye(tasks)
    prior[:tasks, :tasks] += scales.near * similarity + scales.dataset * cells.is_same
    precision, logdet_prior = _invert(prior)
    spread, logdet_posterior = _invert(precision + information)
    taken = np.einsum("eij,ej->ei", inverses, values)
    evidence = np.concatenate([taken.sum(0), np.einsum("etd,et->d", drifts, taken)])
    shared = spread @ evidence
    left = values - cells.known.T * (shared[:tasks] + drifts @ shared[tasks:])
    weights = np.einsum("eij,ej->ei", inverses, left)
    logdet = logdets[which].sum() + logdet_prior + logdet_posterior
    cost = 0.5 * float(logdet + (values * taken).sum() - evidence @ shared)
    parts = (similarity, lift, vectors[:, 0], inverses, pulled, shared, spread, precision)
    return Solution(*parts, weights, cost)


def _invert(matrices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Inverses and log determinants of covariances."""
    return np.linalg.inv(matrices), np.linalg.slogdet(matrices)[1]


def weigh_scales(logs: np.ndarray, cells: Cells, median: float) -> tuple[float, np.ndarray]:
    """Minus the log posterior of the scales' logarithms, and its gradient."""
    scales = _name_scales(logs, median)
    solution, tasks = solve(cells, scales), len(cells.noise)
    similarity = solution.similarity
    both = np.concatenate([solution.inverses, solution.pulled], axis=2)
    taken = both @ solution.spread
    # Derivatives of the cost by the covariance of a model's cells, summed over models, and by that of hard_t.
    by_cells = solution.inverses.sum(0) - np.tensordot(taken, both, axes=([0, 2], [0, 2]))
    by_cells = 0.5 * (by_cells - solution.weights.T @ solution.weights)
    own = np.einsum("eii->ei", solution.inverses) - (taken * both).sum(2)
    by_seen = 0.5 * ((own - solution.weights**2) * (cells.seen & cells.known).T).sum()
    prior = solution.precision @ solution.shared
    by_hard = solution.precision - solution.precision @ solution.spread @ solution.precision - np.outer(prior, prior)
    by_hard = 0.5 * by_hard[:tasks, :tasks]
    # The similarity of pairs falls with the width; the lift goes with the lowest eigenvalue.
    steps = np.where(np.isfinite(cells.distances), cells.distances, 0) / scales.width
    widened = similarity * steps
    if solution.lift > 0:
        widened -= solution.lowest @ widened @ solution.lowest * np.eye(tasks)
    gradient = np.array(
        [
            scales.good * by_cells.sum(),
            scales.rest * np.trace(by_cells),
            scales.own * np.trace(by_hard),
            scales.near * (by_hard * similarity).sum(),
            scales.seen * by_seen,
            scales.dataset * (by_hard * cells.is_same).sum(),
            scales.suit * (by_cells * similarity).sum(),
            ((scales.suit * by_cells + scales.near * by_hard) * widened).sum(),
        ]
    )
    away = (logs - _STARTS) / _SPREADS
    return solution.cost + 0.5 * float(away @ away), gradient + away / _SPREADS


def learn_scales(cells: Cells) -> Scales:
    """The scales under which the cells are the most probable: of a few models, evenly taken from those with errors."""
    finite = cells.distances[np.triu_indices(len(cells.noise), 1)]
    finite = finite[np.isfinite(finite) & (finite > 0)]
    median = float(np.median(finite)) if len(finite) else 1.0
    columns = np.flatnonzero(cells.known.any(0))
    columns = columns[np.unique(np.linspace(0, len(columns) - 1, _MOST).astype(int))]
    few = {name: getattr(cells, name)[:, columns] for name in ("values", "known", "seen")}
    few = replace(cells, **few, drifts=cells.drifts[columns])
    options = {"maxiter": 40, "ftol": 1e-5}
    how = {"jac": True, "method": "L-BFGS-B", "bounds": _BOUNDS, "options": options}
    return _name_scales(minimize(weigh_scales, _STARTS, args=(few, median), **how).x, median)


def _name_scales(logs: np.ndarray, median: float) -> Scales:
    *variances, width = np.exp(logs).tolist()
    return Scales(*variances, width=width * median)


# --- the posterior of a new task -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Posterior:
    """The errors of all models on a new task, on the model's scale.

    Attributes:
        mean: (E) of the errors.
        lean: (E, T + D) how each depends on the shared effects, which are uncertain.
        spread: (T + D, T + D) covariance of these.
        common: variance of what all models share on this task.
        between: (E) the part of the variance that stands for an unknown dataset.
        own: (E) variance of each model alone.
        noise: variance of a measured error around the true one.
    """

    mean: np.ndarray
    lean: np.ndarray
    spread: np.ndarray
    common: float
    between: np.ndarray
    own: np.ndarray
    noise: float

    def half_widths(self, datasets: int) -> np.ndarray:
        """(E) half widths of intervals for errors on new images, or for measured ones where there is noise.

        How much datasets differ is learned from the few that are known, so that part has the tails of Student's t.
        """
        level = (1 + COVERAGE) / 2
        normal, student = ndtri(level), stdtrit(max(datasets - 1, 2), level)
        shared = np.einsum("ei,ij,ej->e", self.lean, self.spread, self.lean)
        every = shared + self.common + self.own + self.noise
        return np.sqrt(normal**2 * every + (student**2 - normal**2) * self.between)

    def p_best(self, is_candidate: np.ndarray) -> np.ndarray:
        """(E) probability of having the smallest error of the candidates, from joint draws; always the same ones."""
        numbers = np.flatnonzero(is_candidate)
        found = np.zeros(len(self.mean))
        if not len(numbers):
            return found
        generator = np.random.default_rng(0)
        draws = int(np.clip(_DRAWS // len(numbers), 500, 4000))
        values, vectors = np.linalg.eigh(self.spread)
        roots = self.lean[numbers] @ (vectors * np.sqrt(np.maximum(values, 0)))
        errors = generator.standard_normal((draws, roots.shape[1])) @ roots.T
        errors += generator.standard_normal((draws, len(numbers))) * np.sqrt(self.own[numbers])
        best = (errors + self.mean[numbers]).argmin(1)
        found[numbers] = np.bincount(best, minlength=len(numbers)) / draws
        return found

    def condition(
        self, numbers: np.ndarray, values: np.ndarray, noise: np.ndarray, shared_noise: np.ndarray | float = 0.0
    ) -> "Posterior":
        """The exact posterior once errors on the new task itself are known.

        What all models share moves with every one of them. Given that, the own part of a measured model is drawn to
        what was measured by own / (own + noise), and that of the others stays.

        Args:
            numbers: (K) of the models that were measured.
            values: (K) their errors on the scale of the model.
            noise: (K) variances of these around the true ones, each for itself.
            shared_noise: (K) standard deviations of what all measured ones are off by together.
        """
        lean = np.pad(self.lean, [(0, 0), (0, 2)])  # more: what all share on this task, and the shared noise
        lean[:, -2] = 1
        spread = np.diag(np.ones(lean.shape[1]))
        spread[:-2, :-2], spread[-2, -2] = self.spread, self.common
        measured, left = lean[numbers], values - self.mean[numbers]
        measured[:, -1] = shared_noise
        alone = self.own[numbers] + noise
        crossed = spread @ measured.T
        pull = np.linalg.solve(measured @ crossed + np.diag(alone), crossed.T)
        shared = left @ pull
        trust = np.zeros(len(self.mean))
        trust[numbers] = self.own[numbers] / alone
        mean = self.mean + lean @ shared
        mean[numbers] += trust[numbers] * (left - measured @ shared)
        spread = spread - crossed @ pull
        lean[numbers] -= trust[numbers, None] * measured
        left_over = float(spread[-2, -2]) / self.common if self.common > 0 else 1.0
        between = (1 - trust) ** 2 * self.between * left_over
        if not lean[:, -1].any():  # no shared noise
            lean, spread = lean[:, :-1], spread[:-1, :-1]
        return Posterior(mean, lean, spread, common=0.0, between=between, own=(1 - trust) * self.own, noise=self.noise)

    def compare(self, first: int, second: int) -> tuple[float, float]:
        """By how much the error of one model is smaller than that of another: mean and variance."""
        lean = self.lean[first] - self.lean[second]
        variance = lean @ self.spread @ lean + self.own[first] + self.own[second]
        return float(self.mean[second] - self.mean[first]), float(variance)

    def p_better(self, first: int, second: int) -> float:
        """The probability that one model has a smaller error than another."""
        gap, variance = self.compare(first, second)
        return float(ndtr(gap / np.sqrt(variance))) if variance > 0 else 0.5 + 0.5 * float(np.sign(round(gap, 12)))

    def expect_gain(self, number: int, rivals: np.ndarray, *, is_measured: bool) -> float:
        """By how much measuring a model lowers the expected error of the one chosen (expected improvement).

        Without that, the best of its (E) `rivals` is chosen; where these were not measured either, the better one.
        """
        if not (rivals := rivals & (np.arange(len(rivals)) != number)).any():
            return 0.0
        gap, variance = self.compare(number, int(np.argmin(np.where(rivals, self.mean, np.inf))))
        learned = variance / np.sqrt(max(variance + self.noise, 1e-12))
        ratio = (gap := gap if is_measured else -abs(gap)) / max(learned, 1e-12)
        return float(learned * np.exp(-(ratio**2) / 2) / np.sqrt(2 * np.pi) + gap * ndtr(ratio))


# --- the strategy ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class CombinedModel:
    """The model, fitted to a meta-task; see `fit_combined`."""

    metatask: MetaTask
    kind: str
    score: str | None
    cells: Cells
    centre: float
    classes: float
    scales: Scales
    solution: Solution

    def predict(self, query: Query) -> Prediction:
        """Predicted errors, intervals for the mean error over as many splits as in the meta-task, and probabilities.

        The average-best model is ranked first where the evidence does not beat it.
        """
        posterior = self.posterior(query)
        prediction = self.describe(posterior, query.is_candidate)
        best = find_average_best(self.metatask, query.is_candidate)
        if best is None:
            return prediction
        first = int(prediction.order(query.is_candidate)[0])
        p_better = 0.5 if first == best else posterior.p_better(first, best)
        abstains = first == best or (p_better < CONFIDENT and not self.is_near(query))
        loss = prediction.loss.copy()
        if abstains:
            loss[best] = loss[query.is_candidate].min() - 1e-6
        return replace(prediction, loss=loss, average_best=best, p_better=p_better, abstains=abstains)

    def describe(self, posterior: "Posterior", is_candidate: np.ndarray) -> Prediction:
        """A posterior as predicted errors with intervals and probabilities."""
        widths = posterior.half_widths(len(set(self.metatask.datasets)))
        level = posterior.mean + self.centre
        errors, low, high = (unscale(one) for one in (level, level - widths, level + widths))
        return Prediction(posterior.mean, errors=errors, low=low, high=high, p_best=posterior.p_best(is_candidate))

    def is_near(self, query: Query) -> bool:
        """Whether something similar is known: a task no farther than known tasks mostly are from their nearest."""
        nearest = (self.cells.distances + np.diag(np.full(len(self.cells.noise), np.inf))).min(1, initial=np.inf)
        reach = REACH * float(np.median(nearest)) if np.isfinite(np.median(nearest)) else 0.0
        return bool(self._read_distances(query).min(initial=np.inf) <= reach)

    def posterior(self, query: Query) -> "Posterior":
        """The posterior of all models' errors on the task of the query."""
        cells, scales, solution = self.cells, self.scales, self.solution
        known, tasks = cells.known.T, len(cells.noise)
        near = np.exp(-self._read_distances(query) / scales.width)
        own = known * (scales.good + scales.suit * near)
        taken = np.einsum("eij,ej->ei", solution.inverses, own)
        is_same = np.array([dataset == query.dataset for dataset in self.metatask.datasets], dtype=np.float64)
        classes = 0.0 if query.classes is None else np.log(max(query.classes, 1)) - self.classes
        hard = _LEVEL + _CLASSES * classes * cells.classes + scales.near * near + scales.dataset * is_same
        height = 1 + solution.lift
        variance = _LEVEL + _CLASSES * classes**2 + scales.own + scales.near * height + scales.dataset
        weights = solution.precision[:tasks, :tasks] @ hard
        drift = _measure_drifts(query, np.zeros(len(known)), self.score)
        lean = np.concatenate([weights - taken, drift - np.einsum("etd,et->ed", cells.drifts, taken)], axis=1)
        alone = scales.good + scales.suit * height - (own * taken).sum(1)
        return Posterior(
            weights @ solution.shared[:tasks] + drift @ solution.shared[tasks:] + (own * solution.weights).sum(1),
            lean,
            solution.spread,
            common=max(float(variance - hard @ weights), scales.own),
            between=np.full(len(known), 0.0 if is_same.any() else scales.dataset),
            own=np.maximum(alone, 0) + scales.rest,
            noise=float(cells.noise[cells.noise > 0].mean()) if (cells.noise > 0).any() else 0.0,
        )

    def _read_distances(self, query: Query) -> np.ndarray:
        """(T) from the known tasks; infinite where not known."""
        distances = query.distances.get(self.kind, np.full(len(self.cells.noise), np.nan))
        return np.where(np.isnan(distances), np.inf, np.maximum(distances, 0))


# Threads of BLAS wait for each other on matrices this small: 16 s of processor time on two cores instead of 0.3 s.
@threadpool_limits.wrap(limits=1, user_api="blas")
def fit_combined(
    metatask: MetaTask,
    kind: str = SYMMETRIC,
    *,
    score: str | None = None,
    heads: np.ndarray | None = None,
    scales: Scales | None = None,
) -> CombinedModel:
    """The average, moved by errors on similar tasks as far as they are similar, and by a score if one is named.

    Everything is learned on the known tasks: also from models that have seen the task, with a shift and a noise of
    their own.

    Args:
        metatask: selected.
        kind: of the distance between tasks. Without the symmetric one they have nothing in common, and the average is
            left.
        score: a transferability score that every candidate gets on the task's images; None does without.
        heads: (T) errors of the probe's own head on the tasks, which are one more model then: the last one.
        scales: of the model, where they were learned before; None learns them, which takes most of the time.

    Raises:
        UndefinedScoreError: No error is known, or not the score or the kind of distance that was asked for.

    Example:
        >>> from task2vec.experts import bundled_metatask
        >>> metatask = bundled_metatask().select("half", family="labels")
        >>> others = np.arange(1, len(metatask.tasks))
        >>> found = fit_combined(metatask.only(others)).predict(metatask.query(0, known=others))
        >>> bool((found.low <= found.errors).all() and (found.errors <= found.high).all())
        True
    """
    find_errors(metatask)
    if score:
        check_score(metatask, score)
    if kind != SYMMETRIC:
        check_kind(metatask, kind, "tasks", metatask.between)
    errors = np.column_stack([metatask.mean] if heads is None else [metatask.mean, heads])
    known, seen = np.isfinite(errors), np.zeros(errors.shape, dtype=bool)
    seen[:, : len(metatask.models)] = ~metatask.is_candidate
    seen &= known
    centre = float(scale_errors(errors[known]).mean())
    distances = metatask.between(kind) if kind in metatask.distances else np.full((len(errors),) * 2, np.nan)
    distances = np.where(np.isnan(distances), np.inf, np.maximum((distances + distances.T) / 2, 0))
    np.fill_diagonal(distances, 0)
    classes = np.log([max(task.classes, 1) for task in metatask.tasks])
    drifts = [_measure_drifts(metatask.query(row), has_seen, score) for row, has_seen in enumerate(seen)]
    datasets = np.array(metatask.datasets)
    cells = Cells(
        np.where(known, scale_errors(np.where(known, errors, 0.5)) - centre, 0),
        known,
        seen,
        find_noise(metatask),
        distances,
        classes - classes.mean(),
        (datasets[:, None] == datasets).astype(np.float64),
        np.stack(drifts, axis=1) * known.T[:, :, None],
    )
    scales = learn_scales(cells) if scales is None else scales
    return CombinedModel(metatask, kind, score, cells, centre, float(classes.mean()), scales, solve(cells, scales))


def _measure_drifts(query: Query, has_seen: np.ndarray, score: str | None) -> np.ndarray:
    """(E, D) whether models have seen the task, and their score in standard deviations over the candidates.

    A model without a score has 0, as heads have, and as all have where scores do not differ.
    """
    drifts = np.zeros((len(has_seen), 2 if score else 1))
    drifts[:, 0] = has_seen
    if (scores := query.scores.get(score or "")) is not None:
        finite = scores[np.isfinite(scores) & query.is_candidate]
        if len(finite) > 1 and finite.std() > 0:
            ranked = np.nan_to_num((scores - finite.mean()) / finite.std())
            drifts[: len(scores), 1] = np.clip(ranked, -_STEEPEST, _STEEPEST)
    return drifts


def find_noise(metatask: MetaTask) -> np.ndarray:
    """(T) variance of a mean over seeds, on the model's scale; zero where there is one seed: then the rest holds it."""
    values = np.ma.masked_invalid(scale_errors(metatask.errors[:, :, 0]))
    counts = values.count(2)
    usable = counts > 1
    squares = np.square(values - values.mean(2, keepdims=True)).sum(2).filled(0)
    freedom = np.where(usable, counts - 1, 0).sum(1)
    variance = np.where(usable, squares, 0).sum(1) / np.maximum(freedom, 1)
    seeds = np.where(usable, counts, 0).sum(1) / np.maximum(usable.sum(1), 1)
    return variance / np.maximum(seeds, 1)


# --- given the task's own head and measured errors -------------------------------------------------------------------
#
# The head that an embedding was made with is a linear classifier, too, and its cross-validated error says how hard the
# task is. So the heads of all known tasks become one more model, which cannot be selected. The prediction for the task
# is then conditioned on the errors of that task that are known: its head, and what was measured, each with its noise.
# So a measured error is drawn to the prediction as far as it is noisy (the best of several noisy ones is too good), and
# models that were not measured move with those that were. With 5 images per class heads miss by more than models do, as
# they are trained on all images; with half of the images by less. How much is learned from the heads of the known
# tasks. That of the task has the noise of its images beside. Intervals are for errors on new images: they need neither
# the noise of splits nor a factor; `python -m benchmarks.recommend` measures their coverage.

# The smallest gain over the average-best model that counts.
LEAST_GAIN = 0.005
# So many sources with heads weigh as much as the assumption that heads are like other models.
_SOURCES = 4
# So many splits of the task weigh as much as what is known of others, when the noise of a split is estimated.
_SPLITS = 4
# The share of the noise that models measured on the same test images have in common: 0.37 over the splits of the bundle
# with half of the images, 0.45 with 5 per class (`python -m benchmarks.recommend`).
_COMMON = 0.35
# By how much errors grow, on the model's scale, when images are half as large, and the standard deviations of what this
# is for all networks on a task and for each (`python -m benchmarks.sizes`). Measured for up to one halving. What it is
# for all is taken as one with the noise that models share, for it is small beside what networks have of their own.
SIZE_SHIFT, _SIZE_COMMON, _SIZE_OWN, MOST_HALVINGS = 0.23, 0.15, 0.14, 1.0


def mean_errors(errors: Sequence[MeasuredError]) -> tuple[float, float, float]:
    """The mean error over splits, and the means of both ends: wider than the mean's interval, for splits overlap."""
    ends = [[one.error if end is None else end for end in (one.error, one.low, one.high)] for one in errors]
    error, low, high = np.mean(ends, axis=0).tolist()
    return error, low, high


def predict_conditioned(
    metatask: MetaTask,
    embedding: Embedding,
    query: Query,
    measured: Mapping[str, Sequence[MeasuredError]],
    shift: float = 0.0,
    smaller: Mapping[str, tuple[Sequence[MeasuredError], float]] | None = None,
) -> Prediction:
    """The combined strategy given the task's own head and measured errors.

    A transferability score of the query, which every candidate has that was measured, counts as well. Errors measured
    on a sample of the task are higher, for classifiers are trained on fewer images: by `shift` on the
    scale of the model, give or take a half of it, for all models alike. `smaller` are errors of models at smaller
    images, and how often these are halved. They move predictions; their models do not count as measured.

    It abstains unless another than the average-best model has the smallest error by half a point, and something similar
    is known. Once something was measured on the task itself, the probability of being better counts instead, and the
    best measured candidate is ranked first, unless another is better with a probability of 0.8.
    """
    score = next((name for name in query.scores if np.isfinite(metatask.scores.get(name, np.nan)).any()), None)
    fitted = fit_with_heads(metatask, score)
    names = [model.name for model in metatask.models]
    known = {names.index(name): own for name, own in measured.items() if name in names}
    # Errors, by how much they are too high, and the standard deviations of that for all models alike and for each.
    told: dict[int, tuple[Sequence[MeasuredError], float, float, float]] = {}
    for name, (own, halvings) in (smaller or {}).items():
        told[names.index(name)] = own, SIZE_SHIFT * halvings, _SIZE_COMMON * halvings, _SIZE_OWN * halvings
    for number, own in known.items():
        off = shift if own[0].task != embedding.provenance.get("task_fingerprint") else 0.0
        told[number] = own, off, off / 2, 0.0
    # Of a model without any error nothing is known: the average of others says nothing about it.
    is_known = np.isfinite(metatask.mean).any(0) | np.isin(np.arange(len(names)), list(told))
    candidates = query.is_candidate & is_known
    query = replace(query, is_candidate=candidates)
    posterior, given = fitted.posterior(query), {}
    noises = estimate_noise(fitted, [own for own, *_ in told.values()])
    for (number, (own, off, common, each)), variance in zip(told.items(), noises, strict=True):
        value = float(scale_errors(np.array(mean_errors(own)[0]))) - off
        given[number] = value, (1 - _COMMON) * variance + each**2, np.sqrt(_COMMON * variance + common**2)
    if np.isfinite(head := read_head(embedding)):
        images = embedding.provenance.get("counts", {}).get("images")
        sampled = float(binomial_noise(np.array(head), images)) if images else posterior.noise
        common = _COMMON * sampled if told else 0.0  # with what was measured on these images
        own = max(posterior.own[-1] + find_head_miss(fitted), fitted.scales.rest)
        posterior = replace(posterior, own=np.append(posterior.own[:-1], own))
        given[len(names)] = float(scale_errors(np.array(head))), sampled - common, np.sqrt(common)
    if given:
        values, noises, shared = np.array(list(given.values())).T
        posterior = posterior.condition(np.array(list(given)), values - fitted.centre, noises, shared)
    described = fitted.describe(replace(posterior, noise=0.0), candidates)  # errors on many new images
    values = (getattr(described, name)[:-1] for name in ("errors", "low", "high", "p_best"))
    errors, low, high, p_best = (np.where(is_known, each, np.nan) for each in values)
    is_tried = candidates & np.isin(np.arange(len(names)), list(known))
    best, loss, p_better, is_confident = find_average_best(metatask, candidates), scale_errors(errors), 0.5, False
    if candidates.any():
        first = int(Prediction(loss).order(is_tried if is_tried.any() else candidates)[0])
        if is_tried.any():
            chances = {posterior.p_better(one, first): one for one in np.flatnonzero(candidates & ~is_tried).tolist()}
            first = chances[max(chances)] if max(chances, default=0) >= SURE else first
        if best is not None and first != best:
            p_better = posterior.p_better(first, best)
            is_confident = p_better >= CONFIDENT if known else fitted.is_near(query)
            is_confident = is_confident and float(errors[best] - errors[first]) >= LEAST_GAIN
            first = first if is_confident or (is_tried.any() and not is_tried[best]) else best
        loss[first] = np.nanmin(loss[candidates]) - 1e-6
    rivals = np.append(is_tried if is_tried.any() else candidates, False)
    gains = [posterior.expect_gain(one, rivals, is_measured=bool(is_tried.any())) for one in range(len(names))]
    return Prediction(
        loss,
        errors=errors,
        low=low,
        high=high,
        p_best=p_best,
        average_best=best,
        p_better=p_better,
        abstains=not is_confident,
        gains=gains / find_slopes(unscale(posterior.mean[:-1] + fitted.centre)),
    )


def find_head_miss(fitted: CombinedModel) -> float:
    """By how much the variance of heads exceeds what the model grants: each known one, given all the other cells.

    Heads can be closer, too, and it is negative. Every source counts once, for the head that is asked for is one of
    another source; and a few sources say little.
    """
    solution = fitted.solution
    own = solution.inverses[-1]
    known = np.diag(own) > 0
    both = np.concatenate([own, solution.pulled[-1]], axis=1)[known]
    precision = np.diag(own)[known] - ((both @ solution.spread) * both).sum(1)  # what models share is not known either
    left, granted = solution.weights[-1][known] / precision, 1 / precision
    weights = 1 / fitted.cells.is_same[np.ix_(known, known)].sum(1)
    return float(weights @ (left**2 - granted) / (weights.sum() + _SOURCES))


def estimate_noise(fitted: CombinedModel, measured: Sequence[Sequence[MeasuredError]]) -> np.ndarray:
    """(K) variances of mean errors over splits around the true ones, on the scale of the model.

    From how splits of the task differ and, since these are few, from the known tasks that have several. Two splits have
    half of their images in common, so they differ by half of the variance of one, and a mean over n of them has
    (1/n + 1) times the variance between them (Nadeau and Bengio 2003). One split is no more certain than its interval
    over test images: the variance between splits of other tasks, with more images, says nothing about that.
    """
    known, counts = fitted.cells.noise, np.isfinite(fitted.metatask.errors[:, :, 0]).sum(2)
    splits = counts.sum(1) / np.maximum((counts > 0).sum(1), 1)
    usual = float((known * splits)[known > 0].mean()) if (known > 0).any() else 0.0
    values = [scale_errors(np.array([one.error for one in own])) for own in measured]
    weight, freedom = _SPLITS * (usual > 0), sum(len(each) - 1 for each in values)
    squares = sum(float(np.square(each - each.mean()).sum()) for each in values)
    between = (weight * usual + squares) / max(weight + freedom, 1)
    error, low, high = scale_errors(np.array([mean_errors(own) for own in measured]).reshape(-1, 3)).T
    one = np.maximum(2 * between, (np.maximum(error - low, high - error) / ndtri(0.975)) ** 2)
    return one * (1 + 1 / np.array([len(own) for own in measured])) / 2


@lru_cache(maxsize=4)
def fit_with_heads(metatask: MetaTask, score: str | None = None) -> CombinedModel:
    """The combined strategy on the known tasks and their heads as one more model, fitted once for many queries."""
    scales = read_scales().get(fingerprint_evidence(metatask, score))
    return fit_combined(metatask, score=score, heads=read_heads(metatask), scales=scales)


def fingerprint_evidence(metatask: MetaTask, score: str | None) -> str:
    """A hash of all that scales are learned from."""
    arrays = {"errors": metatask.errors, "seen": metatask.is_candidate, "heads": read_heads(metatask)}
    arrays |= {kind: each for kind, each in metatask.distances.items() if kind == SYMMETRIC}
    arrays |= {} if score is None else {score: metatask.scores[score]}
    return hash_content(json.dumps([[task.dataset, task.classes] for task in metatask.tasks]), arrays)


@cache
def read_scales() -> dict[str, Scales]:
    """The scales of the bundled meta-task by what they were learned from: learning takes most of a first query.

    `python -m experiments.metatask.scales` learns them, and a test learns them again.
    """
    text = (resources.files("task2vec.select") / "data" / "scales.json").read_text("utf-8")
    return {key: Scales(*values) for key, values in json.loads(text).items()}


def read_heads(metatask: MetaTask) -> np.ndarray:
    """(T) errors of the heads of all known tasks."""
    return np.array([read_head(one) for one in metatask.embeddings[metatask.space or ""][: len(metatask.tasks)]])


def read_head(embedding: Embedding) -> float:
    """The cross-validated error of the head, NaN if it is not known."""
    head = embedding.provenance.get("head")
    error = head.get("cv_error") if isinstance(head, Mapping) else None
    return float(error) if isinstance(error, int | float) and 0 <= error <= 1 else np.nan
