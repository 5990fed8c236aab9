"""Figures of task spaces: the map, and the distance matrix with its tree.

They are made of `Figure` objects, never of pyplot: no display, no state, any thread. Each is saved as PNG and PDF with
its numbers as CSV.

The colours stay apart for colour-blind readers (six of Okabe and Ito, six more chosen so that no two come near under
deuteranopia and protanopia), on paper and on a dark page. Marks differ too, for print without colour; colours repeat
after twelve groups with other marks, so that 96 groups look different.
"""

import io
import math
import unicodedata
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from task2vec.errors import MissingExtraError, ResourceError, UsageError
from task2vec.plots.layout import check_counts, check_square, link_tasks, order_leaves
from task2vec.storage import write_file, write_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from PIL import Image

INK, GREY = "#22313f", "#8a94a0"
PAPER_WIDTH = 7.2  # inches: two columns of a paper
_OKABE_ITO = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
COLOURS = (*_OKABE_ITO, "#2f2a9c", "#773311", "#00505e", "#a8327d", "#d9cf3a", "#a9b1ba")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "h")
HATCHES = ("", "//////", "......", "xxxxxx")  # of patches, when the colours repeat
FORMATS = (".png", ".pdf", ".svg")
_MOST_NAMED = 150  # tasks on a map; beyond, the page has the names
_LEGEND_LETTERS, _MAX_TITLE = 26, 90
_LEGEND: dict[str, Any] = {"frameon": False, "fontsize": 7, "handletextpad": 0.3, "columnspacing": 1.2}
_POINTS: dict[str, Any] = {"edgecolors": "white", "linewidths": 0.4}
# Inches of the matrix. Small cells carry no number, and thin rows no name: the table has them all.
_TREE, _STRIP, _MARGINS, _NARROWEST, _LEGEND_ROW = 0.75, 0.12, 0.3, 4.2, 0.15
_MAX_CELL, _MIN_NUMBERED, _MIN_NAMED = 0.6, 0.36, 0.04
_NO_GLYPH = "Glyph .* missing"  # warning for a name in a script that has no font here: boxes are fine
# Directions of a label from its point (right first, as we read), and how far from it, in label heights.
_DIRECTIONS = ((1, 0), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1), (0, 1), (0, -1))
_RINGS = (0.0, 0.9, 1.9, 3.0)


@dataclass(frozen=True)
class Look:
    """The colour of a group, its mark as points, and its hatch as a patch."""

    colour: str
    mark: str
    hatch: str = ""


def choose_looks(groups: Sequence[str]) -> dict[str, Look]:
    """The look of every group, in the order in which groups first appear.

    Example:
        >>> looks = choose_looks(["birds", "dogs", "birds"])
        >>> list(looks), looks["dogs"]
        (['birds', 'dogs'], Look(colour='#d55e00', mark='s', hatch=''))
    """
    looks = {}
    for number, group in enumerate(dict.fromkeys(groups)):
        lap, colour = divmod(number, len(COLOURS))
        looks[group] = Look(COLOURS[colour], MARKS[(number + lap) % len(MARKS)], HATCHES[lap % len(HATCHES)])
    return looks


def check_groups(groups: Sequence[str] | None, count: int) -> list[str]:
    """One group per task; by default all tasks are of one group without a name."""
    groups = [""] * count if groups is None else [str(group) for group in groups]
    check_counts(count, groups=groups)
    return groups


def check_positions(positions: np.ndarray, count: int) -> np.ndarray:
    """The positions as float64, two finite ones per task."""
    positions = np.asarray(positions, dtype=np.float64)
    if positions.shape != (count, 2) or not count or not np.isfinite(positions).all():
        problem = f"positions of shape {positions.shape} do not match {count} names"
        raise UsageError(f"{problem}: each task needs two finite coordinates. Pass lay_out(distances).positions.")
    return positions


def shorten(name: str, longest: int = 28) -> str:
    r"""A short name in printable characters: names of tasks may contain anything.

    Example:
        >>> shorten("a\x1bb"), shorten("Passeriformes of North America", 12)
        ('a�b', 'Passeriform…')
    """
    printable = "".join(c if unicodedata.category(c)[0] != "C" else "\N{REPLACEMENT CHARACTER}" for c in name)
    return printable if len(printable) <= longest else printable[: longest - 1] + "…"


