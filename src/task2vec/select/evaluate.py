"""How well strategies select models: every task is predicted as if its errors, or those of its dataset, were unknown.

The columns of `Evaluation.rows`; errors and what is derived from them in percent:

* strategy, tasks: its name, and how many tasks were predicted.
* error: mean error of its choices.
* increase: how much more that is than the optimum, sum over tasks by sum over tasks ("ratio of means").
* mean_increase: the same for each task, averaged over tasks ("mean of ratios"); tasks of optimum 0 are left out.
* smallest_increase, smallest_mean_increase: both against the smallest error, as in the paper, which is biased low.
* regret, smallest_regret: points above the two optima.
* ..._low, ..._high: 95% of samples of tasks; ..._group_low, ..._group_high: of samples of whole datasets, where there
  are several.
* tau, top1, top3, fidelity: see `Outcome`.
* gap, gap_low, gap_high, p: points above the average-best model, an interval over samples of tasks, and the two-sided
  p of flipping the signs of the tasks' gaps, see `compare_paired`, as are all p here.
* gap_group_low, gap_group_high, p_group: the same over whole datasets, which is fairer and shows less: the interval
  over samples of datasets, and the p of flipping the signs of the datasets' means.
* fixed_gap, fixed_gap_low, ..., p_fixed, p_fixed_group: the same against the best fixed model, which has the smallest
  mean error over all datasets, including the predicted one. It is known only in hindsight, and harder to beat than the
  average-best model: if two models are close, leaving a task out favours the one that is worse on it.
* splits: how many splits it is judged on. A strategy that uses transferability scores, by themselves or among other
  things, is judged on the first one only, and so is all that it is compared with: the optima, the average-best and the
  best fixed model. Scores are of the training images of that split, which are test images of the others.
* measured: how many models it measures on a task, on average; that takes most of the time in practice.
* seconds: to fit and to predict, per task.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from math import comb
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np
from scipy import stats

from task2vec.errors import UndefinedScoreError, UsageError
from task2vec.metatask.metatask import MetaTask
from task2vec.metatask.table import average_known
from task2vec.metatask.view import DOMAIN, SYMMETRIC, TAXONOMIC, View
from task2vec.progress import Report, silent
from task2vec.select.strategies import (
    AVERAGE_BEST,
    DATASET,
    SCORE_NAMES,
    Predict,
    Prediction,
    Strategy,
    fit_adjusted,
    fit_asymmetric,
    fit_average_best,
    fit_chance,
    fit_generic,
    fit_imagenet,
    fit_kernel,
    fit_measured,
    fit_nearest,
    fit_score,
    fit_size,
)
from task2vec.storage import write_csv
from task2vec.text import format_table, pluralize

Leave = Literal["task", "dataset", "domain"]
# Errors this near are the same number of wrong images.
_TIE = 1e-5
# So many gaps at most are compared under all their signs; of more, so many signs are drawn.
_FEW, _DRAWS = 16, 20_000
# Up to so many datasets, the smallest p that they can have is worth a sentence.
_COARSE = 8
# The heading of a column, its value, and how that is written; * stands for the optimum that is compared with.
_COLUMNS = (
    ("strategy", "strategy", "{}"),
    ("error %", "error", "{:.1f}"),
    ("over optimum", "*increase", "{:+.1f}%"),
    ("95%", "ends", "{}"),
    ("mean of ratios", "*mean_increase", "{:+.1f}%"),
    ("over smallest", "smallest_increase", "{:+.1f}%"),
    ("tau", "tau", "{:.2f}"),
    ("top-1", "top1", "{:.2f}"),
    ("top-3", "top3", "{:.2f}"),
    ("fidelity", "fidelity", "{:.2f}"),
    ("over average-best", "gap", "{:+.1f}"),
    ("p", "p", "{:.2g}"),
    ("p datasets", "p_group", "{:.2g}"),
    ("over best fixed", "fixed_gap", "{:+.1f}"),
    ("p fixed", "p_fixed_group", "{:.2g}"),
    ("ms", "ms", "{:.1f}"),
)


# --- the strategies by name ------------------------------------------------------------------------------------------


def _fit_model_space(view: View, *, as_published: bool = False) -> Predict:
    from task2vec.select.model_space import fit_model_space

    return fit_model_space(view, as_published=as_published).predict


_ALL = (
    Strategy("chance", fit_chance),
    Strategy("generic", fit_generic),
    Strategy(AVERAGE_BEST, fit_average_best),
    Strategy("size", fit_size),
    Strategy("imagenet", fit_imagenet),
    Strategy(SYMMETRIC, fit_nearest),
    Strategy("asymmetric", fit_asymmetric),
    Strategy("asymmetric fitted", partial(fit_asymmetric, alpha=None)),
    Strategy(DOMAIN, partial(fit_nearest, kind=DOMAIN)),
    Strategy(TAXONOMIC, partial(fit_nearest, kind=TAXONOMIC)),
    Strategy(f"{AVERAGE_BEST} + {SYMMETRIC}", fit_adjusted),
    Strategy(f"kernel {SYMMETRIC}", fit_kernel),
    Strategy(f"kernel {DOMAIN}", partial(fit_kernel, kind=DOMAIN)),
    Strategy(f"kernel {DATASET}", partial(fit_kernel, kind=DATASET)),
    Strategy("model space published", partial(_fit_model_space, as_published=True)),
    Strategy("model space", _fit_model_space),
    *(Strategy(name, partial(fit_score, score=name), uses_scores=True) for name in SCORE_NAMES),
    Strategy("measured", fit_measured, np.inf),
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


# --- results ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class Outcome:
    """The result of one strategy. Arrays have an entry for each task that was predicted.

    A strategy that measures models on the task does so on one half of its test images and is evaluated on the other;
    then the other way round. Its numbers are means of both, except `chosen`, which is by the first half.

    Attributes:
        name: of the strategy.
        chosen: number of the model that it ranks first; of equals the one that is listed first.
        errors: of its choice; where several share the first place, the mean.
        tau: weighted Kendall's tau of its ranking and the errors.
        top1: probability that its choice is a best model.
        top3: probability that a best model is among its first three.
        fidelity: correlation of gaps in its ranking's numbers and gaps in errors.
        measured: how many models it measures on each task.
        first_errors: of its choice on the first split alone, to be compared with strategies that use scores.
        uses_scores: whether it does so itself: all of the above is of the first split then.
        seconds: to fit and to predict, per task.
    """

    name: str
    chosen: np.ndarray
    errors: np.ndarray
    tau: np.ndarray
    top1: np.ndarray
    top3: np.ndarray
    fidelity: np.ndarray
    measured: np.ndarray
    first_errors: np.ndarray
    uses_scores: bool
    seconds: float


@dataclass(frozen=True, eq=False, repr=False)
class References:
    """What strategies are compared with; (T) errors, see `Evaluation`."""

    smallest: np.ndarray
    optimum: np.ndarray | None
    fixed: np.ndarray | None


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """Strategies side by side.

    Attributes:
        tasks: names of the tasks that were predicted.
        datasets: the dataset of each.
        models: names of all models.
        leave: what was unknown beside the task itself: nothing ("task"), its dataset's tasks ("dataset"), or these and
            the models fine-tuned on its dataset ("domain").
        smallest: (T) the smallest mean error of a candidate: an optimum that is biased low, for noise is selected too.
        optimum: (T) error of the best candidate where it was selected on other images or splits than it is measured on;
            None where there is only one split. See `unbiased_optimum`.
        chosen_on: what that was selected on: "halves" of the test images, or "seeds" of the splits.
        fixed: (T) error of the best fixed model; None if no model has an error on every task.
        fixed_model: its name.
        first: these three on the first split alone.
        splits: how many splits there are.
        outcomes: of the strategies, by name.
        left_out: strategies that cannot be fitted, and why.
        resamples: how many samples of tasks intervals are made of.
        seed: of these samples.
    """

    tasks: tuple[str, ...]
    datasets: tuple[str, ...]
    models: tuple[str, ...]
    leave: Leave
    smallest: np.ndarray
    optimum: np.ndarray | None
    chosen_on: Literal["halves", "seeds"] | None
    fixed: np.ndarray | None
    fixed_model: str | None
    first: References
    splits: int
    outcomes: Mapping[str, Outcome]
    left_out: Mapping[str, str]
    resamples: int
    seed: int

    def __repr__(self) -> str:
        """The evaluation in one line."""
        return f"Evaluation({len(self.outcomes)} strategies, {len(self.tasks)} tasks, leave one {self.leave} out)"

    def __str__(self) -> str:
        """The table, with an explanation below."""
        return "\n".join([*format_table(self.format_rows(), text=["strategy"])[0], "", *self.explain()])

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """A row of plain numbers for each strategy; the top of this module explains the columns."""
        draws = {"": draw_weights(np.arange(len(self.datasets)), self.resamples, self.seed)}
        if len(set(self.datasets)) > 1:
            draws["_group"] = draw_weights(np.array(self.datasets), self.resamples, self.seed)
        return [self._summarise(outcome, draws) for outcome in self.outcomes.values()]

    def find_references(self, name: str) -> References:
        """What a strategy is compared with, on the splits that it is judged on."""
        every = References(self.smallest, self.optimum, self.fixed)
        return self.first if self.outcomes[name].uses_scores else every

    def find_gaps(self, name: str, other: str) -> np.ndarray:
        """(T) the errors of one strategy less those of another, on splits that the scores of neither have seen."""
        one, two = self.outcomes[name], self.outcomes[other]
        if one.uses_scores or two.uses_scores:
            return one.first_errors - two.first_errors
        return one.errors - two.errors

    def _summarise(self, outcome: Outcome, draws: Mapping[str, np.ndarray]) -> dict[str, Any]:
        errors, ones, references = outcome.errors, np.ones(len(outcome.errors)), self.find_references(outcome.name)
        row: dict[str, Any] = {"strategy": outcome.name, "tasks": len(errors), "error": 100 * float(errors.mean())}
        unknown = np.full(len(errors), np.nan)
        best = unknown if references.optimum is None else references.optimum
        for prefix, optimum in (("", best), ("smallest_", references.smallest)):
            ratios = np.divide(errors, optimum, out=unknown.copy(), where=optimum > 0)
            row |= compare_sums(f"{prefix}increase", errors, optimum, draws, less=1)
            row |= compare_sums(f"{prefix}mean_increase", ratios, ones, draws, less=1)
            row |= compare_sums(f"{prefix}regret", errors - optimum, ones, draws)
        row |= {name: float(getattr(outcome, name).mean()) for name in ("tau", "top1", "top3", "fidelity")}
        is_compared = AVERAGE_BEST in self.outcomes and outcome.name != AVERAGE_BEST
        differences = {
            "": self.find_gaps(outcome.name, AVERAGE_BEST) if is_compared else None,
            "fixed_": None if references.fixed is None else errors - references.fixed,
        }
        for prefix, gaps in differences.items():
            names = ("gap", "gap_low", "gap_high", "gap_group_low", "gap_group_high")
            row |= dict.fromkeys(f"{prefix}{name}" for name in names)
            p = f"p_{prefix}".rstrip("_")
            row |= {p: None, f"{p}_group": None}
            if gaps is not None:
                row |= compare_sums(f"{prefix}gap", gaps, ones, draws) | {p: compare_paired(gaps)}
                row[f"{p}_group"] = compare_paired(gaps, np.array(self.datasets)) if "_group" in draws else None
        row |= {"splits": 1 if outcome.uses_scores else self.splits, "measured": float(outcome.measured.mean())}
        return row | {"seconds": outcome.seconds}

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values for JSON, the choice for every task included."""
        names, choices = ("leave", "tasks", "datasets", "smallest", "optimum", "fixed_model", "rows", "left_out"), {}
        for one in self.outcomes.values():
            measured, choices[one.name] = one.measured.any(), []
            for task, number, error in zip(self.tasks, one.chosen, one.errors.tolist(), strict=True):
                model = {} if measured else {"model": self.models[number]}
                choices[one.name].append({"task": task, "error": error, **model})
        values = {name: getattr(self, name) for name in names}
        plain = {name: one.tolist() if isinstance(one, np.ndarray) else one for name, one in values.items()}
        return plain | {"optimum_chosen_on": self.chosen_on, "choices": choices}

    def to_csv(self, path: str | Path) -> Path:
        """Writes the rows to a file, whole or not at all, and returns its path."""
        rows = [
            {key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in row.items()}
            for row in self.rows
        ]
        return write_csv(path, rows, list(self.rows[0]) if self.rows else ["strategy"])

    def format_rows(self) -> list[dict[str, str]]:
        """The numbers that matter most, as text."""
        prefix, found = "smallest_" if self.optimum is None else "", []
        for row in self.rows:
            low, high = row[f"{prefix}increase_low"], row[f"{prefix}increase_high"]
            ends = None if low is None or high is None else f"{low:+.1f} to {high:+.1f}"
            values = row | {"ends": ends, "ms": 1000 * row["seconds"]}
            cells = ((head, values[key.replace("*", prefix)], form) for head, key, form in _COLUMNS)
            found.append({head: "" if value is None else form.format(value) for head, value, form in cells})
        return found

    def explain(self) -> list[str]:
        """What the table's numbers are, in sentences."""
        left = {"domain": "each dataset with the models fine-tuned on it"}.get(self.leave, f"each {self.leave}")
        count, datasets, smallest = len(self.tasks), len(set(self.datasets)), f"{100 * self.smallest.mean():.1f}%"
        optimum = f"the smallest error, {smallest} on average. It is biased low, because there is only one split."
        if self.optimum is not None:
            on = "one half of the test images" if self.chosen_on == "halves" else "other splits"
            optimum = f"{100 * self.optimum.mean():.1f}% on average, selected on {on} and measured on the rest; "
            optimum += f"the smallest error, {smallest}, is biased low."
        lines = [f"{pluralize(count, 'task')}, {left} left out in turn.", f"Optimum: {optimum}"]
        if any(row["p"] is not None or row["p_fixed"] is not None for row in self.rows):
            words = "p is two-sided, from flipping the signs of gaps, and treats tasks as independent"
            if 1 < datasets < count:
                least = f" and cannot be below {2 / 2**datasets:.2g}" if datasets <= _COARSE else ""
                words += f"; 'p datasets' counts each of the {datasets} datasets once{least}"
            lines.append(f"{words}.")
        scored = [outcome.name for outcome in self.outcomes.values() if outcome.uses_scores]
        if scored and self.splits > 1:
            lines.append(
                f"Judged and compared on the first of {self.splits} splits only: {', '.join(scored)}. Their scores "
                "have seen test images of the others."
            )
        if self.fixed_model is not None:
            lines.append(f"Best fixed model: {self.fixed_model}, selected with the errors of all tasks.")
        if counts := [f"{row['strategy']} {row['measured']:.3g}" for row in self.rows if row["measured"]]:
            lines.append(
                f"Models measured per task: {', '.join(counts)}. They are measured on one half of the test images and "
                "evaluated on the other, both ways in turn, so tau, top-1 and top-3 have the noise of half the images."
            )
        if len(self.left_out) <= 2:
            return [*lines, *(f"Left out: {name} ({reason.split('. ')[0]})" for name, reason in self.left_out.items())]
        what = f"{len(self.left_out)} strategies, '{next(iter(self.left_out))}' and others"
        why = "because the meta-task lacks what they need (`left_out` or --json lists the reasons)"
        return [*lines, f"Left out: {what}, {why}."]


