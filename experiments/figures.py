"""Figures of the paper that only the experiments draw: norm against error, and neighbourhood curves with their area."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from task2vec.plots import GREY, INK, PAPER_WIDTH, choose_looks, format_legend, import_figure, save_figure
from task2vec.text import pluralize

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PALE = "#e7eaee"
_LEGEND: dict[str, Any] = {"frameon": False, "fontsize": 7, "handletextpad": 0.3, "columnspacing": 1.2}


def style_axes(axes: "Axes", x: str, y: str) -> None:
    """Labels, a light grid, and a frame of two lines."""
    axes.set_xlabel(x, fontsize=8, color=INK)
    axes.set_ylabel(y, fontsize=8, color=INK)
    axes.tick_params(which="both", labelsize=7, color=GREY, labelcolor=INK)
    axes.grid(axis="y", color=_PALE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)


def scale_norms(axes: "Axes", which: str) -> None:
    """A logarithmic "x" or "y" axis: powers of ten, or plain numbers if the norms span less than two of them."""
    from matplotlib.ticker import LogLocator, NullFormatter

    getattr(axes, f"set_{which}scale")("log")
    axis = getattr(axes, f"{which}axis")
    low, high = axis.get_view_interval()
    if high < 100 * low:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


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


def rank_correlation(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> float | None:
    """Spearman's rank correlation, ties with their mean rank; None if one side is constant.

    Example:
        >>> rank_correlation([1, 2, 3], [10, 100, 1000]), rank_correlation([1, 2, 3], [5, 5, 5])
        (1.0, None)
    """
    from scipy.stats import spearmanr

    return None if np.ptp(x) == 0 or np.ptp(y) == 0 else float(spearmanr(x, y)[0])  # type: ignore[arg-type]


def draw_norm_error(
    norms: Sequence[float],
    errors: Sequence[float],
    *,
    names: Sequence[str],
    out: str | Path,
    groups: Sequence[str] | None = None,
) -> list[Path]:
    """Norm against error: harder tasks have larger embeddings (Achille 2019).

    Args:
        norms: of the embeddings; positive, drawn on a logarithmic axis.
        errors: between 0 and 1.
        names: of the tasks, for the table.
        out: path without extension for PNG, PDF and CSV, or one file (.png, .pdf, .svg).
        groups: one per task, each drawn in its own colour.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     files = draw_norm_error([1, 20], [0.1, 0.4], names=["a", "b"], out=f"{folder}/norms")
        ...     [file.name for file in files]
        ['norms.png', 'norms.pdf', 'norms.csv']
    """
    norm, error = np.asarray(norms, dtype=np.float64), np.asarray(errors, dtype=np.float64)
    groups = [""] * len(norm) if groups is None else groups
    figure = import_figure()(figsize=(0.75 * PAPER_WIDTH, 3.4), dpi=300, layout="constrained")
    axes = figure.subplots()

    def describe(part: np.ndarray) -> str:
        rho = rank_correlation(norm[part], error[part])
        return ("" if rho is None else f"ρ = {rho:.2f}, ") + pluralize(len(part), "task")

    for group, look in choose_looks(groups).items():
        part = np.flatnonzero([one == group for one in groups])
        style = {"marker": look.mark, "color": look.colour, "alpha": 0.85, "edgecolors": "white", "linewidths": 0.4}
        label = f"{format_legend(group)} ({describe(part)})" if group else None
        axes.scatter(norm[part], 100 * error[part], s=22, label=label, **style)
    scale_norms(axes, "x")
    style_axes(axes, "norm of the embedding (L1 of the Fisher)", "error (%)")
    axes.set_title(f"Spearman's {describe(np.arange(len(norm)))}", fontsize=8, color=INK, loc="left")
    if any(groups):
        figure.legend(loc="outside right upper", **_LEGEND)
    rows = zip(names, groups, norm, error, strict=True)
    return save_figure(figure, out, ["task", "group", "norm", "error"], rows)


def draw_neighbourhoods(
    matrices: Mapping[str, np.ndarray], taxonomic: np.ndarray, *, out: str | Path, most: int | None = None
) -> list[Path]:
    """The neighbourhood curves of several distances in one figure.

    Args:
        matrices: distances between the same tasks, by the name of the distance.
        taxonomic: distances in the taxonomy.
        out: path without extension for PNG, PDF and CSV, or one file (.png, .pdf, .svg).
        most: how many neighbours to show; all of them by default.

    Example:
        >>> import numpy as np, tempfile
        >>> taxa = np.array([[0, 2, 8], [2, 0, 8], [8, 8, 0]])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     [file.name for file in draw_neighbourhoods({"itself": taxa}, taxa, out=f"{folder}/curve")]
        ['curve.png', 'curve.pdf', 'curve.csv']
    """
    curves = {name: neighbourhood_curve(distances, taxonomic) for name, distances in matrices.items()}
    best = neighbourhood_curve(taxonomic, taxonomic)
    figure = import_figure()(figsize=(0.75 * PAPER_WIDTH, 3.2), dpi=300, layout="constrained")
    axes = figure.subplots()
    steps = np.arange(1, len(best) + 1)
    axes.fill_between(steps, best, best[-1], color=GREY, alpha=0.08, linewidth=0)
    axes.axhline(best[-1], color=GREY, linewidth=1.0, linestyle=(0, (1, 2)), label="random (0.00)")
    for (name, look), curve in zip(choose_looks(list(curves)).items(), curves.values(), strict=True):
        area = round(curve_area(matrices[name], taxonomic), 2) + 0.0
        line: dict[str, Any] = {"color": look.colour, "marker": look.mark, "markersize": 3.2, "linewidth": 1.2}
        label = f"{format_legend(name)} ({area:.2f})"
        axes.plot(steps, curve, markevery=max(1, len(steps) // 14), label=label, **line)
    axes.plot(steps, best, color=INK, linewidth=1.0, linestyle="--", label="best possible (1.00)")
    style_axes(axes, "nearest tasks (k)", "mean taxonomic distance")
    axes.set_xlim(0.5, (most or len(steps)) + 0.5)
    axes.legend(fontsize=7, frameon=False, title="distance (area)", title_fontsize=7, alignment="left")
    rows = zip(steps.tolist(), *curves.values(), [best[-1]] * len(steps), best, strict=True)
    return save_figure(figure, out, ["k", *curves, "random", "best possible"], rows)
