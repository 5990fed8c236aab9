"""How good choices are that are made without measuring, and how good orders of measuring are.

`evaluate` compares strategies, each of which selects one model for a task whose errors it does not know.
`evaluate_proposals` compares orders in which candidates are measured: the first k are measured on one half of the
task's test images, the one with the lowest error is kept, and it is judged on the other half; then the other way round.
With all candidates measured that is the unbiased optimum. The orders:

* average-best: by the models' effects on the log-odds of the errors, whatever the task is;
* nearest: by the symmetric distance of the task from the experts' source tasks; models without one come last;
* domain: the rule with distances of domain embeddings in the place of Task2Vec's;
* rule: two of a portfolio that is weighted by similarity, one nearest expert, repeated (`task2vec.select.propose`).

The columns of `rows`, errors in percent and gaps in points; p is two-sided, see `compare_paired`:

* strategy or order, tasks: which one, and on how many tasks; measured: after how many models, or "all".
* error: the mean over tasks.
* increase: how much more that is than the optimum, sum over tasks by sum over tasks.
* smallest_increase: the same against the smallest error, as in the paper, which is biased low.
* gap, gap_se, p: how far the error is above that of average-best (for proposals: after as many models), the standard
  error over tasks, and the p of flipping the signs of the tasks' gaps; p_group: of flipping those of the datasets' mean
  gaps, which is fairer and shows less.
* domain_gap, p_domain, ...: the same against the order domain; all_gap, p_all, ...: against all candidates measured.
* ..._low, ..._high: 95% of samples of tasks; ..._group_low, ..._group_high: of samples of whole datasets, where there
  are several.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np

from task2vec.errors import DataError, UndefinedScoreError, UsageError
from task2vec.metatask.metatask import MetaTask
from task2vec.metatask.table import average_known
from task2vec.metatask.view import DOMAIN, SYMMETRIC, View
from task2vec.progress import Report, silent
from task2vec.select.propose import choose_width, fill_errors, propose, rank_models
from task2vec.select.strategies import (
    AVERAGE_BEST,
    Predict,
    Prediction,
    Strategy,
    find_known_errors,
    fit_asymmetric,
    fit_average_best,
    fit_chance,
    fit_generic,
    fit_nearest,
)
from task2vec.storage import write_rows
from task2vec.text import format_table, pluralize

Leave = Literal["task", "dataset"]
Known = Literal["family", "all"]
# Errors this near are the same number of wrong images.
_TIE = 1e-5
# Up to so many gaps are compared under all their signs; of more, so many signs are drawn.
_MAX_EXACT_GAPS = 16
_SIGN_DRAWS = 20_000


# --- the strategies by name ------------------------------------------------------------------------------------------


def _fit_model_space(view: View, *, as_published: bool = False) -> Predict:
    from task2vec.select.model_space import fit_model_space

    return fit_model_space(view, as_published=as_published).predict


_ALL_STRATEGIES = (
    Strategy("chance", fit_chance),
    Strategy("generic", fit_generic),
    Strategy(AVERAGE_BEST, fit_average_best),
    Strategy(SYMMETRIC, fit_nearest),
    Strategy("asymmetric", fit_asymmetric),
    Strategy(DOMAIN, partial(fit_nearest, kind=DOMAIN)),
    Strategy("model space published", partial(_fit_model_space, as_published=True)),
    Strategy("model space", _fit_model_space),
)
STRATEGIES: Mapping[str, Strategy] = MappingProxyType({strategy.name: strategy for strategy in _ALL_STRATEGIES})


def find_strategy(name: str) -> Strategy:
    """The strategy of that name.

    Example:
        >>> find_strategy("asymmetric").name
        'asymmetric'
    """
    if name not in STRATEGIES:
        raise UsageError(f"there is no strategy called '{name}'. Choose one of: {'; '.join(STRATEGIES)}")
    return STRATEGIES[name]


# --- what is known of other tasks ------------------------------------------------------------------------------------


def _split_tasks(
    view: View, names: set[str], is_known: np.ndarray, leave: Leave
) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
    """(T, M) which models may be selected; then for all that is left out in turn, rows of known and of predicted tasks.

    Args:
        view: all tasks.
        names: of the tasks to predict.
        is_known: (T, M) whether the error of a model on a task is known.
        leave: see `evaluate`.
    """
    datasets = np.array(view.datasets)
    allowed = view.is_candidate & is_known
    rows = np.flatnonzero([task.name in names for task in view.tasks] & (allowed.sum(1) > 1))
    if not len(rows):
        raise UsageError(
            "no task has two candidates with a known error, so there is nothing to select from. Measure more errors: "
            "task2vec metatask measure"
        )
    groups = np.arange(len(datasets)) if leave == "task" else datasets
    if len(np.unique(groups)) < 2:
        raise UsageError(
            f"with one {leave} left out there is no task to learn from. Leave out one task at a time, or add tasks "
            "of other datasets whose errors are known: task2vec metatask measure"
        )
    left_out = dict.fromkeys(groups[rows].tolist())
    return allowed, [(np.flatnonzero(groups != group), rows[groups[rows] == group]) for group in left_out]


def _select_family(view: View, family: str | None, leave: Leave) -> tuple[View, set[str]]:
    """All tasks that may be known, and the names of those of the family, which are predicted.

    Tasks of one family know each other only, unless their only dataset is left out: then they know all others.
    """
    if leave not in get_args(Leave):
        raise UsageError(
            f"leave={leave!r} is unknown, so no task can be left out. Choose one of: {', '.join(get_args(Leave))}"
        )
    selected = view if family is None else view.subset(family=family)
    is_alone = family is not None and leave != "task" and len(set(selected.datasets)) == 1
    return view if is_alone else selected, {task.name for task in selected.tasks}


# --- results ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class _Comparison(ABC):
    """Errors on the same tasks side by side: what both evaluations have in common.

    Attributes:
        tasks: names of the T tasks that were predicted.
        datasets: the dataset of each.
        leave: what was unknown beside the task itself: nothing ("task"), or its dataset's tasks ("dataset").
        resamples: how many samples of tasks intervals are made of.
    """

    tasks: tuple[str, ...]
    datasets: tuple[str, ...]
    leave: Leave
    resamples: int = 10_000

    def __str__(self) -> str:
        """The table, with an explanation below."""
        rows = self.format_rows()
        return "\n".join([*format_table(rows, text=list(rows[0])[:1])[0], "", *self.explain()])

    @cached_property
    @abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """A row of plain numbers for each line of the table; the top of this module explains the columns."""

    @abstractmethod
    def format_rows(self) -> list[dict[str, str]]:
        """The numbers that matter most, as text."""

    @abstractmethod
    def explain(self) -> list[str]:
        """What the table's numbers are, in sentences."""

    def to_csv(self, path: str | Path) -> Path:
        """Writes the rows to a file, whole or not at all, and returns its path."""
        heads = list(self.rows[0]) if self.rows else ["strategy"]
        return write_rows(path, [heads, *([row.get(head) for head in heads] for row in self.rows)], digits=6)

    @cached_property
    def _draws(self) -> dict[str, np.ndarray]:
        """(resamples, T) samples of tasks, and of whole datasets if there are several, by the name in their columns."""
        draws = {"": draw_weights(np.arange(len(self.tasks)), self.resamples)}
        if len(set(self.datasets)) > 1:
            draws["_group"] = draw_weights(np.array(self.datasets), self.resamples)
        return draws

    def _summarise(
        self, name: str, above: np.ndarray, below: np.ndarray | None = None, *, less: float = 0
    ) -> dict[str, float | None]:
        """100 (sum(above) / sum(below) - less) over the tasks where it is known, with its intervals."""
        below = np.ones(len(above)) if below is None else below
        known = np.isfinite(above)
        total = below[known].sum()
        row = {name: 100 * float(above[known].sum() / total - less) if total > 0 else None}
        for kind, weights in self._draws.items():
            for end, value in zip(("low", "high"), find_interval(weights, above, below), strict=True):
                row[f"{name}{kind}_{end}"] = 100 * (value - less) if np.isfinite(value) else None
        return row

    def _compare(self, gaps: np.ndarray | None, prefix: str = "") -> dict[str, float | None]:
        """The mean of (T) gaps with intervals, standard error, and p over tasks and datasets; None without gaps."""
        name, p = f"{prefix}gap", f"p_{prefix}".rstrip("_")
        ends = ("", "_low", "_high", "_group_low", "_group_high", "_se")
        row: dict[str, float | None] = dict.fromkeys([*(name + end for end in ends), p, f"{p}_group"])
        if gaps is not None:
            row |= self._summarise(name, gaps)
            row[f"{name}_se"] = 100 * float(np.std(gaps) / max(len(gaps) - 1, 1) ** 0.5)
            row[p] = compare_paired(gaps)
            if "_group" in self._draws:
                row[f"{p}_group"] = compare_paired(gaps, np.array(self.datasets))
        return row

    def _explain_leave(self) -> str:
        return f"{pluralize(len(self.tasks), 'task')}, each {self.leave} left out in turn."