def evaluate(
    metatask: MetaTask | View,
    strategies: str | Sequence[str | Strategy] | None = None,
    *,
    shots: str | int | None = None,
    probe: str | None = None,
    method: str | None = None,
    family: str | None = None,
    leave: Leave = "task",
    tasks: Sequence[str] | None = None,
    resamples: int = 10_000,
    seed: int = 0,
    report: Report = silent,
) -> Evaluation:
    """How well strategies select models for tasks whose errors they do not know.

    Every task is predicted once, by strategies that were fitted only on the others. Strategies that measure models on
    the task are evaluated on different images, see `Outcome`. Models that have seen a task are never selected for it,
    nor are those whose error on it is not known.

    Args:
        metatask: tasks, models and errors; of several protocols and spaces, one is selected, unless it is a view.
        strategies: names from `STRATEGIES` or your own; None takes all for which the meta-task has the data.
        shots: see `MetaTask.select`, as are `probe` and `method`.
        probe: that tasks were embedded with.
        method: by which they were embedded.
        family: only the tasks of one family. If these are all of one dataset and that is left out, the tasks of
            other families are used instead.
        leave: "task" leaves out the task itself; "dataset" all tasks of its dataset, which is harder and fairer;
            "domain" also drops models that were fine-tuned on its dataset.
        tasks: names of the tasks to predict; all by default.
        resamples: samples of tasks for the intervals.
        seed: of these samples.
        report: opens a progress bar, see `task2vec.progress`.

    Raises:
        UsageError: There is no such strategy, nothing is left to learn from, or no task to predict.

    Example:
        >>> from task2vec.metatask import bundled_metatask
        >>> found = evaluate(bundled_metatask(), ["chance", "average_best"], family="labels")
        >>> bool(found.outcomes["average_best"].errors.mean() < found.outcomes["chance"].errors.mean())
        True
    """
    if leave not in get_args(Leave):
        raise UsageError(
            f"leave={leave!r} is unknown, so no task can be left out. Choose one of: {', '.join(get_args(Leave))}"
        )
    strategies = [strategies] if isinstance(strategies, str) else strategies or list(STRATEGIES)
    chosen = [find_strategy(one) if isinstance(one, str) else one for one in strategies]
    measures = {strategy.name: getattr(strategy, "measures", 0) for strategy in chosen}  # your own may have none
    uses_scores = {strategy.name: getattr(strategy, "uses_scores", False) for strategy in chosen}
    is_view = isinstance(metatask, View)
    whole = metatask if is_view else metatask.select(shots, probe=probe, method=method)
    selected = whole if family is None else whole.subset(family=family)
    if family is not None and leave != "task" and len(set(selected.datasets)) == 1:
        tasks = [task.name for task in selected.tasks] if tasks is None else tasks
        selected = whole
    names, datasets = [task.name for task in selected.tasks], np.array(selected.datasets)
    if unknown := sorted(set(tasks or ()) - set(names)):
        raise UsageError(f"'{unknown[0]}' is not one of the {len(names)} tasks of the meta-task. Name one of them.")
    allowed = np.isfinite(selected.mean) & selected.is_candidate
    if leave == "domain":
        allowed &= datasets[:, None] != np.array([model.source_dataset or "" for model in selected.models])
    rows = [row for row, name in enumerate(names) if allowed[row].sum() >= 2 and (tasks is None or name in tasks)]
    if not rows:
        raise UsageError(
            "no task has two candidates with a known error, so there is nothing to select from. Measure more errors: "
            "task2vec metatask measure"
        )
    groups = np.arange(len(names)) if leave == "task" else datasets
    # By row and the half of the test images that was measured on, if any.
    found: dict[str, dict[tuple[int, int | None], Prediction]] = {strategy.name: {} for strategy in chosen}
    halves = {name: (0, 1) if measures[name] else (None,) for name in found}
    seconds, left_out = dict.fromkeys(found, 0.0), {}
    if selected.halves is None:
        why = "errors on two halves of the test images are not known, so no model can be measured on one of them only"
        left_out |= {name: why for name in found if measures[name]}
    folds = dict.fromkeys(groups[rows].tolist())
    step = report("strategies", len(folds) * len(chosen))
    for fold in folds:
        known = np.flatnonzero(groups != fold)
        if not len(known):
            raise UsageError(
                f"with one {leave} left out there is no task to learn from. Leave out one task at a time, or add tasks "
                "of other datasets whose errors are known: task2vec metatask measure"
            )
        learned = selected.only(known)
        unscored = replace(learned, scores={})
        queries = {
            (row, half): replace(selected.query(row, known=known, half=half), is_candidate=allowed[row])
            for row in rows
            for half in {half for each in halves.values() for half in each}
            if groups[row] == fold
        }
        for strategy in chosen:
            begin = time.perf_counter()
            try:
                if strategy.name not in left_out:
                    is_scored = uses_scores[strategy.name]
                    predict = strategy.fit(learned if is_scored else unscored)
                    for key in (key for key in queries if key[1] in halves[strategy.name]):
                        query = queries[key] if is_scored else replace(queries[key], scores={})
                        found[strategy.name][key] = predict(query)
            except UndefinedScoreError as error:
                left_out[strategy.name] = str(error)
            seconds[strategy.name] += time.perf_counter() - begin
            step(1)
    # By whether it is the first split alone, and the half of the test images that was measured on.
    judged: dict[tuple[bool, int | None], np.ndarray] = {
        (is_first, None): _mask(selected.errors, allowed, is_first) for is_first in (False, True)
    }
    if selected.halves is not None:  # what was measured on one half is judged on the other
        for is_first, half in product((False, True), (0, 1)):
            judged[is_first, half] = _mask(selected.halves[..., 1 - half], allowed, is_first)
    if blank := [names[row] for row in rows if not np.isfinite(judged[True, None][row]).any()]:
        why = f"no error on '{blank[0]}' by the first split is known, and scores have seen test images of the others"
        left_out |= {name: why for name in found if uses_scores[name]}
    errors = judged[False, None][rows]
    apart = None if selected.halves is None else selected.halves[rows]
    optimum, chosen_on = unbiased_optimum(selected.errors[rows], allowed[rows], apart)
    means = np.array([errors[datasets[rows] == one].mean(0) for one in np.unique(datasets[rows])]).mean(0)
    fixed = int(np.nanargmin(means)) if np.isfinite(means).any() else None
    outcomes = {}
    for name in (name for name in found if name not in left_out):
        is_first, own = uses_scores[name], found[name]
        scores = [[_score(own[row, half], judged[is_first, half][row]) for half in halves[name]] for row in rows]
        both = {key: np.array([[one[key] for one in each] for each in scores]) for key in scores[0][0]}
        arrays: dict[str, Any] = {key: None if np.isnan(each).any() else each.mean(1) for key, each in both.items()}
        arrays |= {"chosen": both["chosen"][:, 0], "measured": np.minimum(measures[name], allowed[rows].sum(1))}
        firsts = [[_average_first(own[row, half], judged[True, half][row]) for half in halves[name]] for row in rows]
        arrays |= {"first_errors": np.mean(firsts, axis=1), "uses_scores": is_first}
        outcomes[name] = Outcome(name, **arrays, seconds=seconds[name] / len(rows))
    by_first = judged[True, None][rows]
    first = References(
        np.min(np.where(np.isfinite(by_first), by_first, np.inf), axis=1),
        None if optimum is None else optimum[:, 0],
        None if fixed is None else by_first[:, fixed],
    )
    return Evaluation(
        tuple(names[row] for row in rows),
        tuple(datasets[rows].tolist()),
        tuple(model.name for model in selected.models),
        leave,
        np.nanmin(errors, axis=1),
        None if optimum is None else average_known(optimum, 1),
        chosen_on,
        None if fixed is None else errors[:, fixed],
        None if fixed is None else selected.models[fixed].name,
        first,
        len(selected.seeds),
        outcomes,
        left_out,
        resamples,
        seed,
    )


