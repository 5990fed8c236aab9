"""Distances that do not come from task embeddings, as references: taxonomy, measured transfer, image domains.

Taxonomic (Achille 2019): D_tax(a, b) = min over classes i of a and j of b of d(i, j), in a tree. It is a distance
between tasks that each have a subtree of their own, as the paper's do. In general it is not: tasks that share a class
are at 0 although they differ, and a task that shares a class with each of two others breaks the triangle inequality.
The minimum over pairs needs no pairs. With m(a, v) the fewest edges from taxon v down to a class of a,
D(a, b) = min over v of m(a, v) + m(b, v); for the ultrametric, the least height of a taxon above classes of both.

Transfer (Achille 2019): D_ft(a -> b) = (E[l_a->b] - E[l_b]) / E[l_b], from measured errors. l_b is the test error on b
of a model trained on b from the common initialisation, l_a->b that of a model that starts from a solution of a. It is
neither symmetric nor positive. The paper measures l_a->b by a linear classifier on top of expert a: same formula.

Domain: how different the images of two tasks look to a probe, whatever their labels.

* cosine: between the mean features, the paper's domain baseline;
* standardised: Euclidean between the (mean, standard deviation) of the features, each in units of its standard
  deviation s over the two domains mixed half and half, s^2 = (std_a^2 + std_b^2) / 2 + (mean_a - mean_b)^2 / 4,
  averaged over the features: sqrt(mean((Δmean^2 + Δstd^2) / s^2)), between 0 and 2. It is no metric.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from task2vec.distance.distances import check_provenance
from task2vec.embedding import DomainEmbedding
from task2vec.errors import DataError, UsageError
from task2vec.tasks import Task
from task2vec.tasks.taxonomy import Taxonomy

# Far more edges than a tree has, and twice as many still fit into an int16.
_UNREACHABLE = np.int16(10_000)
TREE_KINDS = ("graph", "ultrametric")
DOMAIN_KINDS = ("cosine", "standardised")
# A feature whose spread is this part of its size or less (of squares: 1e-5 of the values) is constant but for rounding.
_ROUNDING = 1e-10


def taxonomic(a: Task | Sequence[str], b: Task | Sequence[str], taxonomy: Taxonomy, *, kind: str = "graph") -> int:
    """The distance in the tree between the closest classes of two tasks: 0 if they share a class.

    Args:
        a: A task, or the names of its classes.
        b: Another.
        taxonomy: The tree that contains all their classes.
        kind: "graph" counts edges; "ultrametric" is the height of the lowest taxon with classes of both, by its rank.

    Raises:
        DataError: The taxonomy does not contain a class.

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
    if kind not in TREE_KINDS:
        raise UsageError(f"kind={kind!r} is not a tree distance. Choose one of {', '.join(TREE_KINDS)}.")
    reach = [_find_ancestors(task, taxonomy, kind) for task in tasks]
    costs = np.full((len(tasks), len(taxonomy.depths)), _UNREACHABLE)
    for row, (taxa, cost) in enumerate(reach):
        np.minimum.at(costs[row], taxa, cost)
    distances = np.zeros((len(tasks), len(tasks)), dtype=np.int64)
    for row, (taxa, _) in enumerate(reach):
        taxa = np.unique(taxa)
        lengths = costs[:, taxa] + costs[row, taxa] if kind == "graph" else costs[:, taxa]
        distances[row] = lengths.min(axis=1)
    return distances