def format_legend(name: str, longest: int = 28) -> str:
    """The name as an entry of a legend: `$` starts no formula, and a leading underscore does not hide it."""
    short = shorten(name, longest)
    return f"{' ' if short[:1] == '_' else ''}{short}".replace("$", r"\$")


def import_figure() -> "type[Figure]":
    """The class of figures that needs no display and no pyplot."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        why = "figures need matplotlib, which is not installed"
        raise MissingExtraError(f"{why}. Install it: pip install 'task2vec[plot]'") from error
    return Figure


def save_figure(figure: "Figure", out: str | Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[Path]:
    """The figure as the file `out`, or without an extension as `out`.png, `out`.pdf, and its numbers as `out`.csv."""
    out = Path(out)
    if out.suffix.lower() in FORMATS:
        return [save_picture(figure, out)]
    png, pdf, table = (out.parent / f"{out.name}{suffix}" for suffix in (".png", ".pdf", ".csv"))
    return [save_picture(figure, png), save_picture(figure, pdf), write_rows(table, [header, *rows], digits=6)]


def save_picture(figure: "Figure", path: Path) -> Path:
    """Writes the picture in the format of its suffix; the same figure gives the same bytes."""
    picture = io.BytesIO()
    kind = path.suffix.lower().lstrip(".")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_NO_GLYPH)
        figure.savefig(picture, format=kind, metadata={"CreationDate": None} if kind == "pdf" else None)
    return write_file(path, picture.getvalue())


def make_folder(folder: str | Path) -> Path:
    """The folder, created if it does not exist."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(
            f"cannot create the folder '{folder}': {error.strerror}. The results go there. Choose another: --out DIR"
        ) from error
    return folder


def draw_map(
    positions: np.ndarray | Mapping[str, np.ndarray],
    names: Sequence[str],
    *,
    out: str | Path,
    groups: Sequence[str] | None = None,
    title: str = "map of tasks",
) -> list[Path]:
    """The map of the tasks; several maps of the same tasks stand side by side.

    Args:
        positions: two coordinates per task, as of `lay_out(...).positions`; or such arrays by the titles of panels.
        names: one per task.
        out: path without extension for PNG, PDF and CSV, or one file (.png, .pdf, .svg).
        groups: one per task, each with its own colour and mark.
        title: of a single map.

    Example:
        >>> import numpy as np, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     files = draw_map(np.array([[0, 0], [1, 2]]), ["cats", "dogs"], out=f"{folder}/map")
        ...     [file.name for file in files]
        ['map.png', 'map.pdf', 'map.csv']
    """
    maps = positions if isinstance(positions, Mapping) else {title: positions}
    maps = {title: check_positions(points, len(names)) for title, points in maps.items()}
    groups = check_groups(groups, len(names))
    figure = import_figure()(figsize=(PAPER_WIDTH, 5.4 if len(maps) == 1 else 4.0), dpi=300, layout="constrained")
    panels = figure.subplots(1, len(maps), squeeze=False)[0]
    for axes, (head, points) in zip(panels, maps.items(), strict=True):
        _draw_points(axes, points, groups)
        axes.set_title(shorten(head, _MAX_TITLE), fontsize=8.5, color=INK, loc="left", parse_math=False)
    handles, labels = panels[0].get_legend_handles_labels()
    if labels:
        figure.legend(handles, labels, loc="outside lower left", ncols=min(4, len(labels)), **_LEGEND)
    if len(names) <= _MOST_NAMED:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=_NO_GLYPH)
            figure.draw_without_rendering()  # names depend on the final position of everything else
            figure.set_layout_engine("none")
            size = float(np.interp(len(names), [10, 60], [7.5, 6.0])) if len(maps) == 1 else 5.0
            for axes, points in zip(panels, maps.values(), strict=True):
                _draw_names(axes, points, [shorten(name) for name in names], size)
    columns = ["x", "y"] if len(maps) == 1 else [f"{axis}, {head}" for head in maps for axis in "xy"]
    rows = zip(names, groups, *np.hstack(list(maps.values())).T, strict=True)
    return save_figure(figure, out, ["task", "group", *columns], rows)


