"""One forward and one input-gradient pass per image, read off at every filter layer.

The engine never asks for a weight gradient. It sits on the output of each filter layer, sees the input of the layer on
the way forward and the gradient at its output on the way back, and reduces the two to one squared norm per image and
filter at once, so nothing but those norms outlives the layer.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from timm.layers.conv2d_same import Conv2dSame
from torch import Tensor, nn
from torch.nn import functional

from task2vec.errors import NotFiniteError, UsageError
from task2vec.fisher import reductions
from task2vec.fisher.energy import is_plain, patch_energy
from task2vec.fisher.reductions import Geometry, Shape
from task2vec.probe import FilterLayer, PreparedNetwork
from task2vec.probe.turning import TurnedConv2d

MIXES = 4
Remember = Callable[[Callable[[], Tensor]], Tensor]
_PLAIN = (nn.Conv2d.forward, Conv2dSame.forward, TurnedConv2d.forward)


class _Tap(torch.autograd.Function):
    """The identity on a layer's output: starts the graph at the first layer, shows the gradient coming back."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, start: Tensor, show: Callable[[Tensor], None]) -> Tensor:
        ctx.show = show
        ctx.mark_dirty(out)  # no copy and no view, so an in-place ReLU may follow
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None]:
        ctx.show(gradients[0])
        return (gradients[0] if ctx.needs_input_grad[0] else None), None, None


def compute_anew(compute: Callable[[], Tensor]) -> Tensor:
    """What is computed, kept by nobody."""
    return compute()


@dataclass(frozen=True)
class Engine:
    """Computes the rows of the Fisher: squared filter gradients, image by image.

    Args:
        network: a prepared probe.
        layers: its filter layers, in the order of the coordinates.
        route: None for the cheapest exact route of each layer; or one route for every layer that has it (for tests).
        is_fast: let layers be sketched where that is cheaper.
        is_untied: measure filters that have a copy of their own at every position (see `reductions`): cheap enough to
            need no sketch.
    """

    network: PreparedNetwork
    layers: tuple[FilterLayer, ...]
    is_fast: bool = False
    route: str | None = None
    is_untied: bool = False

    def rows(
        self, images: Tensor, seeds: Tensor | Callable[[Tensor], Tensor], keys: Sequence[int] | None = None
    ) -> Tensor:
        """(images, filters): sum over `seeds` (r, n, features) of the mean squared filter gradient of seed . features.

        Seeds may be a function of the features (n, d) of this pass, where those are not known before.
        `keys` (one number per image) choose the signs of a sketch, so that they depend on the image and not on the
        batch it happens to be in.
        """
        each = self.rows_by_seed(images, seeds, keys)
        total = next(each)
        for rows in each:
            total = total + rows
        return total

    def rows_by_seed(
        self, images: Tensor, seeds: Tensor | Callable[[Tensor], Tensor], keys: Sequence[int] | None = None
    ) -> Iterator[Tensor]:
        """The (images, filters) of every seed in turn; all share one forward pass, and what layers know of inputs."""
        if self.is_fast and keys is None:
            raise UsageError("the fast engine needs a key per image: without, all would share their signs. Pass keys=.")
        if not self.network.is_batched and images.shape[0] > 1:
            keys = keys if keys is not None else [0] * images.shape[0]
            each = [seeds if callable(seeds) else seeds[:, i : i + 1] for i in range(images.shape[0])]
            alone = [self.rows_by_seed(images[i : i + 1], each[i], keys[i : i + 1]) for i in range(images.shape[0])]
            yield from (torch.cat(rows) for rows in zip(*alone, strict=True))
            return
        signs = _Signs(keys, self.network, images) if self.is_fast and keys is not None else None
        recorder = _Recorder(self, images.shape[0], signs, keys)
        handles = [module.register_forward_hook(recorder.hook(name)) for name, module in self.network.layers.items()]
        try:
            with torch.enable_grad():
                features = self.network.module(images)
        finally:
            for handle in handles:
                handle.remove()
        recorder.is_listening = False
        seeds = seeds(features.detach()) if callable(seeds) else seeds
        recorder.memory = {} if len(seeds) > 1 else None
        for i, seed in enumerate(seeds):
            torch.autograd.grad(features, recorder.start, seed, retain_graph=i + 1 < len(seeds), allow_unused=True)
            yield recorder.rows()


