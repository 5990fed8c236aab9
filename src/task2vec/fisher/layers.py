"""One layer of a batch: its input and the gradient at its output become squared gradient norms of its filters.

Which of the ways in `reductions` it takes follows from the kind of the layer and its sizes.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from timm.layers.conv2d_same import Conv2dSame
from torch import Tensor, nn
from torch.nn import functional

from task2vec.fisher import reductions
from task2vec.fisher.energy import is_plain, patch_energy
from task2vec.fisher.reductions import Geometry, Shape
from task2vec.probe import PreparedNetwork
from task2vec.probe.turning import TurnedConv2d

MIXES = 4
_PLAIN = (nn.Conv2d.forward, Conv2dSame.forward, TurnedConv2d.forward)

# Computes what depends on a layer's input alone, or remembers it from another seed.
Remember = Callable[[Callable[[], Tensor]], Tensor]


class Ways(Protocol):
    """What an engine says about how layers are reduced."""

    @property
    def network(self) -> PreparedNetwork:
        """The network of the layers."""
        ...

    @property
    def route(self) -> str | None:
        """One route for every layer that has it, or None for the cheapest of each."""
        ...


def compute_anew(compute: Callable[[], Tensor]) -> Tensor:
    """What is computed, kept by nobody."""
    return compute()


def reduce_layer(
    ways: Ways,
    name: str,
    x: Tensor,
    d: Tensor,
    count: int,
    signs: "Signs | None",
    remember: Remember = compute_anew,
) -> Tensor:
    """(count, filters): squared gradient norms of one layer from its input `x` and its output gradient `d`."""
    module = ways.network.layers[name]
    if isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward:
        x, d = _tokens(x, count), _tokens(d, count)
        return _reduce_dense(ways, name, x[..., None], d[..., None], Geometry((1, 1)), signs, remember)
    found = geometry_of(module, x, d)
    if found is None:
        return reductions.generic(module, [(x, d)], count)
    x, geometry = found
    return _reduce_convolution(ways, name, x, d, geometry, signs, remember)


def reduce_untied(
    module: nn.Module, x: Tensor, d: Tensor, keys: Sequence[int], remember: Remember = compute_anew
) -> Tensor:
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
        return reductions.generic(module, [(x, signed)], count)
    lengths = remember(lambda: patch_energy(module, x).sqrt())
    if isinstance(module, nn.Linear):
        return reductions.untied(lengths.reshape(count, 1, -1), _tokens(d, count))
    return reductions.untied(lengths, d).reshape(count, -1, d.shape[1]).sum(1)


def _tokens(x: Tensor, count: int) -> Tensor:
    """(images, channels, tokens) of anything whose last axis is channels and whose images lie together."""
    return x.reshape(count, -1, x.shape[-1]).transpose(1, 2)


def geometry_of(module: nn.Module, x: Tensor, d: Tensor) -> tuple[Tensor, Geometry] | None:
    """Input and geometry of a plain 2-d convolution (padded here where not with zeros); None for others."""
    if not isinstance(module, nn.Conv2d) or type(module).forward not in _PLAIN:
        return None
    kernel, stride, dilation = _pair(module.kernel_size), _pair(module.stride), _pair(module.dilation)
    if isinstance(module, Conv2dSame):
        padding = tuple(_same_padding(x.shape[2 + i], kernel[i], stride[i], dilation[i]) for i in (0, 1))
    elif isinstance(module.padding, str):
        padding = tuple((dilation[i] * (kernel[i] - 1)) // 2 if module.padding == "same" else 0 for i in (0, 1))
    else:
        padding = _pair(module.padding)
    if module.padding_mode != "zeros":
        x = functional.pad(x, module._reversed_padding_repeated_twice, mode=module.padding_mode)
        padding = (0, 0)
    return x, Geometry(kernel, stride, dilation, (padding[0], padding[1]))


def _same_padding(size: int, kernel: int, stride: int, dilation: int) -> int:
    """Zeros at the start that TensorFlow's 'same' rule puts there."""
    return max((math.ceil(size / stride) - 1) * stride + (kernel - 1) * dilation + 1 - size, 0) // 2


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _reduce_convolution(
    ways: Ways, name: str, x: Tensor, d: Tensor, geometry: Geometry, signs: "Signs | None", remember: Remember
) -> Tensor:
    groups: int = ways.network.layers[name].groups  # type: ignore[assignment]
    count, filters = d.shape[:2]
    numbers = signs.number(name) if signs is not None and geometry.taps > 1 else None
    if groups > 1:
        x = x.reshape(count, groups, -1, *x.shape[2:])
        d = d.reshape(count, groups, -1, *d.shape[2:])
        if x.shape[2] == 1:
            return _reduce_depthwise(x[:, :, 0], d, geometry, numbers).reshape(count, filters)
        x, d = x.flatten(0, 1), d.flatten(0, 1)
    elif numbers is not None and x.shape[1] <= MIXES:
        return _reduce_stem(x, d, geometry, numbers)
    return _reduce_dense(ways, name, x, d, geometry, signs, remember).reshape(count, filters)


