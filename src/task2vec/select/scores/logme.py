"""LogME (You 2021): the largest log evidence of a Bayesian linear model of each class, per image.

For a 0/1 column y of one class, weights w ~ N(0, I / alpha) and y ~ N(F w, I / beta),

    LogME = mean over classes of  max over alpha, beta of  log p(y | F, alpha, beta) / n

The paper finds the maximum by a fixed point in both; its code stops after eleven rounds, which is not always there yet.
With t = alpha / beta the best beta is known, n / Q(t), and one variable is left. In the squared singular values s of F,
z = U^T y and p = t / (s + t):

    log p(y | F) = -n/2 log(Q / n) + 1/2 sum log p - n/2 (1 + log 2 pi),   Q(t) = sum p z^2 + |y - U z|^2

so a grid over log t, one matrix product for all classes, and a few Newton steps give the maximum itself.

What the paper leaves open, and what is done here: features are taken as they are, with no bias, so the score changes
when a constant is added to all of them; classes without images are left out of the mean; labels that F fits exactly
have unbounded evidence, so a residual below 10^-12 of |y|^2 counts as that. Invariant to rotation and to a
common scale of the features.

Example:
    >>> import torch
    >>> labels = torch.arange(200) % 2
    >>> features = torch.randn(200, 5, generator=torch.Generator().manual_seed(0))
    >>> logme(features + labels[:, None], labels) > logme(features, labels)
    True
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

from task2vec.select.scores.features import Features
from task2vec.select.scores.labels import prepare

_LEAST_RESIDUAL = 1e-12
# log t is searched from so far below the smallest square to so far above the largest, on so many points.
_BELOW, _ABOVE, _POINTS = 30.0, 20.0, 256
_NEWTON_STEPS = 4


def logme(features: Tensor | Features, labels: Tensor) -> float:
    """The mean log evidence per image; higher means that a linear model explains the labels better."""
    x, y = prepare(features, labels)
    energy = x.raw_spectrum.project(y.onehot).square()
    return float(maximise_evidence(x.raw_spectrum.squares, energy, y.counts, images=len(x)).mean() / len(x))


def maximise_evidence(squares: Tensor, energy: Tensor, lengths: Tensor, *, images: int) -> Tensor:
    """(c,) largest log evidence of columns with (r, c) squared projections and (c,) squared lengths."""
    constant = -images / 2 * (1 + math.log(2 * math.pi))
    if not len(squares):
        return constant - images / 2 * (lengths / images).log()
    # Where the features span everything, nothing is left over, and what is computed is rounding.
    is_complete = len(squares) == images
    rest = torch.zeros_like(lengths) if is_complete else (lengths - energy.sum(0)).maximum(_LEAST_RESIDUAL * lengths)
    logs = squares.log()

    grid = torch.linspace(float(logs[-1]) - _BELOW, float(logs[0]) + _ABOVE, _POINTS).to(logs)
    shares = torch.sigmoid(grid - logs[:, None])
    volume = functional.logsigmoid(grid - logs[:, None]).sum(0)
    on_grid = volume / 2 - images / 2 * ((energy.T @ shares + rest[:, None]) / images).log()
    best, at = on_grid.max(1)

    spacing = float(grid[1] - grid[0])
    place = start = grid[at]
    for _ in range(_NEWTON_STEPS):
        slope, bend = _derivatives(place - logs[:, None], energy, rest, images)
        step = torch.where(bend < 0, -slope / bend.clamp_max(-1e-300), torch.zeros_like(slope))
        place = (place + step).clamp(start - spacing, start + spacing)
    p = torch.sigmoid(place - logs[:, None])
    volume = functional.logsigmoid(place - logs[:, None]).sum(0)
    refined = volume / 2 - images / 2 * (((energy * p).sum(0) + rest) / images).log()
    return constant + best.maximum(refined)


def _derivatives(offsets: Tensor, energy: Tensor, rest: Tensor, images: int) -> tuple[Tensor, Tensor]:
    """(c,) first and second derivative of the log evidence in log t."""
    p, not_p = torch.sigmoid(offsets), torch.sigmoid(-offsets)
    q = (energy * p).sum(0) + rest
    first, second = (energy * p * not_p).sum(0) / q, (energy * p * not_p * (not_p - p)).sum(0) / q
    slope = not_p.sum(0) / 2 - images / 2 * first
    bend = -(p * not_p).sum(0) / 2 - images / 2 * (second - first.square())
    return slope, bend
