"""Transferability scores: features and labels become one number, higher for a network that suits the task better.

`score_features` computes all of them. Each is a function of (n, d) features, or of (n, s) probabilities of source
classes, and of the labels of some tasks on these images: (n,) numbers of classes without gaps for each task. It is the
mean over the tasks. The arithmetic is in float64, on the CPU.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_expit
from sklearn.covariance import ledoit_wolf_shrinkage
from sklearn.neighbors import NearestNeighbors

from task2vec.errors import NotFiniteError, UndefinedScoreError, UsageError
from task2vec.tasks.task import check_labels

# Deviations from the mean below this part of the largest value of a column are rounding.
_ROUNDING = 1e-13


def _to_numpy(values: Any) -> np.ndarray:
    """A tensor, on whatever device, or what torch takes for one; in float64 if it is of floating point."""
    tensor = torch.as_tensor(values).detach().cpu()
    return tensor.double().numpy() if tensor.is_floating_point() else tensor.numpy()


def _centre(features: np.ndarray) -> np.ndarray:
    """(n, d) deviations from the mean; a constant feature is exactly zero."""
    deviations = features - features.mean(0)
    return np.where(np.abs(deviations) <= _ROUNDING * np.abs(features).max(0), 0, deviations)


def _decompose(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(n, r) singular vectors U and (r,) squared singular values of (n, d) features of rank r.

    Directions with less than about 10^-12 of the largest square are the rounding of features in float32.
    """
    vectors, values, _ = np.linalg.svd(rows, full_matrices=False)
    squares = np.square(values)
    is_real = squares > squares.max() * max(rows.shape) * 10 * np.finfo(np.float64).eps
    return vectors[:, is_real], squares[is_real]


def _encode(labels: np.ndarray) -> np.ndarray:
    """(n, c) one column of zeros and ones for each class."""
    return np.eye(labels.max() + 1)[labels]


def knn(features: np.ndarray, tasks: Sequence[np.ndarray]) -> float:
    """Leave-one-out accuracy of the nearest neighbour, by Euclidean distance on the features as they are.

    Puigcerver 2021 ranks experts so. Invariant to rotation, shift and a common scale of the features. A class of one
    image is always missed, and few images per class make every network look worse.

    Example:
        >>> features = np.array([[0.0], [0.1], [1.0], [1.1], [0.25]])
        >>> knn(features, [np.array([0, 0, 1, 1, 1])])  # the last image is among those of the other class
        0.8
    """
    nearest = NearestNeighbors(n_neighbors=1).fit(_centre(features)).kneighbors(return_distance=False)[:, 0]
    return float(np.mean([labels[nearest] == labels for labels in tasks]))


def logme(features: np.ndarray, tasks: Sequence[np.ndarray]) -> float:
    """LogME (You 2021): the largest log evidence of a Bayesian linear model of each class, per image.

    For a 0/1 column y of one class, weights w ~ N(0, I / alpha) and y ~ N(F w, I / beta),

        LogME = mean over classes of  max over alpha, beta of  log p(y | F, alpha, beta) / n

    The paper finds the maximum by a fixed point in both; its code stops after eleven rounds, not always there. With
    t = alpha / beta the best beta is known, n / Q(t), and one variable is left. In the squared singular values s of F,
    z = U^T y and p = t / (s + t):

        log p(y | F) = -n/2 log(Q / n) + 1/2 sum log p - n/2 (1 + log 2 pi),   Q(t) = sum p z^2 + |y - U z|^2

    so a grid over log t, and a search around the best point of each class, give the maximum itself. What the paper
    leaves open: features have no bias here, so the score changes when a constant is added; classes without images do
    not count; a residual below 10^-12 of |y|^2 counts as that. Invariant to rotation and to a common scale.

    Example:
        >>> labels = np.arange(200) % 2
        >>> features = np.random.default_rng(0).normal(size=(200, 5))
        >>> logme(features + labels[:, None], [labels]) > logme(features, [labels])
        True
    """
    (vectors, squares), count = _decompose(features), len(features)
    evidence = [_find_evidence(vectors, squares, _encode(labels)).mean() for labels in tasks]
    return float(np.mean(evidence) / count - (1 + math.log(2 * math.pi)) / 2)


