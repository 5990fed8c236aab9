"""A probe made ready to run: batch-norm folded into the convolutions before it, on the wanted device and precision.

In eval mode a batch-norm is a fixed scale s and shift per channel, so conv and batch-norm are one convolution with
weights sW. The score with respect to the original weights is s times the score with respect to the folded ones, hence
F(original) = s^2 F(folded): folding is exact for the Fisher, and saves a pass over every map in both directions.

Which batch-norm follows which convolution is seen in a trial pass rather than in a traced graph, so networks that
cannot
be traced fold too. A fold is kept only if the features stay the same in float64; otherwise the network runs as it is.
"""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from task2vec.probe.filters import Trace, trace
from task2vec.probe.turning import turn


@dataclass(frozen=True)
class PreparedNetwork:
    """The network that runs, its filter layers by name, and the factor of each folded layer's score."""

    module: nn.Module
    layers: dict[str, nn.Module]
    scales: dict[str, Tensor]
    is_batched: bool


def prepare(
    network: nn.Module, names: tuple[str, ...], images: Tensor, *, fold: bool = True, turned: bool = False
) -> PreparedNetwork:
    """A folded float64 copy of `network`, checked on `images` against the original.

    With `turned`, convolutions of stride 1 compute their input gradient as a forward convolution (see `turning`).
    `is_batched` is False if some layer mixes the images of a batch or has no image axis (a table of relative positions
    that all images share): such a network is run one image at a time.
    """
    plain = copy.deepcopy(network).double()
    images = images.double()
    seen = trace(plain, images)
    module, scales = plain, {}
    if fold:
        folded = copy.deepcopy(plain)
        scales = _fold(folded, seen)
        if scales and torch.allclose(trace(folded, images).features, seen.features, rtol=1e-8, atol=1e-10):
            module = folded
        else:
            scales = {}
    module.requires_grad_(False)
    modules = dict(module.named_modules())
    for name in names if turned else ():
        if seen.calls[name] == 1:
            turn(modules[name])
    return PreparedNetwork(
        module, {name: modules[name] for name in names}, scales, _keeps_image_axis(plain, images, seen)
    )


def _keeps_image_axis(network: nn.Module, images: Tensor, seen: Trace) -> bool:
    """Whether every layer sees k rows per image, whatever the batch, and no image changes another's features."""
    alone = trace(network, images[:1])
    count = images.shape[0]
    if any(count * alone.leading[name] != rows for name, rows in seen.leading.items()):
        return False
    return torch.allclose(alone.features[0], seen.features[0], rtol=1e-8, atol=1e-10)


def _fold(network: nn.Module, seen: Trace) -> dict[str, Tensor]:
    """Folds every batch-norm of `network` that directly follows a convolution, in place; the scales by convolution."""
    modules = dict(network.named_modules())
    scales: dict[str, Tensor] = {}
    for name, source in seen.feeds.items():
        norm, conv = modules[name], modules[source]
        if not isinstance(norm, _BatchNorm) or norm.running_var is None or type(conv) is nn.Linear:
            continue
        if seen.calls[source] != 1 or source in scales:
            continue
        scale = torch.rsqrt(norm.running_var + norm.eps)
        scale = scale * norm.weight if norm.weight is not None else scale
        shift = -norm.running_mean * scale  # type: ignore[operator]
        shift = shift + norm.bias if norm.bias is not None else shift
        _scale_filters(conv, scale, shift)
        _replace(network, name, getattr(norm, "act", None) or nn.Identity())  # timm's batch-norm carries the activation
        scales[source] = scale.detach()
    return scales


def _scale_filters(conv: nn.Module, scale: Tensor, shift: Tensor) -> None:
    weight, bias = conv.weight.detach(), conv.bias  # type: ignore[union-attr]
    conv.weight = nn.Parameter(weight * scale.view(-1, *[1] * (weight.ndim - 1)))  # type: ignore[operator]
    conv.bias = nn.Parameter(shift if bias is None else shift + bias.detach() * scale)  # type: ignore[operator]


def _replace(network: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(network.get_submodule(parent), child, module)
