"""Which images an epoch of training sees, and how each of them is cropped and mirrored.

All of it is drawn at the start of an epoch, on the CPU, from the seed and the number of the epoch alone: training goes
on after a pause as if there had been none, and does not depend on the device.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Epoch:
    """The draws of one epoch.

    Attributes:
        images: (draws,) numbers of images.
        corners: (draws, 2) top and left of each crop, between 0 and 1 of what there is to choose from.
        is_mirrored: (draws,) whether left and right are exchanged.
    """

    images: Tensor
    corners: Tensor
    is_mirrored: Tensor


def draw_epoch(targets: np.ndarray, *, draws: int, seed: int, epoch: int) -> Epoch:
    """`draws` images with replacement, uniformly over classes, and what happens to each of them.

    With one label per image, a class is drawn and then one of its images. With independent attributes, an attribute is
    drawn, then yes or no, then one of the images of which that is true; an attribute that all images share, or none
    has, is passed over.

    Example:
        >>> rare = np.array([0] * 90 + [1] * 10)
        >>> drawn = rare[draw_epoch(rare, draws=1000, seed=0, epoch=0).images]
        >>> bool(0.45 < drawn.mean() < 0.55)
        True
    """
    generator = torch.Generator().manual_seed(mix_seed(seed, epoch))
    groups = [torch.from_numpy(group) for group in _list_groups(targets)]
    which = torch.randint(len(groups), (draws,), generator=generator)
    place = torch.rand(draws, generator=generator, dtype=torch.float64)
    sizes = torch.tensor([len(group) for group in groups])
    starts = sizes.cumsum(0) - sizes
    images = torch.cat(groups)[starts[which] + (place * sizes[which]).long()]
    corners = torch.rand(draws, 2, generator=generator)
    return Epoch(images, corners, torch.rand(draws, generator=generator) < 0.5)


def _list_groups(targets: np.ndarray) -> list[np.ndarray]:
    """The images of every class, or of both answers to every question."""
    if targets.ndim == 1:
        return [np.flatnonzero(targets == label) for label in np.unique(targets)]
    answers = [(np.flatnonzero(column > 0), np.flatnonzero(column <= 0)) for column in targets.T]
    return [group for pair in answers if len(pair[0]) and len(pair[1]) for group in pair]


def mix_seed(seed: int, epoch: int) -> int:
    """A seed of its own for every epoch, or step."""
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0] >> 1)


def crop(pixels: Tensor, corners: Tensor, is_mirrored: Tensor, size: tuple[int, int]) -> Tensor:
    """(n, 3, *size) parts of (n, 3, height, width) `pixels`, each from its own corner, some of them mirrored."""
    (height, width), (rows, columns) = pixels.shape[2:], size
    top = (corners[:, 0] * (height - rows + 1)).long()
    left = (corners[:, 1] * (width - columns + 1)).long()
    down = top[:, None] + torch.arange(rows, device=top.device)
    across = torch.arange(columns, device=top.device)
    across = left[:, None] + torch.where(is_mirrored[:, None], columns - 1 - across, across)
    number = torch.arange(len(pixels), device=top.device)[:, None, None]
    return pixels[number, :, down[:, :, None], across[:, None, :]].permute(0, 3, 1, 2)


def crop_centre(pixels: Tensor, size: tuple[int, int]) -> Tensor:
    """(n, 3, *size) middles of (n, 3, height, width) `pixels`."""
    top, left = ((have - want) // 2 for have, want in zip(pixels.shape[2:], size, strict=True))
    return pixels[:, :, top : top + size[0], left : left + size[1]]
