"""Transferability scores: features and labels become one number, higher for a network that suits the task better.

`score_features` computes all of them; each one is a function of `Features`, or of (n, s) probabilities of source
classes, and `Labels`. What several scores need (spectra, neighbours) is computed once per `Features`. The
arithmetic is in float64, on the device of the features: squares of singular values span a range of 10^12, which float32
cannot hold. Where only an order of distances is wanted float32 is enough, and on a CPU twice as fast; not on a GPU,
which may round products to ten bits.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional

from task2vec.errors import NotFiniteError, UndefinedScoreError, UsageError
from task2vec.tasks.task import check_labels

# Deviations from the mean below this part of the largest value of a column are rounding.
_ROUNDING = 1e-13
_EPSILON = torch.finfo(torch.float64).eps
_ROWS = 512  # rows of an (n, n) table that are made at a time
_MOST_NEIGHBOURS = 16
_SPARE = 16  # neighbours beyond these, among which ties are found
_SMALLEST, _TINY = 1e-150, 1e-300


# --- features and labels ---------------------------------------------------------------------------------------------


class Spectrum:
    """The decomposition X = U S V^T of (n, d) features of rank r.

    It is computed from the eigenvalues of the smaller of the two products X^T X and X X^T. That costs the cube of the
    smaller side and squares the condition number; directions with less than about 10^-12 of the largest square are
    below the rounding of the product and are dropped.

    Attributes:
        squares: (r,) squared singular values, largest first.
        rows: (n, d) the features.
        vectors: (n, r) the vectors U if there are more features than images, else (d, r) the vectors V.
    """

    def __init__(self, rows: Tensor):
        squares, vectors = torch.linalg.eigh(_multiply(rows))
        squares, vectors = squares.flip(0), vectors.flip(1)
        rank = int((squares > squares[0].clamp_min(0) * max(rows.shape) * 10 * _EPSILON).sum())
        self.squares, self.rows, self.vectors = squares[:rank], rows, vectors[:, :rank]

    def project(self, columns: Tensor) -> Tensor:
        """(r, c) products U^T Y with (n, c) columns."""
        if _is_wide(self.rows):
            return self.vectors.T @ columns
        return (self.vectors.T @ (self.rows.T @ columns)) / self.squares.sqrt()[:, None]

    def principal(self, count: int) -> Tensor:
        """(n, count) coordinates U S along the first directions; fewer where the rank is lower."""
        if _is_wide(self.rows):
            return self.vectors[:, :count] * self.squares[:count].sqrt()
        return self.rows @ self.vectors[:, :count]


def _is_wide(rows: Tensor) -> bool:
    """Whether there are more features than images."""
    return rows.shape[1] > rows.shape[0]


def _multiply(rows: Tensor) -> Tensor:
    """The smaller of the products X X^T and X^T X."""
    return rows @ rows.T if _is_wide(rows) else rows.T @ rows


def _lower_precision(values: Tensor) -> Tensor:
    """The values in the precision in which an order is found fastest without losing it."""
    return values.float() if values.device.type == "cpu" else values


class Features:
    """(n, d) features, checked and in float64; what scores need of them is computed once."""

    def __init__(self, features: Tensor):
        if features.ndim != 2 or 0 in features.shape:
            raise UsageError(
                f"features of shape {tuple(features.shape)} are not one row per image, so they cannot be scored. Pass "
                "an (n, d) tensor of pooled features."
            )
        values = features.detach().double()
        is_bad = ~values.isfinite().all(1)
        if is_bad.any():
            raise NotFiniteError(
                f"the features of image {int(is_bad.nonzero()[0])} are not finite ({int(is_bad.sum())} such images), "
                "so a score of them would mean nothing. Look for infinities in the network, or leave the images out."
            )
        self.values = values

    def __len__(self) -> int:
        """Number of images."""
        return len(self.values)

    @cached_property
    def centred(self) -> Tensor:
        """(n, d) deviations from the mean; a constant feature is exactly zero."""
        deviations = self.values - self.values.mean(0)
        return deviations.masked_fill_(deviations.abs() <= _ROUNDING * self.values.abs().amax(0), 0)

    @cached_property
    def spectrum(self) -> Spectrum:
        """Singular values and vectors of the centred features."""
        return Spectrum(self.centred)

    @cached_property
    def raw_spectrum(self) -> Spectrum:
        """Singular values and vectors of the features as they are."""
        return Spectrum(self.values)

    @cached_property
    def compact(self) -> Tensor:
        """(n, r) centred features in coordinates of their own span where that is narrower: same lengths and angles."""
        return self.spectrum.principal(len(self)) if _is_wide(self.values) else self.centred

    @cached_property
    def nearest(self) -> tuple[Tensor, Tensor]:
        """(n, m) squared distances to the nearest other images, nearest first, and which they are.

        In units of the longest vector from the mean, so that squares stay in the range of float32, which finds who is
        near. How near is measured again in float64: one very long vector would make all others alike.
        """
        exact = self.compact / self.compact.norm(dim=1).max().clamp_min(_SMALLEST)
        points = _lower_precision(exact)
        lengths = points.square().sum(1)
        count = min(_MOST_NEIGHBOURS + _SPARE, len(self) - 1)
        found = []
        for start in range(0, len(self), _ROWS):
            rows = points[start : start + _ROWS]
            squares = torch.addmm(lengths, rows, points.T, alpha=-2).add_(lengths[start : start + _ROWS, None])
            squares.diagonal(start).fill_(torch.inf)
            which = squares.topk(count, largest=False).indices
            near, order = (exact[start : start + _ROWS, None] - exact[which]).square().sum(2).sort(stable=True)
            found.append((near, which.gather(1, order)))
        return torch.cat([near for near, _ in found]), torch.cat([which for _, which in found])


class Labels:
    """The classes of (n,) labels that have images; fewer than two are refused.

    Attributes:
        index: (n,) the place of each image's class among them.
        onehot: (n, c) in float64.
        counts: (c,) images of each.
    """

    def __init__(self, labels: Tensor):
        present, index = labels.unique(return_inverse=True)
        if len(present) < 2:
            raise UndefinedScoreError(
                f"all {len(labels)} images are of one class ({int(present[0])}), so there is nothing to distinguish. "
                "Add images of another class."
            )
        self.index, self.onehot = index, functional.one_hot(index, len(present)).double()
        self.counts = self.onehot.sum(0)


# --- nearest neighbours ----------------------------------------------------------------------------------------------

# Squared distances that differ by this part of themselves, or by this part of the longest vector's, are a tie.
_TIE, _NOTHING = 1e-9, 1e-24


def knn(x: Features, y: Labels, *, k: int = 1) -> float:
    """Leave-one-out accuracy of the k nearest neighbours, by Euclidean distance on the features as they are.

    Puigcerver 2021 ranks experts so with k = 1. Neighbours as far away as the k-th all count (up to 16 more), and
    classes with equally many votes share the credit, so neither duplicated images nor the order of the images decide.
    Invariant to rotation, shift and a common scale of the features. A class of one image is always missed, and few
    images per class make every network look worse.

    Example:
        >>> features = torch.tensor([[0.0], [0.1], [1.0], [1.1], [0.25]])
        >>> knn(
        ...     Features(features), Labels(torch.tensor([0, 0, 1, 1, 1]))
        ... )  # the last image is among those of the other class
        0.8
    """
    squares, which = x.nearest
    is_near = squares <= squares[:, [min(k, squares.shape[1]) - 1]] * (1 + _TIE) + _NOTHING
    votes = torch.zeros_like(y.onehot).scatter_add_(1, y.index[which], is_near.double())
    is_ahead = votes == votes.amax(1, keepdim=True)
    credit = is_ahead.gather(1, y.index[:, None])[:, 0].double() / is_ahead.sum(1)
    return float(credit.mean())


# --- LogME -----------------------------------------------------------------------------------------------------------

_LEAST_RESIDUAL = 1e-12
# log t is searched from so far below the smallest square to so far above the largest, on so many points.
_BELOW, _ABOVE, _POINTS, _NEWTON_STEPS = 30.0, 20.0, 256, 4


def logme(x: Features, y: Labels) -> float:
    """LogME (You 2021): the largest log evidence of a Bayesian linear model of each class, per image.

    For a 0/1 column y of one class, weights w ~ N(0, I / alpha) and y ~ N(F w, I / beta),

        LogME = mean over classes of  max over alpha, beta of  log p(y | F, alpha, beta) / n

    The paper finds the maximum by a fixed point in both; its code stops after eleven rounds, not always there. With
    t = alpha / beta the best beta is known, n / Q(t), and one variable is left. In the squared singular values s of F,
    z = U^T y and p = t / (s + t):

        log p(y | F) = -n/2 log(Q / n) + 1/2 sum log p - n/2 (1 + log 2 pi),   Q(t) = sum p z^2 + |y - U z|^2

    so a grid over log t, one matrix product for all classes, and a few Newton steps give the maximum itself. What the
    paper leaves open: features have no bias here, so the score changes when a constant is added; classes without images
    do not count; a residual below 10^-12 of |y|^2 counts as that. Invariant to rotation and to a common scale.

    Example:
        >>> labels = torch.arange(200) % 2
        >>> features = torch.randn(200, 5, generator=torch.Generator().manual_seed(0))
        >>> apart = Features(features + labels[:, None])
        >>> logme(apart, Labels(labels)) > logme(Features(features), Labels(labels))
        True
    """
    energy = x.raw_spectrum.project(y.onehot).square()
    return float(_maximise_evidence(x.raw_spectrum.squares, energy, y.counts, images=len(x)).mean() / len(x))


def _maximise_evidence(squares: Tensor, energy: Tensor, lengths: Tensor, *, images: int) -> Tensor:
    """(c,) largest log evidence of columns with (r, c) squared projections and (c,) squared lengths."""
    constant = -images / 2 * (1 + math.log(2 * math.pi))
    if not len(squares):
        return constant - images / 2 * (lengths / images).log()
    # Where the features span everything, nothing is left over, and what is computed is rounding.
    is_complete = len(squares) == images
    rest = torch.zeros_like(lengths) if is_complete else (lengths - energy.sum(0)).maximum(_LEAST_RESIDUAL * lengths)
    logs = squares.log()[:, None]

    grid = torch.linspace(float(logs[-1]) - _BELOW, float(logs[0]) + _ABOVE, _POINTS).to(logs)
    volume = functional.logsigmoid(grid - logs).sum(0)
    left = energy.T @ torch.sigmoid(grid - logs) + rest[:, None]
    best, at = (volume / 2 - images / 2 * (left / images).log()).max(1)

    spacing = float(grid[1] - grid[0])
    place = start = grid[at]
    for _ in range(_NEWTON_STEPS):
        p, not_p = torch.sigmoid(place - logs), torch.sigmoid(logs - place)
        q = (energy * p).sum(0) + rest
        first, second = (energy * p * not_p).sum(0) / q, (energy * p * not_p * (not_p - p)).sum(0) / q
        slope = not_p.sum(0) / 2 - images / 2 * first
        bend = -(p * not_p).sum(0) / 2 - images / 2 * (second - first.square())
        step = torch.where(bend < 0, -slope / bend.clamp_max(-_TINY), torch.zeros_like(slope))
        place = (place + step).clamp(start - spacing, start + spacing)
    left = (energy * torch.sigmoid(place - logs)).sum(0) + rest
    refined = functional.logsigmoid(place - logs).sum(0) / 2 - images / 2 * (left / images).log()
    return constant + best.maximum(refined)


# --- LEEP ------------------------------------------------------------------------------------------------------------

_SUM_TOLERANCE = 1e-2  # probabilities in half precision add up no better


def leep(theta: Tensor, y: Labels) -> float:
    """LEEP (Nguyen 2020): the log-likelihood of the labels under a classifier read off the source classes.

    With the network's probabilities theta(x) over its s source classes z, and the empirical joint distribution
    P(y, z) = 1/n sum over images of class y of theta(x)_z,

        LEEP = 1/n sum_i log sum_z P(y_i | z) theta(x_i)_z

    between minus the entropy of the labels and 0. The classifier is fitted and tested on the same images, so with many
    source classes and few images every network looks good. It reads the network's head and not its features.

    Example:
        >>> sure = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]).double()
        >>> labels = Labels(torch.tensor([0, 0, 1, 1]))
        >>> leep(sure, labels), round(leep(torch.full((4, 2), 0.5).double(), labels), 4)  # the second is -log 2
        (0.0, -0.6931)
    """
    joint = y.onehot.T @ theta
    conditional = joint / joint.sum(0).clamp_min(_TINY)
    likelihood = (theta * conditional[y.index]).sum(1)
    # Every image has its own share in the joint distribution, so none is impossible; rounding must not exceed one.
    return float(likelihood.clamp(_TINY, 1.0).log().mean())


# --- H-score ---------------------------------------------------------------------------------------------------------


def h_score_shrunk(x: Features, y: Labels) -> float:
    """H-score with a shrunk covariance (Ibrahim 2022): directions count by how far their variance can be trusted.

    It replaces cov(f) by (1 - a) cov(f) + a tr(cov(f)) / d I with the a of Ledoit and Wolf 2004, and cov(E[f | y]) by
    (1 - a) times itself:

        H_a = sum over directions j of  w_j sum_c n_c mean(U_j)^2,   w_j = (1 - a) l_j / ((1 - a) l_j + a mean(l))

    with l_j the variances, mean(l) over all d features. Both covariances are divided by n. Features that never vary
    score 0. Invariant to rotation, shift and a common scale.
    """
    variances, width = x.spectrum.squares / len(x), x.values.shape[1]
    energy, mean = variances.square().sum(), variances.sum() / width
    distance = float(energy / width - mean.square())
    shrinkage = 0.0  # where the covariance is a multiple of the identity already
    if distance > 1e-15 * float(mean.square()):
        noise = float(x.centred.square().sum(1).square().mean() - energy) / (len(x) * width)
        shrinkage = min(max(noise, 0.0), distance) / distance
    trusted = (1 - shrinkage) * variances
    weights = trusted / (trusted + shrinkage * variances.sum() / width)
    return float((weights * _correlate_directions(x, y)).sum())


def _correlate_directions(x: Features, y: Labels) -> Tensor:
    """(r,) share of the variance of each principal direction that lies between the classes."""
    return (x.spectrum.project(y.onehot).square() / y.counts).sum(1)


# --- all of them -----------------------------------------------------------------------------------------------------


SCORES: Mapping[str, Callable[..., float]] = MappingProxyType(
    {"knn": knn, "logme": logme, "leep": leep, "h_score_shrunk": h_score_shrunk}
)
# Scores of the network's probabilities over its source classes; all others are scores of its features.
SOURCE_SCORES = ("leep",)


class FeatureScores(dict[str, float]):
    """Scores by name; NaN where one is not defined.

    Attributes:
        reasons: why, for every NaN.
        left_out: attributes that are the same in all images.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reasons: dict[str, str] = {}
        self.left_out: tuple[int, ...] = ()


