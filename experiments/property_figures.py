"""The properties in pictures: rows in, figures out. Dots are single subsets, bars one standard error of their mean."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.outcome import write_figure, write_rows
from experiments.properties import ALL_BUT_ONE, SHUFFLED, TRUE
from experiments.property_claims import (
    Claim,
    correlate,
    correlate_by_dataset,
    is_learnable,
    only,
    split,
    summarise,
)
from task2vec.plots import import_figure, scale_norms

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches: the width of two columns of a paper, and of a picture that stands alone.
_WIDTH, _ALONE = 7.2, 5.2
_INK, _GREY = "#22313f", "#8a94a0"
# Colours that the colour-blind can tell apart (Okabe and Ito), each with a mark of its own for print without colour.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5b4a8a", "#7f6b4f")
_MARKS = ("o", "s", "^", "D", "v", "P", "X", "h")
_STYLES = {TRUE: "-", SHUFFLED: "--", ALL_BUT_ONE: ":"}
# More entries than this stand in two rows.
_MOST_ENTRIES = 4
_LONGEST_NAME = 24
_SAME = "the same, "
_YARDSTICKS = ("cross-validated error (%)", "norm (L1 of the Fisher)", "distance to trivial")

Row = dict[str, Any]


def write_properties(rows: dict[str, list[Row]], claims: Sequence[Claim], folder: Path) -> list[Path]:
    """The figures of all properties (PNG and PDF) and the numbers behind them (CSV)."""
    draw = {
        "norm_error": draw_norm_error,
        "labels": draw_labels,
        "classes": draw_classes,
        "sample_size": draw_sample_size,
    }
    pictures = [path for name, drawn in draw.items() for path in write_figure(drawn(rows[name]), folder, name)]
    tables = {
        **rows,
        "norm_error_correlations": correlate_by_dataset(rows["norm_error"]),
        "claims": [asdict(claim) for claim in claims],
    }
    return [*pictures, *(write_rows(table, folder, name) for name, table in tables.items())]


def draw_norm_error(rows: Sequence[Row]) -> "Figure":
    """Every task by its norm and its error, coloured by dataset; hollow where the head does no better than chance."""
    figure = import_figure()(figsize=(_ALONE, 3.3), dpi=300, layout="constrained")
    axes = figure.subplots()
    floor = min((row["norm"] for row in rows if row["norm"] > 0), default=1.0)
    for number, group in enumerate(split(rows, "dataset")):
        colour, mark = _COLOURS[number % len(_COLOURS)], _MARKS[number % len(_MARKS)]
        for is_solid in (True, False):
            part = [row for row in group if is_learnable(row) == is_solid]
            norms, errors = [max(row["norm"], floor) for row in part], [100 * row["error"] for row in part]
            fill = colour if is_solid else "none"
            axes.scatter(
                norms, errors, s=20, marker=mark, facecolors=fill, edgecolors=colour, linewidths=0.9, alpha=0.85
            )
        found = correlate([row["norm"] for row in group], [row["error"] for row in group])
        told = f"{found.count} tasks" if found.rho is None else f"{found.count} tasks, ρ = {found.rho:.2f}"
        _add_key(axes, f"{_shorten(group[0]['dataset'])} ({told})", color=colour, marker=mark)
    _add_key(axes, "hollow: no better than chance", color=_GREY, marker="o", markerfacecolor="none")
    axes.set_xscale("log")
    axes.set_ylim(-3, max(60.0, *(100 * row["error"] + 5 for row in rows)))
    _label(axes, "norm of the embedding (L1 of the Fisher)", "cross-validated error (%)")
    figure.legend(
        loc="outside right upper", fontsize=6.5, frameon=False, handletextpad=0.3, borderpad=0, alignment="left",
        title=_word_correlations(rows), title_fontsize=7,
    )  # fmt: skip
    return figure


def _word_correlations(rows: Sequence[Row]) -> str:
    """The correlation over all tasks, and over those that can be learned if there are others."""
    lines = ["Spearman's ρ [95 % interval]"]
    learnable = [row for row in rows if is_learnable(row)]
    kinds = {f"all {len(rows)} tasks": list(rows), f"{len(learnable)} better than chance": learnable}
    for name, kind in kinds.items() if len(learnable) < len(rows) else list(kinds.items())[:1]:
        lines.append(f"{correlate([row['norm'] for row in kind], [row['error'] for row in kind])}, {name}")
    return "\n".join([*lines, ""])


def draw_labels(rows: Sequence[Row]) -> "Figure":
    """Error, norm and distance to the trivial embedding as ever more labels are shuffled."""
    figure, (error, norm, distance) = _lay_out(3, height=2.45)
    for number, group in enumerate(split(rows, "task")):
        told = [{**row, "percent": 100 * row["shuffled"], "missed": 100 * row["error"]} for row in group]
        colour = _COLOURS[number]
        error.axhline(100 * group[0]["chance"], color=colour, linewidth=0.7, linestyle=(0, (1, 2)))
        _draw_curve(error, told, "percent", "missed", number, label=_shorten(group[0]["task"]))
        _draw_curve(norm, told, "percent", "norm", number, is_logarithmic=True)
        _draw_curve(distance, told, "percent", "distance", number)
    for axes, words in zip((error, norm, distance), _YARDSTICKS, strict=True):
        _label(axes, "labels shuffled (%)", words)
        axes.set_xticks([0, 25, 50, 75, 100])
    error.set_ylim(-4, 104)
    scale_norms(norm, "y")
    _draw_trivial(distance, side="left")
    _letter((error, norm, distance))
    _add_legend(figure, error, note="chance")
    return figure


def draw_classes(rows: Sequence[Row]) -> "Figure":
    """Error and norm of random subsets of the classes of one task."""
    figure, (error, norm) = _lay_out(2, height=2.4, width=_ALONE)
    told = [{**row, "missed": 100 * row["error"]} for row in rows]
    counts = sorted({row["classes"] for row in rows})
    smooth = np.geomspace(counts[0], counts[-1], 100)
    error.plot(smooth, 100 * (1 - 1 / smooth), color=_GREY, linewidth=0.8, linestyle=(0, (1, 2)))
    error.annotate("chance", (counts[-1], 100 * (1 - 1 / counts[-1])), (0, -7), textcoords="offset points", ha="right",
                   va="top", fontsize=6.5, color=_GREY)  # fmt: skip
    label = f"{_shorten(rows[0]['task'])}, {rows[0]['images_per_class']} images per class"
    _draw_curve(error, told, "classes", "missed", 0, label=label)
    _draw_curve(norm, told, "classes", "norm", 0, is_logarithmic=True)
    for axes, words in zip((error, norm), _YARDSTICKS, strict=False):
        _label(axes, "number of classes", words)
        _scale_counts(axes, counts)
    error.set_ylim(-4, 104)
    scale_norms(norm, "y")
    _letter((error, norm))
    _add_legend(figure, error)
    return figure


def draw_sample_size(rows: Sequence[Row]) -> "Figure":
    """Distance to the trivial embedding, share of the prior, norm and error by the number of images per class."""
    figure, panels = _lay_out(4, height=4.5, columns=2)
    distance, share, norm, error = panels
    for number, group in enumerate(split(rows, "task")):
        for kind in (kind for kind in _STYLES if only(group, kind)):
            told = [
                {**row, "missed": 100 * row["error"], "percent": 100 * row["prior_share"]} for row in only(group, kind)
            ]
            name = _shorten(group[0]["task"])
            options: Row = {"style": _STYLES[kind], "is_control": kind != TRUE}
            label = name if kind == TRUE else f"{_SAME}{kind}"
            _draw_curve(distance, told, "images_per_class", "distance", number, label=label, **options)
            _draw_curve(share, told, "images_per_class", "percent", number, **options)
            _draw_curve(norm, told, "images_per_class", "norm", number, is_logarithmic=True, **options)
            _draw_curve(error, told, "images_per_class", "missed", number, **options)
    words = (_YARDSTICKS[2], "prior's share of the vector (%)", *_YARDSTICKS[1::-1])
    for axes, word in zip(panels, words, strict=True):
        _label(axes, "images per class", word)
        _scale_counts(axes, sorted({row["images_per_class"] for row in rows}))
    share.set_ylim(-4, 104)
    error.set_ylim(-4, 104)
    scale_norms(norm, "y")
    _draw_trivial(distance, side="right")
    _letter(panels)
    _add_legend(figure, distance)
    return figure


def _lay_out(
    count: int, *, height: float, columns: int | None = None, width: float = _WIDTH
) -> "tuple[Figure, tuple[Axes, ...]]":
    """A figure and its panels, side by side unless there are fewer columns."""
    figure = import_figure()(figsize=(width, height), dpi=300, layout="constrained")
    columns = columns or count
    panels = figure.subplots(count // columns, columns, squeeze=False)
    return figure, tuple(panels.flat)


def _draw_curve(
    axes: "Axes",
    rows: Sequence[Row],
    by: str,
    value: str,
    number: int,
    *,
    label: str | None = None,
    is_logarithmic: bool = False,
    style: str = "-",
    is_control: bool = False,
) -> None:
    """Every subset as a pale dot, and the mean of each kind with its standard error."""
    colour = _COLOURS[number % len(_COLOURS)]
    points = summarise(rows, by, value, is_logarithmic=is_logarithmic)
    back = np.exp if is_logarithmic else np.asarray
    at = [point.at for point in points]
    mean = back([point.mean for point in points])
    low = mean - back([point.mean - point.stderr for point in points])
    high = back([point.mean + point.stderr for point in points]) - mean
    for point in points:
        axes.scatter([point.at] * len(point.values), back(point.values), s=5, color=colour, alpha=0.3, linewidths=0)
    mark = "none" if is_control else _MARKS[number % len(_MARKS)]
    axes.errorbar(
        at, mean, [low, high], color=colour, linestyle=style, marker=mark, markersize=3.5, linewidth=1.1, capsize=2,
        elinewidth=0.9, label=label,
    )  # fmt: skip


def _draw_trivial(axes: "Axes", *, side: str) -> None:
    """The place of the trivial embedding, at distance zero, with its name at the side where no curve comes near."""
    axes.set_ylim(bottom=-0.03)
    axes.axhline(0, color=_INK, linewidth=0.8)
    at, inwards = (1, -3) if side == "right" else (0, 3)
    axes.annotate("trivial embedding", (at, 0), (inwards, 3), xycoords=("axes fraction", "data"), ha=side, fontsize=6.5,
                  textcoords="offset points", color=_INK)  # fmt: skip


def _scale_counts(axes: "Axes", counts: Sequence[int]) -> None:
    """A logarithmic axis of counts with a tick at each of them."""
    axes.set_xscale("log")
    axes.set_xticks(list(counts), [f"{count:g}" for count in counts])
    axes.xaxis.minorticks_off()
    edge = math.sqrt(1.25)
    axes.set_xlim(min(counts) / edge, max(counts) * edge)


def _label(axes: "Axes", x: str, y: str) -> None:
    axes.set_xlabel(x, fontsize=8, color=_INK)
    axes.set_ylabel(y, fontsize=8, color=_INK)
    axes.tick_params(which="both", labelsize=7, color=_GREY, labelcolor=_INK)
    axes.grid(axis="y", color="#e7eaee", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_GREY)


def _letter(panels: "Sequence[Axes]") -> None:
    for letter, axes in zip("abcd", panels, strict=False):
        axes.set_title(letter, fontsize=9, fontweight="bold", loc="left", color=_INK)


def _add_key(axes: "Axes", label: str, **options: Any) -> None:
    """An entry of the legend that is not drawn."""
    axes.plot([], [], linestyle="none", markersize=4.5, label=label, **options)


def _add_legend(figure: "Figure", axes: "Axes", *, note: str | None = None) -> None:
    """One legend above all panels; where it takes two rows, the tasks stand above what was done to them."""
    handles, labels = axes.get_legend_handles_labels()
    if note:
        handles.append(axes.plot([], [], color=_GREY, linewidth=0.8, linestyle=(0, (1, 2)))[0])
        labels.append(note)
    columns, order = len(labels), list(range(len(labels)))
    if columns > _MOST_ENTRIES:
        order.sort(key=lambda index: labels[index].startswith(_SAME))
        columns = math.ceil(columns / 2)
        rows = order[:columns], order[columns:]
        order = [row[index] for index in range(columns) for row in rows if index < len(row)]  # legends fill columns
    entries = [handles[index] for index in order], [labels[index] for index in order]
    figure.legend(*entries, loc="outside upper center", ncols=columns, fontsize=7, frameon=False)


def _shorten(name: str, longest: int = _LONGEST_NAME) -> str:
    """A stranger's name, short, in printable characters; a dollar sign is a letter here, not mathematics."""
    printable = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in name)
    printable = printable if len(printable) <= longest else printable[: longest - 1] + "…"
    # A label that begins with an underscore would be left out of the legend.
    return f"{' ' if printable[:1] == '_' else ''}{printable}".replace("$", r"\$")
