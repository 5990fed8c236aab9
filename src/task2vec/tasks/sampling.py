"""Samples and splits of images that depend on their content alone.

Images are ranked by a SHA-256 of seed and content, and ties between classes are broken by the content of the classes,
which must therefore be numbered in the order of `Task.canonical_order`. So samples and splits are the same whatever the
order of the images, the numbers and names of the classes or the version of a random generator, and identical images
always stay together.
"""

import hashlib
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from task2vec.errors import DataError, UsageError
from task2vec.text import quote

MAX_ATTEMPTS = 64


def make_rng(seed: int, purpose: str) -> np.random.Generator:
    """A generator of its own for every seed and purpose, so that no draw depends on the ones before it."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise UsageError(f"seed={seed!r} (--seed) must be an integer, 0 or more, so that the sample can be reproduced.")
    words = np.frombuffer(hashlib.sha256(purpose.encode()).digest(), "<u4")
    return np.random.default_rng([int(seed), *words.tolist()])


def choose_sample(digests: Sequence[str], targets: np.ndarray, n: int, seed: int) -> np.ndarray:
    """A mask of `n` images: every class keeps its share of them, and one image at least.

    For multi-label every attribute keeps a positive and a negative image, for which more than `n` may be needed.
    """
    groups = _Groups(digests, targets, f"sample {seed}", together=False)
    if targets.ndim == 2:
        return groups.mask_images(_cover(groups.has, n, leave_some=False))
    sizes = np.bincount(groups.strata)
    counts = share_out(sizes, n, least=np.minimum(sizes, 1), most=sizes)
    return groups.mask_images(_first_of_each(groups.strata, counts))


def join_groups(*groupings: np.ndarray) -> np.ndarray:
    """(n,) numbers from 0 on, the same for images that any of the groupings has in one group, directly or via others.

    Example:
        >>> join_groups(np.array([0, 1, 1, 2]), np.array([7, 7, 5, 4])).tolist()
        [0, 0, 0, 1]
    """
    columns = [np.unique(grouping, return_inverse=True)[1] for grouping in groupings]
    joined, before = np.arange(len(columns[0])), None
    while before is None or (joined != before).any():
        before = joined
        for column in columns:
            lowest = np.full(len(column), len(column))
            np.minimum.at(lowest, column, joined)
            joined = lowest[column]
    return np.unique(joined, return_inverse=True)[1]


def choose_test(
    digests: Sequence[str],
    targets: np.ndarray,
    classes: Sequence[str],
    seed: int,
    share: float | None = None,
    *,
    groups: np.ndarray | None = None,
) -> np.ndarray:
    """A mask of the images of a share of the task; None takes half of every class separately, rounded down.

    Identical images are all in it, or none, and none if they carry different labels. Attributes have positive and
    negative images on both sides; their images are divided as a whole. So are those of `groups` (n,), which hold the
    identical ones, whatever their labels.
    """
    if groups is not None:
        return _choose_groups(digests, targets, groups, len(classes), f"split {seed}", 0.5 if share is None else share)
    units = _Groups(digests, targets, f"split {seed}", together=True)
    n_units = int(units.number[-1]) + 1
    wanted = max(n_units // 2 if share is None else round(share * n_units), 1)
    if targets.ndim == 2:
        fewest = units.has.sum(axis=0).reshape(2, -1).min(axis=0)
        rare = [classes[column] for column in np.flatnonzero(fewest < 2).tolist()]
        if rare:
            raise DataError(
                f"{len(rare)} attributes have a single positive or negative image ({quote(rare)}), so they would be "
                "constant on one side. Leave them out with select(classes=...)."
            )
        return units.mask_images(_cover(units.has, wanted, leave_some=True))
    # Identical images under different labels stay in the training part: no prediction would be right on both.
    sizes = np.bincount(units.strata[units.strata >= 0], minlength=len(classes))
    most = np.maximum(sizes - 1, 0)
    most[units.conflicting] = sizes[units.conflicting]
    counts = sizes // 2 if share is None else share_out(sizes, wanted, least=np.minimum(most, 1), most=most)
    return units.mask_images(_first_of_each(units.strata, counts))


def share_out(sizes: np.ndarray, total: int, *, least: np.ndarray, most: np.ndarray) -> np.ndarray:
    """How many of `total` each class gets: in proportion to `sizes`, by largest remainder, between least and most.

    Example:
        >>> share_out(np.array([70, 20, 1]), 10, least=np.array([1, 1, 1]), most=np.array([70, 20, 1])).tolist()
        [7, 2, 1]
    """
    exact = total * sizes / max(sizes.sum(), 1)
    counts = np.clip(np.floor(exact).astype(np.int64), least, most)
    while counts.sum() < total and (counts < most).any():
        counts[np.argmax(np.where(counts < most, exact - counts, -np.inf))] += 1
    while counts.sum() > total and (counts > least).any():
        counts[np.argmax(np.where(counts > least, counts - exact, -np.inf))] -= 1
    return counts


def _choose_groups(
    digests: Sequence[str], targets: np.ndarray, groups: np.ndarray, n_classes: int, purpose: str, share: float
) -> np.ndarray:
    """A mask of whole groups that have about a share of every class; a class of two groups or more is on both sides."""
    numbers = np.unique(groups, return_inverse=True)[1]
    has = np.hstack([targets, 1 - targets]) if targets.ndim == 2 else targets[:, None] == np.arange(n_classes)
    counts = np.zeros((numbers.max() + 1, has.shape[1]))
    np.add.at(counts, numbers, has)
    hashes = [hashlib.sha256(f"{purpose} {digest}".encode()).digest() for digest in digests]
    draw = list(dict.fromkeys(numbers[sorted(range(len(hashes)), key=hashes.__getitem__)].tolist()))
    total = np.maximum(counts.sum(0), 1)
    taken = np.zeros(len(total))
    left = (counts > 0).sum(0)
    chosen = np.zeros(len(counts), dtype=bool)

    def measure_gap(taken: np.ndarray) -> float:
        return float(np.square(taken / total - share).sum())

    for number in draw:
        has = counts[number] > 0
        after = taken + counts[number]
        is_wanted = (taken[has] == 0).any() or measure_gap(after) < measure_gap(taken)
        if is_wanted and (left[has] > 1).all():
            chosen[number] = True
            taken = after
            left -= has
    return chosen[numbers]


class _Groups:
    """The images of a task in the order of the draw, one group each or, if `together`, one group per content.

    `number` is the group of every image in that order. For single-label tasks `strata` holds the class of every group
    in canonical numbers, and -1 where identical images carry different labels; `conflicting` are the classes of those.
    For multi-label `has` holds whether a group has a positive image of each attribute, and then whether it has a
    negative one.
    """

    def __init__(self, digests: Sequence[str], targets: np.ndarray, purpose: str, *, together: bool):
        keys = [
            hashlib.sha256(f"{purpose} {digest}".encode()).digest() + label.tobytes()  # of copies, the labels decide
            for digest, label in zip(digests, targets, strict=True)
        ]
        self.order = np.array(sorted(range(len(keys)), key=keys.__getitem__))
        is_new = np.ones(len(keys), dtype=bool)
        if together:
            is_new[1:] = [digests[first] != digests[second] for first, second in pairwise(self.order)]
        self.number = np.cumsum(is_new) - 1
        targets = targets[self.order]
        starts = np.flatnonzero(is_new)
        highest = np.maximum.reduceat(targets, starts)
        lowest = np.minimum.reduceat(targets, starts)
        if targets.ndim == 2:
            self.has = np.hstack([highest == 1, lowest == 0])
        else:
            self.strata = np.where(highest == lowest, highest, -1)
            self.conflicting = np.unique(targets[self.strata[self.number] < 0])

    def mask_images(self, chosen: np.ndarray) -> np.ndarray:
        """A mask of the images of the chosen groups (a mask), in the order of the task."""
        is_chosen = np.zeros(len(self.order), dtype=bool)
        is_chosen[self.order[chosen[self.number]]] = True
        return is_chosen


def _first_of_each(strata: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """A mask of the first `counts[c]` groups of every class c; none of class -1."""
    return (strata >= 0) & (rank_within(strata) < counts[strata])


def rank_within(classes: np.ndarray) -> np.ndarray:
    """(n,) how many of the entries before each have the same class.

    Example:
        >>> rank_within(np.array([5, 2, 5, 5, 2])).tolist()
        [0, 0, 1, 2, 1]
    """
    sizes = np.unique(classes, return_counts=True)[1]
    ranks = np.empty(len(classes), np.int64)
    ranks[np.argsort(classes, kind="stable")] = np.arange(len(classes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return ranks


def _cover(has: np.ndarray, wanted: int, *, leave_some: bool) -> np.ndarray:
    """A mask of groups: the first `wanted`, but such that every attribute has positive and negative ones among them.

    If `leave_some`, the groups that are left have both, too. The rarest values choose first, which may block the others
    where there are few images; then another attempt starts from the next group.
    """
    chosen = np.zeros(len(has), dtype=bool)
    for start in range(min(len(has), MAX_ATTEMPTS)):
        chosen = np.roll(_try_cover(np.roll(has, -start, axis=0), wanted, leave_some), start)
        if has[chosen].any(axis=0).all():
            break
    return chosen


def _try_cover(has: np.ndarray, wanted: int, leave_some: bool) -> np.ndarray:
    """One attempt at `_cover`, which may leave values out."""
    chosen = np.zeros(len(has), dtype=bool)
    total = has.sum(axis=0)
    left = total.copy()

    def take(groups: Iterable[int], count: int) -> None:
        for group in groups:
            if count < 1:
                break
            if not chosen[group] and not (leave_some and (left[has[group]] < 2).any()):
                chosen[group] = True
                left[has[group]] -= 1
                count -= 1

    for value in np.argsort(total, kind="stable"):
        if left[value] == total[value]:
            take(np.flatnonzero(has[:, value]).tolist(), 1)
    take(range(len(has)), wanted - int(chosen.sum()))
    return chosen