def _find_evidence(vectors: np.ndarray, squares: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """(c,) largest log evidence of (n, c) columns, but for the constant of `logme`."""
    count = len(columns)
    lengths, energy = columns.sum(0), np.square(vectors.T @ columns)
    # Where the features span everything, nothing is left over, and what is computed is rounding.
    rest = np.maximum(lengths - energy.sum(0), 1e-12 * lengths) if len(squares) < count else 0 * lengths
    if not len(squares):  # one direction in which nothing lies
        squares, energy = np.ones(1), np.zeros((1, len(lengths)))
    logs = np.log(squares)

    def measure(log_t: np.ndarray, classes: slice) -> np.ndarray:
        left = expit(log_t[:, None] - logs) @ energy[:, classes] + rest[classes]
        return log_expit(log_t[:, None] - logs).sum(1)[:, None] / 2 - count / 2 * np.log(left / count)

    grid, spacing = np.linspace(logs.min() - 30, logs.max() + 20, 256, retstep=True)
    coarse = measure(grid, slice(None))
    evidence = coarse.max(0)
    for number, start in enumerate(grid[coarse.argmax(0)]):
        column = slice(number, number + 1)
        bounds = (start - spacing, start + spacing)
        refined: Any = minimize_scalar(
            lambda log_t, column=column: -measure(np.array([log_t]), column).item(), bounds=bounds
        )
        evidence[number] = max(evidence[number], -refined.fun)
    return evidence


def leep(theta: np.ndarray, tasks: Sequence[np.ndarray]) -> float:
    """LEEP (Nguyen 2020): the log-likelihood of the labels under a classifier read off the source classes.

    With the network's probabilities theta(x) over its s source classes z, and the empirical joint distribution
    P(y, z) = 1/n sum over images of class y of theta(x)_z,

        LEEP = 1/n sum_i log sum_z P(y_i | z) theta(x_i)_z

    between minus the entropy of the labels and 0. The classifier is fitted and tested on the same images, so with many
    source classes and few images every network looks good. It reads the network's head and not its features.

    Example:
        >>> sure = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
        >>> labels = np.array([0, 0, 1, 1])
        >>> leep(sure, [labels]), round(leep(np.full((4, 2), 0.5), [labels]), 4)  # the second is -log 2
        (0.0, -0.6931)
    """
    scores = []
    for labels in tasks:
        joint = _encode(labels).T @ theta
        likelihood = (theta * (joint / np.maximum(joint.sum(0), 1e-300))[labels]).sum(1)
        # Every image has its own share in the joint distribution, so none is impossible; rounding must not exceed one.
        scores.append(np.log(likelihood.clip(1e-300, 1)).mean())
    return float(np.mean(scores))


def h_score_shrunk(features: np.ndarray, tasks: Sequence[np.ndarray]) -> float:
    """H-score with a shrunk covariance (Ibrahim 2022): directions count by how far their variance can be trusted.

    It replaces cov(f) by (1 - a) cov(f) + a tr(cov(f)) / d I with the a of Ledoit and Wolf 2004, and cov(E[f | y]) by
    (1 - a) times itself:

        H_a = sum over directions j of  w_j sum_c n_c mean(U_j)^2,   w_j = (1 - a) l_j / ((1 - a) l_j + a mean(l))

    with l_j the variances, mean(l) over all d features. Both covariances are divided by n. Features that never vary
    score 0. Invariant to rotation, shift and a common scale.
    """
    centred = _centre(features)
    (vectors, squares), (count, width) = _decompose(centred), features.shape
    variances = squares / count
    shrinkage, mean = ledoit_wolf_shrinkage(centred, assume_centered=True), variances.sum() / width
    trusted = (1 - shrinkage) * variances
    weights = trusted / (trusted + shrinkage * mean)
    between = [(np.square(vectors.T @ _encode(labels)) / np.bincount(labels)).sum(1) for labels in tasks]
    return float(np.mean([weights @ shares for shares in between]))


# --- all of them -----------------------------------------------------------------------------------------------------


SCORES: Mapping[str, Callable[..., float]] = MappingProxyType(
    {"knn": knn, "logme": logme, "leep": leep, "h_score_shrunk": h_score_shrunk}
)
# Scores of the network's probabilities over its source classes; all others are scores of its features.
SOURCE_SCORES = ("leep",)


def score_features(
    features: Any,
    targets: Any,
    *,
    classes: int,
    source_probabilities: Any = None,
    is_multilabel: bool = False,
    which: Sequence[str] | None = None,
) -> dict[str, float]:
    """Every score by name of (n, d) features for (n,) class indices, or for (n, classes) zeros and ones.

    A score of several attributes per image is the mean over the attributes, each a task of two classes; attributes that
    are the same in all images are left out.

    Args:
        features: pooled features of the task's images in the network, as a tensor or an array.
        targets: class indices below `classes`, or attributes with `is_multilabel`.
        classes: how many classes or attributes the task has; a class without images is left out.
        source_probabilities: (n, s) softmax output of the network's own head, which LEEP needs.
        is_multilabel: whether the targets are independent attributes.
        which: names from `SCORES`; by default all whose input is given.

    Raises:
        UsageError: An array has another shape than it must have, or a score is unknown or lacks its input.
        UndefinedScoreError: All images are of one class, or the probabilities are none.

    Example:
        >>> import torch
        >>> labels = torch.arange(60) % 3
        >>> features = torch.nn.functional.one_hot(labels, 3) + torch.randn(60, 3) / 10
        >>> score_features(features, labels, classes=3, which=["knn"])
        {'knn': 1.0}
    """
    known = [name for name in SCORES if source_probabilities is not None or name not in SOURCE_SCORES]
    names = known if which is None else which
    if unknown := [name for name in names if name not in known]:
        raise UsageError(
            f"there is no score {unknown[0]!r} of what was given. The scores are: {', '.join(SCORES)}; of these, "
            f"{', '.join(SOURCE_SCORES)} needs source_probabilities=..."
        )
    features, targets = _to_numpy(features).astype(np.float64), _to_numpy(targets)
    theta = None if source_probabilities is None else _to_numpy(source_probabilities)
    shapes = [array.shape for array in (features, targets, theta) if array is not None]
    has_shapes = [len(shape) for shape in shapes] == [2, 1 + is_multilabel, 2][: len(shapes)]
    if not has_shapes or 0 in features.shape or len({shape[0] for shape in shapes}) > 1:
        raise UsageError(
            f"features, targets (and source_probabilities) of the shapes {', '.join(map(str, shapes))} are not of the "
            f"same images. Pass features (n, d), targets (n,) of class indices, or (n, {classes}) of zeros and ones "
            "with is_multilabel=True, and source_probabilities (n, s)."
        )
    if (is_bad := ~np.isfinite(features).all(1)).any():
        raise NotFiniteError(
            f"the features of image {int(is_bad.argmax())} are not finite ({int(is_bad.sum())} such images), so a "
            "score of them would mean nothing. Look for infinities in the network, or leave the images out."
        )
    columns = np.atleast_2d(check_labels(targets, classes, "image {}".format).T)
    tasks = [np.unique(column, return_inverse=True)[1] for column in columns if np.ptp(column) > 0]
    if not tasks:
        raise UndefinedScoreError(
            f"all {len(targets)} images are of one class or have the same attributes, so there is nothing to "
            "distinguish. Add images of another class."
        )
    if theta is not None:
        theta = _check_probabilities(theta.astype(np.float64))
    return {name: SCORES[name](theta if name in SOURCE_SCORES else features, tasks) for name in names}


def _check_probabilities(theta: np.ndarray) -> np.ndarray:
    """(n, s) probabilities whose rows sum to one; logits and the like have no score."""
    sums = theta.sum(1)
    # Probabilities in half precision add up no better.
    if not ((np.abs(sums - 1) <= 1e-2).all() and (theta >= 0).all()):
        raise UndefinedScoreError(
            f"the rows of source_probabilities sum to {sums.min():.4g} to {sums.max():.4g}, or one is below 0, so they "
            "are not distributions over source classes, and LEEP would mean nothing. Pass softmax probabilities, not "
            "logits or probabilities of independent attributes."
        )
    return theta / sums[:, None]