def _draw_points(axes: "Axes", points: np.ndarray, groups: Sequence[str]) -> None:
    """The points in a thin frame without ticks: the axes of a map mean nothing."""
    size = float(np.interp(len(points), [20, 200, 2000], [30, 16, 5]))
    for group, look in choose_looks(groups).items():
        members = points[[name == group for name in groups]]
        label = format_legend(group, _LEGEND_LETTERS) or None
        axes.scatter(*members.T, s=size, marker=look.mark, color=look.colour, zorder=3, label=label, **_POINTS)
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.1)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_color("#d5dae0")


def _draw_names(axes: "Axes", points: np.ndarray, texts: Sequence[str], size: float) -> None:
    """Names beside their points, with a thin line to those farther away; names without room are left out."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.patheffects import withStroke
    from matplotlib.textpath import text_to_path

    pixel = axes.figure.dpi / 72
    axes.autoscale(enable=False)
    anchors, box, gap = axes.transData.transform(points), axes.get_window_extent().padded(-pixel), 4.2 * pixel
    font = FontProperties(size=size)
    widths = [text_to_path.get_text_width_height_descent(text, font, ismath=False)[0] for text in texts]
    sizes = np.array([[width, 1.05 * size] for width in widths]) * pixel
    corners = fit_labels(anchors, sizes, bounds=box.extents, gap=gap)
    style: dict[str, Any] = {"fontsize": size, "color": INK, "parse_math": False, "zorder": 2}
    style["path_effects"] = [withStroke(linewidth=1.2, foreground="white")]
    for text, point, anchor, extent, corner in zip(texts, points, anchors, sizes, corners, strict=True):
        if corner is None or not text:
            continue
        low = np.array(corner)
        near = np.clip(anchor, low, low + extent)
        line: dict[str, Any] = {"arrowstyle": "-", "color": GREY, "linewidth": 0.4, "shrinkA": 0, "shrinkB": 0}
        line["relpos"] = (near - low) / extent
        is_far = np.linalg.norm(near - anchor) > 1.6 * gap
        offset = (low - anchor) / pixel + (0, 0.22 * size)
        axes.annotate(text, point, offset, textcoords="offset points", arrowprops=line if is_far else None, **style)


def fit_labels(
    anchors: np.ndarray, sizes: np.ndarray, *, bounds: Sequence[float] | np.ndarray, gap: float
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
    check_counts(len(distances), names=names)
    if len(names) < 2:
        raise UsageError("a matrix needs two tasks or more. Pass the distances between them.")
    groups = check_groups(groups, len(names))
    tree = link_tasks(distances)
    order = order_leaves(tree)
    looks = choose_looks(groups) if any(groups) else {}
    columns = max(map(len, thumbnails)) if thumbnails is not None else 0
    labels = [shorten(names[index]) for index in order]
    figure, axes, row, has_names = _open_matrix(labels, columns, looks)
    _draw_branches(axes["tree"], tree)
    _draw_cells(figure, axes["cells"], distances[np.ix_(order, order)], is_numbered=row >= _MIN_NUMBERED)
    if has_names:
        axes["cells"].set_yticks(range(len(labels)), labels, fontsize=_letter_size(row), color=INK, parse_math=False)
    if thumbnails is not None:
        _draw_images(axes["images"], [thumbnails[index] for index in order], columns)
    if looks:
        _draw_strip(figure, axes["groups"], [groups[index] for index in order], looks)
    figure.suptitle(shorten(title, 60), fontsize=9, color=INK, x=0.014, ha="left", parse_math=False)
    rows = ([names[row], groups[row], *distances[row, order]] for row in order)
    return save_figure(figure, out, ["task", "group", *(names[index] for index in order)], rows)


def _letter_size(row: float) -> float:
    """The size of letters, in points, for rows of so many inches."""
    return min(7.5, row * 72 * 0.92)


def _open_matrix(
    labels: Sequence[str], columns: int, looks: Mapping[str, Look]
) -> "tuple[Figure, dict[str, Axes], float, bool]":
    """A figure no wider than a paper, its axes, the inches of a row, and whether names fit beside the rows."""
    count = len(labels)
    fixed = _MARGINS + _TREE + (_STRIP if looks else 0)
    row = min(_MAX_CELL, (PAPER_WIDTH - fixed) / (count + columns))
    text = 0.08 + max(map(len, labels)) * 0.56 * _letter_size(row) / 72 if row > _MIN_NAMED else 0.0
    row = min(row, (PAPER_WIDTH - fixed - text) / (count + columns))
    width = max(_NARROWEST, fixed + (count + columns) * row + text)
    height = 0.7 + count * row + (_LEGEND_ROW * math.ceil(len(looks) / 4) if looks else 0)
    figure = import_figure()(figsize=(width, height), dpi=300, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.04, h_pad=0.04, wspace=0, hspace=0)  # type: ignore[union-attr]
    parts = {"tree": _TREE, "groups": _STRIP if looks else 0, "images": columns * row, "cells": count * row}
    parts = {name: inches for name, inches in parts.items() if inches}
    axes = figure.subplot_mosaic([list(parts)], width_ratios=list(parts.values()))
    for panel in axes.values():
        panel.spines[:].set_visible(False)
        panel.set(xticks=[], yticks=[])
        panel.yaxis.set_tick_params(length=0, right=True, labelright=True, left=False, labelleft=False)
    return figure, axes, row, text > 0


def _draw_branches(axes: "Axes", tree: np.ndarray) -> None:
    """One bracket per merge; SciPy's own drawing would recurse as deep as the tree."""
    from matplotlib.collections import LineCollection

    count = len(tree) + 1
    height = np.empty(2 * count - 1)
    depth = np.zeros(2 * count - 1)
    height[order_leaves(tree)] = np.arange(count)
    brackets = []
    for number, (first, second, distance, _) in enumerate(tree):
        a, b, parent = int(first), int(second), count + number
        brackets.append([(depth[a], height[a]), (distance, height[a]), (distance, height[b]), (depth[b], height[b])])
        height[parent] = (height[a] + height[b]) / 2
        depth[parent] = distance
    axes.add_collection(LineCollection(brackets, colors=GREY, linewidths=0.7, joinstyle="miter"))
    axes.set(xlim=(1.02 * float(tree[-1, 2]) or 1.0, 0), ylim=(count - 0.5, -0.5))


