"""The taxonomic distance of Achille 2019: D_tax(a, b) = min over classes i of a and j of b of d(i, j), in a tree.

The paper calls it a proper distance. It is one between tasks that each have a subtree of their own, as the paper's do.
In general it is not: tasks that share a single class have distance 0 although they differ, and the task that shares one
class with each of two others lies between them for nothing, against the triangle inequality.

The minimum over pairs needs no pairs. With m(a, v) the fewest edges from taxon v down to a class of a, the way from a
class of a to one of b turns at a taxon above both, and no shorter way turns elsewhere: D(a, b) = min over v of
m(a, v) + m(b, v). For the ultrametric, it is the least height of a taxon that has classes of both below it.
"""

from collections.abc import Sequence

import numpy as np

from task2vec.errors import UsageError
from task2vec.tasks import Task
from task2vec.tasks.taxonomy import Taxonomy, check_kind

# Far more edges than a tree has, and twice as many still fit into an int16.
_NO_WAY = np.int16(10_000)


def taxonomic(a: Task | Sequence[str], b: Task | Sequence[str], taxonomy: Taxonomy, *, kind: str = "graph") -> int:
    """The distance in the tree between the closest classes of two tasks: 0 for a task with itself.

    It is symmetric, and 0 as soon as the tasks share a class; only tasks that each have a subtree of their own are sure
    to obey the triangle inequality.

    Args:
        a: A task, or the names of its classes.
        b: Another.
        taxonomy: The tree that knows all their classes.
        kind: "graph" counts edges; "ultrametric" is the height of the lowest taxon with classes of both, by its rank.

    Raises:
        DataError: The taxonomy does not know a class.

    Example:
        >>> orders = {"raven": "Passeriformes", "robin": "Passeriformes", "kiwi": "Apterygiformes"}
        >>> tree = Taxonomy(("order",), {bird: (order,) for bird, order in orders.items()})
        >>> taxonomic(["raven", "kiwi"], ["robin"], tree)
        2
        >>> taxonomic(["raven", "robin"], ["kiwi"], tree, kind="ultrametric")
        2
    """
    return int(taxonomic_matrix([a, b], taxonomy, kind=kind)[0, 1])


def taxonomic_matrix(tasks: Sequence[Task | Sequence[str]], taxonomy: Taxonomy, *, kind: str = "graph") -> np.ndarray:
    """(tasks, tasks) taxonomic distances between all tasks, as int64.

    Example:
        >>> tree = Taxonomy(("order",), {"raven": ("Passeriformes",), "robin": ("Passeriformes",), "kiwi": ("",)})
        >>> taxonomic_matrix([["raven"], ["robin"], ["kiwi"]], tree).tolist()
        [[0, 2, 3], [2, 0, 3], [3, 3, 0]]
    """
    check_kind(kind)
    reach = [_reach(task, taxonomy, kind) for task in tasks]
    costs = np.full((len(tasks), len(taxonomy.depths)), _NO_WAY)
    for row, (taxa, cost) in enumerate(reach):
        np.minimum.at(costs[row], taxa, cost)
    found = np.zeros((len(tasks), len(tasks)), dtype=np.int64)
    for row, (taxa, _) in enumerate(reach):
        taxa = np.unique(taxa)
        ways = costs[:, taxa] + costs[row, taxa] if kind == "graph" else costs[:, taxa]
        found[row] = ways.min(axis=1)
    return found


def _reach(task: Task | Sequence[str], taxonomy: Taxonomy, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """The taxa above the classes of a task, and what each costs: edges down to the class, or its height."""
    classes = task.classes if isinstance(task, Task) else task
    ancestors = taxonomy.ancestors(classes)
    if not len(ancestors):
        raise UsageError("a task without classes has no place in a taxonomy. Pass the names of its classes.")
    is_taxon = ancestors >= 0
    taxa = ancestors[is_taxon]
    if kind == "ultrametric":
        return taxa, taxonomy.heights[taxa]
    steps = taxonomy.depths[ancestors[:, -1:]] - taxonomy.depths[ancestors]
    return taxa, steps[is_taxon]
