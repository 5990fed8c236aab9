"""Squared norms of per-sample filter gradients, without ever forming the gradient of the batch.

A layer saw the input x of every image and the gradient d at its output. The gradient of filter k for one image is
sum_l d[k, l] * patch[l], and only its squared norm is wanted. All routes are exact:

* `direct`: form the gradient by one matrix product per image, then square; on a GPU, `tied` in one kernel (`kernels`).
* `pixelwise`: the same, image by image, with the channels of a pixel side by side (best for large maps on a CPU).
* `gram`: d^T G d with the Gram matrix of the patches, G[l, l'] = <patch_l, patch_l'>. For a convolution G is a box sum
  of the Gram matrix of the *pixels*, summed over rows and then over columns, so patches are never formed.
* `depthwise`: one input channel per filter: a few shifted products.
* `generic`: any other layer, through autograd, one image at a time.
* `untied`: another quantity, the Fisher of a network that has its own copy of the filter at every position, summed over
  the copies: sum_l d[k, l]^2 |patch[l]|^2. This is what noise measures that is drawn anew for every output.

`reduce_layer` and `reduce_untied` choose for a layer; the choice depends on its kind and its sizes alone. Groups are
folded into the batch axis, so each route sees one group only.

The energy of a patch, |patch[l]|^2, is also the variance of the output at l in units of the variance of the weights,
if that is the same for all weights of a filter. It does not depend on the filter: square, add up the channels, and take
a box sum over one channel, where the variance of independent weights would need a second full convolution.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from timm.layers.conv2d_same import Conv2dSame
from timm.layers.padding import get_same_padding, pad_same
from torch import Tensor, nn
from torch.nn import functional

from task2vec.probe import FlippedConv2d

Pair = tuple[int, ...]
# Computes what depends on a layer's input alone, or returns it from an earlier seed.
Memo = Callable[[Callable[[], Tensor]], Tensor]
# Layers that apply their weights as they are.
_PLAIN_2D = (nn.Conv2d.forward, Conv2dSame.forward, FlippedConv2d.forward)
_PLAIN = (nn.Linear.forward, nn.Conv1d.forward, nn.Conv3d.forward, *_PLAIN_2D)
_POOLS = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}
_CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
# A product with fewer columns than this costs as much as one with so many: reading the other factor takes the time.
_MIN_COLUMNS = 12
# Multiply-adds that the GPU kernel for gradients does in the time of one for the Gram matrix.
_TIED_SPEEDUP = 8
# On a CPU, maps of at least so many numbers are reduced image by image, so that each stays in the cache.
_LARGE_MAP = 1 << 16


def kernels_for(d: Tensor) -> Any:
    """The module of Triton kernels for gradients that it can reduce, or None."""
    return _load_kernels() if d.is_cuda and d.dtype in (torch.float32, torch.bfloat16) else None


@cache
def _load_kernels() -> Any:
    """The module of Triton kernels; None without Triton, or where it cannot compile: it needs a C compiler."""
    zeros = torch.zeros(1, 1, 1, device="cuda" if torch.cuda.is_available() else "cpu")
    try:
        from task2vec.fisher import kernels

        kernels.untied(zeros, zeros)
    except Exception:  # Triton's own kinds are many
        return None
    return kernels


def matmul_precision() -> str:
    """How float32 is multiplied: "highest", "high", ...; "mixed" where a user has set flags that contradict it."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # torch refuses to answer once old and new flags were mixed
        return "mixed"


def compute_anew(compute: Callable[[], Tensor]) -> Tensor:
    """The memo that keeps nothing."""
    return compute()


def reduce_layer(module: nn.Module, x: Tensor, d: Tensor, count: int, memo: Memo = compute_anew) -> Tensor:
    """(count, filters): squared gradient norms of one layer from its input `x` and its output gradient `d`."""
    if isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward:
        x, d = _tokens(x, count), _tokens(d, count)
        return _reduce_dense(x[..., None], d[..., None], Geometry((1, 1)), memo)
    if not isinstance(module, nn.Conv2d) or type(module).forward not in _PLAIN_2D:
        return generic(module, [(x, d)], count)
    x, geometry = geometry_of(module, x)
    filters = d.shape[1]
    if module.groups > 1:
        if module.groups == x.shape[1] and (kernels := kernels_for(d)) is not None:
            return kernels.depthwise(x, d, geometry)
        x, d = x.unflatten(1, (module.groups, -1)), d.unflatten(1, (module.groups, -1))
        if x.shape[2] == 1:
            size = count if d.is_cuda or d[0].numel() < _LARGE_MAP else 1
            chunks = zip(x[:, :, 0].split(size), d.split(size), strict=True)
            return torch.cat([depthwise(*chunk, geometry) for chunk in chunks]).reshape(count, filters)
        x, d = x.flatten(0, 1), d.flatten(0, 1)
    return _reduce_dense(x, d, geometry, memo).reshape(count, filters)


