"""A distance matrix with its family tree: rows ordered by hierarchical clustering, groups as a strip of colours."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from task2vec.atlas.canvas import import_figure
from task2vec.atlas.labels import shorten, word_legend
from task2vec.atlas.layout import check_square
from task2vec.atlas.palette import GREY, INK, NO_GROUP, PAPER_WIDTH, Look, check_groups, choose_looks
from task2vec.atlas.table import save_drawing
from task2vec.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches. Names are left out where a row is too thin for letters; the table beside the picture has them all.
_MARGIN, _TREE, _STRIP, _GAP, _HEAD, _FOOT = 0.1, 0.75, 0.1, 0.04, 0.3, 0.34
_LARGEST_ROW, _THINNEST_NAMED_ROW = 0.24, 0.04
_LEGEND_COLUMNS, _LEGEND_ROW, _LEGEND_LETTERS = 4, 0.15, 26
# Ordering the leaves in the best way takes the cube of their number.
_MOST_FOR_BEST_ORDER = 400


def link_tasks(distances: np.ndarray) -> np.ndarray:
    """The family tree of the tasks by average linkage, as scipy writes it, near leaves side by side.

    Example:
        >>> import numpy as np
        >>> points = np.array([0.0, 9.0, 1.0])
        >>> link_tasks(abs(points[:, None] - points[None, :]))[:, 2].tolist()
        [1.0, 8.5]
    """
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    distances = check_square(distances, is_symmetric=True)
    is_small = len(distances) <= _MOST_FOR_BEST_ORDER
    return linkage(squareform(distances, checks=False), method="average", optimal_ordering=is_small)


def draw_tree(
    distances: np.ndarray,
    names: Sequence[str],
    *,
    out: str | Path,
    groups: Sequence[str] | None = None,
    title: str = "distance between tasks",
) -> list[Path]:
    """The matrix in the order of its tree: `out`.png, `out`.pdf, and the ordered numbers in `out`.csv.

    Args:
        distances: symmetric, zero on the diagonal, finite; two tasks or more.
        names: one per task.
        out: path without extension.
        groups: one per task (its taxon or dataset), shown as a strip of colours with a legend.
        title: what stands above.

    Example:
        >>> import numpy as np, tempfile
        >>> points = np.array([0.0, 9.0, 1.0])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     files = draw_tree(abs(points[:, None] - points[None, :]), ["a", "z", "b"], out=f"{folder}/tree")
        ...     files[-1].read_text().splitlines()[0]
        'task,group,z,b,a'
    """
    from scipy.cluster.hierarchy import leaves_list

    distances = check_square(distances, is_symmetric=True)
    if len(distances) != len(names) or len(names) < 2:
        raise UsageError(
            f"distances between {len(distances)} tasks and {len(names)} names make no tree: it takes two tasks or "
            "more, each with one name. Pass a square array and as many names."
        )
    groups = check_groups(groups, len(names))
    figure_class = import_figure()
    tree = link_tasks(distances)
    order = [int(leaf) for leaf in leaves_list(tree)]
    looks = choose_looks(groups) if set(groups) != {NO_GROUP} else {}
    figure, (branches, strip, cells, names_box) = _lay_out(figure_class, names, looks)
    _draw_branches(branches, tree)
    _draw_strip(strip, [groups[index] for index in order], looks)
    picture = _draw_cells(cells, distances[np.ix_(order, order)])
    if names_box.get_position().width > 0:
        _draw_names(names_box, [names[index] for index in order])
    _draw_scale(figure, picture, cells)
    top = 1 - 0.08 / figure.get_figheight()
    figure.text(0.014, top, shorten(title, 60), fontsize=9, color=INK, va="top", parse_math=False)
    _draw_legend(figure, looks)
    rows = ([names[row], groups[row], *distances[row, order]] for row in order)
    return save_drawing(figure, out, header=["task", "group", *(names[index] for index in order)], rows=rows)


def _lay_out(figure_class: "type[Figure]", names: Sequence[str], looks: dict[str, Look]) -> "tuple[Figure, list[Axes]]":
    """A figure of a paper's width, and axes for branches, strip, cells and names, all of one height."""
    letters = max(len(shorten(name)) for name in names)
    left = _MARGIN + _TREE + _GAP + (_STRIP + _GAP if looks else 0)
    side, text = _measure(len(names), letters, room=PAPER_WIDTH - left - _MARGIN)
    width = left + side + text + _MARGIN
    legend = _LEGEND_ROW * -(-len(looks) // _LEGEND_COLUMNS) + 0.08 if looks else 0
    # A narrow picture keeps room for its scale and legend.
    width, height = max(width, 4.2), _HEAD + side + _FOOT + legend
    figure = figure_class(figsize=(width, height), dpi=300)
    starts = (_MARGIN, left - _STRIP - _GAP, left, left + side)
    widths = (_TREE, _STRIP if looks else 0.001, side, text)
    floor = (height - _HEAD - side) / height
    boxes = [
        figure.add_axes((start / width, floor, wide / width, side / height))
        for start, wide in zip(starts, widths, strict=True)
    ]
    for box in boxes:
        box.set_axis_off()
    return figure, boxes


def _measure(count: int, letters: int, *, room: float) -> tuple[float, float]:
    """The side of the matrix and the width of the names, so that both fit; the names give way if rows get too thin."""
    for side in np.arange(min(room, count * _LARGEST_ROW), 0.3 * room, -0.05):
        text = 0.08 + letters * 0.56 * _letter_size(side / count) / 72
        if side + text <= room:
            break
    else:
        side, text = room, 0.0
    if side / count < _THINNEST_NAMED_ROW or not text:
        return min(room, count * _LARGEST_ROW), 0.0
    return float(side), text


def _letter_size(row: float) -> float:
    """The size of letters, in points, for rows of so many inches."""
    return min(7.5, row * 72 * 0.92)


def _draw_branches(axes: "Axes", tree: np.ndarray) -> None:
    """One bracket per merger, drawn by hand: scipy would recurse as deep as the tree."""
    from matplotlib.collections import LineCollection
    from scipy.cluster.hierarchy import leaves_list

    count = len(tree) + 1
    height, depth = np.empty(2 * count - 1), np.zeros(2 * count - 1)
    height[leaves_list(tree)] = np.arange(count)
    brackets = []
    for number, (one, other, distance, _) in enumerate(tree):
        a, b, parent = int(one), int(other), count + number
        brackets.append([(depth[a], height[a]), (distance, height[a]), (distance, height[b]), (depth[b], height[b])])
        height[parent], depth[parent] = (height[a] + height[b]) / 2, distance
    axes.add_collection(LineCollection(brackets, colors=GREY, linewidths=0.7, joinstyle="miter"))
    axes.set_ylim(count - 0.5, -0.5)
    axes.set_xlim(1.02 * float(tree[-1, 2]) or 1.0, 0)


def _draw_strip(axes: "Axes", groups: list[str], looks: dict[str, Look]) -> None:
    """One patch per run of rows of the same group."""
    from matplotlib.patches import Rectangle

    axes.set_ylim(len(groups) - 0.5, -0.5)
    starts = [row for row in range(len(groups)) if row == 0 or groups[row] != groups[row - 1]]
    for start, end in zip(starts, [*starts[1:], len(groups)], strict=True) if looks else ():
        look = looks[groups[start]]
        axes.add_patch(
            Rectangle(
                (0, start - 0.5), 1, end - start, facecolor=look.colour, hatch=look.fill, edgecolor="white", linewidth=0
            )
        )


def _draw_cells(axes: "Axes", distances: np.ndarray) -> Any:
    diagonal = np.eye(len(distances), dtype=bool)
    low, high = distances[~diagonal].min(), distances[~diagonal].max()
    shown = np.ma.masked_array(distances, mask=diagonal)
    return axes.imshow(
        shown, cmap="YlGnBu_r", vmin=low, vmax=high if high > low else low + 1, aspect="auto", interpolation="nearest"
    )


def _draw_names(axes: "Axes", names: list[str]) -> None:
    row = axes.get_window_extent().height / axes.get_figure().dpi / len(names)  # type: ignore[union-attr]
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0, 1)
    for place, name in enumerate(names):
        axes.annotate(
            shorten(name), (0, place), (4, 0), textcoords="offset points", va="center_baseline", color=INK,
            fontsize=_letter_size(row), parse_math=False, annotation_clip=False,
        )  # fmt: skip


