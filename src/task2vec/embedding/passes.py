"""How batches of images go through the probe: what it takes, what comes out, and no more than fits into memory."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from task2vec.embedding.halving import Halving
from task2vec.embedding.pixels import Pixels
from task2vec.errors import NotFiniteError
from task2vec.probe import PreparedNetwork, Probe
from task2vec.progress import Report

# A GPU prepares its kernels for every new batch size, which can take seconds: batches fill up to multiples of this.
_STEP = 32


@dataclass(frozen=True)
class Passes:
    """A probe made ready, and how it is run."""

    probe: Probe
    network: PreparedNetwork
    dtype: torch.dtype
    batch_size: int
    memory: Halving

    def input(self, pixels: Tensor) -> Tensor:
        """What the network takes: normalised, and on a GPU with the last image repeated up to a multiple of `_STEP`.

        Nothing is filled up where memory is short, batches are small, or images go one by one anyway.
        """
        images = self.probe.preprocess.normalise(pixels, self.dtype)
        if not images.is_cuda:
            return images
        if self.memory.largest is None and self.batch_size >= _STEP and self.network.is_batched:
            images = torch.cat([images, images[-1:].expand(-len(images) % _STEP, -1, -1, -1)])
        return images.contiguous(memory_format=torch.channels_last)

    def features(self, pixels: Pixels, report: Report) -> Tensor:
        """(n, d) pooled features of every image, float32 (float64 if asked)."""
        dtype = torch.promote_types(self.dtype, torch.float32)
        kept = torch.empty(len(pixels), self.probe.feature_dim, dtype=dtype, device=pixels.device)
        step = report("features", len(pixels))
        for indices, some in pixels.batches(range(len(pixels)), self.batch_size):
            kept[indices] = self.memory.run(self._features, [some]).to(kept)
            step(len(indices))
        return kept

    @torch.inference_mode()
    def _features(self, pixels: Tensor) -> Tensor:
        return self.network.module(self.input(pixels))[: len(pixels)]


def refuse_infinite(features: Tensor, name_of: Callable[[int], str]) -> None:
    """Raises `NotFiniteError` if the features of some image are not finite, and names it."""
    is_bad = ~torch.isfinite(features).all(1)
    if bool(is_bad.any()):
        raise infinite_features(name_of(int(torch.nonzero(is_bad)[0])))


def infinite_features(image: str) -> NotFiniteError:
    """The error for an image whose features are not finite."""
    return NotFiniteError(
        f"the probe's features of '{image}' are not finite, so no head can be fitted and nothing was saved. "
        "Look at the image, or use dtype='float32' if another was chosen."
    )
