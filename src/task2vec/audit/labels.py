"""Which labels are probably wrong, which classes are confused, and which images are outliers.

`judge_labels` takes the mean of two probabilities of each class, by linear heads and by the nearest images; neither
has seen the label of the image or of its copies. The more probable another class is, the more suspicious is the label:

    score = sqrt(p(most probable other class)) - sqrt(p(given class))

How many suspects are wrong follows from planted errors. The score that an image would have with another label needs no
new fit, since its own label has no part in p. So every image that looks right is given every other label; half of the
weight is on the class that its class is most confused with, half is spread evenly. For an image with a positive score,
let v be the share of the planted errors with a positive score that are at least as suspicious. If its label is wrong, v
is uniform. If the image is only hard, v is close to 1: on 28 real datasets its density is b v^(b - 1), where b is about
`_HARD_SHAPE` divided by the share of hard images. The mixture of both is fitted to all v of the dataset, averaged over
the shapes and shares that are possible. A few images are as surprising as errors though their labels are right, such as
a drawing among photographs (`_ODD_RATE`); they are taken off. docs/results/labels.md compares chances with the truth.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

# Of the heads: as that of the heads whose error the report states. From 0.0003 to 0.003 suspects are found as well.
PENALTY = 1e-3
NEIGHBOURS = 20
SHARPNESS = 10
# An image is a suspect if its label is wrong with at least this probability.
LEAST_CHANCE = 0.3
# The rates of wrong and of odd images that are expected beforehand. With a lower rate of wrong ones, too few were
# expected of those planted in the 28 datasets; without odd ones, too many where few were planted.
_USUAL_RATE = 0.02
_ODD_RATE = 0.005
_HARD_SHAPE, _SHAPE_DEVIATION = 1.5, 0.5
_SHAPES = np.geomspace(1.25, 32, 14)
_SHARES = np.geomspace(0.002, 1, 26)
# v is rounded, and errors are planted into so many images: both limit memory and time.
_LEVELS = 1000
_MAX_PLANTED = 2000
# Two classes look alike if so many of their images are confused without being suspects.
_ALIKE_RATE, _MIN_ALIKE = 0.05, 2
_ISOLATING = 10
# Robust standard deviations from the median at which an image is an outlier.
_OUTLIER_DEVIATIONS = 3
_CHUNK = 1024


@dataclass(frozen=True)
class LabelJudgement:
    """What the other images say about each label.

    Attributes:
        suggested: (n,) the most probable other class; with attributes, the one whose value is in question.
        score: (n,) how suspicious the label is, from -1 to 1; above 0, another class is more probable. NaN if not
            judged, because the class has no image but this one and its copies.
        chance: (n,) the estimated probability that the label is wrong; NaN if not judged.
        suspects: numbers of the images to look at, the most suspicious first.
        expected: the share of them whose labels are expected to be wrong; None without suspects.
        is_lookalike: (n,) whether the given and the suggested class are often confused, apart from suspects.
    """

    suggested: np.ndarray
    score: np.ndarray
    chance: np.ndarray
    suspects: tuple[int, ...]
    expected: float | None
    is_lookalike: np.ndarray


def judge_labels(features: Any, targets: Any, *, classes: int, groups: Any, balance: bool = True) -> LabelJudgement:
    """The labels that are probably wrong, by (n, d) `features`; all arguments are arrays or tensors.

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

    x, copies = torch.as_tensor(features).float(), torch.as_tensor(groups).long()
    y = torch.as_tensor(targets).long()
    heads, _, judged = predict_held_out(x, y, classes=classes, penalty=PENALTY, balance=balance, groups=copies)
    onehot = y if y.ndim == 2 else torch.nn.functional.one_hot(y, classes)
    p = (heads.double() + predict_by_neighbours(x, onehot.double(), copies)).cpu().numpy().clip(0, 2) / 2
    given, is_judged = y.cpu().numpy(), judged.cpu().numpy()
    scores = _score_labels(p, given)
    suggested = scores.argmax(1)
    score = np.where(is_judged, scores.max(1), np.nan)
    doubtful, plausible = np.flatnonzero(score > 0), np.flatnonzero(score <= 0)
    chance = np.where(is_judged, 0.0, np.nan)
    if len(doubtful):
        v = _compare_with_planted(score[doubtful], p[plausible], given[plausible])
        chance[doubtful] = _estimate_chances(v, int(is_judged.sum()))
    is_suspect = chance >= LEAST_CHANCE
    suspects = np.flatnonzero(is_suspect)
    suspects = suspects[np.argsort(-score[suspects], kind="stable")]
    expected = float(chance[suspects].mean()) if len(suspects) else None
    is_lookalike = _find_lookalikes(given, suggested, doubtful[~is_suspect[doubtful]], classes)
    return LabelJudgement(suggested, score, chance, tuple(suspects.tolist()), expected, is_lookalike)


