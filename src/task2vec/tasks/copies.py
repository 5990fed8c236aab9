"""Copies: which images of a set show one picture or one scene, judged by what they share beyond what the whole set shares.

A correlation of pixels cannot tell a copy from another picture where all pictures look alike: two solar cells share
the grid, two X-rays the ribs. Therefore:

1. A picture becomes its details, 128 x 128: a band of spatial frequencies, divided by the local contrast.
2. What many pictures share, the mean and the leading components of their details, is taken out.
3. Of every image the most similar others are compared, by 16 x 16 cells in eight orientations (as it is, turned by
   90, 180 and 270 degrees, mirrored) and by features, if there are some.
4. The two pictures of a pair are aligned (shift and scale by cross-correlation, then an affine map by Gauss-Newton).
   The score is the correlation of what is left of their details where both are known and neither is clipped.
5. The set says what a score is worth: the same is done with copies that are made of some of its own pictures.

Pairs do not depend on the order of the images, which are sorted by their digests first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

# From the strongest on: the same pixels; one picture recompressed, scaled, cropped, mirrored, turned or brightened;
# another exposure, frame or slice of one scene or object; the same features, but another picture.
KINDS = ("exact", "copy", "scene", "alike")
SIDE = 128
_CHROMA_SIDE, _SMALL_SIDE, _CELLS = 16, 64, 16
# Groups of these kinds stay in one fold.
_LEAKS = ("exact", "copy", "scene")


@dataclass(frozen=True)
class CopyGroup:
    """Images that belong together.

    Attributes:
        numbers: of the images, ascending.
        kind: one of `KINDS`.
        score: the correlation of the weakest link that the group needs; 1 if it is exact; the cosine of features if alike.
    """

    numbers: tuple[int, ...]
    kind: str
    score: float


@dataclass(frozen=True)
class Copies:
    """What `find_copies` found.

    Groups are listed per kind and nested: the images of an exact pair are in a copy group, too, if a third one is a
    copy of them, and all three in a scene group if a fourth one shows their scene. A group of a kind is listed if it
    has a link of that kind, so no two groups have the same images.

    Attributes:
        groups: the strongest kinds first, then in the order of their first images.
        unseen: kinds of copies that cannot be seen reliably in this set, with the share of made ones that was found.
    """

    groups: tuple[CopyGroup, ...]
    unseen: tuple[str, ...] = ()

    def fold_groups(self, count: int, groups: np.ndarray | None = None) -> np.ndarray:
        """(count,) numbers from 0 on, the same for images that must be in one fold: copies, scenes, and given `groups`."""
        joined = np.arange(count) if groups is None else np.unique(groups, return_inverse=True)[1]
        for group in self.groups:
            if group.kind in _LEAKS:
                numbers = joined[list(group.numbers)]
                joined[np.isin(joined, numbers)] = numbers.min()
        return np.unique(joined, return_inverse=True)[1]


def make_picture(image: Image.Image) -> np.ndarray:
    """(133, 128) uint8 of an image: 128 rows of luma, four of 16 x 16 chromas, one that begins with width and height."""
    small = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC, reducing_gap=2.0).convert("YCbCr")
    chroma = np.asarray(small.resize((_CHROMA_SIDE, _CHROMA_SIDE), Image.Resampling.BOX))[:, :, 1:]
    size = np.zeros((1, SIDE), dtype=np.uint8)
    size[0, :4] = np.minimum(image.size, 65535).astype(">u2").view(np.uint8)
    return np.concatenate([np.asarray(small.getchannel(0)), chroma.transpose(2, 0, 1).reshape(-1, SIDE), size])


def find_copies(pictures: np.ndarray, *, digests: Sequence[str], features: np.ndarray | None = None) -> Copies:
    """Groups of images that are the same, copies of one picture, of one scene, or alike.

    Args:
        pictures: (n, 133, 128) what `make_picture` returns of every image.
        digests: of the pixels of every image.
        features: (n, d) of a pretrained model; without them there is no group that is "alike".
    """
    groups = [
        CopyGroup(tuple(members.tolist()), "exact", 1.0)
        for members in (np.flatnonzero(np.asarray(digests) == digest) for digest in dict.fromkeys(digests))
        if len(members) > 1
    ]
    return Copies(tuple(groups))
