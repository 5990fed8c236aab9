"""Synthetic tasks that need no network: eight sample tasks, and the toy tasks of Achille 2019.

The sample tasks come in pairs that vary one thing: the same pixels under other labels (digits and their parity, photos
and coin flips), the same labels on other pixels (plain and cluttered shapes). Difficulty runs from trivial (colours) to
impossible (coin flips). A painter takes a random generator and returns one RGB image; painters of one task differ
only in what determines the class.

A toy task divides the unit square into two regions ("Example toy task embedding"): a uniform grid of points is
clustered by k-means, and half of the clusters make one class. All toy tasks of a call have the same points, so they
differ in their labels alone. A point is an image of one pixel, which goes through the ordinary `embed`. Red and green
hold the column and the row of the point as they are, not stretched to 255: divided by side - 1, the quotient of two
small integers is the same float wherever it is computed. Blue is 255, read as 1: the input that a filter's bias
multiplies.
"""

import colorsys
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from task2vec.errors import UsageError
from task2vec.tasks.task import Task
from task2vec.tasks.torch_dataset import from_dataset

SIDE = 96
# Below this, ten classes have too few images each for cross-validation.
MIN_IMAGES = 20
MIN_CLUSTERS = 3
MAX_CLUSTERS = 16
MIN_SIDE = 8  # sixteen clusters of four points
MAX_SIDE = 256  # the number of values that a byte has
# Drawn this much larger and then shrunk, for soft edges.
_CANVAS = 4 * SIDE
# Repeated clusterings in a row after which the grid is too coarse for more tasks.
_MAX_REPEATED_CLUSTERINGS = 300

Painter = Callable[[np.random.Generator], Image.Image]
_Point = tuple[float, float]


def sample_tasks(*, images_per_task: int = 120, seed: int = 0) -> tuple[Task, ...]:
    """Eight small tasks of different kind and difficulty, made or shipped on this machine.

    Args:
        images_per_task: how many images each task gets, spread evenly over its classes.
        seed: another seed draws other images of the same kinds.

    Example:
        >>> [task.name for task in sample_tasks(images_per_task=40)][:3]
        ['digits', 'digit parity', 'shapes']
    """
    if images_per_task < MIN_IMAGES:
        raise UsageError(
            f"images_per_task={images_per_task} cannot cross-validate ten classes. Use {MIN_IMAGES} or more."
        )
    digits, values = _draw_digits(images_per_task, np.random.default_rng([seed, 0]))
    crops, photos = _cut_crops(images_per_task, np.random.default_rng([seed, 1]))
    coins = np.random.default_rng([seed, 2]).permutation(np.arange(images_per_task) % 2)
    painted = []
    for stream, (name, painters) in enumerate(_PAINTERS.items(), start=3):
        rng = np.random.default_rng([seed, stream])
        targets = np.arange(images_per_task) % len(painters)
        pictures = [[*painters.values()][target](rng) for target in targets]
        painted.append(_make_task(name, pictures, targets, list(painters)))
    return (
        _make_task("digits", digits, values, [str(digit) for digit in range(10)]),
        _make_task("digit parity", digits, values % 2, ["even", "odd"]),
        *painted,
        _make_task("photos", crops, photos, ["temple", "flower"]),
        _make_task("coin flips", crops, coins, ["heads", "tails"]),
    )


def _make_task(name: str, pictures: Sequence[Image.Image], targets: np.ndarray, classes: Sequence[str]) -> Task:
    task = from_dataset([*zip(pictures, targets, strict=True)], classes=classes, name=name)
    return _in_memory(task, "task2vec.sample_tasks")


def _in_memory(task: Task, source: str) -> Task:
    """The task of pictures that are in memory, which any number of threads may read."""
    images: Any = task.images
    return replace(task, images=replace(images, is_threadsafe=True), source=source)


def _find_sample(name: str) -> Path:
    """A file of scikit-learn's sample datasets, found without importing scikit-learn, which takes seconds."""
    package = find_spec("sklearn")
    assert package is not None and package.origin is not None  # a dependency
    return Path(package.origin).parent / "datasets" / name


