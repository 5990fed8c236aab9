"""One step of the variational Fisher as the first public code takes it, for comparison.

Output variances come from a second full convolution of the squared inputs with one variance per weight, batch-norm is
not folded, noise is not paired, the prior variances are trained by Adam, and the last value of L is what is reported.
Its loss is ours (the paper's, with the 1/2 of the KL), so that both have the same minimum, and batch-norm keeps its
statistics, which the old code lets drift.
"""

from collections.abc import Callable, Iterator

import torch
from timm.layers.conv2d_same import Conv2dSame
from timm.layers.padding import pad_same
from torch import Tensor, nn
from torch.nn import functional

from task2vec.fisher import mean_loss, spread_over_filters, weight_scales
from task2vec.probe import FilterLayer, PreparedNetwork

_FIRST_NOISE = 0.1


class FullNoise:
    """Hooks on every filter layer that draw its output with the variance of a second convolution."""

    def __init__(self, network: PreparedNetwork, layers: tuple[FilterLayer, ...], generator: torch.Generator):
        self.network, self.layers, self.generator = network, layers, generator

    def features(self, images: Tensor, variances: Tensor) -> Tensor:
        """(n, d) under noise of the given variances (filters,)."""
        parts = variances.split([layer.filters for layer in self.layers])
        handles = []
        for layer, part in zip(self.layers, parts, strict=True):
            module = self.network.layers[layer.name]
            scale = self.network.scales.get(layer.name)
            part = part if scale is None else part * scale.square()
            handles.append(module.register_forward_hook(self._hook(part)))
        try:
            return self.network.module(images)
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, variance: Tensor) -> Callable:
        def on_forward(module: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> Tensor:
            weight: Tensor = module.weight  # type: ignore[assignment]
            expanded = variance.view(-1, *[1] * (weight.ndim - 1)).expand_as(weight)
            squares = inputs[0].square()
            if isinstance(module, nn.Linear):
                spread = functional.linear(squares, expanded)
            else:
                if isinstance(module, Conv2dSame):
                    squares = pad_same(squares, list(module.kernel_size), list(module.stride), list(module.dilation))
                options = (module.stride, module.padding, module.dilation, module.groups)
                spread = functional.conv2d(squares, expanded, None, *options)  # type: ignore[arg-type]
            eps = torch.empty_like(out).normal_(generator=self.generator)
            return out + spread.clamp_min(torch.finfo(out.dtype).tiny).sqrt() * eps

        return on_forward


def train(
    network: PreparedNetwork,
    layers: tuple[FilterLayer, ...],
    batches: Iterator[tuple[Tensor, Tensor]],
    *,
    weight: Tensor,
    bias: Tensor,
    beta: float,
    steps: int,
    generator: torch.Generator,
    watch: Callable[[int, Tensor], None],
    head_rate: float = 0.0,
    rate: float = 1e-2,
) -> Tensor:
    """L after `steps`, its last value; `watch` is told it after every step."""
    noise = FullNoise(network, layers, generator)
    scales = weight_scales(layers).to(weight)
    log_precision = (-(_FIRST_NOISE**2 * spread_over_filters(scales, layers)).log()).requires_grad_()
    log_prior = scales.log().requires_grad_()
    head = [weight.clone().requires_grad_(head_rate > 0), bias.clone().requires_grad_(head_rate > 0)]
    groups = [{"params": [log_precision, log_prior], "lr": rate}]
    groups += [{"params": head, "lr": head_rate}] if head_rate > 0 else []
    optimiser = torch.optim.Adam(groups)
    counts = torch.tensor([layer.weights_per_filter for layer in layers]).to(weight)
    for step in range(steps):
        images, targets = next(batches)
        optimiser.zero_grad()
        features = noise.features(images, (-log_precision).exp())
        loss = mean_loss(functional.linear(features, head[0], head[1]), targets)
        prior = spread_over_filters(log_prior, layers)
        square = spread_over_filters(scales, layers) + (-log_precision).exp()
        each = square * (-prior).exp() - 1 + prior + log_precision
        (loss + beta / 2 * (spread_over_filters(counts, layers) * each).sum()).backward()
        optimiser.step()
        watch(step, log_precision.detach())
    return log_precision.detach()