def reduce_untied(module: nn.Module, x: Tensor, d: Tensor, keys: Sequence[int], memo: Memo = compute_anew) -> Tensor:
    """(images, filters): the untied Fisher of one layer, where every output has weights of its own.

    A layer that is not plain gives an unbiased estimate instead: with a random sign at every output the cross terms of
    the squared gradient vanish on average. Its signs are drawn from the image's key.
    """
    count = len(keys)
    if not is_plain(module):
        generators = [np.random.Generator(np.random.Philox(key)) for key in keys]
        size = d.numel() // count
        signs = np.stack([generator.integers(2, size=size, dtype=np.int8) for generator in generators])
        signed = d * torch.from_numpy(signs).to(d).mul_(2).sub_(1).reshape(d.shape)
        return generic(module, [(x, signed)], count)
    energy = memo(lambda: patch_energy(module, x))
    if isinstance(module, nn.Linear):
        return untied(energy.reshape(count, 1, -1), _tokens(d, count))
    return untied(energy, d).reshape(count, -1, d.shape[1]).sum(1)


def _tokens(x: Tensor, count: int) -> Tensor:
    """(images, channels, tokens) of a tensor whose last axis is channels and whose images are contiguous."""
    return x.reshape(count, -1, x.shape[-1]).transpose(1, 2)


def _reduce_dense(x: Tensor, d: Tensor, geometry: "Geometry", memo: Memo) -> Tensor:
    route = cheapest_route(x, d, geometry)
    if route == "gram":
        return quadratic(memo(lambda: patch_gram(x, d.shape[2:], geometry)), d.flatten(2))
    if route == "tied":
        return kernels_for(d).tied(x, d, geometry)
    return pixelwise(x, d, geometry) if route == "pixelwise" else direct(x, d, geometry)


def cheapest_route(x: Tensor, d: Tensor, geometry: "Geometry") -> str:
    """Name of the cheapest route for a dense layer with input (n, c, h, w) and output gradient (n, f, h', w').

    Costs are multiply-adds; sums of the Gram matrix and the forming of patches are bound by memory and count more
    (factors measured on a CPU; a GPU has no use for a loop over images).
    """
    channels = x.shape[1]
    filters = d.shape[1]
    taps = geometry.taps
    pixels, outputs = x.shape[2] * x.shape[3], d.shape[2] * d.shape[3]
    by_gradient = "direct" if taps == 1 or x.device.type != "cpu" or channels * taps <= 64 else "pixelwise"
    gradient_cost = filters * outputs * max(channels * taps, _MIN_COLUMNS)
    gram_cost = pixels**2 * channels + outputs**2 * (filters + (20 * geometry.kernel[0] if taps > 1 else 0))
    # The kernel rounds its factors, so the caller must have allowed that, and wants some filters to multiply.
    is_rounded = d.is_cuda and matmul_precision() not in ("highest", "mixed")
    if taps > 1 and filters >= 32 and is_rounded and kernels_for(d) is not None:
        by_gradient = "tied"
        gradient_cost = gradient_cost / _TIED_SPEEDUP
    return by_gradient if gradient_cost <= gram_cost else "gram"


