"""Errors taken apart: how hard a task is, how good an expert is, and what is left.

error_ij = task_i + expert_j + rest_ij, by least squares over the cells that are known. Without missing cells expert_j
is the mean over tasks of what expert j has more than others. With missing ones a plain mean would favour experts that
were tried on easy tasks only, and errors relative to each task's mean those that were tried beside poor ones.
"""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import bmat
from scipy.sparse.csgraph import connected_components

from task2vec.errors import UndefinedScoreError
from task2vec.select.evidence import Evidence


@dataclass(frozen=True, eq=False)
class Effects:
    """What is known of tasks and experts by themselves.

    Attributes:
        tasks: (T) mean error of all experts on each task, as far as it can be told; NaN for tasks without any error.
        experts: (E) how much more than the mean expert each has; NaN for those without any error.
        rest: (T, E) what neither tells; NaN where no error is known.
        counts: (E) on how many tasks each expert is known.
    """

    tasks: np.ndarray
    experts: np.ndarray
    rest: np.ndarray
    counts: np.ndarray

    @property
    def level(self) -> float:
        """The mean error over tasks and experts."""
        return float(np.nanmean(self.tasks))

    def without_own(self) -> np.ndarray:
        """(T, E) the experts' effects as they would be without the errors on one task: rows are the tasks left out.

        Effects of tasks are held fixed, so no fit is made again. NaN where the expert is known on no other task.
        """
        own = np.isfinite(self.rest)
        counts = self.counts - own
        others = np.divide(
            self.counts * np.nan_to_num(self.experts) - np.where(own, self.rest + self.experts, 0),
            counts,
            out=np.full(self.rest.shape, np.nan),
            where=counts > 0,
        )
        return others


def find_errors(evidence: Evidence) -> np.ndarray:
    """(T, E) errors that can be learned from: mean over seeds, NaN where the expert has seen the task.

    Raises:
        UndefinedScoreError: There is none.
    """
    errors = np.where(evidence.is_candidate, evidence.mean, np.nan)
    if not np.isfinite(errors).any():
        raise UndefinedScoreError(
            f"of {len(evidence.tasks)} tasks and {len(evidence.experts)} experts no error is known where the expert "
            "has not seen the task, so nothing can be learned from others. Measure some: task2vec error-matrix"
        )
    return errors


def take_apart(errors: np.ndarray) -> Effects:
    """The effects of tasks and experts in (T, E) errors, by least squares over what is known.

    Example:
        >>> take_apart(np.array([[0.1, 0.3], [0.5, np.nan]])).experts
        array([-0.1,  0.1])
    """
    known = np.isfinite(errors)
    if known.shape[0] <= known.shape[1]:
        tasks = _solve(errors.T, known.T)
        experts = _average(errors - tasks[:, None], known, axis=0)
    else:
        experts = _solve(errors, known)
        tasks = _average(errors - experts, known, axis=1)
    shift = np.nanmean(experts) if known.any() else 0.0
    tasks, experts = tasks + shift, experts - shift
    tasks, experts = np.where(known.any(1), tasks, np.nan), np.where(known.any(0), experts, np.nan)
    return Effects(tasks, experts, errors - tasks[:, None] - experts, known.sum(0))


def find_comparable(known: np.ndarray, among: np.ndarray | None = None) -> np.ndarray:
    """(E) whether an expert can be compared with most: they share tasks, or there are others who link them.

    Effects of experts that nothing links tell nothing of one another, for which of their tasks are harder is not known.
    Of several such groups, the one with the most errors counts.

    Args:
        known: (T, E) whether there is an error.
        among: (E) experts whose errors are counted; all by default.

    Example:
        >>> find_comparable(np.array([[True, True, False], [True, True, False], [False, False, True]]))
        array([ True,  True, False])
    """
    graph = bmat([[None, known], [known.T, None]], format="csr", dtype=np.int8)
    experts = connected_components(graph, directed=False)[1][len(known) :]
    counts = known.sum(0) * (1 if among is None else among)
    return experts == np.bincount(experts, counts).argmax()


def _solve(errors: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Effects of the columns, up to a constant: the normal equations after the rows' effects are taken out."""
    centred = np.where(known, errors - _average(errors, known, axis=1)[:, None], 0)
    counts = known.sum(1, keepdims=True)
    shares = np.divide(known, counts, out=np.zeros(known.shape), where=counts > 0)
    matrix = np.diag(known.sum(0).astype(np.float64)) - known.T @ shares
    return np.linalg.lstsq(matrix, centred.sum(0), rcond=None)[0]


def _average(values: np.ndarray, known: np.ndarray, *, axis: int) -> np.ndarray:
    sums, counts = np.where(known, values, 0).sum(axis), known.sum(axis)
    return np.divide(sums, counts, out=np.full(counts.shape, np.nan), where=counts > 0)
