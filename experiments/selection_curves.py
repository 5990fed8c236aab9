"""How much data a chosen expert saves: errors by training size, of the selected, the generic and the best expert.

Candidates are the experts whose curves were measured and that have not seen the task. One is selected for a task from
the errors of all other tasks with half of the images, and not by looking at its curve; the best is the smallest error
at every size, and biased low.
"""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.property_claims import FAILS, HOLDS, PARTLY, Claim
from experiments.selection_settings import Made, Row, Setting, gather, list_settings, write_outcome
from task2vec.errors import DataError
from task2vec.experts.metatask import MetaTask
from task2vec.plots import INK, PAPER_WIDTH, import_figure, shorten, style_axes
from task2vec.select.strategies import STRATEGIES, find_strategy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WAYS = {"linear": "features frozen", "tuned": "whole network tuned"}
# Drawn in this order: where the generic expert is selected, its broad line is still seen below.
CHOICES: dict[str, dict[str, Any]] = {
    "generic": {"linestyle": (0, (2.2, 1)), "linewidth": 3.2, "alpha": 0.4},
    "best": {"linestyle": (0, (1, 1.5)), "linewidth": 1.2},
    "selected": {"linestyle": "-", "linewidth": 1.2, "marker": "o", "markersize": 2.4},
}
_COLOURS = {"linear": "#d55e00", "tuned": "#0072b2"}
_COLUMNS = {"task", "expert", "way", "train", "images", "seed", "error"}
STRATEGY, FALLBACK = "combined", "average_best"
_MISSING = (
    "The data-efficiency curves are missing: this bundle has no errors by training size. Give a table of them: "
    "python -m experiments.selection curves --curves FILE.csv (columns task, expert, way, train, images, seed, error)."
)


def make_curves(measured: MetaTask, folder: Path, *, table: Path | None = None) -> Made:
    """The figure from the bundle's own points, or from a table of them."""
    points = _read_points(table) if table is not None else measured.info.get("curves")
    if not points:
        return Made(missing=[_MISSING])
    picked = select_for_curves(measured, points)
    rows = follow(points, picked)
    figure = draw_curves(rows)
    gaps = compare(rows)
    files = write_outcome(folder, "curves", rows=rows, numbers={"selected": picked, "gaps": gaps}, figure=figure)
    return Made(files, _judge(gaps, picked))


