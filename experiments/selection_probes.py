"""The paper's Table 2 on our meta-task: which probe's distances choose best, for all tasks and for the largest ten."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.property_claims import FAILS, HOLDS, UNCLEAR, Claim
from experiments.selection_forest import Bar, Series, draw_forest, word_bar
from experiments.selection_settings import (
    GENERIC,
    RESAMPLES,
    SELECTED,
    Made,
    Row,
    Setting,
    gather,
    list_settings,
    list_spaces,
    split_space,
    write_markdown,
    write_outcome,
    write_text,
)
from task2vec.experts.metatask import MetaTask
from task2vec.parallel import Backend, Unit, borrow_backend
from task2vec.select.evaluate import Evaluation, compare_paired, draw_weights, evaluate, find_interval
from task2vec.select.strategies import STRATEGIES

# The paper's choice, and ours.
CHOICES = ("asymmetric", "combined")
BASELINES = ("chance", "generic", "average_best")
ALL, LARGEST = "all tasks", "largest ten"
_TEN, _MOST = 10, 70.0
_SERIES = (Series(ALL, GENERIC), Series(LARGEST, SELECTED, is_hollow=True))


@dataclass(frozen=True, eq=False)
class Probing:
    """How the distances of one probe are tried in a setting: all that a worker needs to know."""

    measured: MetaTask

    def open(self) -> Callable[[tuple[Setting, str]], Iterator[tuple[Evaluation, np.ndarray | None]]]:
        """A function from a setting and a space to what is found there; see `task2vec.parallel.Work`."""
        return self._try

    def _try(self, asked: tuple[Setting, str]) -> Iterator[tuple[Evaluation, np.ndarray | None]]:
        setting, space = asked
        evidence = gather(self.measured, setting, split_space(space))
        wanted = [*CHOICES, *(BASELINES if space == list_spaces(self.measured)[0] else ())]
        found = evaluate(evidence, [name for name in wanted if name in STRATEGIES], resamples=1)
        yield found, np.array([task.images for task in evidence.tasks])


def make_probes(
    measured: MetaTask,
    folder: Path,
    *,
    backend: Backend | str = "serial",
    step: Callable[[str], None] = lambda words: None,
) -> Made:
    """The table as a picture, as CSV, and in Markdown; `backend` says who computes, and changes nothing."""
    rows: list[Row] = []
    claims = []
    tried = _try_all(measured, backend, step)
    for setting in list_settings(measured):
        own = {space: tried[f"{setting}, {space}"] for space in list_spaces(measured)}
        for space, (found, images) in own.items():
            rows += _list_rows(setting, space, found, images)
        claims += _judge(setting, {space: found for space, (found, _) in own.items()})
    numbers = {"rows": rows, "largest": _TEN}
    files = write_outcome(folder, "table2", rows=rows, numbers=numbers, figure=draw_probes(rows))
    text = write_probes(rows)
    files.append(write_text(folder, "table2.md", text))
    return Made(files, claims, text=text)


def _try_all(
    measured: MetaTask, backend: Backend | str, step: Callable[[str], None]
) -> dict[str, tuple[Evaluation, np.ndarray | None]]:
    """What is found in all settings with all probes, by their names."""
    asked = {f"{setting}, {space}": (setting, space) for setting in list_settings(measured)
             for space in list_spaces(measured)}  # fmt: skip
    found: dict[str, tuple[Evaluation, np.ndarray | None]] = {}
    with borrow_backend(backend) as opened:
        for result in opened.run(Probing(measured), [Unit(*each) for each in asked.items()]):
            if result.failure is not None:
                raise result.failure.error()
            if not result.is_last:
                found[result.key] = result.value
                step(f"Table 2: {result.key} ({len(found)} of {len(asked)})")
    return found


def _list_rows(setting: Setting, space: str, found: Evaluation, images: np.ndarray | None) -> list[Row]:
    """For each strategy the increase over the optimum, of all tasks and of those with the most images."""
    assert images is not None
    parts = {ALL: np.arange(len(images)), LARGEST: np.sort(np.argsort(-images, kind="stable")[:_TEN])}
    optimum = found.smallest if found.optimum is None else found.optimum
    rows = []
    for name, outcome in found.outcomes.items():
        told: Row = {"family": setting.family, "protocol": setting.protocol, "strategy": name}
        told["space"] = "" if name in BASELINES else space
        for part, chosen in parts.items():
            errors, best = outcome.errors[chosen], optimum[chosen]
            low, high = find_interval(draw_weights(chosen, RESAMPLES, 0), errors, best)
            numbers = {"": errors.sum() / best.sum(), "_low": low, "_high": high}
            told |= {f"{part}{end}": 100 * (float(value) - 1) for end, value in numbers.items()}
            told[f"{part}, over smallest"] = 100 * float(errors.sum() / found.smallest[chosen].sum() - 1)
        rows.append(told)
    return rows


def draw_probes(rows: Sequence[Row]) -> Any:
    """Rows are what chooses, panels are settings."""
    panels: dict[str, dict[str, dict[str, Bar]]] = {}
    for row in rows:
        title = str(Setting(row["family"], row["protocol"]))
        panels.setdefault(title, {})[_name(row)] = {part: _find_bar(row, part) for part in (ALL, LARGEST)}
    names = sorted({name for panel in panels.values() for name in panel}, key=_order(rows))
    ordered = {title: {name: panel[name] for name in names if name in panel} for title, panel in panels.items()}
    return draw_forest(ordered, _SERIES, label="error over the optimum (%)", most=_MOST)


def write_probes(rows: Sequence[Row]) -> str:
    """The table in Markdown: what chooses down, settings across, all tasks and the largest ten."""
    settings = list(dict.fromkeys((row["family"], row["protocol"]) for row in rows))
    header = ["", *(f"{Setting(*setting)}: {part}" for setting in settings for part in (ALL, LARGEST))]
    lines = []
    for name in sorted({_name(row) for row in rows}, key=_order(rows)):
        own = {(row["family"], row["protocol"]): row for row in rows if _name(row) == name}
        cells = [word_bar(_find_bar(own[s], part)) if s in own else "" for s in settings for part in (ALL, LARGEST)]
        lines.append([name, *cells])
    told = "Error over the optimum in percent with a 95 % bootstrap interval over tasks; leave-one-task-out."
    return f"{write_markdown(header, lines)}\n\n{told}"


def _name(row: Row) -> str:
    return f"{row['strategy']}, {row['space']}" if row["space"] else row["strategy"]


def _order(rows: Sequence[Row]) -> Callable[[str], int]:
    """Baselines first, then each strategy with all its spaces."""
    kinds = [*BASELINES, *CHOICES]
    names = sorted(dict.fromkeys(_name(row) for row in rows), key=lambda name: kinds.index(name.split(", ")[0]))
    return names.index


def _find_bar(row: Row, part: str) -> Bar:
    return Bar(row[part], row[f"{part}_low"], row[f"{part}_high"])


def _judge(setting: Setting, found: dict[str, Evaluation]) -> list[Claim]:
    """Whether the choice of the probe makes a difference: the paper's probe against each other one."""
    first, *others = found
    claims = []
    for other in others:
        sides = [found[space].outcomes.get(CHOICES[0]) for space in (first, other)]
        if sides[0] is not None and sides[1] is not None:
            gaps = 100 * (sides[0].errors - sides[1].errors)
            p = compare_paired(gaps)
            verdict = UNCLEAR if p >= 0.05 else HOLDS if gaps.mean() < 0 else FAILS
            words = f"{setting}: {first} chooses better than {other} (asymmetric distance)"
            claims.append(Claim("table 2", words, f"{gaps.mean():+.1f} points, p = {p:.2g}", verdict))
    return claims
