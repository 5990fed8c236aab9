"""Leave-one-out accuracy of the k nearest neighbours, by Euclidean distance on the features as they are.

Puigcerver 2021 ranks experts so with k = 1. Neighbours as far away as the k-th are all counted (up to 16 more), and
classes with equally many votes share the credit, so neither duplicated images nor the order of the images decide.
Invariant to rotation, shift and a common scale of the features. A class of one image is always missed, and an image of
a class with m images has only m - 1 neighbours of its own: few images per class make every network look worse.

Example:
    >>> import torch
    >>> features = torch.tensor([[0.0], [0.1], [1.0], [1.1], [0.25]])
    >>> knn(features, torch.tensor([0, 0, 1, 1, 1]))  # the last image sits among the others' class
    0.8
"""

import torch
from torch import Tensor

from task2vec.errors import UsageError
from task2vec.select.scores.features import MOST_NEIGHBOURS, Features
from task2vec.select.scores.labels import prepare

# Squared distances that differ by this part of themselves, or by this part of the longest vector's, are a tie.
_TIE, _NOTHING = 1e-9, 1e-24


def knn(features: Tensor | Features, labels: Tensor, *, k: int = 1) -> float:
    """The share of images whose k nearest other images vote for their class."""
    if not 1 <= k <= MOST_NEIGHBOURS:
        raise UsageError(
            f"k={k} neighbours cannot be asked: one to {MOST_NEIGHBOURS} are kept per image. Choose a k between them."
        )
    x, y = prepare(features, labels)
    squares, which = x.nearest
    is_near = squares <= squares[:, [min(k, squares.shape[1]) - 1]] * (1 + _TIE) + _NOTHING
    votes = torch.zeros_like(y.onehot).scatter_add_(1, y.index[which], is_near.double())
    is_ahead = votes == votes.amax(1, keepdim=True)
    credit = is_ahead.gather(1, y.index[:, None])[:, 0].double() / is_ahead.sum(1)
    return float(credit.mean())


def knn5(features: Tensor | Features, labels: Tensor) -> float:
    """The same with five neighbours."""
    return knn(features, labels, k=5)
