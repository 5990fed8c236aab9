"""Orders and draws of a task's images (samples, splits, batches) that depend on their content alone.

Images are ranked by a SHA-256 of seed and content, and ties between classes are broken by the classes' own content. So
samples and splits are the same whatever the order of the images, the numbers and names of the classes or the version of
a random generator, and identical images always stay together.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from task2vec.errors import DataError, UsageError
from task2vec.text import quote

if TYPE_CHECKING:
    from task2vec.tasks.task import Task

MAX_BATCHES = 20
_ATTEMPTS = 64


def make_rng(seed: int, purpose: str) -> np.random.Generator:
    """A generator of its own for every seed and purpose, so that no draw depends on the ones before it."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise UsageError(f"seed={seed!r} (--seed) must be an integer, 0 or more, so that the sample can be reproduced.")
    words = np.frombuffer(hashlib.sha256(purpose.encode()).digest(), "<u4")
    return np.random.default_rng([int(seed), *words.tolist()])


def choose_sample(task: "Task", n: int, seed: int) -> np.ndarray:
    """A mask of `n` images: every class keeps its share of them, and one image at least.

    For multi-label every attribute keeps a positive and a negative image, for which more than `n` may be needed.
    """
    groups = _Groups(task, f"sample {seed}", together=False)
    if task.is_multilabel:
        return groups.mask_images(_cover(groups.has, n, leave_some=False))
    sizes = np.bincount(groups.strata, minlength=len(task.classes))
    counts = share_out(sizes, n, least=np.minimum(sizes, 1), most=sizes)
    return groups.mask_images(_first_of_each(groups.strata, counts))