# --- strategies ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class Outcome:
    """The result of one strategy. Arrays have an entry for each task that was predicted.

    Attributes:
        chosen: number of the model that it ranks first; of equals the one that is listed first.
        errors: of its choice; where several share the first place, the mean.
    """

    chosen: np.ndarray
    errors: np.ndarray


# The heading of a column, its value, and how that is written; * stands for the optimum that is compared with.
_COLUMNS = (
    ("strategy", "strategy", "{}"),
    ("error %", "error", "{:.1f}"),
    ("over optimum", "*increase", "{:+.1f}%"),
    ("95%", "interval", "{}"),
    ("over smallest", "smallest_increase", "{:+.1f}%"),
    ("over average-best", "gap", "{:+.1f}"),
    ("p", "p", "{:.2g}"),
    ("p datasets", "p_group", "{:.2g}"),
)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Evaluation(_Comparison):
    """Strategies side by side.

    Attributes:
        models: names of all models.
        smallest: (T) the smallest mean error of a candidate: an optimum that is biased low, for noise is selected too.
        optimum: (T) error of the best candidate, chosen on other images than it is measured on; None where no errors on
            two halves of the test images are known. See `unbiased_optimum`.
        outcomes: of the strategies, by name.
        left_out: strategies that cannot be fitted, and why.
    """

    models: tuple[str, ...]
    smallest: np.ndarray
    optimum: np.ndarray | None
    outcomes: Mapping[str, Outcome]
    left_out: Mapping[str, str]

    def __repr__(self) -> str:
        """The evaluation in one line."""
        return f"Evaluation({len(self.outcomes)} strategies, {len(self.tasks)} tasks, leave one {self.leave} out)"

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each strategy."""
        return [self._describe(name, outcome) for name, outcome in self.outcomes.items()]

    def _describe(self, name: str, outcome: Outcome) -> dict[str, Any]:
        errors, baseline = outcome.errors, self.outcomes.get(AVERAGE_BEST)
        optimum = np.full(len(errors), np.nan) if self.optimum is None else self.optimum
        gaps = None if baseline is None or outcome is baseline else errors - baseline.errors
        return {
            "strategy": name,
            "tasks": len(errors),
            "error": 100 * float(errors.mean()),
            **self._summarise("increase", errors, optimum, less=1),
            **self._summarise("smallest_increase", errors, self.smallest, less=1),
            **self._compare(gaps),
        }

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values for JSON, the choice for every task included."""
        choices = {
            name: [
                {"task": task, "error": error, "model": self.models[number]}
                for task, number, error in zip(self.tasks, outcome.chosen, outcome.errors.tolist(), strict=True)
            ]
            for name, outcome in self.outcomes.items()
        }
        plain = {
            name: getattr(self, name)
            for name in ("leave", "tasks", "datasets", "rows", "left_out", "smallest", "optimum")
        }
        plain |= {name: array.tolist() for name, array in plain.items() if isinstance(array, np.ndarray)}
        return plain | {"choices": choices}

    def format_rows(self) -> list[dict[str, str]]:
        """The numbers that matter most, as text."""
        prefix, table = "smallest_" if self.optimum is None else "", []
        for row in self.rows:
            low, high = row[f"{prefix}increase_low"], row[f"{prefix}increase_high"]
            interval = None if low is None or high is None else f"{low:+.1f} to {high:+.1f}"
            cells = (
                (head, (row | {"interval": interval})[key.replace("*", prefix)], form) for head, key, form in _COLUMNS
            )
            table.append({head: "" if value is None else form.format(value) for head, value, form in cells})
        return table

    def explain(self) -> list[str]:
        """What the table's numbers are, in sentences."""
        smallest = f"{100 * self.smallest.mean():.1f}%"
        optimum = f"the smallest error, {smallest} on average. It is biased low."
        if self.optimum is not None:
            optimum = f"{100 * self.optimum.mean():.1f}% on average, selected on one half of the test images and "
            optimum += f"measured on the rest; the smallest error, {smallest}, is biased low."
        lines = [self._explain_leave(), f"Optimum: {optimum}"]
        if any(row["p"] is not None for row in self.rows):
            lines.append("p is two-sided, from flipping the signs of gaps, and treats tasks as independent.")
        if 1 < (datasets := len(set(self.datasets))) < len(self.tasks):
            lines.append(f"p datasets counts each of the {datasets} once, and cannot be below {2 / 2**datasets:.2g}.")
        return lines + [f"Left out: {name} ({reason.split('. ')[0]})." for name, reason in self.left_out.items()]


