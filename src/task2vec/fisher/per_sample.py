"""The Fisher of every image and filter: one forward and one input-gradient pass, reduced at every filter layer.

No weight gradient is ever computed. A hook on the output of each filter layer sees the input of the layer on the way
forward and the gradient at its output on the way back, and reduces the two to one squared norm per image and filter at
once (see `reductions`), so nothing but those norms outlives the layer.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial, reduce
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from task2vec.errors import NotFiniteError
from task2vec.fisher.reductions import (
    Memo,
    compute_anew,
    generic,
    is_plain,
    matmul_precision,
    reduce_layer,
    reduce_untied,
)
from task2vec.probe import FilterLayer, PreparedNetwork

# A pass is recorded after so many seeds of passes like it, if this share of the memory is free: recording takes as long
# as some passes, and keeps the memory of one.
_SEEDS_BEFORE_RECORDING = 16
_FREE_MEMORY = 0.6
# Gradients at the features (r, n, features), or a function that computes them from the features (n, d) of the pass.
Seeds = Tensor | Callable[[Tensor], Tensor]


class _Tap(torch.autograd.Function):
    """The identity on a layer's output: starts the graph at the first layer and reports the gradient at the output."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, start: Tensor, on_gradient: Callable[[Tensor], None]) -> Tensor:
        ctx.on_gradient = on_gradient
        ctx.mark_dirty(out)  # no copy and no view, so an in-place ReLU may follow
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None]:
        ctx.on_gradient(gradients[0])
        return (gradients[0] if ctx.needs_input_grad[0] else None), None, None


@dataclass(frozen=True)
class PerSampleFisher:
    """Computes the rows of the Fisher: squared filter gradients, image by image.

    Args:
        network: a prepared probe.
        layers: its filter layers, in the order of the coordinates.
        is_untied: measure filters that have a copy of their own at every position (see `reductions`).
    """

    network: PreparedNetwork
    layers: tuple[FilterLayer, ...]
    is_untied: bool = False

    def rows(self, images: Tensor, seeds: Seeds, keys: Sequence[int] | None = None) -> Tensor:
        """(images, filters): sum over `seeds` (r, n, features) of the mean squared filter gradient of seed . features.

        Seeds may be a function of the features (n, d) of this pass, where those are not known before. `keys` (one
        number per image) are the seeds of the random signs that untied layers with transformed weights need, so that
        a row depends on the image and not on the batch it happens to be in.
        """
        return reduce(torch.add, self.rows_by_seed(images, seeds, keys))

    def rows_by_seed(self, images: Tensor, seeds: Seeds, keys: Sequence[int] | None = None) -> Iterator[Tensor]:
        """The (images, filters) of every seed in turn; all share the forward pass and what depends on inputs alone.

        A network that is not batched takes the images one by one.
        """
        keys = keys if keys is not None else range(len(images))
        if not self.network.is_batched and len(images) > 1:
            seeds_of_image = [seeds] * len(images) if callable(seeds) else seeds.split(1, dim=1)
            # One graph after the other: all at once would need more memory.
            inputs = zip(images.split(1), seeds_of_image, keys, strict=True)
            alone = [list(self.rows_by_seed(image, image_seeds, [key])) for image, image_seeds, key in inputs]
            yield from (torch.cat(rows) for rows in zip(*alone, strict=True))
            return
        if isinstance(seeds, Tensor) and (recorded := find_recorded(self, images, seeds)) is not None:
            yield from recorded.run(images, seeds)
            return
        recorder, features = self.forward(images, keys)
        seeds = seeds(features.detach()) if callable(seeds) else seeds
        recorder.memory = {} if len(seeds) > 1 else None
        for number, seed in enumerate(seeds, start=1):
            yield recorder.backward(features, seed, is_last=number == len(seeds))

    def forward(self, images: Tensor, keys: Sequence[int]) -> "tuple[_Recorder, Tensor]":
        """The features of a forward pass, and the recorder that makes the rows of its backward passes.

        The features refer to the recorder. It must not refer to them, or all inputs would stay in memory.
        """
        recorder = _Recorder(self, keys)
        with ExitStack() as hooks, torch.enable_grad():
            for name, module in self.network.layers.items():
                hooks.callback(module.register_forward_hook(partial(recorder.on_forward, name)).remove)
            features = self.network.module(images)
        return recorder, features


