"""Our own strategies of model selection, which the package does not offer: they are reported beside the paper's.

`task2vec.evaluate` takes them as values. `REPORTED` has all strategies of Table 1 by name.
"""

from functools import partial

import numpy as np

from task2vec.distance import ALPHA
from task2vec.errors import UndefinedScoreError
from task2vec.metatask import DOMAIN, SYMMETRIC, Query, View
from task2vec.select import STRATEGIES, Prediction, Strategy
from task2vec.select.evaluate import find_strategy
from task2vec.select.strategies import (
    AVERAGE_BEST,
    Effects,
    Predict,
    check_errors,
    check_sources,
    find_known_errors,
    find_simplicity,
    fit_effects,
    fit_nearest,
)

# Weights of the source task's complexity in the asymmetric distance that are tried; the paper's is 0.15.
ALPHAS = tuple(round(0.05 * step, 2) for step in range(21))
# Kernel widths that are tried, in parts of the median distance.
WIDTHS = tuple(2.0**power for power in range(-6, 3))
DATASET = "dataset"


def fit_best_alpha(view: View) -> Predict:
    """The asymmetric distance by the alpha whose choices on the known tasks have the smallest mean error.

    Distances do not depend on errors, so no task has to be left out for that. Of equals the nearest to 0.15 is taken.
    """
    check_errors(view)
    simplicity, errors = find_simplicity(view), find_known_errors(view)
    distances = view.to_sources(SYMMETRIC)
    known = np.isfinite(errors) & np.isfinite(distances - simplicity)
    rows = np.flatnonzero(known.any(1))
    if not len(rows):  # no known task has a candidate of known source task
        return fit_nearest(view, bonus=ALPHA * simplicity)
    excess = errors - fit_effects(errors).tasks[:, None]
    losses = {
        alpha: float(np.mean(excess[rows, np.where(known, distances - alpha * simplicity, np.inf)[rows].argmin(1)]))
        for alpha in ALPHAS
    }
    best = [alpha for alpha in ALPHAS if losses[alpha] <= min(losses.values()) + 1e-12]
    return fit_nearest(view, bonus=min(best, key=lambda alpha: abs(alpha - ALPHA)) * simplicity)


def fit_adjusted(view: View) -> Predict:
    """The average error corrected by the distance from the source task: error_ij = task_i + model_j + weight * d_ij.

    The asymmetric distance takes an amount from the distance that belongs to the model, alpha times the complexity of
    its source task. So does this, with an amount that was measured (the model's own effect) in place of one that is
    guessed. The weight is by least squares on the known tasks; distances are freed of both effects first (Frisch and
    Waugh), so a model of unknown source task keeps its average. A weight below zero is noise, and set to zero.
    """
    check_sources(view, SYMMETRIC)
    check_errors(view)
    errors = find_known_errors(view)
    effects, weight, centres = fit_effects(errors), 0.0, np.full(len(view.models), np.nan)
    distances = np.where(np.isfinite(errors), view.to_sources(SYMMETRIC), np.nan)
    if np.isfinite(distances).any():
        shape = fit_effects(distances)
        size, centres = float(np.nansum(np.square(shape.rest))), shape.models
        weight = max(0.0, float(np.nansum(shape.rest * effects.rest)) / size) if size > 1e-12 else 0.0

    def predict(query: Query) -> Prediction:
        gaps = query.to_sources.get(SYMMETRIC, np.full(len(centres), np.nan)) - centres
        counted = np.isfinite(gaps) & query.is_candidate
        gaps = np.nan_to_num(gaps - gaps[counted].mean()) if counted.any() else np.zeros(len(gaps))
        return Prediction(effects.models + weight * gaps)

    return predict


def fit_kernel(view: View, kind: str = SYMMETRIC, *, width: float | None = None) -> Predict:
    """Errors of similar tasks over the average: model_j + sum_k w_k rest_kj / sum_k w_k, w = exp(-distance / width).

    The simplest way to learn from similar tasks. Nothing holds it back where none is known: the nearest count, however
    far they are. Of the kind "dataset", tasks of the same dataset count alike and others not at all. Without a `width`
    it is chosen on the known tasks, each predicted from the others, by the mean square of what is left.
    """
    check_errors(view)
    effects = fit_effects(find_known_errors(view))
    if kind == DATASET:
        width = 1.0
    elif kind not in view.distances or not np.isfinite(view.between(kind)).any():
        raise UndefinedScoreError(f"no {kind} distance between tasks is known. Leave this strategy out.")
    chosen_width = choose_width(effects, view.between(kind)) if width is None else width

    def predict(query: Query) -> Prediction:
        distances = query.distances.get(kind, np.full(len(view.tasks), np.nan))
        if kind == DATASET:
            distances = np.where(np.array(view.datasets) == query.dataset, 0.0, np.nan)
        near = _average_near(distances[None], chosen_width, effects.rest, np.zeros((1, len(effects.models))))
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


def choose_width(effects: Effects, distances: np.ndarray) -> float:
    """The width that predicts each known task best from the others; of equals the widest."""
    apart = distances + np.where(np.eye(len(distances), dtype=bool), np.inf, 0)
    finite = apart[np.isfinite(apart)]
    median = float(np.median(finite)) if finite.size and np.median(finite) > 0 else 1.0
    values = effects.rest + effects.models
    # Without tasks near by, the model's mean over the other tasks.
    is_known = np.isfinite(values)
    counts = is_known.sum(0) - is_known
    sums = np.nansum(values, axis=0) - np.nan_to_num(values)
    otherwise = np.divide(sums, counts, out=np.full(values.shape, np.nan), where=counts > 0)
    losses = {}
    for width in sorted((share * median for share in WIDTHS), reverse=True):
        left = values - _average_near(apart, width, values, otherwise)
        left = left[np.isfinite(left)]
        losses[width] = float(np.square(left).mean()) if left.size else 0.0
    return min(losses, key=lambda width: losses[width])


_OURS = (
    Strategy("asymmetric fitted", fit_best_alpha),
    Strategy(f"{AVERAGE_BEST} + {SYMMETRIC}", fit_adjusted),
    Strategy(f"kernel {SYMMETRIC}", fit_kernel),
    Strategy(f"kernel {DOMAIN}", partial(fit_kernel, kind=DOMAIN)),
    Strategy(f"kernel {DATASET}", partial(fit_kernel, kind=DATASET)),
)
REPORTED = {**STRATEGIES, **{strategy.name: strategy for strategy in _OURS}}


def find_reported(name: str) -> Strategy:
    """The strategy of that name, the package's or ours."""
    return REPORTED[name] if name in REPORTED else find_strategy(name)
