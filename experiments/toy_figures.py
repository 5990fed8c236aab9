"""The toy experiment in pictures: tasks as icons at their places, and how alike neighbours are.

t-SNE knows no directions, so each map is turned until the number of clusters grows to the right. Then every icon takes
the nearest seat of a lattice, so that none covers another and none is left out.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from task2vec.plots import import_figure
from task2vec.tasks.synthetic import MAX_CLUSTERS, MIN_CLUSTERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

# Inches: the width of a page's two columns, the side of a map, and the space around it.
_WIDTH, _MAP = 7.2, 2.66
_EDGE, _GUTTER, _FOOT, _TOP = 0.05, 0.14, 0.5, 0.22
# The side of an icon as a part of its cell.
_ICON = 0.86
_INK, _PALE, _GREY, _RED = "#22313f", "#f4f1ea", "#7d8792", "#c0392b"
_CLUSTERS = range(MIN_CLUSTERS, MAX_CLUSTERS + 1)
_TITLES = {"ReLU": "ten random ReLU features", "polynomial": "polynomials of degree three"}


def draw_spaces(regions: np.ndarray, clusters: Sequence[int], places: dict[str, np.ndarray]) -> "Figure":
    """The task space of every probe, each task an icon of its regions, and the one point of the domain embedding.

    Args:
        regions: (tasks, points) whether a point of the square grid is positive.
        clusters: of each task.
        places: (tasks, 2) by probe.
    """
    figure = import_figure()(figsize=(_WIDTH, _MAP + _FOOT + _TOP), dpi=300)
    scale = _scale_clusters()
    side = math.isqrt(regions.shape[1])
    icons = list(match_colours(regions).reshape(-1, side, side))
    frames = list(scale.to_rgba(np.asarray(clusters)))
    for number, (name, found) in enumerate(places.items()):
        axes = _add_panel(figure, _EDGE + number * (_MAP + _GUTTER), _FOOT, _MAP)
        seats, cell = seat_icons(turn_to_grow(found, clusters))
        for icon, seat, frame in zip(icons, seats, frames, strict=True):
            _draw_icon(axes, icon, seat, side=_ICON * cell, frame=frame, width=1.4)
        _entitle(axes, "abcdef"[number], _TITLES.get(name, name))
    left = _EDGE + len(places) * (_MAP + _GUTTER)
    width = _WIDTH - left - _EDGE
    axes = _add_panel(figure, left, _FOOT + _MAP - width, width)
    _draw_one_point(axes, icons, frames)
    _entitle(axes, "abcdef"[len(places)], "domain embedding")
    _add_scale(figure, scale)
    return figure


def draw_neighbours(rows: Sequence[dict[str, Any]]) -> "Figure":
    """How much a task and its neighbours are alike, by kind of neighbour: every seed, and the mean with its error.

    Args:
        rows: one per seed and probe, with the measures of `toy_measures`.
    """
    figure = import_figure()(figsize=(4.8, 1.75), dpi=300)
    panels = figure.subplots(1, 2, sharey=True)
    kinds = _gather_kinds(rows)
    for axes, measure in zip(panels, ("similarity", "apart"), strict=True):
        for line, (found, colour) in enumerate((kind[measure], kind["colour"]) for kind in kinds.values()):
            axes.plot(found, np.full(len(found), line), "|", color=_GREY, markersize=6, markeredgewidth=0.6)
            stderr = found.std(ddof=1) / math.sqrt(len(found)) if len(found) > 1 else 0.0
            axes.errorbar(found.mean(), line, xerr=stderr, fmt="o", color=colour, markersize=4, capsize=2, linewidth=1)
            axes.annotate(
                f"{found.mean():.2f}", (found.mean(), line), (0, 4), textcoords="offset points", ha="center", fontsize=6
            )
        axes.axvline(kinds["a random task"][measure].mean(), color=_GREY, linewidth=0.6, linestyle=":", zorder=0)
        axes.margins(x=0.12)
        axes.tick_params(labelsize=6.5, length=2, width=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set(color=_GREY, linewidth=0.6)
    panels[0].set_yticks(range(len(kinds)), list(kinds), fontsize=6.5)
    panels[0].set_ylim(len(kinds) - 0.5, -0.75)
    panels[0].set_xlabel("similarity of decision regions", fontsize=7)
    panels[1].set_xlabel("clusters apart", fontsize=7)
    figure.tight_layout(pad=0.3, w_pad=1.2)
    return figure


def _gather_kinds(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Kinds of neighbours by name, each with one value per seed; only the nearest in task space depend on the probe."""
    names = list(dict.fromkeys(row["probe"] for row in rows))

    def take(probe: str, kind: str, colour: str) -> dict[str, Any]:
        own = [row for row in rows if row["probe"] == probe]
        similarity, apart = ([row[name] for row in own] for name in (kind, f"apart_{kind}"))
        return {"similarity": np.array(similarity), "apart": np.array(apart), "colour": colour}

    return {
        "a random task": take(names[0], "random", _INK),
        "nearest in the domain": take(names[0], "domain", _INK),
        **{f"nearest, {_TITLES.get(name, name)}": take(name, "nearest", _RED) for name in names},
        "the most similar task": take(names[0], "best", _INK),
    }