class _Recorder:
    """Collects the squared norms of the layers during one batch, and makes the rows of each backward pass.

    Attributes:
        memory: small results that depend on a layer's input alone, kept for the next seeds of the batch.
    """

    def __init__(self, fisher: PerSampleFisher, keys: Sequence[int]):
        self.fisher = fisher
        self.keys = keys
        self.count = len(keys)
        self.start = torch.zeros((), requires_grad=True)
        self.norms: dict[str, Tensor] = {}
        self.pending: dict[str, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        self.calls: Counter[str] = Counter()
        self.memory: dict[str, Tensor] | None = None  # none for a single seed

    def backward(self, features: Tensor, seed: Tensor, *, is_last: bool) -> Tensor:
        """(images, filters) of a seed (n, features); the graph of the features is freed after the last one."""
        with torch.enable_grad():  # a scalar: for grad_outputs torch imports sympy, which takes seconds
            total = (features * seed).sum()
        torch.autograd.grad(total, self.start, retain_graph=not is_last, allow_unused=True)
        return self.rows()

    def on_forward(self, name: str, module: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> Tensor:
        """The output of a layer, which reduces the gradient that comes back to it."""
        x = inputs[0].detach()
        self.calls[name] += 1
        whole = out.clone() if out._is_view() else out
        return _Tap.apply(whole, self.start, lambda d: self._reduce(name, module, x, d))  # type: ignore[return-value]

    @torch.no_grad()
    def _reduce(self, name: str, module: nn.Module, x: Tensor, d: Tensor) -> None:
        memo = self._memo(name)
        if self.fisher.is_untied:
            self._add(name, reduce_untied(module, x, d, self.keys, memo))
        elif self.calls[name] > 1:  # a layer used several times: its gradients add up before they are squared
            self.pending[name].append((x, d))
        else:
            self._add(name, reduce_layer(module, x, d, self.count, memo))

    def _memo(self, name: str) -> Memo:
        """Computes once per layer and batch what later seeds need again; a layer that runs twice has no memory."""
        memory = self.memory
        if memory is None or self.calls[name] > 1:
            return compute_anew
        return lambda compute: memory[name] if name in memory else memory.setdefault(name, compute())

    def _add(self, name: str, norms: Tensor) -> None:
        self.norms[name] = self.norms[name] + norms if name in self.norms else norms

    def rows(self) -> Tensor:
        """(images, filters) of the backward pass that has just ended; the next one starts from zero."""
        network = self.fisher.network
        for name, calls in self.pending.items():  # layers with several calls are squared only now
            self._add(name, generic(network.layers[name], calls, self.count))
        columns = []
        for layer in self.fisher.layers:
            norms = self.norms.get(layer.name)
            if norms is None:  # the gradient does not reach this layer
                norms = torch.zeros(self.count, layer.filters, device=next(iter(self.norms.values())).device)
            scale = network.scales.get(layer.name)
            norms = norms / layer.weights_per_filter
            columns.append(norms if scale is None else norms * scale.square())
        self.pending.clear()
        self.norms = {}
        return torch.cat(columns, dim=1)


# --- CUDA graphs ------------------------------------------------------------------------------------------------------


def find_recorded(fisher: PerSampleFisher, images: Tensor, seeds: Tensor) -> "RecordedPass | None":
    """The recording of a pass like this one on a GPU, made when the same shape has come often enough; else None.

    The choice changes the numbers by rounding at most: a recording is kept only if it repeats the rows.
    """
    network = fisher.network
    if not images.is_cuda or not network.is_batched:
        return None
    if not all(map(is_plain, network.layers.values())):
        return None  # random signs are drawn on the host: a recording would repeat the same ones
    key = (fisher.is_untied, images.shape, matmul_precision())
    recorded = network.recorded.setdefault(key, 0)
    if isinstance(recorded, int):
        network.recorded[key] = recorded + len(seeds)
        free, total = torch.cuda.mem_get_info(images.device) if recorded >= _SEEDS_BEFORE_RECORDING else (0, 1)
        if free < _FREE_MEMORY * total:  # a recording keeps the memory of a whole pass
            return None
        network.recorded[key] = None  # while it is being made, and for good if it cannot be
        network.recorded[key] = recorded = _record(fisher, images, seeds)
    return recorded


def _record(fisher: PerSampleFisher, images: Tensor, seeds: Tensor) -> "RecordedPass | None":
    """A recording that repeats the rows of this batch, if there can be one."""
    recorder, features = fisher.forward(images, range(len(images)))
    first, last = seeds[0], seeds[-1]
    expected = [recorder.backward(features, first, is_last=False), recorder.backward(features, last, is_last=True)]
    wanted = torch.stack(expected)
    del recorder, features
    try:
        recorded = RecordedPass(fisher, images, first)
        rows = torch.stack([*recorded.run(images, torch.stack([first, last]))])
    except RuntimeError:  # a layer that a graph cannot hold, or too little memory: slower, not wrong
        return None
    return recorded if torch.allclose(rows, wanted, rtol=1e-2, atol=1e-4 * float(wanted.max())) else None


class RecordedPass:
    """A forward pass with the backward pass of one seed, and the backward pass of one more, as CUDA graphs.

    They are hundreds of small kernels, which Python takes longer to launch than the GPU to run.
    """

    def __init__(self, fisher: PerSampleFisher, images: Tensor, seed: Tensor):
        self.images = images.clone()
        self.seed = seed.clone()
        self.lock = Lock()
        self.first = torch.cuda.CUDAGraph()
        self.next = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.first, capture_error_mode="thread_local"):
            recorder, features = fisher.forward(self.images, range(len(images)))
            recorder.memory = {}
            self.rows = [recorder.backward(features, self.seed, is_last=False)]
        with torch.cuda.graph(self.next, pool=self.first.pool(), capture_error_mode="thread_local"):
            self.rows.append(recorder.backward(features, self.seed, is_last=False))
        self.kept = recorder, features  # later seeds read their memory

    def run(self, images: Tensor, seeds: Tensor) -> Iterator[Tensor]:
        """The (images, filters) of every seed in turn. Threads that share the network take turns."""
        with self.lock:
            self.images.copy_(images)
            for number, seed in enumerate(seeds):
                self.seed.copy_(seed)
                (self.next if number else self.first).replay()
                yield self.rows[min(number, 1)].clone()


def check_rows(rows: Tensor, layers: tuple[FilterLayer, ...]) -> None:
    """Raises `NotFiniteError`, naming the layer, if rows are not finite."""
    if name := find_infinite(rows, layers):
        raise NotFiniteError(
            f"the Fisher of layer '{name}' is not finite, so the embedding would be meaningless and nothing was saved. "
            "Embed in higher precision, dtype='float64' (--dtype float64), or use another probe."
        )


def find_infinite(values: Tensor, layers: tuple[FilterLayer, ...]) -> str | None:
    """The name of the first layer with (..., filters) values that are not finite, if there is one."""
    if bool(torch.isfinite(values).all()):
        return None
    blocks = values.split([layer.filters for layer in layers], dim=-1)
    pairs = zip(layers, blocks, strict=True)
    return next(layer.name for layer, block in pairs if not bool(torch.isfinite(block).all()))
