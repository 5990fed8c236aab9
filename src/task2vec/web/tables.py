"""The matrix of distances between some tasks, with its family tree."""

from collections.abc import Sequence

import numpy as np

from task2vec.atlas.tree import link_tasks
from task2vec.distance import symmetric_to_rows
from task2vec.library.search import sign_vector
from task2vec.web import answers
from task2vec.web.entries import Entry
from task2vec.web.problems import NotServedError
from task2vec.web.questions import find_entry, find_space
from task2vec.web.world import View, World

MOST_TASKS, USUAL_TASKS = 200, 60


def tabulate(world: World, view: View, *, space: str | None, ids: Sequence[str]) -> answers.MatrixAnswer:
    """The distances between the named tasks, or the first ones of a space."""
    chosen = find_space(view, space)
    entries = [find_entry(view, text) for text in dict.fromkeys(ids)] or list(chosen.entries[:USUAL_TASKS])
    if space is None and ids:
        chosen = view.spaces[entries[0].space]
    _check(entries, chosen.id)
    values = measure_table([sign_vector(world.embedding(entry)).astype(np.float32) for entry in entries])
    merges = link_tasks(values) if len(entries) > 1 else np.empty((0, 4))
    return answers.MatrixAnswer(
        space=chosen.id,
        ids=[entry.id for entry in entries],
        names=[entry.name for entry in entries],
        values=values.tolist(),
        order=order_leaves(merges),
        merges=merges.tolist(),
    )


def measure_table(rows: Sequence[np.ndarray]) -> np.ndarray:
    """The symmetric distances between rows as libraries keep them (see `task2vec.library.rows`)."""
    stacked = np.stack(rows)
    values = np.zeros((len(rows), len(rows)))
    for at in range(len(rows) - 1):
        values[at, at + 1 :] = symmetric_to_rows(stacked[at], stacked[at + 1 :])
    return values + values.T


def order_leaves(merges: np.ndarray) -> list[int]:
    """The leaves of a tree from one end to the other; one leaf has no merges."""
    from scipy.cluster.hierarchy import leaves_list

    return leaves_list(merges).tolist() if len(merges) else [0]


def _check(entries: Sequence[Entry], space: str) -> None:
    """Refuse too many tasks, and tasks that cannot be compared."""
    if len(entries) > MOST_TASKS:
        raise NotServedError(
            answers.Problem(
                what=f"{len(entries)} tasks are more than a matrix has room for.",
                why="It would have more cells than anybody can see.",
                mend=f"Name at most {MOST_TASKS}.",
            ),
            status=422,
        )
    for entry in entries:
        if entry.space != space:
            raise NotServedError(
                answers.Problem(
                    what=f"the task {entry.id!r} does not lie in the space {space!r}.",
                    why="Embeddings of different probes, sizes or methods are never compared.",
                    mend="Name tasks of one space.",
                ),
                status=422,
            )
