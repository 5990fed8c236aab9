"""Distances become positions on a plane, and a tree.

The map is t-SNE on distances (openTSNE, which can also add a new task to an existing map). It starts from classical
scaling, the plane that preserves large distances best, and takes small steps without early exaggeration: exaggeration
shrinks every cluster to a point, and the last digit of a distance decides how it unfolds again. So a map depends on its
distances and hardly on rounding; the seed only separates tasks that would start at the same position. A handful of
tasks has no neighbourhoods, so there classical scaling is the map.
"""

import math
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from task2vec.errors import MissingExtraError, UsageError

if TYPE_CHECKING:
    from openTSNE import TSNEEmbedding

# Fewer tasks than this are laid out by classical scaling.
FEWEST_FOR_TSNE = 8
_MAX_PERPLEXITY, _PLACING_PERPLEXITY = 30.0, 5.0
# The spread of the points at the start; iterations for a map, and for a new task on an existing map.
_START_SPREAD, _ITERATIONS, _PLACING = 3.0, 1000, 250
# Forces are exact up to this number of tasks, Barnes-Hut beyond.
_MAX_EXACT = 300
# The optimal order of leaves takes cubic time.
_MOST_FOR_BEST_ORDER = 400


@dataclass(frozen=True, eq=False)
class TaskMap:
    """Tasks on a plane, and what is needed to add more of them.

    Attributes:
        names: of the tasks.
        positions: (tasks, 2); distances across the map mean little, neighbourhoods much.
        distances: between the tasks.
        method: "t-SNE", or "classical scaling" for few tasks.
        perplexity: about how many neighbours each task was kept near to; None without t-SNE.
        seed: of the little randomness there is.
    """

    names: tuple[str, ...]
    positions: np.ndarray
    distances: np.ndarray
    method: Literal["t-SNE", "classical scaling"]
    perplexity: float | None
    seed: int

    def __post_init__(self):
        """Make the arrays read-only."""
        for name in ("positions", "distances"):
            values = np.array(getattr(self, name), dtype=np.float64)
            values.setflags(write=False)
            object.__setattr__(self, name, values)

    def __len__(self) -> int:
        """Number of tasks."""
        return len(self.names)

    def __repr__(self) -> str:
        """The map in one line."""
        return f"TaskMap({len(self)} tasks, {self.describe()})"

    def describe(self) -> str:
        """The method and its perplexity."""
        return self.method if self.perplexity is None else f"{self.method}, perplexity {self.perplexity:.3g}"

    def place(self, distances_to_known: np.ndarray) -> np.ndarray:
        """The positions (new, 2) of new tasks; all known tasks stay where they are.

        Args:
            distances_to_known: from each new task to every task of this map, in its order: (new, known) or (known,).

        Example:
            >>> import numpy as np
            >>> points = np.array([0.0, 1.0, 3.0])
            >>> known = lay_out(abs(points[:, None] - points[None, :]))
            >>> known.place(abs(points - 1.0)).round(6) == known.positions[[1]].round(6)
            array([[ True,  True]])
        """
        rows = np.atleast_2d(np.asarray(distances_to_known, dtype=np.float64))
        if rows.ndim != 2 or rows.shape[1] != len(self) or not np.isfinite(rows).all() or (rows < 0).any():
            raise UsageError(
                f"distances of shape {np.shape(distances_to_known)} cannot place a task: it needs a finite distance of "
                f"0 or more to every task of the map. Pass an array of shape (new, {len(self)})."
            )
        if self.perplexity is None:
            return _scale_new(self.distances, rows)
        # Each new task starts at its nearest one and is attracted by about five; new tasks do not see one another.
        known = _prepare(self.distances, self.positions, perplexity=self.perplexity, seed=self.seed)
        nearest: Any = np.array(self.positions[rows.argmin(axis=1)])
        perplexity: Any = min(_PLACING_PERPLEXITY, self.perplexity)
        placed = known.prepare_partial(rows, initialization=nearest, perplexity=perplexity)
        options: dict[str, Any] = {"learning_rate": 0.1, "exaggeration": 1.5, "momentum": 0.8, "max_grad_norm": 0.25}
        return np.array(placed.optimize(_PLACING, **options))


def lay_out(
    distances: np.ndarray,
    names: Sequence[str] | None = None,
    *,
    seed: int = 0,
    method: Literal["t-SNE", "classical scaling"] | None = None,
) -> TaskMap:
    """A map of the tasks, similar tasks side by side; the same distances give the same map.

    The perplexity, about how many neighbours are kept near, is the root of the number of tasks, at most 30.

    Args:
        distances: between tasks: symmetric, finite, zero on the diagonal; an array, or what `pairwise` returns.
        names: one per task; by default those of the matrix, or numbers.
        seed: separates tasks that are identical.
        method: "classical scaling" needs no openTSNE, however many tasks there are; None chooses by their number.

    Example:
        >>> import numpy as np
        >>> points = np.arange(20.0)
        >>> lay_out(abs(points[:, None] - points[None, :]))
        TaskMap(20 tasks, t-SNE, perplexity 4.47)
    """
    names = getattr(distances, "rows", None) if names is None else names
    distances = check_square(distances)
    count = len(distances)
    names = tuple(str(number) for number in range(count)) if names is None else tuple(names)
    check_counts(count, names=names)
    values, vectors = _main_axes(distances)
    flat = vectors * np.sqrt(values)  # classical scaling (Torgerson 1952)
    if count < FEWEST_FOR_TSNE or method == "classical scaling":
        return TaskMap(names, flat, distances, "classical scaling", None, seed)
    perplexity = min(_MAX_PERPLEXITY, math.sqrt(count))
    start = flat / (flat.std() or 1.0) + np.random.default_rng(seed).normal(scale=1e-3, size=flat.shape)
    tsne = _prepare(distances, _START_SPREAD * start, perplexity=perplexity, seed=seed)
    tsne.optimize(_ITERATIONS, momentum=0.8, learning_rate=max(5.0, count / 12), inplace=True)
    return TaskMap(names, np.array(tsne) - np.mean(tsne, axis=0), distances, "t-SNE", perplexity, seed)