def evaluate(
    metatask: MetaTask | View,
    strategies: str | Sequence[str | Strategy] | None = None,
    *,
    shots: str | int | None = None,
    probe: str | None = None,
    method: str | None = None,
    family: str | None = None,
    leave: Leave = "task",
    resamples: int = 10_000,
    report: Report = silent,
) -> Evaluation:
    """How well strategies select models for tasks whose errors they do not know.

    Every task is predicted once, by strategies that were fitted only on the others. Models that have seen a task are
    never selected for it, nor are those whose error on it is not known.

    Args:
        metatask: tasks, models and errors; of several protocols and spaces, one is selected, unless it is a view.
        strategies: names from `STRATEGIES` or your own; None takes all for which the meta-task has the data.
        shots: see `MetaTask.select`, as are `probe` and `method`.
        probe: that tasks were embedded with.
        method: by which they were embedded.
        family: only the tasks of one family. If these are all of one dataset and that is left out, the tasks of
            other families are used instead.
        leave: "task" leaves out the task itself; "dataset" all tasks of its dataset, which is harder and fairer.
        resamples: samples of tasks for the intervals.
        report: opens a progress bar, see `task2vec.progress`.

    Raises:
        UsageError: There is no such strategy, nothing is left to learn from, or no task to predict.

    Example:
        >>> from task2vec.metatask import bundled_metatask
        >>> evaluation = evaluate(bundled_metatask(), ["chance", "average_best"], family="labels")
        >>> bool(evaluation.outcomes["average_best"].errors.mean() < evaluation.outcomes["chance"].errors.mean())
        True
    """
    strategies = [strategies] if isinstance(strategies, str) else strategies or list(STRATEGIES)
    chosen = [find_strategy(strategy) if isinstance(strategy, str) else strategy for strategy in strategies]
    view = metatask if isinstance(metatask, View) else metatask.select(shots, probe=probe, method=method)
    view, names = _select_family(view, family, leave)
    allowed, folds = _split_tasks(view, names, np.isfinite(view.mean), leave)
    rows = np.sort(np.concatenate([predicted for _, predicted in folds]))
    errors = np.where(allowed, view.mean, np.nan)[rows]
    left_out: dict[str, str] = {}
    predictions: dict[str, dict[int, Prediction]] = {strategy.name: {} for strategy in chosen}
    step = report("strategies", len(folds) * len(chosen))
    for known, predicted in folds:
        learned = view.only(known)
        for strategy in chosen:
            try:
                predict = strategy.fit(learned)
                for row in predicted.tolist():
                    query = replace(view.query(row, known=known), is_candidate=allowed[row])
                    predictions[strategy.name][row] = predict(query)
            except UndefinedScoreError as error:
                left_out[strategy.name] = str(error)
            step(1)
    outcomes = {}
    for name in (strategy.name for strategy in chosen if strategy.name not in left_out):
        places = [predictions[name][row].places() for row in rows.tolist()]
        outcomes[name] = Outcome(*map(np.array, zip(*map(choose_first, places, errors), strict=True)))
    optimum = None if view.halves is None else unbiased_optimum(view.halves[rows], allowed[rows])
    return Evaluation(
        tasks=tuple(view.tasks[row].name for row in rows),
        datasets=tuple(view.tasks[row].dataset for row in rows),
        leave=leave,
        resamples=resamples,
        models=tuple(model.name for model in view.models),
        smallest=np.nanmin(errors, axis=1),
        optimum=None if optimum is None else average_known(optimum, 1),
        outcomes=outcomes,
        left_out=left_out,
    )


