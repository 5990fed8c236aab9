"""The Gaussian posterior of the weights: one precision per filter, one prior variance per layer.

The paper measures the Fisher by how much noise the weights tolerate. It minimises, over one variance s_k^2 per filter,

    L = E_{w ~ N(w0, s^2)}[H(w)] + beta KL(N(w0, s^2) || N(0, v)),
    KL = 1/2 sum_w [ (w0^2 + s^2) / v - 1 - log(s^2 / v) ],

with H the cross-entropy, here the *mean* over images (for a sum over N images divide beta by N: the paper's text writes
beta / N, its appendix beta). To second order E[H] = H(w0) + 1/2 sum_w s_w^2 H_ww. With n_k weights in filter k, whose
mean curvature is F_k, stationarity in s_k^2 reads n_k/2 [ F_k + beta (1/v - 1/s_k^2) ] = 0, hence

    1 / s_k^2 = 1 / v + F_k / beta,          beta / s_k^2 = F_k + beta / v.

The appendix ends with (2 / beta) H in the place of F / beta, which its own loss does not give: it has a 1/2 before both
the trace and the KL. Without the 1/2 of the KL, the loss of the first public code, one gets 1 / v + F_k / (2 beta). The
two-layer network of the tests decides for the formula above.

Stationarity in v, the prior variance of a layer, which is trained along, gives v = mean over its weights of
(w0^2 + s^2). Inserting s^2 leaves one equation per layer, g(v) = v - mean(w0^2) - mean_k 1 / (1/v + F_k / beta) = 0,
whose left side grows with v: the root is unique. But for a layer without any Fisher s^2 = v, and the root is infinite:
a trained prior would put the trivial embedding, beta / v, at zero. So v stays between mean(w0^2), where nothing but the
weights counts, and `WIDEST` times that, which it reaches when almost any noise in the layer does no harm.
"""

from functools import lru_cache

import torch
from torch import Tensor

from task2vec.probe import FilterLayer

# The prior is at most this many times as wide as the weights of its layer.
WIDEST = 2.0
_TINY = 1e-30
_STEPS = 10  # each doubles the number of right digits


@lru_cache(maxsize=16)
def _places(layers: tuple[FilterLayer, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """The layer of every filter, and the number of filters of every layer."""
    counts = torch.tensor([layer.filters for layer in layers])
    return torch.repeat_interleave(counts).to(device), counts.to(device)


def spread_over_filters(values: Tensor, layers: tuple[FilterLayer, ...]) -> Tensor:
    """(filters,) from one value per layer."""
    return values[_places(layers, values.device)[0]]


def mean_over_layers(values: Tensor, layers: tuple[FilterLayer, ...]) -> Tensor:
    """(layers,): the mean of `values` (filters,) over the filters of each layer, which have equally many weights."""
    places, counts = _places(layers, values.device)
    return torch.zeros(len(layers), dtype=values.dtype, device=values.device).index_add(0, places, values) / counts


def weight_scales(layers: tuple[FilterLayer, ...]) -> Tensor:
    """(layers,): the mean square weight of each layer; a layer of zeros counts as the smallest number."""
    return torch.tensor([max(layer.mean_square_weight, _TINY) for layer in layers], dtype=torch.float64)


def best_prior_variances(variances: Tensor, scales: Tensor, layers: tuple[FilterLayer, ...]) -> Tensor:
    """(layers,): the prior variance that minimises the KL for given variances (filters,), within its bounds."""
    return torch.minimum(scales + mean_over_layers(variances, layers), WIDEST * scales)


def closed_form(fisher: Tensor, layers: tuple[FilterLayer, ...], *, beta: float) -> tuple[Tensor, Tensor]:
    """Precision of every filter and prior variance of every layer at the minimum, from the Fisher (filters,).

    Example:
        >>> layers = (FilterLayer("conv", "convolution", 2, 9, 0.5),)
        >>> precision, variance = closed_form(torch.tensor([4.0, 0.0]), layers, beta=1e-2)
        >>> [round(x, 3) for x in precision.tolist()], round(variance.item(), 3)
        ([401.0, 1.0], 1.0)
    """
    ratio, scales = fisher.double() / beta, weight_scales(layers)
    places, counts = _places(layers, ratio.device)

    def mean(values: Tensor) -> Tensor:
        return torch.zeros_like(scales).index_add_(0, places, values) / counts

    # The gap scales + mean(1 / (1/v + ratio)) - v is concave in v, and where it is zero below the upper bound its slope
    # is at most -1/2: Newton's steps from the bound come down to the root and never pass it.
    v = WIDEST * scales
    for _ in range(_STEPS):
        part = 1 / (1 + ratio * v[places])
        gap = scales + v * mean(part) - v
        v = torch.where(gap < 0, v - gap / (mean(part.square()) - 1), v)
    return 1 / v[places] + ratio, v


def kl_divergence(log_precision: Tensor, prior_variances: Tensor, layers: tuple[FilterLayer, ...]) -> Tensor:
    """KL(N(w0, 1 / precision) || N(0, v)), summed over all weights, in nats."""
    weights = torch.tensor([layer.weights_per_filter * layer.filters for layer in layers], dtype=torch.float64)
    log_precision, v = log_precision.double().cpu(), prior_variances.double().cpu()
    noise = mean_over_layers((-log_precision).exp(), layers)
    parts = (weight_scales(layers) + noise) / v - 1 + v.log() + mean_over_layers(log_precision, layers)
    return (weights * parts).sum() / 2
