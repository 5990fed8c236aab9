"""How good proposals are: the error of the best of the first k models that are measured, in several orders.

For each task that is left out, an order of its candidates is made from the errors on the known tasks and from
distances. The first k are measured on one half of the task's test images, the one with the lowest error is kept, and
it is judged on the other half; then the other way round. With all candidates measured this is the unbiased optimum of
`task2vec.select.evaluate`. The orders:

* average-best: by the models' effects on the log-odds of the errors, whatever the task is;
* nearest: by the symmetric distance of the task from the experts' source tasks; models without one come last;
* domain: the rule with distances of domain embeddings in the place of Task2Vec's;
* rule: two of a portfolio that is weighted by similarity, one nearest expert, repeated (`task2vec.select.propose`).

The columns of `ProposalEvaluation.rows`, errors in percent and gaps in points:

* order, measured, tasks: after how many models, or "all", and on how many tasks.
* error: the mean over tasks; error_low, error_high: 95% of samples of tasks; error_group_low, error_group_high: of
  samples of whole datasets, where there are several.
* gap, gap_se, gap_low, gap_high, gap_group_low, gap_group_high: by how much the error is above that of average-best
  after as many models, its standard error over tasks, and the same intervals.
* p, p_group: two-sided, from flipping the signs of the tasks' gaps, and of their means over datasets.
* domain_gap, ..., p_domain, p_domain_group: the same against the order domain.
* all_gap, ..., p_all, p_all_group: the same against all candidates measured.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from task2vec.errors import DataError, UsageError
from task2vec.metatask import DOMAIN, SYMMETRIC, View
from task2vec.progress import Report, silent
from task2vec.select.evaluate import Leave, compare_paired, compare_sums, draw_weights, unbiased_optimum
from task2vec.select.propose import choose_width, fill_errors, find_known_errors, propose, rank_models
from task2vec.storage import write_csv
from task2vec.text import format_table, pluralize

COUNTS = tuple(range(1, 9))
AVERAGE_BEST, NEAREST, RULE, ALL = "average-best", "nearest", "rule", "all"
ORDERS = (AVERAGE_BEST, NEAREST, DOMAIN, RULE)
# What is compared with, and the prefix of its columns.
REFERENCES = {AVERAGE_BEST: "", DOMAIN: "domain_", ALL: "all_"}
GAP_ENDS = ("", "_low", "_high", "_group_low", "_group_high", "_se")
# The number of models after which orders are compared in the printed table, if it is there.
SHOWN = 4

Known = Literal["family", "all"]
Cell = str | int | float | None


@dataclass(frozen=True, eq=False, repr=False)
class ProposalEvaluation:
    """Errors on T tasks after C numbers of models measured, by order.

    Attributes:
        tasks: names of the tasks.
        datasets: the dataset of each.
        leave: what was unknown beside the task itself, see `Evaluation`.
        counts: the numbers of models.
        errors: (C, T) by order; of "all" (1, T), with all candidates measured.
        resamples: how many samples of tasks intervals are made of.
        seed: of these samples.
    """

    tasks: tuple[str, ...]
    datasets: tuple[str, ...]
    leave: Leave
    counts: tuple[int, ...]
    errors: Mapping[str, np.ndarray]
    resamples: int = 10_000
    seed: int = 0

    def __repr__(self) -> str:
        """The evaluation in one line."""
        return f"ProposalEvaluation({len(self.errors) - 1} orders, {len(self.tasks)} tasks, leave one {self.leave} out)"

    def __str__(self) -> str:
        """The table, with an explanation below."""
        return "\n".join([*format_table(self.format_rows(), text=["order"])[0], "", *self.explain()])

    @cached_property
    def rows(self) -> list[dict[str, Cell]]:
        """A row of plain numbers for each order and number of models; the top of this module explains the columns."""
        draws = {"": draw_weights(np.arange(len(self.tasks)), self.resamples, self.seed)}
        if len(set(self.datasets)) > 1:
            draws["_group"] = draw_weights(np.array(self.datasets), self.resamples, self.seed)
        return [
            self._summarise(order, position, draws)
            for order, values in self.errors.items()
            for position in range(len(values))
        ]

    def _summarise(self, order: str, position: int, draws: Mapping[str, np.ndarray]) -> dict[str, Cell]:
        errors, ones = self.errors[order][position], np.ones(len(self.tasks))
        row: dict[str, Cell] = {"order": order, "measured": ALL if order == ALL else self.counts[position]}
        row |= {"tasks": len(errors), **compare_sums("error", errors, ones, draws)}
        for reference, prefix in REFERENCES.items():
            p = f"p_{prefix}".rstrip("_")
            row |= dict.fromkeys((*(f"{prefix}gap{end}" for end in GAP_ENDS), p, f"{p}_group"))
            if reference in self.errors and order not in (reference, ALL):
                gaps = errors - self.errors[reference][0 if reference == ALL else position]
                row |= compare_sums(f"{prefix}gap", gaps, ones, draws)
                row |= {f"{prefix}gap_se": 100 * float(np.std(gaps) / max(len(gaps) - 1, 1) ** 0.5)}
                row |= {p: compare_paired(gaps)}
                if "_group" in draws:
                    row[f"{p}_group"] = compare_paired(gaps, np.array(self.datasets))
        return row

    def to_dict(self) -> dict[str, object]:
        """All of it as plain values for JSON, the errors on every task included."""
        errors = {order: values.tolist() for order, values in self.errors.items()}
        names = {"tasks": list(self.tasks), "datasets": list(self.datasets), "leave": self.leave}
        return {**names, "counts": list(self.counts), "errors": errors, "rows": self.rows}

    def to_csv(self, path: str | Path) -> Path:
        """Writes the rows to a file, whole or not at all, and returns its path."""
        rows = [
            {key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in row.items()}
            for row in self.rows
        ]
        return write_csv(path, rows, list(self.rows[0]))

    def format_rows(self) -> list[dict[str, str]]:
        """For each order the errors after every number of models, and how it compares with others after some."""
        shown = SHOWN if SHOWN in self.counts else self.counts[-1]
        table = []
        for order in (name for name in self.errors if name != ALL):
            rows = {row["measured"]: row for row in self.rows if row["order"] == order}
            line = {"order": order} | {f"{count}": "" for count in self.counts}
            line |= {f"{count}": f"{row['error']:.1f}" for count, row in rows.items()}
            for reference, prefix in REFERENCES.items():
                row, p = rows.get(shown, {}), f"p_{prefix}".rstrip("_")
                is_compared = row.get(f"{prefix}gap") is not None
                line[f"{shown}: over {reference}"] = f"{row[f'{prefix}gap']:+.1f}" if is_compared else ""
                line[f"{p.replace('_', ' ')}"] = f"{row[p]:.2g}" if is_compared else ""
            table.append(line)
        return table

    def explain(self) -> list[str]:
        """What the table's numbers are, in sentences."""
        left = {"domain": "each dataset with the models fine-tuned on it"}.get(self.leave, f"each {self.leave}")
        return [
            f"{pluralize(len(self.tasks), 'task')}, {left} left out in turn. Mean test error in percent of the best of "
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
    seed: int = 0,
    report: Report = silent,
) -> ProposalEvaluation:
    """The errors of what each order proposes, for all tasks of a family that have two candidates.

    Args:
        view: tasks, models and errors on two halves of the test images (`MetaTask.select`).
        family: only tasks of this family are proposed for; None takes all tasks.
        known: errors are known on other tasks of the "family", or on "all" other tasks. Where no task of the family
            would be known, because its only dataset is left out, all are.
        leave: "task" leaves out the task itself; "dataset" all tasks of its dataset; "domain" also drops models that
            were fine-tuned on its dataset.
        counts: numbers of models that are measured.
        resamples: samples of tasks for the intervals.
        seed: of these samples.
        report: opens a progress bar, see `task2vec.progress`.

    Raises:
        DataError: No errors on halves of the test images are known.
        UsageError: An argument is unknown, or there is no task to propose for or to learn from.

    Example:
        >>> from task2vec.metatask import bundled_metatask
        >>> found = evaluate_proposals(bundled_metatask().select("half"), family="labels", counts=(1, 3))
        >>> bool(found.errors["rule"][1].mean() <= found.errors["rule"][0].mean())
        True
    """
    for name, value, allowed in (("leave", leave, get_args(Leave)), ("known", known, get_args(Known))):
        if value not in allowed:
            raise UsageError(f"{name}={value!r} is unknown, so nothing can be left out. Choose: {', '.join(allowed)}")
    if view.halves is None:
        raise DataError(
            f"'{view.name}' has no errors on two halves of the test images, so a model cannot be measured on one and "
            "judged on the other. Use a meta-task that has them: task2vec metatask evaluate --strategy proposals"
        )
    if known == "family" and family is not None:
        selected = view.subset(family=family)
        view = view if leave != "task" and len(set(selected.datasets)) == 1 else selected
    assert view.halves is not None
    datasets = np.array(view.datasets)
    is_candidate = view.is_candidate & np.isfinite(view.halves).all((2, 3))
    if leave == "domain":
        is_candidate &= datasets[:, None] != np.array([model.source_dataset or "" for model in view.models])
    groups = np.arange(len(datasets)) if leave == "task" else datasets
    rows = [
        row
        for row, task in enumerate(view.tasks)
        if family in (None, task.family) and np.count_nonzero(is_candidate[row]) > 1
    ]
    if not rows or len(set(groups.tolist())) < 2:
        raise UsageError(
            f"there is no task with two candidates, or with one {leave} left out no task to learn from, so nothing can "
            "be proposed. Measure more errors: task2vec metatask measure"
        )
    orders: dict[str, dict[int, np.ndarray]] = {}
    folds = dict.fromkeys(groups[rows].tolist())
    step = report("proposals", len(folds))
    for fold in folds:
        order_models = learn_orders(view, np.flatnonzero(groups != fold), count=max(counts))
        for row in (row for row in rows if groups[row] == fold):
            for name, order in order_models(row, is_candidate[row]).items():
                orders.setdefault(name, {})[row] = order
        step(1)
    errors = {
        name: np.array([judge_chosen(view.halves[rows], [each[row][:count] for row in rows]) for count in counts])
        for name, each in orders.items()
    }
    errors[ALL] = judge_chosen(view.halves[rows], [np.flatnonzero(is_candidate[row]) for row in rows])[None]
    names = tuple(view.tasks[row].name for row in rows)
    return ProposalEvaluation(names, tuple(datasets[rows].tolist()), leave, tuple(counts), errors, resamples, seed)


def learn_orders(view: View, known: np.ndarray, *, count: int) -> Callable[[int, np.ndarray], dict[str, np.ndarray]]:
    """What maps a task and its candidates to their orders, from errors on the tasks `known` and no others."""
    learned = view.only(known)
    errors = find_known_errors(learned)
    fill = fill_errors(errors)
    kinds = {name: kind for name, kind in ((DOMAIN, DOMAIN), (RULE, SYMMETRIC)) if kind in learned.distances}
    widths = {kind: choose_width(errors, learned.between(kind), fill=fill) for kind in kinds.values()}

    def order(row: int, is_candidate: np.ndarray) -> dict[str, np.ndarray]:
        query = view.query(row, known=known)
        orders = {AVERAGE_BEST: rank_models(is_candidate, fill[1])}
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
    optimum, _ = unbiased_optimum(halves.mean(3), is_chosen, halves)
    assert optimum is not None, "candidates are known on both halves"
    return optimum.mean(1)
