"""Names in pictures: short, in letters that print, and beside their points without covering one another."""

import math
import unicodedata

import numpy as np

LONGEST_NAME = 28
# Directions in which a name may stand from its point (right first, as we read), and how far from it, in its own height.
_DIRECTIONS = ((1, 0), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1), (0, 1), (0, -1))
_RINGS = (0.0, 0.9, 1.9, 3.0)

Box = tuple[float, float, float, float]


def shorten(name: str, longest: int = LONGEST_NAME) -> str:
    r"""A stranger's name, short and in printable characters.

    Example:
        >>> shorten("a\x1bb"), shorten("Passeriformes of North America", 12)
        ('a�b', 'Passeriform…')
    """
    printable = "".join(c if unicodedata.category(c)[0] != "C" else "\N{REPLACEMENT CHARACTER}" for c in name)
    return printable if len(printable) <= longest else printable[: longest - 1] + "…"


def word_legend(name: str, longest: int = LONGEST_NAME) -> str:
    """The name as an entry of a legend: a dollar sign is a letter, and a leading underscore does not hide it."""
    short = shorten(name, longest)
    return f"{' ' if short[:1] == '_' else ''}{short}".replace("$", r"\$")


def fit_labels(anchors: np.ndarray, sizes: np.ndarray, *, bounds: Box, gap: float) -> list[tuple[float, float] | None]:
    """The lower left corner of every label, or None where there is no room for it.

    Labels are placed greedily, those in the emptiest surroundings last (they find room anyway): near the point first,
    farther away only if every nearer place would cover a point or another label.

    Args:
        anchors: the points, in any unit (n, 2).
        sizes: width and height of each label in that unit (n, 2).
        bounds: left, bottom, right and top of the place that labels must stay in.
        gap: how far a label stays from its own and other points.

    Example:
        >>> import numpy as np
        >>> fit_labels(np.array([[0.0, 0.0]]), np.array([[4.0, 2.0]]), bounds=(-9, -9, 9, 9), gap=1)
        [(1.0, -1.0)]
    """
    anchors, sizes = np.asarray(anchors, dtype=float), np.asarray(sizes, dtype=float)
    taken = np.concatenate([anchors - gap * 0.8, anchors + gap * 0.8], axis=1)
    places: list[tuple[float, float] | None] = [None] * len(anchors)
    for index in _crowded_first(anchors):
        for corner in _candidates(anchors[index], sizes[index], gap):
            box = np.concatenate([corner, corner + sizes[index]])
            if _is_inside(box, bounds) and not _overlaps(box, taken).any():
                places[index] = (float(corner[0]), float(corner[1]))
                taken = np.vstack([taken, box])
                break
    return places


def _crowded_first(anchors: np.ndarray) -> list[int]:
    if len(anchors) < 3:
        return list(range(len(anchors)))
    apart = np.linalg.norm(anchors[:, None] - anchors[None, :], axis=-1)
    third = np.sort(apart, axis=1)[:, min(3, len(anchors) - 1)]
    return [int(index) for index in np.argsort(third, kind="stable")]


def _candidates(anchor: np.ndarray, size: np.ndarray, gap: float) -> list[np.ndarray]:
    """Lower left corners around the point, from near to far."""
    corners = []
    for ring in _RINGS:
        for right, up in _DIRECTIONS:
            slant = 1 / math.sqrt(2) if right and up else 1.0
            reach = (gap + ring * size[1]) * slant
            middle = anchor + np.array([right, up]) * (reach + np.array([size[0], size[1]]) / 2)
            corners.append(middle - size / 2)
    return corners


def _is_inside(box: np.ndarray, bounds: Box) -> bool:
    return bool(box[0] >= bounds[0] and box[1] >= bounds[1] and box[2] <= bounds[2] and box[3] <= bounds[3])


def _overlaps(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    apart = (others[:, 0] >= box[2]) | (others[:, 2] <= box[0]) | (others[:, 1] >= box[3]) | (others[:, 3] <= box[1])
    return ~apart
