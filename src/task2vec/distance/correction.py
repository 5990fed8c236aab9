"""Distances of a whole collection, with what is noise in it taken off.

One pair can only be told how large its noise is (see `noise`). A collection tells more: its noise has a shape. Other
images lead cross-validation to another penalty of the head, the penalty decides how sure of itself the head is, and
that moves the Fisher of all tasks in the same way: by a common factor, and from the early layers to the late ones or
back. So:

1. a common factor of an embedding is taken out: its log is centred;
2. the direction in which the doses of noise of all tasks are largest is taken out of every embedding, and of the doses;
3. what is left of the doses makes the floors, and these are taken off as for a single pair. For that every dose is
   freed of a direction that was found without it: the direction fits the doses it was found from too well.

Along that direction tasks differ for good reasons, too (it goes with difficulty), so this is not the distance of the
paper without its noise, but what the distance says where it can be trusted.
"""

from collections.abc import Sequence

import numpy as np

from task2vec.distance.kind import check_comparable, find_dead
from task2vec.distance.matrix import DistanceMatrix
from task2vec.distance.noise import find_dose, take_off
from task2vec.distance.pairwise import pairwise_from_logs
from task2vec.embedding import Embedding
from task2vec.errors import UsageError
from task2vec.progress import Report, silent

# Fewer tasks than this do not show a common direction; a direction takes so many of them.
_FEWEST, _TASKS_PER_DIRECTION = 8, 4
# Parts of the collection whose doses are freed of directions found in the rest.
_FOLDS = 8


def pairwise_corrected(
    embeddings: Sequence[Embedding],
    *,
    directions: int | None = None,
    device: str | None = None,
    report: Report = silent,
) -> DistanceMatrix:
    """The symmetric distances of all embeddings, which need halves, without their noise; some may be negative.

    Args:
        embeddings: made with `EmbedSettings(halves=True)`.
        directions: how many directions of noise to take out; None takes one, if there are at least eight tasks.
        device: "cpu", "cuda"; None takes a GPU if there is one.
        report: opens a progress bar, see `task2vec.progress`.

    Example:
        >>> from task2vec.probe import FilterLayer
        >>> layers, story = (FilterLayer("conv", "convolution", 3, 9, 0.1),), {"probe_fingerprint": "p"}
        >>> def make(name, *fisher):
        ...     halves = np.outer([0.9, 1.1], fisher)
        ...     return Embedding(name, "net", np.array(fisher), np.zeros(3), np.full(3, 1e-9), layers, story, halves)
        >>> pairwise_corrected([make("cats", 1.0, 2.0, 3.0), make("dogs", 2.0, 4.0, 7.0)], device="cpu").values.round(3)
        array([[0.   , 0.003],
               [0.003, 0.   ]])
    """
    embeddings = list(embeddings)
    _check(embeddings, directions)
    dead = np.stack([find_dead(one) for one in embeddings])
    logs = _centre(np.log(np.stack([one.vector for one in embeddings])), dead)
    doses = np.where(dead, 0, _centre(np.stack([find_dose(one) for one in embeddings]), dead))
    wanted = (1 if len(embeddings) >= _FEWEST else 0) if directions is None else directions
    logs = _take_out(logs, find_directions(doses, wanted), dead)
    doses = _free_doses(doses, wanted, dead)
    values = pairwise_from_logs(logs, dead=dead, device=device, report=report)
    near, far = (
        pairwise_from_logs(doses, others=sign * doses, dead=dead, others_dead=dead, device=device) for sign in (1, -1)
    )
    floors = (near + far) / 2
    values = take_off(values, (floors + floors.T) / 2)  # the blocks of two lists are symmetric to rounding only
    np.fill_diagonal(values, 0)
    names = tuple(one.task for one in embeddings)
    return DistanceMatrix(values, names, names, "corrected")


def _free_doses(doses: np.ndarray, count: int, dead: np.ndarray) -> np.ndarray:
    """Every dose without the directions that the doses of the other tasks have, a few tasks at a time."""
    if not count:
        return doses
    freed = np.empty_like(doses)
    for fold in range(_FOLDS):
        own = np.arange(len(doses)) % _FOLDS == fold
        freed[own] = _take_out(doses[own], find_directions(doses[~own], count), dead[own])
    return freed


def _take_out(rows: np.ndarray, axes: np.ndarray, dead: np.ndarray) -> np.ndarray:
    """The rows without their parts along the axes; filters that are dead have no part."""
    along = np.where(dead, 0, rows) @ axes.T
    return rows - np.where(dead, 0, along @ axes)


def find_directions(doses: np.ndarray, count: int) -> np.ndarray:
    """(count, filters) orthonormal: the directions in which the rows are largest; fewer if the rows have no more.

    A filter that only one half of a task knows would have a huge dose, so none counts for more than a factor of e.
    """
    doses = np.clip(doses, -1, 1)
    sizes, turns = np.linalg.eigh(doses @ doses.T)
    chosen = [index for index in np.argsort(-sizes)[:count] if sizes[index] > 1e-12 * max(sizes[-1], 1e-300)]
    return np.array([turns[:, index] @ doses / np.sqrt(sizes[index]) for index in chosen]).reshape(-1, doses.shape[1])


def _centre(rows: np.ndarray, dead: np.ndarray) -> np.ndarray:
    """The rows less their means over the filters that are not dead."""
    live = ~dead
    return rows - (np.where(live, rows, 0).sum(1) / np.maximum(live.sum(1), 1))[:, None]


def _check(embeddings: Sequence[Embedding], directions: int | None) -> None:
    if len(embeddings) < 2:
        raise UsageError(f"{len(embeddings)} embeddings have no distances between them. Give at least two.")
    bare = [one.task for one in embeddings if one.halves is None]
    if bare:
        raise UsageError(
            f"'{bare[0]}'{f' and {len(bare) - 1} more have' if len(bare) > 1 else ' has'} no halves, so this noise is "
            "not known and cannot be taken off. Embed again with EmbedSettings(halves=True) (--halves)."
        )
    if directions is not None and not 0 <= directions <= len(embeddings) // _TASKS_PER_DIRECTION:
        raise UsageError(
            f"directions={directions} of noise cannot be told from {len(embeddings)} tasks: each takes at least "
            f"{_TASKS_PER_DIRECTION}. Use fewer, or 0."
        )
    for one in embeddings:
        check_comparable(embeddings[0], one)
