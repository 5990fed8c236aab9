"""The filters of a network: which layers carry coordinates, and how their weights are laid out.

A filter is one output channel of a convolution or one output unit of a linear layer. Scales and shifts of batch-norm
and
layer-norm, position embeddings and class tokens are not filters; the head is not part of the network any more when we
look at it. A layer that the forward pass never reaches (an auxiliary classifier in eval mode) has no Fisher and is
left out.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from task2vec.errors import ProbeError
from task2vec.probe.layers import FilterLayer

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Trace:
    """What a trial pass saw: calls per layer, producer of each batch-norm's input, rows that each layer took in."""

    calls: dict[str, int]
    feeds: dict[str, str]
    leading: dict[str, int]
    features: Tensor


def is_filter_layer(module: nn.Module) -> bool:
    """Whether the output channels of `module` are filters."""
    return isinstance(module, (*_CONVOLUTIONS, nn.Linear))


@contextmanager
def _hooks(network: nn.Module, hook) -> Iterator[None]:
    handles = [
        module.register_forward_hook(lambda m, i, o, n=name: hook(n, m, i, o))
        for name, module in network.named_modules()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def trace(network: nn.Module, images: Tensor) -> Trace:
    """Runs `images` through `network` once and notes how its layers are used."""
    calls: dict[str, int] = {}
    feeds: dict[str, str] = {}
    leading: dict[str, int] = {}
    producer: dict[int, str] = {}
    alive: list[Tensor] = []  # a tensor's id means nothing once the tensor is gone

    def hook(name: str, module: nn.Module, inputs: tuple, output: object) -> None:
        if is_filter_layer(module) and isinstance(output, Tensor):
            calls[name] = calls.get(name, 0) + 1
            leading[name] = inputs[0].shape[0]
            producer[id(output)] = name
            alive.append(output)
        elif inputs and isinstance(inputs[0], Tensor) and id(inputs[0]) in producer:
            feeds.setdefault(name, producer[id(inputs[0])])

    with torch.no_grad(), _hooks(network, hook):
        features = network(images)
    if not isinstance(features, Tensor) or features.ndim != 2 or features.shape[0] != images.shape[0]:
        shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ProbeError(
            f"without its head the probe gives {shape} for {images.shape[0]} images; one feature vector per image is "
            "needed. "
            f"Name the last linear layer as the head: load_probe(module, head='fc', ...)"
        )
    return Trace(calls, feeds, leading, features)


def enumerate_filters(network: nn.Module, seen: Trace) -> tuple[FilterLayer, ...]:
    """The filter layers of `network` in the order of its modules, those that the trial pass reached."""
    layers = []
    for name, module in network.named_modules():
        if name in seen.calls:
            weight: Tensor = module.weight  # type: ignore[assignment]
            kind = "linear" if isinstance(module, nn.Linear) else "convolution"
            square = weight.detach().double().square().mean().item()
            layers.append(FilterLayer(name, kind, weight.shape[0], weight[0].numel(), square))
    if not layers:
        raise ProbeError(
            "the probe has no convolution and no linear layer besides its head, so there is nothing to measure."
        )
    return tuple(layers)
