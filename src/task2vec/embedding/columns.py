"""How the pairs of images are laid out as batches: which images go together, and how many columns each of them takes.

A batch goes forward once and back once per slot, always with all its columns. If an image takes a single column, its
batch has as many slots as it has pairs, most of them empty where other images have few; with a column for every pair
nothing is empty, and the image goes forward once for each. What is best lies between, and is found by cost:

    (columns + idle) x (forward + slots)

in backward passes of one image. Images with the most pairs come first, so those of a batch have about as many.
"""

import torch
from torch import Tensor

# What happens once per column, with all that is remembered of the layers' inputs, in backward passes with their
# reductions. Measured: 0.5 to 1.7 on a CPU, by probe and engine, the default one 1.6; 0.25 to 0.45 on an H200.
_FORWARD = {"cpu": 1.5, "cuda": 0.3}
# How many images a GPU could run while the host starts the kernels of a pass: 14 to 300 on an H200. Batches fill up to
# multiples of so many there, too (see `passes`).
_IDLE = {"cpu": 0, "cuda": 32}


def count_images(counts: Tensor, most: int, *, device: torch.device) -> int:
    """How many of the first images make up the next batch, of at most `most` columns.

    `counts` are the pairs of each image, falling.
    """
    slots, columns = _choices(counts[:most], most)
    images = (columns.cumsum(1) <= most).sum(1)
    ends = images[:, None] - 1
    pairs = counts.cumsum(0)[ends[:, 0]]
    costs = _costs(columns.cumsum(1).gather(1, ends)[:, 0], slots, device) / pairs
    return int(images[costs.argmin()])


def share_out(counts: Tensor, most: int, *, device: torch.device) -> Tensor:
    """(images,) the columns that each image of a batch takes, at most `most` in all; none where it has no pairs.

    `counts` are the pairs of each image; there are no more images than columns.
    """
    slots, columns = _choices(counts, most)
    total = columns.sum(1)
    costs = _costs(total, slots, device).masked_fill(total > most, torch.inf)
    return columns[costs.argmin()]


def _choices(counts: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """(choices,) slots with which the image with the most pairs takes 1, 2, ... columns; (choices, images) columns."""
    highest = int(counts.max())
    slots = (-(-highest // torch.arange(1, min(most, highest) + 1))).unique()
    return slots, -(-counts // slots[:, None])


def _costs(columns: Tensor, slots: Tensor, device: torch.device) -> Tensor:
    kind = device.type if device.type in _FORWARD else "cpu"
    return (columns + _IDLE[kind]) * (_FORWARD[kind] + slots)
