"""Near copies among images: recompressed, resized, mirrored or slightly brighter versions of one picture.

Every image is kept as 16 x 16 colours. Two images are copies if two correlations are high, that of the fine detail and
that of the grey levels, and if their mean colours are the same. Detail is what differs from the surroundings, on a
scale that saturates, so that a frame or a bright spot that all images share does not decide. What all images of a
dataset have in common is subtracted: X-rays look alike, yet only copies are alike beyond that.

Frames of one scene and photographs of one object from the same place are found as well. An image without contrast is a
copy of no other; compare its pixels.
"""

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor
from torch.nn import functional

SIDE = 16
_WINDOW = 5  # the surroundings, in cells
_SATURATION = 4.0  # grey levels at which detail begins to count less
_LUMA = (0.299, 0.587, 0.114)
# So much noise, squared, hides the detail and the grey levels of an image without contrast.
_DETAIL_NOISE, _GREY_NOISE = 0.01, 0.25
_LEAST_GREY = 0.97
_FEW = 16  # the mean of so many images counts half
_CHUNK = 512
# Mean colours, as parts of the brightness, of copies differ by less.
_COLOUR = 0.15


def make_signature(image: Image.Image) -> np.ndarray:
    """(16, 16, 3) colours, float16, of an RGB image."""
    small = np.asarray(image.resize((4 * SIDE, 4 * SIDE), Image.Resampling.BICUBIC, reducing_gap=2.0), dtype=np.float32)
    return small.reshape(SIDE, 4, SIDE, 4, 3).mean((1, 3)).astype(np.float16)


def find_copies(
    signatures: np.ndarray, *, digests: Sequence[str] | None = None, threshold: float = 0.9
) -> list[list[int]]:
    """Groups of images that are near copies of each other, as their numbers, in the order of their first images.

    Copies of a copy are in its group, and so are images with the same one of the `digests`. `threshold` is the least
    correlation of fine detail.

    Example:
        >>> random = np.random.default_rng(0)
        >>> images = [Image.fromarray(random.integers(0, 256, (64, 64, 3), dtype=np.uint8)) for _ in range(3)]
        >>> images.append(images[1].transpose(Image.Transpose.FLIP_LEFT_RIGHT))
        >>> find_copies(np.stack([make_signature(image) for image in images]))
        [[1, 3]]
    """
    count = len(signatures)
    levels = signatures.astype(np.float32) @ np.array(_LUMA, dtype=np.float32)
    detail, grey = _describe(levels)
    colours = signatures.mean((1, 2), dtype=np.float32) / np.maximum(levels.mean((1, 2)), 8)[:, None]
    group = np.arange(count)
    if digests is not None:
        _, first, same = np.unique(digests, return_index=True, return_inverse=True)
        group = first[same]
    for start in range(0, count, _CHUNK):
        rows = slice(start, start + _CHUNK)
        is_copy = torch.zeros(len(detail[rows]), count - start, dtype=torch.bool)
        for flipped in (False, True):
            own = [(part[rows].flip(2) if flipped else part[rows]).flatten(1) for part in (detail, grey)]
            alike, same = (a @ part[start:].flatten(1).T for a, part in zip(own, (detail, grey), strict=True))
            is_copy |= (alike >= threshold) & (same >= _LEAST_GREY)
        first, second = is_copy.nonzero().numpy().T + start
        is_same = np.abs(colours[first] - colours[second]).max(1, initial=0) <= _COLOUR
        first, second = first[is_same], second[is_same]
        # Groups so far are edges to their first image: no chunk has more edges than its own and these.
        edges = np.concatenate([first, np.arange(count)]), np.concatenate([second, group])
        graph = coo_array((np.ones(len(edges[0]), dtype=bool), edges), shape=(count, count))
        labels = connected_components(graph, directed=False)[1]
        group = np.unique(labels, return_index=True)[1][labels]
    order = np.argsort(group, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(group[order])) + 1)
    return [members.tolist() for members in groups if len(members) > 1]


def _describe(levels: np.ndarray) -> tuple[Tensor, Tensor]:
    """(n, 16, 16) fine detail and grey levels of every image, both of length one or less."""
    grey = torch.from_numpy(levels)
    padded = functional.pad(grey[:, None], [_WINDOW // 2] * 4, mode="replicate")
    detail = grey - functional.avg_pool2d(padded, _WINDOW, stride=1)[:, 0]
    detail /= (detail.square() + _SATURATION**2).sqrt()
    common = detail.sum(0) / (len(detail) + _FEW)
    detail -= (common + common.flip(1)) / 2  # the same for an image and its mirror image
    grey = grey - grey.mean((1, 2), keepdim=True)
    return _shorten(detail, _DETAIL_NOISE), _shorten(grey, _GREY_NOISE)


def _shorten(values: Tensor, noise: float) -> Tensor:
    return values / (values.square().sum((1, 2), keepdim=True) + noise * SIDE**2).sqrt()