def predict_by_neighbours(features: "Tensor", onehot: "Tensor", groups: "Tensor") -> "Tensor":
    """(n, c) mean labels of the nearest images outside of the own group, with weights exp(`SHARPNESS` (cosine - 1)).

    The cosine is that of features from their mean, whose variance is first made more equal in all directions: those in
    which all images differ most say little about their classes.
    """
    import torch

    x = features.double() - features.double().mean(0)
    moment = x.T @ x / len(x)
    moment.diagonal().add_(moment.trace() / min(x.shape) + 1e-12)
    x = torch.linalg.solve_triangular(torch.linalg.cholesky(moment), x.T, upper=False).T
    x = torch.nn.functional.normalize(x, dim=1).float()
    predicted = []
    for rows in torch.arange(len(x), device=x.device).split(_CHUNK):
        cosine = (x[rows] @ x.T).masked_fill(groups[rows, None] == groups, -torch.inf)
        nearest = cosine.topk(min(NEIGHBOURS, len(x)), dim=1)
        weights = (SHARPNESS * (nearest.values.double() - 1)).exp()
        total = torch.einsum("nk,nkc->nc", weights, onehot[nearest.indices])
        predicted.append(total / weights.sum(1, keepdim=True).clamp_min(1e-300))
    return torch.cat(predicted)


def _score_labels(p: np.ndarray, given: np.ndarray) -> np.ndarray:
    """(n, c) the score of each other class in place of the given one, or of the other value of each attribute."""
    if given.ndim == 2:
        own = np.where(given == 1, p, 1 - p)
        return np.sqrt(1 - own) - np.sqrt(own)
    scores = np.sqrt(p) - np.sqrt(np.take_along_axis(p, given[:, None], axis=1))
    np.put_along_axis(scores, given[:, None], -np.inf, axis=1)
    return scores


def _compare_with_planted(scores: np.ndarray, p: np.ndarray, given: np.ndarray) -> np.ndarray:
    """The share of planted errors with a positive score that are at least as suspicious as each of the `scores`.

    Errors are planted into images with the probabilities `p` (n, c), whose labels look right: so the label that an
    image has is the rival of any that is planted.
    """
    rows = np.linspace(0, len(p) - 1, min(len(p), _MAX_PLANTED)).astype(int)
    p, given, classes = p[rows], given[rows], p.shape[1]
    planted = -_score_labels(p, given)
    if given.ndim == 2:  # any value, or one that says that the image has an attribute
        weights = 1 / classes + given / np.maximum(given.sum(1, keepdims=True), 1)
    else:
        own = np.eye(classes)[given]
        confusion = own.T @ p
        np.fill_diagonal(confusion, -1)
        weights = (1 - own) / (classes - 1) + np.eye(classes)[confusion.argmax(1)][given]
    is_found = (planted > 0) & (weights > 0)
    planted, weights = planted[is_found], weights[is_found]
    order = np.argsort(planted, kind="stable")
    below = np.concatenate([[0.0], np.cumsum(weights[order])])
    return 1 - below[np.searchsorted(planted[order], scores)] / max(below[-1], 1e-300)


def _estimate_chances(v: np.ndarray, count: int) -> np.ndarray:
    """The probabilities that labels are wrong, from all v of `count` judged images (see the module)."""
    levels, of, counts = np.unique(np.ceil(v * _LEVELS).clip(1) / _LEVELS, return_inverse=True, return_counts=True)
    shape, share = (grid.reshape(-1, 1) for grid in np.meshgrid(_SHAPES, _SHARES))
    rate = share * len(v) / count
    hard = (1 - share) * shape * levels ** (shape - 1)
    images = (1 - share) * len(v) + 0.5
    deviation = np.log(shape * images / count / _HARD_SHAPE)
    # The rate is drawn from an exponential distribution; its shares are evenly spaced in logarithms.
    log_prior = np.log(rate) - rate / _USUAL_RATE - deviation**2 / 2 / (_SHAPE_DEVIATION**2 + 1 / images)
    evidence = np.log(hard + share) @ counts[:, None] + log_prior
    weights = np.exp(evidence - evidence.max())
    chances = share / (hard + share) * rate / (rate + _ODD_RATE)
    return ((weights * chances).sum(0) / weights.sum())[of]


def _find_lookalikes(given: np.ndarray, suggested: np.ndarray, hard: np.ndarray, classes: int) -> np.ndarray:
    """(n,) whether the two classes, or the attribute, of an image are often confused by the `hard` images."""
    if given.ndim == 2:
        counts = np.bincount(suggested[hard], minlength=classes)
        return counts[suggested] >= max(_MIN_ALIKE, _ALIKE_RATE * len(given))
    counts = np.zeros((classes, classes))
    np.add.at(counts, (given[hard], suggested[hard]), 1)
    sizes = np.bincount(given, minlength=classes)
    is_alike = counts + counts.T >= np.maximum(_MIN_ALIKE, _ALIKE_RATE * (sizes[:, None] + sizes))
    return is_alike[given, suggested]


def measure_isolation(features: np.ndarray) -> np.ndarray:
    """(n,) mean cosine distance of (n, d) features to their ten nearest neighbours."""
    distances = np.zeros(len(features))
    x = features.astype(np.float32)
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    count = min(_ISOLATING, len(x) - 1)
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