@dataclass(frozen=True)
class Geometry:
    """How a convolution slides; the padding below and to the right follows from the output's size."""

    kernel: Pair
    stride: Pair = (1, 1)
    dilation: Pair = (1, 1)
    padding: Pair = (0, 0)

    @property
    def taps(self) -> int:
        """Kernel positions."""
        return self.kernel[0] * self.kernel[1]

    def padded(self, x: Tensor, out: Pair) -> Tensor:
        """`x` with the zeros that an output of size `out` reaches into."""
        pads = []
        for axis in (1, 0):
            reach = (out[axis] - 1) * self.stride[axis] + (self.kernel[axis] - 1) * self.dilation[axis] + 1
            pads += [self.padding[axis], max(0, reach - x.shape[2 + axis] - self.padding[axis])]
        return functional.pad(x, pads) if any(pads) else x

    def window(self, tap: int, axis: int, size: int, out: int) -> tuple[slice, slice]:
        """Outputs whose `tap` falls inside an input of `size`, and the inputs it falls on; both may be empty."""
        stride = self.stride[axis]
        offset = tap * self.dilation[axis] - self.padding[axis]
        first = max(0, -(offset // stride))
        count = max(0, min(out, (size - 1 - offset) // stride + 1) - first)
        start = stride * first + offset
        return slice(first, first + count), slice(start, start + stride * count, stride)


def geometry_of(module: nn.Conv2d, x: Tensor) -> tuple[Tensor, Geometry]:
    """Input (padded here where not with zeros) and geometry of a plain 2-d convolution."""
    kernel, stride, dilation = module.kernel_size, module.stride, module.dilation
    pads = module._reversed_padding_repeated_twice
    padding = (pads[2], pads[0])
    if isinstance(module, Conv2dSame):  # TensorFlow's rule
        padding = tuple(int(get_same_padding(x.shape[2 + i], kernel[i], stride[i], dilation[i])) // 2 for i in (0, 1))
    elif module.padding_mode != "zeros":
        x = functional.pad(x, pads, mode=module.padding_mode)
        padding = (0, 0)
    return x, Geometry(kernel, stride, dilation, padding)


def patches(x: Tensor, out: Pair, geometry: Geometry) -> Tensor:
    """(images, channels, *kernel, *outputs) of what each output sees: a view of the padded `x`.

    torch's `unfold` copies, three times slower on a CPU, and on a GPU starts a kernel per image.
    """
    images, channels, down, across = x.stride()
    taps = (down * geometry.dilation[0], across * geometry.dilation[1])
    steps = (down * geometry.stride[0], across * geometry.stride[1])
    return x.as_strided((*x.shape[:2], *geometry.kernel, *out), (images, channels, *taps, *steps))


def direct(x: Tensor, d: Tensor, geometry: Geometry) -> Tensor:
    """Squared norms from inputs (n, c, h, w) and output gradients (n, f, h', w')."""
    out = d.shape[2:]
    d = d.flatten(2)
    rows = patches(geometry.padded(x, out), out, geometry).reshape(len(x), -1, d.shape[2]).transpose(1, 2)
    if not d.is_cuda and d.shape[2] <= 1024:  # for short rows the copy costs less than what the product gains from it
        rows = rows.contiguous()
    return torch.bmm(d, rows).square_().sum(2)


def pixelwise(x: Tensor, d: Tensor, geometry: Geometry) -> Tensor:
    """As `direct`, image by image and with the channels innermost: patches are then copied in long runs."""
    out = d.shape[2:]
    x = geometry.padded(x, out).contiguous(memory_format=torch.channels_last)
    columns = patches(x, out, geometry).permute(0, 4, 5, 2, 3, 1)
    pairs = zip(d.flatten(2), columns, strict=True)
    products = (gradient @ patch.reshape(gradient.shape[1], -1) for gradient, patch in pairs)
    return torch.stack([product.square_().sum(1) for product in products])


def quadratic(matrix: Tensor, d: Tensor) -> Tensor:
    """diag(d A d^T) for (n, l, l) and (n, f, l)."""
    # Rounding may push a norm of zero below zero; a square is never negative.
    return torch.bmm(d, matrix).mul_(d).sum(2).clamp_min_(0)


def patch_gram(x: Tensor, out: Pair, geometry: Geometry) -> Tensor:
    """(n, l, l) inner products of patches, as a box sum of the pixels' inner products (rows first, then columns)."""
    n, channels, height, width = x.shape
    pixels = x.reshape(n, channels, height * width)
    products = torch.bmm(pixels.transpose(1, 2), pixels).view(n, height, width, height, width)
    rows = products.new_zeros(n, out[0], width, out[0], width)
    for tap in range(geometry.kernel[0]):
        into, of = geometry.window(tap, 0, height, out[0])
        rows[:, into, :, into] += products[:, of, :, of]
    columns = products.new_zeros(n, out[0], out[1], out[0], out[1])
    for tap in range(geometry.kernel[1]):
        into, of = geometry.window(tap, 1, width, out[1])
        columns[:, :, into, :, into] += rows[:, :, of, :, of]
    return columns.view(n, out[0] * out[1], out[0] * out[1])


def depthwise(x: Tensor, d: Tensor, geometry: Geometry) -> Tensor:
    """Squared norms where every filter sees one channel: x (n, c, h, w), d (n, c, m, h', w') -> (n, c, m)."""
    height = x.shape[2]
    width = x.shape[3]
    out = (d.shape[3], d.shape[4])
    x = x[:, :, None]
    first = 3  # the axis of the rows
    # Small maps are summed with the channels innermost: long runs instead of short ones.
    if out[0] * out[1] < 64 or d.is_cuda:
        x, d = x.permute(0, 3, 4, 1, 2).contiguous(), d.permute(0, 3, 4, 1, 2).contiguous()
        first = 1
    before = [slice(None)] * first
    total = d.new_zeros(d[:, 0, 0].shape if first == 1 else d.shape[:3])
    for i in range(geometry.kernel[0]):
        for j in range(geometry.kernel[1]):
            rows, columns = geometry.window(i, 0, height, out[0]), geometry.window(j, 1, width, out[1])
            products = x[(*before, rows[1], columns[1])] * d[(*before, rows[0], columns[0])]
            total += products.sum((first, first + 1)).square_()
    return total


def generic(module: nn.Module, calls: list[tuple[Tensor, Tensor]], count: int) -> Tensor:
    """Squared norms for any layer with a `weight`, by autograd; calls of one layer add up before squaring."""
    weight: Tensor = module.weight  # type: ignore[assignment]
    gradients = [torch.zeros_like(weight) for _ in range(count)]
    for x, d in calls:
        with torch.enable_grad():
            free = weight.detach().requires_grad_()
            outputs = [torch.func.functional_call(module, {"weight": free}, (image,)) for image in x.chunk(count)]
        for i, (out, seed) in enumerate(zip(outputs, d.chunk(count), strict=True)):
            gradients[i] += torch.autograd.grad(out, free, seed)[0]
    return torch.stack([gradient.flatten(1).square().sum(1) for gradient in gradients])


def untied(energy: Tensor, d: Tensor) -> Tensor:
    """(n, f): squared output gradients (n, f, ...) times energies of patches (n, groups, ...), summed over places."""
    if (kernels := kernels_for(d)) is not None:
        return kernels.untied(energy.flatten(2), d.flatten(2))
    count, groups = energy.shape[:2]
    d = d.reshape(count, groups, d.shape[1] // groups, -1)
    energy = energy.reshape(count, groups, 1, -1)
    if d.is_cuda:  # what reads the large map least often
        return torch.linalg.vector_norm(d * energy.sqrt(), dim=3).square_().flatten(1)
    norms = []
    size = count if d[0].numel() < _LARGE_MAP else 1
    for energies, gradients in zip(energy.split(size), d.split(size), strict=True):
        squares = gradients.square()
        norms.append(torch.bmm(energies[:, 0], squares[:, 0].mT) if groups == 1 else squares.mul_(energies).sum(3))
    return torch.cat(norms).flatten(1)


def is_plain(module: nn.Module) -> bool:
    """Whether `module` applies its weights as they are, so that its patches are known."""
    return type(module).forward in _PLAIN


def patch_energy(module: nn.Module, x: Tensor) -> Tensor:
    """Summed squares of the patch of each output of a plain layer: (..., 1) if linear, else (n, groups, *positions)."""
    if isinstance(module, nn.Linear):
        return x.square().sum(-1, keepdim=True)
    assert isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    dimensions = len(module.kernel_size)
    x = x if x.ndim == dimensions + 2 else x[None]
    # A norm reads the map once, and writes no other; on a CPU it takes longer all the same.
    is_norm = module.groups == 1 and x.is_cuda
    energy = torch.linalg.vector_norm(x, dim=1, keepdim=True).square() if is_norm else x.square()
    if module.groups == 1:
        energy = energy if is_norm else energy.sum(1, keepdim=True)
    elif module.groups < module.in_channels:
        energy = energy.unflatten(1, (module.groups, -1)).sum(2)
    taps = math.prod(module.kernel_size)
    pads = module._reversed_padding_repeated_twice
    padding = 0
    # Many maps are summed several times as fast by a convolution with ones.
    is_pooled = taps == 1 or (set(module.dilation) == {1} and module.groups == 1)
    if isinstance(module, Conv2dSame):
        energy = pad_same(energy, list(module.kernel_size), list(module.stride), list(module.dilation))
    elif module.padding_mode == "zeros" and not is_pooled:
        padding = module.padding
    elif any(pads):
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        energy = functional.pad(energy, pads, mode=mode)
    if is_pooled:
        is_itself = taps == 1 and set(module.stride) == {1}
        return energy if is_itself else _POOLS[dimensions](energy, module.kernel_size, module.stride) * taps
    ones = torch.ones(module.groups, 1, *module.kernel_size, dtype=energy.dtype, device=energy.device)
    convolve = _CONVOLUTIONS[dimensions]
    return convolve(energy, ones, None, module.stride, padding, module.dilation, module.groups)
