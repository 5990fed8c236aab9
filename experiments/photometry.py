"""Questions about a picture that its pixels answer: tasks on the same images that differ in their labels alone."""

from collections.abc import Callable, Mapping

import numpy as np

# Red to green to blue as the eye weighs them.
_LUMA = np.array([0.299, 0.587, 0.114])
# Raised when a picture gets other numbers.
VERSION = 1
QUESTIONS = (
    "brightness",
    "contrast",
    "saturation",
    "warmth",
    "hue",
    "sharpness",
    "grain",
    "direction",
    "parallelism",
    "left to right",
    "top to bottom",
    "symmetry",
    "centre against border",
)
# Ends of the hues that have a name of their own, in degrees; red lies around zero.
_HUES = {"orange": (15, 45), "yellow": (45, 70), "green": (70, 165), "blue": (165, 260)}


def describe_picture(pixels: np.ndarray) -> dict[str, float]:
    """Numbers that the pixels (height, width, 3) of a picture, from 0 to 255, answer questions with.

    Example:
        >>> dark = np.zeros((32, 32, 3))
        >>> describe_picture(dark)["brightness"]
        0.0
    """
    picture = np.asarray(pixels, dtype=np.float64) / 255
    luma = picture @ _LUMA
    down, across = (np.asarray(part) for part in np.gradient(luma))
    energy = down**2 + across**2
    total = energy.sum() + 1e-12
    rows, columns = (np.linspace(0, 1, side) for side in luma.shape)
    middle = _middle(luma)
    border = (luma.sum() - middle.sum()) / (luma.size - middle.size)
    highest, lowest = picture.max(2), picture.min(2)
    mirror = luma[:, ::-1]
    return {
        "brightness": float(luma.mean()),
        "contrast": float(luma.std()),
        "saturation": float((highest - lowest).mean()),
        "warmth": float((picture[..., 0] - picture[..., 2]).mean()),
        "hue": _dominant_hue(picture),
        "sharpness": float(np.log(_laplacian(luma).var() + 1e-9)),
        "grain": float(np.log((energy.mean() + 1e-9) / (_coarse_energy(luma) + 1e-9))),
        "direction": float(np.rad2deg(0.5 * np.arctan2(2 * (down * across).sum(), (across**2 - down**2).sum())) % 180),
        "parallelism": _coherence(down, across),
        "left to right": float((energy.sum(0) @ columns) / total),
        "top to bottom": float((energy.sum(1) @ rows) / total),
        "symmetry": float(np.corrcoef(luma.ravel(), mirror.ravel())[0, 1]) if luma.std() > 1e-9 else 1.0,
        "centre against border": float(middle.mean() - border),
    }


def _middle(luma: np.ndarray) -> np.ndarray:
    height, width = luma.shape
    return luma[height // 4 : height - height // 4, width // 4 : width - width // 4]


def _laplacian(luma: np.ndarray) -> np.ndarray:
    around = luma[:-2, 1:-1] + luma[2:, 1:-1] + luma[1:-1, :-2] + luma[1:-1, 2:]
    return around - 4 * luma[1:-1, 1:-1]


def _coarse_energy(luma: np.ndarray) -> float:
    """Mean squared gradient of the picture at a quarter of its size."""
    height, width = (side // 4 * 4 for side in luma.shape)
    coarse = luma[:height, :width].reshape(height // 4, 4, width // 4, 4).mean((1, 3))
    down, across = np.gradient(coarse)
    return float((down**2 + across**2).mean())


def _coherence(down: np.ndarray, across: np.ndarray) -> float:
    """From 0, edges in all directions, to 1, all edges parallel."""
    a, b, c = (across**2).sum(), (down**2).sum(), (down * across).sum()
    return float(np.hypot(a - b, 2 * c) / (a + b + 1e-12))


def _dominant_hue(picture: np.ndarray) -> float:
    """The middle, in degrees, of the twelfth of the colour circle that most colour lies in."""
    red, green, blue = np.moveaxis(picture, 2, 0)
    chroma = picture.max(2) - picture.min(2)
    angle = np.rad2deg(np.arctan2(np.sqrt(3) * (green - blue), 2 * red - green - blue)) % 360
    bins = (angle // 15).astype(int) % 24
    return float(np.bincount(bins.ravel(), weights=chroma.ravel(), minlength=24).argmax() * 15 + 7.5)


def ask(
    numbers: Mapping[str, np.ndarray], question: str, reference: np.ndarray | None = None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Class numbers and class names of one question; thirds are those of `reference`, or of the images themselves.

    Example:
        >>> ask({"contrast": np.arange(6.0)}, "contrast")
        (array([0, 0, 1, 1, 2, 2]), ('low', 'medium', 'high'))
    """
    values = numbers[question]
    if question in _NAMED:
        return _NAMED[question](values)
    ends = np.quantile(values if reference is None else reference, [1 / 3, 2 / 3])
    return np.searchsorted(ends, values), ("low", "medium", "high")


def _name_hues(values: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    labels = np.zeros(len(values), dtype=np.int64)
    for number, (start, end) in enumerate(_HUES.values(), 1):
        labels[(values >= start) & (values < end)] = number
    return labels, ("red or violet", *_HUES)


def _name_directions(values: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    names = ("across", "rising", "down", "falling")
    return (np.round(values / 45).astype(np.int64)) % 4, names


_NAMED: dict[str, Callable[[np.ndarray], tuple[np.ndarray, tuple[str, ...]]]] = {
    "hue": _name_hues,
    "direction": _name_directions,
}
