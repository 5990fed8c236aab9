"""Does the norm of an embedding tell how hard a task is? Every task by its norm and the error of its best expert."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from experiments.property_claims import HOLDS, UNCLEAR, Claim, correlate
from experiments.selection_settings import (
    Made,
    Row,
    Setting,
    choose_space,
    colour_datasets,
    gather,
    list_settings,
    list_spaces,
    split_space,
    write_outcome,
)
from task2vec.experts.metatask import MetaTask
from task2vec.plots import INK, MARKS, PAPER_WIDTH, import_figure, scale_norms, style_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Panels of so many probes; the table has all.
_SHOWN = 2
# Norms smaller than the median by more than this stand at the edge, hollow, with their number.
_SPAN = 300.0
_WHOLE = "both families"


def make_norms(measured: MetaTask, folder: Path) -> Made:
    """The figure, the tasks behind it, and the correlations of all probes and methods."""
    rows = [row for setting in list_settings(measured) for row in _list_tasks(measured, setting)]
    found = correlate_norms(rows, list_spaces(measured))
    shown = [row for row in rows if row["protocol"] == rows[0]["protocol"]]
    files = write_outcome(
        folder,
        "norms",
        rows=rows,
        numbers={"spearman": found},
        figure=draw_norms(shown, list_spaces(measured)[:_SHOWN]),
    )
    main = " ".join(choose_space(measured))
    claims = [_judge(row, found) for row in found if row["by"] == main and row["protocol"] == rows[0]["protocol"]]
    return Made(files, claims)


def correlate_norms(rows: Sequence[Row], spaces: Sequence[str]) -> list[Row]:
    """Spearman's correlation of norm and error with its interval over tasks; that of the number of classes beside."""
    found = []
    for protocol in dict.fromkeys(row["protocol"] for row in rows):
        told = [row for row in rows if row["protocol"] == protocol]
        families = {family: [r for r in told if r["family"] == family] for family in {r["family"]: 0 for r in told}}
        for family, group in {**families, **({_WHOLE: told} if len(families) > 1 else {})}.items():
            for by in (*spaces, "classes", "images"):
                c = correlate([row[by] for row in group], [row["optimum"] for row in group])
                numbers = {"tasks": c.count, "spearman": c.rho, "low": c.low, "high": c.high}
                found.append({"protocol": protocol, "family": family, "by": by, **numbers})
    return found


def draw_norms(rows: Sequence[Row], spaces: Sequence[str]) -> "Figure":
    """A panel for each probe and family: norm to the right, error of the best expert up."""
    families = list(dict.fromkeys(row["family"] for row in rows))
    size = (PAPER_WIDTH, 0.35 + 2.35 * len(families))
    figure = import_figure()(figsize=size, dpi=300, layout="constrained")
    panels = figure.subplots(len(families), len(spaces), squeeze=False, sharey="row")
    for line, family in zip(panels, families, strict=True):
        for axes, space in zip(line, spaces, strict=True):
            _draw_panel(axes, [row for row in rows if row["family"] == family], space)
        line[0].set_ylabel(f"{family}: error of the best expert (%)", fontsize=8, color=INK)
    for axes in panels[-1]:
        axes.set_xlabel("norm of the embedding (L1 of the Fisher)", fontsize=8, color=INK)
    datasets = dict.fromkeys(row["dataset"] for row in rows)
    for number, (name, colour) in enumerate(colour_datasets(list(datasets)).items()):
        panels[0, 0].plot([], [], linestyle="none", marker=MARKS[number], markersize=4.5, color=colour, label=name)
    figure.legend(loc="outside upper center", ncols=len(datasets), fontsize=7, frameon=False, handletextpad=0.1)
    return figure


def _draw_panel(axes: "Axes", rows: Sequence[Row], space: str) -> None:
    colours = colour_datasets(list(dict.fromkeys(row["dataset"] for row in rows)))
    marks = {name: MARKS[number] for number, name in enumerate(colours)}
    # A task whose head has learned nothing has hardly a norm, and would press all others together.
    floor = float(np.median([row[space] for row in rows])) / _SPAN
    for name, colour in colours.items():
        for is_far in (False, True):
            part = [row for row in rows if row["dataset"] == name and (row[space] < floor) == is_far]
            axes.scatter(
                [max(row[space], floor) for row in part], [100 * row["optimum"] for row in part], s=20,
                marker=marks[name], color="white" if is_far else colour, alpha=0.85,
                edgecolors=colour if is_far else "white", linewidths=0.9 if is_far else 0.4,
            )  # fmt: skip
        for row in (row for row in rows if row["dataset"] == name and row[space] < floor):
            axes.annotate(f"‹ {row[space]:.0e}", (floor, 100 * row["optimum"]), (5, 0), textcoords="offset points",
                          fontsize=6, color=colour, va="center")  # fmt: skip
    style_axes(axes, "", "")
    scale_norms(axes, "x")
    axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    c = correlate([row[space] for row in rows], [row["optimum"] for row in rows])
    axes.set_title(f"{space}: ρ = {c}, {c.count} tasks", fontsize=7.5, color=INK, loc="left")


def _list_tasks(measured: MetaTask, setting: Setting) -> list[Row]:
    """The norms of every task by all probes and methods, and its errors."""
    spaces = {name: gather(measured, setting, split_space(name)) for name in list_spaces(measured)}
    evidence = next(iter(spaces.values()))
    means = np.where(evidence.is_candidate, evidence.mean, np.nan)
    rows = []
    for number, task in enumerate(one.name for one in evidence.tasks):
        known = np.isfinite(means[number]).any()
        generic = np.nan if evidence.generic is None else float(means[number, evidence.generic])
        told = {"task": task, "family": setting.family, "dataset": evidence.datasets[number]}
        told |= {"protocol": setting.protocol, "optimum": float(np.nanmin(means[number])) if known else np.nan}
        told |= {"generic": generic, "classes": _count([task.classes for task in evidence.tasks], number)}
        told |= {"images": _count([task.images for task in evidence.tasks], number)}
        rows.append(told | {name: float(_norms(each)[number]) for name, each in spaces.items()})
    return rows


def _norms(evidence) -> np.ndarray:
    return evidence.norms["symmetric"][: len(evidence.tasks)]


def _count(values: Sequence[int | None], number: int) -> int:
    assert values is not None
    return int(values[number])


def _judge(row: Row, found: Sequence[Row]) -> Claim:
    """Whether norm and error rise together, beside what the number of classes alone tells."""
    beside = next(
        other for other in found if other["by"] == "classes" and all(other[k] == row[k] for k in ("protocol", "family"))
    )
    words = f"rho {_word(row)}, {row['tasks']} tasks; number of classes alone {_word(beside)}"
    verdict = UNCLEAR if row["low"] is None else HOLDS if row["low"] > 0 else UNCLEAR if row["high"] > 0 else "fails"
    return Claim("norms", f"{row['family']}: the norm goes with the error of the best expert", words, verdict)


def _word(row: Row) -> str:
    return "-" if row["spearman"] is None else f"{row['spearman']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"
