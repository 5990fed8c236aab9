"""Heads, the gradients of all their labels at the features, and how rows of filters are compared."""

import torch
from torch import Tensor

from task2vec.fisher import probabilities, term_vectors
from task2vec.fisher.sampling import term_shares
from task2vec.probe import FilterLayer, Probe


def seeded(seed: int = 0) -> torch.Generator:
    """A generator in the state of that seed."""
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers in double precision."""
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64)


def random_images(probe: Probe, count: int) -> Tensor:
    """Normalised images of the size of a probe."""
    return normal(count, 3, *probe.size, seed=2)


def random_head(probe: Probe, classes: int) -> tuple[Tensor, Tensor]:
    """Weight and bias of a head whose logits are of order one."""
    numbers = normal(classes * (probe.feature_dim + 1), seed=3)
    return numbers[:-classes].view(classes, -1) / probe.feature_dim**0.5, numbers[-classes:]


def all_seeds(features: Tensor, weight: Tensor, bias: Tensor, is_multilabel: bool) -> Tensor:
    """(terms, images, features): the gradient at the features of every rank-one term of every image."""
    p = probabilities(features @ weight.T + bias, is_multilabel=is_multilabel)
    count, terms = len(p), term_shares(p, weight, is_multilabel=is_multilabel).shape[1]
    everyone = torch.arange(count)
    return torch.stack(
        [term_vectors(p, everyone, torch.full((count,), t), is_multilabel=is_multilabel) @ weight for t in range(terms)]
    )


def relative_error(rows: Tensor, reference: Tensor, layers: tuple[FilterLayer, ...]) -> float:
    """Largest relative error of a filter.

    A filter far below its layer (1e-5 of the largest) is a sum that nearly cancels, in the definition as well: both
    have lost as many digits, so it is held to the same absolute error as a filter at that floor.
    """
    sizes = [layer.filters for layer in layers]
    parts = zip(rows.split(sizes, 1), reference.split(sizes, 1), strict=True)
    return max(float(((r - f).abs() / f.clamp_min(f.amax() * 1e-5)).max()) for r, f in parts if f.amax() > 0)
