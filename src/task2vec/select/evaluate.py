"""How well strategies select models: every task is predicted as if its errors, or those of its dataset, were unknown.

The columns of `Evaluation.rows`; errors and what is derived from them in percent:

* strategy, tasks: its name, and how many tasks were predicted.
* error: mean error of its choices.
* increase: how much more that is than the optimum, sum over tasks by sum over tasks ("ratio of means").
* mean_increase: the same for each task, averaged over tasks ("mean of ratios"); tasks of optimum 0 are left out.
* smallest_increase, smallest_mean_increase: both against the smallest error, as in the paper, which is biased low.
* regret, smallest_regret: points above the two optima.
* ..._low, ..._high: 95 % of samples of tasks; ..._group_low, ..._group_high: of samples of whole datasets, where there
  are several.
* tau, top1, top3, fidelity: see `Outcome`.
* coverage, width, brier: of strategies that give intervals or probabilities.
* gap, gap_low, gap_high, p: points above the average-best model, an interval over samples of tasks, and Wilcoxon's p.
* gap_group_low, gap_group_high, p_group: the same over whole datasets, which is fairer and shows less: the interval
  over samples of datasets, and the p of flipping the signs of the datasets' means, exact where there are few.
* seconds: to fit and to predict, per task.
"""

import csv
import io
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from math import comb
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from scipy import stats

from task2vec.errors import ResourceError, UndefinedScoreError, UsageError
from task2vec.experts.metatask import MetaTask, Query
from task2vec.progress import Report, silent
from task2vec.select.strategies import AVERAGE_BEST, STRATEGIES, Prediction, Strategy, find_strategy
from task2vec.storage import write_whole
from task2vec.text import pluralize

Leave = Literal["task", "dataset", "domain"]
# Errors this near are the same number of wrong images.
_TIE = 1e-5
# So many gaps at most are compared under all their signs; of more, so many signs are drawn.
_FEW, _DRAWS = 13, 20_000
# Up to so many datasets, the smallest p that they can have is worth a sentence.
_COARSE = 8


