"""GBC (Pandy 2022): minus the overlap of the classes, each taken as a Gaussian.

    GBC = - sum over ordered pairs of classes of exp(-D(a, b))

with the Bhattacharyya distance D. The Gaussians are spherical here, the default of the authors' code: one variance v_c
per class, the mean over the p features,

    D(a, b) = |m_a - m_b|^2 / (4 (v_a + v_b)) + p/2 log((v_a + v_b) / (2 sqrt(v_a v_b)))

after a reduction to the first 64 principal directions, as in the paper. What it leaves open, and what is done here:
variances are those of the maximum of likelihood; a class of one image has none and takes the pooled variance within
classes; all are at least 10^-6 of the total variance (the authors' floor of 10^-4 has a unit, and networks differ in
it). Features that never vary overlap fully: -c (c - 1). Invariant to rotation, shift and a common scale. It is a sum
over pairs, so it compares networks on one task, not tasks with different numbers of classes; and far-apart classes
saturate it at 0.

Example:
    >>> import torch
    >>> features = torch.tensor([[0.0], [2.0], [4.0], [6.0]])  # means 1 and 5, variances 1: D = 16 / 8
    >>> round(gbc(features, torch.tensor([0, 0, 1, 1])), 6)  # -2 exp(-2)
    -0.270671
"""

from torch import Tensor

from task2vec.select.scores.features import Features
from task2vec.select.scores.labels import prepare

_DIRECTIONS = 64
_LEAST_VARIANCE = 1e-6


def gbc(features: Tensor | Features, labels: Tensor) -> float:
    """Minus the summed overlap of all ordered pairs of classes; 0 at best."""
    x, y = prepare(features, labels)
    points = x.spectrum.principal(_DIRECTIONS)
    width = points.shape[1]
    if not width:
        return -float(y.classes * (y.classes - 1))
    means = y.onehot.T @ points / y.counts[:, None]
    within = (points - means[y.index]).square().sum(1)
    variances = (y.onehot.T @ within) / y.counts / width
    pooled = (within.sum() / (len(x) - y.classes) / width) if len(x) > y.classes else within.sum()
    variances = variances.where(y.counts > 1, pooled)
    variances = variances.maximum(_LEAST_VARIANCE * points.square().mean())

    lengths = means.square().sum(1)
    gaps = (lengths[:, None] + lengths - 2 * means @ means.T).clamp_min(0)
    sums = variances[:, None] + variances
    logs = sums.log() - (2 * variances.sqrt()[:, None] * variances.sqrt()).log()
    overlaps = (-gaps / (4 * sums) - width / 2 * logs.clamp_min(0)).exp()
    return -float(overlaps.fill_diagonal_(0).sum())
