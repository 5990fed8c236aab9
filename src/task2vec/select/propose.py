"""Proposals: the order in which candidates are measured on a new task, from errors on known tasks and from distances.

The top of a list of models that are best on average is three copies of one idea. A portfolio covers what its first
model misses: models are chosen one after the other, so that the mean over the known tasks of the smallest error among
the chosen is least, and known tasks count the more the nearer they are to the new one. Every third proposal is the
nearest expert instead. Nothing here predicts an error: numbers in the reasons are distances, or facts of a network.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
from scipy.special import expit, logit

from task2vec.metatask import SYMMETRIC, Query, View
from task2vec.select.candidates import Candidate, find_model
from task2vec.select.strategies import find_known_errors, fit_effects

# Every third proposal is the nearest expert.
CYCLE = 3
# Widths that are tried, in parts of the median distance of known tasks from their nearest; of equals the widest.
WIDTHS = (math.inf, 3.0, 1.0, 0.5, 0.25, 0.1)
# Widths are judged by the mean error after 1, 2, ... this number of proposals.
DEPTH = 4
# Leaving tasks out in turn is limited to this number of pairs of a task left out and a known task: of 100, all are.
MAX_PAIRS = 10_700
# Proposals from a portfolio, at most; the models after these are in the order of their mean errors.
MAX_PORTFOLIO = 24
# Added to shares of errors and of hits before their logarithms are taken.
OFFSET = 0.005
# Gains that differ by less than this share are equal but for rounding.
TIE = 1e-12
# Of two networks without known errors, twice the cost has to raise the odds of a right answer on ImageNet by so much.
PRICE = 1.15
# Reasons name so many known tasks at most; similar ones have a weight of at least this.
MAX_EXAMPLES = 2
MIN_SIMILAR_WEIGHT = 0.1


@dataclass(frozen=True)
class Proposal:
    """A candidate to measure.

    Attributes:
        name: of the candidate.
        reason: why it comes at its place, from examples; numbers in brackets are distances.
    """

    name: str
    reason: str


# --- the rule: arrays of T known tasks and M models ------------------------------------------------------------------


def propose(
    errors: np.ndarray,
    distances: np.ndarray,
    to_sources: np.ndarray,
    is_candidate: np.ndarray,
    *,
    width: float,
    count: int,
) -> np.ndarray:
    """Numbers of the models to measure for a new task: two of the weighted portfolio, one nearest expert, repeated.

    Args:
        errors: (T, M) on the known tasks; NaN where not known, or where the model has seen the task.
        distances: (T) of the new task from the known ones.
        to_sources: (M) of the new task from the models' source tasks; NaN where not known.
        is_candidate: (M) which models may be proposed.
        width: by which weights fall with the distance, see `choose_width`.
        count: how many, at most.

    Example:
        >>> errors = np.array([[0.1, 0.2, 0.5], [0.5, 0.4, 0.1]])  # a portfolio of 0 and 2 is best on both
        >>> unknown, everything = np.full(3, np.nan), np.ones(3, dtype=bool)
        >>> propose(errors, np.array([0.1, 0.9]), unknown, everything, width=1, count=2).tolist()
        [0, 2]
    """
    filled, effects = fill_errors(errors)
    count = min(count, int(is_candidate.sum()))
    weights = weigh_tasks(distances, width)[None]
    keys = (effects, to_sources)
    return order_portfolios(filled, weights, is_candidate[None], keys, count=count, nearest=to_sources)[0]


def fill_errors(errors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(T, M) errors, unknown ones by the two-way effects of task and model on the log-odds; (M) effects of the models.

    A model without any error has an effect of NaN, and errors of 1: it is no reason to measure it.
    """
    effects = fit_effects(logit((errors + OFFSET) / (1 + 2 * OFFSET)))
    expected = (1 + 2 * OFFSET) * expit(effects.tasks[:, None] + effects.models) - OFFSET
    expected = np.nan_to_num(np.clip(expected, 0, 1), nan=1.0)
    return np.where(np.isnan(errors), expected, errors), effects.models


def weigh_tasks(distances: np.ndarray, width: float) -> np.ndarray:
    """(T) weights of the known tasks: exp(-(d - d_min) / width); the nearest has 1, and all have if it is infinite."""
    return np.exp(-(distances - distances.min(initial=np.inf)) / width)


