"""Copies: which images of a set show one picture or one scene, judged by what they share beyond what all images share.

A correlation of pixels cannot tell a copy from another picture where all pictures look alike: two solar cells share
the grid, two X-rays the ribs. Therefore:

1. A picture becomes its details: a band of spatial frequencies, divided by the local contrast.
2. What many pictures of the set share, the mean and the leading components of their details, is taken out.
3. Every image is compared with its most similar ones: by 16 x 16 cells in eight orientations (turned by 0, 90, 180, 270
   degrees, and mirrored), and by features, if there are some.
4. The two pictures of a pair are aligned: shift and scale by cross-correlation, then an affine map by Gauss-Newton.
   The score is the correlation of what is left of their details, where both are known and neither is clipped.
5. The set sets the limits: the same is done with copies that are made of some of its pictures, and a score says "copy"
   only above a gap. Where scores just below it are common (frames of a video, exposures of one tile), so are those of
   different photographs above it.

The result does not depend on the order of the images: they are sorted by their digests first.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps
from scipy import fft, ndimage

# From the strongest on: the same pixels; one picture recompressed, scaled, cropped, mirrored, turned or brightened;
# another exposure, frame or slice of one scene or object; the same features, but another picture.
KINDS = ("exact", "copy", "scene", "alike")
# Groups of these kinds stay in one fold.
LEAKS = ("exact", "copy", "scene")
# Sides of a picture's luma, of its chromas, and of the maps that are aligned, shifted, and compared with all others.
SIDE, _CHROMA_SIDE, _ALIGNED_SIDE, _SHIFTED_SIDE, _CELLS = 128, 16, 64, 32, 16
_SCALES = (1.0, 0.95, 0.9, 1 / 0.95, 1 / 0.9)
_CELL_SCALES = (1.0, 0.93, 1 / 0.93)
_MAX_SHIFT = 5  # of 32
_MAX_COMMON, _MAX_SAMPLE = 20, 400
_BLOCK = 16  # pixels, of which one tells little that the next one does not
_NEIGHBOURS = 2  # by cells, and as many by features
_COMPARED_IMAGES = 512  # at a time
# Below so many different images nothing tells a copy from the next picture of a set where all look alike.
MIN_IMAGES = 24
# The least correlations of copies and scenes; more is needed if fewer blocks have details.
_MIN_COPY, _MIN_SCENE, _MIN_SCENE_OF_FEW, _ENOUGH_BLOCKS = 0.8, 0.55, 0.9, 24
# A copy is cropped, scaled or turned, not sheared by more than this; no two photographs that were not taken from one
# place reach the score.
_MAX_SHEAR, _SHEAR_PROOF = 0.014, 0.985
# Of colours, as a share of the brightness: drawings of one shape in other colours are neither copies nor one scene.
_MAX_COLOUR_DIFFERENCE = 0.15
_MIN_FOUND = 0.95  # of the made copies of a kind, or it is unseen
_CLOSE = 0.5  # of the usual distance to the nearest neighbour
_SURELY_ALIGNED = 0.995
_IDENTITY = np.eye(2, 3)


@dataclass(frozen=True)
class CopyGroup:
    """Images that belong together.

    Attributes:
        numbers: of the images, ascending.
        kind: one of `KINDS`.
        score: 1 if exact; the correlation of the weakest link of this kind that the group needs; the cosine if alike.
    """

    numbers: tuple[int, ...]
    kind: str
    score: float


@dataclass(frozen=True)
class Copies:
    """What `find_copies` found.

    Groups are listed per kind and nested: an exact pair is a group of its own, and part of a copy group if a third
    image is a copy of them, and all three are part of a scene group if a fourth one shows their scene. So advice for a
    group holds for all of its images. A group is listed only if it has a link of its own kind.

    Attributes:
        groups: the strongest kinds first, then in the order of their first images.
        unseen: kinds of copies that are not seen reliably in this set, with the share of made ones that was found.
    """

    groups: tuple[CopyGroup, ...]
    unseen: tuple[str, ...] = ()

    def fold_groups(self, count: int) -> np.ndarray:
        """(count,) numbers from 0 on, the same for images that must be in one fold: all groups but those only alike."""
        joined = np.arange(count)
        for group in self.groups:
            if group.kind in LEAKS:
                numbers = joined[list(group.numbers)]
                joined[np.isin(joined, numbers)] = numbers.min()
        return np.unique(joined, return_inverse=True)[1]


def make_picture(image: Image.Image) -> np.ndarray:
    """(133, 128) uint8: 128 rows of luma, four of 16 x 16 chromas, and one that begins with height and width."""
    small = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC, reducing_gap=1.5).convert("YCbCr")
    chroma = np.asarray(small.resize((_CHROMA_SIDE, _CHROMA_SIDE), Image.Resampling.BOX))[:, :, 1:]
    size = np.zeros((1, SIDE), dtype=np.uint8)
    size[0, :4] = np.array([image.height, image.width]).clip(1, 65535).astype(">u2").view(np.uint8)
    return np.concatenate([np.asarray(small.getchannel(0)), chroma.transpose(2, 0, 1).reshape(-1, SIDE), size])


def find_copies(pictures: np.ndarray, *, digests: Sequence[str], features: np.ndarray | None = None) -> Copies:
    """Groups of images that are the same, copies of one picture, of one scene, or alike.

    Args:
        pictures: (n, 133, 128) what `make_picture` returns of every image.
        digests: of the pixels of every image.
        features: (n, d) of a pretrained model: more pairs are compared, and images that are only alike are found.

    Example:
        >>> random = np.random.default_rng(0)
        >>> images = [
        ...     Image.fromarray(random.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize((99, 99)) for _ in range(30)
        ... ]
        >>> images += [images[7].transpose(Image.Transpose.FLIP_LEFT_RIGHT)]
        >>> find_copies(np.stack([make_picture(image) for image in images]), digests=[*map(str, range(31))]).groups
        (CopyGroup(numbers=(7, 30), kind='copy', score=...),)
    """
    _, first, same = np.unique(digests, return_index=True, return_inverse=True)
    exact = [_Link("exact", 1.0, int(first[same[number]]), number) for number in range(len(same))]
    links = [link for link in exact if link.first != link.second]
    if len(first) < 2:
        return Copies(_join(links))
    vectors = None if features is None else _normalise(np.asarray(features, dtype=np.float32)[first])
    found, unseen = _PictureSet(pictures[first]).search(vectors)
    links += [link._replace(first=int(first[link.first]), second=int(first[link.second])) for link in found]
    return Copies(_join(links), unseen)


class _Link(NamedTuple):
    kind: str
    score: float
    first: int
    second: int


def _join(links: Sequence[_Link]) -> tuple[CopyGroup, ...]:
    """The groups of every kind: trees of the strongest links."""
    members: dict[int, list[int]] = {}
    tree = {number: number for link in links for number in (link.first, link.second)}
    groups = []
    for kind in KINDS:
        weakest: dict[int, float] = {}
        for _, score, *pair in sorted((link for link in links if link.kind == kind), key=lambda link: -link.score):
            first, second = sorted(tree[number] for number in pair)
            if first == second:
                continue
            members[first] = members.get(first, [first]) + members.pop(second, [second])
            tree |= dict.fromkeys(members[first], first)
            weakest[first] = min(score, weakest.pop(second, 1.0), weakest.get(first, 1.0))
        groups += [CopyGroup(tuple(sorted(members[root])), kind, weakest[root]) for root in sorted(weakest)]
    return tuple(groups)


# --- pairs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Match:
    """How well two pictures match.

    Attributes:
        score: correlation of the details that are left, 0 if the pictures could not be aligned.
        blocks: how many blocks have details, in effect.
        shear: how far the alignment is from a crop, and from a similarity.
        shifted: correlation at 32 x 32, after shift and scale.
        aligned: correlation at 64 x 64.
    """

    score: float = 0.0
    blocks: float = 0.0
    shear: float = 0.0
    shifted: float = 0.0
    aligned: float = 0.0

    def reaches(self, limit: float) -> bool:
        """Whether the score is high enough; it must be higher if few blocks have details."""
        return self.score >= 1 - (1 - limit) * min(1.0, self.blocks / _ENOUGH_BLOCKS)


class _PictureSet:
    """Different pictures, and what they share."""

    def __init__(self, pictures: np.ndarray):
        self.pictures = pictures
        sample = _pick(len(pictures), _MAX_SAMPLE)
        self.small = np.concatenate(
            [_find_details(_halve(_levels(pictures[part]))).astype(np.float16) for part in _split(len(pictures))]
        )
        self.raw_cells = np.concatenate(
            [_find_cells(self.small[part].astype(np.float32)) for part in _split(len(pictures))]
        )
        details = (
            _find_details(_levels(pictures[sample])),
            self.small[sample].astype(np.float32),
            self.raw_cells[sample],
        )
        self.common = {maps.shape[-1]: _find_common(maps) for maps in details}
        self.cells = _normalise(self.take_out(self.raw_cells).reshape(len(pictures), -1))
        self.least_shifted = self.least_aligned = 0.0
        self.copy_limit = np.inf

    def take_out(self, maps: np.ndarray) -> np.ndarray:
        """What is left of details without what the set shares."""
        common = self.common[maps.shape[-1]]
        rows = maps.reshape(-1, common.shape[1])
        return (rows - (rows @ common.T) @ common).reshape(maps.shape)

    def search(self, vectors: np.ndarray | None) -> tuple[list[_Link], tuple[str, ...]]:
        """The links between the pictures, and the kinds of copies that are unseen."""
        count = len(self.pictures)
        chosen = _pick(count, max(10, min(16, count // 10)))
        made = {name: self.match_made(chosen, levels) for name, levels in _make_copies(self.pictures[chosen])}
        matched = [match for matches in made.values() for match, _ in matches]
        self.least_shifted = 0.6 * float(np.quantile([match.shifted for match in matched], 0.03))
        self.least_aligned = 0.6 * float(np.quantile([match.aligned for match in matched], 0.03))

        near = np.concatenate([self.rank_others(part) for part in _split(count)])
        pairs = _list_pairs(near[:, :_NEIGHBOURS])
        nearest = None if vectors is None else _find_nearest(vectors)
        if nearest is not None:
            pairs = np.unique(np.concatenate([pairs, _list_pairs(nearest[0])]), axis=0)
        matches = self.match_pairs(pairs)
        others = self.match_pairs(_list_pairs(near[chosen][:, -2:], chosen))
        different = [match.score for match in others]
        self.copy_limit = _find_gap(
            np.array([match.score for match in (*matches, *others) if match.shear <= _MAX_SHEAR])
        )
        scene_limit = max(_MIN_SCENE, (1 + sorted([0.0, 0.0, *different])[-2]) / 2)
        if count < MIN_IMAGES:
            self.copy_limit, scene_limit = np.inf, _MIN_SCENE_OF_FEW
        links = []
        for (first, second), match in zip(pairs.tolist(), matches, strict=True):
            if match.reaches(scene_limit) or self.is_copy(match):
                kind = "copy" if self.is_copy(match) else "scene"
                if self.compare_colours(first, second) <= _MAX_COLOUR_DIFFERENCE:
                    links.append(_Link(kind, round(min(match.score, 1.0), 4), first, second))
        if vectors is not None and nearest is not None:
            links += _find_alike(*nearest, links)
        shares = {name: self.share_found(matches) for name, matches in made.items()}
        few = f"fewer than {MIN_IMAGES} different images" if count < MIN_IMAGES else ""
        return links, tuple(
            f"{name} ({few or f'{share:.0%} of made ones found'})"
            for name, share in shares.items()
            if share < _MIN_FOUND
        )

    def is_copy(self, match: _Match) -> bool:
        """Whether two pictures that match so well are one."""
        return match.reaches(self.copy_limit) and (match.shear <= _MAX_SHEAR or match.score >= _SHEAR_PROOF)

    def share_found(self, made: Sequence[tuple[_Match, int]]) -> float:
        """The share of made copies that are found, if nothing but cells says which pictures to compare."""
        return float(np.mean([self.is_copy(match) and rank < _NEIGHBOURS for match, rank in made]))

    def match_made(self, chosen: np.ndarray, luma: np.ndarray) -> list[tuple[_Match, int]]:
        """How well copies of the chosen pictures match them, and how many other pictures have more similar cells."""
        details = _find_details(_halve(luma.astype(np.float32)))
        similarity = self.compare_cells(_find_cells(details))
        ranks = (similarity > similarity[np.arange(len(chosen)), chosen][:, None]).sum(1)
        return [*zip(self.match(chosen, luma, details), ranks.tolist(), strict=True)]

    def compare_cells(self, cells: np.ndarray) -> np.ndarray:
        """(m, n) how similar (m, 16, 16) cells are, in the orientation that fits best, to those of all pictures."""
        similarity = np.full((len(cells), len(self.cells)), -1, dtype=np.float32)
        for view in self.view_cells(cells):
            np.maximum(similarity, view @ self.cells.T, out=similarity)
        return similarity

    def view_cells(self, cells: np.ndarray) -> Iterator[np.ndarray]:
        """(m, 256) what is left of cells, in eight orientations at every scale, of length one."""
        for matrix in _scale_matrices(_CELLS, _CELL_SCALES):
            for orientation in range(8):
                yield _normalise(self.take_out(matrix @ _turn(cells, orientation) @ matrix.T).reshape(len(cells), -1))

    def rank_others(self, part: slice) -> np.ndarray:
        """(m, k) the pictures that are most similar to each of a part, without itself, the most similar ones first."""
        similarity = self.compare_cells(self.raw_cells[part])
        rows = np.arange(len(similarity))
        similarity[rows, rows + part.start] = -2
        return _find_highest(similarity, _NEIGHBOURS + 6)

    def match_pairs(self, pairs: np.ndarray) -> list[_Match]:
        """How well the pictures of every pair match."""
        blocks = [pairs[part].T for part in _split(len(pairs))]
        return [
            match
            for first, second in blocks
            for match in self.match(first, self.pictures[second, :SIDE], self.small[second].astype(np.float32))
        ]

    def match(self, numbers: np.ndarray, luma: np.ndarray, details: np.ndarray) -> Iterator[_Match]:
        """How well pictures with (m, 128, 128) luma and (m, 64, 64) details match those with the numbers.

        They are turned as their cells say.
        """
        cells = _find_cells(details)
        views = np.stack([np.einsum("md,md->m", view, self.cells[numbers]) for view in self.view_cells(cells)])
        turns = (views.argmax(0) % 8).tolist()
        details = np.stack([_turn(maps, orientation) for maps, orientation in zip(details, turns, strict=True)])
        targets, rest = (self.take_out(maps) for maps in (self.small[numbers].astype(np.float32), details))
        shifts = _search_shifts(targets, rest)
        for row, (number, (response, starts)) in enumerate(zip(numbers.tolist(), shifts, strict=True)):
            aligned, affine = _correlate(targets[row], rest[row]), _IDENTITY
            shifted = max(aligned, response)
            if shifted < self.least_shifted:
                yield _Match(shifted=shifted)
                continue
            if aligned < _SURELY_ALIGNED:
                for start in [_IDENTITY, *starts] if aligned > 0.9 * response else starts:
                    reached, refined = self.refine(targets[row], details[row], start)
                    if reached > aligned:
                        aligned, affine = reached, refined
                    if aligned > 0.8:
                        break
            if aligned < self.least_aligned:
                yield _Match(shifted=shifted, aligned=aligned)
                continue
            if aligned < _SURELY_ALIGNED:
                aligned, affine = self.refine(targets[row], details[row], affine, steps=12, gain=1e-5)
            score, blocks = self.score(_levels(self.pictures[number]), _turn(luma[row], turns[row]), affine)
            yield _Match(score, blocks, _measure_shear(affine), shifted, aligned)

    def refine(
        self, target: np.ndarray, details: np.ndarray, affine: np.ndarray, *, steps: int = 5, gain: float = 2e-3
    ) -> tuple[float, np.ndarray]:
        """The correlation and the affine map of `target` into `details` that Gauss-Newton reaches from a start.

        It stops after so many steps, or when the correlation gains less.
        """
        rows, columns = _grid(_ALIGNED_SIDE)
        down, right = np.gradient(target)
        jacobian = np.stack([down * rows, down * columns, down, right * rows, right * columns, right]).reshape(6, -1)
        hessian = (jacobian @ jacobian.T).astype(np.float64)
        inverse = np.linalg.inv(hessian + np.diag(1e-3 * np.diag(hessian) + 1e-6))
        best = (-1.0, affine)
        for _ in range(steps):
            known = _find_known(_ALIGNED_SIDE, affine)
            if known.mean() < 0.6 or not 0.7 < np.sqrt(abs(np.linalg.det(affine[:, :2]))) < 1.4:
                break
            moved, fixed = self.take_out(_warp(details, affine)) * known, target * known
            reached = _correlate(fixed, moved)
            if reached < best[0] + gain or reached <= 0:
                break
            best = (reached, affine)
            error = (moved * (np.vdot(fixed, moved) / np.vdot(moved, moved)) - fixed).ravel()
            step = np.eye(3)
            step[:2] += (inverse @ (jacobian @ error)).reshape(2, 3)
            affine = (np.vstack([affine, [0, 0, 1]]) @ np.linalg.inv(step))[:2]
        return best

    def score(self, first: np.ndarray, second: np.ndarray, affine: np.ndarray) -> tuple[float, float]:
        """The correlation of what is left of the details after alignment, and in how many blocks there are some."""
        second = second.astype(np.float32)
        affine = affine * [1, 1, SIDE / _ALIGNED_SIDE]
        moved = second if (affine == _IDENTITY).all() else _warp(second, affine)
        known = _find_known(SIDE, affine, margin=2)
        rest = self.take_out(_find_details(first)) * known
        details = _find_details(moved) * known
        common = self.common[SIDE]
        # The components are not orthogonal over a part of the picture, but nearly so, and shorter.
        moved_rest = (details - ((common @ details.ravel()) @ common / known.mean()).reshape(details.shape)) * known
        score = _correlate(rest, moved_rest)
        high, low = np.maximum(first, moved), np.minimum(first, moved)
        clipped = ((high >= 250) & (low >= 165) & (low < 250)) | ((low <= 4) & (high > 4) & (high <= 25))
        if clipped.any():
            shown = 1 - ndimage.maximum_filter(clipped.astype(np.uint8), 3)
            parts = [np.vdot(maps * shown, maps) / (np.vdot(maps, maps) + 1e-6) for maps in (rest, moved_rest)]
            if min(parts) > 0.3 and _correlate(rest * shown, moved_rest * shown) > score:
                rest, moved_rest = rest * shown, moved_rest * shown
                score = _correlate(rest, moved_rest)
        energy = np.sqrt(_sum_blocks(rest * rest) * _sum_blocks(moved_rest * moved_rest))
        return score, float(energy.sum() ** 2 / ((energy * energy).sum() + 1e-6))

    def compare_colours(self, first: int, second: int) -> float:
        """How far the chromas of two pictures are apart, wherever they are, as a share of the brightness."""
        pair = self.pictures[[first, second]].astype(np.float32)
        chromas = np.sort(pair[:, SIDE:-1].reshape(2, 2, -1) - 128, axis=2)
        chromas /= np.maximum(pair[:, :SIDE].mean((1, 2)), 8)[:, None, None]
        return float(np.quantile(np.abs(chromas[0] - chromas[1]), 0.9, axis=1).max())


def _find_gap(scores: np.ndarray) -> float:
    """The least score of a copy: below it there is a gap as wide as what is above it; infinite if there is none."""
    for limit in (*np.arange(_MIN_COPY, 0.99, 0.01).tolist(), 0.99, 0.995, 0.9975):
        below = np.count_nonzero((scores >= 2 * limit - 1) & (scores < limit))
        if below <= np.count_nonzero(scores >= limit) / 100:
            return limit
    return np.inf


def _find_alike(nearest: np.ndarray, cosines: np.ndarray, links: Sequence[_Link]) -> list[_Link]:
    """Links of pictures that are each other's nearest, much closer than usual, and neither copies nor one scene."""
    linked = {(link.first, link.second) for link in links}
    close = 1 - _CLOSE * (1 - np.median(cosines[:, 0]))
    pairs = ((number, int(other)) for number, other in enumerate(nearest[:, 0]) if nearest[other, 0] == number)
    return [
        _Link("alike", round(float(cosines[first, 0]), 4), first, second)
        for first, second in pairs
        if first < second and cosines[first, 0] >= close and (first, second) not in linked
    ]


def _make_copies(pictures: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """(m, 128, 128) the luma of copies of some pictures, by kind, as if they were made of the images."""
    luma = [Image.fromarray(picture[:SIDE]) for picture in pictures]
    sizes = pictures[:, -1, :4].copy().view(">u2").astype(int)[:, ::-1].tolist()

    def shrink(image: Image.Image, size: list[int], quality: int) -> np.ndarray:
        data = BytesIO()
        image.resize([min(side, SIDE) for side in size], Image.Resampling.BICUBIC).save(data, "JPEG", quality=quality)
        return np.asarray(Image.open(data).resize((SIDE, SIDE), Image.Resampling.BICUBIC))

    def make(change: Callable[[Image.Image], Image.Image], part: int = 1, quality: int = 85) -> np.ndarray:
        copies = [
            shrink(change(image), [max(1, side // part) for side in size], quality)
            for image, size in zip(luma, sizes, strict=True)
        ]
        return np.stack(copies)

    yield "recompressed", make(lambda image: image, quality=50)
    yield "scaled to half", make(lambda image: image, part=2)
    yield "mirrored or turned", make(ImageOps.mirror)
    yield "darkened by 40 %", make(lambda image: image.point(lambda level: 0.6 * level))
    yield "brightened by 40 %", make(lambda image: image.point(lambda level: 1.4 * level))
    for percent in (5, 10):
        cut = SIDE * percent / 100
        box = (0.3 * cut, 0.6 * cut, SIDE - 0.7 * cut, SIDE - 0.4 * cut)
        yield f"cropped by {percent} %", make(lambda image, box=box: image.resize(image.size, box=box, resample=3))


# --- arrays -----------------------------------------------------------------------------------------------------------


def _pick(count: int, most: int) -> np.ndarray:
    """Numbers below `count`, evenly spaced, at most so many."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(int))


def _split(count: int) -> list[slice]:
    return [slice(start, min(start + _COMPARED_IMAGES, count)) for start in range(0, count, _COMPARED_IMAGES)]


def _list_pairs(near: np.ndarray, numbers: np.ndarray | None = None) -> np.ndarray:
    """(m, 2) the different pairs of numbers and those that are near them, ascending."""
    numbers = np.arange(len(near)) if numbers is None else numbers
    pairs = np.column_stack([np.repeat(numbers, near.shape[1]), near.ravel()])
    return np.unique(np.sort(pairs, axis=1), axis=0)


def _normalise(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-6)


def _find_highest(values: np.ndarray, count: int) -> np.ndarray:
    """(m, k) the places of the highest values of every row, of which the last one does not count, in order."""
    count = min(count, values.shape[1] - 1)
    places = np.sort(np.argpartition(-values, count - 1, axis=1)[:, :count], axis=1)
    order = np.argsort(-np.take_along_axis(values, places, axis=1), axis=1, kind="stable")
    return np.take_along_axis(places, order, axis=1)


def _find_nearest(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(n, k) the other rows with the highest cosines, and these."""
    nearest, cosines = [], []
    for part in _split(len(vectors)):
        cosine = vectors[part] @ vectors.T
        rows = np.arange(len(cosine))
        cosine[rows, rows + part.start] = -2
        nearest.append(_find_highest(cosine, _NEIGHBOURS))
        cosines.append(np.take_along_axis(cosine, nearest[-1], axis=1))
    return np.concatenate(nearest), np.concatenate(cosines)


def _levels(pictures: np.ndarray) -> np.ndarray:
    """(..., 128, 128) the grey levels of pictures."""
    return pictures[..., :SIDE, :].astype(np.float32)


def _halve(maps: np.ndarray) -> np.ndarray:
    rows = maps[..., ::2, :] + maps[..., 1::2, :]
    return (rows[..., ::2] + rows[..., 1::2]) / 4


def _turn(maps: np.ndarray, orientation: int) -> np.ndarray:
    """Maps turned by 90 degrees so many times, and from 4 on mirrored."""
    turned = np.rot90(maps, orientation % 4, axes=(-2, -1))
    return turned[..., ::-1] if orientation >= 4 else turned


def _sum_blocks(maps: np.ndarray) -> np.ndarray:
    blocks = SIDE // _BLOCK
    return maps.reshape(blocks, _BLOCK, blocks, _BLOCK).sum((1, 3))


def _measure_shear(affine: np.ndarray) -> float:
    """How far a map is from a crop with its own scale in either direction, and from a similarity: the lesser one."""
    (down, across), (along, right) = affine[:, :2]
    return float(min(max(abs(across), abs(along)), max(abs(down - right), abs(across + along))))


def _correlate(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.vdot(first, second) / (np.sqrt(np.vdot(first, first) * np.vdot(second, second)) + 1e-6))


@cache
def _blur_matrix(side: int, sigma: float) -> np.ndarray:
    """(side, side) what blurs a column; what lies outside is mirrored."""
    offsets = np.arange(-side, side + 1)
    kernel = np.exp(-0.5 * (offsets / sigma) ** 2)
    kernel[kernel < 1e-5] = 0  # denormal numbers are slow
    places = np.add.outer(np.arange(side), offsets) % (2 * side)
    matrix = np.zeros((side, side))
    np.add.at(matrix, (np.arange(side)[:, None], np.minimum(places, 2 * side - 1 - places)), kernel / kernel.sum())
    return matrix.astype(np.float32)


def _blur(maps: np.ndarray, sigma: float) -> np.ndarray:
    matrix = _blur_matrix(maps.shape[-1], sigma)
    return matrix @ maps @ matrix.T


def _find_details(levels: np.ndarray) -> np.ndarray:
    """A band of the frequencies of grey levels, divided by its local contrast; two grey levels are noise."""
    band = _blur(levels, 1.0) - _blur(levels, 4.0)
    return band / (np.sqrt(np.maximum(_blur(band * band, 8.0), 0)) + 2)


def _find_cells(details: np.ndarray) -> np.ndarray:
    """(..., 16, 16) the coarse ones of (..., 64, 64) details."""
    return _halve(_blur(_halve(_blur(details, 1.0)), 0.75))


def _find_common(maps: np.ndarray) -> np.ndarray:
    """(k, d) what many maps share: their mean and leading components, orthonormal.

    A component to which few maps contribute is what copies share.
    """
    rows = maps.reshape(len(maps), -1)
    if len(rows) < 4:
        return np.zeros((0, rows.shape[1]), dtype=np.float32)
    mean = rows.mean(0)
    values, vectors = np.linalg.eigh((rows - mean) @ (rows - mean).T)
    leading = vectors[:, ::-1][:, : min(_MAX_COMMON, len(rows) // 8)]
    is_shared = 1 / np.square(np.square(leading)).sum(0) >= max(8, len(rows) / 10)
    shared = np.column_stack(
        [mean, (rows - mean).T @ leading[:, is_shared & (values[::-1][: leading.shape[1]] > 1e-6)]]
    )
    return np.ascontiguousarray(np.linalg.qr(shared)[0].T)


# --- alignment: affine maps from places in the first picture, from its centre, to those in the second -----------------


@cache
def _grid(side: int) -> np.ndarray:
    """(2, side, side) rows and columns, from the centre."""
    return (np.mgrid[:side, :side] - (side - 1) / 2).astype(np.float32)


def _find_known(side: int, affine: np.ndarray, margin: int = 0) -> np.ndarray:
    """(side, side) whether the place lies in the second picture, this far from its margin."""
    rows, columns = _grid(side)
    row = affine[0, 0] * rows + affine[0, 1] * columns + affine[0, 2]
    column = affine[1, 0] * rows + affine[1, 1] * columns + affine[1, 2]
    return np.maximum(np.abs(row), np.abs(column)) <= (side - 1) / 2 - margin


def _warp(maps: np.ndarray, affine: np.ndarray) -> np.ndarray:
    centre = np.full(2, (len(maps) - 1) / 2)
    offset: Any = affine[:, 2] + centre - affine[:, :2] @ centre
    return ndimage.affine_transform(maps, affine[:, :2], offset, order=1, mode="nearest", output=np.float32)


@cache
def _scale_matrices(side: int, scales: tuple[float, ...]) -> np.ndarray:
    """(k, side, side) what scales a column about its centre."""
    centre = (side - 1) / 2
    places = np.outer(scales, np.arange(side) - centre) + centre
    distances = np.abs(places.clip(0, side - 1)[:, :, None] - np.arange(side))
    return np.maximum(1 - distances, 0).astype(np.float32)


def _search_shifts(targets: np.ndarray, details: np.ndarray) -> Iterator[tuple[float, list[np.ndarray]]]:
    """The highest correlation of every pair over shifts and scales, and the affine maps of the two best scales."""
    hanning = np.hanning(_SHIFTED_SIDE + 2)[1:-1]
    window = np.outer(hanning, hanning).astype(np.float32)
    first, second = (_halve(_blur(maps, 1.0)) for maps in (targets, details))
    matrices = _scale_matrices(_SHIFTED_SIDE, _SCALES)
    shape = (len(first), -1, _SHIFTED_SIDE, _SHIFTED_SIDE)
    scaled = (matrices @ second[:, None] @ matrices.transpose(0, 2, 1)) * window
    spectra = [
        np.asarray(fft.rfft2(_normalise(maps.reshape(*maps.shape[:-2], -1)).reshape(shape)))
        for maps in (first * window, scaled)
    ]
    correlation = np.asarray(fft.irfft2(spectra[0] * spectra[1].conj(), s=shape[2:]))
    correlation = np.roll(correlation, (_MAX_SHIFT, _MAX_SHIFT), (2, 3))[
        ..., : 2 * _MAX_SHIFT + 1, : 2 * _MAX_SHIFT + 1
    ]
    correlation = correlation.reshape(len(first), len(_SCALES), -1)
    for peaks, places in zip(correlation.max(2), correlation.argmax(2), strict=True):
        starts = []
        for number in np.argsort(-peaks)[:2].tolist():
            shift = np.array(divmod(int(places[number]), 2 * _MAX_SHIFT + 1)) - _MAX_SHIFT
            scale = _SCALES[number]
            starts.append(np.column_stack([np.eye(2) * scale, -scale * shift * _ALIGNED_SIDE / _SHIFTED_SIDE]))
        yield float(peaks.max()), starts