def choose_first(places: np.ndarray, errors: np.ndarray) -> tuple[int, float]:
    """The model in the first of (M) places, and its error; models of unknown error do not count.

    Of several in the first place it is the one that is listed first, and the mean of their errors.
    """
    known = np.flatnonzero(np.isfinite(errors))
    first = known[places[known] == places[known].min()]
    return int(first[0]), float(errors[first].mean())


# --- proposals -------------------------------------------------------------------------------------------------------

# Numbers of models that are measured, and the one after which orders are compared in the printed table, if it is there.
COUNTS = tuple(range(1, 9))
SHOWN = 4
NEAREST, RULE, ALL = "nearest", "rule", "all"
ORDERS = ("average-best", NEAREST, DOMAIN, RULE)
# What orders are compared with, and the prefix of its columns.
REFERENCES = {ORDERS[0]: "", DOMAIN: "domain_", ALL: "all_"}


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ProposalEvaluation(_Comparison):
    """Errors after C numbers of models measured, by order.

    Attributes:
        counts: the numbers of models.
        errors: (C, T) by order; of "all" (1, T), with all candidates measured.
    """

    counts: tuple[int, ...]
    errors: Mapping[str, np.ndarray]

    def __repr__(self) -> str:
        """The evaluation in one line."""
        return f"ProposalEvaluation({len(self.errors) - 1} orders, {len(self.tasks)} tasks, leave one {self.leave} out)"

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each order and number of models."""
        return [
            self._describe(order, position) for order, errors in self.errors.items() for position in range(len(errors))
        ]

    def _describe(self, order: str, position: int) -> dict[str, Any]:
        errors = self.errors[order][position]
        row: dict[str, Any] = {"order": order, "measured": ALL if order == ALL else self.counts[position]}
        row |= {"tasks": len(errors)} | self._summarise("error", errors)
        for reference, prefix in REFERENCES.items():
            is_compared = reference in self.errors and order not in (reference, ALL)
            gaps = errors - self.errors[reference][0 if reference == ALL else position] if is_compared else None
            row |= self._compare(gaps, prefix)
        return row

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values for JSON, the errors on every task included."""
        names = {"tasks": list(self.tasks), "datasets": list(self.datasets), "leave": self.leave}
        errors = {order: errors.tolist() for order, errors in self.errors.items()}
        return {**names, "counts": list(self.counts), "errors": errors, "rows": self.rows}

    def format_rows(self) -> list[dict[str, str]]:
        """For each order the errors after every number of models, and how it compares with others after some."""
        shown = SHOWN if SHOWN in self.counts else self.counts[-1]
        table = []
        for order in (name for name in self.errors if name != ALL):
            rows = {row["measured"]: row for row in self.rows if row["order"] == order}
            line = {"order": order} | {f"{count}": f"{row['error']:.1f}" for count, row in rows.items()}
            for reference, prefix in REFERENCES.items():
                gap, p = rows[shown][f"{prefix}gap"], f"p_{prefix}".rstrip("_")
                line[f"{shown}: over {reference}"] = "" if gap is None else f"{gap:+.1f}"
                line[p.replace("_", " ")] = "" if gap is None else f"{rows[shown][p]:.2g}"
            table.append(line)
        return table

    def explain(self) -> list[str]:
        """What the table's numbers are, in sentences."""
        return [
            f"{self._explain_leave()} Mean test error in percent of the best of "
            "the first models measured: chosen on one half of the test images, judged on the other, both ways round. "
            f"With all candidates measured it is {100 * self.errors[ALL].mean():.1f}.",
            "p is two-sided, from flipping the signs of the tasks' gaps, and treats tasks as independent.",
        ]