def _draw_scale(figure: "Figure", picture: Any, cells: "Axes") -> None:
    """A small scale below the matrix."""
    box = cells.get_position()
    height = figure.get_figheight()
    scale = figure.add_axes(
        (box.x0, box.y0 - 0.13 / height, min(1.6 / figure.get_figwidth(), box.width), 0.06 / height)
    )
    bar = figure.colorbar(picture, cax=scale, orientation="horizontal")
    bar.outline.set_visible(False)  # type: ignore[union-attr]
    bar.ax.tick_params(labelsize=6.5, length=2, color=GREY, labelcolor=INK, pad=1)
    bar.ax.locator_params(nbins=4)


def _draw_legend(figure: "Figure", looks: dict[str, Look]) -> None:
    if not looks:
        return
    from matplotlib.patches import Patch

    entries = [
        Patch(facecolor=look.colour, hatch=look.fill, edgecolor="white", label=word_legend(group, _LEGEND_LETTERS))
        for group, look in looks.items()
    ]
    figure.legend(
        handles=entries, loc="lower left", bbox_to_anchor=(0.01, 0.0), ncols=_LEGEND_COLUMNS, fontsize=7,
        frameon=False, handlelength=0.9, handleheight=0.9, columnspacing=1.2, handletextpad=0.4, borderaxespad=0.2,
        labelspacing=0.25,
    )  # fmt: skip
