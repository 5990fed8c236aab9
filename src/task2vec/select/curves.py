"""Learning curves: how many labels an error takes, and what fine-tuning the whole network makes of a linear error.

Both are Gaussian models on the scale of log odds against chance (`scale_to_chance`), on which errors fall nearly in
straight lines with the logarithm of the training images per class. `python -m benchmarks.labels` compares others.

- Labels: every task and model has a level and a slope, drawn from one Gaussian, and a residual at every size. What is
  known of a task (predicted or measured errors, with their intervals) gives the posterior of its own line.
- Fine-tuning: its shift from the linear error = a constant + that of the network + what similar tasks have in common
  (covariance exp(-distance / median distance)) + that of the task + a residual.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import ndtr, ndtri

from task2vec.embedding import Embedding
from task2vec.experts.metatask import MetaTask, find_shots, measure_all
from task2vec.select.combined import COVERAGE

# Predictions end at so many times the largest known size, of the task or of most: beyond, intervals are too narrow.
_REACH, _USUAL = 4, 20
_OFFSET, _WIDTH = 0.03, ndtri((1 + COVERAGE) / 2)
# Before a curve is known, a target takes about so many times the present images, give or take a factor of e: Student's
# t with three degrees of freedom. Nobody asks for errors out of reach, and without it one noisy error decides.
_TIMES, _FREEDOM = 4, 3
# Variances of shifts, close to the most probable ones: mean, network, near, task, residual.
_SHIFTS = (0.5, 0.05, 0.15, 0.03, 0.1)
# What is known of a curve: training images per class, error, and both ends of its 90% interval.
Known = tuple[float, float, float, float]


@dataclass(frozen=True)
class Labels:
    """Training images per class for the error `target`, with a 90% interval; None stands for more than `limit`."""

    target: float
    images: int | None
    low: int | None
    high: int | None
    present: int  # those that the present error is of
    limit: int


@dataclass(frozen=True)
class Tuned:
    """The error of fine-tuning the whole network, its 90% interval, and the probability to beat a linear head."""

    error: float
    low: float
    high: float
    p_better: float


def scale_to_chance(errors: np.ndarray | float, classes: np.ndarray | float) -> np.ndarray:
    """Log odds of errors against chance, which is 1 - 1 / classes; both are kept 0.03 from their ends."""
    return np.log((errors + _OFFSET) / (np.maximum(1 - 1 / classes - errors, 0) + _OFFSET))


def unscale_chance(values: np.ndarray | float, classes: np.ndarray | float) -> np.ndarray:
    """Back to errors, between 0 and 1."""
    odds, chance = np.exp(values), 1 - 1 / classes
    errors = (odds * (chance + _OFFSET) - _OFFSET) / (1 + odds)
    return np.clip(np.where(errors > chance, _OFFSET * (odds - 1), errors), 0, 1)


def count_train_images(per_class: Sequence[int], shots: str) -> float:
    """Mean training images per class: `shots`, but no more than half of a class."""
    return float(np.minimum(int(shots) if shots.isdigit() else np.inf, np.ceil(np.asarray(per_class) / 2)).mean())


@dataclass(frozen=True, eq=False)
class Curves:
    """Learning curves of known tasks, see `fit_curves`."""

    mean: np.ndarray  # (2) of level and slope
    spread: np.ndarray  # (2, 2) their covariance
    rest: float  # variance of residuals
    embeddings: Sequence[Embedding]  # of the tasks that networks were fine-tuned on
    distances: np.ndarray  # between these
    tasks: np.ndarray  # (S) which of them, for every shift
    networks: np.ndarray  # (S) which network
    shifts: np.ndarray  # (S) of the error by fine-tuning from the linear one of the same split

    def predict(self, images: np.ndarray, known: Sequence[Known], classes: int) -> tuple[np.ndarray, np.ndarray]:
        """Means and variances of errors with so many training images per class, on the scale of the model."""
        sizes, errors, low, high = np.array(known, dtype=float).reshape(-1, 4).T
        given, wanted = _make_basis(sizes), _make_basis(images)
        noise = ((scale_to_chance(high, classes) - scale_to_chance(low, classes)) / (2 * _WIDTH)) ** 2
        crossed = self.spread @ given.T
        pull = np.linalg.solve(given @ crossed + np.diag(noise + self.rest), crossed.T).T
        mean = self.mean + pull @ (scale_to_chance(errors, classes) - given @ self.mean)
        spread = self.spread - pull @ crossed.T
        return wanted @ mean, np.einsum("ki,ij,kj->k", wanted, spread, wanted) + self.rest

    def labels_needed(self, target: float, known: Sequence[Known], classes: int) -> Labels:
        """Training images per class for a target error: the number that is most probably right by a factor of two."""
        present = max(one[0] for one in known)
        limit = _REACH * max(present, _USUAL)
        images = np.geomspace(1, 1000 * limit, 3000)
        mean, variance = self.predict(images, known, classes)
        chance = ndtr((scale_to_chance(target, classes) - mean) / np.sqrt(variance))  # that so many are enough
        chance = np.append(np.maximum.accumulate(chance), 1.0)  # in the end, that they never are
        prior = (1 + np.log(images / (_TIMES * present)) ** 2 / _FREEDOM) ** (-(_FREEDOM + 1) / 2)
        chance = np.cumsum(np.diff(chance, prepend=0) * np.append(prior, prior[-1]))
        chance = chance[:-1] / chance[-1]
        within = np.interp(2 * images, images, chance) - np.interp(images / 2, images, chance)
        best = int(np.median(np.flatnonzero(within >= 0.99 * within.max())))
        places = [best, *np.searchsorted(chance, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])]
        numbers = [int(np.ceil(one)) if one <= limit else None for one in np.append(images, np.inf)[places]]
        return Labels(target, *numbers, present=round(present), limit=round(limit))

    def tuned(
        self, embedding: Embedding | None, network: str, error: float, low: float, high: float, classes: int
    ) -> Tuned:
        """The error of fine-tuning a network, given that of a linear head; without an embedding, on an average task."""
        constant, by_network, near, own, rest = _SHIFTS
        distances, tasks = self.distances, self.tasks
        width = np.median(distances[distances > 0])
        covariance = constant + by_network * (self.networks[:, None] == self.networks) + rest * np.eye(len(tasks))
        covariance += (near * np.exp(-distances / width) + own * np.eye(len(distances)))[np.ix_(tasks, tasks)]
        unknown = np.full(len(distances), np.inf)
        to_known = unknown if embedding is None else measure_all([embedding], self.embeddings)[0]
        crossed = constant + by_network * (self.networks == network) + near * np.exp(-to_known / width)[tasks]
        pull = np.linalg.solve(covariance, crossed)
        shift, variance = pull @ self.shifts, sum(_SHIFTS) - pull @ crossed
        level, *ends = (scale_to_chance(one, classes) for one in (error, low, high))
        half = np.hypot(_WIDTH * np.sqrt(variance), (ends[1] - ends[0]) / 2)
        found = (float(unscale_chance(level + shift + step, classes)) for step in (0, -half, half))
        return Tuned(*found, p_better=float(ndtr(-shift / np.sqrt(variance))))


@lru_cache(maxsize=4)
def fit_curves(metatask: MetaTask, space: str) -> Curves | None:
    """Learning curves of a meta-task, with embeddings of one of its spaces; None if it has one training size only.

    Example:
        >>> from task2vec.experts import bundled_metatask
        >>> curves = fit_curves(bundled_metatask(), "tf_efficientnet_lite0 robust")
        >>> curves.labels_needed(0.1, [(10, 0.2, 0.15, 0.25)], classes=5).images
        41
    """
    shots = [find_shots(key) for key in metatask.protocols]
    embeddings = metatask.embeddings[space][: len(metatask.tasks)]
    counts = [one.provenance.get("counts", {}).get("per_class") or [0] for one in embeddings]
    sizes = np.array([[count_train_images(each, one) for one in shots] for each in counts])
    order = np.argsort(sizes.sum(0), kind="stable")
    sizes, errors = sizes[:, order], metatask.mean_errors()[:, :, order]
    # Classes that are smaller than the size give all they have: nothing new then.
    known = (np.diff(sizes, axis=1, prepend=0) > 0.1 * sizes)[:, None] & np.isfinite(errors)
    if not (known.sum(2) > 1).any():
        return None
    classes, images = np.maximum([[task.classes, task.images] for task in metatask.tasks], 2).T[:, :, None, None]
    errors, datasets = np.where(known, errors, 0.5), Counter(metatask.datasets)
    slopes = (scale_to_chance(errors + 1e-4, classes) - scale_to_chance(errors, classes)) / 1e-4
    noise = np.maximum(errors * (1 - errors), 0.5 / images) / images * slopes**2
    bases = np.repeat(_make_basis(np.maximum(sizes, 1))[:, None], errors.shape[1], axis=1)
    weights = known.any(2) / np.array([[datasets[one]] for one in metatask.datasets])  # each dataset counts once
    parts = (bases, scale_to_chance(errors, classes), noise, known, weights)
    parts = (each.reshape(-1, *each.shape[2:]) for each in parts)
    return Curves(*fit_lines(*parts, rounds=40), *_find_shifts(metatask, space))


def _make_basis(images: np.ndarray) -> np.ndarray:
    """(..., 2) one, and the logarithm of images per class: levels are those at 5."""
    steps = np.log(np.asarray(images) / 5)
    return np.stack([np.ones_like(steps), steps], axis=-1)


def fit_lines(
    bases: np.ndarray, values: np.ndarray, noise: np.ndarray, known: np.ndarray, weights: np.ndarray, rounds: int
) -> tuple[np.ndarray, np.ndarray, float]:
    """Mean and covariance of (U) weighted lines of (U, K) noisy values, and variance of residuals, by EM."""
    mean, spread, rest = np.zeros(bases.shape[-1]), np.eye(bases.shape[-1]), 0.05
    weights, (count, size, width) = weights / weights.sum(), bases.shape
    products = (bases[:, :, :, None] * bases[:, :, None]).reshape(count, size, width**2)
    for _ in range(rounds):
        precision = known / (noise + rest)
        information = (precision[:, None] @ products).reshape(count, width, width)
        covariances = np.linalg.inv(np.linalg.inv(spread) + information)
        left = (precision * (values - bases @ mean))[:, None] @ bases
        lines = mean + (left @ covariances)[:, 0]
        mean = weights @ lines
        spread = (lines - mean).T @ (weights[:, None] * (lines - mean)) + np.tensordot(weights, covariances, 1)
        share = rest / (noise + rest)  # of a residual that is not noise
        missed = (values - (bases @ lines[:, :, None])[:, :, 0]) ** 2
        missed += (products @ covariances.reshape(count, width**2, 1))[:, :, 0]
        rest = float(np.average(share**2 * missed + rest * (1 - share), weights=weights[:, None] * known))
    return mean, spread, rest


def _find_shifts(
    metatask: MetaTask, space: str
) -> tuple[Sequence[Embedding], np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Errors of fine-tuning in `info["curves"]` against the linear ones of the same splits, and where they are from."""
    names, models = [task.name for task in metatask.tasks], [model.name for model in metatask.models]
    shots, found = [find_shots(key) for key in metatask.protocols], []
    for one in metatask.info.get("curves", ()):
        if one["task"] in names and one["expert"] in models:
            row, column, size = names.index(one["task"]), models.index(one["expert"]), shots.index(one["train"])
            linear = metatask.errors[row, column, size, metatask.seeds.index(one["seed"])]
            tuned, before = scale_to_chance(np.array([one["error"], linear]), metatask.tasks[row].classes)
            found.append((row, one["expert"], tuned - before))
    rows, networks, shifts = (np.array([one[part] for one in found]) for part in range(3))
    used, tasks = np.unique(rows.astype(int), return_inverse=True)
    embeddings, known = [metatask.embeddings[space][row] for row in used], metatask.distances.get(space)
    distances = measure_all(embeddings, embeddings) if known is None else known[np.ix_(used, used)]
    return embeddings, distances, tasks, networks, shifts
