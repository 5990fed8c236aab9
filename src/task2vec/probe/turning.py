"""Convolutions whose input gradient is computed as a forward convolution.

With stride 1 the gradient at the input is the gradient at the output convolved with the kernel turned by half a circle.
Some libraries (oneDNN on ARM) do this three times faster than their own input gradient, up to thirteen times for
depthwise layers. The choice depends on platform and layer alone, never on a measurement, so that results repeat.
"""

import platform
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class _Turned(torch.autograd.Function):
    """A convolution with stride 1 that knows its input gradient only: the weights are frozen."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, conv: "TurnedConv2d") -> Tensor:
        ctx.conv = conv
        return functional.conv2d(x, conv.weight, conv.bias, 1, conv.padding, 1, conv.groups)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        conv = ctx.conv
        return functional.conv2d(gradients[0], conv.turned, None, 1, conv.reach, 1, conv.groups), None


class TurnedConv2d(nn.Conv2d):
    """A frozen convolution of stride 1 together with its turned kernel."""

    turned: Tensor
    reach: tuple[int, int]

    def forward(self, input: Tensor) -> Tensor:
        """The convolution."""
        return _Turned.apply(input, self)  # type: ignore[return-value]


def turns_here() -> bool:
    """Whether turning pays on this platform."""
    return platform.machine().lower() in ("aarch64", "arm64")


def turn(conv: nn.Module) -> None:
    """Makes a plain convolution of stride 1 (dense or depthwise, of our own copy) a turned one; leaves others alone."""
    if type(conv) is not nn.Conv2d or conv.stride != (1, 1) or conv.dilation != (1, 1) or conv.padding_mode != "zeros":
        return
    is_depthwise = conv.groups == conv.in_channels == conv.out_channels
    if isinstance(conv.padding, str) or not (conv.groups == 1 or is_depthwise):
        return
    reach = tuple(k - 1 - int(p) for k, p in zip(conv.kernel_size, conv.padding, strict=True))
    if min(reach) < 0:
        return
    weight = conv.weight.detach().flip(2, 3)
    conv.__class__ = TurnedConv2d
    conv.reach = reach  # type: ignore[attr-defined]
    conv.register_buffer("turned", (weight if is_depthwise else weight.transpose(0, 1)).contiguous(), persistent=False)
