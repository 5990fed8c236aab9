"""Neighbourhood curves: whether the nearest tasks of a task are also its relatives (Achille 2019).

The curve is the mean taxonomic distance of the k nearest tasks against k. No ordering lies below the one by taxonomic
distance itself, and one that knows nothing is flat, at the mean over all pairs; all curves meet there when k is all
other tasks.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from task2vec.atlas.canvas import import_figure
from task2vec.atlas.labels import word_legend
from task2vec.atlas.layout import check_square
from task2vec.atlas.palette import GREY, INK, PAPER_WIDTH, choose_looks, style_axes
from task2vec.atlas.table import save_drawing
from task2vec.errors import UsageError


def neighbourhood_curve(distances: np.ndarray, taxonomic: np.ndarray) -> np.ndarray:
    """Mean taxonomic distance of the k nearest tasks, for k from 1 to all others (an array of n - 1 numbers).

    Row i of `distances` holds those from task i; they need not be symmetric. Tasks at the same distance stand in for
    one another: each counts with the mean of them all, which is what a fair coin would give on average.

    Example:
        >>> import numpy as np
        >>> places, taxa = np.array([0.0, 1.0, 5.0]), np.array([[0, 2, 8], [2, 0, 8], [8, 8, 0]])
        >>> neighbourhood_curve(abs(places[:, None] - places[None, :]), taxa)
        array([4., 6.])
    """
    distances, taxonomic = _check(distances, taxonomic)
    count = len(distances)
    curves = []
    for task in range(count):
        others = np.arange(count) != task
        curves.append(_sort_fairly(distances[task, others], taxonomic[task, others]).cumsum())
    return np.mean(curves, axis=0) / np.arange(1, count)


def curve_area(distances: np.ndarray, taxonomic: np.ndarray) -> float:
    """How much of the way from random (0) to the best possible (1) the neighbourhoods go; below 0: worse than random.

    The area between the random curve and this one, over the area between the random and the best one.

    Example:
        >>> import numpy as np
        >>> places, taxa = np.array([0.0, 1.0, 5.0]), np.array([[0, 2, 8], [2, 0, 8], [8, 8, 0]])
        >>> curve_area(abs(places[:, None] - places[None, :]), taxa)
        1.0
    """
    curve, best = neighbourhood_curve(distances, taxonomic), neighbourhood_curve(taxonomic, taxonomic)
    possible = float((best[-1] - best).sum())
    if possible <= 1e-12 * abs(float(best[-1])):
        raise UsageError(
            "all tasks are equally far from one another in the taxonomy, so no neighbourhood is better than another. "
            "Take tasks of several taxa."
        )
    return float((curve[-1] - curve).sum()) / possible


def draw_neighbourhoods(
    matrices: Mapping[str, np.ndarray], taxonomic: np.ndarray, *, out: str | Path, most: int | None = None
) -> list[Path]:
    """The curves of several distances in one picture: `out`.png, `out`.pdf, and their numbers in `out`.csv.

    Args:
        matrices: distances between the same tasks, by the name of the distance.
        taxonomic: distances in the taxonomy.
        out: path without extension.
        most: how many neighbours to show; all of them by default.

    Example:
        >>> import numpy as np, tempfile
        >>> taxa = np.array([[0, 2, 8], [2, 0, 8], [8, 8, 0]])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     [file.name for file in draw_neighbourhoods({"itself": taxa}, taxa, out=f"{folder}/curve")]
        ['curve.png', 'curve.pdf', 'curve.csv']
    """
    curves = {name: neighbourhood_curve(distances, taxonomic) for name, distances in matrices.items()}
    areas = {name: curve_area(distances, taxonomic) for name, distances in matrices.items()}
    best = neighbourhood_curve(taxonomic, taxonomic)
    figure = import_figure()(figsize=(0.75 * PAPER_WIDTH, 3.2), dpi=300, layout="constrained")
    axes = figure.subplots()
    steps = np.arange(1, len(best) + 1)
    axes.fill_between(steps, best, best[-1], color=GREY, alpha=0.08, linewidth=0)
    axes.axhline(best[-1], color=GREY, linewidth=1.0, linestyle=(0, (1, 2)), label="random (0.00)")
    for (name, look), curve in zip(choose_looks(list(curves)).items(), curves.values(), strict=True):
        axes.plot(
            steps, curve, color=look.colour, marker=look.mark, markersize=3.2, linewidth=1.2, markevery=_every(steps),
            label=f"{word_legend(name)} ({round(areas[name], 2) + 0.0:.2f})",
        )  # fmt: skip
    axes.plot(steps, best, color=INK, linewidth=1.0, linestyle="--", label="best possible (1.00)")
    style_axes(axes, "nearest tasks (k)", "mean taxonomic distance")
    axes.set_xlim(0.5, (most or len(steps)) + 0.5)
    axes.legend(fontsize=7, frameon=False, title="distance (area)", title_fontsize=7, alignment="left")
    header = ["k", *curves, "random", "best possible"]
    rows = zip(steps.tolist(), *curves.values(), [best[-1]] * len(steps), best, strict=True)
    return save_drawing(figure, out, header=header, rows=rows)


def _every(steps: np.ndarray) -> int:
    return max(1, len(steps) // 14)


def _sort_fairly(distances: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The values by ascending distance, those at one distance replaced by their mean."""
    _, group, counts = np.unique(distances, return_inverse=True, return_counts=True)
    return np.repeat(np.bincount(group, weights=values) / counts, counts)


def _check(distances: np.ndarray, taxonomic: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    distances, taxonomic = (check_square(matrix, is_symmetric=False) for matrix in (distances, taxonomic))
    if distances.shape != taxonomic.shape or len(distances) < 2:
        raise UsageError(
            f"distances between {len(distances)} tasks and a taxonomy of {len(taxonomic)} give no neighbourhoods: both "
            "must be of the same tasks, two or more. Pass two square arrays of one size."
        )
    return distances, taxonomic
