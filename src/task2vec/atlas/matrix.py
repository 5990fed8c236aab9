"""A distance matrix becomes a picture in which neighbours stand side by side.

Rows and columns are ordered by hierarchical clustering, every cell carries its number, and a strip of sample images
stands beside each row, because a name says less than a look. The picture is made of `Figure` objects, never of pyplot:
it needs no display, keeps no state, and may be drawn in any thread.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from task2vec.atlas.canvas import import_figure, save_picture
from task2vec.atlas.labels import shorten
from task2vec.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from PIL import Image

# Cells shrink where there are many, down to the height of a name; small ones carry no number.
LARGEST_CELL, SMALLEST_CELL, SMALLEST_NUMBERED_CELL, MATRIX_INCHES = 0.72, 0.16, 0.36, 16.0
FORMATS = (".png", ".pdf", ".svg")


def draw_distance_matrix(
    distances: np.ndarray,
    names: Sequence[str],
    *,
    path: str | Path,
    thumbnails: Sequence[Sequence["Image.Image"]] | None = None,
    title: str = "distance between tasks",
) -> Path:
    """The path of a picture (PNG, PDF or SVG, by its extension) of a square matrix of distances.

    Args:
        distances: symmetric, zero on the diagonal, finite.
        names: one per row.
        path: where the picture goes; an existing file is replaced, whole or not at all.
        thumbnails: a few images per row, all rows equally many, shown at its left.
        title: what stands above the picture.

    Example:
        >>> import numpy as np, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     draw_distance_matrix(np.array([[0, 0.2], [0.2, 0]]), ["cats", "dogs"], path=f"{folder}/pair.png").name
        'pair.png'
    """
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise UsageError(
            f"cannot draw into '{path}': the extension chooses the format. Use one of {', '.join(FORMATS)}."
        )
    distances = _check_distances(distances, names)
    figure_class = import_figure()
    order = cluster_order(distances)
    strip = 0 if thumbnails is None else max(len(row) for row in thumbnails)
    labels = [shorten(names[index]) for index in order]
    cell = min(LARGEST_CELL, max(SMALLEST_CELL, MATRIX_INCHES / len(order)))
    figure, cells, pictures = _lay_out(figure_class, len(order), strip, letters=max(map(len, labels)), cell=cell)
    _draw_cells(cells, distances[np.ix_(order, order)], is_numbered=cell >= SMALLEST_NUMBERED_CELL)
    _draw_names(cells, labels, strip)
    figure.suptitle(title, fontsize=12, x=0.02, ha="left", y=0.985)
    if thumbnails is not None:
        for row, index in enumerate(order):
            _draw_strip(pictures[row], thumbnails[index])
    save_picture(figure, path)
    return path


def cluster_order(distances: np.ndarray) -> list[int]:
    """The order of rows in which near tasks stand side by side (average linkage, optimal leaf order).

    Example:
        >>> import numpy as np
        >>> points = np.array([0.0, 5.0, 0.1, 5.1])
        >>> order = cluster_order(abs(points[:, None] - points[None, :]))
        >>> abs(order.index(0) - order.index(2)), abs(order.index(1) - order.index(3))
        (1, 1)
    """
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    if len(distances) < 3:
        return list(range(len(distances)))
    tree = linkage(squareform(distances, checks=False), method="average", optimal_ordering=True)
    return [int(leaf) for leaf in leaves_list(tree)]


def _check_distances(distances: np.ndarray, names: Sequence[str]) -> np.ndarray:
    distances = np.asarray(distances, dtype=np.float64)
    if distances.ndim != 2 or distances.shape != (len(names), len(names)) or not len(names):
        raise UsageError(
            f"a distance matrix of shape {distances.shape} does not fit {len(names)} names: every task needs one row "
            f"and one column. Pass an array of shape ({len(names)}, {len(names)})."
        )
    if not np.isfinite(distances).all() or not np.allclose(distances, distances.T, atol=1e-9):
        raise UsageError(
            "the distance matrix holds NaN or infinity, or is not symmetric: it cannot be ordered by likeness. "
            "Fill it with task2vec.distance.symmetric(a, b)."
        )
    return distances


def _lay_out(
    figure_class: "type[Figure]", rows: int, strip: int, *, letters: int, cell: float
) -> "tuple[Figure, Axes, list[Axes]]":
    """A figure with room for names, the axes of the cells, and one small axes per row for its images."""
    margin, head = 0.3 + 0.078 * letters, 0.45  # inches: the longest name, the title
    width, height = margin + (strip + rows) * cell + 0.25, head + rows * cell + 0.75 * margin
    figure = figure_class(figsize=(width, height), dpi=160)
    left, bottom = margin / width, 1 - (head + rows * cell) / height
    across, up = cell / width, cell / height
    cells = figure.add_axes((left + strip * across, bottom, rows * across, rows * up))
    pictures = []
    if strip:
        pictures = [figure.add_axes((left, bottom + row * up, strip * across, up)) for row in reversed(range(rows))]
    for axes in pictures:
        axes.set_axis_off()
    return figure, cells, pictures


def _draw_cells(axes: "Axes", distances: np.ndarray, *, is_numbered: bool) -> None:
    """Cells coloured from near (dark) to far (light), each with its number; the diagonal (zero) stays empty."""
    rows = len(distances)
    diagonal = np.eye(rows, dtype=bool)
    low, high = (distances[~diagonal].min(), distances[~diagonal].max()) if rows > 1 else (0.0, 1.0)
    shown = np.ma.masked_array(distances, mask=diagonal)
    axes.set_facecolor("#f1f1f1")
    axes.imshow(shown, cmap="YlGnBu_r", vmin=low, vmax=high if high > low else low + 1, aspect="auto")
    for row, column in np.argwhere(~diagonal) if is_numbered else ():
        distance = distances[row, column]
        ink = "white" if distance < low + 0.45 * (high - low) else "#1d3557"
        number = f"{distance:.2f}" if high >= 0.1 else f"{distance:.1g}"
        axes.text(column, row, number, ha="center", va="center", fontsize=8, color=ink)
    axes.set_xticks(np.arange(1, rows) - 0.5, minor=True)
    axes.set_yticks(np.arange(1, rows) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=1.5 if is_numbered else 0.4)
    axes.tick_params(which="both", length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _draw_names(axes: "Axes", labels: list[str], strip: int) -> None:
    """The names below the columns and, beyond the images, left of the rows; `$` is a letter here, not mathematics."""
    axes.set_xticks(
        range(len(labels)), labels, rotation=38, ha="right", rotation_mode="anchor", fontsize=9, parse_math=False
    )
    axes.set_yticks([])
    for row, label in enumerate(labels):
        axes.text(-0.62 - strip, row, label, ha="right", va="center", fontsize=9, parse_math=False)


def _draw_strip(axes: "Axes", images: Sequence["Image.Image"]) -> None:
    """A few images side by side, with white between them."""
    side, gap = 96, 8
    strip = np.full((side + gap, len(images) * (side + gap), 3), 255, dtype=np.uint8)
    for column, image in enumerate(images):
        left = column * (side + gap) + gap // 2
        strip[gap // 2 : gap // 2 + side, left : left + side] = np.asarray(image.convert("RGB").resize((side, side)))
    axes.imshow(strip, aspect="auto", interpolation="lanczos")