def select_for_curves(measured: MetaTask, points: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """For each task of the curves: its candidates among their experts, and which of them is selected."""
    measured_experts = dict.fromkeys(str(point["expert"]) for point in points)
    picked = {}
    for name in dict.fromkeys(str(point["task"]) for point in points):
        family = next((task.family for task in measured.tasks if task.name == name), None)
        if family is None:
            raise DataError(f"the curves have a task '{name}' that '{measured.name}' does not know. Leave it out.")
        protocol = list_settings(measured)[0].protocol
        evidence = gather(measured, Setting(family, protocol))
        columns = [j for j, model in enumerate(evidence.models) if model.name in measured_experts]
        evidence = evidence.only(range(len(evidence.tasks)), columns)
        row = [task.name for task in evidence.tasks].index(name)
        others = np.delete(np.arange(len(evidence.tasks)), row)
        strategy = find_strategy(STRATEGY if STRATEGY in STRATEGIES else FALLBACK)
        answer = strategy.fit(evidence.only(others))(evidence.query(row, known=others))
        order = answer.order(evidence.is_candidate[row])
        generic = None if evidence.generic is None else evidence.models[evidence.generic].name
        candidates = [evidence.models[j].name for j in np.flatnonzero(evidence.is_candidate[row])]
        told = {"by": strategy.name, "selected": evidence.models[order[0]].name, "generic": generic}
        picked[name] = told | {"candidates": candidates}
    return picked


def follow(points: Sequence[Mapping[str, Any]], picked: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """The mean error over seeds of each choice for each task, way and training size, and the ends of its range."""
    cells: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    images: dict[tuple[str, str], float] = {}
    for point in points:
        key = str(point["task"]), str(point["way"]), str(point["train"])
        cells.setdefault(key, {}).setdefault(str(point["expert"]), []).append(float(point["error"]))
        images[key[0], key[2]] = float(point["images"])
    rows = []
    for task, way, train in sorted(cells, key=lambda key: (key[0], key[1], images[key[0], key[2]])):
        errors, own = cells[task, way, train], picked[task]
        allowed = [name for name in own["candidates"] if name in errors]
        best = min(allowed, key=lambda name: float(np.mean(errors[name])))
        choices = {"selected": own["selected"], "generic": own["generic"], "best": best}
        for choice, expert in choices.items():
            if expert in errors:
                values = np.array(errors[expert])
                told: Row = {"task": task, "way": way, "train": train, "images": images[task, train], "choice": choice}
                told |= {"expert": expert, "error": float(values.mean()), "seeds": len(values)}
                rows.append(told | {"low": float(values.min()), "high": float(values.max())})
    return rows


def compare(rows: Sequence[Row]) -> list[Row]:
    """For each way and training size: the mean over tasks of each choice's error, and how far above the best."""
    found = []
    for way in dict.fromkeys(row["way"] for row in rows):
        for train in dict.fromkeys(row["train"] for row in rows if row["way"] == way):
            told: Row = {"way": way, "train": train}
            by = {c: {r["task"]: r["error"] for r in rows if (r["way"], r["train"], r["choice"]) == (way, train, c)}
                  for c in CHOICES}  # fmt: skip
            common = [task for task in by["best"] if all(task in each for each in by.values())]
            told["tasks"] = len(common)
            for choice in CHOICES:
                told[choice] = float(np.mean([by[choice][task] for task in common]))
            found.append(told | {f"{c} above best": told[c] / told["best"] - 1 for c in ("selected", "generic")})
    return found


def draw_curves(rows: Sequence[Row]) -> "Figure":
    """A panel for each task, and one for their mean above the best."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    columns = 3
    lines = -(-(len(tasks) + 2) // columns)
    figure = import_figure()(figsize=(PAPER_WIDTH, 2.15 * lines), dpi=300, layout="constrained")
    panels = list(figure.subplots(lines, columns, squeeze=False).flat)
    for axes, task in zip(panels, tasks, strict=False):
        _draw_task(axes, [row for row in rows if row["task"] == task])
    _draw_mean(panels[len(tasks)], compare(rows))
    for axes in panels[len(tasks) + 1 :]:
        axes.axis("off")
    _add_legend(panels[len(tasks) + 1])
    return figure


def _draw_task(axes: "Axes", rows: Sequence[Row]) -> None:
    for way, colour in _COLOURS.items():
        for choice, look in CHOICES.items():
            own = [row for row in rows if (row["way"], row["choice"]) == (way, choice)]
            at, errors = [row["images"] for row in own], [100 * row["error"] for row in own]
            axes.plot(at, errors, color=colour, **look)
            if choice == "selected":
                low, high = ([100 * row[end] for row in own] for end in ("low", "high"))
                axes.fill_between(at, low, high, color=colour, alpha=0.13, linewidth=0)
    style_axes(axes, "training images", "test error (%)")
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    _tick_counts(axes, sorted({row["images"] for row in rows}))
    axes.set_title(shorten(rows[0]["task"].replace("_", ": ")), fontsize=8, color=INK, loc="left")


def _draw_mean(axes: "Axes", gaps: Sequence[Row]) -> None:
    gaps = _take_common(gaps)
    order = list(dict.fromkeys(row["train"] for row in gaps))
    for way, colour in _COLOURS.items():
        own = [row for row in gaps if row["way"] == way]
        for choice in ("generic", "selected"):
            values = [100 * row[f"{choice} above best"] for row in own]
            axes.plot([order.index(row["train"]) for row in own], values, color=colour, **CHOICES[choice])
    axes.axhline(0, color=INK, linewidth=0.8, linestyle=(0, (1, 1.5)))
    style_axes(axes, "training images of each class", "error above the best (%)")
    axes.set_xticks(range(len(order)), order)
    axes.set_title("mean of the tasks", fontsize=8, color=INK, loc="left")


def _take_common(gaps: Sequence[Row]) -> list[Row]:
    """The sizes that all tasks have: means of fewer would be of other tasks."""
    return [row for row in gaps if row["tasks"] == max(other["tasks"] for other in gaps)]


def _tick_counts(axes: "Axes", counts: Sequence[float]) -> None:
    axes.set_xticks(list(counts), [f"{count:g}" for count in counts])
    axes.xaxis.minorticks_off()


def _add_legend(axes: "Axes") -> None:
    words = {"selected": "selected expert", "generic": "generic expert", "best": "best at this size"}
    entries = [axes.plot([], [], color=_COLOURS[way], linewidth=4, label=text)[0] for way, text in WAYS.items()]
    entries += [axes.plot([], [], color=INK, label=text, **CHOICES[choice])[0] for choice, text in words.items()]
    axes.legend(handles=entries, loc="center left", fontsize=7.5, frameon=False, handlelength=2.6, labelspacing=0.9)


def _judge(gaps: Sequence[Row], picked: Mapping[str, Mapping[str, Any]]) -> list[Claim]:
    """The paper: selected is better than generic at all sizes and in both ways. Who is the generic one cannot be."""
    others = sum(own["selected"] != own["generic"] for own in picked.values())
    claims = []
    for way, words in WAYS.items():
        own = [row for row in _take_common(gaps) if row["way"] == way]
        if own:
            better = sum(row["selected"] < row["generic"] for row in own)
            told = ", ".join(f"{100 * (row['generic'] - row['selected']):+.1f} ({row['train']})" for row in own)
            is_so = better == len(own) and others > len(picked) / 2
            claim = f"{words}: the selected expert is better than the generic one at all sizes"
            told = f"points gained on {own[0]['tasks']} tasks, by images of each class: {told}"
            told += f"; for {others} of them another one than the generic is selected"
            claims.append(Claim("curves", claim, told, HOLDS if is_so else PARTLY if better else FAILS))
    return claims


def _read_points(path: Path) -> list[Row]:
    """The points of a table, checked."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"'{path}' cannot be read as a table of curves ({error}). Name a CSV file in UTF-8.") from error
    lacking = sorted(_COLUMNS - set(rows[0] if rows else ()))
    if lacking:
        raise DataError(
            f"'{path}' lacks the columns {', '.join(lacking)}, so its errors cannot be told apart. A table of curves "
            f"has {', '.join(sorted(_COLUMNS))}."
        )
    return rows
