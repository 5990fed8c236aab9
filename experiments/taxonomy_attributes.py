"""Questions about the same images: families of binary tasks that differ in their labels alone.

The paper's fashion tasks ask many questions ("is it denim?") about one set of images, and domain embeddings, which see
no labels, fall into one point there. Here the questions are "is it X?" for the largest taxa X of a dataset, and for
painted images, whose attributes are drawn independently, "is it large?", "is it warm?" and so on. Each question is
asked twice, about two disjoint sets of images: an embedding that knows the task finds the same question again among
those about the other set.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import numpy as np

import task2vec as t2v
from experiments.collection import Dataset
from experiments.taxonomy_paintings import ATTRIBUTES, paint_images
from experiments.taxonomy_tree import choose_ranks

# A question needs so many images on either side in each set, and a family so many questions, to say anything.
LEAST_IMAGES, FEWEST_QUESTIONS = 10, 4
PAINTED = "painted"


@dataclass(frozen=True)
class Family:
    """The same questions about two disjoint sets of images.

    Attributes:
        name: of the dataset.
        attributes: what is asked for; one task per set and attribute.
        first: the tasks about the first set, in the order of the attributes.
        second: those about the second.
    """

    name: str
    attributes: tuple[str, ...]
    first: tuple[t2v.Task, ...]
    second: tuple[t2v.Task, ...]


def ask_about_taxa(dataset: Dataset, *, images: int, most: int, rng: np.random.Generator) -> Family | None:
    """The questions "is it X?" for the largest taxa of one rank; None if the dataset has too few of them.

    The rank is the one with most taxa of enough images, and the broadest of those.
    """
    sets = draw_sets(dataset.images, images, rng=rng)
    best: dict[str, frozenset[int]] = {}
    for column in choose_ranks(dataset).values():
        taxa = _large_taxa(dataset, column, sets)
        best = taxa if min(len(taxa), most) > len(best) else best
        best = dict(list(best.items())[:most])
    if len(best) < FEWEST_QUESTIONS:
        return None
    answers = {taxon: np.isin(dataset.images.targets, list(classes)) for taxon, classes in best.items()}
    return make_family(dataset.images, answers, sets)


def paint_family(*, images: int, seed: int) -> Family:
    """The questions about painted images with independent attributes.

    Example:
        >>> family = paint_family(images=12, seed=0)
        >>> family.attributes[:3], family.first[0].classes
        (('warm', 'large', 'round'), ('not warm', 'warm'))
    """
    pictures, answers = paint_images(2 * images, rng=np.random.default_rng([seed, 20]))
    whole = t2v.from_dataset([(picture, index % 2) for index, picture in enumerate(pictures)], name=PAINTED)
    sets = np.arange(images), np.arange(images, 2 * images)
    return make_family(whole, dict(zip(ATTRIBUTES, answers.T, strict=True)), sets)


def make_family(whole: t2v.Task, answers: Mapping[str, np.ndarray], sets: Sequence[np.ndarray]) -> Family:
    """The family of questions with these answers (one boolean per image) about two sets of image numbers."""
    sides = []
    for number, rows in enumerate(sets, start=1):
        chosen = whole.subset(np.sort(rows))
        sides.append(
            tuple(
                replace(
                    chosen,
                    name=f"{whole.name} {name}, set {number}",
                    targets=is_it[np.sort(rows)].astype(np.int64),
                    classes=(f"not {name}", name),
                    warnings=(),
                )
                for name, is_it in answers.items()
            )
        )
    return Family(whole.name, tuple(answers), *sides)


def draw_sets(task: t2v.Task, count: int, *, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Two disjoint sets of at most `count` images each, with the same number of every class in both.

    Classes give a pair of images each in turn, in random order, until there are enough or none has two left.
    """
    orders = [rng.permutation(np.flatnonzero(task.targets == kind)) for kind in range(len(task.classes))]
    pairs = []
    for turn in range(max(len(order) for order in orders) // 2):
        for kind in rng.permutation(len(orders)):
            pairs.append(orders[kind][2 * turn : 2 * turn + 2])
    chosen = np.array([pair for pair in pairs if len(pair) == 2][:count], dtype=np.int64).reshape(-1, 2)
    return chosen[:, 0], chosen[:, 1]


def _large_taxa(dataset: Dataset, column: str, sets: Sequence[np.ndarray]) -> dict[str, frozenset[int]]:
    """The taxa in a column that enough images of both sets belong to, and enough do not: the largest first."""
    numbers = {kind: number for number, kind in enumerate(dataset.images.classes)}
    taxa: dict[str, set[int]] = {}
    for row in dataset.taxonomy:
        if row[column] and row["class_dir"] in numbers:
            taxa.setdefault(row[column], set()).add(numbers[row["class_dir"]])
    counts = {taxon: _count(dataset.images, classes, sets) for taxon, classes in taxa.items()}
    fitting = [taxon for taxon, (least, most) in counts.items() if least >= LEAST_IMAGES and most >= LEAST_IMAGES]
    fitting.sort(key=lambda taxon: -counts[taxon][0])
    return {taxon: frozenset(taxa[taxon]) for taxon in fitting}


def _count(task: t2v.Task, classes: AbstractSet[int], sets: Sequence[np.ndarray]) -> tuple[int, int]:
    """The fewest images, over the sets, that are of these classes, and that are not."""
    inside = [int(np.isin(task.targets[rows], list(classes)).sum()) for rows in sets]
    return min(inside), min(len(rows) - count for rows, count in zip(sets, inside, strict=True))
