"""The paper's Table 1 on our meta-task: how much error each way of choosing costs over the optimum."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.selection_forest import Bar, Series, draw_forest, word_bar
from experiments.selection_settings import (
    GENERIC,
    RESAMPLES,
    SELECTED,
    Made,
    Row,
    Setting,
    choose_space,
    gather,
    gather_all,
    list_settings,
    write_markdown,
    write_outcome,
    write_text,
)
from experiments.selection_verdicts import judge_table
from task2vec.experts.metatask import MetaTask
from task2vec.parallel import Backend, Unit, borrow_backend
from task2vec.select.evaluate import Evaluation, Leave, evaluate
from task2vec.select.strategies import STRATEGIES, find_strategy

LEAVES: dict[Leave, str] = {"task": "one task left out", "dataset": "its whole dataset left out"}
_SERIES = (Series(LEAVES["task"], GENERIC), Series(LEAVES["dataset"], SELECTED, is_hollow=True))
# In percent over the optimum: what is beyond stands at the edge of the picture.
_MOST = 70.0
_BOLD = ("average_best", "asymmetric", "combined")


@dataclass(frozen=True, eq=False)
class Compared:
    """All strategies in one setting, one way of leaving out."""

    setting: Setting
    leave: Leave
    evaluation: Evaluation
    rows: list[dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Comparison:
    """How strategies are compared in a setting: all that a worker needs to know.

    Attributes:
        measured: the errors.
        strategies: names; None for all.
    """

    measured: MetaTask
    strategies: Sequence[str] | None

    def open(self) -> Callable[[tuple[Setting, Leave]], Iterator[Compared]]:
        """A function from a setting, and what is left out, to what is found; see `task2vec.parallel.Work`."""
        return self._compare

    def _compare(self, asked: tuple[Setting, Leave]) -> Iterator[Compared]:
        yield compare_strategies(self.measured, *asked, strategies=self.strategies)


def make_table(
    measured: MetaTask,
    folder: Path,
    *,
    strategies: Sequence[str] | None = None,
    backend: Backend | str = "serial",
    step: Callable[[str], None] = lambda words: None,
) -> Made:
    """The table as a picture, as CSV with all numbers, and in Markdown; what it says to the paper's claims.

    Args:
        measured: the errors.
        folder: for the files.
        strategies: names; None for all.
        backend: who computes: "serial", "processes", or what `open_backend` returns. It changes nothing.
        step: told what is done.
    """
    compared = _compare_all(measured, strategies, backend, step)
    rows = [_tell(one, row) for one in compared for row in one.rows]
    numbers = {"probe": " ".join(choose_space(measured)), "comparisons": [_describe(one) for one in compared]}
    files = write_outcome(folder, "table1", rows=rows, numbers=numbers, figure=draw_table(compared))
    text = write_tables(compared)
    files.append(write_text(folder, "table1.md", text))
    claims = judge_table({(one.setting, one.leave): one.evaluation for one in compared})
    return Made(files, claims, text=text)


def _compare_all(
    measured: MetaTask, strategies: Sequence[str] | None, backend: Backend | str, step: Callable[[str], None]
) -> list[Compared]:
    """All settings and ways of leaving out, in their order, whoever has finished first."""
    for name in strategies or ():
        find_strategy(name)  # an unknown one is refused at once
    asked = {f"{setting}, {LEAVES[leave]}": (setting, leave) for setting in list_settings(measured) for leave in LEAVES}
    found: dict[str, Compared] = {}
    with borrow_backend(backend) as opened:
        for result in opened.run(Comparison(measured, strategies), [Unit(*each) for each in asked.items()]):
            if result.failure is not None:
                raise result.failure.error()
            if not result.is_last:
                found[result.key] = result.value
                step(f"Table 1: {result.key} ({len(found)} of {len(asked)})")
    return [found[key] for key in asked]


def compare_strategies(
    measured: MetaTask, setting: Setting, leave: Leave, *, strategies: Sequence[str] | None = None
) -> Compared:
    """One comparison. Where all tasks of a family are of one dataset, the tasks of other families tell about them."""
    evidence, asked = gather(measured, setting), None
    if leave == "dataset" and len(set(evidence.datasets)) == 1:
        asked = [task.name for task in evidence.tasks]
        evidence = gather_all(measured, setting.protocol, choose_space(measured))
    wanted = strategies or list(STRATEGIES)
    evaluation = evaluate(evidence, wanted, leave=leave, tasks=asked, resamples=RESAMPLES)
    return Compared(setting, leave, evaluation, list(evaluation.rows))


def draw_table(compared: Sequence[Compared]) -> Any:
    """Dots of all strategies in the settings, side by side; a dashed line at the static choice."""
    panels: dict[str, dict[str, dict[str, Bar]]] = {}
    lines: dict[str, dict[str, float]] = {}
    for one in compared:
        panel = panels.setdefault(str(one.setting), {name: {} for name in STRATEGIES})
        for row in one.rows:
            bar = find_bar(row)
            panel.setdefault(row["strategy"], {})[LEAVES[one.leave]] = bar
            if row["strategy"] == "average_best":
                lines.setdefault(str(one.setting), {})[LEAVES[one.leave]] = bar.value
    asked = [row for panel in panels.values() for row, bars in panel.items() if bars]
    kept = {title: {row: panel[row] for row in dict.fromkeys(asked) if row in panel} for title, panel in panels.items()}
    looks: dict[str, Any] = {"lines": lines, "lines_are": "the static choice", "most": _MOST}
    return draw_forest(kept, _SERIES, label="error over the optimum (%)", bold=_BOLD, **looks)


def find_bar(row: Mapping[str, Any], name: str = "increase") -> Bar:
    """How far above the honest optimum the mean error is; above the smallest error where that is not known."""
    key = name if row.get(name) is not None else f"smallest_{name}"
    return Bar(row[key], row[f"{key}_low"], row[f"{key}_high"])


def write_tables(compared: Sequence[Compared]) -> str:
    """One table in Markdown for each way of leaving out: strategies down, settings across."""
    parts = []
    for leave, words in LEAVES.items():
        own = [one for one in compared if one.leave == leave]
        names = dict.fromkeys(row["strategy"] for one in own for row in one.rows)
        rows = [["optimum, error in %", *(f"{100 * _optimum(one.evaluation).mean():.1f}" for one in own)]]
        for name in names:
            found = [next((row for row in one.rows if row["strategy"] == name), None) for one in own]
            rows.append([name, *("" if row is None else f"{word_bar(find_bar(row))}{_mark(row)}" for row in found)])
        parts.append(f"**{words}**\n\n{write_markdown(['', *(str(one.setting) for one in own)], rows)}")
    told = (
        "Error over the optimum in percent (ratio of means over tasks) with a 95 % bootstrap interval over tasks. "
        "* better, ° worse than the static choice (Wilcoxon's signed ranks over tasks, p < 0.05)."
    )
    return "\n\n".join([*parts, told])


def _optimum(evaluation: Evaluation) -> np.ndarray:
    return evaluation.smallest if evaluation.optimum is None else evaluation.optimum


def _mark(row: Mapping[str, Any]) -> str:
    if row["p"] is None or row["p"] >= 0.05:
        return ""
    return " *" if row["gap"] < 0 else " °"


def _tell(one: Compared, row: Mapping[str, Any]) -> Row:
    return {"family": one.setting.family, "protocol": one.setting.protocol, "leave": one.leave, **row}


def _describe(one: Compared) -> dict[str, Any]:
    """The optimum of one comparison, and the choices of all strategies task by task."""
    found = one.evaluation
    choices = {
        outcome.name: {task: found.models[number] for task, number in zip(found.tasks, outcome.chosen, strict=True)}
        for outcome in found.outcomes.values()
    }
    return {
        "family": one.setting.family,
        "protocol": one.setting.protocol,
        "leave": one.leave,
        "tasks": len(found.tasks),
        "optimum": _optimum(found).mean(),
        "smallest": found.smallest.mean(),
        "optimum_chosen_on": found.chosen_on,
        "left_out": dict(found.left_out),
        "choices": choices,
    }