def order_portfolios(
    filled: np.ndarray,
    weights: np.ndarray,
    is_candidate: np.ndarray,
    keys: Sequence[np.ndarray],
    *,
    count: int,
    nearest: np.ndarray | None = None,
    is_here: np.ndarray | None = None,
) -> np.ndarray:
    """(R, count) models, each of which lowers the weighted mean over tasks of the smallest error so far the most.

    After `MAX_PORTFOLIO` models the keys are the order. Where candidates run out, the last one is repeated.

    Args:
        filled: (T, M) errors.
        weights: (R, T) a row for each portfolio.
        is_candidate: (R, M) which models may be chosen.
        keys: (M) each, smaller for the better one of models that lower the error alike, see `rank_models`.
        count: models in a portfolio.
        nearest: (M) distances; every third model is the nearest of those that are left.
        is_here: (M) models that come before all others.
    """
    ranks = np.argsort(rank_models(np.ones(filled.shape[1], dtype=bool), *keys))
    by_model = np.ascontiguousarray(filled.T)
    lowered = np.empty_like(by_model)
    closeness = None if nearest is None else -np.nan_to_num(nearest, nan=1e300)
    chosen = np.zeros((len(weights), count), dtype=int)
    is_left = is_candidate.copy()
    for position in range(count):
        pool = is_left if is_here is None or not (is_left & is_here).any() else is_left & is_here
        if closeness is not None and position % CYCLE == CYCLE - 1:
            gains = closeness
        elif position == 0:
            gains = weights @ (1 - filled)
        elif position >= MAX_PORTFOLIO:
            gains = np.zeros(is_left.shape)
        else:  # what is gained and not what remains, in which gains on far tasks are below the last digit
            gains = np.empty(is_left.shape)
            sets, members = chosen[:, :position], np.zeros(1, dtype=int)
            if len(chosen) > 1:  # portfolios of the same models so far share a table
                sets, members = np.unique(np.sort(sets, axis=1), axis=0, return_inverse=True)
            for number, models in enumerate(sets):
                is_member = members.reshape(-1) == number
                np.subtract(by_model[models].min(0), by_model, out=lowered)
                gains[is_member] = weights[is_member] @ np.maximum(lowered, 0, out=lowered).T
        picked = find_largest(gains, pool, ranks)
        chosen[:, position] = np.where(pool.any(1), picked, chosen[:, position - 1])
        is_left[np.arange(len(weights)), chosen[:, position]] = False
    return chosen


def rank_models(is_candidate: np.ndarray, *keys: np.ndarray) -> np.ndarray:
    """Numbers of the candidates by the first key, the smallest first, equal ones by the next; NaN comes last.

    Example:
        >>> rank_models(np.array([True, True, True, False]), np.array([np.nan, 2, np.nan, 1]), np.array([2, 3, 1, 4]))
        array([1, 2, 0])
    """
    return np.lexsort((*reversed(keys), ~is_candidate))[: is_candidate.sum()]


