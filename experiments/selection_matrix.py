"""All errors at once: tasks down, experts across, coloured by the asymmetric distance, with the choices framed."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.property_claims import FAILS, HOLDS, UNCLEAR, Claim
from experiments.selection_choices import Chosen, choose_experts
from experiments.selection_settings import (
    SELECTED,
    Made,
    Row,
    colour_datasets,
    gather,
    list_settings,
    word_task,
    write_outcome,
)
from task2vec.distance import ALPHA
from task2vec.experts.metatask import SYMMETRIC, MetaTask
from task2vec.plots import GREY, INK, import_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from task2vec.experts.metatask import MetaTask

STRATEGY = "asymmetric"
# Seen on pale yellow as well as on dark blue.
_BEST = "#e0439f"
# Inches of a cell, and of the names beside them.
_WIDE, _HIGH, _NAMES = 0.155, 0.135, 1.15
_FONT = 4.3


def make_matrices(measured: MetaTask, folder: Path) -> Made:
    """A matrix for each family, with half of the images for training."""
    files: list[Path] = []
    claims: list[Claim] = []
    for setting in [each for each in list_settings(measured) if each.protocol == list_settings(measured)[0].protocol]:
        evidence = gather(measured, setting)
        chosen = choose_experts(evidence, [STRATEGY])
        distances = find_distances(evidence)
        columns = _order_columns(evidence, distances)
        figure = draw_matrix(evidence, chosen, distances, columns)
        rows = list_cells(evidence, chosen, distances, columns)
        numbers = _summarise(chosen, distances)
        files += write_outcome(folder, f"matrix_{setting.family}", rows=rows, numbers=numbers, figure=figure)
        claims.append(_judge(numbers, setting.family))
    return Made(files, claims)


def find_distances(evidence: "MetaTask") -> np.ndarray:
    """(tasks, experts) d_sym(lesson, task) - alpha d_sym(lesson, trivial); NaN of experts whose lesson is not known."""
    if SYMMETRIC not in evidence.distances or SYMMETRIC not in evidence.trivial_distances:
        return np.full(evidence.is_candidate.shape, np.nan)
    simplicity = evidence.pick_sources(evidence.trivial_distances[SYMMETRIC])
    return evidence.to_sources(SYMMETRIC) - ALPHA * simplicity


def list_cells(evidence: "MetaTask", chosen: Chosen, distances: np.ndarray, columns: Sequence[int]) -> list[Row]:
    """One row for each cell of the picture."""
    rows = []
    for task, name in enumerate(one.name for one in evidence.tasks):
        for expert in columns:
            told: Row = {"task": name, "expert": evidence.models[expert].name, "error": evidence.mean[task, expert]}
            told |= {"distance": distances[task, expert], "is_candidate": int(evidence.is_candidate[task, expert])}
            told |= {"is_selected": int(STRATEGY in chosen.by and chosen.by[STRATEGY][task] == expert)}
            rows.append(told | {"is_best": int(chosen.optimum[task] == expert)})
    return rows


def draw_matrix(evidence: "MetaTask", chosen: Chosen, distances: np.ndarray, columns: Sequence[int]) -> "Figure":
    """Errors in percent as numbers; dark where the lesson is near; pale numbers where an expert has seen the task."""
    tall, wide = len(evidence.tasks), len(columns)
    size = (max(_NAMES + 0.45 + _WIDE * wide, 5.0), max(_NAMES + 0.5 + _HIGH * tall, 3.0))
    figure = import_figure()(figsize=size, dpi=220, layout="constrained")
    axes = figure.subplots()
    shown = np.where(evidence.is_candidate, distances, np.nan)[:, columns]
    picture = _paint(figure, axes, shown)
    for row in range(tall):
        for place, expert in enumerate(columns):
            error = evidence.mean[row, expert]
            if np.isfinite(error):
                colour = _choose_ink(picture, shown[row, place]) if evidence.is_candidate[row, expert] else "#c3cad1"
                words = axes.text(
                    place, row, f"{100 * error:.0f}", fontsize=_FONT, color=colour, ha="center", va="center"
                )
                words.set_in_layout(False)  # thousands of them would be measured again and again
        marks = {_BEST: chosen.optimum[row]}
        if STRATEGY in chosen.by:
            marks[SELECTED] = chosen.by[STRATEGY][row]
        for colour, expert in marks.items():
            _frame(axes, list(columns).index(expert), row, colour, is_inner=colour == SELECTED)
    _name_sides(axes, evidence, columns)
    _add_legend(figure, has_selection=STRATEGY in chosen.by)
    return figure


def _paint(figure: "Figure", axes: "Axes", shown: np.ndarray) -> Any:
    """The background: near is dark, and cells without a distance are white."""
    known = shown[np.isfinite(shown)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    picture = axes.imshow(
        np.ma.masked_invalid(shown), cmap="YlGnBu_r", vmin=low - 0.1 * (high - low), vmax=high, aspect="auto",
        interpolation="nearest",
    )  # fmt: skip
    if known.size:
        bar = figure.colorbar(picture, ax=axes, fraction=0.012, pad=0.008, aspect=40)
        bar.set_label("asymmetric distance from the expert's task", fontsize=7, color=INK)
        bar.ax.tick_params(labelsize=6, color=GREY, labelcolor=INK)
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    return picture


def _choose_ink(picture: Any, value: float) -> str:
    """White on dark, dark on light."""
    if not np.isfinite(value):
        return INK
    red, green, blue, _ = picture.cmap(picture.norm(value))
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.55 else INK


def _frame(axes: "Axes", column: int, row: int, colour: str, *, is_inner: bool) -> None:
    """A frame around a cell; the inner one leaves room for another outside."""
    from matplotlib.patches import Rectangle

    edge = 0.5 - (0.17 if is_inner else 0.03)
    corner, looks = (column - edge, row - edge), {"edgecolor": colour, "linewidth": 1.0, "zorder": 4}
    axes.add_patch(Rectangle(corner, 2 * edge, 2 * edge, fill=False, clip_on=False, **looks))


def _name_sides(axes: "Axes", evidence: "MetaTask", columns: Sequence[int]) -> None:
    """Names of tasks and experts in the colours of their datasets."""
    groups = [evidence.models[expert].source_dataset for expert in columns]
    colours = colour_datasets([*evidence.datasets, *(group for group in groups if group)])
    axes.set_xticks(range(len(columns)), [word_task(evidence.models[expert].name) for expert in columns], fontsize=5.5)
    axes.set_yticks(range(len(evidence.tasks)), [word_task(task.name) for task in evidence.tasks], fontsize=5.5)
    axes.tick_params(length=0, pad=2, top=True, bottom=False, labeltop=True, labelbottom=False)
    for label, group in zip(axes.get_xticklabels(), groups, strict=True):
        label.set(rotation=90, color=colours.get(group or "", INK))
    for label, group in zip(axes.get_yticklabels(), evidence.datasets, strict=True):
        label.set_color(colours[group])
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_xticks(np.arange(len(columns) + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(evidence.tasks) + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=0.4)
    axes.tick_params(which="minor", length=0, top=False, bottom=False, left=False)


def _add_legend(figure: "Figure", *, has_selection: bool) -> None:
    from matplotlib.patches import Patch

    entries = [Patch(facecolor="none", edgecolor=_BEST, linewidth=1.2, label="best candidate")]
    if has_selection:
        entries.append(Patch(facecolor="none", edgecolor=SELECTED, linewidth=1.2, label="nearest, and so selected"))
    entries.append(Patch(facecolor="none", edgecolor="none", label="pale: has seen the task, no candidate"))
    figure.legend(
        handles=entries, loc="outside lower left", ncols=3, fontsize=7, frameon=False, handlelength=1.0,
        handleheight=1.0, columnspacing=1.5,
    )  # fmt: skip


def _order_columns(evidence: "MetaTask", distances: np.ndarray) -> list[int]:
    """Experts that may be chosen for some task, those whose lesson is known in their order, the others after them."""
    allowed = [number for number in range(len(evidence.models)) if evidence.is_candidate[:, number].any()]
    return sorted(allowed, key=lambda number: bool(np.isnan(distances[:, number]).all()))


def _summarise(chosen: Chosen, distances: np.ndarray) -> dict[str, Any]:
    """How often the nearest is the best, and how far distance and error go together within a task."""
    from scipy.stats import spearmanr

    numbers: dict[str, Any] = {"tasks": len(chosen.means), "alpha": ALPHA}
    if STRATEGY in chosen.by:
        numbers["selected is best"] = int((chosen.by[STRATEGY] == chosen.optimum).sum())
    found = []
    for errors, row in zip(chosen.means, distances, strict=True):
        known = np.isfinite(errors) & np.isfinite(row)
        if known.sum() > 2:
            found.append(float(np.asarray(spearmanr(row[known], errors[known])[0])))
    numbers["spearman of distance and error"] = found
    if found:
        draws = np.random.default_rng(0).choice(found, (2000, len(found))).mean(1)
        low, high = np.quantile(draws, [0.025, 0.975])
        numbers["mean spearman"] = {"value": float(np.mean(found)), "low": float(low), "high": float(high)}
    return numbers


def _judge(numbers: dict[str, Any], family: str) -> Claim:
    claim = f"{family}: experts whose task is near by the asymmetric distance have smaller errors"
    if "mean spearman" not in numbers:
        return Claim("matrix", claim, "no lesson of a candidate has an embedding here", UNCLEAR)
    mean = numbers["mean spearman"]
    told = f"mean rho within a task {mean['value']:.2f} [{mean['low']:.2f}, {mean['high']:.2f}]"
    verdict = HOLDS if mean["low"] > 0 else FAILS if mean["high"] < 0 else UNCLEAR
    if "selected is best" in numbers:
        told += f"; the nearest is the best for {numbers['selected is best']} of {numbers['tasks']} tasks"
    return Claim("matrix", claim, told, verdict)
