"""Batches that shrink by themselves when a GPU runs out of memory; the numbers stay the same."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from task2vec.errors import ResourceError


class Halving:
    """Runs work on batches no larger than what has been seen to fit."""

    def __init__(self, what: str, *, on_shortage: Callable[[], None] = lambda: None):
        """`what` is named in errors; `on_shortage` frees what can be spared."""
        self.what, self.on_shortage = what, on_shortage
        self.largest: int | None = None

    def shrink(self, count: int) -> None:
        """Notes that `count` images at a time are too many."""
        self.largest = (count + 1) // 2
        self.on_shortage()
        torch.cuda.empty_cache()
        warnings.warn(f"GPU memory ran out: going on with batches of {self.largest} images", stacklevel=3)

    def run(self, work: Callable[..., Tensor], parts: Sequence[Any]) -> Tensor:
        """`work` on `parts`, sequences with one entry per image, or on their halves as often as memory asks for it."""
        count = len(parts[0])
        if self.largest is None or count <= self.largest:
            try:
                return work(*parts)
            except torch.cuda.OutOfMemoryError as error:
                if count == 1:
                    raise ResourceError(
                        f"the GPU has not enough memory for a single image: {self.what}. "
                        f"Use a smaller size (--size) or the CPU (--device cpu)."
                    ) from error
            self.shrink(count)
        middle = (count + 1) // 2
        return torch.cat([self.run(work, [p[:middle] for p in parts]), self.run(work, [p[middle:] for p in parts])])