def _mask(errors: np.ndarray, allowed: np.ndarray, is_first: bool) -> np.ndarray:
    """(T, M) means over splits, or errors on the first one alone; NaN for models that may not be selected."""
    return np.where(allowed, errors[:, :, 0] if is_first else average_known(errors, 2), np.nan)


def _average_first(prediction: Prediction, errors: np.ndarray) -> float:
    """The error of the model that is ranked first; of several, their mean. NaN where no error is known."""
    allowed = np.isfinite(errors)
    places = prediction.places()[allowed]
    return float(errors[allowed][places == places.min()].mean()) if allowed.any() else float("nan")


def _score(prediction: Prediction, errors: np.ndarray) -> dict[str, float]:
    """How good the prediction for a task is, as `Outcome` names it; `errors` are NaN for models that do not count."""
    allowed = np.isfinite(errors)
    places, row = prediction.places()[allowed], errors[allowed]
    return {
        "chosen": int(prediction.order(allowed)[0]),
        "errors": _average_first(prediction, errors),
        "tau": weigh_tau(places, row),
        "top1": hit(places, row, 1),
        "top3": hit(places, row, 3),
        "fidelity": find_fidelity(prediction.loss[allowed], row),
    }


def compare_sums(
    name: str, above: np.ndarray, below: np.ndarray, draws: Mapping[str, np.ndarray], *, less: float = 0
) -> dict[str, float | None]:
    """100 (sum(above) / sum(below) - less) over the tasks where it is known, with its intervals."""
    known = np.isfinite(above)
    total = below[known].sum()
    row = {name: 100 * float(above[known].sum() / total - less) if total > 0 else None}
    for kind, weights in draws.items():
        for end, value in zip(("low", "high"), find_interval(weights, above, below), strict=True):
            row[f"{name}{kind}_{end}"] = 100 * (value - less) if np.isfinite(value) else None
    return row