def turn_to_grow(places: np.ndarray, values: Sequence[float]) -> np.ndarray:
    """The places turned about their middle so that `values` grow to the right as fast as they can.

    Example:
        >>> import numpy as np
        >>> turn_to_grow(np.array([[0.0, 1.0], [0.0, 0.0], [0.0, -1.0]]), [1, 2, 3]).round(6) + 0
        array([[-1.,  0.],
               [ 0.,  0.],
               [ 1.,  0.]])
    """
    centred = places - places.mean(axis=0)
    slope = np.linalg.lstsq(centred, np.asarray(values) - np.mean(values), rcond=None)[0]
    length = np.linalg.norm(slope)
    x, y = slope / length if length > 0 else (1.0, 0.0)
    return centred @ np.array([[x, -y], [y, x]])


def seat_icons(places: np.ndarray) -> tuple[np.ndarray, float]:
    """The places, stretched to the unit square, moved to cells of a lattice, one icon each; and the side of a cell.

    Pushing overlapping icons apart jams in crowded corners; seats cannot overlap, and the assignment of least squared
    distance moves icons no further. A third of the cells stays empty, so that groups stay apart.

    Example:
        >>> import numpy as np
        >>> seats, cell = seat_icons(np.array([[0.0, 0.0], [0.1, 0.0], [1.0, 1.0]]))
        >>> seats.round(2).tolist(), round(cell, 2)
        ([[0.17, 0.17], [0.5, 0.17], [0.83, 0.83]], 0.33)
    """
    from scipy.optimize import linear_sum_assignment

    across = math.ceil(math.sqrt(1.5 * len(places)))
    middles = (np.arange(across) + 0.5) / across
    cells = np.stack(np.meshgrid(middles, middles), axis=2).reshape(-1, 2)
    low, high = places.min(axis=0), places.max(axis=0)
    inside = middles[0] + (places - low) / np.maximum(high - low, 1e-12) * (1 - 1 / across)
    _, seats = linear_sum_assignment(np.square(inside[:, None] - cells[None, :]).sum(axis=2))
    return cells[seats], 1 / across


def match_colours(regions: np.ndarray) -> np.ndarray:
    """(tasks, points) the regions, of some tasks the complement: what is alike shall look alike.

    Which class is called positive means nothing. Tasks are visited along the tree that joins each to the one it is
    most like, and each takes the colours that agree better with those of the one before.

    Example:
        >>> import numpy as np
        >>> match_colours(np.array([[1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 1]], dtype=bool)).astype(int)
        array([[1, 1, 0, 0],
               [1, 1, 0, 0],
               [1, 1, 1, 0]])
    """
    from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree

    signs = 2.0 * regions - 1
    agreement = signs @ signs.T / signs.shape[1]
    tree = minimum_spanning_tree(1.001 - np.abs(agreement))  # zero would be no edge at all
    order, before = breadth_first_order(tree, 0, directed=False)
    is_swapped = np.zeros(len(regions), dtype=bool)
    for task in order[1:]:
        is_swapped[task] = is_swapped[before[task]] ^ (agreement[task, before[task]] < 0)
    return regions ^ is_swapped[:, None]