def evaluate_proposals(
    view: View,
    *,
    family: str | None = None,
    known: Known = "family",
    leave: Leave = "task",
    counts: Sequence[int] = COUNTS,
    resamples: int = 10_000,
    report: Report = silent,
) -> ProposalEvaluation:
    """The errors of what each order proposes, for all tasks of a family that have two candidates.

    Args:
        view: tasks, models and errors on two halves of the test images (`MetaTask.select`).
        family: only tasks of this family are proposed for; None takes all tasks.
        known: errors are known on other tasks of the "family", or on "all" other tasks. Where no task of the family
            would be known, because its only dataset is left out, all are.
        leave: see `evaluate`.
        counts: numbers of models that are measured.
        resamples: samples of tasks for the intervals.
        report: opens a progress bar, see `task2vec.progress`.

    Raises:
        DataError: No errors on halves of the test images are known.
        UsageError: An argument is unknown, or there is no task to propose for or to learn from.

    Example:
        >>> from task2vec.metatask import bundled_metatask
        >>> evaluation = evaluate_proposals(bundled_metatask().select("half"), family="labels", counts=(1, 3))
        >>> bool(evaluation.errors["rule"][1].mean() <= evaluation.errors["rule"][0].mean())
        True
    """
    if known not in get_args(Known):
        raise UsageError(f"known={known!r} is unknown, so no error is known. Choose: {', '.join(get_args(Known))}")
    selected, names = _select_family(view, family, leave)
    view = selected if known == "family" else view
    if view.halves is None:
        raise DataError(
            f"'{view.name}' has no errors on two halves of the test images, so a model cannot be measured on one and "
            "judged on the other. Use a meta-task that has them: task2vec metatask evaluate --strategy proposals"
        )
    is_known = np.asarray(np.isfinite(view.halves).all((2, 3)))
    allowed, folds = _split_tasks(view, names, is_known, leave)
    orders: dict[str, dict[int, np.ndarray]] = {}
    step = report("proposals", len(folds))
    for learned, predicted in folds:
        order_models = learn_orders(view, learned, count=max(counts))
        for row in predicted.tolist():
            for name, order in order_models(row, allowed[row]).items():
                orders.setdefault(name, {})[row] = order
        step(1)
    rows = sorted(next(iter(orders.values())))
    halves = view.halves[rows]
    errors = {
        name: np.array([judge_chosen(halves, [by_row[row][:count] for row in rows]) for count in counts])
        for name, by_row in orders.items()
    }
    errors[ALL] = judge_chosen(halves, [np.flatnonzero(allowed[row]) for row in rows])[None]
    return ProposalEvaluation(
        tasks=tuple(view.tasks[row].name for row in rows),
        datasets=tuple(view.tasks[row].dataset for row in rows),
        leave=leave,
        resamples=resamples,
        counts=tuple(counts),
        errors=errors,
    )


