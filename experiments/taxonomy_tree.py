"""The tree that all tasks of a collection stand in, and the group that each of them belongs to.

The ranks of a dataset are the columns of its `taxonomy.csv`: those that its tasks were cut by, in the very column that
they follow (`order_traditional` and not `order`, if so), and those named by a rank of biology. What stands above a
dataset of one kind of animal is not in such a table; for the datasets of the paper's field it is known here, others
have it in further columns (kingdom, phylum, class, ...). A class bears the name of its dataset in the tree, since two
datasets may number theirs alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

import task2vec as t2v
from experiments.collection import Collection, Dataset, Member
from task2vec.errors import DataError
from task2vec.tasks.taxonomy import KNOWN_RANKS, Taxon

_VERTEBRATE = {"kingdom": "Animalia", "phylum": "Chordata"}
ABOVE: dict[str, Mapping[str, str]] = {
    "cub200": {**_VERTEBRATE, "class": "Aves"},
    "dogs": {**_VERTEBRATE, "class": "Mammalia", "order": "Carnivora", "family": "Canidae"},
}


@dataclass(frozen=True)
class Forest:
    """The tree, the distances in it between tasks, and the group of every task.

    Attributes:
        tree: of all classes of all datasets.
        distances: between the tasks, by kind: "graph" and "ultrametric".
        groups: the smallest taxon that holds a task and more: Passeriformes for the task of a family of songbirds.
    """

    tree: t2v.Taxonomy
    distances: dict[str, np.ndarray]
    groups: tuple[Taxon, ...]


def plant(collection: Collection) -> Forest:
    """The tree of a collection, with its tasks in it."""
    if not collection.datasets:
        raise DataError(
            "these tasks were not cut by taxon, so no tree says which of them are relatives. Give a folder with a "
            "tasks.csv (dataset, taxon_level, taxon) and a <dataset>/taxonomy.csv (class_dir, order, family, ...)."
        )
    tree = join_datasets(collection.datasets)
    classes = [name_classes(member) for member in collection.members]
    distances = {kind: t2v.distance.taxonomic_matrix(classes, tree, kind=kind) for kind in ("graph", "ultrametric")}
    return Forest(tree, distances, tuple(find_group(names, tree) for names in classes))


def join_datasets(datasets: Sequence[Dataset]) -> t2v.Taxonomy:
    """One tree of the taxonomies of all datasets, by the ranks that their tasks follow."""
    parts, above = {}, {}
    for dataset in datasets:
        name, ranks = dataset.images.name, choose_ranks(dataset)
        part = t2v.read_taxonomy(dataset.place, "class_dir", ranks=ranks)
        parts[name] = t2v.Taxonomy(part.ranks, {_qualify(name, kind): path for kind, path in part.lineages.items()})
        broadest = min((KNOWN_RANKS.index(rank) for rank in ranks if rank in KNOWN_RANKS), default=len(KNOWN_RANKS))
        above[name] = {r: taxon for r, taxon in ABOVE.get(name, {}).items() if KNOWN_RANKS.index(r) < broadest}
    return t2v.Taxonomy.join(parts, above=above)


def choose_ranks(dataset: Dataset) -> dict[str, str]:
    """The column of every rank of a dataset, the broadest first; ranks that biology does not know come last.

    Example:
        >>> from pathlib import Path
        >>> row = {"class_dir": "husky", "family": "Canidae", "order": "?", "order_2011": "Carnivora", "use": "work"}
        >>> task = t2v.sample_tasks(images_per_task=20)[0]
        >>> choose_ranks(Dataset(task, (row,), Path("t.csv"), {"use": "use", "order": "order_2011"}))
        {'order': 'order_2011', 'family': 'family', 'use': 'use'}
    """
    followed: dict[str, str] = {}
    for level, column in dataset.columns.items():
        followed.setdefault(_find_rank(level), column)
    known = {rank: rank for rank in KNOWN_RANKS if rank in dataset.taxonomy[0]}
    ranks = known | followed
    order = [*(rank for rank in KNOWN_RANKS if rank in ranks), *(rank for rank in ranks if rank not in KNOWN_RANKS)]
    return {rank: ranks[rank] for rank in order}


def name_classes(member: Member) -> list[str]:
    """The classes of a task as the tree knows them."""
    return [_qualify(member.dataset, kind) for kind in member.task.classes]


def find_group(classes: Sequence[str], tree: t2v.Taxonomy) -> Taxon:
    """The smallest taxon that holds all of the classes and others too; the root if there are no others.

    It is the parent of their lowest common ancestor, but for orders of a single family and the like: a taxon that has
    the same classes under another name is no relative.

    Example:
        >>> ranks = {"wren": ("Passeriformes", "A"), "lark": ("Passeriformes", "B"), "grebe": ("Podicipediformes", "C")}
        >>> tree = t2v.Taxonomy(("order", "family"), ranks, root="Aves")
        >>> print(find_group(["wren"], tree), find_group(["grebe"], tree))
        Passeriformes (order) Aves
    """
    everything, rows = tree.ancestors(tree.classes), tree.ancestors(classes)
    sizes = np.bincount(everything[everything >= 0])
    lineage = rows[0][rows[0] >= 0]
    shared = [place for place, number in enumerate(lineage) if (rows == number).any(axis=1).all()]
    larger = [place for place in shared if sizes[lineage[place]] > sizes[lineage[shared[-1]]]]
    return tree.lineage(classes[0])[larger[-1] if larger else 0]


def _find_rank(level: str) -> str:
    """The rank of biology that a level means (`order_2011` is an order), or the level itself."""
    return next((rank for rank in KNOWN_RANKS if level == rank or level.startswith(f"{rank}_")), level)


def _qualify(dataset: str, kind: str) -> str:
    return f"{dataset}/{kind}"