def _add_panel(figure: "Figure", left: float, bottom: float, side: float) -> "Axes":
    """Square axes of `side` inches whose data run from 0 to 1."""
    width, height = figure.get_size_inches()
    axes = figure.add_axes((left / width, bottom / height, side / width, side / height))
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(color="#d5d8dc", linewidth=0.6)
    return axes


def _entitle(axes: "Axes", letter: str, title: str) -> None:
    axes.set_title(f"({letter}) {title}", fontsize=8, color=_INK, pad=4)


def _draw_icon(axes: "Axes", icon: np.ndarray, spot: Sequence[float], *, side: float, frame: Any, width: float) -> None:
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Rectangle

    x, y, half = spot[0], spot[1], side / 2
    colours = ListedColormap([_PALE, _INK])
    axes.imshow(
        icon,
        cmap=colours,
        vmin=0,
        vmax=1,
        extent=(x - half, x + half, y - half, y + half),
        origin="lower",
        interpolation="nearest",
        aspect="auto",
        zorder=2,
    )
    axes.add_patch(Rectangle((x - half, y - half), side, side, fill=False, edgecolor=frame, linewidth=width, zorder=3))
    axes.set(xlim=(0, 1), ylim=(0, 1))


def _draw_one_point(axes: "Axes", icons: Sequence[np.ndarray], frames: Sequence[Any]) -> None:
    """All icons around the edge, each with a thread to the one point where the domain embedding puts it."""
    spots = _walk_edge(len(icons))
    side = 4 / (len(icons) + 4)
    for icon, spot, frame in zip(icons, spots, frames, strict=True):
        axes.plot([spot[0], 0.5], [spot[1], 0.5], color=frame, linewidth=0.35, alpha=0.8, zorder=1)
        _draw_icon(axes, icon, spot, side=_ICON * side, frame=frame, width=0.4)
    axes.plot(0.5, 0.5, "o", color=_RED, markersize=5, zorder=4)
    words = f"{len(icons)} tasks, one point:\nthey share their images,\nso without labels\nall distances are 0"
    axes.text(0.5, -0.07, words, ha="center", va="top", fontsize=7.5, linespacing=1.4, color=_INK)
    words = "An icon is a task: the unit\nsquare cut into two classes"
    axes.text(0.5, -0.72, words, ha="center", va="bottom", fontsize=6.5, linespacing=1.4, color=_GREY)


def _walk_edge(count: int) -> np.ndarray:
    """(count, 2) spots at equal steps along the edge of the unit square, from its lower left corner."""
    inset = 2 / (count + 4)
    steps = np.arange(count) * 4 / count
    along, leg = steps % 1, steps.astype(int) % 4
    x = np.select([leg == 0, leg == 1, leg == 2], [along, np.ones(count), 1 - along], 0.0)
    y = np.select([leg == 0, leg == 1, leg == 2], [np.zeros(count), along, np.ones(count)], 1 - along)
    return inset + (1 - 2 * inset) * np.stack([x, y], axis=1)


def _scale_clusters() -> "ScalarMappable":
    """One colour per number of clusters, dark for few."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm, ListedColormap

    colours = ListedColormap(colormaps["plasma"](np.linspace(0.02, 0.92, len(_CLUSTERS))))
    edges = [*(count - 0.5 for count in _CLUSTERS), _CLUSTERS[-1] + 0.5]
    return ScalarMappable(BoundaryNorm(edges, len(_CLUSTERS)), colours)


def _add_scale(figure: "Figure", scale: "ScalarMappable") -> None:
    width, height = figure.get_size_inches()
    axes = figure.add_axes(((_EDGE + _MAP / 2) / width, 0.33 / height, (_MAP + _GUTTER) / width, 0.07 / height))
    bar = figure.colorbar(scale, cax=axes, orientation="horizontal", ticks=list(_CLUSTERS))
    bar.set_label("clusters of the task (frame)", fontsize=7, color=_INK, labelpad=1)
    bar.ax.tick_params(labelsize=6, length=0, pad=2)
    bar.minorticks_off()
    bar.outline.set_visible(False)  # type: ignore[operator]