def unbiased_optimum(
    errors: np.ndarray, is_candidate: np.ndarray, halves: np.ndarray | None = None
) -> tuple[np.ndarray | None, Literal["halves", "seeds"] | None]:
    """(T, S) the error of the best candidate of every task by split, and what it was chosen on.

    It is chosen on one half of the test images, by the mean over all splits, and measured on the other half; then the
    other way round, and both are averaged. Where errors on halves are not known, it is chosen on all other splits and
    measured on the one: all splits are of the same images, so this is still a little too low. Of several that are
    equally good the mean is taken. The smallest error is much lower than either, for the noise is chosen with it.

    Args:
        errors: (T, M, S) test errors by split.
        is_candidate: (T, M) which models may be chosen.
        halves: (T, M, S, 2) errors on two halves of the test images.

    Returns:
        The errors, averaged over splits the optimum; and "halves", or "seeds" of the splits. None twice where some task
        has no candidate with all that is needed, as with a single split and no halves.

    Example:
        >>> unbiased_optimum(np.array([[[0.1, 0.4], [0.3, 0.3]]]), np.ones((1, 2), dtype=bool))
        (array([[0.3, 0.4]]), 'seeds')
    """
    if halves is not None:
        known = np.where(is_candidate[:, :, None, None], halves, np.nan)
        both = [_measure_best(known[..., half].mean(2), known[..., 1 - half]) for half in (0, 1)]
        optimum = np.mean(both, axis=0)
        if np.isfinite(optimum).all():
            return optimum, "halves"
    if errors.shape[2] > 1:
        known = np.where(is_candidate[:, :, None], errors, np.nan)
        others = [average_known(np.delete(known, split, axis=2), 2) for split in range(errors.shape[2])]
        columns = [_measure_best(means, known[:, :, [split]]) for split, means in enumerate(others)]
        optimum = np.concatenate(columns, axis=1)
        if np.isfinite(average_known(optimum, 1)).all():
            return optimum, "seeds"
    return None, None