def learn_orders(view: View, known: np.ndarray, *, count: int) -> Callable[[int, np.ndarray], dict[str, np.ndarray]]:
    """What maps a task and its candidates to their orders, from errors on the tasks `known` and no others."""
    learned = view.only(known)
    errors = find_known_errors(learned)
    fill = fill_errors(errors)
    kinds = {name: kind for name, kind in ((DOMAIN, DOMAIN), (RULE, SYMMETRIC)) if kind in learned.distances}
    widths = {kind: choose_width(errors, learned.between(kind), fill=fill) for kind in kinds.values()}

    def order(row: int, is_candidate: np.ndarray) -> dict[str, np.ndarray]:
        query = view.query(row, known=known)
        orders = {ORDERS[0]: rank_models(is_candidate, fill[1])}
        if SYMMETRIC in query.to_sources:
            orders[NEAREST] = rank_models(is_candidate, query.to_sources[SYMMETRIC], fill[1])
        return orders | {
            name: propose(
                errors, query.distances[kind], query.to_sources[kind], is_candidate, width=widths[kind], count=count
            )
            for name, kind in kinds.items()
        }

    return order


def judge_chosen(halves: np.ndarray, chosen: Sequence[np.ndarray]) -> np.ndarray:
    """(T) the error of the best of the chosen models on each half of the test images, judged on the other.

    Args:
        halves: (T, M, S, 2) errors of all models by split, on both halves.
        chosen: (T) numbers of the models that are measured.

    Example:
        >>> judge_chosen(np.array([[[[0.1, 0.4]], [[0.3, 0.3]]]]), [np.array([0, 1])])
        array([0.35])
    """
    is_chosen = np.array([np.isin(np.arange(halves.shape[1]), numbers) for numbers in chosen])
    optimum = unbiased_optimum(halves, is_chosen)
    assert optimum is not None, "candidates are known on both halves"
    return optimum.mean(1)


