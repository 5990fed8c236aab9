"""How the generated sample images are painted: shapes, textures, colours and inked digits.

A painter takes a random generator and a side in pixels and returns one RGB image. Painters of one task differ only in
what the task asks; everything else (colours, place, size, angle) is drawn from the same distribution for all classes.
"""

import colorsys
import math
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageDraw

Painter = Callable[[np.random.Generator, int], Image.Image]

# Drawn this much larger and then shrunk: soft edges.
_OVERSAMPLING = 4


def paint_digit(levels: np.ndarray, rng: np.random.Generator, side: int) -> Image.Image:
    """One 8 x 8 digit of scikit-learn (levels 0 to 16), inked on paper."""
    framed = np.pad(levels / 16 * 255, 1).astype(np.uint8)
    page = Image.fromarray(framed).resize((side, side), Image.Resampling.BICUBIC)
    strength = np.clip((np.asarray(page, dtype=np.float64) / 255 - 0.25) / 0.4, 0, 1)[..., None]
    paper = _rgb(0.08 + 0.06 * rng.random(), 0.05 + 0.08 * rng.random(), 0.93 + 0.05 * rng.random())
    ink = _rgb(0.55 + 0.15 * rng.random(), 0.55 + 0.3 * rng.random(), 0.2 + 0.2 * rng.random())
    grain = rng.normal(0, 2.0, (side, side, 1))
    return _image((1 - strength) * paper + strength * ink + grain)


# --- shapes ----------------------------------------------------------------------------------------------------------


def _polygon(corners: int, *, inner: float = 1.0) -> list[tuple[float, float]]:
    """Corners of a regular polygon on the unit circle; with `inner` below 1, of a star."""
    steps = corners if inner == 1.0 else 2 * corners
    radii = [1.0 if inner == 1.0 or step % 2 == 0 else inner for step in range(steps)]
    angles = [2 * math.pi * step / steps for step in range(steps)]
    return [(r * math.cos(a), r * math.sin(a)) for r, a in zip(radii, angles, strict=True)]


_CROSS = [(x / 1.05, y / 1.05) for x, y in [
    (-0.33, -1), (0.33, -1), (0.33, -0.33), (1, -0.33), (1, 0.33), (0.33, 0.33),
    (0.33, 1), (-0.33, 1), (-0.33, 0.33), (-1, 0.33), (-1, -0.33), (-0.33, -0.33),
]]  # fmt: skip

_OUTLINES: dict[str, list[tuple[float, float]]] = {
    "circle": _polygon(64),
    "triangle": _polygon(3),
    "square": _polygon(4),
    "star": _polygon(5, inner=0.42),
    "cross": _CROSS,
}


def _place(
    outline: list[tuple[float, float]], rng: np.random.Generator, canvas: int, radius: tuple[float, float]
) -> list[tuple[float, float]]:
    """The outline turned, scaled (as a share of the canvas) and moved at random, whole within the canvas."""
    size = rng.uniform(*radius) * canvas
    turn = rng.uniform(0, 2 * math.pi)
    x, y = rng.uniform(size, canvas - size, 2)
    cos, sin = size * math.cos(turn), size * math.sin(turn)
    return [(x + cos * u - sin * v, y + sin * u + cos * v) for u, v in outline]


def _paint_shape(name: str, rng: np.random.Generator, side: int) -> Image.Image:
    """One large shape on a plain, softly lit ground."""
    canvas = side * _OVERSAMPLING
    hue = rng.random()
    picture = Image.new("RGB", (canvas, canvas), _bytes(_rgb(hue, 0.15, 0.95)))
    figure = _bytes(_rgb(hue + rng.uniform(0.3, 0.7), rng.uniform(0.5, 0.8), rng.uniform(0.45, 0.75)))
    ImageDraw.Draw(picture).polygon(_place(_OUTLINES[name], rng, canvas, (0.25, 0.4)), fill=figure)
    return picture.resize((side, side), Image.Resampling.LANCZOS)


def _paint_cluttered_shape(name: str, rng: np.random.Generator, side: int) -> Image.Image:
    """One small shape among strokes and shards of similar colours, under noise."""
    canvas = side * _OVERSAMPLING
    hue = rng.random()
    picture = Image.new("RGB", (canvas, canvas), _bytes(_rgb(hue, 0.25, 0.6)))
    draw = ImageDraw.Draw(picture)

    def colour() -> tuple[int, int, int]:
        return _bytes(_rgb(hue + rng.normal(0, 0.12), rng.uniform(0.2, 0.6), rng.uniform(0.3, 0.9)))

    for _ in range(22):
        shard = [(float(x), float(y)) for x, y in rng.uniform(-1, 1, (3, 2))]
        draw.polygon(_place(shard, rng, canvas, (0.05, 0.16)), fill=colour())
        draw.line(_place([(-1, 0), (1, 0)], rng, canvas, (0.1, 0.35)), fill=colour(), width=int(canvas * 0.012))
    figure = _bytes(_rgb(hue + 0.5 + rng.normal(0, 0.12), rng.uniform(0.3, 0.6), rng.uniform(0.5, 0.9)))
    draw.polygon(_place(_OUTLINES[name], rng, canvas, (0.11, 0.17)), fill=figure)
    small = np.asarray(picture.resize((side, side), Image.Resampling.LANCZOS), dtype=np.float64)
    return _image(small + rng.normal(0, 14, small.shape))