def find_largest(gains: np.ndarray, is_candidate: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """(R) number of the candidate with the largest of (R, M) gains in every row; of equals that of the lowest rank."""
    gains = np.where(is_candidate, gains, -np.inf)
    largest = gains.max(1, keepdims=True)
    return np.where(gains >= largest - TIE * np.abs(largest), ranks, len(ranks)).argmin(1)


def choose_width(
    errors: np.ndarray, between: np.ndarray, *, fill: tuple[np.ndarray, np.ndarray] | None = None
) -> float:
    """The width whose portfolios are best for the known tasks, each left out and proposed for by the others.

    Portfolios are judged by the mean of the smallest errors after 1, 2, ... `DEPTH` models. Unknown errors are filled
    once, with the errors of the task that is left out among those that they are filled by. Of many known tasks, some
    that are evenly spread are left out.

    Args:
        errors: (T, M) on the known tasks; NaN where not known.
        between: (T, T) distances between them.
        fill: what `fill_errors` makes of the errors, if that is at hand.
    """
    is_known = np.isfinite(errors)
    tasks = np.flatnonzero(is_known.any(1))
    if len(errors) < 2 or not len(tasks):
        return math.inf
    if (left_out := MAX_PAIRS // len(errors)) < len(tasks):
        tasks = tasks[np.linspace(0, len(tasks) - 1, left_out).astype(int)]
    filled, effects = fill_errors(errors) if fill is None else fill
    apart = between.astype(np.float64)
    np.fill_diagonal(apart, np.inf)
    widths = np.array(WIDTHS) * (float(np.median(apart.min(1))) or 1.0)  # 0 where most tasks have a copy
    beyond = between[tasks] - apart[tasks].min(1)[:, None]
    beyond[np.arange(len(tasks)), tasks] = 0  # has no weight
    weights = np.exp(-beyond / widths[:, None, None])
    weights[:, np.arange(len(tasks)), tasks] = 0
    is_candidate = np.tile(is_known[tasks], (len(widths), 1))
    chosen = order_portfolios(filled, weights.reshape(-1, len(errors)), is_candidate, (effects,), count=DEPTH)
    chosen = chosen.reshape(len(widths), len(tasks), DEPTH)
    # Where a task has fewer models, the last of them is repeated, and does not count.
    measured = np.minimum.accumulate(errors[tasks[:, None], chosen], axis=2)
    is_counted = np.arange(DEPTH) < is_known[tasks].sum(1)[:, None]
    losses = (measured.mean(2, where=is_counted)).sum(1)
    return float(widths[np.argmax(losses <= losses.min() + TIE * len(tasks))])


# --- all candidates ---------------------------------------------------------------------------------------------------


def order_candidates(
    candidates: Sequence[Candidate], view: View | None = None, query: Query | None = None
) -> tuple[Proposal, ...]:
    """All candidates in the order in which they should be measured.

    Candidates whose weights are here come before all others. Among both, candidates that the evidence knows (by the
    rule: two of the weighted portfolio, one nearest expert, repeated) and the others (by ImageNet accuracy and cost,
    see `rank_by_accuracy`) alternate, beginning with the former, until one of the lists ends.

    Args:
        candidates: to be ordered.
        view: the evidence, errors on known tasks; without it, all are ordered by ImageNet accuracy and cost.
        query: the new task; without it, or without its distances, all known tasks count alike.
    """
    columns = {} if view is None else match_models(candidates, view, query)
    known = order_by_errors(candidates, columns, view, query) if view is not None and columns else []
    unknown = [number for number in range(len(candidates)) if number not in columns]
    others = [(number, describe_facts(candidates[number])) for number in rank_by_accuracy(candidates, unknown)]
    proposals: list[Proposal] = []
    for is_here in (True, False):
        lists = ([pair for pair in pairs if candidates[pair[0]].is_here == is_here] for pairs in (known, others))
        alternating = (pair for pairs in zip_longest(*lists) for pair in pairs if pair is not None)
        proposals += [Proposal(candidates[number].name, reason) for number, reason in alternating]
    return tuple(proposals)


def match_models(candidates: Sequence[Candidate], view: View, query: Query | None) -> dict[int, int]:
    """By number of a candidate that of its model in the evidence: at its location, or of its name if both have none.

    Of several the one with the most errors counts. Models without an error and without a distance say nothing.
    """
    counts = np.isfinite(find_known_errors(view)).sum(0)
    is_telling = (counts > 0) | np.isfinite(find_distances(view, query)[1])
    columns: dict[tuple[str, str], int] = {}
    for column in rank_models(is_telling, -counts).tolist():
        columns.setdefault(identify(view.models[column].name, view.models[column].location), column)
    keys = [identify(candidate.name, candidate.location) for candidate in candidates]
    return {number: columns[key] for number, key in enumerate(keys) if key in columns}


def identify(name: str, location: str | None) -> tuple[str, str]:
    """What the same model has in common under several names: its location with the tag of its weights, or its name.

    Example:
        >>> identify("mine", "timm:resnet50"), identify("mine", None)
        (('location', 'timm:resnet50.a1_in1k'), ('name', 'mine'))
    """
    if location is None:
        return "name", name
    known = find_model(location)
    return "location", location if known is None or known.location is None else known.location


def find_distances(view: View, query: Query | None) -> tuple[np.ndarray | None, np.ndarray]:
    """(T) distances of a new task from the known ones, None where not all are known; (M) from the models' sources."""
    distances, to_sources = None, np.full(len(view.models), np.nan)
    if query is not None and SYMMETRIC in query.distances:
        distances, to_sources = query.distances[SYMMETRIC], query.to_sources.get(SYMMETRIC, to_sources)
    is_known = distances is not None and len(distances) and np.isfinite(distances).all()
    return distances if is_known else None, to_sources


def order_by_errors(
    candidates: Sequence[Candidate], columns: Mapping[int, int], view: View, query: Query | None
) -> list[tuple[int, str]]:
    """Numbers of the candidates that the evidence knows, in the order of the rule, and why each comes at its place."""
    by_column = {column: number for number, column in reversed([*columns.items()])}
    is_candidate, is_here = np.zeros((2, len(view.models)), dtype=bool)
    costs = np.full(len(view.models), np.inf)
    for column, number in by_column.items():
        is_candidate[column], is_here[column] = True, candidates[number].is_here
        costs[column] = candidates[number].gmacs or math.inf
    errors = find_known_errors(view)
    distances, to_sources = find_distances(view, query)
    filled, effects = fill_errors(errors)
    width = math.inf
    if distances is not None:
        width = choose_width(errors, view.between(SYMMETRIC), fill=(filled, effects))
    weights = np.ones(len(errors)) if distances is None else weigh_tasks(distances, width)
    keys = (effects, to_sources, costs)
    order = order_portfolios(
        filled, weights[None], is_candidate[None], keys, count=len(by_column), nearest=to_sources, is_here=is_here
    )[0]
    tasks = [task.name for task in view.tasks]
    if distances is not None:
        tasks = [f"{name} ({distance:.2f})" for name, distance in zip(tasks, distances, strict=True)]
    similar = "similar" if math.isfinite(width) else "known"
    reasons = explain_order(order, errors, weights=weights, to_sources=to_sources, tasks=tasks, similar=similar)
    pairs = [(by_column[column], reason) for column, reason in zip(order.tolist(), reasons, strict=True)]
    repeated = [(number, f"the same model as {candidates[by_column[column]].name}")
                for number, column in columns.items() if by_column[column] != number]  # fmt: skip
    return pairs + repeated


def explain_order(
    order: np.ndarray,
    errors: np.ndarray,
    *,
    weights: np.ndarray,
    to_sources: np.ndarray,
    tasks: Sequence[str],
    similar: str,
) -> list[str]:
    """Why each model of an order comes at its place, from the known tasks that speak for it the most.

    Args:
        order: numbers of models.
        errors: (T, M); NaN where not known.
        weights: (T) of the known tasks.
        to_sources: (M) distances from the models' source tasks; NaN where not known.
        tasks: (T) the known tasks as a reason names them.
        similar: what they are called.
    """
    errors = np.where(np.isfinite(errors), errors, np.inf)
    best = errors[:, order].min(1)
    smallest = np.ones(len(errors))
    reasons = []

    def name_tasks(scores: np.ndarray) -> str:
        best_rows = map(int, np.argsort(-scores, kind="stable")[:MAX_EXAMPLES])
        return ", ".join(tasks[row] for row in best_rows if scores[row] > 0)

    for position, model in enumerate(order.tolist()):
        is_measured = np.isfinite(errors[:, model])
        is_best = is_measured & (errors[:, model] <= best) & (weights >= MIN_SIMILAR_WEIGHT)
        gains = np.where(position < MAX_PORTFOLIO, weights * np.maximum(smallest - errors[:, model], 0), 0)
        if position % CYCLE == CYCLE - 1 and np.isfinite(to_sources[model]):
            reason = f"nearest expert ({to_sources[model]:.2f})"
        elif position == 0 and is_best.any():
            reason = f"best on these {similar} tasks: {name_tasks(np.where(is_best, weights, 0))}"
        elif position == 0 and is_measured.any():
            reason = f"lowest mean error on {similar} tasks, such as {name_tasks(np.where(is_measured, weights, 0))}"
        elif named := name_tasks(gains):
            reason = f"covers what the {'first one misses' if position == 1 else 'ones before miss'}: {named}"
        elif is_measured.any():
            reason = "best on average of those that are left"
        else:
            reason = f"an expert without known errors ({to_sources[model]:.2f})"
        reasons.append(reason)
        smallest = np.minimum(smallest, errors[:, model])
    return reasons


def rank_by_accuracy(candidates: Sequence[Candidate], numbers: Sequence[int]) -> list[int]:
    """Some of the candidates by the odds of a right answer on ImageNet, less a price for their cost.

    Twice the cost has to raise the odds by 15 % (`PRICE`). Where the accuracy is not known, that of other candidates of
    the same cost stands in (a line through their log-odds), and the median for a cost; of equals the cheapest is first.
    """
    accuracies = np.array([candidates[number].imagenet for number in numbers], dtype=np.float64)  # None is NaN
    costs = np.log2(np.array([candidates[number].gmacs or math.nan for number in numbers], dtype=np.float64))
    costs = np.where(np.isnan(costs), np.nanmedian(costs) if np.isfinite(costs).any() else 0.0, costs)
    odds = logit(accuracies)
    if (is_known := np.isfinite(odds)).any():
        has_slope = np.ptp(costs[is_known]) > 0
        line = np.polyfit(costs[is_known], odds[is_known], 1 if has_slope else 0)
        odds = np.where(is_known, odds, np.polyval(line, costs))
    promise = np.nan_to_num(odds) - math.log(PRICE) * costs
    return [numbers[position] for position in np.lexsort((costs, -promise)).tolist()]


def describe_facts(candidate: Candidate) -> str:
    """What is known of a network without errors.

    Example:
        >>> from types import SimpleNamespace
        >>> describe_facts(SimpleNamespace(imagenet=0.801, gmacs=0.4))
        'ImageNet accuracy 80.1 % at 0.4 GMACs'
    """
    accuracy = "no ImageNet accuracy known"
    if candidate.imagenet is not None:
        accuracy = f"ImageNet accuracy {100 * candidate.imagenet:.1f} %"
    return accuracy + ("" if candidate.gmacs is None else f" at {candidate.gmacs:.2g} GMACs")
