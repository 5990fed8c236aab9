"""Figures of task spaces: the map, the distance matrix with its tree, norm against error, neighbourhood curves.

They are made of `Figure` objects, never of pyplot: no display, no state, any thread. Each is saved as PNG and PDF with
its numbers as CSV.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from task2vec.errors import UsageError
from task2vec.plots.layout import check_square, curve_area, link_tasks, neighbourhood_curve, order_leaves
from task2vec.plots.style import (
    GREY,
    INK,
    NO_GROUP,
    PAPER_WIDTH,
    Look,
    check_groups,
    choose_looks,
    format_legend,
    import_figure,
    missing_glyphs,
    save_figure,
    scale_norms,
    shorten,
    style_axes,
)
from task2vec.text import pluralize

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from PIL import Image

_MOST_NAMED = 150  # tasks on a map; beyond, the page has the names
_LEGEND_LETTERS, _LONGEST_TITLE = 26, 90
# Inches of the matrix. Small cells carry no number, and thin rows no name: the table has them all.
_MARGIN, _TREE, _STRIP, _GAP, _HEAD, _FOOT = 0.1, 0.75, 0.1, 0.04, 0.3, 0.34
_LARGEST_CELL, _SMALLEST_NUMBERED, _THINNEST_NAMED = 0.6, 0.36, 0.04
_LEGEND_COLUMNS, _LEGEND_ROW = 4, 0.15
# Directions of a label from its point (right first, as we read), and how far from it, in label heights.
_DIRECTIONS = ((1, 0), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1), (0, 1), (0, -1))
_RINGS = (0.0, 0.9, 1.9, 3.0)


def draw_map(
    positions: np.ndarray | Mapping[str, np.ndarray],
    names: Sequence[str],
    *,
    out: str | Path,
    groups: Sequence[str] | None = None,
    placed: int = 0,
    title: str = "map of tasks",
) -> list[Path]:
    """The map of the tasks; several maps of the same tasks stand side by side.

    Args:
        positions: two coordinates per task, as of `lay_out(...).positions`; or such arrays by the titles of panels.
        names: one per task.
        out: path without extension for PNG, PDF and CSV, or one file (.png, .pdf, .svg).
        groups: one per task, each with its own colour and mark.
        placed: how many of the last tasks were added to the map later; they are ringed.
        title: of a single map.

    Example:
        >>> import numpy as np, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     files = draw_map(np.array([[0, 0], [1, 2]]), ["cats", "dogs"], out=f"{folder}/map")
        ...     [file.name for file in files]
        ['map.png', 'map.pdf', 'map.csv']
    """
    maps = positions if isinstance(positions, Mapping) else {title: positions}
    maps = {title: np.asarray(points, dtype=np.float64) for title, points in maps.items()}
    for points in maps.values():
        if points.shape != (len(names), 2) or not len(names) or not np.isfinite(points).all():
            raise UsageError(
                f"positions of shape {points.shape} do not match {len(names)} names: every task needs two finite "
                f"coordinates. Pass lay_out(distances).positions, an array of shape ({len(names)}, 2)."
            )
    groups = check_groups(groups, len(names))
    figure = import_figure()(figsize=(PAPER_WIDTH, 5.4 if len(maps) == 1 else 4.0), dpi=300, layout="constrained")
    panels = figure.subplots(1, len(maps), squeeze=False)[0]
    for axes, (head, points) in zip(panels, maps.items(), strict=True):
        _draw_points(axes, points, groups, placed)
        axes.set_title(shorten(head, _LONGEST_TITLE), fontsize=8.5, color=INK, loc="left", parse_math=False)
    size = float(np.interp(len(names), [10, 60], [7.5, 6.0])) if len(maps) == 1 else 5.0
    _finish_map(figure, panels, list(maps.values()), names, size=size)
    columns = ["x", "y"] if len(maps) == 1 else [f"{axis}, {head}" for head in maps for axis in "xy"]
    table = np.hstack(list(maps.values()))
    rows = ([name, group, *row, int(number >= len(names) - placed)]
            for number, (name, group, row) in enumerate(zip(names, groups, table, strict=True)))  # fmt: skip
    return save_figure(figure, out, header=["task", "group", *columns, "placed"], rows=rows)


def _draw_points(axes: "Axes", points: np.ndarray, groups: Sequence[str], placed: int) -> None:
    """The points in a thin frame without ticks: the axes of a map mean nothing."""
    size = float(np.interp(len(points), [20, 200, 2000], [30, 16, 5]))
    for group, look in choose_looks(groups).items():
        axes.scatter(
            *points[[one == group for one in groups]].T, s=size, marker=look.mark, color=look.colour, zorder=3,
            edgecolors="white", linewidths=0.4, label=format_legend(group, _LEGEND_LETTERS) if group else None,
        )  # fmt: skip
    if placed:
        axes.scatter(
            *points[-placed:].T, s=5 * size, facecolors="none", edgecolors=INK, linewidths=0.9, label="added later",
            zorder=4,
        )  # fmt: skip
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.1)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_color("#d5dae0")


def _finish_map(
    figure: "Figure", panels: Any, maps: Sequence[np.ndarray], names: Sequence[str], *, size: float
) -> None:
    """One legend below, then the names, which depend on the final position of everything else."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    handles, labels = panels[0].get_legend_handles_labels()
    if labels:
        figure.legend(
            handles, labels, loc="outside lower left", ncols=min(4, len(labels)), fontsize=7, frameon=False,
            handletextpad=0.2, columnspacing=1.2,
        )  # fmt: skip
    with missing_glyphs():
        FigureCanvasAgg(figure).draw()
        figure.set_layout_engine("none")
        for axes, points in zip(panels, maps, strict=True):
            axes.autoscale(enable=False)
            if len(names) <= _MOST_NAMED:
                _draw_names(axes, points, [shorten(name) for name in names], size=size)


