"""Taxonomic distances between the tasks of a measured meta-task that are taxa of birds."""

import csv
from collections.abc import Sequence
from functools import cache
from importlib import resources

import numpy as np

from task2vec.distance import taxonomic_matrix
from task2vec.experts.measured import MeasuredTask
from task2vec.tasks.taxonomy import Taxonomy

_DATASET, _PREFIX = "cub200", "cub_"
_RANKS = ("order", "family")


def measure_taxa(tasks: Sequence[MeasuredTask]) -> np.ndarray | None:
    """(tasks, tasks) edges between the closest classes in the tree of birds; NaN where a task's place is not known.

    A task is known to be a taxon if it is called by it and has as many classes as the taxon has species. None if no
    task is one.

    Example:
        >>> names = ("cub_Piciformes", "cub_Corvidae", "cub_Parulidae", "dogs_toy")
        >>> counts = (7, 8, 31, 9)
        >>> tasks = [MeasuredTask(name, "taxa", "cub200", name, 9, count) for name, count in zip(names, counts)]
        >>> measure_taxa(tasks)[1]
        array([ 6.,  0.,  4., nan])
    """
    lineages = _read_lineages()
    classes = [_find_classes(task, lineages) for task in tasks]
    known = np.array([bool(each) for each in classes])
    if not known.any():
        return None
    found = np.full((len(tasks), len(tasks)), np.nan)
    found[np.ix_(known, known)] = taxonomic_matrix([each for each in classes if each], Taxonomy(_RANKS, lineages))
    return found


def _find_classes(task: MeasuredTask, lineages: dict[str, tuple[str, ...]]) -> list[str]:
    """The species of a task, none if it is not known to be a taxon."""
    taxon = task.name.removeprefix(_PREFIX)
    species = [name for name, taxa in lineages.items() if taxon in taxa or task.name == _DATASET]
    return species if task.dataset == _DATASET and len(species) == task.classes else []


@cache
def _read_lineages() -> dict[str, tuple[str, ...]]:
    with resources.files("task2vec.tasks").joinpath("cub200_taxonomy.csv").open(encoding="utf-8") as file:
        return {row["class_dir"]: tuple(row[rank] for rank in _RANKS) for row in csv.DictReader(file)}
