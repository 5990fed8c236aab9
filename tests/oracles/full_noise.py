"""Noisy weights by the local reparametrisation trick as it stands in the books, with one variance per weight.

The variance of an output is the layer itself applied to the squared input with the variances in the place of the
weights: a second full convolution. Nothing is folded, nothing is paired; the draws are those of the given generator,
one tensor of the output's shape per call of a layer.
"""

import copy

import torch
from torch import Tensor, nn

from task2vec.probe import FilterLayer


def noisy_features(
    network: nn.Module,
    layers: tuple[FilterLayer, ...],
    images: Tensor,
    deviations: Tensor,
    *,
    generator: torch.Generator,
    sign: int = 1,
) -> Tensor:
    """(n, d) in one pass; every weight of filter k has the deviation deviations[k]. `sign` turns all noise around."""
    modules = dict(network.named_modules())
    parts = deviations.split([layer.filters for layer in layers])
    handles = []
    for layer, deviation in zip(layers, parts, strict=True):
        module = modules[layer.name]
        handles.append(module.register_forward_hook(_noise(module, deviation, generator, sign)))
    try:
        return network(images)
    finally:
        for handle in handles:
            handle.remove()


def _noise(module: nn.Module, deviation: Tensor, generator: torch.Generator, sign: int):
    second = copy.deepcopy(module).requires_grad_(False)  # without the hook
    variance = deviation.square().view(-1, *[1] * (module.weight.ndim - 1)).expand_as(module.weight)
    parameters = {"weight": variance} | ({"bias": torch.zeros_like(module.bias)} if module.bias is not None else {})

    def on_forward(_: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> Tensor:
        spread = torch.func.functional_call(second, parameters, (inputs[0].square(),))
        eps = torch.empty_like(out).normal_(generator=generator)
        return out + sign * spread.clamp_min(torch.finfo(out.dtype).tiny).sqrt() * eps

    return on_forward
