"""How much noise of its weights an output sees: the summed squares of the inputs in its patch.

Where every weight of filter k has the same variance s_k^2, the output at position l has the variance
s_k^2 * sum of x^2 over the patch of l. The sum does not depend on the filter: square, add up the channels, and take a
box sum over one channel, where the variance of independent weights would need a second full convolution.
"""

import math

import torch
from timm.layers.conv2d_same import Conv2dSame
from timm.layers.padding import pad_same
from torch import Tensor, nn
from torch.nn import functional

from task2vec.probe.turning import TurnedConv2d

_PLAIN = (
    nn.Linear.forward,
    nn.Conv1d.forward,
    nn.Conv2d.forward,
    nn.Conv3d.forward,
    Conv2dSame.forward,
    TurnedConv2d.forward,
)
_POOLS = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}
_CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}


def is_plain(module: nn.Module) -> bool:
    """Whether `module` applies its weights as they are, so that its patches are known."""
    return type(module).forward in _PLAIN


def patch_energy(module: nn.Module, x: Tensor) -> Tensor:
    """Summed squares of what each output of a plain layer sees: (..., 1) if linear, else (n, groups, *positions)."""
    if isinstance(module, nn.Linear):
        return x.square().sum(-1, keepdim=True)
    assert isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    dimensions = len(module.kernel_size)
    channels_first = x if x.ndim == dimensions + 2 else x[None]
    if module.groups == 1:
        energy = channels_first.square().sum(1, keepdim=True)
    elif module.groups == module.in_channels:
        energy = channels_first.square()
    else:
        energy = channels_first.square().unflatten(1, (module.groups, -1)).sum(2)
    return _box_sum(module, _pad(module, energy), dimensions)


def _pad(module: nn.Conv1d | nn.Conv2d | nn.Conv3d, energy: Tensor) -> Tensor:
    if isinstance(module, Conv2dSame):
        return pad_same(energy, list(module.kernel_size), list(module.stride), list(module.dilation))
    pads = module._reversed_padding_repeated_twice
    if not any(pads):
        return energy
    return functional.pad(energy, pads, mode="constant" if module.padding_mode == "zeros" else module.padding_mode)


def _box_sum(module: nn.Conv1d | nn.Conv2d | nn.Conv3d, energy: Tensor, dimensions: int) -> Tensor:
    taps = math.prod(module.kernel_size)
    if taps == 1 and set(module.stride) == {1}:
        return energy
    if set(module.dilation) == {1}:
        return _POOLS[dimensions](energy, module.kernel_size, module.stride) * taps
    ones = torch.ones(module.groups, 1, *module.kernel_size, dtype=energy.dtype, device=energy.device)
    return _CONVOLUTIONS[dimensions](energy, ones, stride=module.stride, dilation=module.dilation, groups=module.groups)
