"""The static map: tasks as points on a plane, coloured by group, named where there is room."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from task2vec.atlas.canvas import import_figure, missing_glyphs
from task2vec.atlas.labels import fit_labels, shorten, word_legend
from task2vec.atlas.palette import GREY, INK, NO_GROUP, PAPER_WIDTH, check_groups, choose_looks
from task2vec.atlas.table import save_drawing
from task2vec.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# More tasks than this are not named: the page is there to ask for a name.
_MOST_NAMED = 150
_LEGEND_LETTERS, _LONGEST_TITLE = 26, 90


@dataclass(frozen=True)
class Points:
    """What one panel shows: places, names and groups of tasks; the last `placed` of them were put on an old map."""

    places: np.ndarray
    names: tuple[str, ...]
    groups: tuple[str, ...]
    placed: int = 0


def draw_map(
    places: np.ndarray,
    names: Sequence[str],
    *,
    out: str | Path,
    groups: Sequence[str] | None = None,
    placed: int = 0,
    title: str = "map of tasks",
) -> list[Path]:
    """The map as `out`.png and `out`.pdf, and the places in `out`.csv.

    Args:
        places: two coordinates per task, as of `lay_out(...).places`.
        names: one per task.
        out: path without extension.
        groups: one per task, each with its own colour and mark.
        placed: how many of the last tasks were put on the map afterwards; they are ringed.
        title: what stands above.

    Example:
        >>> import numpy as np, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     files = draw_map(np.array([[0, 0], [1, 2]]), ["cats", "dogs"], out=f"{folder}/map")
        ...     [file.name for file in files]
        ['map.png', 'map.pdf', 'map.csv']
    """
    points = _check(places, names, groups, placed)
    figure = import_figure()(figsize=(PAPER_WIDTH, 5.4), dpi=300, layout="constrained")
    axes = figure.subplots()
    _draw_points(axes, points)
    axes.set_title(shorten(title, _LONGEST_TITLE), fontsize=9, color=INK, loc="left", parse_math=False)
    _finish(figure, points, [(axes, points)], size=float(np.interp(len(names), [10, 60], [7.5, 6.0])))
    header = ["task", "group", "x", "y", "placed"]
    return save_drawing(figure, out, header=header, rows=_tabulate(points))


def draw_map_pair(
    task_places: np.ndarray,
    domain_places: np.ndarray,
    *,
    names: Sequence[str],
    out: str | Path,
    groups: Sequence[str] | None = None,
    titles: tuple[str, str] = ("task embeddings", "domain embeddings"),
) -> list[Path]:
    """The map of tasks beside the map of their domains, in the same colours: PNG, PDF and both places as CSV.

    Args:
        task_places: two coordinates per task, from distances between task embeddings.
        domain_places: the same tasks, from distances between domain embeddings.
        names: one per task.
        out: path without extension.
        groups: one per task, each with its own colour and mark.
        titles: of the two panels.

    Example:
        >>> import numpy as np, tempfile
        >>> places = np.array([[0, 0], [1, 2]])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     files = draw_map_pair(places, -places, names=["cats", "dogs"], out=f"{folder}/maps")
        ...     files[-1].read_text().splitlines()[0]
        'task,group,task_x,task_y,domain_x,domain_y'
    """
    pair = [_check(places, names, groups, 0) for places in (task_places, domain_places)]
    figure = import_figure()(figsize=(PAPER_WIDTH, 4.0), dpi=300, layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, points, title in zip(panels, pair, titles, strict=True):
        _draw_points(axes, points)
        axes.set_title(shorten(title, _LONGEST_TITLE), fontsize=8.5, color=INK, loc="left", parse_math=False)
    _finish(figure, pair[0], list(zip(panels, pair, strict=True)), size=5.0)
    rows = (
        [name, group, *one, *other]
        for name, group, one, other in zip(names, pair[0].groups, pair[0].places, pair[1].places, strict=True)
    )
    header = ["task", "group", "task_x", "task_y", "domain_x", "domain_y"]
    return save_drawing(figure, out, header=header, rows=rows)


def _check(places: np.ndarray, names: Sequence[str], groups: Sequence[str] | None, placed: int) -> Points:
    places = np.asarray(places, dtype=np.float64)
    if places.shape != (len(names), 2) or not len(names) or not np.isfinite(places).all():
        raise UsageError(
            f"places of shape {places.shape} do not fit {len(names)} names: every task needs two finite coordinates. "
            f"Pass the places of lay_out(distances), an array of shape ({len(names)}, 2)."
        )
    return Points(places, tuple(names), tuple(check_groups(groups, len(names))), placed)


def _draw_points(axes: "Axes", points: Points) -> None:
    """The points with nothing around them but a thin frame: the axes of a map mean nothing."""
    size = float(np.interp(len(points.names), [20, 200, 2000], [30, 16, 5]))
    for group, look in choose_looks(points.groups).items():
        chosen = np.array([one == group for one in points.groups])
        axes.scatter(
            *points.places[chosen].T, s=size, marker=look.mark, color=look.colour, edgecolors="white", linewidths=0.4,
            label=word_legend(group, _LEGEND_LETTERS) if group != NO_GROUP else None, zorder=3,
        )  # fmt: skip
    if points.placed:
        axes.scatter(
            *points.places[-points.placed :].T, s=5 * size, facecolors="none", edgecolors=INK, linewidths=0.9,
            label="placed afterwards", zorder=4,
        )  # fmt: skip
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.1)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color("#d5dae0")


def _finish(figure: "Figure", points: Points, panels: "list[tuple[Axes, Points]]", *, size: float) -> None:
    """One legend below, then the names, which need to know where everything has come to stand."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    handles, words = panels[0][0].get_legend_handles_labels()
    if words:
        figure.legend(
            handles, words, loc="outside lower left", ncols=min(4, len(words)), fontsize=7, frameon=False,
            handletextpad=0.2, columnspacing=1.2,
        )  # fmt: skip
    with missing_glyphs():
        FigureCanvasAgg(figure).draw()
    figure.set_layout_engine("none")
    for axes, _ in panels:
        axes.autoscale(enable=False)
    if len(points.names) <= _MOST_NAMED:
        with missing_glyphs():
            for axes, shown in panels:
                _draw_names(axes, shown, size=size)