# --- textures --------------------------------------------------------------------------------------------------------


def _turned_grid(rng: np.random.Generator, side: int, period: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    """Two coordinates of a plane turned at random, in units of a random period."""
    turn = rng.uniform(0, 2 * math.pi)
    rows, columns = np.mgrid[0:side, 0:side] / rng.uniform(*period)
    u = math.cos(turn) * columns + math.sin(turn) * rows + rng.random()
    return u, math.cos(turn) * rows - math.sin(turn) * columns + rng.random()


def _clouds(rng: np.random.Generator, side: int, power: float) -> np.ndarray:
    """Noise whose amplitude falls with frequency to the given power, in [0, 1]."""
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None, :])
    frequency[0, 0] = 1.0
    spectrum = np.fft.rfft2(rng.standard_normal((side, side))) / frequency**power
    spectrum[0, 0] = 0.0
    field = np.fft.irfft2(spectrum, (side, side))
    return np.clip(0.5 + 0.2 * field / field.std(), 0, 1)


def _weave_stripes(rng: np.random.Generator, side: int) -> np.ndarray:
    u, _ = _turned_grid(rng, side, (10, 18))
    return 0.5 + 0.5 * np.sin(2 * math.pi * u)


def _weave_checks(rng: np.random.Generator, side: int) -> np.ndarray:
    u, v = _turned_grid(rng, side, (16, 28))
    return np.clip(0.5 + 4 * np.sin(2 * math.pi * u) * np.sin(2 * math.pi * v), 0, 1)


def _weave_dots(rng: np.random.Generator, side: int) -> np.ndarray:
    u, v = _turned_grid(rng, side, (11, 18))
    return np.clip(4 * (0.34 - np.hypot(u % 1 - 0.5, v % 1 - 0.5)) + 0.5, 0, 1)


def _weave_rings(rng: np.random.Generator, side: int) -> np.ndarray:
    """Year rings, warped as in wood."""
    u, v = _turned_grid(rng, side, (10, 16))
    warp = 1.6 * (_clouds(rng, side, 1.6) - 0.5)
    return 0.5 + 0.5 * np.sin(2 * math.pi * (np.hypot(u - rng.uniform(-3, 3), 0.45 * v) + warp))


def _weave_clouds(rng: np.random.Generator, side: int) -> np.ndarray:
    return _clouds(rng, side, 1.7)


def _weave_grain(rng: np.random.Generator, side: int) -> np.ndarray:
    return _clouds(rng, side, 0.25)


def _paint_texture(
    weave: Callable[[np.random.Generator, int], np.ndarray], rng: np.random.Generator, side: int
) -> Image.Image:
    """A texture between two random tones of one hue, under a little noise."""
    hue = rng.random()
    dark = _rgb(hue, rng.uniform(0.3, 0.7), rng.uniform(0.2, 0.45))
    light = _rgb(hue + rng.normal(0, 0.06), rng.uniform(0.1, 0.4), rng.uniform(0.75, 0.98))
    share = weave(rng, side)[..., None]
    return _image((1 - share) * dark + share * light + rng.normal(0, 4, (side, side, 3)))


# --- colours ---------------------------------------------------------------------------------------------------------


def _paint_colour(hue: float, rng: np.random.Generator, side: int) -> Image.Image:
    """Soft clouds in shades of one colour."""
    shade = _clouds(rng, side, 2.0)[..., None]
    near = hue + rng.uniform(-0.025, 0.025)
    deep = _rgb(near, rng.uniform(0.75, 0.95), rng.uniform(0.5, 0.7))
    pale = _rgb(near, rng.uniform(0.45, 0.65), rng.uniform(0.88, 1.0))
    return _image((1 - shade) * deep + shade * pale)


# --- pixels ----------------------------------------------------------------------------------------------------------


def _rgb(hue: float, saturation: float, value: float) -> np.ndarray:
    return 255 * np.array(colorsys.hsv_to_rgb(hue % 1.0, saturation, value))


def _bytes(rgb: np.ndarray) -> tuple[int, int, int]:
    red, green, blue = (round(float(channel)) for channel in rgb)
    return red, green, blue


def _image(pixels: np.ndarray) -> Image.Image:
    return Image.fromarray(np.clip(np.round(pixels), 0, 255).astype(np.uint8))


def _bind(paint: Callable[..., Image.Image], first: object) -> Painter:
    return lambda rng, side: paint(first, rng, side)


SHAPES: dict[str, Painter] = {name: _bind(_paint_shape, name) for name in _OUTLINES}
CLUTTERED_SHAPES: dict[str, Painter] = {name: _bind(_paint_cluttered_shape, name) for name in _OUTLINES}
TEXTURES: dict[str, Painter] = {
    "stripes": _bind(_paint_texture, _weave_stripes),
    "checks": _bind(_paint_texture, _weave_checks),
    "dots": _bind(_paint_texture, _weave_dots),
    "wood": _bind(_paint_texture, _weave_rings),
    "clouds": _bind(_paint_texture, _weave_clouds),
    "grain": _bind(_paint_texture, _weave_grain),
}
COLOURS: dict[str, Painter] = {
    "red": _bind(_paint_colour, 0.0),
    "yellow": _bind(_paint_colour, 0.15),
    "green": _bind(_paint_colour, 0.36),
    "blue": _bind(_paint_colour, 0.6),
    "violet": _bind(_paint_colour, 0.79),
}