def _draw_names(axes: "Axes", points: np.ndarray, texts: Sequence[str], *, size: float) -> None:
    """Names beside their points, with a thin line to those farther away; names without room are left out."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.patheffects import withStroke
    from matplotlib.textpath import text_to_path

    figure, font = axes.get_figure(), FontProperties(size=size)
    assert figure is not None
    pixel = figure.dpi / 72
    anchors = axes.transData.transform(points)
    widths = [text_to_path.get_text_width_height_descent(text, font, ismath=False)[0] for text in texts]
    sizes = np.array([[width, 1.05 * size] for width in widths]) * pixel
    box, gap, back = axes.get_window_extent(), 4.2 * pixel, axes.transData.inverted()
    corners = fit_labels(
        anchors, sizes, bounds=(box.x0 + pixel, box.y0 + pixel, box.x1 - pixel, box.y1 - pixel), gap=gap
    )
    for text, anchor, extent, corner in zip(texts, anchors, sizes, corners, strict=True):
        if corner is None or not text:
            continue
        low = np.array(corner)
        near = np.clip(anchor, low, low + extent)
        if np.linalg.norm(near - anchor) > 1.6 * gap:
            axes.plot(*back.transform([anchor, near]).T, color=GREY, linewidth=0.4, zorder=1)
        left, line = back.transform(low + np.array([0, 0.22 * size * pixel]))
        axes.text(
            left, line, text, fontsize=size, color=INK, ha="left", va="baseline", parse_math=False, zorder=2,
            path_effects=[withStroke(linewidth=1.2, foreground="white")],
        )  # fmt: skip


def fit_labels(
    anchors: np.ndarray, sizes: np.ndarray, *, bounds: tuple[float, float, float, float], gap: float
) -> list[tuple[float, float] | None]:
    """The lower left corner of every label, or None where there is no room for it.

    Labels are placed greedily, those in the most crowded surroundings first: near the point, and farther away only if
    every nearer position would cover a point or another label.

    Args:
        anchors: the points (n, 2), in any unit.
        sizes: width and height of each label (n, 2).
        bounds: left, bottom, right and top of the area for labels.
        gap: between a label and its own and other points.

    Example:
        >>> import numpy as np
        >>> fit_labels(np.array([[0.0, 0.0]]), np.array([[4.0, 2.0]]), bounds=(-9, -9, 9, 9), gap=1)
        [(1.0, -1.0)]
    """
    anchors, sizes = np.asarray(anchors, dtype=float), np.asarray(sizes, dtype=float)
    taken = np.concatenate([anchors - gap * 0.8, anchors + gap * 0.8], axis=1)
    apart = np.sort(np.linalg.norm(anchors[:, None] - anchors[None, :], axis=-1), axis=1)
    corners: list[tuple[float, float] | None] = [None] * len(anchors)
    for index in np.argsort(apart[:, min(3, len(anchors) - 1)], kind="stable"):
        size = sizes[index]
        for ring, (right, up) in ((ring, direction) for ring in _RINGS for direction in _DIRECTIONS):
            reach = (gap + ring * size[1]) / (math.sqrt(2) if right and up else 1.0)
            low = anchors[index] + np.array([right, up]) * (reach + size / 2) - size / 2
            high = low + size
            is_inside = (low >= bounds[:2]).all() and (high <= bounds[2:]).all()
            if is_inside and not ((taken[:, :2] < high) & (taken[:, 2:] > low)).all(axis=1).any():
                corners[index] = (float(low[0]), float(low[1]))
                taken = np.vstack([taken, np.concatenate([low, high])])
                break
    return corners


def draw_matrix(
    distances: np.ndarray,
    names: Sequence[str],
    *,
    out: str | Path,
    groups: Sequence[str] | None = None,
    thumbnails: Sequence[Sequence["Image.Image"]] | None = None,
    title: str = "distance between tasks",
) -> list[Path]:
    """The distance matrix in the order of its tree (average linkage), similar tasks side by side.

    Args:
        distances: symmetric, zero on the diagonal, finite; two tasks or more.
        names: one per task.
        out: path without extension for PNG, PDF and CSV, or one file (.png, .pdf, .svg).
        groups: one per task (its taxon or dataset), shown as a strip of colours with a legend.
        thumbnails: a few images per task, shown beside its row.
        title: above the matrix.

    Example:
        >>> import numpy as np, tempfile
        >>> points = np.array([0.0, 9.0, 1.0])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     files = draw_matrix(abs(points[:, None] - points[None, :]), ["a", "z", "b"], out=f"{folder}/tree")
        ...     files[-1].read_text().splitlines()[0]
        'task,group,z,b,a'
    """
    distances = check_square(distances)
    if len(distances) != len(names) or len(names) < 2:
        raise UsageError(
            f"distances between {len(distances)} tasks and {len(names)} names make no matrix: it takes two tasks or "
            "more, each with one name. Pass a square array and as many names."
        )
    groups = check_groups(groups, len(names))
    figure_class = import_figure()
    tree = link_tasks(distances)
    order = order_leaves(tree)
    looks = choose_looks(groups) if set(groups) != {NO_GROUP} else {}
    images = max(map(len, thumbnails)) if thumbnails is not None else 0
    labels = [shorten(names[index]) for index in order]
    figure, (branches, strip, pictures, cells), row, has_names = _lay_out_matrix(figure_class, labels, looks, images)
    _draw_branches(branches, tree)
    _draw_strip(strip, [groups[index] for index in order], looks)
    if thumbnails is not None:
        _draw_images(pictures, [thumbnails[index] for index in order], images)
    _draw_cells(figure, cells, distances[np.ix_(order, order)], is_numbered=row >= _SMALLEST_NUMBERED)
    if has_names:
        for place, label in enumerate(labels):
            cells.annotate(
                label, (len(labels) - 0.5, place), (4, 0), textcoords="offset points", va="center_baseline", color=INK,
                fontsize=_letter_size(row), parse_math=False, annotation_clip=False,
            )  # fmt: skip
    top = 1 - 0.08 / figure.get_figheight()
    figure.text(0.014, top, shorten(title, 60), fontsize=9, color=INK, va="top", parse_math=False)
    rows = ([names[row], groups[row], *distances[row, order]] for row in order)
    return save_figure(figure, out, header=["task", "group", *(names[index] for index in order)], rows=rows)


def _letter_size(row: float) -> float:
    """The size of letters, in points, for rows of so many inches."""
    return min(7.5, row * 72 * 0.92)


def _lay_out_matrix(
    figure_class: "type[Figure]", labels: Sequence[str], looks: Mapping[str, Look], images: int
) -> "tuple[Figure, list[Axes], float, bool]":
    """A figure no wider than a paper; axes for tree, strip, images and cells; inches of a row; whether names fit."""
    count, strip = len(labels), _STRIP + _GAP if looks else 0.0
    room = PAPER_WIDTH - 2 * _MARGIN - _TREE - _GAP - strip
    row, text = min(_LARGEST_CELL, room / (count + images)), 0.0  # without names, if none fit
    for height in np.arange(_LARGEST_CELL, _THINNEST_NAMED, -0.01).tolist():
        wide = 0.08 + max(map(len, labels)) * 0.56 * _letter_size(height) / 72
        if (count + images) * height + wide <= room:
            row, text = height, wide
            break
    side = count * row
    legend = _LEGEND_ROW * -(-len(looks) // _LEGEND_COLUMNS) + 0.08 if looks else 0.0
    width = max(PAPER_WIDTH - room + (count + images) * row + text, 4.2)  # room for the scale and the legend
    height = _HEAD + side + _FOOT + legend
    figure = figure_class(figsize=(min(width, PAPER_WIDTH), height), dpi=300)
    boxes, left = [], _MARGIN
    for wide, gap in ((_TREE, _GAP), (_STRIP if looks else 0.001, _GAP if looks else 0), (images * row, 0), (side, 0)):
        box = (left / width, (height - _HEAD - side) / height, max(wide, 0.001) / width, side / height)
        boxes.append(figure.add_axes(box))
        boxes[-1].set_axis_off()
        left += wide + gap
    if looks:
        from matplotlib.patches import Patch

        entries = [
            Patch(
                facecolor=look.colour, hatch=look.hatch, edgecolor="white", label=format_legend(group, _LEGEND_LETTERS)
            )
            for group, look in looks.items()
        ]
        figure.legend(
            handles=entries, loc="lower left", bbox_to_anchor=(0.01, 0.0), ncols=_LEGEND_COLUMNS, fontsize=7,
            frameon=False, handlelength=0.9, handleheight=0.9, columnspacing=1.2, handletextpad=0.4, borderaxespad=0.2,
            labelspacing=0.25,
        )  # fmt: skip
    return figure, boxes, row, text > 0


def _draw_branches(axes: "Axes", tree: np.ndarray) -> None:
    """One bracket per merge; SciPy's own drawing would recurse as deep as the tree."""
    from matplotlib.collections import LineCollection

    count = len(tree) + 1
    height, depth = np.empty(2 * count - 1), np.zeros(2 * count - 1)
    height[order_leaves(tree)] = np.arange(count)
    brackets = []
    for number, (one, other, distance, _) in enumerate(tree):
        a, b, parent = int(one), int(other), count + number
        brackets.append([(depth[a], height[a]), (distance, height[a]), (distance, height[b]), (depth[b], height[b])])
        height[parent], depth[parent] = (height[a] + height[b]) / 2, distance
    axes.add_collection(LineCollection(brackets, colors=GREY, linewidths=0.7, joinstyle="miter"))
    axes.set(xlim=(1.02 * float(tree[-1, 2]) or 1.0, 0), ylim=(count - 0.5, -0.5))


