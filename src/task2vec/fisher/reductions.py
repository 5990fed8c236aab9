"""Squared norms of per-image filter gradients, without ever forming the gradient of the batch.

A layer saw the input x of every image and the gradient d at its output. The gradient of filter k for one image is
sum_l d[k, l] * patch[l], and only its squared norm is wanted. Exact routes to the same number, and two unbiased ones:

* `direct`: form the gradient by one matrix product per image, then square.
* `pixelwise`: the same, image by image, with the channels of a pixel side by side (best for large maps on a CPU).
* `gram`: d^T G d with the Gram matrix of the patches, G[l, l'] = <patch_l, patch_l'>. For a convolution G is a box sum
  of the Gram matrix of the *pixels*, summed over rows and then over columns, so patches are never formed.
* `depthwise`: one input channel per filter: a few shifted products.
* `generic`: any other layer, through autograd, one image at a time.
* `untied`: another quantity, the Fisher of a network that has its own copy of the filter at every position, summed over
  the copies: sum_l d[k, l]^2 |patch[l]|^2. It is what noise that is drawn afresh for every output measures.
* `sketch`: mixes the input channels by random signs (S mixes, fresh for every image) before `direct`. Since
  E[(sum_c s_c a_c)^2] = sum_c a_c^2, the mean over mixes is unbiased, at S / channels of the cost.
* `diagonal`: where there are no channels to mix (depthwise layers, the stem), each image measures one diagonal of the
  kernel, drawn uniformly, and counts it as many times as there are diagonals. Neighbouring kernel positions see nearly
  the same pixels, so their squares are alike and little is lost.

Groups are folded into the batch axis, so each function sees one group only.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

Pair = tuple[int, int]
Taps = list[Pair]


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

    def all_taps(self) -> Taps:
        """Every kernel position (row, column)."""
        return [(i, j) for i in range(self.kernel[0]) for j in range(self.kernel[1])]

    def diagonal(self, number: int) -> Taps:
        """One position per kernel row; the diagonals 0 to columns - 1 hold every position once."""
        return [(i, (i + number) % self.kernel[1]) for i in range(self.kernel[0])]

    def at(self, tap: Pair, x: Tensor, out: Pair, *, axis: int = 2) -> Tensor:
        """What `tap` falls on for every output: a view of the padded `x`, whose rows lie along `axis`."""
        index: list[slice] = [slice(None)] * axis
        for i in (0, 1):
            start = tap[i] * self.dilation[i]
            index.append(slice(start, start + self.stride[i] * (out[i] - 1) + 1, self.stride[i]))
        return x[tuple(index)]

    def window(self, tap: int, axis: int, size: int, out: int) -> tuple[slice, slice] | None:
        """Outputs whose `tap` falls inside an input of `size`, and the inputs it falls on; None if there are none."""
        stride, offset = self.stride[axis], tap * self.dilation[axis] - self.padding[axis]
        first = max(0, -(offset // stride))
        last = min(out, (size - 1 - offset) // stride + 1)
        if last <= first:
            return None
        start = stride * first + offset
        return slice(first, last), slice(start, start + stride * (last - first - 1) + 1, stride)


def patches(x: Tensor, out: Pair, geometry: Geometry) -> Tensor:
    """(images, channels * taps, outputs) of what each output sees."""
    x = geometry.padded(x, out)
    if geometry.taps == 1:
        return x[:, :, :: geometry.stride[0], :: geometry.stride[1]][:, :, : out[0], : out[1]].flatten(2)
    if not x.is_cuda:
        return functional.unfold(x, geometry.kernel, geometry.dilation, 0, geometry.stride)
    return strided_patches(x, out, geometry)


def strided_patches(x: Tensor, out: Pair, geometry: Geometry) -> Tensor:
    """The patches of the padded `x` by a strided view and one copy: on a GPU `unfold` starts one kernel per image."""
    count, channels, *_ = x.shape
    image, channel, down, across = x.stride()
    taps = (down * geometry.dilation[0], across * geometry.dilation[1])
    steps = (down * geometry.stride[0], across * geometry.stride[1])
    view = x.as_strided((count, channels, *geometry.kernel, *out), (image, channel, *taps, *steps))
    return view.reshape(count, channels * geometry.taps, out[0] * out[1])


def direct(columns: Tensor, d: Tensor) -> Tensor:
    """Squared norms from patches (n, k, l) and output gradients (n, f, l)."""
    turned = columns.transpose(1, 2)
    if not d.is_cuda and d.shape[2] <= 1024:  # for short rows the copy costs less than what the product gains from it
        turned = turned.contiguous()
    return torch.bmm(d, turned).square_().sum(2)


def pixelwise(x: Tensor, d: Tensor, geometry: Geometry) -> Tensor:
    """As `direct`, image by image and with the channels innermost: patches are then copied in long runs."""
    count, filters, *out = d.shape
    x = geometry.padded(x, (out[0], out[1])).permute(0, 2, 3, 1).contiguous()
    _, down, across, _ = x.stride()
    steps = (down * geometry.stride[0], across * geometry.stride[1])
    taps = (down * geometry.dilation[0], across * geometry.dilation[1])
    norms = d.new_empty(count, filters)
    for i in range(count):
        view = x[i].as_strided((*out, *geometry.kernel, x.shape[3]), (*steps, *taps, 1))
        norms[i] = (d[i].flatten(1) @ view.reshape(out[0] * out[1], -1)).square_().sum(1)
    return norms


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
        if window := geometry.window(tap, 0, height, out[0]):
            into, of = window
            rows[:, into, :, into] += products[:, of, :, of]
    columns = products.new_zeros(n, out[0], out[1], out[0], out[1])
    for tap in range(geometry.kernel[1]):
        if window := geometry.window(tap, 1, width, out[1]):
            into, of = window
            columns[:, :, into, :, into] += rows[:, :, of, :, of]
    return columns.view(n, out[0] * out[1], out[0] * out[1])


def depthwise(x: Tensor, d: Tensor, geometry: Geometry, taps: Taps | None = None) -> Tensor:
    """Squared norms where every filter sees one channel: x (n, c, h, w), d (n, c, m, h', w') -> (n, c, m)."""
    height, width, out = x.shape[2], x.shape[3], (d.shape[3], d.shape[4])
    x = x[:, :, None]
    # Small maps are summed with the channels innermost: long runs instead of short ones.
    if out[0] * out[1] < 64 or d.is_cuda:
        x, d = x.permute(0, 3, 4, 1, 2).contiguous(), d.permute(0, 3, 4, 1, 2).contiguous()
        rows, columns = 1, 2
    else:
        rows, columns = 3, 4
    total = d.new_zeros(d[:, 0, 0].shape if rows == 1 else d.shape[:3])
    for i, j in taps or geometry.all_taps():
        vertical, horizontal = geometry.window(i, 0, height, out[0]), geometry.window(j, 1, width, out[1])
        if vertical and horizontal:
            seen = x[_at(rows, vertical[1], horizontal[1])] * d[_at(rows, vertical[0], horizontal[0])]
            total += seen.sum((rows, columns)).square_()
    return total


def _at(axis: int, rows: slice, columns: slice) -> tuple[slice, ...]:
    return (*[slice(None)] * axis, rows, columns)


def depthwise_on_diagonals(x: Tensor, d: Tensor, geometry: Geometry, numbers: Tensor) -> Tensor:
    """As `depthwise` for one filter per channel, each image on the diagonal that its number chooses."""
    seen = diagonal_pixels(x, (d.shape[3], d.shape[4]), geometry, numbers)
    products = seen.mul_(d[:, None, :, 0].movedim(2, -1))
    return products.sum((2, 3)).square_().sum(1)[..., None]


def few_channels(x: Tensor, d: Tensor, geometry: Geometry, taps: Taps) -> Tensor:
    """Squared norms of the part of each filter that lies on `taps`: x (n, c, h, w), d (n, f, h', w') -> (n, f)."""
    out = (d.shape[2], d.shape[3])
    x = geometry.padded(x, out)
    return direct(torch.cat([geometry.at(tap, x, out).flatten(2) for tap in taps], dim=1), d.flatten(2))


def few_channels_on_diagonals(x: Tensor, d: Tensor, geometry: Geometry, numbers: Tensor) -> Tensor:
    """As `few_channels`, each image on the diagonal that its number chooses."""
    seen = diagonal_pixels(x, (d.shape[2], d.shape[3]), geometry, numbers)
    columns = seen.permute(0, 1, 4, 2, 3).reshape(len(x), -1, d.shape[2] * d.shape[3])
    return direct(columns, d.flatten(2))


def diagonal_pixels(x: Tensor, out: Pair, geometry: Geometry, numbers: Tensor) -> Tensor:
    """(n, kernel rows, h', w', c): what the taps of each image's own diagonal see, in one gathering."""
    x = geometry.padded(x, out).permute(0, 2, 3, 1).contiguous()
    taps = torch.arange(geometry.kernel[0])
    columns = (taps + numbers[:, None]) % geometry.kernel[1]
    heights, widths = torch.arange(out[0]) * geometry.stride[0], torch.arange(out[1]) * geometry.stride[1]
    image = torch.arange(len(x))[:, None, None, None]
    row = (taps[:, None] * geometry.dilation[0] + heights)[None, :, :, None]
    column = (columns[..., None] * geometry.dilation[1] + widths)[:, :, None, :]
    return x[image.to(x.device), row.to(x.device), column.to(x.device)]


