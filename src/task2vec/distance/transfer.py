"""The transfer distance of Achille 2019: D_ft(a -> b) = (E[l_a->b] - E[l_b]) / E[l_b], from measured errors.

l_b is the test error on task b of a model trained on b from the common initialisation, l_a->b that of a model that
starts from a solution of task a. It says by which part of its own error a task loses (or, below zero, gains) by coming
from another: no distance in the strict sense, as it is neither symmetric nor positive. The paper's experiments on
selection measure l_a->b by a linear classifier on top of expert a, and so may you: the formula is the same.
"""

import numpy as np
from numpy.typing import ArrayLike

from task2vec.errors import DataError, UsageError


def transfer(errors: ArrayLike, own: ArrayLike | None = None) -> np.ndarray:
    """(tasks, experts) transfer distances: entry [b, a] is D_ft(a -> b), the relative error increase of b from a.

    The layout is that of `errors`, so the source stands in the column. For expectations over several trainings, pass
    the mean errors. Cells that were not measured (NaN) stay NaN, as does a row whose own error was not. Negative values
    are kept: transfer helped.

    Args:
        errors: (tasks, experts) test error of task b with expert a, as a share or in percent: ratios have no unit.
        own: (tasks,) E[l_b], the error of every task trained from the common initialisation. If not given, that is the
            diagonal: expert j was trained on task j, in the same order.

    Raises:
        DataError: An error is negative or infinite, or a task's own error is 0, so that no ratio to it exists.
        UsageError: The shapes do not fit together.

    Example:
        >>> transfer([[0.2, 0.3], [0.5, 0.4]]).round(6).tolist()
        [[0.0, 0.5], [0.25, 0.0]]
        >>> transfer([[0.2, float("nan")]], own=[0.4]).tolist()
        [[-0.5, nan]]
    """
    measured = _as_errors("errors", errors, 2)
    if own is None and measured.shape[0] != measured.shape[1]:
        raise UsageError(
            f"errors has shape {measured.shape} (tasks, experts): without one expert per task, in the same order, the "
            "diagonal does not hold the tasks' own errors. Pass own=, the error of every task without transfer."
        )
    base = np.diagonal(measured) if own is None else _as_errors("own", own, 1)
    if len(base) != len(measured):
        raise UsageError(
            f"own has {len(base)} errors and errors has {len(measured)} rows: one is needed per task. Rows of errors "
            "are tasks, columns are experts; pass its transpose if yours is the other way round."
        )
    perfect = np.flatnonzero(base == 0)
    if len(perfect):
        raise DataError(
            f"the own error of task {perfect[0]} is 0 ({len(perfect)} of {len(base)} tasks), and D_ft divides by it. "
            "Measure it on more test images, or leave these tasks out."
        )
    return (measured - base[:, None]) / base[:, None]


def _as_errors(name: str, values: ArrayLike, ndim: int) -> np.ndarray:
    """The values as float64; NaN stands for what was not measured."""
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name} is no array of numbers ({error}). Write NaN for what was not measured.") from error
    if found.ndim != ndim or not found.size:
        raise UsageError(
            f"{name} has shape {found.shape}, where {'(tasks, experts)' if ndim == 2 else '(tasks,)'} is needed, so it "
            "is not clear which error belongs to which task. Reshape it."
        )
    wrong = np.argwhere((found < 0) | np.isinf(found))
    if len(wrong):
        where = tuple(int(index) for index in wrong[0])
        raise DataError(
            f"{name}{list(where)} is {found[where]:g}, which no test error can be, so ratios to it mean nothing. "
            "Pass shares or percentages of wrong answers, and NaN for what was not measured."
        )
    return found
