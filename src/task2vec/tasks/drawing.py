"""Which images of a large dataset a task is made of: seeded, and the same whatever else was drawn before.

More images of the same seed contain fewer: a draw of 2,000 holds the draw of 500.
"""

import hashlib
from collections.abc import Callable

import numpy as np

from task2vec.errors import UsageError


def make_rng(seed: int, purpose: str) -> np.random.Generator:
    """A generator of its own for every seed and purpose, so that no draw depends on the ones before it."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise UsageError(f"seed={seed!r} (--seed) repeats no draw: that takes a whole number, 0 or more. Give one.")
    words = np.frombuffer(hashlib.sha256(purpose.encode()).digest(), "<u4")
    return np.random.default_rng([int(seed), *words.tolist()])


def draw_by_class(labels: np.ndarray, images: int, rng: np.random.Generator) -> np.ndarray:
    """Places of `images` labels, ascending: every class gets the same number as far as it has them.

    Example:
        >>> labels = np.array([0] * 50 + [1] * 50 + [2] * 3)
        >>> chosen = draw_by_class(labels, 23, make_rng(0, "birds"))
        >>> np.bincount(labels[chosen]).tolist()
        [10, 10, 3]
    """
    if images >= len(labels):
        return np.arange(len(labels))
    order = rng.permutation(len(labels))
    classes = rng.permutation(int(labels.max()) + 1)
    # The rank of every image within its class; the first of each class come before all second ones, and so on.
    by_class = np.argsort(labels[order], kind="stable")
    sizes = np.bincount(labels, minlength=len(classes))
    starts = np.cumsum(sizes) - sizes
    rank = np.empty(len(labels), np.int64)
    rank[order[by_class]] = np.arange(len(labels)) - np.repeat(starts, sizes)
    turn = np.argsort(classes)[labels]
    return np.sort(np.lexsort((turn, rank))[:images])


def take_for_attributes(
    column: Callable[[int], np.ndarray], numbers: list[int], *, total: int, images: int, least: int
) -> np.ndarray:
    """Which of `total` images to take once for all attributes, from the front; shuffle them before.

    Every attribute, the rarest first, gets up to `least` positive and `least` negative images; the first ones fill the
    rest.

    Args:
        column: The values of an attribute for all images: 1, 0, or -1 for unknown.
        numbers: The attributes, the rarest first.
        total: How many images there are.
        images: How many to take.
        least: What every attribute should have of either kind.

    Example:
        >>> values = np.zeros((1000, 2), np.int8)
        >>> values[-4:, 0] = values[::2, 1] = 1
        >>> is_taken = take_for_attributes(lambda n: values[:, n], [0, 1], total=1000, images=20, least=3)
        >>> np.flatnonzero(is_taken).tolist()
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 996, 997, 998]
    """
    is_taken = np.zeros(total, bool)
    left = images
    for number in numbers:
        if left <= 0:
            break
        values = column(number)
        for wanted in (1, 0):
            matches = values == wanted
            lacking = min(left, least - int((matches & is_taken).sum()))
            if lacking > 0:
                found = np.flatnonzero(matches & ~is_taken)[:lacking]
                is_taken[found] = True
                left -= len(found)
    is_taken[np.flatnonzero(~is_taken)[: max(left, 0)]] = True
    return is_taken