def _measure_best(means: np.ndarray, measured: np.ndarray) -> np.ndarray:
    """(T, S) of (T, M, S) measured errors those of the smallest of (T, M) means; NaN where nothing is known."""
    means = np.where(np.isfinite(means) & np.isfinite(measured).all(2), means, np.inf)
    is_best = (means <= means.min(1, keepdims=True) + _TIE) & np.isfinite(means)
    return average_known(np.where(is_best[:, :, None], measured, np.nan), 1)


def hit(places: np.ndarray, errors: np.ndarray, first: int) -> float:
    """Probability that one of the best models is among the `first` ranked; shared places are drawn by lot.

    Example:
        >>> hit(np.array([0, 0, 0, 0]), np.array([0.1, 0.2, 0.3, 0.4]), 3)
        0.75
    """
    is_best, first = errors <= errors.min() + _TIE, min(first, len(errors))
    last = np.sort(places)[first - 1]  # the place where the first ones end, which others may share
    ahead, here = places < last, places == last
    if is_best[ahead].any():
        return 1.0
    size, room = int(here.sum()), first - int(ahead.sum())
    return 1 - comb(size - int(is_best[here].sum()), room) / comb(size, room)


def weigh_tau(places: np.ndarray, errors: np.ndarray) -> float:
    """Weighted Kendall's tau of ranking and errors (Vigna 2015): the top counts more. 0 if all are equal."""
    if len(errors) < 2 or np.ptp(places) == 0 or np.ptp(errors) == 0:
        return 0.0
    return float(np.asarray(stats.weightedtau(-places.astype(np.float64), -errors)[0]))


