"""Strategies of model selection: each is fitted on the errors of known tasks and predicts for a new one.

A strategy's `fit` takes a selected `MetaTask` and returns a function from a `Query` to a `Prediction`. The combined
strategy, which predicts errors with intervals, is in `combined`; the model space in `model_space`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

import numpy as np
from scipy.sparse import bmat
from scipy.sparse.csgraph import connected_components

from task2vec.distance import ALPHA
from task2vec.errors import UndefinedScoreError, UsageError
from task2vec.experts.metatask import DOMAIN, SYMMETRIC, TAXONOMIC, MetaTask, Query

# Weights of the source task's complexity in the asymmetric distance that are tried; the paper's is 0.15.
ALPHAS = tuple(round(0.05 * step, 2) for step in range(21))
# Kernel widths that are tried, in parts of the median distance.
WIDTHS = tuple(2.0**power for power in range(-6, 3))
# So many of the models that a strategy ranks first are measured.
TOP = 3
AVERAGE_BEST, DATASET = "average_best", "dataset"
_TO_SOURCES = "a task and the source task of a model"
# The names of `task2vec.select.SCORES`, which itself imports torch.
SCORE_NAMES = ("knn", "knn5", "logme", "leep", "nce", "nleep", "h_score", "h_score_shrunk", "transrate", "gbc", "parc")


@dataclass(frozen=True, eq=False)
class Prediction:
    """How a strategy ranks the M models for a task.

    Attributes:
        loss: (M) smaller for better models; NaN for those that it knows nothing of, which come last.
        errors: (M) predicted errors, from strategies that predict them.
        low: (M) lower ends of 90% intervals.
        high: (M) upper ends.
        p_best: (M) probability of being the best of the candidates.
        fallback: (M) smaller for better models: orders those that `loss` does not.
        average_best: number of the candidate that is best on average, from strategies that compare with it.
        p_better: probability that the model with the smallest predicted error is better than that one; 0.5 if it is it.
        abstains: whether the evidence does not beat the average-best model, which then is ranked first.
        gains: (M) by how much measuring a model on the task is expected to lower the error of the one chosen.
    """

    loss: np.ndarray
    errors: np.ndarray | None = None
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    p_best: np.ndarray | None = None
    fallback: np.ndarray | None = None
    average_best: int | None = None
    p_better: float | None = None
    abstains: bool | None = None
    gains: np.ndarray | None = None

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
    fit: Callable[[MetaTask], Predict]
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

    def predict(self, loss: np.ndarray) -> Prediction:
        """Models ranked by (M) effects, with the errors that they have on a task of mean difficulty."""
        return Prediction(loss, errors=np.clip(float(np.nanmean(self.tasks)) + loss, 0, 1))

    def leave_one_out(self) -> np.ndarray:
        """(T, M) the models' effects as they would be without the errors on one task; NaN where nothing is left.

        Effects of tasks are held fixed, so nothing is fitted again.
        """
        own = np.isfinite(self.rest)
        values = np.where(own, self.rest + self.models, 0)
        counts = own.sum(0) - own
        return np.divide(values.sum(0) - values, counts, out=np.full(own.shape, np.nan), where=counts > 0)


def find_errors(metatask: MetaTask) -> np.ndarray:
    """(T, M) errors that can be learned from: mean over seeds, NaN where the model has seen the task.

    Raises:
        UndefinedScoreError: There is none.
    """
    errors = np.where(metatask.is_candidate, metatask.mean, np.nan)
    if not np.isfinite(errors).any():
        raise UndefinedScoreError(
            f"no error is known for {len(metatask.models)} models on {len(metatask.tasks)} tasks that they have not "
            "seen, so there is nothing to learn from. Measure some: task2vec error-matrix"
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


def average_known(values: np.ndarray, axis: int) -> np.ndarray:
    """The means along an axis over what is known; NaN where nothing is."""
    return np.ma.masked_invalid(values).mean(axis).filled(np.nan)


def find_comparable(known: np.ndarray, among: np.ndarray | None = None) -> np.ndarray:
    """(M) whether a model can be compared with most: they share tasks, or others link them.

    Effects of models that nothing links cannot be compared, for which of their tasks are harder is not known. Of
    several such groups, the one with the most errors counts.

    Args:
        known: (T, M) whether there is an error.
        among: (M) models whose errors are counted; all by default.

    Example:
        >>> find_comparable(np.array([[True, True, False], [True, True, False], [False, False, True]]))
        array([ True,  True, False])
    """
    graph = bmat([[None, known], [known.T, None]], format="csr", dtype=np.int8)
    models = connected_components(graph, directed=False)[1][len(known) :]
    counts = known.sum(0) * (1 if among is None else among)
    return models == np.bincount(models, counts).argmax()


# --- baselines that ignore the task ----------------------------------------------------------------------------------


def fit_chance(metatask: MetaTask) -> Predict:
    """Any candidate: all are equal, so that what is measured is the expectation and not a draw."""
    prediction = Prediction(np.zeros(len(metatask.models)))
    return lambda query: prediction


def fit_generic(metatask: MetaTask) -> Predict:
    """The generic model; the others in the order of their mean errors, where it may not be selected."""
    numbers = np.arange(len(metatask.models))
    loss = np.where(numbers == metatask.generic, 0, 1 if metatask.generic is not None else np.nan)
    return _rank_always(metatask, loss, "none is the generic one: give one the kind 'generic'")


def fit_average_best(metatask: MetaTask) -> Predict:
    """The model that is best on average over the known tasks: the baseline that everything else has to beat.

    Errors are compared with how hard each task is (see `Effects`), so that missing cells favour no model; cells whose
    model has seen the task do not count, nor do models that nothing links with the others.
    """
    prediction = fit_effects(find_errors(metatask)).predict(order_on_average(metatask))
    return lambda query: prediction


def fit_size(metatask: MetaTask) -> Predict:
    """The model with the most parameters; equals in the order of their mean errors."""
    params = np.array([model.params or np.nan for model in metatask.models], dtype=np.float64)
    return _rank_always(metatask, -params, "their numbers of parameters are not known: give `params`")


def fit_imagenet(metatask: MetaTask) -> Predict:
    """The model with the best ImageNet accuracy in the zoo; equals and others in the order of their mean errors."""
    from task2vec.select.zoo import look_up

    top1 = np.array([look_up(model.location).imagenet for model in metatask.models], dtype=np.float64)  # None is NaN
    return _rank_always(metatask, -top1, "the zoo has no ImageNet accuracy of any: give their `location`")


def _rank_always(metatask: MetaTask, loss: np.ndarray, lacking: str) -> Predict:
    """Models by what is known of them, whatever the task is; refuses models of which nothing is known."""
    if not np.isfinite(loss).any():
        raise UndefinedScoreError(
            f"this strategy cannot rank the {len(metatask.models)} models, because {lacking}, or leave it out."
        )
    prediction = Prediction(loss, fallback=order_on_average(metatask))
    return lambda query: prediction


def order_on_average(metatask: MetaTask) -> np.ndarray:
    """(M) effects of the models, to order those that a strategy does not; NaN where no error is known."""
    errors = np.where(metatask.is_candidate, metatask.mean, np.nan)
    return np.where(find_comparable(np.isfinite(errors)), fit_effects(errors).models, np.nan)


def find_average_best(metatask: MetaTask, is_candidate: np.ndarray) -> int | None:
    """The number of the candidate that is the best on average over the known tasks; None if nothing is known.

    An average over few tasks is luck: a candidate counts if it is known on half as many as the one known on the most.
    """
    errors = np.where(metatask.is_candidate, metatask.mean, np.nan)
    known = np.isfinite(errors)
    allowed = is_candidate & known.any(0) & find_comparable(known, among=is_candidate)
    if not allowed.any():
        return None
    counts = known.sum(0)
    allowed &= counts >= counts[allowed].max() / 2
    return int(np.argmin(np.where(allowed, fit_effects(errors).models, np.inf)))


# --- distance from the source task -----------------------------------------------------------------------------------


def fit_nearest(metatask: MetaTask, kind: str = SYMMETRIC, *, bonus: np.ndarray | None = None) -> Predict:
    """The model whose source task is nearest by one kind of distance, less a bonus of each model.

    Models of unknown source task come last, in the order of their mean errors on other tasks, which also orders those
    at the same distance.
    """
    check_kind(metatask, kind, _TO_SOURCES, metatask.to_sources)
    on_average = order_on_average(metatask)
    bonus = np.zeros(len(metatask.models)) if bonus is None else bonus

    def predict(query: Query) -> Prediction:
        distances = query.to_sources.get(kind, np.full(len(on_average), np.nan))
        return Prediction(distances - bonus, fallback=on_average)

    return predict


def fit_asymmetric(metatask: MetaTask, alpha: float | None = ALPHA) -> Predict:
    """The paper's choice: d_sym(source, task) - alpha d_sym(source, trivial), so that complex source tasks come nearer.

    Without an `alpha` it is chosen on the known tasks, among `ALPHAS`: the one whose choices have the smallest mean
    error there, and of equals the nearest to the paper's 0.15.
    """
    check_kind(metatask, SYMMETRIC, _TO_SOURCES, metatask.to_sources)
    if SYMMETRIC not in metatask.trivial_distances:
        raise UndefinedScoreError(
            "the distances of source tasks from the trivial task are not known, so neither is their complexity. Give "
            "embeddings, or use the symmetric distance."
        )
    simplicity = metatask.pick_sources(metatask.trivial_distances[SYMMETRIC])
    alpha = _choose_alpha(metatask, simplicity) if alpha is None else alpha
    return fit_nearest(metatask, bonus=alpha * simplicity)


def _choose_alpha(metatask: MetaTask, simplicity: np.ndarray) -> float:
    """The best for the known tasks: distances know nothing of errors, so none has to be left out for that."""
    errors, distances = find_errors(metatask), metatask.to_sources(SYMMETRIC)
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


def fit_adjusted(metatask: MetaTask, kind: str = SYMMETRIC) -> Predict:
    """The average error corrected by the distance from the source task: error_ij = task_i + model_j + weight * d_ij.

    The asymmetric distance takes an amount from the distance that belongs to the model, alpha times the complexity of
    its source task. So does this, with an amount that was measured (the model's own effect) in place of one that is
    guessed. The weight is by least squares on the known tasks; distances are freed of both effects first (Frisch and
    Waugh), so a model of unknown source task keeps its average. A weight below zero is noise, and set to zero.
    """
    check_kind(metatask, kind, _TO_SOURCES, metatask.to_sources)
    errors = find_errors(metatask)
    effects, weight, centres = fit_effects(errors), 0.0, np.full(len(metatask.models), np.nan)
    distances = np.where(np.isfinite(errors), metatask.to_sources(kind), np.nan)
    if np.isfinite(distances).any():
        shape = fit_effects(distances)
        size, centres = float(np.nansum(np.square(shape.rest))), shape.models
        weight = max(0.0, float(np.nansum(shape.rest * effects.rest)) / size) if size > 1e-12 else 0.0

    def predict(query: Query) -> Prediction:
        gaps = query.to_sources.get(kind, np.full(len(centres), np.nan)) - centres
        counted = np.isfinite(gaps) & query.is_candidate
        gaps = np.nan_to_num(gaps - gaps[counted].mean()) if counted.any() else np.zeros(len(gaps))
        return effects.predict(effects.models + weight * gaps)

    return predict


def check_kind(metatask: MetaTask, kind: str, what: str, read: Callable[[str], np.ndarray]) -> None:
    """Refuses a meta-task without any distance of this kind that `read` finds, which is between `what`."""
    if kind not in metatask.distances or not np.isfinite(read(kind)).any():
        needed = {DOMAIN: "domain embeddings", TAXONOMIC: "a taxonomy of their classes"}.get(kind, "embeddings")
        others = "" if kind in metatask.distances else f" (known kinds: {', '.join(metatask.distances) or 'none'})"
        raise UndefinedScoreError(
            f"no {kind} distance between {what} is known{others}. "
            f"Give {needed} of tasks and source tasks, or leave this strategy out."
        )


def check_score(metatask: MetaTask, score: str) -> None:
    """Refuses a meta-task without a transferability score."""
    if not np.isfinite(metatask.scores.get(score, np.nan)).any():
        raise UndefinedScoreError(
            f"the score '{score}' of these tasks and models is not known (known: "
            f"{', '.join(metatask.scores) or 'none'}). Compute it with score_features, or leave this strategy out."
        )


# --- errors of similar tasks -----------------------------------------------------------------------------------------


def fit_kernel(metatask: MetaTask, kind: str = SYMMETRIC, *, width: float | None = None) -> Predict:
    """Errors of similar tasks over the average: model_j + sum_k w_k rest_kj / sum_k w_k, w = exp(-distance / width).

    The simplest way to learn from similar tasks. Nothing holds it back where none is known: the nearest count, however
    far they are. Of the kind "dataset", tasks of the same dataset count alike and others not at all. Without a `width`
    it is chosen on the known tasks, each predicted from the others, by the mean square of what is left.
    """
    effects = fit_effects(find_errors(metatask))
    if kind != DATASET:
        check_kind(metatask, kind, "tasks", metatask.between)
        width = _choose_width(effects, metatask.between(kind)) if width is None else width

    def predict(query: Query) -> Prediction:
        distances = query.distances.get(kind, np.full(len(metatask.tasks), np.nan))
        if kind == DATASET:
            distances = np.where(np.array(metatask.datasets) == query.dataset, 0.0, np.nan)
        found = _average_near(distances[None], width or 1.0, effects.rest, np.zeros((1, len(effects.models))))
        return effects.predict(effects.models + found[0])

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


def fit_score(metatask: MetaTask, score: str) -> Predict:
    """The model with the highest transferability score, which every candidate gets on the task's own images."""
    check_score(metatask, score)
    on_average = order_on_average(metatask)

    def predict(query: Query) -> Prediction:
        scores = query.scores.get(score, np.full(len(on_average), np.nan))
        return Prediction(-scores, fallback=on_average)

    return predict


# --- errors measured on the task itself ------------------------------------------------------------------------------


def fit_measured(metatask: MetaTask, rank: Predict, top: int | None, *, decide: Predict | None = None) -> Predict:
    """The best of the `top` models that a strategy ranks first, or of all, once these were measured on the task.

    It is the one with the smallest measured error, or what `decide` ranks first, which sees those errors and no others.
    """
    names = np.array([model.name for model in metatask.models])

    def predict(query: Query) -> Prediction:
        if lacking := set(names[query.is_candidate]) - set(query.measured):
            raise UndefinedScoreError(
                f"the errors of '{min(lacking)}' on two halves of the test images of '{query.name}' are not known, so "
                "it cannot be measured on one and evaluated on the other. Give them as `error_a` and `error_b` of a "
                "CSV table, or leave this strategy out."
            )
        before = rank(replace(query, measured={}))
        tried = before.order(query.is_candidate)[:top]
        measured = {name: query.measured[name] for name in names[tried].tolist()}
        if decide is not None:
            return decide(replace(query, measured=measured))
        loss = np.full(len(names), np.nan)
        loss[tried] = [np.mean([one.error for one in own]) for own in measured.values()]
        return Prediction(loss, fallback=before.places())

    return predict


# --- the table -------------------------------------------------------------------------------------------------------


def _fit_combined(metatask: MetaTask, kind: str = SYMMETRIC, score: str | None = None) -> Predict:
    from task2vec.select.combined import fit_combined

    return fit_combined(metatask, kind, score=score).predict


def _fit_conditioned(metatask: MetaTask) -> Predict:
    """The combined strategy as `recommend(measure_top=...)` has it, with the error of the task's own head.

    `recommend` uses scores once every candidate was measured. Intervals are for errors on many new images, and do not
    hold the noise of those that it is judged on.
    """
    from task2vec.select.combined import predict_conditioned

    if not metatask.embeddings.get(metatask.space or ""):
        raise UndefinedScoreError(
            "no embedding of the tasks is known, so neither are the errors of their heads, which this strategy uses. "
            "Give a meta-task with embeddings, or leave it out."
        )

    def predict(query: Query) -> Prediction:
        assert query.embedding is not None
        found = predict_conditioned(metatask, query.embedding, replace(query, scores={}), query.measured)
        return replace(found, low=None, high=None)

    return fit_measured(metatask, predict, TOP, decide=predict)


def _fit_model_space(metatask: MetaTask, *, as_published: bool = False) -> Predict:
    from task2vec.select.model_space import fit_model_space

    return fit_model_space(metatask, as_published=as_published).predict


_ALL = (
    Strategy("chance", fit_chance),
    Strategy("generic", fit_generic),
    Strategy(AVERAGE_BEST, fit_average_best),
    Strategy("size", fit_size),
    Strategy("imagenet", fit_imagenet),
    Strategy(SYMMETRIC, fit_nearest),
    Strategy("asymmetric", fit_asymmetric),
    Strategy("asymmetric fitted", lambda metatask: fit_asymmetric(metatask, None)),
    Strategy(DOMAIN, lambda metatask: fit_nearest(metatask, DOMAIN)),
    Strategy(TAXONOMIC, lambda metatask: fit_nearest(metatask, TAXONOMIC)),
    Strategy(f"{AVERAGE_BEST} + {SYMMETRIC}", fit_adjusted),
    Strategy(f"kernel {SYMMETRIC}", fit_kernel),
    Strategy(f"kernel {DOMAIN}", lambda metatask: fit_kernel(metatask, DOMAIN)),
    Strategy(f"kernel {DATASET}", lambda metatask: fit_kernel(metatask, DATASET)),
    Strategy("model space published", partial(_fit_model_space, as_published=True)),
    Strategy("model space", _fit_model_space),
    *(Strategy(name, partial(fit_score, score=name), uses_scores=True) for name in SCORE_NAMES),
    Strategy("combined", _fit_combined),
    Strategy(f"combined {DOMAIN}", lambda metatask: _fit_combined(metatask, DOMAIN)),
    Strategy("combined + logme", partial(_fit_combined, score="logme"), uses_scores=True),
    Strategy("measured", lambda metatask: fit_measured(metatask, fit_average_best(metatask), None), np.inf),
    Strategy(f"logme + {TOP} measured", lambda known: fit_measured(known, fit_score(known, "logme"), TOP), TOP, True),
    Strategy(f"combined + {TOP} measured", _fit_conditioned, TOP),
)
STRATEGIES: Mapping[str, Strategy] = MappingProxyType({strategy.name: strategy for strategy in _ALL})


def find_strategy(name: str) -> Strategy:
    """The strategy of that name.

    Example:
        >>> find_strategy("asymmetric").name
        'asymmetric'
    """
    if name not in STRATEGIES:
        raise UsageError(f"there is no strategy called '{name}'. Choose one of: {'; '.join(STRATEGIES)}")
    return STRATEGIES[name]