def score_features(
    features: Tensor,
    targets: Tensor,
    *,
    classes: int,
    source_probabilities: Tensor | None = None,
    is_multilabel: bool = False,
    which: Sequence[str] | None = None,
) -> FeatureScores:
    """Every score of (n, d) features for (n,) class indices, or for (n, classes) zeros and ones.

    A score of several attributes per image is the mean over the attributes, each a task of two classes; attributes that
    are the same in all images are left out.

    Args:
        features: pooled features of the task's images in the network; a GPU's stay there.
        targets: class indices below `classes`, or attributes with `is_multilabel`.
        classes: how many classes or attributes the task has; a class without images is left out.
        source_probabilities: (n, s) softmax output of the network's own head, which LEEP needs. Anything else
            (logits, separate probabilities of attributes) leaves it undefined.
        is_multilabel: whether the targets are independent attributes.
        which: names from `SCORES`; all by default.

    Example:
        >>> labels = torch.arange(60) % 3
        >>> features = torch.nn.functional.one_hot(labels, 3) + torch.randn(60, 3) / 10
        >>> scores = score_features(features, labels, classes=3, which=["knn", "leep"])
        >>> scores["knn"], scores["leep"]
        (1.0, nan)
        >>> scores.reasons["leep"]
        'it needs the probabilities of source classes, and none were given: pass source_probabilities=...'
    """
    names = list(SCORES) if which is None else list(which)
    if unknown := [name for name in names if name not in SCORES]:
        raise UsageError(f"no score is called {unknown[0]!r}. The scores are: {', '.join(SCORES)}.")
    for name, value in (("features", features), ("targets", targets), ("source_probabilities", source_probabilities)):
        if value is not None and not isinstance(value, Tensor):
            raise UsageError(
                f"{name} is a {type(value).__name__}, and scores are computed on tensors. Pass a tensor: "
                f"torch.as_tensor({name})"
            )
        if value is not None and len(value) != len(features):
            raise UsageError(
                f"{len(features)} rows of features and {len(value)} of {name} cannot belong to the same images. Pass "
                "one row per image in both."
            )
    prepared, result = Features(features), FeatureScores()
    if targets.ndim != 1 + is_multilabel:
        raise UsageError(
            f"targets of shape {tuple(targets.shape)} do not fit. Pass (n,) class indices for one class per image, or "
            f"(n, {classes}) zeros and ones with is_multilabel=True for {classes} attributes per image."
        )
    targets = torch.from_numpy(check_labels(targets.cpu().numpy(), classes, "image {}".format)).to(features.device)
    columns = list(targets.T) if is_multilabel else [targets]
    result.left_out = tuple(i for i, column in enumerate(columns) if is_multilabel and (column == column[0]).all())
    tasks = [column for i, column in enumerate(columns) if i not in result.left_out]
    for name in names:
        try:
            given = _check_probabilities(source_probabilities) if name in SOURCE_SCORES else prepared
            if not tasks:
                raise UndefinedScoreError("every attribute is the same in all images: nothing to distinguish")
            result[name] = sum(SCORES[name](given, Labels(labels)) for labels in tasks) / len(tasks)
        except UndefinedScoreError as undefined:
            result[name], result.reasons[name] = math.nan, str(undefined)
    return result


def _check_probabilities(probabilities: Tensor | None) -> Tensor:
    """(n, s) probabilities in float64 whose rows sum to one; logits and the like have no score."""
    if probabilities is None:
        raise UndefinedScoreError(
            "it needs the probabilities of source classes, and none were given: pass source_probabilities=..."
        )
    theta = probabilities.detach().double()
    sums = theta.sum(1) if theta.ndim == 2 and theta.shape[1] else theta.new_zeros(len(theta))
    if not bool(((sums - 1).abs() <= _SUM_TOLERANCE).all() and (theta >= 0).all()):
        worst = int((sums - 1).abs().nan_to_num(float("inf")).argmax())
        raise UndefinedScoreError(
            f"the source probabilities of image {worst} sum to {float(sums[worst]):.4g}, or one is below 0: they "
            "are not a distribution over source classes, so the score would mean nothing. Pass softmax probabilities, "
            "not logits or probabilities of independent attributes."
        )
    return theta / sums[:, None]