def _reduce_depthwise(x: Tensor, d: Tensor, geometry: Geometry, numbers: Tensor | None) -> Tensor:
    """All taps, or with `numbers` one diagonal of the kernel per image, counted as often as there are diagonals."""
    if numbers is None:
        if d.is_cuda or d[0].numel() < 1 << 16:
            return reductions.depthwise(x, d, geometry)
        # Large maps go image by image on a CPU, so that each stays in its caches.
        return torch.cat([reductions.depthwise(x[i : i + 1], d[i : i + 1], geometry) for i in range(len(x))])
    if d.is_cuda and d.shape[2] == 1:
        return reductions.depthwise_on_diagonals(x, d, geometry, numbers) * geometry.kernel[1]
    return _by_diagonal(reductions.depthwise, x, d, geometry, numbers)


def _reduce_stem(x: Tensor, d: Tensor, geometry: Geometry, numbers: Tensor) -> Tensor:
    if d.is_cuda:
        return reductions.few_channels_on_diagonals(x, d, geometry, numbers) * geometry.kernel[1]
    return _by_diagonal(reductions.few_channels, x, d, geometry, numbers)


def _by_diagonal(route: Callable, x: Tensor, d: Tensor, geometry: Geometry, numbers: Tensor) -> Tensor:
    """`route` for the images of each diagonal: one by one where maps are large, together where they are small."""
    diagonals = geometry.kernel[1]
    chosen = numbers % diagonals
    norms = d.new_empty(d.shape[:-2])
    if d[0].numel() >= 1 << 15:
        for i, k in enumerate(chosen.tolist()):
            norms[i] = route(x[i : i + 1], d[i : i + 1], geometry, geometry.diagonal(k))[0]
        return norms * diagonals
    for k in range(diagonals):
        images = torch.nonzero(chosen == k).flatten()
        norms[images] = route(x[images], d[images], geometry, geometry.diagonal(k))
    return norms * diagonals


def _reduce_dense(
    ways: Ways, name: str, x: Tensor, d: Tensor, geometry: Geometry, signs: "Signs | None", remember: Remember
) -> Tensor:
    out = (d.shape[2], d.shape[3])
    shape = Shape(x.shape[1], d.shape[1], x.shape[2] * x.shape[3], out[0] * out[1], geometry)
    route = ways.route or reductions.cheapest(shape, device=x.device.type, mixes=MIXES if signs is not None else None)
    if route == "gram":
        gram = remember(lambda: reductions.patch_gram(x, out, geometry))
        return reductions.quadratic(gram, d.flatten(2))
    if route == "pixelwise":
        return reductions.pixelwise(x, d, geometry)
    if route == "sketch" and signs is not None:
        x = reductions.mix(x, signs.of(name, *x.shape[:2]))
    return reductions.direct(reductions.patches(x, out, geometry), d.flatten(2))


class Signs:
    """Random signs and a random number for every layer and image, drawn from the image's key alone.

    So they are the same in whatever batch the image is.
    """

    def __init__(self, keys: Sequence[int], network: PreparedNetwork, images: Tensor):
        self.device, self.dtype = images.device, images.dtype
        self.spans: dict[str, slice] = {}
        total = 0
        for name, module in network.layers.items():
            weight: Tensor = module.weight  # type: ignore[assignment]
            # Layers with few channels are not mixed, so they need no signs.
            channels = weight.shape[1] * getattr(module, "groups", 1) if weight.shape[1] > MIXES else 0
            size = -(-MIXES * channels // 8)
            self.spans[name] = slice(total, total + size)
            total += size
        generators = [np.random.Generator(np.random.Philox(key)) for key in keys]
        drawn = np.stack([generator.integers(1 << 31, size=len(self.spans)) for generator in generators])
        self.numbers = dict(zip(self.spans, torch.from_numpy(drawn).T, strict=True))
        packed = np.stack([np.frombuffer(generator.bytes(total), np.uint8) for generator in generators])
        self.packed = torch.from_numpy(packed).to(self.device)
        self.shifts = torch.arange(8, dtype=torch.uint8, device=self.device)

    def of(self, name: str, rows: int, channels: int) -> Tensor:
        """(rows, mixes, channels) signs of a layer, where groups count as rows."""
        bits = self.packed[:, self.spans[name], None] >> self.shifts & 1
        signs = bits.flatten(1)[:, : MIXES * channels * rows // len(self.packed)].to(self.dtype).mul_(2).sub_(1)
        return signs.reshape(rows, MIXES, channels)

    def number(self, name: str) -> Tensor:
        """(images,) a large random number each."""
        return self.numbers[name]
