"""H-score (Bao 2019), and the same with a shrunk covariance (Ibrahim 2022).

    H = tr(cov(f)^-1 cov(E[f | y]))

is the sum of the squared correlations between the best linear functions of the features and of the class: from 0 to the
number of classes less one. With f = U S V^T centred, it is the sum over classes of n_c |mean of U's rows|^2, where
directions without variance are left out (a pseudo-inverse, as in the authors' code). With at least as many independent
features as images less one, it is the number of classes less one *whatever the labels are*: then it says nothing.

The shrunk form replaces cov(f) by (1 - a) cov(f) + a tr(cov(f)) / d I with the a of Ledoit and Wolf 2004 (the
data says how far its covariance can be trusted), and cov(E[f | y]) by (1 - a) times itself:

    H_a = sum over directions j of  w_j sum_c n_c mean(U_j)^2,   w_j = (1 - a) l_j / ((1 - a) l_j + a mean(l))

with l_j the variances, mean(l) over all d features. Both covariances are divided by n (the papers' codes divide
one by n and the other by n - 1, which changes nothing in a ranking). Features that never vary score 0.

The plain score is invariant to every invertible linear map of the features; the shrunk one to rotation, shift and
a common scale.

Example:
    >>> import torch
    >>> features = torch.tensor([[0.0], [0.0], [1.0], [1.0]])
    >>> round(h_score(features, torch.tensor([0, 0, 1, 1])), 6), round(h_score(features, torch.tensor([0, 1, 0, 1])), 6)
    (1.0, 0.0)
"""

from torch import Tensor

from task2vec.select.scores.features import Features
from task2vec.select.scores.labels import Labels, prepare


def h_score(features: Tensor | Features, labels: Tensor) -> float:
    """The sum of squared correlations between features and classes."""
    x, y = prepare(features, labels)
    return float(correlate_directions(x, y).sum())


def h_score_shrunk(features: Tensor | Features, labels: Tensor) -> float:
    """The same, with directions counted by how far their variance can be trusted."""
    x, y = prepare(features, labels)
    variances = x.spectrum.squares / len(x)
    shrinkage = find_shrinkage(x)
    trusted = (1 - shrinkage) * variances
    weights = trusted / (trusted + shrinkage * variances.sum() / x.width)
    return float((weights * correlate_directions(x, y)).sum())


def correlate_directions(x: Features, y: Labels) -> Tensor:
    """(r,) share of the variance of each principal direction that lies between the classes."""
    return (x.spectrum.project(y.onehot).square() / y.counts).sum(1)


def find_shrinkage(x: Features) -> float:
    """The intensity of Ledoit and Wolf 2004, from 0 (trust the covariance) to 1 (trust its mean alone)."""
    variances = x.spectrum.squares / len(x)
    energy, mean = variances.square().sum(), variances.sum() / x.width
    distance = float(energy / x.width - mean.square())
    if distance <= 1e-15 * float(mean.square()):
        return 0.0  # the covariance is a multiple of the identity already
    noise = float(x.centred.square().sum(1).square().mean() - energy) / (len(x) * x.width)
    return min(max(noise, 0.0), distance) / distance