def find_fidelity(loss: np.ndarray, errors: np.ndarray) -> float:
    """Pearson's correlation of gaps in loss and gaps in errors, over all pairs of models that have a loss.

    Over all pairs it is that of the values themselves: sum over pairs of (a_j - a_k) (b_j - b_k) is twice their number
    times the covariance. 0 if all are equal or only one has a loss.
    """
    known = np.isfinite(loss)
    a, b = loss[known], errors[known]
    if len(a) < 2 or np.ptp(a) <= 1e-12 * np.abs(a).max() or np.ptp(b) == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def draw_weights(groups: np.ndarray, resamples: int, seed: int) -> np.ndarray:
    """(resamples, T) how often each task is in a sample that groups are drawn for with replacement."""
    names, members = np.unique(groups, return_inverse=True)
    drawn = np.random.default_rng(seed).multinomial(len(names), np.full(len(names), 1 / len(names)), size=resamples)
    return drawn[:, members].astype(np.float64)


def find_interval(weights: np.ndarray, above: np.ndarray, below: np.ndarray) -> tuple[float, float]:
    """The middle 95% of sum(above) / sum(below) over weighted samples of tasks; where `below` is 0 a task is left out.

    Example:
        >>> find_interval(draw_weights(np.arange(9), 99, 0), np.full(9, 0.5), np.ones(9))
        (0.5, 0.5)
    """
    counted = np.isfinite(above) & np.isfinite(below)
    sums = weights @ np.where(counted, below, 0)
    ratios = (weights @ np.where(counted, above, 0))[sums > 0] / sums[sums > 0]
    if not len(ratios):
        return float("nan"), float("nan")
    low, high = np.percentile(ratios, [2.5, 97.5])
    return float(low), float(high)


