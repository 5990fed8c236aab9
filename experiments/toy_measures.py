"""How far the toy experiment's claims hold, in numbers: are neighbours alike, and do the complex keep apart?

The likeness of two tasks is that of their decision regions, and knows nothing of any probe: the mean of the Jaccard
indices of the two classes, each class of the one task matched with a class of the other, under the better of the two
matchings. So it does not matter which class is called positive, and a task is wholly like its complement.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# The numbers that are averaged over seeds, each with a standard error.
MEASURES = (
    "random",
    "domain",
    "nearest",
    "best",
    "way",
    "apart_random",
    "apart_domain",
    "apart_nearest",
    "apart_best",
    "clusters_and_error",
    "clusters_and_norm",
)
# Less than this part of the way from chance to the best is called small.
_SMALL = 0.2


@dataclass(frozen=True)
class Mean:
    """A mean over seeds; its standard error is None where one seed, or none, gave a number."""

    value: float
    stderr: float | None


def region_similarity(regions: np.ndarray) -> np.ndarray:
    """(tasks, tasks) likeness of decision regions, from 0 to 1, given which points (tasks, points) are positive.

    Example:
        >>> import numpy as np
        >>> half, quarter = [1, 1, 0, 0], [1, 0, 0, 0]
        >>> region_similarity(np.array([half, [0, 0, 1, 1], quarter])).round(3)
        array([[1.   , 1.   , 0.583],
               [1.   , 1.   , 0.583],
               [0.583, 0.583, 1.   ]])
    """
    positive = np.asarray(regions, dtype=np.float64)
    negative = 1 - positive
    straight = _jaccard(positive, positive) + _jaccard(negative, negative)
    crossed = _jaccard(positive, negative) + _jaccard(negative, positive)
    return np.maximum(straight, crossed) / 2


def value_of_nearest(distances: np.ndarray, values: np.ndarray) -> float:
    """Mean over tasks of `values` at the nearest other task; over all that are equally near, where several are.

    Example:
        >>> import numpy as np
        >>> values = np.array([[9, 1, 2], [1, 9, 3], [2, 3, 9]])
        >>> value_of_nearest(np.zeros((3, 3)), values)  # no task is nearer than another: all others count the same
        2.0
    """
    others = np.where(np.eye(len(distances), dtype=bool), np.inf, distances)
    is_nearest = others == others.min(axis=1, keepdims=True)
    return float((np.where(is_nearest, values, 0).sum(axis=1) / is_nearest.sum(axis=1)).mean())


def measure_space(
    distances: np.ndarray,
    domain: np.ndarray,
    similarity: np.ndarray,
    *,
    clusters: Sequence[int],
    errors: Sequence[float],
    norms: Sequence[float],
) -> dict[str, float]:
    """Every number of `MEASURES` for one seed and one probe.

    Args:
        distances: between tasks, in task space.
        domain: between tasks, in the domain embedding.
        similarity: of their decision regions.
        clusters: of each task: how complex it was made.
        errors: cross-validated error of its head.
        norms: of its embedding.
    """
    away = ~np.eye(len(distances), dtype=bool)
    apart = np.abs(np.subtract.outer(clusters, clusters))
    random, nearest = float(similarity[away].mean()), value_of_nearest(distances, similarity)
    best = value_of_nearest(-similarity, similarity)
    return {
        "random": random,
        "domain": value_of_nearest(domain, similarity),
        "nearest": nearest,
        "best": best,
        "way": (nearest - random) / (best - random) if best > random else math.nan,
        "apart_random": float(apart[away].mean()),
        "apart_domain": value_of_nearest(domain, apart),
        "apart_nearest": value_of_nearest(distances, apart),
        "apart_best": value_of_nearest(-similarity, apart),
        "clusters_and_error": correlate_ranks(clusters, errors),
        "clusters_and_norm": correlate_ranks(clusters, norms),
    }


def correlate_ranks(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's correlation; NaN where one of the two does not vary.

    Example:
        >>> round(correlate_ranks([1, 2, 3], [10, 30, 20]), 6)
        0.5
    """
    from scipy.stats import rankdata

    ranks = rankdata([a, b], axis=1)
    return float(np.corrcoef(ranks)[0, 1]) if ranks.std(axis=1).min() > 0 else math.nan


def average_seeds(rows: Sequence[dict[str, Any]]) -> dict[str, Mean]:
    """Mean and standard error of every measure over the rows of one probe, one row per seed."""
    means = {}
    for name in MEASURES:
        found = np.array([row[name] for row in rows])
        found = found[np.isfinite(found)]
        stderr = float(found.std(ddof=1) / math.sqrt(len(found))) if len(found) > 1 else None
        means[name] = Mean(float(found.mean()) if len(found) else math.nan, stderr)
    return means


def word_statement(means: dict[str, dict[str, Mean]], *, seeds: int) -> str:
    """The measured statement in one sentence, which says so where the gain is small or may be chance."""
    first = next(iter(means.values()))
    similar = " and ".join(f"{found['nearest'].value:.2f} ({name})" for name, found in means.items())
    shares = " and ".join(word_share(found["way"]) for found in means.values())
    doubts = "".join(_doubt(name, found["way"]) for name, found in means.items())
    return (
        f"Over {seeds} seed{'s' * (seeds > 1)}, the task nearest to a task in task space has decision regions of "
        f"similarity {similar} to its own, against {first['random'].value:.2f} for a random task, "
        f"{first['domain'].value:.2f} for the nearest in the domain embedding and {first['best'].value:.2f} for the "
        f"most similar of all: {shares} of the way from chance to the best{doubts}."
    )


def word_share(mean: Mean) -> str:
    """A mean share in per cent, with its standard error if it has one.

    Example:
        >>> word_share(Mean(0.379, 0.021)), word_share(Mean(0.379, None))
        ('38 ± 2 %', '38 %')
    """
    spread = "" if mean.stderr is None else f" ± {100 * mean.stderr:.0f}"
    return f"{100 * mean.value:.0f}{spread} %"


def _doubt(name: str, way: Mean) -> str:
    """What must be said of a gain that is no clear one."""
    if way.value <= 2 * (way.stderr or 0):
        return f"; what {name} gains may be chance"
    return f"; what {name} gains is small" if way.value < _SMALL else ""


def _jaccard(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(rows of a, rows of b): shared points by points of either."""
    shared = a @ b.T
    return shared / (a.sum(axis=1)[:, None] + b.sum(axis=1)[None, :] - shared)
