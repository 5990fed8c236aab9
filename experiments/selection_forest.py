"""Strategies side by side in panels: a dot and an interval each, as far above the optimum as they are."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from task2vec.plots import INK, PALE, PAPER_WIDTH, import_figure, style_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LINE, _HEAD = 0.165, 0.95


@dataclass(frozen=True)
class Bar:
    """A number with the ends of its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Series:
    """One kind of dots.

    Attributes:
        name: as the legend has it.
        colour: of the dots.
        is_hollow: whether only their edges are drawn.
    """

    name: str
    colour: str
    is_hollow: bool = False


Panel = Mapping[str, Mapping[str, Bar]]


def draw_forest(
    panels: Mapping[str, Panel],
    series: Sequence[Series],
    *,
    label: str,
    lines: Mapping[str, Mapping[str, float]] | None = None,
    lines_are: str | None = None,
    most: float = math.inf,
    bold: Sequence[str] = (),
) -> "Figure":
    """A panel for each title; rows are named at the left.

    Args:
        panels: by title and row, the bar of every series; rows may be missing from a panel.
        series: what the dots of a row are.
        label: of all axes together.
        lines: by title and the name of a series, where a dashed line stands.
        lines_are: what the legend says of them.
        most: what is farther to the right than this stands at the edge, with its number.
        bold: rows whose names are bold.
    """
    rows = list(dict.fromkeys(row for panel in panels.values() for row in panel))
    size = (PAPER_WIDTH, _HEAD + _LINE * len(rows))
    figure = import_figure()(figsize=size, dpi=300, layout="constrained")
    engine: Any = figure.get_layout_engine()
    engine.set(w_pad=0.02, wspace=0.01)
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for one, (title, panel) in zip(axes, panels.items(), strict=True):
        _draw_panel(one, panel, rows, series, most)
        for name, place in (lines or {}).get(title, {}).items():
            colour = next(each.colour for each in series if each.name == name)
            one.axvline(place, color=colour, linewidth=0.8, linestyle=(0, (3, 2)), zorder=1)
        one.set_title(title.replace(", ", ",\n"), fontsize=7.5, color=INK, loc="left")
    figure.supxlabel(label, fontsize=7.5, color=INK)
    axes[0].set_yticks(range(len(rows)), rows, fontsize=7)
    axes[0].set_ylim(len(rows) - 0.4, -0.6)
    for tick, row in zip(axes[0].get_yticklabels(), rows, strict=True):
        tick.set(fontweight="bold" if row in bold else "normal", color=INK)
    for each in series:
        axes[0].plot([], [], linestyle="none", marker="o", markersize=4.5, label=each.name, **_look(each))
    if lines_are is not None:
        axes[0].plot([], [], color=INK, linewidth=0.8, linestyle=(0, (3, 2)), label=lines_are)
    figure.legend(loc="outside upper center", ncols=len(series) + 1, fontsize=7, frameon=False, handletextpad=0.4)
    return figure


def _draw_panel(axes: "Axes", panel: Panel, rows: Sequence[str], series: Sequence[Series], most: float) -> None:
    style_axes(axes, "", "")
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color=PALE, linewidth=0.6)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=6.5)
    axes.spines["left"].set_visible(False)
    axes.axvline(0, color=INK, linewidth=0.8, zorder=1)
    for place in range(0, len(rows), 2):
        axes.axhspan(place - 0.5, place + 0.5, color="#f6f8fa", zorder=0, linewidth=0)
    step = 0.36 / max(len(series) - 1, 1)
    for place, row in enumerate(rows):
        for number, each in enumerate(series):
            if row in panel and each.name in panel[row]:
                height = place + (number - (len(series) - 1) / 2) * step
                _draw_bar(axes, panel[row][each.name], height, each, most)


def _draw_bar(axes: "Axes", bar: Bar, height: float, series: Series, most: float) -> None:
    if bar.value > most:
        axes.text(1.0, height, f"{bar.value:.0f} ›", transform=axes.get_yaxis_transform(), ha="right", va="center",
                  fontsize=5.5, color=series.colour)  # fmt: skip
        return
    axes.plot([bar.low, min(bar.high, most)], [height] * 2, color=series.colour, linewidth=0.9, alpha=0.75, zorder=2)
    axes.plot([bar.value], [height], linestyle="none", marker="o", markersize=3.4, zorder=3, **_look(series))


def _look(series: Series) -> dict[str, Any]:
    face = "white" if series.is_hollow else series.colour
    return {"color": series.colour, "markerfacecolor": face, "markeredgewidth": 0.9}


def word_bar(bar: Bar | None) -> str:
    """The number and its interval, in percent.

    Example:
        >>> word_bar(Bar(2.04, -0.5, 5.13)), word_bar(None)
        ('+2.0 [-0.5, +5.1]', '')
    """
    return "" if bar is None else f"{bar.value:+.1f} [{bar.low:+.1f}, {bar.high:+.1f}]"
