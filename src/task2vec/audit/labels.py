"""Which labels are probably wrong, which classes are confused, and which images are outliers.

`judge_labels` compares each label with the mean of two probabilities, that of linear heads and that of the nearest
images, both without the image and its copies. An image is more suspicious the more probable another class is:

    score = sqrt(p(most probable other class)) - sqrt(p(given class))

How many suspects are really wrong follows from planted errors. The image itself has no part in its probabilities, so
the score that it would have with any other label is known without fitting again. Half of the errors are planted as any
other class, half as the most similar one: slips of the hand and honest confusions. For each image whose own label is
not the most probable, let v be the share of detectable planted errors with a higher score. v is uniform if the label is
wrong; if the image is only hard, large values are more frequent: the density is taken as `HARDNESS` v^(HARDNESS - 1).
The part of wrong labels in this mixture is averaged over what the set leaves possible.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# Of the heads; C = 0.01 of scikit-learn is 0.002 to 0.004 for 300 images. From 0.0003 to 0.003 it matters little.
PENALTY = 1e-3
NEIGHBOURS = 10
SHARPNESS = 10
# What is added to the variance in all directions before the nearest images are found, as a share of all variance.
_SMOOTHING = 1.0
# An image is a suspect if its label is wrong with at least this probability.
LEAST_CHANCE = 0.25

SUSPECTED = 0.115
# Robust standard deviations from the median at which an image is an outlier.
_OUTLIER_DEVIATIONS = 3
_CHUNK = 1024
_MAX_PLANTED = 2000
# Shapes of the distribution of hard images, and shares of wrong labels among suspicious ones, that are possible.
_SHAPES = np.array([2, 3, 4, 6, 8, 12])
_SHARES = np.concatenate([[0], np.geomspace(0.003, 1, 25)])
_NO_ERROR = 0.3
# Two classes look alike if this part of their images, errors aside, are taken for each other.
_LOOKALIKE_RATE = 0.05


@dataclass(frozen=True)
class LabelJudgement:
    """What other images say about each label.

    Attributes:
        suggested: (n,) the most probable other class; with attributes, the one whose value is in question.
        score: (n,) how suspicious the label is, from -1 to 1; above 0 another class is more probable. NaN if not
            judged.
        chance: (n,) estimated probability that the label is wrong; NaN if not judged.
        suspects: numbers of the images to look at, the most suspicious first.
        expected: the expected share of wrong labels among the suspects; None without suspects.
        is_lookalike: (n,) whether other images of the given and the suggested class are often taken for each other.
    """

    suggested: np.ndarray
    score: np.ndarray
    chance: np.ndarray
    suspects: tuple[int, ...]
    expected: float | None
    is_lookalike: np.ndarray


def judge_labels(features: Any, targets: Any, *, classes: int, groups: Any, balance: bool = True) -> LabelJudgement:
    """The labels that are probably wrong, by (n, d) `features`, arrays or tensors.

    `targets` are (n,) class indices or (n, c) zeros and ones. Images with the same number in `groups` (n,), from 0 on,
    are copies, and have no say in each other's labels. `balance` is that of the heads.

    Example:
        >>> random = np.random.default_rng(0)
        >>> targets = np.repeat([0, 1], 30)
        >>> features = random.normal(size=(60, 8)) + 4 * targets[:, None]
        >>> targets[7] = 1
        >>> found = judge_labels(features, targets, classes=2, groups=np.arange(60))
        >>> found.suspects, int(found.suggested[7])
        ((7,), 0)
    """
    import torch

    from task2vec.head import predict_held_out

    x, y, copies = torch.as_tensor(features).float(), torch.as_tensor(targets).long(), torch.as_tensor(groups).long()
    heads, _, judged = predict_held_out(x, y, classes=classes, penalty=PENALTY, balance=balance, groups=copies)
    given, is_judged = y.cpu().numpy(), judged.cpu().numpy()
    onehot = given if given.ndim == 2 else np.eye(classes)[given]
    p = (heads.double().cpu().numpy() + predict_by_neighbours(x.cpu().numpy(), onehot, copies.cpu().numpy())) / 2
    scores = _score_labels(p, given)
    suggested = scores.argmax(1)
    score = np.where(is_judged, scores.max(1), np.nan)
    chance = np.where(is_judged, 0.0, np.nan)
    doubtful = np.flatnonzero(score > 0)
    clean = np.flatnonzero(score <= 0)
    if len(doubtful) and len(clean):
        chance[doubtful] = _estimate_chances(_compare_with_planted(score[doubtful], p, given, clean), len(doubtful))
    suspects = doubtful[chance[doubtful] >= LEAST_CHANCE]
    suspects = suspects[np.argsort(-score[suspects], kind="stable")]
    expected = float(chance[suspects].mean()) if len(suspects) else None
    hard = np.setdiff1d(doubtful, suspects)
    is_lookalike = _find_lookalikes(given, suggested, hard, onehot.sum(0))
    return LabelJudgement(suggested, score, chance, tuple(suspects.tolist()), expected, is_lookalike)


def predict_by_neighbours(features: np.ndarray, onehot: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """(n, c) mean labels of the nearest images outside of the own group, weighted by exp(10 (cosine - 1)).

    The cosine is that of features from their mean, in coordinates in which no direction has much more variance than
    others: directions in which all images differ most say little about classes.
    """
    x = features.astype(np.float64) - features.mean(0, dtype=np.float64)
    moment = x.T @ x / len(x)
    moment.flat[:: len(moment) + 1] += _SMOOTHING * np.trace(moment) / min(x.shape) + 1e-12
    x = np.linalg.solve(np.linalg.cholesky(moment), x.T).T.astype(np.float32)
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    p = np.zeros(onehot.shape)
    count = min(NEIGHBOURS, len(x))
    for start in range(0, len(x), _CHUNK):
        cosine = x[start : start + _CHUNK] @ x.T
        cosine[groups[start : start + _CHUNK, None] == groups] = -np.inf
        nearest = np.argpartition(-cosine, count - 1, axis=1)[:, :count]
        weights = np.exp(SHARPNESS * (np.take_along_axis(cosine, nearest, axis=1).astype(np.float64) - 1))
        total = np.einsum("nk,nkc->nc", weights, onehot[nearest])
        p[start : start + _CHUNK] = total / np.maximum(weights.sum(1, keepdims=True), 1e-300)
    return p


def _score_labels(p: np.ndarray, given: np.ndarray) -> np.ndarray:
    """(n, c) how much more probable than its label each other class is, or than its value the other one; else -1."""
    if given.ndim == 2:
        own = np.where(given == 1, p, 1 - p)
        return np.sqrt(1 - own) - np.sqrt(own)
    scores = np.sqrt(p) - np.sqrt(np.take_along_axis(p, given[:, None], axis=1))
    np.put_along_axis(scores, given[:, None], -np.inf, axis=1)
    return scores


def _compare_with_planted(doubtful: np.ndarray, p: np.ndarray, given: np.ndarray, clean: np.ndarray) -> np.ndarray:
    """The share of detectable planted errors whose scores are at least these `doubtful` ones."""
    clean = clean[np.linspace(0, len(clean) - 1, min(len(clean), _MAX_PLANTED)).astype(int)]
    p, given, classes = p[clean], given[clean], p.shape[1]
    if given.ndim == 2:  # any attribute, or one that the image has
        flipped = -_score_labels(p, given)
        others = _score_labels(p, given).max(1, keepdims=True)
        scores = np.maximum(flipped, others)
        any_other = np.ones(p.shape) / classes
        similar = given / np.maximum(given.sum(1, keepdims=True), 1)
    else:
        ordered = np.sort(p, axis=1)
        rival = np.where(p == ordered[:, -1:], ordered[:, -2:-1], ordered[:, -1:])
        scores = np.sqrt(rival) - np.sqrt(p)
        own = np.eye(classes)[given]
        any_other = (1 - own) / (classes - 1)
        confusion = own.T @ p
        np.fill_diagonal(confusion, -1)
        similar = np.eye(classes)[confusion.argmax(1)][given]
    weights = any_other + similar
    is_found = (scores > 0) & (weights > 0)
    scores, weights = scores[is_found], weights[is_found]
    order = np.argsort(scores, kind="stable")
    below = np.concatenate([[0.0], np.cumsum(weights[order])])
    share = 1 - below[np.searchsorted(scores[order], doubtful, side="left")] / max(below[-1], 1e-300)
    return np.clip(share, 1e-3, 1)


def _estimate_chances(v: np.ndarray, count: int) -> np.ndarray:
    """The probability that labels are wrong, from where they are among planted errors."""
    shape, share = np.repeat(_SHAPES, len(_SHARES))[:, None], np.tile(_SHARES, len(_SHAPES))[:, None]
    hard = (1 - share) * shape * v ** (shape - 1)
    evidence = np.log(hard + share + 1e-300).sum(1) + np.log(
        np.where(share[:, 0] == 0, _NO_ERROR, (1 - _NO_ERROR) / 25)
    )
    weights = np.exp(evidence - evidence.max())
    return weights / weights.sum() @ (share / (hard + share + 1e-300))


def _find_lookalikes(given: np.ndarray, suggested: np.ndarray, hard: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """(n,) whether many of the `hard` images have the same two classes, or the same attribute."""
    classes = len(sizes)
    if given.ndim == 2:
        counts = np.bincount(suggested[hard], minlength=classes)
        return counts[suggested] >= np.maximum(2, _LOOKALIKE_RATE * len(given))
    counts = np.zeros((classes, classes))
    np.add.at(counts, (given[hard], suggested[hard]), 1)
    is_alike = counts + counts.T >= np.maximum(2, _LOOKALIKE_RATE * (sizes[:, None] + sizes))
    return is_alike[given, suggested]


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
