"""The limit that no engine can beat: one forward and one input-gradient pass over the same images, and nothing else."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from task2vec.probe import PreparedNetwork, Probe


class _Start(torch.autograd.Function):
    """The identity at which the graph begins, as the engine's taps are, without a look at the gradient."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, start: Tensor) -> Tensor:
        ctx.mark_dirty(out)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None]:
        return None, None


def bare_pass(network: PreparedNetwork, images: Tensor, seed: Tensor) -> None:
    """Runs `images` forward, and back to the output of the first filter layer: the graph that an engine walks too."""
    bare_gradients(network, images)(seed, False)


def bare_gradients(network: PreparedNetwork, images: Tensor) -> Callable[[Tensor, bool], object]:
    """Runs `images` forward; what is returned runs a seed back, and keeps the graph for another one on request."""
    begun: list[Tensor] = []

    def begin(module: nn.Module, inputs: tuple, out: Tensor) -> Tensor | None:
        if begun:
            return None
        begun.append(torch.zeros((), requires_grad=True))
        return _Start.apply(out, begun[0])  # type: ignore[return-value]

    handles = [module.register_forward_hook(begin) for module in network.layers.values()]
    try:
        with torch.enable_grad():
            features = network.module(images)
    finally:
        for handle in handles:
            handle.remove()
    return lambda seed, is_kept: torch.autograd.grad(features, begun[0], seed, retain_graph=is_kept, allow_unused=True)


def passes(probe: Probe, images: Tensor, seed: Tensor) -> dict[str, Callable[[], object]]:
    """The bare pass and the per-sample Fisher of the direct and the robust method, ready to be timed side by side.

    "bare" is the folded network as torch differentiates it; "bare, flipped" is the network of the Fisher, whose
    input gradients are forward convolutions with flipped kernels where that is faster (the same thing elsewhere).
    """
    from task2vec.fisher import PerSampleFisher

    where = {"device": images.device, "dtype": images.dtype}
    plain, network = probe.prepare(**where, flip=False), probe.prepare(**where)
    layers = probe.layers

    exact, robust = (PerSampleFisher(network, layers, is_untied=is_untied) for is_untied in (False, True))
    return {
        "bare": lambda: bare_pass(plain, images, seed),
        "bare, flipped": lambda: bare_pass(network, images, seed),
        "exact": lambda: exact.rows(images, seed[None]),
        "robust": lambda: robust.rows(images, seed[None]),
    }