def _draw_names(axes: "Axes", points: Points, *, size: float) -> None:
    """Names beside their points, a thin line to those that stand farther off; those without room stay away."""
    from matplotlib.patheffects import withStroke

    figure = axes.get_figure()
    assert figure is not None
    pixel = figure.dpi / 72
    texts = [shorten(name) for name in points.names]
    anchors = axes.transData.transform(points.places)
    sizes = np.array([[_measure(text, size), 1.05 * size] for text in texts]) * pixel
    box, gap = axes.get_window_extent(), 4.2 * pixel
    bounds = (box.x0 + pixel, box.y0 + pixel, box.x1 - pixel, box.y1 - pixel)
    for text, anchor, extent, corner in zip(
        texts, anchors, sizes, fit_labels(anchors, sizes, bounds=bounds, gap=gap), strict=True
    ):
        if corner is None or not text:
            continue
        low = np.array(corner)
        near = np.clip(anchor, low, low + extent)
        if np.linalg.norm(near - anchor) > 1.6 * gap:
            axes.plot(*axes.transData.inverted().transform([anchor, near]).T, color=GREY, linewidth=0.4, zorder=1)
        left, line = axes.transData.inverted().transform(low + np.array([0, 0.22 * size * pixel]))
        axes.text(
            left, line, text, fontsize=size, color=INK, ha="left", va="baseline", parse_math=False, zorder=2,
            path_effects=[withStroke(linewidth=1.2, foreground="white")],
        )  # fmt: skip


def _measure(text: str, size: float) -> float:
    """The width of a text in points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    return float(text_to_path.get_text_width_height_descent(text, FontProperties(size=size), ismath=False)[0])


def _tabulate(points: Points) -> list[list[object]]:
    known = len(points.names) - points.placed
    rows = zip(points.names, points.groups, points.places, strict=True)
    return [[name, group, *place, int(number >= known)] for number, (name, group, place) in enumerate(rows)]