def check_counts(tasks: int, **lists: Sized) -> None:
    """Raise if a list has not one item for each of so many tasks."""
    for name, items in lists.items():
        if len(items) != tasks:
            raise UsageError(f"{len(items)} {name} do not match {tasks} tasks: each needs one. Pass as many of both.")


def check_square(distances: np.ndarray, *, is_symmetric: bool = True) -> np.ndarray:
    """The distances as float64, after a check of their shape and values."""
    distances = np.asarray(distances, dtype=np.float64)
    if distances.ndim != 2 or distances.shape[0] != distances.shape[1] or not len(distances):
        problem = f"has shape {distances.shape} and not one row and one column per task. Pass a square array."
    elif not np.isfinite(distances).all():
        problem = "contains NaN or infinity. Compute it with task2vec.distance.pairwise, or leave those tasks out."
    elif is_symmetric and (np.diag(distances).any() or not np.allclose(distances, distances.T, atol=1e-9)):
        problem = "is not symmetric with a zero diagonal. Use a symmetric distance, or the mean of both directions."
    elif is_symmetric and (distances < 0).any():
        problem = "has negative values, as distances corrected for noise may. Pass numpy.maximum(distances, 0)."
    else:
        return distances
    raise UsageError(f"no map or tree can show these distances: the matrix {problem}")


def link_tasks(distances: np.ndarray) -> np.ndarray:
    """The tree of the tasks by average linkage, in SciPy's format, similar leaves side by side.

    Example:
        >>> import numpy as np
        >>> points = np.array([0.0, 9.0, 1.0])
        >>> link_tasks(abs(points[:, None] - points[None, :]))[:, 2].tolist()
        [1.0, 8.5]
    """
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    distances = check_square(distances)
    is_small = len(distances) <= _MOST_FOR_BEST_ORDER
    return linkage(squareform(distances, checks=False), method="average", optimal_ordering=is_small)


def order_leaves(tree: np.ndarray) -> list[int]:
    """The leaves of a tree from one end to the other; a single leaf has no merges."""
    from scipy.cluster.hierarchy import leaves_list

    return leaves_list(tree).tolist() if len(tree) else [0]


def _prepare(distances: np.ndarray, start: np.ndarray, *, perplexity: float, seed: int) -> "TSNEEmbedding":
    """An openTSNE embedding at `start`; one thread, so that positions are reproducible."""
    try:
        from openTSNE import TSNEEmbedding
        from openTSNE.affinity import PerplexityBasedNN
    except ImportError as error:
        problem = f"a map of {len(distances)} tasks needs openTSNE, which is not installed"
        raise MissingExtraError(f"{problem}. Install it: pip install 'task2vec[map]'") from error
    neighbours = min(len(distances) - 1, int(3 * perplexity))
    options: dict[str, Any] = {"perplexity": perplexity, "metric": "precomputed", "k_neighbors": neighbours}
    affinities = PerplexityBasedNN(np.array(distances), n_jobs=1, **options)
    theta: Any = 0 if len(distances) <= _MAX_EXACT else 0.5
    # A copy: some methods of openTSNE move the points that they are given.
    return TSNEEmbedding(
        np.array(start), affinities, n_jobs=1, random_state=seed, negative_gradient_method="bh", theta=theta
    )


def _scale_new(distances: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """New rows on the axes of the existing scaling (Gower 1968): a copy of a known task lands on it."""
    values, vectors = _main_axes(distances)
    inverse = np.divide(1.0, np.sqrt(values), out=np.zeros_like(values), where=values > 0)
    return 0.5 * (np.square(distances).mean(axis=0) - np.square(rows)) @ vectors * inverse


def _main_axes(distances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The two largest eigenvalues (at least zero) of the doubly centred squares, and their vectors with fixed signs."""
    squares = np.square(distances)
    middle = squares - squares.mean(axis=0) - squares.mean(axis=1, keepdims=True) + squares.mean()
    values, vectors = np.linalg.eigh(-middle / 2)
    values = values[::-1][:2]
    vectors = vectors[:, ::-1][:, :2]
    values = np.where(values > 1e-12 * max(float(values[0]), 0.0), values, 0.0)
    if len(distances) == 1:
        values = np.zeros(2)
        vectors = np.zeros((1, 2))
    largest = vectors[np.abs(vectors).argmax(axis=0), range(2)]
    return values, vectors * np.where(largest < 0, -1.0, 1.0)
