"""Distances become places on a plane.

t-SNE keeps neighbours together, and openTSNE runs it on distances alone and can put a new task on an old map. It
starts from classical scaling (the plane that keeps the large distances best) and goes on in small steps, without the
usual early exaggeration: that shrinks every cluster to a point and lets the last digit of a distance decide how it
unfolds again. So a map depends on its distances and hardly on rounding or chance; the seed only parts tasks that would
start in the same place. A handful of tasks has no neighbourhoods to speak of: there the scaling itself is the map.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from task2vec.errors import MissingExtraError, UsageError

if TYPE_CHECKING:
    from openTSNE import TSNEEmbedding

# Fewer tasks than this are laid out by classical scaling.
FEWEST_FOR_TSNE = 8
_LARGEST_PERPLEXITY, _PLACING_PERPLEXITY = 30.0, 5.0
# The spread of the points at the start, and iterations for a map and for a new task on an old one.
_START_SPREAD, _ITERATIONS, _PLACING = 3.0, 1000, 250
# Forces are exact up to this number of tasks, and Barnes and Hut's beyond it.
_MOST_FOR_EXACT = 300


@dataclass(frozen=True, eq=False)
class TaskMap:
    """Tasks on a plane, and what is needed to put more of them there.

    Attributes:
        names: of the tasks.
        places: one row of two coordinates per task; distances between far ones mean little, neighbourhoods much.
        distances: between the tasks.
        method: "t-SNE", or "classical scaling" where there are few tasks.
        perplexity: about how many neighbours each task was kept near to; None without t-SNE.
        seed: of the little randomness there is.
    """

    names: tuple[str, ...]
    places: np.ndarray
    distances: np.ndarray
    method: Literal["t-SNE", "classical scaling"]
    perplexity: float | None
    seed: int

    def __post_init__(self):
        """Nobody moves the points of a map."""
        for name in ("places", "distances"):
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
        """How the map was made, in words."""
        return self.method if self.perplexity is None else f"{self.method}, perplexity {self.perplexity:.3g}"

    def place(self, distances_to_known: np.ndarray) -> np.ndarray:
        """The places of new tasks (one row each), while all known tasks stay where they are.

        Args:
            distances_to_known: from each new task to every task of this map, in its order: (new, known) or (known,).

        Example:
            >>> import numpy as np
            >>> points = np.array([0.0, 1.0, 3.0])
            >>> known = lay_out(abs(points[:, None] - points[None, :]))
            >>> known.place(abs(points - 1.0)).round(6) == known.places[[1]].round(6)
            array([[ True,  True]])
        """
        rows = np.atleast_2d(np.asarray(distances_to_known, dtype=np.float64))
        if rows.ndim != 2 or rows.shape[1] != len(self) or not np.isfinite(rows).all() or (rows < 0).any():
            raise UsageError(
                f"distances of shape {np.shape(distances_to_known)} do not place a task among {len(self)}: every known "
                f"task needs one finite distance. Pass an array of shape (new, {len(self)})."
            )
        if self.method == "classical scaling":
            return _scale_new(self.distances, rows)
        return self._place_by_tsne(rows)

    def _place_by_tsne(self, rows: np.ndarray) -> np.ndarray:
        """Each new task starts at its nearest one and is pulled by about five; new tasks do not see one another."""
        assert self.perplexity is not None
        known = _prepare(self.distances, self.places, perplexity=self.perplexity, seed=self.seed)
        start = self.places[rows.argmin(axis=1)]
        perplexity = min(_PLACING_PERPLEXITY, self.perplexity)
        begin: dict[str, Any] = {"initialization": np.array(start), "perplexity": perplexity}
        options: dict[str, Any] = {"learning_rate": 0.1, "exaggeration": 1.5, "momentum": 0.8, "max_grad_norm": 0.25}
        return np.array(known.prepare_partial(rows, **begin).optimize(_PLACING, **options))


def lay_out(
    distances: np.ndarray,
    names: Sequence[str] | None = None,
    *,
    seed: int = 0,
    perplexity: float | None = None,
    method: Literal["t-SNE", "classical scaling"] | None = None,
) -> TaskMap:
    """The tasks on a plane, near tasks beside each other; the same distances give the same map.

    Args:
        distances: between tasks: symmetric, finite, zero on the diagonal; an array, or what `pairwise` returns.
        names: one per task; if left out, those of the matrix or numbers.
        seed: parts tasks that are the same.
        perplexity: about how many neighbours to keep near; by default the root of the number of tasks, at most 30.
        method: "classical scaling" does without openTSNE, however many tasks there are; None chooses by their number.

    Example:
        >>> import numpy as np
        >>> points = np.arange(20.0)
        >>> lay_out(abs(points[:, None] - points[None, :]))
        TaskMap(20 tasks, t-SNE, perplexity 4.47)
    """
    names = getattr(distances, "rows", None) if names is None else names
    distances = check_square(distances, is_symmetric=True)
    count = len(distances)
    names = tuple(str(number) for number in range(count)) if names is None else tuple(names)
    if len(names) != count:
        raise UsageError(
            f"{len(names)} names do not fit {count} rows of distances: every task needs one of each. Pass {count} "
            "names, or none."
        )
    if perplexity is not None and not 1 <= perplexity < max(count, 2):
        raise UsageError(
            f"perplexity {perplexity:g} cannot be had from {count} tasks: it is the number of neighbours to keep near. "
            f"Use 1 to {max(count - 1, 1)}, or leave it out."
        )
    flat = _scale(distances)
    if count < FEWEST_FOR_TSNE or method == "classical scaling":
        return TaskMap(names, flat, distances, "classical scaling", None, seed)
    perplexity = perplexity or min(_LARGEST_PERPLEXITY, math.sqrt(count))
    start = flat / (flat.std() or 1.0) + np.random.default_rng(seed).normal(scale=1e-3, size=flat.shape)
    tsne = _prepare(distances, _START_SPREAD * start, perplexity=perplexity, seed=seed)
    tsne.optimize(_ITERATIONS, momentum=0.8, learning_rate=max(5.0, count / 12), inplace=True)
    return TaskMap(names, np.array(tsne) - np.mean(tsne, axis=0), distances, "t-SNE", float(perplexity), seed)


def check_square(distances: np.ndarray, *, is_symmetric: bool) -> np.ndarray:
    """The distances as float64, after a look at their shape and values."""
    distances = np.asarray(distances, dtype=np.float64)
    if distances.ndim != 2 or distances.shape[0] != distances.shape[1] or not len(distances):
        raise UsageError(
            f"distances of shape {distances.shape} are not those between tasks: there is one row and one column per "
            "task. Pass a square array."
        )
    if not np.isfinite(distances).all():
        raise UsageError(
            "the distances hold NaN or infinity, so some tasks are nowhere. Fill the matrix with "
            "task2vec.distance.symmetric(a, b), or leave those tasks out."
        )
    if is_symmetric and (distances < 0).any() and np.allclose(distances, distances.T, atol=1e-9):
        raise UsageError(
            f"some distances are negative (down to {distances.min():.3g}), and no map has room for that. Corrected "
            "ones may be: below zero is no difference. Pass numpy.maximum(distances, 0)."
        )
    if is_symmetric and (not np.allclose(distances, distances.T, atol=1e-9) or np.diag(distances).any()):
        raise UsageError(
            "the distances are not symmetric and zero from a task to itself: no map can keep them. Use a "
            "symmetric distance, or the mean of both directions."
        )
    return distances


def _prepare(distances: np.ndarray, start: np.ndarray, *, perplexity: float, seed: int) -> "TSNEEmbedding":
    """An embedding of openTSNE at `start`; one thread, for places that are the same every time."""
    try:
        from openTSNE import TSNEEmbedding
        from openTSNE.affinity import PerplexityBasedNN
    except ImportError as error:
        raise MissingExtraError(
            f"a map of {len(distances)} tasks needs openTSNE, which is not installed here. Install it: "
            "pip install 'task2vec[map]'"
        ) from error
    neighbours = min(len(distances) - 1, int(3 * perplexity))
    options: dict[str, Any] = {"perplexity": perplexity, "metric": "precomputed", "k_neighbors": neighbours}
    affinities = PerplexityBasedNN(np.array(distances), n_jobs=1, **options)
    # A copy: some of openTSNE's methods move the points that they are given.
    method: dict[str, Any] = {
        "negative_gradient_method": "bh",
        "theta": 0 if len(distances) <= _MOST_FOR_EXACT else 0.5,
    }
    return TSNEEmbedding(np.array(start), affinities, n_jobs=1, random_state=seed, **method)


def _scale(distances: np.ndarray) -> np.ndarray:
    """Classical scaling (Torgerson 1952): the two main axes of the doubly centred squared distances."""
    values, vectors = _main_axes(distances)
    return vectors * np.sqrt(values)


def _scale_new(distances: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """New rows on the axes of the old scaling (Gower 1968): a copy of a known task lands on it."""
    values, vectors = _main_axes(distances)
    inverse = np.divide(1.0, np.sqrt(values), out=np.zeros_like(values), where=values > 0)
    return 0.5 * (np.square(distances).mean(axis=0) - np.square(rows)) @ vectors * inverse


def _main_axes(distances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The two largest eigenvalues (none below zero) and their vectors, with signs that do not depend on the machine."""
    squares = np.square(distances)
    middle = squares - squares.mean(axis=0) - squares.mean(axis=1, keepdims=True) + squares.mean()
    values, vectors = np.linalg.eigh(-middle / 2)
    values, vectors = values[::-1][:2], vectors[:, ::-1][:, :2]
    values = np.where(values > 1e-12 * max(float(values[0]), 0.0), values, 0.0)
    if len(distances) == 1:
        values, vectors = np.zeros(2), np.zeros((1, 2))
    largest = vectors[np.abs(vectors).argmax(axis=0), range(2)]
    return values, vectors * np.where(largest < 0, -1.0, 1.0)
