"""Strategies of model selection: each is fitted on the errors of known tasks and ranks the models for a new one.

A strategy's `fit` takes the `View` of a meta-task and returns a function from a `Query` to a `Prediction`. The model
space is in `model_space`; `STRATEGIES`, all of them by name, in `evaluate`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.sparse import bmat
from scipy.sparse.csgraph import connected_components

from task2vec.distance import ALPHA
from task2vec.errors import UndefinedScoreError
from task2vec.metatask.table import average_known
from task2vec.metatask.view import SYMMETRIC, Query, View

AVERAGE_BEST = "average_best"


@dataclass(frozen=True, eq=False)
class Prediction:
    """How a strategy ranks the M models for a task.

    Attributes:
        loss: (M) smaller for better models; NaN for models that the strategy knows nothing of, which come last.
        fallback: (M) smaller for better models: orders those that `loss` does not.
    """

    loss: np.ndarray
    fallback: np.ndarray | None = None

    def order(self, is_candidate: np.ndarray) -> np.ndarray:
        """Numbers of the candidates, the best first; of equals the one that is listed first."""
        ranked = np.argsort(self.places(), kind="stable")
        return ranked[is_candidate[ranked]]

    def places(self) -> np.ndarray:
        """(M) 0 for the best of all, then 1, ...: models that are equal share a place."""
        keys = [self.loss] if self.fallback is None else [self.loss, self.fallback]
        table = np.stack([np.where(np.isnan(key), np.inf, key) for key in keys], axis=1)
        return np.unique(table, axis=0, return_inverse=True)[1].reshape(-1)


Predict = Callable[[Query], Prediction]


@dataclass(frozen=True)
class Strategy:
    """A strategy of model selection.

    Attributes:
        name: as tables show it.
        fit: learns from known tasks; raises `UndefinedScoreError` where the meta-task lacks what it needs.
    """

    name: str
    fit: Callable[[View], Predict]


# --- errors as effects of tasks and models ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Effects:
    """error_ij = task_i + model_j + rest_ij, by least squares over the cells that are known.

    Without missing cells model_j is the mean over tasks of what model j has more than others. With missing ones a plain
    mean would favour models that were tried on easy tasks only, and errors relative to each task's mean those that were
    tried beside poor ones.

    Attributes:
        tasks: (T) mean error of all models on each task; NaN for tasks without any error.
        models: (M) how much more than the mean model each has; NaN for those without any error.
        rest: (T, M) what is left; NaN where no error is known.
    """

    tasks: np.ndarray
    models: np.ndarray
    rest: np.ndarray


def find_known_errors(view: View) -> np.ndarray:
    """(T, M) errors that can be learned from: means over seeds, NaN where unknown or the model has seen the task."""
    return np.where(view.is_candidate, view.mean, np.nan)


def fit_effects(errors: np.ndarray) -> Effects:
    """The effects of tasks and models in (T, M) errors, by least squares over what is known.

    Example:
        >>> fit_effects(np.array([[0.1, 0.3], [0.5, np.nan]])).models
        array([-0.1,  0.1])
    """
    is_wide = errors.shape[0] <= errors.shape[1]
    table = errors.T if is_wide else errors  # with fewer columns than rows
    known = np.isfinite(table)
    # The normal equations of the columns, up to a constant, after the effects of the rows are taken out.
    centred = np.where(known, table - average_known(table, 1)[:, None], 0)
    matrix = np.diag(known.sum(0).astype(np.float64)) - known.T @ (known / np.maximum(known.sum(1, keepdims=True), 1))
    columns = np.linalg.lstsq(matrix, centred.sum(0), rcond=None)[0]
    columns = np.where(known.any(0), columns, np.nan)
    rows = average_known(table - columns, 1)
    tasks, models = (columns, rows) if is_wide else (rows, columns)
    shift = np.nanmean(models) if known.any() else 0.0
    return Effects(tasks + shift, models - shift, errors - tasks[:, None] - models)


def find_comparable(known: np.ndarray) -> np.ndarray:
    """(M) whether a model can be compared with most: they share tasks, or others link them.

    Effects of models that nothing links cannot be compared, because it is not known whose tasks are harder. Of several
    such groups, the one with the most errors counts.

    Example:
        >>> find_comparable(np.array([[True, True, False], [True, True, False], [False, False, True]]))
        array([ True,  True, False])
    """
    graph = bmat([[None, known], [known.T, None]], format="csr", dtype=np.int8)
    models = connected_components(graph, directed=False)[1][len(known) :]
    return models == np.bincount(models, known.sum(0)).argmax()


def order_on_average(view: View) -> np.ndarray:
    """(M) effects of the models on the error; NaN where none is known, or where nothing links it with the others."""
    errors = find_known_errors(view)
    return np.where(find_comparable(np.isfinite(errors)), fit_effects(errors).models, np.nan)


# --- baselines that ignore the task ----------------------------------------------------------------------------------


def fit_chance(view: View) -> Predict:
    """Any candidate: all are equal, so what is measured is the expectation and not a draw."""
    prediction = Prediction(np.zeros(len(view.models)))
    return lambda query: prediction


def fit_average_best(view: View) -> Predict:
    """The model that is best on average over the known tasks: the baseline that everything else has to beat.

    Errors are compared with how hard each task is (see `Effects`), so missing cells favour no model. Cells whose model
    has seen the task do not count, nor do models that nothing links with the others.
    """
    check_errors(view)
    prediction = Prediction(order_on_average(view))
    return lambda query: prediction


def check_errors(view: View) -> None:
    """Refuse a meta-task without any error that can be learned from."""
    if not np.isfinite(find_known_errors(view)).any():
        raise UndefinedScoreError(
            f"no error is known for {len(view.models)} models on {len(view.tasks)} tasks that they have not "
            "seen, so there is nothing to learn from. Measure some: task2vec metatask measure"
        )


def fit_generic(view: View) -> Predict:
    """The generic model; the others in the order of their mean errors, where it may not be selected."""
    if view.generic is None:
        raise UndefinedScoreError(
            f"none of the {len(view.models)} models is the generic one, so it cannot be chosen. Give one the kind "
            "'generic', or leave this strategy out."
        )
    is_other = np.arange(len(view.models)) != view.generic
    prediction = Prediction(is_other.astype(float), fallback=order_on_average(view))
    return lambda query: prediction


# --- distance from the source task -----------------------------------------------------------------------------------


def fit_nearest(view: View, kind: str = SYMMETRIC, *, bonus: np.ndarray | None = None) -> Predict:
    """The model whose source task is nearest by one kind of distance, less a bonus of each model.

    Models of unknown source task come last, in the order of their mean errors on other tasks, which also orders those
    at the same distance.
    """
    check_sources(view, kind)
    on_average = order_on_average(view)
    bonus = np.zeros(len(view.models)) if bonus is None else bonus

    def predict(query: Query) -> Prediction:
        distances = query.to_sources.get(kind, np.full(len(on_average), np.nan))
        return Prediction(distances - bonus, fallback=on_average)

    return predict


def fit_asymmetric(view: View, alpha: float = ALPHA) -> Predict:
    """The paper's choice: d_sym(source, task) - alpha d_sym(source, trivial), which favours complex source tasks."""
    return fit_nearest(view, bonus=alpha * find_simplicity(view))


def find_simplicity(view: View) -> np.ndarray:
    """(M) symmetric distances of the models' source tasks from their trivial embeddings; NaN where not known."""
    check_sources(view, SYMMETRIC)
    if view.trivial_distances is None:
        raise UndefinedScoreError(
            "the distances of source tasks from the trivial task are not known, so neither is their complexity. Give "
            "embeddings, or use the symmetric distance."
        )
    return view.pick_sources(view.trivial_distances)


def check_sources(view: View, kind: str) -> None:
    """Refuse a meta-task without any distance of this kind between a task and the source task of a model."""
    if kind not in view.distances or not np.isfinite(view.to_sources(kind)).any():
        raise UndefinedScoreError(
            f"no {kind} distance between a task and the source task of a model is known (known kinds: "
            f"{', '.join(view.distances) or 'none'}). Give embeddings of tasks and source tasks, or leave this "
            "strategy out."
        )