# --- the unbiased optimum, intervals and p ---------------------------------------------------------------------------


def unbiased_optimum(halves: np.ndarray, is_candidate: np.ndarray) -> np.ndarray | None:
    """(T, S) the error of the best candidate of every task by split; None where a task has none.

    It is chosen on one half of the test images, by the mean over all splits, and measured on the other half; then the
    other way round, and both are averaged. Of several that are equally good the mean is taken. The smallest error is
    much lower, for the noise is chosen with it.

    Args:
        halves: (T, M, S, 2) errors on two halves of the test images.
        is_candidate: (T, M) which models may be chosen.

    Example:
        >>> unbiased_optimum(np.array([[[[0.1, 0.4]], [[0.3, 0.3]]]]), np.ones((1, 2), dtype=bool))
        array([[0.35]])
    """
    known = np.where(is_candidate[:, :, None, None], halves, np.nan)
    optimum = np.mean([_measure_best(known[..., half].mean(2), known[..., 1 - half]) for half in (0, 1)], axis=0)
    return optimum if np.isfinite(optimum).all() else None


def _measure_best(means: np.ndarray, measured: np.ndarray) -> np.ndarray:
    """(T, S) of (T, M, S) measured errors those of the smallest of (T, M) means; NaN where nothing is known."""
    means = np.where(np.isfinite(means) & np.isfinite(measured).all(2), means, np.inf)
    is_best = (means <= means.min(1, keepdims=True) + _TIE) & np.isfinite(means)
    return average_known(np.where(is_best[:, :, None], measured, np.nan), 1)


def draw_weights(groups: np.ndarray, resamples: int) -> np.ndarray:
    """(resamples, T) how often each task is in a sample that groups are drawn for with replacement."""
    names, members = np.unique(groups, return_inverse=True)
    drawn = np.random.default_rng(0).multinomial(len(names), np.full(len(names), 1 / len(names)), size=resamples)
    return drawn[:, members].astype(np.float64)


def find_interval(weights: np.ndarray, above: np.ndarray, below: np.ndarray) -> tuple[float, float]:
    """The middle 95% of sum(above) / sum(below) over weighted samples of tasks; where `below` is 0 a task is left out.

    Example:
        >>> find_interval(draw_weights(np.arange(9), 99), np.full(9, 0.5), np.ones(9))
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
    values = gaps if groups is None else np.array([gaps[groups == group].mean() for group in np.unique(groups)])
    values = values[np.abs(values) > 1e-12]
    if not len(values):
        return 1.0
    if is_exact := len(values) <= _MAX_EXACT_GAPS:
        signs = 1 - 2 * (np.arange(2 ** len(values))[:, None] >> np.arange(len(values)) & 1)
    else:
        signs = np.random.default_rng(0).choice([-1, 1], size=(_SIGN_DRAWS, len(values)))
    is_hit = np.abs(signs @ values) >= abs(values.sum()) - 1e-9 * np.abs(values).sum()  # but for rounding
    return float(is_hit.mean() if is_exact else (1 + is_hit.sum()) / (1 + len(signs)))