def generic(module: nn.Module, calls: list[tuple[Tensor, Tensor]], count: int) -> Tensor:
    """Squared norms for any layer with a `weight`, by autograd; calls of one layer add up before squaring."""
    weight: Tensor = module.weight  # type: ignore[assignment]
    gradients = [torch.zeros_like(weight) for _ in range(count)]
    for x, d in calls:
        with torch.enable_grad():
            free = weight.detach().requires_grad_()
            parts = [torch.func.functional_call(module, {"weight": free}, (part,)) for part in x.chunk(count)]
        for i, (out, seed) in enumerate(zip(parts, d.chunk(count), strict=True)):
            gradients[i] += torch.autograd.grad(out, free, seed)[0]
    return torch.stack([gradient.flatten(1).square().sum(1) for gradient in gradients])


def untied(lengths: Tensor, d: Tensor) -> Tensor:
    """(n, f): sum over positions of squares: output gradients (n, f, ...) times lengths of patches (n, groups, ...)."""
    count, groups = lengths.shape[:2]
    products = d.reshape(count, groups, d.shape[1] // groups, -1) * lengths.reshape(count, groups, 1, -1)
    # A product and a norm read the large map less often than a square and a product with the energies would.
    return torch.linalg.vector_norm(products, dim=3).square_().flatten(1)


def mix(x: Tensor, signs: Tensor) -> Tensor:
    """`x` (n, c, ...) with its channels mixed by `signs` (n, s, c), scaled so that squares add up without bias."""
    count, mixes, channels = signs.shape
    mixed = torch.bmm(signs, x.reshape(count, channels, -1)) * mixes**-0.5
    return mixed.view(count, mixes, *x.shape[2:])


# A product with fewer columns than this costs as much as one with so many: reading the other factor takes the time.
_NARROW = 12


@dataclass(frozen=True)
class Shape:
    """The sizes that decide which route is cheapest, for one image and one group."""

    channels: int
    filters: int
    pixels: int
    outputs: int
    geometry: Geometry


def cheapest(shape: Shape, *, device: str, mixes: int | None = None) -> str:
    """Name of the cheapest route for a layer: among the exact ones, or with `mixes` also the sketch.

    Costs are multiply-adds; sums of the Gram matrix and the forming of patches are bound by memory and count more
    (factors measured on a CPU; a GPU has no use for a loop over images).
    """
    taps, outputs = shape.geometry.taps, shape.outputs
    direct_route = "direct" if taps == 1 or device != "cpu" or shape.channels * taps <= 64 else "pixelwise"
    costs = {
        direct_route: shape.filters * outputs * max(shape.channels * taps, _NARROW),
        "gram": shape.pixels**2 * shape.channels
        + outputs**2 * (shape.filters + (20 * shape.geometry.kernel[0] if taps > 1 else 0)),
    }
    if mixes is not None and mixes < shape.channels:
        gathering = mixes * (shape.channels * shape.pixels + (40 * taps * outputs if taps > 1 else 0))
        costs["sketch"] = gathering + shape.filters * outputs * max(mixes * taps, _NARROW)
    return min(costs, key=lambda name: costs[name])