@dataclass(frozen=True, eq=False, repr=False)
class Outcome:
    """The result of one strategy. Arrays have an entry for each task that was predicted.

    Attributes:
        name: of the strategy.
        needs_images: whether candidates had to process the task's images first; that is not in `seconds`.
        chosen: number of the model that it ranks first; of equals the one that is listed first.
        errors: of its choice; where several share the first place, the mean.
        tau: weighted Kendall's tau of its ranking and the errors.
        top1: probability that its choice is a best model.
        top3: probability that a best model is among its first three.
        fidelity: correlation of gaps in its ranking's numbers and gaps in errors.
        covered: share of the candidates whose error is in its interval; None if it gives none.
        widths: mean width of those intervals.
        brier: Brier score of its probabilities; None if it gives none.
        seconds: to fit and to predict, per task.
    """

    name: str
    needs_images: bool
    chosen: np.ndarray
    errors: np.ndarray
    tau: np.ndarray
    top1: np.ndarray
    top3: np.ndarray
    fidelity: np.ndarray
    covered: np.ndarray | None
    widths: np.ndarray | None
    brier: np.ndarray | None
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
    outcomes: Mapping[str, Outcome]
    left_out: Mapping[str, str] = field(default_factory=dict)
    resamples: int = 10_000
    seed: int = 0

    def __repr__(self) -> str:
        """The evaluation in one line."""
        return f"Evaluation({len(self.outcomes)} strategies, {len(self.tasks)} tasks, leave one {self.leave} out)"

    def __str__(self) -> str:
        """The table, with an explanation below."""
        rows = self.format_rows()
        heads = list(rows[0]) if rows else ["strategy"]
        lines: list[Sequence[str]] = [heads, *([row[head] for head in heads] for row in rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
        text = []
        for line in lines:
            cells = zip(line, widths, strict=True)
            text.append("  ".join(c.rjust(wide) if place else c.ljust(wide) for place, (c, wide) in enumerate(cells)))
        return "\n".join([*(line.rstrip() for line in text), "", *self.explain()])

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """A row of plain numbers for each strategy; the top of this module explains the columns."""
        draws = {"": draw_weights(np.arange(len(self.datasets)), self.resamples, self.seed)}
        if len(set(self.datasets)) > 1:
            draws["_group"] = draw_weights(np.array(self.datasets), self.resamples, self.seed)
        return [self._summarise(outcome, draws) for outcome in self.outcomes.values()]

    def _summarise(self, outcome: Outcome, draws: Mapping[str, np.ndarray]) -> dict[str, Any]:
        count, error = len(outcome.errors), 100 * float(outcome.errors.mean())
        row: dict[str, Any] = {"strategy": outcome.name, "tasks": count, "error": error}
        if self.optimum is not None:
            row |= _compare(outcome.errors, self.optimum, draws, "")
        row |= _compare(outcome.errors, self.smallest, draws, "smallest_")
        row |= {name: float(getattr(outcome, name).mean()) for name in ("tau", "top1", "top3", "fidelity")}
        for name, values, factor in (
            ("coverage", outcome.covered, 100),
            ("width", outcome.widths, 100),
            ("brier", outcome.brier, 1),
        ):
            row[name] = None if values is None else factor * float(values.mean())
        row |= dict.fromkeys(("gap", "gap_low", "gap_high", "p", "gap_group_low", "gap_group_high", "p_group"))
        baseline = self.outcomes.get(AVERAGE_BEST)
        if baseline is not None and outcome.name != AVERAGE_BEST:
            gaps, ones = 100 * (outcome.errors - baseline.errors), np.ones(count)
            low, high = find_interval(draws[""], gaps, ones)
            row |= {"gap": float(gaps.mean()), "gap_low": low, "gap_high": high, "p": compare_paired(gaps)}
            if "_group" in draws:
                low, high = find_interval(draws["_group"], gaps, ones)
                p = compare_groups(gaps, np.array(self.datasets))
                row |= {"gap_group_low": low, "gap_group_high": high, "p_group": p}
        return row | {"seconds": outcome.seconds}

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values for JSON, the choice for every task included."""
        choices = {
            outcome.name: [
                {"task": task, "model": self.models[number], "error": float(error)}
                for task, number, error in zip(self.tasks, outcome.chosen, outcome.errors, strict=True)
            ]
            for outcome in self.outcomes.values()
        }
        return {
            "leave": self.leave,
            "tasks": list(self.tasks),
            "datasets": list(self.datasets),
            "smallest": self.smallest.tolist(),
            "optimum": None if self.optimum is None else self.optimum.tolist(),
            "optimum_chosen_on": self.chosen_on,
            "rows": json.loads(json.dumps(self.rows, default=float)),
            "choices": choices,
            "left_out": dict(self.left_out),
        }

    def to_csv(self, path: str | Path) -> Path:
        """Writes the rows to a file, whole or not at all, and returns its path."""
        text = io.StringIO()
        table = csv.DictWriter(text, list(self.rows[0]) if self.rows else ["strategy"], lineterminator="\n")
        table.writeheader()
        for row in self.rows:
            table.writerow({key: f"{value:.6g}" if isinstance(value, float) else value for key, value in row.items()})
        try:
            write_whole(Path(path), text.getvalue().encode())
        except OSError as error:
            raise ResourceError(
                f"the table cannot be written to '{path}': {error.strerror}. Choose another place: --csv FILE"
            ) from error
        return Path(path)

    def format_rows(self) -> list[dict[str, str]]:
        """The numbers that matter most, as text."""

        def signed(value: float | None, unit: str = " %") -> str:
            return "" if value is None else f"{value:+.1f}{unit}"

        def number(value: float | None, form: str) -> str:
            return "" if value is None else format(value, form)

        prefix, found = "" if self.optimum is not None else "smallest_", []
        for row in self.rows:
            ends = (row[f"{prefix}increase_low"], row[f"{prefix}increase_high"])
            found.append(
                {
                    "strategy": row["strategy"],
                    "error %": f"{row['error']:.1f}",
                    "over optimum": signed(row[f"{prefix}increase"]),
                    "95 %": "" if None in ends else f"{ends[0]:+.1f} to {ends[1]:+.1f}",
                    "mean of ratios": signed(row[f"{prefix}mean_increase"]),
                    "over smallest": signed(row["smallest_increase"]),
                    "tau": f"{row['tau']:.2f}",
                    "top-1": f"{row['top1']:.2f}",
                    "top-3": f"{row['top3']:.2f}",
                    "fidelity": f"{row['fidelity']:.2f}",
                    "coverage": "" if row["coverage"] is None else f"{row['coverage']:.0f} %",
                    "over average-best": signed(row["gap"], ""),
                    "p": number(row["p"], ".2g"),
                    "p datasets": number(row["p_group"], ".2g"),
                    "ms": f"{1000 * row['seconds']:.1f}",
                }
            )
        return found

    def explain(self) -> list[str]:
        """What the table's numbers are, in sentences."""
        left = {
            "task": "each task",
            "dataset": "each dataset",
            "domain": "each dataset with the models fine-tuned on it",
        }
        count, smallest = len(self.tasks), 100 * self.smallest.mean()
        lines = [f"{pluralize(count, 'task')}, {left[self.leave]} left out in turn."]
        if self.optimum is None:
            lines.append(
                f"Optimum: the smallest error, {smallest:.1f} % on average. It is biased low, for there is one split."
            )
        else:
            on = "one half of the test images" if self.chosen_on == "halves" else "other splits"
            lines.append(
                f"Optimum: {100 * self.optimum.mean():.1f} % on average, selected on {on} and measured on the rest; "
                f"the smallest error, {smallest:.1f} %, is biased low."
            )
        datasets = len(set(self.datasets))
        if AVERAGE_BEST in self.outcomes and 1 < datasets < count and len(self.outcomes) > 1:
            least = f"; with {datasets} of them it cannot be below {2 / 2**datasets:.2g}" if datasets <= _COARSE else ""
            lines.append(f"p treats tasks as independent; 'p datasets' counts each dataset once{least}.")
        if len(self.left_out) > 2:
            first = next(iter(self.left_out))
            lines.append(
                f"Left out: {len(self.left_out)} strategies, '{first}' and others, for the meta-task lacks what they "
                "need (`left_out` or --json lists the reasons)."
            )
            return lines
        return [*lines, *(f"Left out: {name} ({reason.split('. ')[0]})" for name, reason in self.left_out.items())]


def evaluate(
    metatask: MetaTask,
    strategies: Sequence[str | Strategy] | None = None,
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

    Every task is predicted once, by strategies that were fitted on the others only. Models that have seen a task are
    never selected for it, nor are those whose error on it is not known.

    Args:
        metatask: tasks, models and errors; by several protocols and in several spaces, one is selected.
        strategies: names from `STRATEGIES` or your own; None takes all that the meta-task has what they need for.
        shots: see `MetaTask.select`, as are `probe` and `method`.
        probe: that tasks were embedded with.
        method: by which they were embedded.
        family: only the tasks of one family. If these are all of one dataset and that is left out, the tasks of other
            families are learned from.
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
        raise UsageError(f"leave={leave!r} is unknown. Choose one of: {', '.join(get_args(Leave))}")
    chosen = [find_strategy(one) if isinstance(one, str) else one for one in strategies or list(STRATEGIES)]
    whole = metatask.select(shots, probe=probe, method=method)
    selected = whole if family is None else whole.subset(family=family)
    if family is not None and leave != "task" and len(set(selected.datasets)) == 1:
        tasks = [task.name for task in selected.tasks] if tasks is None else tasks
        selected = whole
    folds = _make_folds(selected, leave, tasks)
    rows = np.array([row for members, _, _ in folds for row in members])
    allowed = np.stack([query.is_candidate for _, _, queries in folds for query in queries])
    predictions, left_out = _predict_all(selected, chosen, folds, report("strategies", len(folds) * len(chosen)))
    order = np.argsort(rows, kind="stable")
    rows, allowed = rows[order], allowed[order]
    errors = np.where(allowed, selected.mean[rows], np.nan)
    optimum, chosen_on = _find_optimum(selected, rows, allowed)
    outcomes = {}
    for strategy, found, seconds in predictions:
        outcomes[strategy.name] = _score(strategy, [found[place] for place in order], errors, seconds)
    return Evaluation(
        tuple(selected.tasks[row].name for row in rows),
        tuple(selected.tasks[row].dataset for row in rows),
        tuple(model.name for model in selected.models),
        leave,
        np.nanmin(errors, axis=1),
        optimum,
        chosen_on,
        outcomes,
        left_out,
        resamples,
        seed,
    )


# Rows that are predicted together, the rows that are known to them, and the queries.
_Fold = tuple[list[int], np.ndarray, list[Query]]


def _make_folds(metatask: MetaTask, leave: str, tasks: Sequence[str] | None) -> list[_Fold]:
    names = [task.name for task in metatask.tasks]
    unknown = sorted(set(tasks or ()) - set(names))
    if unknown:
        raise UsageError(f"'{unknown[0]}' is none of the {len(names)} tasks of the meta-task. Name one of them.")
    datasets = np.array(metatask.datasets)
    sources = np.array([model.source_dataset or "" for model in metatask.models])
    is_known = np.isfinite(metatask.mean) & metatask.is_candidate
    together: dict[object, list[tuple[int, np.ndarray]]] = {}
    for row, name in enumerate(names):
        allowed = is_known[row] & (sources != datasets[row]) if leave == "domain" else is_known[row]
        if allowed.sum() >= 2 and (tasks is None or name in tasks):
            together.setdefault(row if leave == "task" else datasets[row], []).append((row, allowed))
    if not together:
        raise UsageError(
            "no task has two candidates with a known error, so there is nothing to select from. Measure more errors: "
            "task2vec error-matrix"
        )
    folds = []
    for members in together.values():
        row = members[0][0]
        known = np.flatnonzero(datasets != datasets[row] if leave != "task" else np.arange(len(names)) != row)
        if not len(known) and leave == "task":
            raise UsageError(
                f"'{names[row]}' is the only task, so with it left out there is none to learn from. Add tasks whose "
                "errors are known: task2vec error-matrix"
            )
        if not len(known):
            raise UsageError(
                f"with the tasks of '{datasets[row]}' left out there is no task to learn from, for all are of that "
                "dataset. Leave out one task at a time, or add tasks of other datasets."
            )
        queries = [replace(metatask.query(row, known=known), is_candidate=allowed) for row, allowed in members]
        folds.append(([row for row, _ in members], known, queries))
    return folds


def _predict_all(
    metatask: MetaTask, strategies: Sequence[Strategy], folds: Sequence[_Fold], step: Callable[[int], None]
) -> tuple[list[tuple[Strategy, list[Prediction], float]], dict[str, str]]:
    """The predictions of each strategy in the order of the folds, with its seconds per task, and who is left out."""
    found: dict[int, list[Prediction]] = {number: [] for number in range(len(strategies))}
    seconds = [0.0] * len(strategies)
    left_out: dict[str, str] = {}
    for _, rows, queries in folds:
        known = metatask.only(rows)
        for number, strategy in enumerate(strategies):
            if number in found:
                begin = time.perf_counter()
                try:
                    predict = strategy.fit(known)
                    found[number] += [predict(query) for query in queries]
                except UndefinedScoreError as error:
                    left_out[strategy.name] = str(error)
                    del found[number]
                seconds[number] += time.perf_counter() - begin
            step(1)
    return [(strategies[n], each, seconds[n] / len(each)) for n, each in found.items()], left_out


def _find_optimum(
    metatask: MetaTask, rows: np.ndarray, allowed: np.ndarray
) -> tuple[np.ndarray | None, Literal["halves", "seeds"] | None]:
    """The unbiased optimum, and what it was selected on: halves of the test images if they are known, or else seeds."""
    if metatask.halves is not None:
        optimum = select_apart(metatask.halves[rows, :, 0].mean(2), allowed)
        if np.isfinite(optimum).all():
            return optimum, "halves"
    optimum = select_apart(metatask.errors[rows, :, 0], allowed)
    return (optimum, "seeds") if np.isfinite(optimum).all() else (None, None)


def _score(strategy: Strategy, predictions: Sequence[Prediction], errors: np.ndarray, seconds: float) -> Outcome:
    """How good the predictions are; `errors` are NaN for models that may not be selected."""
    found: dict[str, list[float]] = {}
    chosen = []
    for prediction, row in zip(predictions, errors, strict=True):
        allowed = np.isfinite(row)
        chosen.append(int(prediction.order(allowed)[0]))
        places, row = prediction.places()[allowed], row[allowed]
        scores = {
            "errors": float(row[places == places.min()].mean()),
            "tau": weigh_tau(places, row),
            "top1": hit(places, row, 1),
            "top3": hit(places, row, 3),
            "fidelity": find_fidelity(prediction.loss[allowed], row),
        }
        if prediction.low is not None and prediction.high is not None:
            low, high = prediction.low[allowed], prediction.high[allowed]
            scores |= {"covered": float(((low <= row) & (row <= high)).mean()), "widths": float((high - low).mean())}
        if prediction.p_best is not None:
            scores["brier"] = find_brier(np.nan_to_num(prediction.p_best[allowed]), row)
        for key, value in scores.items():
            found.setdefault(key, []).append(value)
    arrays: dict[str, Any] = dict.fromkeys(("covered", "widths", "brier"))
    arrays |= {key: np.array(values) for key, values in found.items() if len(values) == len(predictions)}
    return Outcome(strategy.name, strategy.needs_images, np.array(chosen), **arrays, seconds=seconds)


def _compare(
    errors: np.ndarray, optimum: np.ndarray, draws: Mapping[str, np.ndarray], prefix: str
) -> dict[str, float | None]:
    """Increases and regret over one optimum, with their intervals."""
    row: dict[str, float | None] = {}
    ratios = np.divide(errors, optimum, out=np.full(len(errors), np.nan), where=optimum > 0)
    ones = np.ones(len(errors))
    for name, above, below, less in (
        ("increase", errors, optimum, 1),
        ("mean_increase", ratios, ones, 1),
        ("regret", errors - optimum, ones, 0),
    ):
        known = np.isfinite(above)
        total = below[known].sum()
        row[prefix + name] = 100 * float(above[known].sum() / total - less) if total > 0 else None
        for kind, weights in draws.items():
            for end, value in zip(("low", "high"), find_interval(weights, above, below), strict=True):
                row[f"{prefix}{name}{kind}_{end}"] = 100 * (value - less) if np.isfinite(value) else None
    return row


def select_apart(measured: np.ndarray, is_candidate: np.ndarray) -> np.ndarray:
    """(T) the error of the best candidate, selected on all parts of (T, M, parts) but one and measured on that.

    It is averaged over the parts; of several that are equally good, their mean is taken. NaN where an error is known in
    fewer than two parts. The smallest mean over all parts is lower, for the noise is selected with it.

    Example:
        >>> select_apart(np.array([[[0.1, 0.4], [0.3, 0.3]]]), np.ones((1, 2), dtype=bool))
        array([0.35])
    """
    found = np.full((len(measured), measured.shape[2]), np.nan)
    known = np.isfinite(measured) & is_candidate[:, :, None]
    for part in range(measured.shape[2]):
        rest = np.delete(known, part, axis=2)
        sums, counts = np.where(rest, np.delete(measured, part, axis=2), 0).sum(2), rest.sum(2)
        means = np.divide(sums, counts, out=np.full(sums.shape, np.inf), where=(counts > 0) & known[:, :, part])
        is_best = (means <= means.min(1, keepdims=True) + _TIE) & np.isfinite(means)
        totals = np.where(is_best, measured[:, :, part], 0).sum(1)
        np.divide(totals, is_best.sum(1), out=found[:, part], where=is_best.any(1))
    is_known = np.isfinite(found)
    sums, counts = np.where(is_known, found, 0).sum(1), is_known.sum(1)
    return np.divide(sums, counts, out=np.full(len(found), np.nan), where=counts > 0)


def hit(places: np.ndarray, errors: np.ndarray, first: int) -> float:
    """Probability that one of the best models is among the `first` ranked; shared places are drawn by lot.

    Example:
        >>> hit(np.array([0, 0, 0, 0]), np.array([0.1, 0.2, 0.3, 0.4]), 3)
        0.75
    """
    is_best = errors <= errors.min() + _TIE
    room = first
    for place in np.unique(places):
        here = places == place
        size, good = int(here.sum()), int((here & is_best).sum())
        if size >= room:
            return 1 - comb(size - good, room) / comb(size, room)
        if good:
            return 1.0
        room -= size
    return 1.0


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
    """The middle 95 % of sum(above) / sum(below) over weighted samples of tasks; where `below` is 0 a task is left out.

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
    ranks = stats.rankdata(np.abs(differing))
    signs = np.array(list(product((-1, 1), repeat=len(differing))))
    return float((np.abs(signs @ ranks) >= abs(np.sign(differing) @ ranks)).mean())


def compare_groups(gaps: np.ndarray, groups: np.ndarray) -> float:
    """The p of no difference where tasks of one dataset are alike: the signs of the datasets' mean gaps are flipped.

    Each dataset counts once, however many tasks it has. Of six datasets all signs are tried, and p cannot be less than
    2 of 64.

    Example:
        >>> compare_groups(np.array([-1.0, -1.2, -0.8, -2.0, -1.5]), np.array(["a", "a", "b", "c", "d"]))
        0.125
    """
    means = np.array([gaps[groups == one].mean() for one in np.unique(groups)])
    if len(means) <= _FEW:
        signs = np.array(list(product((-1, 1), repeat=len(means))))
    else:
        signs = np.random.default_rng(0).choice([-1, 1], size=(_DRAWS, len(means)))
        signs[0] = 1  # the observed one is one of them
    return float((np.abs(signs @ means) >= abs(means.sum()) - 1e-12).mean())
