"""Strategies of model selection: each is fitted on the errors of known tasks and predicts for a new one.

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
from task2vec.metatask.view import DOMAIN, SYMMETRIC, TAXONOMIC, Query, View
from task2vec.select.candidates import find_model

# Weights of the source task's complexity in the asymmetric distance that are tried; the paper's is 0.15.
ALPHAS = tuple(round(0.05 * step, 2) for step in range(21))
# Kernel widths that are tried, in parts of the median distance.
WIDTHS = tuple(2.0**power for power in range(-6, 3))
AVERAGE_BEST, DATASET = "average_best", "dataset"
_TO_SOURCES = "a task and the source task of a model"
# The names of `task2vec.select.SCORES`, which itself imports torch.
SCORE_NAMES = ("knn", "logme", "leep", "h_score_shrunk")


@dataclass(frozen=True, eq=False)
class Prediction:
    """How a strategy ranks the M models for a task.

    Attributes:
        loss: (M) smaller for better models; NaN for those that it knows nothing of, which come last.
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
        measures: how many models it measures on the task itself, at most; it is judged on other images than these.
        uses_scores: whether it uses transferability scores, which `evaluate` hides from others: it is judged on the
            split only whose test images the scores have not seen.
    """

    name: str
    fit: Callable[[View], Predict]
    measures: float = 0
    uses_scores: bool = False


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

    def leave_one_out(self) -> np.ndarray:
        """(T, M) the models' effects as they would be without the errors on one task; NaN where nothing is left.

        Effects of tasks are held fixed, so nothing is fitted again.
        """
        own = np.isfinite(self.rest)
        values = np.where(own, self.rest + self.models, 0)
        counts = own.sum(0) - own
        return np.divide(values.sum(0) - values, counts, out=np.full(own.shape, np.nan), where=counts > 0)


def find_errors(view: View) -> np.ndarray:
    """(T, M) errors that can be learned from: mean over seeds, NaN where the model has seen the task.

    Raises:
        UndefinedScoreError: There is none.
    """
    errors = np.where(view.is_candidate, view.mean, np.nan)
    if not np.isfinite(errors).any():
        raise UndefinedScoreError(
            f"no error is known for {len(view.models)} models on {len(view.tasks)} tasks that they have not "
            "seen, so there is nothing to learn from. Measure some: task2vec metatask measure"
        )
    return errors


def fit_effects(errors: np.ndarray) -> Effects:
    """The effects of tasks and models in (T, M) errors, by least squares over what is known.

    Example:
        >>> fit_effects(np.array([[0.1, 0.3], [0.5, np.nan]])).models
        array([-0.1,  0.1])
    """
    is_wide = errors.shape[0] <= errors.shape[1]
    table = errors.T if is_wide else errors  # of which there are fewer columns than rows
    known = np.isfinite(table)
    # The normal equations of the columns, up to a constant, after the effects of the rows are taken out.
    centred = np.where(known, table - average_known(table, 1)[:, None], 0)
    matrix = np.diag(known.sum(0).astype(np.float64)) - known.T @ (known / np.maximum(known.sum(1, keepdims=True), 1))
    columns = np.linalg.lstsq(matrix, centred.sum(0), rcond=None)[0]
    columns = np.where(known.any(0), columns, np.nan)
    rows = average_known(table - columns, 1)
    tasks, models = (columns, rows) if is_wide else (rows, columns)
    shift = np.nanmean(models) if known.any() else 0.0
    tasks, models = tasks + shift, models - shift
    return Effects(tasks, models, errors - tasks[:, None] - models)


def find_comparable(known: np.ndarray) -> np.ndarray:
    """(M) whether a model can be compared with most: they share tasks, or others link them.

    Effects of models that nothing links cannot be compared, for which of their tasks are harder is not known. Of
    several such groups, the one with the most errors counts.

    Example:
        >>> find_comparable(np.array([[True, True, False], [True, True, False], [False, False, True]]))
        array([ True,  True, False])
    """
    graph = bmat([[None, known], [known.T, None]], format="csr", dtype=np.int8)
    models = connected_components(graph, directed=False)[1][len(known) :]
    return models == np.bincount(models, known.sum(0)).argmax()


# --- baselines that ignore the task ----------------------------------------------------------------------------------


def fit_chance(view: View) -> Predict:
    """Any candidate: all are equal, so that what is measured is the expectation and not a draw."""
    prediction = Prediction(np.zeros(len(view.models)))
    return lambda query: prediction


def fit_generic(view: View) -> Predict:
    """The generic model; the others in the order of their mean errors, where it may not be selected."""
    numbers = np.arange(len(view.models))
    loss = np.where(numbers == view.generic, 0, 1 if view.generic is not None else np.nan)
    return _rank_always(view, loss, "none is the generic one: give one the kind 'generic'")


def fit_average_best(view: View) -> Predict:
    """The model that is best on average over the known tasks: the baseline that everything else has to beat.

    Errors are compared with how hard each task is (see `Effects`), so that missing cells favour no model; cells whose
    model has seen the task do not count, nor do models that nothing links with the others.
    """
    prediction = Prediction(_average_linked(find_errors(view)))
    return lambda query: prediction


def fit_size(view: View) -> Predict:
    """The model with the most parameters; equals in the order of their mean errors."""
    params = np.array([model.params or np.nan for model in view.models], dtype=np.float64)
    return _rank_always(view, -params, "their numbers of parameters are not known: give `params`")


def fit_imagenet(view: View) -> Predict:
    """The model with the best ImageNet accuracy that timm states; equals in the order of their mean errors."""
    known = [find_model(model.location) if model.location else None for model in view.models]
    top1 = np.array([model and model.imagenet for model in known], dtype=np.float64)  # None is NaN
    return _rank_always(view, -top1, "no ImageNet accuracy of any is known: give their `location`")


def _rank_always(view: View, loss: np.ndarray, lacking: str) -> Predict:
    """Models by what is known of them, whatever the task is; refuses models of which nothing is known."""
    if not np.isfinite(loss).any():
        raise UndefinedScoreError(
            f"this strategy cannot rank the {len(view.models)} models, because {lacking}, or leave it out."
        )
    prediction = Prediction(loss, fallback=order_on_average(view))
    return lambda query: prediction


def order_on_average(view: View) -> np.ndarray:
    """(M) effects of the models, to order those that a strategy does not; NaN where no error is known."""
    return _average_linked(np.where(view.is_candidate, view.mean, np.nan))


def _average_linked(errors: np.ndarray) -> np.ndarray:
    return np.where(find_comparable(np.isfinite(errors)), fit_effects(errors).models, np.nan)


# --- distance from the source task -----------------------------------------------------------------------------------


def fit_nearest(view: View, kind: str = SYMMETRIC, *, bonus: np.ndarray | None = None) -> Predict:
    """The model whose source task is nearest by one kind of distance, less a bonus of each model.

    Models of unknown source task come last, in the order of their mean errors on other tasks, which also orders those
    at the same distance.
    """
    check_kind(view, kind, _TO_SOURCES, view.to_sources)
    on_average = order_on_average(view)
    bonus = np.zeros(len(view.models)) if bonus is None else bonus

    def predict(query: Query) -> Prediction:
        distances = query.to_sources.get(kind, np.full(len(on_average), np.nan))
        return Prediction(distances - bonus, fallback=on_average)

    return predict


def fit_asymmetric(view: View, alpha: float | None = ALPHA) -> Predict:
    """The paper's choice: d_sym(source, task) - alpha d_sym(source, trivial), so that complex source tasks come nearer.

    Without an `alpha` it is chosen on the known tasks, among `ALPHAS`: the one whose choices have the smallest mean
    error there, and of equals the nearest to the paper's 0.15.
    """
    check_kind(view, SYMMETRIC, _TO_SOURCES, view.to_sources)
    if view.trivial_distances is None:
        raise UndefinedScoreError(
            "the distances of source tasks from the trivial task are not known, so neither is their complexity. Give "
            "embeddings, or use the symmetric distance."
        )
    simplicity = view.pick_sources(view.trivial_distances)
    alpha = _choose_alpha(view, simplicity) if alpha is None else alpha
    return fit_nearest(view, bonus=alpha * simplicity)


def _choose_alpha(view: View, simplicity: np.ndarray) -> float:
    """The best for the known tasks: distances know nothing of errors, so none has to be left out for that."""
    errors, distances = find_errors(view), view.to_sources(SYMMETRIC)
    effects = fit_effects(errors)
    known = np.isfinite(errors) & np.isfinite(distances - simplicity)
    rows = np.flatnonzero(known.any(1))
    if not len(rows):  # no known task has a candidate of known source task
        return ALPHA
    losses = []
    for alpha in ALPHAS:
        loss = np.where(known, distances - alpha * simplicity, np.inf)
        losses.append(float(np.mean((errors - effects.tasks[:, None])[rows, loss[rows].argmin(1)])))
    near = np.flatnonzero(np.array(losses) <= min(losses) + 1e-12)
    return min((ALPHAS[place] for place in near), key=lambda alpha: abs(alpha - ALPHA))


def fit_adjusted(view: View, kind: str = SYMMETRIC) -> Predict:
    """The average error corrected by the distance from the source task: error_ij = task_i + model_j + weight * d_ij.

    The asymmetric distance takes an amount from the distance that belongs to the model, alpha times the complexity of
    its source task. So does this, with an amount that was measured (the model's own effect) in place of one that is
    guessed. The weight is by least squares on the known tasks; distances are freed of both effects first (Frisch and
    Waugh), so a model of unknown source task keeps its average. A weight below zero is noise, and set to zero.
    """
    check_kind(view, kind, _TO_SOURCES, view.to_sources)
    errors = find_errors(view)
    effects, weight, centres = fit_effects(errors), 0.0, np.full(len(view.models), np.nan)
    distances = np.where(np.isfinite(errors), view.to_sources(kind), np.nan)
    if np.isfinite(distances).any():
        shape = fit_effects(distances)
        size, centres = float(np.nansum(np.square(shape.rest))), shape.models
        weight = max(0.0, float(np.nansum(shape.rest * effects.rest)) / size) if size > 1e-12 else 0.0

    def predict(query: Query) -> Prediction:
        gaps = query.to_sources.get(kind, np.full(len(centres), np.nan)) - centres
        counted = np.isfinite(gaps) & query.is_candidate
        gaps = np.nan_to_num(gaps - gaps[counted].mean()) if counted.any() else np.zeros(len(gaps))
        return Prediction(effects.models + weight * gaps)

    return predict


def check_kind(view: View, kind: str, what: str, read: Callable[[str], np.ndarray]) -> None:
    """Refuses a meta-task without any distance of this kind that `read` finds, which is between `what`."""
    if kind not in view.distances or not np.isfinite(read(kind)).any():
        needed = {DOMAIN: "domain embeddings", TAXONOMIC: "a taxonomy of their classes"}.get(kind, "embeddings")
        others = "" if kind in view.distances else f" (known kinds: {', '.join(view.distances) or 'none'})"
        raise UndefinedScoreError(
            f"no {kind} distance between {what} is known{others}. "
            f"Give {needed} of tasks and source tasks, or leave this strategy out."
        )


def check_score(view: View, score: str) -> None:
    """Refuses a meta-task without a transferability score."""
    if not np.isfinite(view.scores.get(score, np.nan)).any():
        raise UndefinedScoreError(
            f"the score '{score}' of these tasks and models is not known (known: "
            f"{', '.join(view.scores) or 'none'}). Compute it with score_features, or leave this strategy out."
        )


# --- errors of similar tasks -----------------------------------------------------------------------------------------


def fit_kernel(view: View, kind: str = SYMMETRIC, *, width: float | None = None) -> Predict:
    """Errors of similar tasks over the average: model_j + sum_k w_k rest_kj / sum_k w_k, w = exp(-distance / width).

    The simplest way to learn from similar tasks. Nothing holds it back where none is known: the nearest count, however
    far they are. Of the kind "dataset", tasks of the same dataset count alike and others not at all. Without a `width`
    it is chosen on the known tasks, each predicted from the others, by the mean square of what is left.
    """
    effects = fit_effects(find_errors(view))
    if kind != DATASET:
        check_kind(view, kind, "tasks", view.between)
        width = _choose_width(effects, view.between(kind)) if width is None else width

    def predict(query: Query) -> Prediction:
        distances = query.distances.get(kind, np.full(len(view.tasks), np.nan))
        if kind == DATASET:
            distances = np.where(np.array(view.datasets) == query.dataset, 0.0, np.nan)
        near = _average_near(distances[None], width or 1.0, effects.rest, np.zeros((1, len(effects.models))))
        return Prediction(effects.models + near[0])

    return predict


def _average_near(distances: np.ndarray, width: float, values: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
    """(rows, M) means of (T, M) values weighted by exp(-distance / width), `otherwise` where nothing has a weight."""
    distances = np.where(np.isnan(distances), np.inf, distances)
    # Up to a factor for each row: the nearest has 1.
    nearest = distances.min(1, keepdims=True, initial=np.inf)
    weights = np.exp(-(distances - np.where(np.isfinite(nearest), nearest, 0)) / width)
    known = np.isfinite(values)
    sums, totals = weights @ np.where(known, values, 0), weights @ known
    return np.divide(sums, totals, out=otherwise.copy(), where=totals > 1e-300)


def _choose_width(effects: Effects, distances: np.ndarray) -> float:
    """The width that predicts each known task best from the others; of equals the widest."""
    apart = distances + np.where(np.eye(len(distances), dtype=bool), np.inf, 0)
    finite = apart[np.isfinite(apart)]
    median = float(np.median(finite)) if finite.size and np.median(finite) > 0 else 1.0
    models, own = effects.leave_one_out(), effects.rest + effects.models
    losses = {}
    for width in sorted((part * median for part in WIDTHS), reverse=True):
        left = own - _average_near(apart, width, own, models)
        left = left[np.isfinite(left)]
        losses[width] = float(np.square(left).mean()) if left.size else 0.0
    return min(losses, key=lambda width: losses[width])


def fit_score(view: View, score: str) -> Predict:
    """The model with the highest transferability score, which every candidate gets on the task's own images."""
    check_score(view, score)
    on_average = order_on_average(view)

    def predict(query: Query) -> Prediction:
        scores = query.scores.get(score, np.full(len(on_average), np.nan))
        return Prediction(-scores, fallback=on_average)

    return predict


# --- errors measured on the task itself ------------------------------------------------------------------------------


def fit_measured(view: View) -> Predict:
    """The model with the smallest error, once all candidates were measured on the task itself."""
    names = [model.name for model in view.models]

    def predict(query: Query) -> Prediction:
        measured = np.full(len(names), np.nan) if query.measured is None else query.measured
        if len(lacking := np.flatnonzero(query.is_candidate & np.isnan(measured))):
            raise UndefinedScoreError(
                f"the errors of '{names[lacking[0]]}' on two halves of the test images of '{query.name}' are not "
                "known, so it cannot be measured on one and evaluated on the other. Measure them (`halves`), or leave "
                "this strategy out."
            )
        return Prediction(np.where(query.is_candidate, measured, np.nan))

    return predict
