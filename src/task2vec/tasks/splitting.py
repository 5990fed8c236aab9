"""Samples and splits of a task that its content decides, and in which every class keeps its share.

Images are ranked by a SHA-256 of seed and content, and ties between classes are broken by the classes' own content.
So the draw is the same whatever the order of the images, the numbers and names of the classes or the version of a
random generator, and identical images always stay together.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from task2vec.errors import DataError, UsageError
from task2vec.tasks.check import quote
from task2vec.tasks.cutting import inherit_warnings
from task2vec.tasks.ordering import order_classes, renumber

if TYPE_CHECKING:
    from task2vec.tasks.task import Task

MOST_ATTEMPTS = 64


def sample_images(task: "Task", n: int, seed: int) -> "Task":
    """`n` images of a task: every class keeps its share of them, and one image at least."""
    fewest = 1 if task.is_multilabel else len(task.classes)
    if not fewest <= n <= len(task):
        raise UsageError(
            f"{n} images cannot be drawn from '{task.name}': it has {len(task)}, of {len(task.classes)} classes that "
            f"each keep one. Ask for {fewest} to {len(task)}."
        )
    groups = _Groups(task, f"sample {seed}", together=False)
    if task.is_multilabel:
        rows = groups.rows_of(_cover(groups, n, leave_some=False))
    else:
        sizes = np.bincount(groups.strata, minlength=len(task.classes))
        counts = share_out(sizes, n, least=np.minimum(sizes, 1), most=sizes)
        rows = groups.rows_of(_first_of_each(groups.strata, counts))
    if len(rows) > n:
        raise DataError(
            f"{n} images are too few for '{task.name}': {len(rows)} were needed for a positive and a negative image of "
            f"each of its {len(task.classes)} attributes. Ask for {len(rows)} or more, or select fewer attributes."
        )
    return _take(task, rows, f"a sample of {n}")


def split_images(task: "Task", seed: int, test: float) -> tuple["Task", "Task"]:
    """Two tasks of disjoint content, the second with the share `test` of every class."""
    if isinstance(test, bool) or not 0 < test < 1:
        raise UsageError(f"test={test!r} is no share of the images. Pass a number between 0 and 1, such as 0.2.")
    groups = _Groups(task, f"split {seed}", together=True)
    wanted = max(round(test * len(groups)), 1)
    if task.is_multilabel:
        _refuse_rare(task, groups)
        chosen = _cover(groups, wanted, leave_some=True)
    else:
        chosen = _split_classes(groups, wanted, len(task.classes))
    is_test = np.zeros(len(task), dtype=bool)
    is_test[groups.rows_of(chosen)] = True
    train, held = (_make_side(task, mask, side) for side, mask in (("train", ~is_test), ("test", is_test)))
    return train, held


def choose_half(task: "Task", seed: int) -> np.ndarray:
    """A mask of half of the images: of every class by itself, one less than the others if they are odd.

    Identical images are all in it, or none, and none if they carry different labels. Attributes have both answers on
    both sides; their images are halved as a whole.
    """
    groups = _Groups(task, f"split {seed}", together=True)
    if task.is_multilabel:
        _refuse_rare(task, groups)
        chosen = _cover(groups, max(len(groups) // 2, 1), leave_some=True)
    else:
        sizes = np.bincount(groups.strata[groups.strata >= 0], minlength=len(task.classes))
        chosen = _first_of_each(groups.strata, sizes // 2)
    is_chosen = np.zeros(len(task), dtype=bool)
    is_chosen[groups.rows_of(chosen)] = True
    return is_chosen


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


class _Groups:
    """The images of a task in the order of the draw, one group each or, if `together`, one group per content.

    For single-label tasks `strata` holds the class of every group in canonical numbers, and -1 where identical images
    carry different labels. For multi-label `has` tells whether a group has a positive image of each attribute, and then
    whether it has a negative one.
    """

    def __init__(self, task: "Task", purpose: str, *, together: bool):
        """Rank and group the images."""
        self.class_order = order_classes(task.digests, task.targets)
        targets = renumber(task.targets, self.class_order)
        self.order, is_first = _rank(task.digests, targets, purpose)
        is_new = is_first if together else np.ones(len(task), dtype=bool)
        self.number = np.cumsum(is_new) - 1
        targets, starts = targets[self.order], np.flatnonzero(is_new)
        highest, lowest = np.maximum.reduceat(targets, starts), np.minimum.reduceat(targets, starts)
        if task.is_multilabel:
            self.has = np.hstack([highest == 1, lowest == 0])
        else:
            self.strata = np.where(highest == lowest, highest, -1)
            self.torn_classes = np.unique(targets[self.strata[self.number] < 0])

    def __len__(self) -> int:
        """The number of groups."""
        return int(self.number[-1]) + 1

    def rows_of(self, chosen: np.ndarray) -> np.ndarray:
        """The images of the chosen groups (a mask), in the order of the task."""
        return np.sort(self.order[chosen[self.number]])


def _rank(digests: Sequence[str], targets: np.ndarray, purpose: str) -> tuple[np.ndarray, np.ndarray]:
    """The images in the order of the draw, identical ones next to each other, and which is the first of its content."""
    hashes = b"".join(hashlib.sha256(f"{purpose} {digest}".encode()).digest()[:16] for digest in digests)
    words = np.frombuffer(hashes, dtype=">u8").reshape(-1, 2)
    order = np.lexsort((words[:, 1], words[:, 0]))
    is_first = np.ones(len(order), dtype=bool)
    is_first[1:] = (words[order[1:]] != words[order[:-1]]).any(axis=1)
    starts = np.flatnonzero(is_first)
    ends = np.append(starts[1:], len(order))
    for group in np.flatnonzero(ends - starts > 1):  # copies may differ in their labels, which then decide
        copies = order[starts[group] : ends[group]]
        copies[:] = sorted(copies.tolist(), key=lambda row: targets[row].tobytes())
    return order, is_first


def _first_of_each(strata: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """A mask of the first `counts[c]` groups of every class c."""
    order = np.argsort(strata, kind="stable")
    order = order[strata[order] >= 0]
    starts = np.searchsorted(strata[order], np.arange(len(counts)))
    place = np.arange(len(order)) - starts[strata[order]]
    chosen = np.zeros(len(strata), dtype=bool)
    chosen[order[place < counts[strata[order]]]] = True
    return chosen


def _split_classes(groups: _Groups, wanted: int, n_classes: int) -> np.ndarray:
    """A mask of the test groups of a single-label task.

    Identical images under different labels stay in the training part: no answer to them would be right.
    """
    sizes = np.bincount(groups.strata[groups.strata >= 0], minlength=n_classes)
    most = np.maximum(sizes - 1, 0)
    most[groups.torn_classes] = sizes[groups.torn_classes]
    return _first_of_each(groups.strata, share_out(sizes, wanted, least=np.minimum(most, 1), most=most))


def _cover(groups: _Groups, wanted: int, *, leave_some: bool) -> np.ndarray:
    """A mask of groups, the first `wanted` but that every attribute has both answers among them.

    If `leave_some`, the groups that are left have both answers too. The rarest answers choose first, which may block
    the others where there are few images; then it is tried again from another group on.
    """
    has, chosen = groups.has, np.zeros(len(groups), dtype=bool)
    for start in range(min(len(groups), MOST_ATTEMPTS)):
        chosen = np.roll(_choose(np.roll(has, -start, axis=0), wanted, leave_some), start)
        if has[chosen].any(axis=0).all():
            break
    return chosen


def _choose(has: np.ndarray, wanted: int, leave_some: bool) -> np.ndarray:
    """One attempt at `_cover`, which may leave answers out."""
    chosen = np.zeros(len(has), dtype=bool)
    inside, outside = np.zeros(has.shape[1], dtype=np.int64), has.sum(axis=0)

    def take(group: int) -> bool:
        if chosen[group] or (leave_some and (outside[has[group]] < 2).any()):
            return False
        chosen[group] = True
        inside[has[group]] += 1
        outside[has[group]] -= 1
        return True

    for answer in np.argsort(outside, kind="stable"):
        if inside[answer] == 0:
            any(take(group) for group in np.flatnonzero(has[:, answer]).tolist())
    count = int(chosen.sum())
    for group in range(len(has)):
        if count >= wanted:
            break
        count += take(group)
    return chosen


def _refuse_rare(task: "Task", groups: _Groups) -> None:
    """Raise `DataError` for attributes with an answer that only one image gives: it cannot be on both sides."""
    fewest = groups.has.sum(axis=0).reshape(2, -1).min(axis=0)
    rare = [task.classes[groups.class_order[column]] for column in np.flatnonzero(fewest < 2)]
    if rare:
        raise DataError(
            f"'{task.name}' cannot be split: {len(rare)} attributes have a single image of one answer ({quote(rare)}), "
            "so they would be constant on one side. Leave them out with select(classes=...)."
        )


def _make_side(task: "Task", mask: np.ndarray, side: str) -> "Task":
    """One part of a split, with a warning for every class that it has lost."""
    part = _take(task, np.flatnonzero(mask), f"the {side} part of a split")
    lost = [] if task.is_multilabel else np.setdiff1d(task.targets, task.targets[mask]).tolist()
    told = (f"classes without an image in the {side} part: {quote([task.classes[i] for i in lost])}",) if lost else ()
    return replace(part, name=f"{task.name} ({side})", warnings=(*told, *part.warnings))


def _take(task: "Task", rows: np.ndarray, what: str) -> "Task":
    """The task of the images at `rows`; what is none is refused with the part's name."""
    try:
        part = task.subset(rows)
    except DataError as error:
        raise DataError(f"{what} of '{task.name}' is no task: {error}") from None
    if task.is_multilabel and len(part.classes) < len(task.classes):
        raise DataError(
            f"{what} of '{task.name}' has no positive image of {len(task.classes) - len(part.classes)} attributes, "
            "so it would be another task. Take more images, another seed, or fewer attributes: select(classes=...)."
        )
    return replace(part, warnings=(*inherit_warnings(task), *part.warnings))
