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
* coverage, width, brier: of strategies that give intervals or probabilities.
* gap, gap_low, gap_high, p: points above the average-best model, an interval over samples of tasks, and Wilcoxon's p.
* gap_group_low, gap_group_high, p_group: the same over whole datasets, which is fairer and shows less: the interval
  over samples of datasets, and the p of flipping the signs of the datasets' means, exact where there are few.
* fixed_gap, fixed_gap_low, ..., p_fixed, p_fixed_group: the same against the best fixed model, which has the smallest
  mean error over all datasets, including the predicted one. It is known only in hindsight, and harder to beat than the
  average-best model: if two models are close, leaving a task out favours the one that is worse on it.
* measured: how many models it measures on a task, on average; that takes most of the time in practice.
* seconds: to fit and to predict, per task.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import comb
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from scipy import stats

from task2vec.errors import UndefinedScoreError, UsageError
from task2vec.experts.metatask import MetaTask
from task2vec.progress import Report, silent
from task2vec.select.strategies import AVERAGE_BEST, STRATEGIES, Prediction, Strategy, average_known, find_strategy
from task2vec.storage import write_csv
from task2vec.text import format_table, pluralize

Leave = Literal["task", "dataset", "domain"]
# Errors this near are the same number of wrong images.
_TIE = 1e-5
# So many gaps at most are compared under all their signs; of more, so many signs are drawn.
_FEW, _DRAWS = 13, 20_000
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
    ("coverage", "coverage", "{:.0f}%"),
    ("over average-best", "gap", "{:+.1f}"),
    ("p", "p", "{:.2g}"),
    ("p datasets", "p_group", "{:.2g}"),
    ("over best fixed", "fixed_gap", "{:+.1f}"),
    ("p fixed", "p_fixed_group", "{:.2g}"),
    ("ms", "ms", "{:.1f}"),
)


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
        covered: share of the candidates whose error is in its interval; None if it gives none.
        widths: mean width of those intervals.
        brier: Brier score of its probabilities; None if it gives none.
        measured: how many models it measures on each task.
        seconds: to fit and to predict, per task.
    """

    name: str
    chosen: np.ndarray
    errors: np.ndarray
    tau: np.ndarray
    top1: np.ndarray
    top3: np.ndarray
    fidelity: np.ndarray
    covered: np.ndarray | None
    widths: np.ndarray | None
    brier: np.ndarray | None
    measured: np.ndarray
    seconds: float


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
            None where there is only one split.
        chosen_on: what that was selected on: "halves" of the test images, or "seeds" of the splits.
        fixed: (T) error of the best fixed model; None if no model has an error on every task.
        fixed_model: its name.
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

    def _summarise(self, outcome: Outcome, draws: Mapping[str, np.ndarray]) -> dict[str, Any]:
        errors, ones = outcome.errors, np.ones(len(outcome.errors))
        row: dict[str, Any] = {"strategy": outcome.name, "tasks": len(errors), "error": 100 * float(errors.mean())}
        for prefix, optimum in (("", self.optimum), ("smallest_", self.smallest)):
            if optimum is not None:
                ratios = np.divide(errors, optimum, out=np.full(len(errors), np.nan), where=optimum > 0)
                row |= _compare(f"{prefix}increase", errors, optimum, draws, less=1)
                row |= _compare(f"{prefix}mean_increase", ratios, ones, draws, less=1)
                row |= _compare(f"{prefix}regret", errors - optimum, ones, draws)
        row |= {name: float(getattr(outcome, name).mean()) for name in ("tau", "top1", "top3", "fidelity")}
        means = {"coverage": (100, outcome.covered), "width": (100, outcome.widths), "brier": (1, outcome.brier)}
        row |= {name: None if each is None else factor * float(each.mean()) for name, (factor, each) in means.items()}
        baseline = self.outcomes.get(AVERAGE_BEST)
        others = {"": None if baseline is None or baseline is outcome else baseline.errors, "fixed_": self.fixed}
        for prefix, other in others.items():
            names = ("gap", "gap_low", "gap_high", "gap_group_low", "gap_group_high")
            row |= dict.fromkeys(f"{prefix}{name}" for name in names)
            p = f"p_{prefix}".rstrip("_")
            row |= {p: None, f"{p}_group": None}
            if other is not None:
                gaps = errors - other
                row |= _compare(f"{prefix}gap", gaps, ones, draws) | {p: compare_paired(gaps)}
                row[f"{p}_group"] = compare_groups(gaps, np.array(self.datasets)) if "_group" in draws else None
        return row | {"measured": float(outcome.measured.mean()), "seconds": outcome.seconds}

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
        if AVERAGE_BEST in self.outcomes and 1 < datasets < count and len(self.outcomes) > 1:
            least = f"; with {datasets} of them it cannot be below {2 / 2**datasets:.2g}" if datasets <= _COARSE else ""
            lines.append(f"p treats tasks as independent; 'p datasets' counts each dataset once{least}.")
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
    metatask: MetaTask,
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
        metatask: tasks, models and errors; of several protocols and spaces, one is selected.
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
        >>> from task2vec.experts import bundled_metatask
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
    whole = metatask.select(shots, probe=probe, method=method)
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
            "task2vec error-matrix"
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
                "of other datasets whose errors are known: task2vec error-matrix"
            )
        learned = selected.only(known)
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
                    predict = strategy.fit(learned)
                    own = [key for key in queries if key[1] in halves[strategy.name]]
                    found[strategy.name] |= {key: predict(queries[key]) for key in own}
            except UndefinedScoreError as error:
                left_out[strategy.name] = str(error)
            seconds[strategy.name] += time.perf_counter() - begin
            step(1)
    judged: dict[int | None, np.ndarray] = {None: np.where(allowed, selected.mean, np.nan)}
    if selected.halves is not None:  # what was measured on one half is judged on the other
        apart = average_known(selected.halves[:, :, 0], 2)
        judged |= {half: np.where(allowed, apart[:, :, 1 - half], np.nan) for half in (0, 1)}
    errors = judged[None][rows]
    optimum, chosen_on = _find_optimum(selected, rows, allowed[rows])
    means = np.array([errors[datasets[rows] == one].mean(0) for one in np.unique(datasets[rows])]).mean(0)
    fixed = int(np.nanargmin(means)) if np.isfinite(means).any() else None
    outcomes = {}
    for name in (name for name in found if name not in left_out):
        scores = [[_score(found[name][row, half], judged[half][row]) for half in halves[name]] for row in rows]
        both = {key: np.array([[one[key] for one in each] for each in scores]) for key in scores[0][0]}
        arrays: dict[str, Any] = {key: None if np.isnan(each).any() else each.mean(1) for key, each in both.items()}
        arrays |= {"chosen": both["chosen"][:, 0], "measured": np.minimum(measures[name], allowed[rows].sum(1))}
        outcomes[name] = Outcome(name, **arrays, seconds=seconds[name] / len(rows))
    return Evaluation(
        tuple(names[row] for row in rows),
        tuple(datasets[rows].tolist()),
        tuple(model.name for model in selected.models),
        leave,
        np.nanmin(errors, axis=1),
        optimum,
        chosen_on,
        None if fixed is None else errors[:, fixed],
        None if fixed is None else selected.models[fixed].name,
        outcomes,
        left_out,
        resamples,
        seed,
    )


def _find_optimum(
    metatask: MetaTask, rows: list[int], allowed: np.ndarray
) -> tuple[np.ndarray | None, Literal["halves", "seeds"] | None]:
    """The unbiased optimum, and what it was selected on: halves of the test images if they are known, or else seeds."""
    if metatask.halves is not None:
        optimum = select_apart(metatask.halves[rows, :, 0].mean(2), allowed)
        if np.isfinite(optimum).all():
            return optimum, "halves"
    optimum = select_apart(metatask.errors[rows, :, 0], allowed)
    return (optimum, "seeds") if np.isfinite(optimum).all() else (None, None)


def _score(prediction: Prediction, errors: np.ndarray) -> dict[str, float]:
    """How good the prediction for a task is, as `Outcome` names it; `errors` are NaN for models that do not count."""
    allowed = np.isfinite(errors)
    places, row = prediction.places()[allowed], errors[allowed]
    scores = {
        "chosen": int(prediction.order(allowed)[0]),
        "errors": float(row[places == places.min()].mean()),
        "tau": weigh_tau(places, row),
        "top1": hit(places, row, 1),
        "top3": hit(places, row, 3),
        "fidelity": find_fidelity(prediction.loss[allowed], row),
    } | dict.fromkeys(("covered", "widths", "brier"), np.nan)
    if prediction.low is not None and prediction.high is not None:
        low, high = prediction.low[allowed], prediction.high[allowed]
        scores |= {"covered": float(((low <= row) & (row <= high)).mean()), "widths": float((high - low).mean())}
    if prediction.p_best is not None:
        scores["brier"] = find_brier(np.nan_to_num(prediction.p_best[allowed]), row)
    return scores


def _compare(
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


def select_apart(measured: np.ndarray, is_candidate: np.ndarray) -> np.ndarray:
    """(T) the error of the best candidate, selected on all parts of (T, M, parts) but one and measured on that.

    It is averaged over the parts; of several that are equally good, their mean is taken. NaN where an error is known in
    fewer than two parts. The smallest mean over all parts is lower, for the noise is selected with it.

    Example:
        >>> select_apart(np.array([[[0.1, 0.4], [0.3, 0.3]]]), np.ones((1, 2), dtype=bool))
        array([0.35])
    """
    known = np.where(is_candidate[:, :, None], measured, np.nan)
    found = np.full((len(measured), measured.shape[2]), np.nan)
    for part in range(measured.shape[2] if measured.shape[2] > 1 else 0):
        means = average_known(np.delete(known, part, axis=2), 2)
        means = np.where(np.isfinite(means + known[:, :, part]), means, np.inf)
        is_best = (means <= means.min(1, keepdims=True) + _TIE) & np.isfinite(means)
        found[:, part] = average_known(np.where(is_best, measured[:, :, part], np.nan), 1)
    return average_known(found, 1)


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


def find_brier(p_best: np.ndarray, errors: np.ndarray) -> float:
    """Brier score of the probabilities of being best: 0 if certain and right, 2 if certain and wrong."""
    is_best = errors <= errors.min() + _TIE
    total = p_best.sum()
    return float(np.square(p_best / (total if total > 0 else 1) - is_best / is_best.sum()).sum())


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


def compare_paired(gaps: np.ndarray) -> float:
    """The p of no difference: Wilcoxon's signed ranks of gaps over tasks, two-sided; 1 if there is none.

    Of few tasks that differ it is exact: by the normal curve, five of the same sign among many equal ones would have
    p = 0.04, where chance alone does that once in sixteen times.

    Example:
        >>> compare_paired(np.array([-1.0, -2.0, -3.0, -4.0, -5.0, *np.zeros(44)]))
        0.0625
    """
    differing = gaps[np.abs(gaps) > 1e-12]
    if len(differing) == 0:
        return 1.0
    if len(differing) > _FEW:
        return float(np.asarray(stats.wilcoxon(gaps)[1]))
    return _flip_signs(np.sign(differing) * stats.rankdata(np.abs(differing)))


def compare_groups(gaps: np.ndarray, groups: np.ndarray) -> float:
    """The p of no difference where tasks of one dataset are alike: the signs of the datasets' mean gaps are flipped.

    Each dataset counts once, however many tasks it has. Of six datasets all signs are tried, and p cannot be less than
    2 of 64.

    Example:
        >>> compare_groups(np.array([-1.0, -1.2, -0.8, -2.0, -1.5]), np.array(["a", "a", "b", "c", "d"]))
        0.125
    """
    return _flip_signs(np.array([gaps[groups == one].mean() for one in np.unique(groups)]))


def _flip_signs(values: np.ndarray) -> float:
    """The share of all signs, or of many that are drawn, whose sum is as far from 0 as that of the values."""
    if len(values) <= _FEW:
        signs = np.array(list(product((-1, 1), repeat=len(values))))
    else:
        signs = np.random.default_rng(0).choice([-1, 1], size=(_DRAWS, len(values)))
        signs[0] = 1  # the observed one is one of them
    return float((np.abs(signs @ values) >= abs(values.sum()) - 1e-12).mean())
