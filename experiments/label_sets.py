"""Label sets of the same images: families of binary attribute tasks that differ in their labels alone.

The paper's fashion tasks have many attributes ("is it denim?") on one set of images, and domain embeddings, which see
no labels, collapse into one point there. Here the attributes are the largest taxa of a dataset ("is it a warbler?").
Each label set is used twice, on two disjoint sets of images: an embedding that depends on the labels finds the same
label set again among those of the other images. Commit 507e0f77 also has synthetic images, whose attributes are drawn
independently.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import task2vec as t2v
from experiments.collection import Dataset
from task2vec.errors import DataError
from task2vec.experts import features_of_tasks

# A label set needs so many images on either side in each set, and a family so many label sets.
MIN_IMAGES, MIN_LABEL_SETS = 10, 4


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
