"""Distances of a whole collection, with what is noise in it taken off.

One pair can only be told how large its noise is (see `noise`). A collection tells more: its noise has a shape. Other
images lead cross-validation to another penalty of the head, the penalty decides how sure of itself the head is, and
that moves the Fisher of all tasks in the same way: by a common factor, and from the early layers to the late ones or
back. So:

1. a common factor of an embedding is taken out: its log is centred;
2. the direction in which the doses of noise of all tasks are largest is taken out of every embedding, and of the doses;
3. what is left of the doses makes the floors, and these are taken off as for a single pair.

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
from task2vec.embedding.progress import Report, silent
from task2vec.errors import UsageError

# Fewer tasks than this do not show a common direction.
_FEWEST = 8


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
        report: opens a progress bar, see `task2vec.embedding.progress`.

    Example:
        >>> from task2vec.probe import FilterLayer
        >>> layers, story, prior = (
        ...     (FilterLayer("conv", "convolution", 3, 9, 0.1),),
        ...     {"probe_fingerprint": "p"},
        ...     [1e-9] * 3,
        ... )
        >>> def make(name, *fisher):
        ...     halves = np.outer([0.9, 1.1], fisher)
        ...     return Embedding(name, "net", np.array(fisher), np.zeros(3), np.full(3, 1e-9), layers, story, halves)
        >>> pairwise_corrected([make("cats", 1.0, 2.0, 3.0), make("dogs", 2.0, 4.0, 7.0)], device="cpu").values.round(3)
        array([[0.   , 0.003],
               [0.003, 0.   ]])
    """
    _check(embeddings, directions)
    live = ~np.all([find_dead(one) for one in embeddings], axis=0)
    logs = _centre(np.log(np.stack([one.vector[live] for one in embeddings])))
    doses = _centre(np.stack([find_dose(one)[live] for one in embeddings]))
    wanted = (1 if len(embeddings) >= _FEWEST else 0) if directions is None else directions
    axes = find_directions(doses, wanted)
    logs, doses = (rows - (rows @ axes.T) @ axes for rows in (logs, doses))
    values = pairwise_from_logs(logs, device=device, report=report)
    floors = (pairwise_from_logs(doses, device=device) + pairwise_from_logs(doses, others=-doses, device=device)) / 2
    values = take_off(values, floors)
    np.fill_diagonal(values, 0)
    names = [one.task for one in embeddings]
    return DistanceMatrix(values, tuple(names), tuple(names), "corrected")


def find_directions(doses: np.ndarray, count: int) -> np.ndarray:
    """(count, filters) orthonormal: the directions in which the rows are largest; fewer if the rows have no more."""
    if not count:
        return np.zeros((0, doses.shape[1]))
    sizes, turns = np.linalg.eigh(doses @ doses.T)
    chosen = [index for index in np.argsort(-sizes)[:count] if sizes[index] > 1e-12 * max(sizes[-1], 1e-300)]
    return np.stack([turns[:, index] @ doses / np.sqrt(sizes[index]) for index in chosen]) if chosen else doses[:0]


def _centre(rows: np.ndarray) -> np.ndarray:
    return rows - rows.mean(1, keepdims=True)


def _check(embeddings: Sequence[Embedding], directions: int | None) -> None:
    if len(embeddings) < 2:
        raise UsageError(f"{len(embeddings)} embedding has no distances. Give at least two.")
    bare = [one.task for one in embeddings if one.halves is None]
    if bare:
        raise UsageError(
            f"'{bare[0]}'{f' and {len(bare) - 1} more' if len(bare) > 1 else ''} has no halves, so its noise is not "
            "known and cannot be taken off. Embed it with EmbedSettings(halves=True) (--halves)."
        )
    if directions is not None and not 0 <= directions < len(embeddings):
        raise UsageError(
            f"directions={directions} of noise cannot be told from {len(embeddings)} tasks. Use 0 or a few, fewer than "
            "there are tasks."
        )
    for one in embeddings:
        check_comparable(embeddings[0], one)