def _draw_digits(count: int, rng: np.random.Generator) -> tuple[list[Image.Image], np.ndarray]:
    """Handwritten digits of scikit-learn, equally many of each, inked on paper."""
    table = np.loadtxt(_find_sample("data/digits.csv.gz"), delimiter=",")
    levels, values = table[:, :-1], table[:, -1].astype(int)
    order = rng.permutation(len(values))
    by_digit = [order[values[order] == digit] for digit in range(10)]
    if count > 10 * min(len(rows) for rows in by_digit):
        raise UsageError(f"images_per_task={count} is too many: scikit-learn has 174 of each digit. Use 1740 or less.")
    chosen = [by_digit[i % 10][i // 10] for i in range(count)]
    return [_paint_digit(levels[row].reshape(8, 8), rng) for row in chosen], np.asarray(values)[chosen]


def _cut_crops(count: int, rng: np.random.Generator) -> tuple[list[Image.Image], np.ndarray]:
    """Random square crops of the two photographs that scikit-learn ships."""
    photographs = [Image.open(_find_sample(f"images/{name}")).convert("RGB") for name in ("china.jpg", "flower.jpg")]
    targets = np.arange(count) % len(photographs)
    crops = []
    for photograph in map(photographs.__getitem__, targets):
        edge = int(rng.integers(160, 340))
        left = int(rng.integers(0, photograph.width - edge + 1))
        top = int(rng.integers(0, photograph.height - edge + 1))
        box = (left, top, left + edge, top + edge)
        crops.append(photograph.resize((SIDE, SIDE), Image.Resampling.LANCZOS, box=box))
    return crops, targets


# --- painters ---------------------------------------------------------------------------------------------------------


def _paint_digit(levels: np.ndarray, rng: np.random.Generator) -> Image.Image:
    """One 8 x 8 digit of scikit-learn (levels 0 to 16), inked on paper."""
    framed = np.pad(levels / 16 * 255, 1).astype(np.uint8)
    page = Image.fromarray(framed).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    strength = np.clip((np.asarray(page, dtype=np.float64) / 255 - 0.25) / 0.4, 0, 1)[..., None]
    paper = _rgb(0.08 + 0.06 * rng.random(), 0.05 + 0.08 * rng.random(), 0.93 + 0.05 * rng.random())
    ink = _rgb(0.55 + 0.15 * rng.random(), 0.55 + 0.3 * rng.random(), 0.2 + 0.2 * rng.random())
    grain = rng.normal(0, 2.0, (SIDE, SIDE, 1))
    return _image((1 - strength) * paper + strength * ink + grain)


# --- shapes ----------------------------------------------------------------------------------------------------------


def _polygon(corners: int, *, inner: float = 1.0) -> list[_Point]:
    """Corners of a polygon, every second one on the unit circle and the others at `inner` (below 1: a star)."""
    angles = [2 * math.pi * step / corners for step in range(corners)]
    radii = [inner if step % 2 else 1.0 for step in range(corners)]
    return [(r * math.cos(a), r * math.sin(a)) for r, a in zip(radii, angles, strict=True)]


_CROSS = [(x / 1.05, y / 1.05) for x, y in [
    (-0.33, -1), (0.33, -1), (0.33, -0.33), (1, -0.33), (1, 0.33), (0.33, 0.33),
    (0.33, 1), (-0.33, 1), (-0.33, 0.33), (-1, 0.33), (-1, -0.33), (-0.33, -0.33),
]]  # fmt: skip

_OUTLINES: dict[str, list[_Point]] = {
    "circle": _polygon(64),
    "triangle": _polygon(3),
    "square": _polygon(4),
    "star": _polygon(10, inner=0.42),
    "cross": _CROSS,
}


def _place(outline: list[_Point], rng: np.random.Generator, radius: _Point) -> list[_Point]:
    """The outline turned, scaled (as a share of the canvas) and moved at random, whole within the canvas."""
    size = rng.uniform(*radius) * _CANVAS
    turn = rng.uniform(0, 2 * math.pi)
    x, y = rng.uniform(size, _CANVAS - size, 2)
    cos, sin = size * math.cos(turn), size * math.sin(turn)
    return [(x + cos * u - sin * v, y + sin * u + cos * v) for u, v in outline]


def _paint_shape(name: str, rng: np.random.Generator) -> Image.Image:
    """One large shape on a plain, softly lit ground."""
    hue = rng.random()
    picture = Image.new("RGB", (_CANVAS, _CANVAS), _bytes(_rgb(hue, 0.15, 0.95)))
    figure = _bytes(_rgb(hue + rng.uniform(0.3, 0.7), rng.uniform(0.5, 0.8), rng.uniform(0.45, 0.75)))
    ImageDraw.Draw(picture).polygon(_place(_OUTLINES[name], rng, (0.25, 0.4)), fill=figure)
    return picture.resize((SIDE, SIDE), Image.Resampling.LANCZOS)


def _paint_cluttered_shape(name: str, rng: np.random.Generator) -> Image.Image:
    """One small shape among strokes and shards of similar colours, under noise."""
    hue = rng.random()
    picture = Image.new("RGB", (_CANVAS, _CANVAS), _bytes(_rgb(hue, 0.25, 0.6)))
    draw = ImageDraw.Draw(picture)

    def colour() -> tuple[int, ...]:
        return _bytes(_rgb(hue + rng.normal(0, 0.12), rng.uniform(0.2, 0.6), rng.uniform(0.3, 0.9)))

    for _ in range(22):
        shard = [(float(x), float(y)) for x, y in rng.uniform(-1, 1, (3, 2))]
        draw.polygon(_place(shard, rng, (0.05, 0.16)), fill=colour())
        draw.line(_place([(-1, 0), (1, 0)], rng, (0.1, 0.35)), fill=colour(), width=int(_CANVAS * 0.012))
    figure = _bytes(_rgb(hue + 0.5 + rng.normal(0, 0.12), rng.uniform(0.3, 0.6), rng.uniform(0.5, 0.9)))
    draw.polygon(_place(_OUTLINES[name], rng, (0.11, 0.17)), fill=figure)
    small = np.asarray(picture.resize((SIDE, SIDE), Image.Resampling.LANCZOS), dtype=np.float64)
    return _image(small + rng.normal(0, 14, small.shape))


# --- textures --------------------------------------------------------------------------------------------------------


def _turned_grid(rng: np.random.Generator, period: _Point) -> tuple[np.ndarray, np.ndarray]:
    """Two coordinates of a plane turned at random, in units of a random period."""
    turn = rng.uniform(0, 2 * math.pi)
    rows, columns = np.mgrid[0:SIDE, 0:SIDE] / rng.uniform(*period)
    u = math.cos(turn) * columns + math.sin(turn) * rows + rng.random()
    return u, math.cos(turn) * rows - math.sin(turn) * columns + rng.random()


def _clouds(rng: np.random.Generator, power: float) -> np.ndarray:
    """Noise whose amplitude falls with frequency to the given power, in [0, 1]."""
    frequency = np.hypot(np.fft.fftfreq(SIDE)[:, None], np.fft.rfftfreq(SIDE)[None, :])
    frequency[0, 0] = 1.0
    spectrum = np.fft.rfft2(rng.standard_normal((SIDE, SIDE))) / frequency**power
    spectrum[0, 0] = 0.0
    field = np.fft.irfft2(spectrum, (SIDE, SIDE))
    return np.clip(0.5 + 0.2 * field / field.std(), 0, 1)


def _weave_stripes(rng: np.random.Generator) -> np.ndarray:
    u, _ = _turned_grid(rng, (10, 18))
    return 0.5 + 0.5 * np.sin(2 * math.pi * u)


def _weave_checks(rng: np.random.Generator) -> np.ndarray:
    u, v = _turned_grid(rng, (16, 28))
    return np.clip(0.5 + 4 * np.sin(2 * math.pi * u) * np.sin(2 * math.pi * v), 0, 1)


def _weave_dots(rng: np.random.Generator) -> np.ndarray:
    u, v = _turned_grid(rng, (11, 18))
    return np.clip(4 * (0.34 - np.hypot(u % 1 - 0.5, v % 1 - 0.5)) + 0.5, 0, 1)


def _weave_rings(rng: np.random.Generator) -> np.ndarray:
    """Year rings, warped as in wood."""
    u, v = _turned_grid(rng, (10, 16))
    warp = 1.6 * (_clouds(rng, 1.6) - 0.5)
    return 0.5 + 0.5 * np.sin(2 * math.pi * (np.hypot(u - rng.uniform(-3, 3), 0.45 * v) + warp))


def _paint_texture(weave: Callable[..., np.ndarray], rng: np.random.Generator) -> Image.Image:
    """A texture between two random tones of one hue, under a little noise."""
    hue = rng.random()
    dark = _rgb(hue, rng.uniform(0.3, 0.7), rng.uniform(0.2, 0.45))
    light = _rgb(hue + rng.normal(0, 0.06), rng.uniform(0.1, 0.4), rng.uniform(0.75, 0.98))
    share = weave(rng)[..., None]
    return _image((1 - share) * dark + share * light + rng.normal(0, 4, (SIDE, SIDE, 3)))


# --- colours ---------------------------------------------------------------------------------------------------------


def _paint_colour(hue: float, rng: np.random.Generator) -> Image.Image:
    """Soft clouds in shades of one colour."""
    shade = _clouds(rng, 2.0)[..., None]
    near = hue + rng.uniform(-0.025, 0.025)
    deep = _rgb(near, rng.uniform(0.75, 0.95), rng.uniform(0.5, 0.7))
    pale = _rgb(near, rng.uniform(0.45, 0.65), rng.uniform(0.88, 1.0))
    return _image((1 - shade) * deep + shade * pale)


# --- pixels ----------------------------------------------------------------------------------------------------------


def _rgb(hue: float, saturation: float, value: float) -> np.ndarray:
    return 255 * np.array(colorsys.hsv_to_rgb(hue % 1.0, saturation, value))


def _bytes(rgb: np.ndarray) -> tuple[int, ...]:
    return tuple(map(round, rgb.tolist()))


def _image(pixels: np.ndarray) -> Image.Image:
    return Image.fromarray(np.clip(np.round(pixels), 0, 255).astype(np.uint8))


_WEAVES = {
    "stripes": _weave_stripes,
    "checks": _weave_checks,
    "dots": _weave_dots,
    "wood": _weave_rings,
    "clouds": partial(_clouds, power=1.7),
    "grain": partial(_clouds, power=0.25),
}
_HUES = {"red": 0.0, "yellow": 0.15, "green": 0.36, "blue": 0.6, "violet": 0.79}
# Of every painted task, the painter of each class.
_PAINTERS: dict[str, dict[str, Painter]] = {
    "shapes": {name: partial(_paint_shape, name) for name in _OUTLINES},
    "cluttered shapes": {name: partial(_paint_cluttered_shape, name) for name in _OUTLINES},
    "textures": {name: partial(_paint_texture, weave) for name, weave in _WEAVES.items()},
    "colours": {name: partial(_paint_colour, hue) for name, hue in _HUES.items()},
}


# --- toy tasks --------------------------------------------------------------------------------------------------------


class Partition(NamedTuple):
    """One way to cut the square: in how many clusters, and which points of the grid (row by row) are positive."""

    clusters: int
    is_positive: np.ndarray


def toy_tasks(*, count: int = 64, side: int = 32, seed: int = 0) -> tuple[Task, ...]:
    """Different binary tasks on one grid of points, each point a picture of one pixel.

    The grid is cut by k-means into k clusters, k uniform from 3 to 16, and k // 2 of them, drawn at random, are
    positive. (For odd k one could round up as well: it would swap the two classes, which play the same role.) No two
    tasks are equal or each other's complement.

    Args:
        count: how many tasks.
        side: points along each side of the square; a task has side x side of them.
        seed: another seed draws other tasks.

    Example:
        >>> tasks = toy_tasks(count=3, side=12)
        >>> tasks[0]
        Task(toy 0, 144 images, 2 classes)
        >>> tasks[0].images.load(143).getpixel((0, 0))
        (11, 11, 255)
    """
    partitions = draw_partitions(count=count, side=side, seed=seed)
    points = [Image.new("RGB", (1, 1), (int(i), int(j), 255)) for i, j in _grid(side)]
    pairs = [*zip(points, partitions[0].is_positive, strict=True)]
    width = len(str(count - 1))
    first = _in_memory(from_dataset(pairs, classes=("negative", "positive")), "task2vec.toy_tasks")
    return tuple(
        replace(first, name=f"toy {number:0{width}}", targets=partition.is_positive.astype(np.int64))
        for number, partition in enumerate(partitions)
    )


def draw_partitions(*, count: int, side: int, seed: int) -> tuple[Partition, ...]:
    """The cuts behind `toy_tasks`, which know their number of clusters.

    Clustered are columns and rows, not x and y: sums of whole numbers are exact, so the centres do not depend on the
    order in which scikit-learn's threads add up their parts.
    """
    from sklearn.cluster import KMeans

    if count < 1 or seed < 0:
        raise UsageError(f"count={count} and seed={seed} are too small. Use count=1 and seed=0 or more.")
    if not MIN_SIDE <= side <= MAX_SIDE:
        raise UsageError(f"side={side} does not fit {MAX_CLUSTERS} clusters or a byte. Use {MIN_SIDE} to {MAX_SIDE}.")
    rng = np.random.default_rng(seed)
    points = _grid(side).astype(np.float64)
    partitions = []
    taken = {bytes(side * side)}  # all points in one class is no task
    for _ in range(count):
        clusters = int(rng.integers(MIN_CLUSTERS, MAX_CLUSTERS + 1))
        for _ in range(_MAX_REPEATED_CLUSTERINGS):
            start = int(rng.integers(1 << 31))
            owner = KMeans(clusters, n_init=1, random_state=start).fit_predict(points)  # type: ignore[arg-type]
            is_positive = np.isin(owner, rng.permutation(clusters)[: clusters // 2])
            # A task and its complement are the same task, so both have the key that calls the first point negative.
            key = (is_positive ^ is_positive[0]).tobytes()
            if key not in taken:
                break
        else:
            raise UsageError(
                f"a grid of side={side} has too few clusterings for {count} toy tasks. Use fewer, or a larger side."
            )
        taken.add(key)
        is_positive.setflags(write=False)
        partitions.append(Partition(clusters, is_positive))
    return tuple(partitions)


def _grid(side: int) -> np.ndarray:
    """(side * side, 2) column and row of every point, row by row."""
    rows, columns = np.indices((side, side))
    return np.stack([columns.ravel(), rows.ravel()], axis=1)