def choose_test(task: "Task", seed: int, test: float | None = None) -> np.ndarray:
    """A mask of the images of the share `test`; None takes half of every class separately, rounded down.

    Identical images are all in it, or none, and none if they carry different labels. Attributes have positive and
    negative images on both sides; their images are divided as a whole.
    """
    groups = _Groups(task, f"split {seed}", together=True)
    n_groups = int(groups.number[-1]) + 1
    wanted = max(n_groups // 2 if test is None else round(test * n_groups), 1)
    if task.is_multilabel:
        fewest = groups.has.sum(axis=0).reshape(2, -1).min(axis=0)
        rare = [task.classes[groups.class_order[column]] for column in np.flatnonzero(fewest < 2)]
        if rare:
            raise DataError(
                f"'{task.name}' cannot be split: {len(rare)} attributes have a single positive or negative image "
                f"({quote(rare)}), so they would be constant on one side. Leave them out with select(classes=...)."
            )
        return groups.mask_images(_cover(groups.has, wanted, leave_some=True))
    # Identical images under different labels stay in the training part: no prediction would be right on both.
    sizes = np.bincount(groups.strata[groups.strata >= 0], minlength=len(task.classes))
    most = np.maximum(sizes - 1, 0)
    most[groups.conflicting] = sizes[groups.conflicting]
    counts = sizes // 2 if test is None else share_out(sizes, wanted, least=np.minimum(most, 1), most=most)
    return groups.mask_images(_first_of_each(groups.strata, counts))


def draw_batches(
    task: "Task", batches: int | None = None, *, classes: int | None = 5, images: int = 10, seed: int = 0
) -> list[tuple["Task", "Task"]]:
    """Pairs of tasks: a batch of some classes, drawn at random, and its twin of the same classes and other images.

    No image is in two batches: batches that share images would look alike for that alone. The draw depends on the seed
    and on the content alone, not on the order of the images. Of identical images one counts.

    Args:
        task: The collection, with one label for each image.
        batches: How many; None takes as many as there are images for, 20 at most.
        classes: How many of its classes are in each batch; None takes all.
        images: Of each class in a batch, and as many again in its twin.
        seed: Of the draw.

    Example:
        >>> from task2vec import sample_tasks
        >>> digits = sample_tasks(images_per_task=100)[0]
        >>> [(batch, twin), *others] = draw_batches(digits, classes=4, images=2)
        >>> batch, twin.classes == batch.classes, len(others)
        (Task(digits batch 1, 8 images, 4 classes), True, 3)
    """
    if task.is_multilabel:
        raise UsageError(f"'{task.name}' is multi-label, so it has no batches of classes. Use one_vs_rest().")
    classes = len(task.classes) if classes is None else classes
    if not 2 <= classes <= len(task.classes) or images < 1 or (batches is not None and batches < 1):
        raise UsageError(
            f"{batches} batches of {classes} classes (--classes) with {images} images each (--shots) "
            f"cannot be drawn from '{task.name}'. Choose 2 to {len(task.classes)} classes, and 1 or more of the others."
        )
    canonical = task.canonical()
    rng = make_rng(seed, f"batches of {classes} classes and {images} images")
    unique = np.unique(np.array(canonical.digests), return_index=True)[1]
    left = [rng.permutation(unique[canonical.targets[unique] == number]) for number in range(len(task.classes))]
    drawn = []
    while len(drawn) < (MAX_BATCHES if batches is None else batches):
        rich = [number for number, rows in enumerate(left) if len(rows) >= 2 * images]
        if len(rich) < classes:
            break
        chosen = rng.choice(rich, classes, replace=False)
        name = f"{task.name} batch {len(drawn) + 1}"
        rows = [np.sort(np.concatenate([left[n][part : 2 * images : 2] for n in chosen])) for part in (0, 1)]
        batch, twin = (canonical.subset(part) for part in rows)
        drawn.append((replace(batch, name=name, notes=()), replace(twin, name=f"{name}, twin", notes=())))
        for number in chosen:
            left[number] = left[number][2 * images :]
    if not drawn or (batches is not None and len(drawn) < batches):
        raise DataError(
            f"{task} is enough for {len(drawn)} batches: each takes {classes} classes with twice {images} images, and "
            "no image is in two. Choose fewer batches (batches=), classes (--classes) or images of a class (--shots)."
        )
    return drawn


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

    `number` is the group of every image in that order. For single-label tasks `strata` holds the class of every group
    in canonical numbers, and -1 where identical images carry different labels; `conflicting` are the classes of those.
    For multi-label `has` holds whether a group has a positive image of each attribute, and then whether it has a
    negative one.
    """

    def __init__(self, task: "Task", purpose: str, *, together: bool):
        self.class_order = task.canonical_order[1]
        targets = task.renumber(self.class_order)
        keys = [
            hashlib.sha256(f"{purpose} {digest}".encode()).digest() + label.tobytes()  # of copies, the labels decide
            for digest, label in zip(task.digests, targets, strict=True)
        ]
        self.order = np.array(sorted(range(len(keys)), key=keys.__getitem__))
        is_new = np.ones(len(keys), dtype=bool)
        if together:
            is_new[1:] = [task.digests[first] != task.digests[second] for first, second in pairwise(self.order)]
        self.number = np.cumsum(is_new) - 1
        targets, starts = targets[self.order], np.flatnonzero(is_new)
        highest, lowest = np.maximum.reduceat(targets, starts), np.minimum.reduceat(targets, starts)
        if task.is_multilabel:
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
    """Of every place, how many places before it have the same class.

    Example:
        >>> rank_within(np.array([5, 2, 5, 5, 2])).tolist()
        [0, 0, 1, 2, 1]
    """
    sizes, ranks = np.unique(classes, return_counts=True)[1], np.empty(len(classes), np.int64)
    ranks[np.argsort(classes, kind="stable")] = np.arange(len(classes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return ranks


def _cover(has: np.ndarray, wanted: int, *, leave_some: bool) -> np.ndarray:
    """A mask of groups: the first `wanted`, but such that every attribute has positive and negative ones among them.

    If `leave_some`, the groups that are left have both too. The rarest values choose first, which may block the others
    where there are few images; then it is tried again from another group on.
    """
    chosen = np.zeros(len(has), dtype=bool)
    for start in range(min(len(has), _ATTEMPTS)):
        chosen = np.roll(_try_cover(np.roll(has, -start, axis=0), wanted, leave_some), start)
        if has[chosen].any(axis=0).all():
            break
    return chosen


def _try_cover(has: np.ndarray, wanted: int, leave_some: bool) -> np.ndarray:
    """One attempt at `_cover`, which may leave values out."""
    chosen, total = np.zeros(len(has), dtype=bool), has.sum(axis=0)
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