def compare_paired(gaps: np.ndarray, groups: np.ndarray | None = None) -> float:
    """The two-sided p of no difference: how often the mean is as far from 0 if signs of gaps are flipped at random.

    Gaps that are not known are left out. With groups, their mean gaps are flipped: each dataset counts once, however
    many tasks it has, for tasks of one dataset are alike. Of few gaps that differ from 0 all signs are tried, so that
    of six p is 2 of 64 at least; of more than that, many are drawn, and p is (1 + hits) / (1 + draws).

    Example:
        >>> compare_paired(np.array([-1.0, -2.0, -3.0, -4.0, -5.0, *np.zeros(44)]))
        0.0625
        >>> compare_paired(np.array([-1.0, -1.2, -0.8, -2.0, -1.5]), np.array(["a", "a", "b", "c", "d"]))
        0.125
    """
    known = np.isfinite(gaps)
    gaps, groups = gaps[known], None if groups is None else groups[known]
    values = gaps if groups is None else np.array([gaps[groups == one].mean() for one in np.unique(groups)])
    values = values[np.abs(values) > 1e-12]
    if not len(values):
        return 1.0
    if is_exact := len(values) <= _FEW:
        signs = 1 - 2 * (np.arange(2 ** len(values))[:, None] >> np.arange(len(values)) & 1)
    else:
        signs = np.random.default_rng(0).choice([-1, 1], size=(_DRAWS, len(values)))
    is_hit = np.abs(signs @ values) >= abs(values.sum()) - 1e-9 * np.abs(values).sum()  # but for rounding
    return float(is_hit.mean() if is_exact else (1 + is_hit.sum()) / (1 + len(signs)))
