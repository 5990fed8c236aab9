"""Label sets of the same images: families of binary attribute tasks that differ in their labels alone.

The paper's fashion tasks have many attributes ("is it denim?") on one set of images, and domain embeddings, which see
no labels, collapse into one point there. Here the attributes are the largest taxa of a dataset ("is it a warbler?")
and, for painted images, whose attributes are drawn independently, "large", "warm" and so on. Each label set is used
twice, on two disjoint sets of images: an embedding that depends on the labels finds the same label set again among
those of the other images.
"""

import colorsys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

import task2vec as t2v
from experiments.collection import Dataset
from task2vec.errors import DataError
from task2vec.experts import features_of_tasks

# A label set needs so many images on either side in each set, and a family so many label sets.
MIN_IMAGES, MIN_LABEL_SETS = 10, 4
ATTRIBUTES = ("warm", "large", "round", "on the left", "striped", "on dark ground")
SIDE = 96
# Painted this much larger and then shrunk: soft edges.
_OVERSAMPLING = 3


@dataclass(frozen=True)
class Family:
    """The same attributes of two disjoint sets of images.

    Attributes:
        name: of the dataset.
        attributes: one task per set and attribute.
        tasks: those of the first set in the order of the attributes, then those of the second.
    """

    name: str
    attributes: tuple[str, ...]
    tasks: tuple[t2v.Task, ...]


def make_taxon_family(
    dataset: Dataset, columns: Sequence[str], *, images: int, most: int, rng: np.random.Generator
) -> Family | None:
    """The attributes "is it X?" for the largest taxa of one rank; None if the dataset has too few of them.

    The rank is the one with most taxa of enough images, and the broadest of those.
    """
    sets = draw_sets(dataset.images, images, rng=rng)
    best: dict[str, list[int]] = {}
    for column in columns:
        taxa = _find_large_taxa(dataset, column, sets)
        best = taxa if min(len(taxa), most) > len(best) else best
        best = dict(list(best.items())[:most])
    if len(best) < MIN_LABEL_SETS:
        return None
    labels = {taxon: np.isin(dataset.images.targets, classes) for taxon, classes in best.items()}
    return make_family(dataset.images, labels, sets)


def make_class_family(folder: Path, *, images: int, most: int, rng: np.random.Generator) -> Family:
    """The attributes "is it X?" for the largest classes of a folder; a DataError if it has too few of them."""
    whole = t2v.read_folder(folder)
    classes = tuple({"class": name, "class_dir": name} for name in whole.classes)
    family = make_taxon_family(Dataset(whole, classes, folder), ["class"], images=images, most=most, rng=rng)
    if family is None:
        raise DataError(
            f"'{folder}' has fewer than {MIN_LABEL_SETS} classes of {2 * MIN_IMAGES} images, so its attributes cannot "
            "be told apart on two sets of images. Leave it out of --label-sets."
        )
    return family


def make_painted_family(*, images: int, seed: int) -> Family:
    """The attributes of painted images, independent of one another.

    Example:
        >>> family = make_painted_family(images=12, seed=0)
        >>> family.attributes[:3], family.tasks[0].classes
        (('warm', 'large', 'round'), ('not warm', 'warm'))
    """
    pictures, labels = paint_images(2 * images, rng=np.random.default_rng([seed, 20]))
    whole = t2v.from_dataset([(picture, index % 2) for index, picture in enumerate(pictures)], name="painted")
    sets = np.arange(images), np.arange(images, 2 * images)
    return make_family(whole, dict(zip(ATTRIBUTES, labels.T, strict=True)), sets)


def make_family(whole: t2v.Task, labels: Mapping[str, np.ndarray], sets: Sequence[np.ndarray]) -> Family:
    """The family of attributes with these labels (one boolean per image) on two sets of image numbers."""
    tasks = []
    for number, rows in enumerate(sets, start=1):
        chosen = whole.subset(np.sort(rows))
        for name, values in labels.items():
            targets = values[np.sort(rows)].astype(np.int64)
            about = {"name": f"{whole.name} {name}, set {number}", "classes": (f"not {name}", name), "notes": ()}
            tasks.append(replace(chosen, targets=targets, **about))
    return Family(whole.name, tuple(labels), tuple(tasks))


def measure_class_means(family: Family, probe: t2v.Probe, *, device: str | None = None) -> np.ndarray:
    """(tasks, features) squared differences of the mean features of both classes of every task.

    This is the simplest embedding that sees the labels: the network runs once over the images, without a head and
    without a backward pass. Differences are squared, since the order of the two classes means nothing.
    """
    squares = []
    for task, features in zip(family.tasks, features_of_tasks(probe, family.tasks, device=device), strict=True):
        values = features.cpu().numpy().astype(np.float64)
        is_positive = task.targets == 1
        squares.append((values[is_positive].mean(axis=0) - values[~is_positive].mean(axis=0)) ** 2)
    return np.array(squares)