def _draw_strip(figure: "Figure", axes: "Axes", groups: list[str], looks: Mapping[str, Look]) -> None:
    """One patch per run of rows of the same group, and a legend below everything."""
    axes.set(xlim=(0, 1), ylim=(len(groups) - 0.5, -0.5))
    patches = {}
    for row, group in enumerate(groups):
        look = looks[group]
        fill: dict[str, Any] = {"facecolor": look.colour, "hatch": look.hatch, "edgecolor": "white", "linewidth": 0}
        patches[group] = axes.axhspan(row - 0.5, row + 0.5, **fill)
    entries = [patches[group] for group in looks], [format_legend(group, _LEGEND_LETTERS) for group in looks]
    figure.legend(*entries, loc="outside lower left", ncols=4, handlelength=0.9, labelspacing=0.25, **_LEGEND)


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
    """Cells from near (dark) to far (light) with a scale below, unless all are equal; the diagonal stays empty."""
    diagonal = np.eye(len(distances), dtype=bool)
    low, high = distances[~diagonal].min(), distances[~diagonal].max()
    shown = np.ma.masked_array(distances, mask=diagonal)
    limits: dict[str, Any] = {"vmin": low, "vmax": high if high > low else low + 1}
    picture = axes.imshow(shown, cmap="YlGnBu_r", aspect="auto", interpolation="nearest", **limits)
    for row, column in np.argwhere(~diagonal) if is_numbered else ():
        distance = distances[row, column]
        ink = "white" if distance <= low + 0.45 * (high - low) else "#1d3557"
        number = f"{distance:.2f}" if high >= 0.1 else f"{distance:.1g}"
        axes.text(column, row, number, ha="center", va="center", fontsize=7, color=ink)
    if high <= low:
        return
    inch = 1 / figure.get_figheight()
    bar = figure.colorbar(picture, ax=axes, location="bottom", fraction=0.06 * inch, pad=0.03 * inch, anchor=(0, 1))
    bar.outline.set_visible(False)  # type: ignore[union-attr]
    bar.ax.tick_params(labelsize=6.5, length=2, color=GREY, labelcolor=INK, pad=1)
    bar.ax.locator_params(nbins=4)
