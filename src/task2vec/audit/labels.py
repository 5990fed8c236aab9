"""Which labels are probably wrong, which classes are confused, and which images are outliers.

All of it is based on held-out probabilities (`task2vec.head.predict_held_out`) and features. The score of a label is
its own probability s relative to the geometric mean of three others: m of its strongest rival, t that is usual for the
label (its mean over the images that have it, as in confident learning, Northcutt 2021), and u, the mean of t:

    score = r / (1 + r)    with    r = s / (m t u)^(1/3)

If wrong labels were drawn at random and probabilities were calibrated, the odds of a label would be s / (1 - s) times a
constant, so s alone would rank labels (cleanlab's default). They are not calibrated: held-out heads are underconfident,
so the same s means less next to a strong rival; and they are less confident for some classes than others. A third of
each correction ranked best or nearly so on 22 real datasets; the full correction trusts heads too much on hard images.
u does not change the order, but makes r independent of how confident the heads of a task are, as `SUSPECTED` requires.

On 16 other datasets (benchmarks/report.py: 5 and 10% of labels replaced by any other, or by one that the class is
confused with) the area under the precision-recall curve is 0.010 to 0.014 larger than with cleanlab's default score on
the same probabilities, with standard errors of 0.003 to 0.004; by dataset, it is larger beyond noise in 32 of 64 cases
and smaller in none. 1.4% of images with correct labels are suspected there, 17% by cleanlab's default filter.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SUSPECTED = 0.115
NEIGHBOURS = 10
# Robust standard deviations from the median at which an image is an outlier.
_OUTLIER_DEVIATIONS = 3
_CHUNK = 1024


@dataclass(frozen=True)
class LabelIssues:
    """What held-out probabilities say about each label.

    Attributes:
        score: (n,) from 0, surely wrong, to 1, surely right; 1 for images that cannot be judged.
        is_suspected: (n,) whether the score is below `SUSPECTED`, and another class is more probable.
        suggested: (n,) the most probable other class; with attributes, the one whose value is in question.
    """

    score: np.ndarray
    is_suspected: np.ndarray
    suggested: np.ndarray


def find_label_issues(probabilities: np.ndarray, targets: np.ndarray, is_judged: np.ndarray) -> LabelIssues:
    """The labels that are probably wrong, from (n, c) held-out `probabilities`.

    `targets` are (n,) class indices or (n, c) zeros and ones; `is_judged` (n,) says which probabilities mean anything.

    Example:
        >>> p = np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.97, 0.03]])
        >>> issues = find_label_issues(p, np.array([0, 0, 1, 1]), np.ones(4, dtype=bool))
        >>> issues.is_suspected.tolist(), issues.suggested.tolist()
        ([False, False, False, True], [1, 1, 0, 0])
    """
    p = probabilities.astype(np.float64)
    if targets.ndim == 2:
        s = np.where(targets == 1, p, 1 - p)
        rival = 1 - s
        values = targets.astype(np.int64) + 2 * np.arange(p.shape[1])
        score = _score(s, rival, np.where(is_judged[:, None], values, -1))
        suggested = score.argmin(1)
        worst = np.arange(len(p)), suggested
        score, s, rival = score[worst], s[worst], rival[worst]
    else:
        s = np.take_along_axis(p, targets[:, None], axis=1)[:, 0]
        rivals = p.copy()
        np.put_along_axis(rivals, targets[:, None], -1, axis=1)
        suggested = rivals.argmax(1)
        rival = rivals.max(1)
        score = _score(s, rival, np.where(is_judged, targets, -1))
    return LabelIssues(score, (score < SUSPECTED) & (rival > s), suggested)


def _score(s: np.ndarray, rival: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The scores of labels with these probabilities, for arrays of any shape; labels of -1 are not judged."""
    score = np.ones(labels.shape)
    is_judged = labels >= 0
    if not is_judged.any():
        return score
    s, rival, labels = s[is_judged], rival[is_judged], labels[is_judged]
    counts = np.bincount(labels)
    usual = np.bincount(labels, s) / np.maximum(counts, 1)
    expected = np.cbrt(np.maximum(rival * usual[labels] * usual[counts > 0].mean(), 1e-36))
    score[is_judged] = s / (s + expected)
    return score


@dataclass(frozen=True)
class ConfusedPair:
    """Two classes, how many held-out images of each are taken for the other, and their part of the images of both."""

    first: str
    second: str
    first_as_second: int
    second_as_first: int
    rate: float


def find_confused_pairs(
    probabilities: np.ndarray, targets: np.ndarray, is_judged: np.ndarray, *, names: Sequence[str], limit: int = 10
) -> list[ConfusedPair]:
    """The pairs of classes with most held-out mistakes, at most `limit`; attributes are not confused with each other.

    Example:
        >>> p = np.array([[0.9, 0.1, 0.0], [0.3, 0.7, 0.0], [0.1, 0.9, 0.0], [0.1, 0.1, 0.8]])
        >>> find_confused_pairs(p, np.array([0, 0, 1, 2]), np.ones(4, dtype=bool), names=["cat", "dog", "owl"])
        [ConfusedPair(first='cat', second='dog', first_as_second=1, second_as_first=0, rate=0.333...)]
    """
    if targets.ndim == 2:
        return []
    classes = probabilities.shape[1]
    counts = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(counts, (targets[is_judged], probabilities[is_judged].argmax(1)), 1)
    sizes = counts.sum(1)
    first, second = np.triu_indices(classes, 1)
    mistakes = counts[first, second] + counts[second, first]
    rates = mistakes / np.maximum(sizes[first] + sizes[second], 1)
    order = np.lexsort((-rates, -mistakes))[:limit]
    return [
        ConfusedPair(names[int(a)], names[int(b)], int(counts[a, b]), int(counts[b, a]), float(rate))
        for a, b, rate in zip(first[order], second[order], rates[order], strict=True)
        if rate > 0
    ]


def measure_isolation(features: np.ndarray) -> np.ndarray:
    """(n,) mean cosine distance of (n, d) features to their ten nearest neighbours."""
    distances = np.zeros(len(features))
    x = features.astype(np.float32)
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    count = min(NEIGHBOURS, len(x) - 1)
    for start in range(0, len(x) if count else 0, _CHUNK):
        likeness = x[start : start + _CHUNK] @ x.T
        rows = np.arange(len(likeness))
        likeness[rows, start + rows] = -np.inf
        distances[start + rows] = 1 - np.partition(likeness, -count, axis=1)[:, -count:].mean(1)
    return distances


def find_outliers(isolation: np.ndarray) -> np.ndarray:
    """(n,) which images are outliers: three robust standard deviations more isolated than the median.

    Example:
        >>> features = np.array([[1.0, 0.0], [1.0, 0.1], [1.0, -0.1], [1.0, -0.2], [0.2, 1.0]])
        >>> find_outliers(measure_isolation(features)).tolist()
        [False, False, False, False, True]
    """
    away = isolation - np.median(isolation)
    spread = 1.4826 * np.median(np.abs(away))
    return (away > _OUTLIER_DEVIATIONS * spread) & (spread > 0)