def draw_sets(task: t2v.Task, count: int, *, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Two disjoint sets of image numbers, at most `count` each, with equally many of every class, drawn in turn."""
    orders = [rng.permutation(np.flatnonzero(task.targets == kind)) for kind in range(len(task.classes))]
    pairs = []
    for turn in range(max(len(order) for order in orders) // 2):
        for kind in rng.permutation(len(orders)):
            pairs.append(orders[kind][2 * turn : 2 * turn + 2])
    chosen = np.array([pair for pair in pairs if len(pair) == 2][:count], dtype=np.int64).reshape(-1, 2)
    return chosen[:, 0], chosen[:, 1]


def _find_large_taxa(dataset: Dataset, column: str, sets: Sequence[np.ndarray]) -> dict[str, list[int]]:
    """The taxa in a column that enough images of both sets belong to, and enough do not: the largest first."""
    numbers = {kind: number for number, kind in enumerate(dataset.images.classes)}
    taxa: dict[str, list[int]] = {}
    for row in dataset.taxonomy:
        if row[column] and row["class_dir"] in numbers:
            taxa.setdefault(row[column], []).append(numbers[row["class_dir"]])
    counts = {
        taxon: [int(np.isin(dataset.images.targets[rows], classes).sum()) for rows in sets]
        for taxon, classes in taxa.items()
    }
    most = len(sets[0]) - MIN_IMAGES
    fitting = [taxon for taxon, inside in counts.items() if min(inside) >= MIN_IMAGES and max(inside) <= most]
    return {taxon: taxa[taxon] for taxon in sorted(fitting, key=lambda taxon: -min(counts[taxon]))}


def paint_images(count: int, *, rng: np.random.Generator) -> tuple[list[Image.Image], np.ndarray]:
    """So many images, and their attributes (images, attributes) as booleans; half of each half have each.

    Example:
        >>> pictures, labels = paint_images(8, rng=np.random.default_rng(0))
        >>> len(pictures), labels.sum(axis=0).tolist()
        (8, [4, 4, 4, 4, 4, 4])
    """
    halves = [count // 2, count - count // 2]
    coins = [[rng.permutation(np.arange(half) % 2 == 0) for half in halves] for _ in ATTRIBUTES]
    labels = np.stack([np.concatenate(pair) for pair in coins], axis=1)
    return [_paint(row.tolist(), rng) for row in labels], labels


def _paint(labels: list[bool], rng: np.random.Generator) -> Image.Image:
    """One shape on a noisy background."""
    is_warm, is_large, is_round, is_left, is_striped, is_dark = labels
    canvas = SIDE * _OVERSAMPLING
    hue = rng.uniform(-0.06, 0.12) if is_warm else rng.uniform(0.48, 0.68)
    saturation, value = rng.uniform(0.6, 0.9), rng.uniform(0.55, 0.9)
    colour = 255 * np.array(colorsys.hsv_to_rgb(hue % 1.0, saturation, value))
    background = rng.uniform(20, 60) if is_dark else rng.uniform(190, 240)
    radius = canvas * (rng.uniform(0.19, 0.24) if is_large else rng.uniform(0.09, 0.13))
    x = canvas * rng.uniform(0.25, 0.36) if is_left else canvas * rng.uniform(0.64, 0.75)
    y = canvas * rng.uniform(0.3, 0.7)
    mask = Image.new("L", (canvas, canvas), 0)
    if is_round:
        ImageDraw.Draw(mask).ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)
    else:
        ImageDraw.Draw(mask).regular_polygon((x, y, 1.2 * radius), 4, rotation=int(rng.integers(90)), fill=255)
    share = np.asarray(mask.resize((SIDE, SIDE), Image.Resampling.LANCZOS), dtype=np.float64)[..., None] / 255
    shape = colour * (_weave(rng) if is_striped else 1.0)
    pixels = (1 - share) * background + share * shape + rng.normal(0, 5, (SIDE, SIDE, 3))
    return Image.fromarray(np.clip(np.round(pixels), 0, 255).astype(np.uint8))


def _weave(rng: np.random.Generator) -> np.ndarray:
    """Stripes in a random direction, between 0.35 and 1."""
    turn, period = rng.uniform(0, np.pi), rng.uniform(5, 8)
    rows, columns = np.mgrid[0:SIDE, 0:SIDE]
    wave = np.sin(2 * np.pi * (np.cos(turn) * columns + np.sin(turn) * rows) / period)
    return np.where(wave > 0, 1.0, 0.35)[..., None]
