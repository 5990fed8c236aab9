"""Toy tasks: the unit square cut into two regions, over and over (Achille 2019, "Example toy task embedding").

A uniform grid of points is clustered by k-means, and half of the clusters make one class. Every task of a call has the
same points, so that nothing but the labels tells two of them apart.

A point is a picture of one pixel, which goes through the ordinary `embed`. Red and green hold the column and the row of
the point as they are, not stretched to 255: `read_point` divides them by side - 1, and the quotient of two small whole
numbers is the same float wherever it is computed. Blue is 255, read as 1: the input that a filter's bias multiplies.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from task2vec.errors import UsageError
from task2vec.tasks.samples import PilImages
from task2vec.tasks.task import Task

FEWEST_CLUSTERS, MOST_CLUSTERS = 3, 16
# Sixteen clusters of four points; and the number of values that a byte has.
SMALLEST_SIDE, LARGEST_SIDE = 8, 256
# So many clusterings in a row that are all there already: the grid is too coarse for more.
_PATIENCE = 300


@dataclass(frozen=True, eq=False)
class Partition:
    """One way to cut the square: in how many clusters, and which points of the grid (row by row) are positive."""

    clusters: int
    is_positive: np.ndarray


def toy_tasks(*, count: int = 64, side: int = 32, seed: int = 0) -> tuple[Task, ...]:
    """Different binary tasks on one grid of points, each point a picture of one pixel.

    The grid is cut by k-means into k clusters, k uniform from 3 to 16, and k // 2 of them, drawn at random, are
    positive. (For odd k one could round up as well: it would swap the two classes, which play the same role.) No two
    tasks are equal or each other's complement.

    Args:
        count: how many tasks.
        side: points along each side of the square; a task has side x side of them.
        seed: another seed draws other tasks.

    Example:
        >>> tasks = toy_tasks(count=3, side=12)
        >>> tasks[0]
        Task(toy 0, 144 images, 2 classes)
        >>> read_point(tasks[0].images.load(143), side=12)
        (1.0, 1.0, 1.0)
    """
    return label_grid(draw_partitions(count=count, side=side, seed=seed), side=side)


def draw_partitions(*, count: int, side: int, seed: int) -> tuple[Partition, ...]:
    """The cuts behind `toy_tasks`, which know their number of clusters."""
    _check(count, side, seed)
    rng = np.random.default_rng(seed)
    partitions, taken = [], {bytes(side * side)}  # all points in one class is no task
    for _ in range(count):
        clusters = int(rng.integers(FEWEST_CLUSTERS, MOST_CLUSTERS + 1))
        for _ in range(_PATIENCE):
            is_positive = _cut(clusters, side, rng)
            # A task and its complement are the same task, so both have the key that calls the first point negative.
            key = (is_positive ^ is_positive[0]).tobytes()
            if key not in taken:
                break
        else:
            raise UsageError(
                f"count={count} different toy tasks do not fit on a grid of side={side}: {_PATIENCE} ways in a row to "
                f"cut it into {clusters} clusters were there already. Ask for fewer tasks, or for a larger side."
            )
        taken.add(key)
        is_positive.setflags(write=False)
        partitions.append(Partition(clusters, is_positive))
    return tuple(partitions)


def label_grid(partitions: Sequence[Partition], *, side: int) -> tuple[Task, ...]:
    """One task per partition, all on the same pictures."""
    images = PilImages(tuple(Image.new("RGB", (1, 1), (int(i), int(j), 255)) for i, j in _grid(side)))
    digests = tuple(hashlib.sha256(b"RGB (1, 1) " + picture.tobytes()).hexdigest() for picture in images.pictures)
    width = len(str(len(partitions) - 1))
    return tuple(
        Task(
            name=f"toy {number:0{width}}",
            images=images,
            targets=partition.is_positive.astype(np.int64),
            classes=("negative", "positive"),
            digests=digests,
            source="task2vec.toy_tasks",
        )
        for number, partition in enumerate(partitions)
    )


def read_point(image: Image.Image, *, side: int) -> tuple[float, float, float]:
    """x, y and 1 of the point that a picture of `toy_tasks` is: column and row divided by side - 1, exactly."""
    column, row, full = image.tobytes()[:3]
    return column / (side - 1), row / (side - 1), full / 255


def _check(count: int, side: int, seed: int) -> None:
    if count < 1:
        raise UsageError(f"count={count} toy tasks leave nothing to embed. Ask for at least 1; the paper has 64.")
    if not SMALLEST_SIDE <= side <= LARGEST_SIDE:
        raise UsageError(
            f"side={side} is no side for a grid of toy tasks: it must hold {MOST_CLUSTERS} clusters, and a byte must "
            f"hold its columns. Choose one from {SMALLEST_SIDE} to {LARGEST_SIDE}."
        )
    if seed < 0:
        raise UsageError(f"seed={seed} is negative, and the generators take no such seed. Choose 0 or more.")


def _cut(clusters: int, side: int, rng: np.random.Generator) -> np.ndarray:
    """Which points of the grid are positive after k-means from a random start.

    Clustered are columns and rows, not x and y: sums of whole numbers are exact, so the centres do not depend on the
    order in which scikit-learn's threads add up their parts.
    """
    from sklearn.cluster import KMeans

    points = _grid(side).astype(np.float64)
    start = int(rng.integers(1 << 31))
    owner = KMeans(clusters, n_init=1, random_state=start).fit_predict(points)  # type: ignore[arg-type]
    return np.isin(owner, rng.permutation(clusters)[: clusters // 2])


def _grid(side: int) -> np.ndarray:
    """(side * side, 2) column and row of every point, row by row."""
    rows, columns = np.indices((side, side))
    return np.stack([columns.ravel(), rows.ravel()], axis=1)
