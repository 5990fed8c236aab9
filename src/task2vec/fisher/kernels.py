"""Reductions of a layer as Triton kernels, for a GPU: each reads the gradient once and writes little but the norms.

In torch's own operations the untied Fisher writes the map of products and reads it again, and the gradient of every
image needs all patches of the input in memory, nine times the input for a 3 x 3 kernel. Triton comes with torch on
Linux; elsewhere, and in double precision, `reductions` goes on without.

All take inputs (n, c, h, w) and output gradients (n, f, h', w') of any memory layout, and return (n, f).
"""

# Triton compiles kernels from their source: what a type checker sees of them is not what runs.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# Positions that one program adds up before all are added up, and positions and filters that it holds at a time.
_RUN = 1024
_PLACES = 64
_FILTERS = 64


@triton.jit
def _untied(
    d, energy, out, positions, filters, d_image, d_filter, d_place, e_image, e_group, e_place, width,
    RUN: tl.constexpr, PLACES: tl.constexpr, FILTERS: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(2).to(tl.int64)
    run = tl.program_id(1)
    f = tl.program_id(0) * FILTERS + tl.arange(0, FILTERS)
    total = tl.zeros((FILTERS,), tl.float32)
    for start in range(run * RUN, tl.minimum(run * RUN + RUN, positions), PLACES):
        position = start + tl.arange(0, PLACES)
        inside = (position[:, None] < positions) & (f[None, :] < filters)
        slope = tl.load(d + image * d_image + position[:, None] * d_place + f[None, :] * d_filter, inside, 0.0)
        of = energy + image * e_image + position[:, None] * e_place + (f // width)[None, :] * e_group
        slope = slope.to(tl.float32)
        total += tl.sum(slope * slope * tl.load(of, inside, 0.0).to(tl.float32), 0)
    tl.store(out + (image * tl.num_programs(1) + run) * filters + f, total, f < filters)


def untied(energy: Tensor, d: Tensor) -> Tensor:
    """(n, f): output gradients (n, f, l) squared, times energies of patches (n, groups, l), summed over positions."""
    count, filters, positions = d.shape
    runs = triton.cdiv(positions, _RUN)
    out = torch.empty(count, runs, filters, dtype=torch.float32, device=d.device)
    sizes = (positions, filters, *d.stride(), *energy.stride(), filters // energy.shape[1])
    grid = (triton.cdiv(filters, _FILTERS), runs, count)
    _untied[grid](d, energy, out, *sizes, RUN=_RUN, PLACES=_PLACES, FILTERS=_FILTERS)
    return out.sum(1).to(d.dtype)


@triton.jit
def _depthwise(
    x, d, out, filters, height, width, positions, across, x_image, x_row, x_column, x_channel, d_image, d_filter,
    d_place, stride_down, stride_across, dilation_down, dilation_across, pad_down, pad_across, multiplier,
    KERNEL: tl.constexpr, TAPS: tl.constexpr, ROOM: tl.constexpr,
    RUN: tl.constexpr, PLACES: tl.constexpr, FILTERS: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(2).to(tl.int64)
    run = tl.program_id(1)
    f = tl.program_id(0) * FILTERS + tl.arange(0, FILTERS)
    taps = tl.arange(0, ROOM)
    total = tl.zeros((ROOM, FILTERS), tl.float32)
    for start in range(run * RUN, tl.minimum(run * RUN + RUN, positions), PLACES):
        position = start + tl.arange(0, PLACES)
        inside = (position < positions)[:, None] & (f < filters)[None, :]
        slope = tl.load(d + image * d_image + position[:, None] * d_place + f[None, :] * d_filter, inside, 0.0)
        slope = slope.to(tl.float32)
        for tap in tl.static_range(TAPS):
            row = position // across * stride_down + (tap // KERNEL) * dilation_down - pad_down
            column = position % across * stride_across + (tap % KERNEL) * dilation_across - pad_across
            seen = ((row >= 0) & (row < height) & (column >= 0) & (column < width))[:, None] & inside
            of = x + image * x_image + (row * x_row + column * x_column)[:, None]
            value = tl.load(of + (f // multiplier)[None, :] * x_channel, seen, 0.0).to(tl.float32)
            total += tl.where((taps == tap)[:, None], tl.sum(slope * value, 0)[None, :], 0.0)
    of = out + ((image * tl.num_programs(1) + run) * TAPS + taps[:, None]) * filters + f[None, :]
    tl.store(of, total, (taps < TAPS)[:, None] & (f < filters)[None, :])


def depthwise(x: Tensor, d: Tensor, geometry: Any) -> Tensor:
    """Squared norms of filter gradients where every filter sees one channel: per tap, a sum over the positions."""
    count = len(d)
    filters = d.shape[1]
    runs = triton.cdiv(d[0, 0].numel(), _RUN)
    out = torch.empty(count, runs, geometry.taps, filters, dtype=torch.float32, device=d.device)
    _depthwise[(triton.cdiv(filters, _FILTERS), runs, count)](
        x, d, out, *_describe(x, d, geometry), filters // x.shape[1], KERNEL=geometry.kernel[1], TAPS=geometry.taps,
        ROOM=triton.next_power_of_2(geometry.taps), RUN=_RUN, PLACES=_PLACES, FILTERS=_FILTERS,
    )  # fmt: skip
    return out.sum(1).square_().sum(1).to(d.dtype)


@triton.jit
def _tied(
    x, d, out, filters, height, width, positions, across, x_image, x_row, x_column, x_channel, d_image, d_filter,
    d_place, stride_down, stride_across, dilation_down, dilation_across, pad_down, pad_across,
    CHANNELS: tl.constexpr, KERNEL: tl.constexpr, WEIGHTS: tl.constexpr,
    FILTERS: tl.constexpr, BLOCK: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(2).to(tl.int64)
    f = tl.program_id(1) * FILTERS + tl.arange(0, FILTERS)
    weight = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tap = weight // CHANNELS
    channel = weight % CHANNELS
    down = (tap // KERNEL) * dilation_down - pad_down
    aside = (tap % KERNEL) * dilation_across - pad_across
    total = tl.zeros((FILTERS, BLOCK), tl.float32)
    for start in range(0, positions, PLACES):
        position = start + tl.arange(0, PLACES)
        is_place = (position < positions)[:, None]
        of = d + image * d_image + position[:, None] * d_place + f[None, :] * d_filter
        slope = tl.load(of, is_place & (f < filters)[None, :], 0.0)
        row = (position // across * stride_down)[:, None] + down[None, :]
        column = (position % across * stride_across)[:, None] + aside[None, :]
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width) & is_place & (weight < WEIGHTS)[None, :]
        of = x + image * x_image + row * x_row + column * x_column + channel[None, :] * x_channel
        value = tl.load(of, inside, 0.0)
        total = tl.dot(tl.trans(slope), value, total, input_precision="ieee")
    of = out + (image * tl.num_programs(0) + tl.program_id(0)) * filters + f
    tl.store(of, tl.sum(total * total, 1), f < filters)


def tied(x: Tensor, d: Tensor, geometry: Any, *, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Squared norms of filter gradients: products of gradients and patches, squared and summed where they are.

    Factors are rounded to `dtype` before, as they are read many times; sums are not. Rounding errors are independent,
    so that of a filter, whose weights and positions they average over, is about that of products in TF32 through the
    whole network.
    """
    kept = d.dtype
    x = x.to(dtype)
    d = d.to(dtype)
    count = len(d)
    filters = d.shape[1]
    weights = x.shape[1] * geometry.taps
    # Measured on an H200: what fits into the registers, and is long enough for the tensor cores.
    rows = 128 if filters > 64 else 64
    block = 64 if x.shape[1] < 32 else 128
    parts = triton.cdiv(weights, block)
    places = 64 if d[0, 0].numel() > 512 else 32
    out = torch.empty(count, parts, filters, dtype=torch.float32, device=d.device)
    _tied[(parts, triton.cdiv(filters, rows), count)](
        x, d, out, *_describe(x, d, geometry), CHANNELS=x.shape[1], KERNEL=geometry.kernel[1], WEIGHTS=weights,
        FILTERS=rows, BLOCK=block, PLACES=places, num_warps=8 if rows + places > 128 + 32 else 4, num_stages=3,
    )  # fmt: skip
    return out.sum(1).to(kept)


def _describe(x: Tensor, d: Tensor, geometry: Any) -> tuple[int, ...]:
    """Sizes, strides and geometry, as kernels take them."""
    _, filters, down, across = d.shape
    image, channel, row, column = x.stride()
    return (
        *(filters, x.shape[2], x.shape[3], down * across, across, image, row, column, channel, *d.flatten(2).stride()),
        *(*geometry.stride, *geometry.dilation, *geometry.padding),
    )
