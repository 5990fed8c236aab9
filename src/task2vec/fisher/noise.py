"""A pass through the probe whose weights are noisy, by the local reparametrisation trick.

Instead of the weights, the outputs of a layer are drawn: mean as without noise, variance s_k^2 times the energy of the
patch (see `energy`), independently for every output. The gradient reaches the variances and the input, never the
weights, which stay as they are. Since every output has noise of its own, what is measured is the Fisher of filters that
are not shared between positions (`reductions.untied`), not that of the filter itself: so it is in the paper, too.

Noise comes in pairs of opposite sign (antithetic draws): the first half of a batch sees eps, the second half, the same
images, sees -eps. The expectation is the same; but what is linear in the noise, which says nothing about the curvature
and is the larger by far while the noise is small, cancels within the pair instead of by averaging over many.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from task2vec.errors import ProbeError
from task2vec.fisher.energy import is_plain, patch_energy
from task2vec.probe import FilterLayer, PreparedNetwork


class _AddNoise(torch.autograd.Function):
    """out + std * sigma * eps, eps changing its sign after the first half of the batch if it is half as long."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, std: Tensor, sigma: Tensor, eps: Tensor) -> Tensor:
        ctx.save_for_backward(std, sigma, eps)
        noisy = torch.empty_like(out)
        for rows, sign in _signs(len(out), len(eps)):
            torch.addcmul(out[rows], std[rows] * sigma, eps, value=sign, out=noisy[rows])
        return noisy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        std, sigma, eps = ctx.saved_tensors
        gradient = gradients[0]
        of_std = torch.empty_like(std) if ctx.needs_input_grad[1] else None
        of_sigma = torch.zeros_like(sigma) if ctx.needs_input_grad[2] else None
        for rows, sign in _signs(len(gradient), len(eps)):
            seen = gradient[rows] * eps
            if of_sigma is not None:
                of_sigma.add_((seen * std[rows]).sum_to_size(sigma.shape), alpha=sign)
            if of_std is not None:
                of_std[rows] = (seen * sigma).sum_to_size(std[rows].shape).mul_(sign)
        return (gradient if ctx.needs_input_grad[0] else None), of_std, of_sigma, None


def _signs(count: int, drawn: int) -> list[tuple[slice, int]]:
    return [(slice(0, drawn), 1)] if count == drawn else [(slice(0, drawn), 1), (slice(drawn, count), -1)]


class NoisyNetwork:
    """Features of images under noise; `deviations` (filters,) are those of the probe's own, unfolded weights."""

    def __init__(self, network: PreparedNetwork, layers: tuple[FilterLayer, ...]):
        odd = [layer.name for layer in layers if not is_plain(network.layers[layer.name])]
        if odd:
            kind = type(network.layers[odd[0]]).__name__
            raise ProbeError(
                f"layer '{odd[0]}' of the probe is a {kind}, which changes its weights before it applies them, so the "
                "noise of its output is not known and the variational method cannot run. Use method='robust' "
                "(--method robust)."
            )
        self.network, self.layers = network, layers

    def features(
        self, images: Tensor, deviations: Tensor, *, generator: torch.Generator, is_paired: bool = True
    ) -> Tensor:
        """(n, d), or with `is_paired` (2 n, d): every image under some noise, then again under its opposite."""
        if self.network.is_batched:
            with self.noise(deviations, generator, is_paired=is_paired):
                return self.network.module(torch.cat([images, images]) if is_paired else images)
        # Some layer has no image axis, so opposite noise cannot share a pass: the same draw is made twice.
        rows = []
        start = generator.get_state()
        for sign in (1, -1)[: 1 + is_paired]:
            generator.set_state(start)
            with self.noise(sign * deviations, generator):
                rows += [self.network.module(image) for image in images.split(1)]
        return torch.cat(rows)

    @contextmanager
    def noise(self, deviations: Tensor, generator: torch.Generator, *, is_paired: bool = False) -> Iterator[None]:
        """As long as this lasts, every pass through the network is noisy."""
        parts = deviations.split([layer.filters for layer in self.layers])
        handles = []
        for layer, part in zip(self.layers, parts, strict=True):
            scale, module = self.network.scales.get(layer.name), self.network.layers[layer.name]
            sigma = part if scale is None else part * scale.abs()
            hook = _hook(sigma.to(module.weight.dtype), generator, is_paired)  # type: ignore[arg-type]
            handles.append(module.register_forward_hook(hook))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def _hook(sigma: Tensor, generator: torch.Generator, is_paired: bool) -> Callable:
    def on_forward(module: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> Tensor:
        # A patch of zeros has no noise, and the square root no gradient there.
        std = patch_energy(module, inputs[0]).clamp_min(torch.finfo(out.dtype).tiny).sqrt()
        drawn = len(out) // 2 if is_paired else len(out)
        shape = out
        if not isinstance(module, nn.Linear):
            groups, after = std.shape[1], [1] * (out.ndim - 2)
            if 1 < groups < out.shape[1]:
                shape, std = out.unflatten(1, (groups, -1)), std.unsqueeze(2)
            spread = sigma.view(1, *shape.shape[1 : shape.ndim - len(after)], *after)
        else:
            spread = sigma
        eps = torch.empty_like(shape[:drawn]).normal_(generator=generator)
        noisy: Tensor = _AddNoise.apply(shape, std, spread, eps)  # type: ignore[assignment]
        # No view where none is needed: an in-place ReLU after it would copy the whole map.
        return noisy if shape is out else noisy.flatten(1, 2)

    return on_forward