def _find_ancestors(task: Task | Sequence[str], taxonomy: Taxonomy, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """The taxa above the classes of a task, and the cost of each: edges down to the class, or its height."""
    ancestors = taxonomy.ancestors(task.classes if isinstance(task, Task) else task)
    if not len(ancestors):
        raise UsageError("a task without classes has no place in a taxonomy. Pass the names of its classes.")
    is_taxon = ancestors >= 0
    taxa = ancestors[is_taxon]
    if kind == "ultrametric":
        return taxa, taxonomy.heights[taxa]
    steps = taxonomy.depths[ancestors[:, -1:]] - taxonomy.depths[ancestors]
    return taxa, steps[is_taxon]


def transfer(errors: ArrayLike, own: ArrayLike | None = None) -> np.ndarray:
    """(tasks, experts) transfer distances: entry [b, a] is D_ft(a -> b), the relative error increase of b from a.

    The layout is that of `errors`, so the source is the column. For expectations over several trainings, pass the mean
    errors. Cells that were not measured (NaN) stay NaN, as does a row whose own error was not. Negative values are
    kept: transfer helped.

    Args:
        errors: (tasks, experts) test error of task b with expert a, as a share or in percent: ratios have no unit.
        own: (tasks,) E[l_b], the error of every task trained from the common initialisation; None takes the diagonal:
            expert j was trained on task j, in the same order.

    Raises:
        DataError: An error is negative or infinite, or a task's own error is 0, so that no ratio to it exists.
        UsageError: The shapes do not fit together.

    Example:
        >>> transfer([[0.2, 0.3], [0.5, 0.4]]).round(6).tolist()
        [[0.0, 0.5], [0.25, 0.0]]
        >>> transfer([[0.2, float("nan")]], own=[0.4]).tolist()
        [[-0.5, nan]]
    """
    measured = np.asarray(errors, dtype=np.float64)
    base = np.diagonal(measured) if own is None and measured.ndim == 2 else np.asarray(own, dtype=np.float64)
    if measured.ndim != 2 or base.shape != measured.shape[:1] or (own is None and len(base) != measured.shape[1]):
        raise UsageError(
            f"errors of shape {measured.shape} and own errors of shape {base.shape} do not match: rows are tasks, "
            "columns are experts, and without own= there is one expert per task, in the same order. Pass own=, the "
            "error of every task without transfer, or the transpose of errors."
        )
    for name, values, is_wrong in (("errors", measured, measured < 0), ("own", base, base <= 0)):
        cells = np.argwhere(is_wrong | np.isinf(values)).tolist()
        if cells:
            raise DataError(
                f"{name}{cells[0]} is {values[tuple(cells[0])]:g}: errors are positive numbers, and D_ft divides by a "
                "task's own error. Measure it on more test images, leave the task out, or use NaN if it was not "
                "measured."
            )
    return (measured - base[:, None]) / base[:, None]


def domain(a: DomainEmbedding, b: DomainEmbedding, *, kind: str = "cosine") -> float:
    """Distance between the domains of two tasks, 0 for a domain with itself; those of different probes are refused.

    Example:
        >>> provenance = {"probe_fingerprint": "p"}
        >>> a = DomainEmbedding("a", "net", [3.0, 0.0], [10.0, 1.0], provenance)
        >>> b = DomainEmbedding("b", "net", [3.0, 4.0], [10.0, 17.0], provenance)
        >>> round(domain(a, b), 6), round(domain(a, b, kind="standardised"), 6)
        (0.4, 1.264911)
    """
    if kind not in DOMAIN_KINDS:
        raise UsageError(f"kind={kind!r} is not a domain distance. Choose one of {', '.join(DOMAIN_KINDS)}.")
    check_provenance(a, b, "embed_domain with")
    if kind == "cosine":  # 1 - cos as |x - y|^2 / 2 of the unit vectors: no cancellation for near domains
        return float(np.square(_mean_direction(a) - _mean_direction(b)).sum() / 2)
    mean_gap, std_gap = a.mean - b.mean, a.std - b.std
    mixed = (np.square(a.std) + np.square(b.std)) / 2 + np.square(mean_gap) / 4
    varies = mixed > _ROUNDING * (a.second_moment + b.second_moment) / 2
    ratios = (np.square(mean_gap) + np.square(std_gap))[varies] / mixed[varies]
    return float(np.sqrt(ratios.sum() / len(mixed)))


def _mean_direction(domain: DomainEmbedding) -> np.ndarray:
    largest = np.abs(domain.mean).max()
    if not largest > 0:
        problem = f"every mean feature of '{domain.task}' is 0, so its domain has no direction to compare"
        raise DataError(f"{problem}. Check its images, or use kind='standardised'.")
    scaled = domain.mean / largest
    return scaled / np.linalg.norm(scaled)
