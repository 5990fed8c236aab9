"""Heads trained by Adam on images that are drawn, as the paper does; many at once on common features."""

from collections.abc import Iterator

import torch
from torch import Tensor


def train_parts(
    features: Tensor,
    onehot: Tensor,
    draws: Tensor,
    *,
    batch: int,
    rate: float,
    weight_decay: float,
    is_multilabel: bool,
) -> Tensor:
    """(m, n, c) logits of all (n, d) `features` by m heads, each trained on the images that it drew, from zero.

    Args:
        features: of all images, as they are.
        onehot: (n, c) one-hot or 0/1 targets.
        draws: (m, epochs, draws) numbers of images, in the order in which each head sees them.
        batch: images per step; the last step of an epoch has what is left.
        rate: learning rate of Adam.
        weight_decay: of weights and biases, added to the gradient.
        is_multilabel: whether classes are independent attributes; their losses are averaged.

    Example:
        >>> features = torch.tensor([[-1.0], [1.0]])
        >>> draws = torch.tensor([[[0, 1] * 50]])
        >>> train_parts(features, torch.eye(2), draws, batch=2, rate=0.1, weight_decay=0.0, is_multilabel=False).argmax(
        ...     2
        ... ).tolist()
        [[0, 1]]
    """
    heads, classes = len(draws), onehot.shape[1]
    onehot = onehot.to(features)
    weight = features.new_zeros(heads, features.shape[1], classes)
    bias = features.new_zeros(heads, 1, classes)
    optimiser = torch.optim.Adam([weight, bias], lr=rate, weight_decay=weight_decay)
    for some in _batches(draws.to(features.device), batch):
        x, y = features[some], onehot[some]
        logits = torch.baddbmm(bias, x, weight)
        residual = logits.sigmoid_().sub_(y).div_(classes) if is_multilabel else logits.softmax(2).sub_(y)
        residual /= some.shape[1]
        weight.grad, bias.grad = x.mT @ residual, residual.sum(1, keepdim=True)
        optimiser.step()
    return features @ weight + bias


def _batches(draws: Tensor, batch: int) -> Iterator[Tensor]:
    """(m, batch) numbers of the images of each step."""
    for epoch in draws.unbind(1):
        yield from epoch.split(batch, dim=1)