class _Recorder:
    """Takes in what the layers show during one batch, and makes the rows of a backward pass of it.

    Attributes:
        memory: what depends on a layer's input alone and is small, kept for the next seeds of the batch.
    """

    def __init__(self, engine: Engine, count: int, signs: "_Signs | None", keys: Sequence[int] | None):
        self.engine, self.count, self.signs = engine, count, signs
        self.keys = keys if keys is not None else range(count)
        self.start = torch.zeros((), requires_grad=True)
        self.is_listening = True  # during the forward pass; a generic reduction calls layers again later
        self.norms: dict[str, Tensor] = {}
        self.pending: dict[str, list[tuple[Tensor, Tensor]]] = {}
        self.calls: dict[str, int] = {}
        self.memory: dict[str, Tensor] | None = None

    def hook(self, name: str) -> Callable:
        def on_forward(module: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> Tensor | None:
            if not self.is_listening:
                return None
            x = inputs[0].detach()
            self.calls[name] = self.calls.get(name, 0) + 1
            return _Tap.apply(out.clone() if out._is_view() else out, self.start, lambda d: self._show(name, x, d))  # type: ignore[return-value]

        return on_forward

    def _show(self, name: str, x: Tensor, d: Tensor) -> None:
        if self.engine.is_untied:
            with torch.no_grad():
                self._add(name, reduce_untied(self.engine.network.layers[name], x, d, self.keys, self._memoriser(name)))
            return
        if self.calls[name] > 1:  # a layer used several times: its gradients add up before they are squared
            self.pending.setdefault(name, []).append((x, d))
            return
        with torch.no_grad():
            self._add(name, reduce_layer(self.engine, name, x, d, self.count, self.signs, self._memoriser(name)))

    def _memoriser(self, name: str) -> Remember:
        """Computes once per layer and batch what later seeds need again; a layer that runs twice has no memory."""
        if self.memory is None or self.calls[name] > 1:
            return compute_anew
        memory = self.memory

        def remember(compute: Callable[[], Tensor]) -> Tensor:
            if name not in memory:
                memory[name] = compute()
            return memory[name]

        return remember

    def _add(self, name: str, norms: Tensor) -> None:
        self.norms[name] = self.norms[name] + norms if name in self.norms else norms

    def rows(self) -> Tensor:
        """(images, filters) of the backward pass that has just ended; the next one begins from nothing."""
        for name, calls in self.pending.items():  # layers with several calls are squared only now
            self._add(name, reductions.generic(self.engine.network.layers[name], calls, self.count))
        columns = []
        for layer in self.engine.layers:
            norms = self.norms.get(layer.name)
            if norms is None:  # the gradient does not reach this layer
                norms = torch.zeros(self.count, layer.filters, device=next(iter(self.norms.values())).device)
            scale = self.engine.network.scales.get(layer.name)
            norms = norms / layer.weights_per_filter
            columns.append(norms if scale is None else norms * scale.square())
        self.pending, self.norms = {}, {}
        return torch.cat(columns, dim=1)


def reduce_layer(
    engine: Engine,
    name: str,
    x: Tensor,
    d: Tensor,
    count: int,
    signs: "_Signs | None",
    remember: Remember = compute_anew,
) -> Tensor:
    """(count, filters): squared gradient norms of one layer from its input `x` and its output gradient `d`."""
    module = engine.network.layers[name]
    if isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward:
        x, d = _tokens(x, count), _tokens(d, count)
        return _reduce_dense(engine, name, x[..., None], d[..., None], Geometry((1, 1)), signs, remember)
    found = geometry_of(module, x, d)
    if found is None:
        return reductions.generic(module, [(x, d)], count)
    x, geometry = found
    return _reduce_convolution(engine, name, x, d, geometry, signs, remember)


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
    energy = remember(lambda: patch_energy(module, x))
    if isinstance(module, nn.Linear):
        energy, d = energy.reshape(count, 1, -1), _tokens(d, count)
        return reductions.untied(energy, d)
    return reductions.untied(energy, d).reshape(count, -1, d.shape[1]).sum(1)


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
    engine: Engine, name: str, x: Tensor, d: Tensor, geometry: Geometry, signs: "_Signs | None", remember: Remember
) -> Tensor:
    groups: int = engine.network.layers[name].groups  # type: ignore[assignment]
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
    return _reduce_dense(engine, name, x, d, geometry, signs, remember).reshape(count, filters)


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
    engine: Engine, name: str, x: Tensor, d: Tensor, geometry: Geometry, signs: "_Signs | None", remember: Remember
) -> Tensor:
    out = (d.shape[2], d.shape[3])
    shape = Shape(x.shape[1], d.shape[1], x.shape[2] * x.shape[3], out[0] * out[1], geometry)
    route = engine.route or reductions.cheapest(shape, device=x.device.type, mixes=MIXES if signs is not None else None)
    if route == "gram":
        gram = remember(lambda: reductions.patch_gram(x, out, geometry))
        return reductions.quadratic(gram, d.flatten(2))
    if route == "pixelwise":
        return reductions.pixelwise(x, d, geometry)
    if route == "sketch" and signs is not None:
        x = reductions.mix(x, signs.of(name, *x.shape[:2]))
    return reductions.direct(reductions.patches(x, out, geometry), d.flatten(2))


class _Signs:
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


def check_rows(rows: Tensor, layers: tuple[FilterLayer, ...]) -> None:
    """Refuses rows that are not finite, naming the layer."""
    if bool(torch.isfinite(rows).all()):
        return
    start = 0
    for layer in layers:
        if not bool(torch.isfinite(rows[:, start : start + layer.filters]).all()):
            raise NotFiniteError(
                f"the Fisher of layer '{layer.name}' is not finite, so the embedding would be meaningless and "
                "nothing was saved. "
                f"Embed in higher precision: dtype='float64', --dtype float64; or use another probe."
            )
        start += layer.filters