def _draw_strip(axes: "Axes", groups: list[str], looks: Mapping[str, Look]) -> None:
    """One patch per run of rows of the same group."""
    axes.set(xlim=(0, 1), ylim=(len(groups) - 0.5, -0.5))
    starts = [row for row in range(len(groups)) if row == 0 or groups[row] != groups[row - 1]]
    for start, end in zip(starts, [*starts[1:], len(groups)], strict=True) if looks else ():
        look = looks[groups[start]]
        axes.axhspan(start - 0.5, end - 0.5, facecolor=look.colour, hatch=look.hatch, edgecolor="white", linewidth=0)


def _draw_images(axes: "Axes", rows: Sequence[Sequence["Image.Image"]], columns: int) -> None:
    """The thumbnails of all rows as one picture, with white between them."""
    side, gap = 96, 8
    sheet = np.full((len(rows) * (side + gap), columns * (side + gap), 3), 255, dtype=np.uint8)
    for row, images in enumerate(rows):
        for column, image in enumerate(images):
            top, left = (at * (side + gap) + gap // 2 for at in (row, column))
            sheet[top : top + side, left : left + side] = np.asarray(image.convert("RGB").resize((side, side)))
    axes.imshow(sheet, aspect="auto", interpolation="lanczos")


def _draw_cells(figure: "Figure", axes: "Axes", distances: np.ndarray, *, is_numbered: bool) -> None:
    """Cells from near (dark) to far (light) with a small scale below; the diagonal (zero) stays empty."""
    diagonal = np.eye(len(distances), dtype=bool)
    low, high = distances[~diagonal].min(), distances[~diagonal].max()
    shown = np.ma.masked_array(distances, mask=diagonal)
    limits: dict[str, Any] = {"vmin": low, "vmax": high if high > low else low + 1}
    picture = axes.imshow(shown, cmap="YlGnBu_r", aspect="auto", interpolation="nearest", **limits)
    for row, column in np.argwhere(~diagonal) if is_numbered else ():
        distance = distances[row, column]
        ink = "white" if distance < low + 0.45 * (high - low) else "#1d3557"
        number = f"{distance:.2f}" if high >= 0.1 else f"{distance:.1g}"
        axes.text(column, row, number, ha="center", va="center", fontsize=7, color=ink)
    box, height = axes.get_position(), figure.get_figheight()
    wide = min(1.6 / figure.get_figwidth(), box.width)
    scale = figure.add_axes((box.x0, box.y0 - 0.13 / height, wide, 0.06 / height))
    bar = figure.colorbar(picture, cax=scale, orientation="horizontal")
    bar.outline.set_visible(False)  # type: ignore[union-attr]
    bar.ax.tick_params(labelsize=6.5, length=2, color=GREY, labelcolor=INK, pad=1)
    bar.ax.locator_params(nbins=4)


def rank_correlation(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> float | None:
    """Spearman's rank correlation, ties with their mean rank; None if one side is constant.

    Example:
        >>> rank_correlation([1, 2, 3], [10, 100, 1000]), rank_correlation([1, 2, 3], [5, 5, 5])
        (1.0, None)
    """
    from scipy.stats import rankdata

    ranks = [rankdata(side) - np.mean(rankdata(side)) for side in (x, y)]
    scale = float(np.sqrt(np.square(ranks[0]).sum() * np.square(ranks[1]).sum()))
    return None if scale == 0 else float(np.clip(ranks[0] @ ranks[1] / scale, -1, 1))


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
    if norm.ndim != 1 or not len(norm) or norm.shape != error.shape or len(norm) != len(names):
        raise UsageError(
            f"{norm.size} norms, {error.size} errors and {len(names)} names do not match: every task needs one of "
            "each. Pass three sequences of one length."
        )
    if not np.isfinite(error).all() or not np.isfinite(norm).all() or (norm <= 0).any():
        raise UsageError(
            "a norm that is not positive, or an error that is not a number, cannot be drawn on these axes. Leave out "
            "tasks without a head or an embedding."
        )
    groups = check_groups(groups, len(norm))
    figure = import_figure()(figsize=(0.75 * PAPER_WIDTH, 3.4), dpi=300, layout="constrained")
    axes = figure.subplots()

    def describe(part: np.ndarray) -> str:
        rho = rank_correlation(norm[part], error[part])
        return ("" if rho is None else f"ρ = {rho:.2f}, ") + pluralize(len(part), "task")

    for group, look in choose_looks(groups).items():
        part = np.flatnonzero([one == group for one in groups])
        label = f"{format_legend(group)} ({describe(part)})" if group != NO_GROUP else None
        axes.scatter(
            norm[part], 100 * error[part], s=22, marker=look.mark, color=look.colour, alpha=0.85, edgecolors="white",
            linewidths=0.4, label=label,
        )  # fmt: skip
    scale_norms(axes, "x")
    style_axes(axes, "norm of the embedding (L1 of the Fisher)", "error (%)")
    axes.set_title(f"Spearman's {describe(np.arange(len(norm)))}", fontsize=8, color=INK, loc="left")
    if set(groups) != {NO_GROUP}:
        figure.legend(loc="outside right upper", fontsize=6.5, frameon=False, handletextpad=0.3, borderpad=0)
    rows = zip(names, groups, norm, error, strict=True)
    return save_figure(figure, out, header=["task", "group", "norm", "error"], rows=rows)


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
        axes.plot(
            steps, curve, color=look.colour, marker=look.mark, markersize=3.2, linewidth=1.2,
            markevery=max(1, len(steps) // 14), label=f"{format_legend(name)} ({area:.2f})",
        )  # fmt: skip
    axes.plot(steps, best, color=INK, linewidth=1.0, linestyle="--", label="best possible (1.00)")
    style_axes(axes, "nearest tasks (k)", "mean taxonomic distance")
    axes.set_xlim(0.5, (most or len(steps)) + 0.5)
    axes.legend(fontsize=7, frameon=False, title="distance (area)", title_fontsize=7, alignment="left")
    rows = zip(steps.tolist(), *curves.values(), [best[-1]] * len(steps), best, strict=True)
    return save_figure(figure, out, header=["k", *curves, "random", "best possible"], rows=rows)
