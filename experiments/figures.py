"""Figures of the paper that several experiments draw: norm against error, neighbourhood curves with their area."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.report import Row, correlate, open_figure, split_rows
from task2vec import plots
from task2vec.plots import GREY, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DATASETS = {"cub200": "#0072b2", "flowers102": "#a8327d", "dogs": "#773311", "cifar10": "#00505e",
            "clothing10": "#2f2a9c", "dtd10": "#5f6b76"}  # fmt: skip


def choose_colours(datasets: Sequence[str]) -> dict[str, str]:
    """A colour for every dataset, unknown ones from what is left."""
    known = {name: DATASETS[name] for name in dict.fromkeys(datasets) if name in DATASETS}
    spare = [colour for colour in plots.COLOURS if colour not in known.values()]
    others = [name for name in dict.fromkeys(datasets) if name not in known]
    return known | {name: spare[number % len(spare)] for number, name in enumerate(others)}


def style_axes(axes: "Axes", x: str, y: str) -> None:
    """Labels, a light grid, and a frame of two lines."""
    axes.set_xlabel(x, fontsize=8, color=INK)
    axes.set_ylabel(y, fontsize=8, color=INK)
    axes.tick_params(which="both", labelsize=7, color=GREY, labelcolor=INK)
    axes.grid(axis="y", color="#e7eaee", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)


def draw_norms(rows: Sequence[Row], spaces: Sequence[str], *, error: str, what: str) -> "Figure":
    """A panel for each space and family: the norm of the embedding to the right, the column `error` up, named `what`.

    Harder tasks have larger embeddings (Achille 2019).
    """
    families = split_rows(rows, "family")
    figure = open_figure(0.35 + 2.35 * len(families))
    panels = figure.subplots(len(families), len(spaces), squeeze=False, sharey="row")
    colours = choose_colours([row["dataset"] for row in rows])
    marks = {name: plots.MARKS[number % len(plots.MARKS)] for number, name in enumerate(colours)}
    for line, (family, group) in zip(panels, families.items(), strict=True):
        for axes, space in zip(line, spaces, strict=True):
            _draw_norm_panel(axes, group, space, error, colours, marks)
        line[0].set_ylabel(f"{family}: {what} (%)", fontsize=8, color=plots.INK)
    for axes in panels[-1]:
        axes.set_xlabel("norm of the embedding (L1 of the Fisher)", fontsize=8, color=plots.INK)
    for name, colour in colours.items():
        panels[0, 0].plot([], [], linestyle="none", marker=marks[name], markersize=4.5, color=colour, label=name)
    figure.legend(loc="outside upper center", ncols=len(colours), fontsize=7, frameon=False, handletextpad=0.1)
    return figure


def _draw_norm_panel(
    axes: "Axes", rows: Sequence[Row], space: str, error: str, colours: Mapping[str, str], marks: Mapping[str, str]
) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    for row in rows:
        look: Row = {"color": colours[row["dataset"]], "marker": marks[row["dataset"]], "edgecolors": "white"}
        axes.scatter(row[space], 100 * row[error], s=20, alpha=0.85, linewidths=0.4, **look)
    style_axes(axes, "", "")
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    if high < 100 * low:  # powers of ten would be too few ticks
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    rho = correlate([row[space] for row in rows], [row[error] for row in rows])
    axes.set_title(f"{space}: ρ = {rho}, {rho.count} tasks", fontsize=7.5, color=plots.INK, loc="left")


def neighbourhood_curve(distances: np.ndarray, taxonomic: np.ndarray) -> np.ndarray:
    """Mean taxonomic distance of the k nearest tasks, for k from 1 to all others (Achille 2019, Fig. 2).

    No order of neighbours lies below the one by taxonomic distance itself; a random one is flat. Row i of `distances`
    holds those from task i; they need not be symmetric. Tasks at the same distance count with their mean, which is
    what a fair coin gives on average.

    Example:
        >>> import numpy as np
        >>> points, taxa = np.array([0.0, 1.0, 5.0]), np.array([[0, 2, 8], [2, 0, 8], [8, 8, 0]])
        >>> neighbourhood_curve(abs(points[:, None] - points[None, :]), taxa)
        array([4., 6.])
    """
    count = len(distances)
    curves = []
    for task in range(count):
        others = np.arange(count) != task
        _, group, sizes = np.unique(distances[task, others], return_inverse=True, return_counts=True)
        means = np.bincount(group, weights=taxonomic[task, others]) / sizes
        curves.append(np.repeat(means, sizes).cumsum())
    return np.mean(curves, axis=0) / np.arange(1, count)


def curve_area(distances: np.ndarray, taxonomic: np.ndarray) -> float:
    """The area above the neighbourhood curve, 0 for a random order and 1 for the best; below 0, worse than random.

    Example:
        >>> import numpy as np
        >>> points, taxa = np.array([0.0, 1.0, 5.0]), np.array([[0, 2, 8], [2, 0, 8], [8, 8, 0]])
        >>> curve_area(abs(points[:, None] - points[None, :]), taxa)
        1.0
    """
    curve, best = neighbourhood_curve(distances, taxonomic), neighbourhood_curve(taxonomic, taxonomic)
    possible = float((best[-1] - best).sum())
    assert possible > 1e-12 * abs(float(best[-1])), "all tasks are equally far apart in the taxonomy"
    return float((curve[-1] - curve).sum()) / possible


def draw_neighbourhoods(matrices: Mapping[str, np.ndarray], taxonomic: np.ndarray, *, out: str | Path) -> list[Path]:
    """The neighbourhood curves of several distances in one figure.

    Args:
        matrices: distances between the same tasks, by the name of the distance.
        taxonomic: distances in the taxonomy.
        out: path without extension for PNG, PDF and CSV, or one file (.png, .pdf, .svg).

    Example:
        >>> import numpy as np, tempfile
        >>> taxa = np.array([[0, 2, 8], [2, 0, 8], [8, 8, 0]])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     [file.name for file in draw_neighbourhoods({"itself": taxa}, taxa, out=f"{folder}/curve")]
        ['curve.png', 'curve.pdf', 'curve.csv']
    """
    curves = {name: neighbourhood_curve(distances, taxonomic) for name, distances in matrices.items()}
    best = neighbourhood_curve(taxonomic, taxonomic)
    figure = open_figure(3.2, width=0.75 * plots.PAPER_WIDTH)
    axes = figure.subplots()
    steps = np.arange(1, len(best) + 1)
    axes.fill_between(steps, best, best[-1], color=GREY, alpha=0.08, linewidth=0)
    axes.axhline(best[-1], color=GREY, linewidth=1.0, linestyle=(0, (1, 2)), label="random (0.00)")
    for (name, look), curve in zip(plots.choose_looks(list(curves)).items(), curves.values(), strict=True):
        area = round(curve_area(matrices[name], taxonomic), 2) + 0.0
        line: dict[str, Any] = {"color": look.colour, "marker": look.mark, "markersize": 3.2, "linewidth": 1.2}
        label = f"{plots.format_legend(name)} ({area:.2f})"
        axes.plot(steps, curve, markevery=max(1, len(steps) // 14), label=label, **line)
    axes.plot(steps, best, color=INK, linewidth=1.0, linestyle="--", label="best possible (1.00)")
    style_axes(axes, "nearest tasks (k)", "mean taxonomic distance")
    axes.set_xlim(0.5, len(steps) + 0.5)
    axes.legend(fontsize=7, frameon=False, title="distance (area)", title_fontsize=7, alignment="left")
    rows = zip(steps.tolist(), *curves.values(), [best[-1]] * len(steps), best, strict=True)
    return plots.save_figure(figure, out, ["k", *curves, "random", "best possible"], rows)
