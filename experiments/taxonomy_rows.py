"""Matrices of distances become rows of numbers: what the tables hold, and what claims and figures are made of."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np

import task2vec as t2v
from experiments.taxonomy import DOMAIN, Embedded, describe_tasks, measure_domains, measure_spaces
from experiments.taxonomy_attributes import Family
from experiments.taxonomy_measures import (
    ALL,
    Agreement,
    agree,
    agree_within,
    chance_shares,
    mean_interval,
    nearest_shares,
)
from experiments.taxonomy_retrieval import retrieve, spread_domains
from experiments.taxonomy_tree import Forest
from task2vec.plots import curve_area

# Kinds of neighbours: of the same dataset, of the same group, of the same group among those of the same dataset.
SAME_DATASET, SAME_GROUP, SAME_GROUP_WITHIN = "same dataset", "same group", "same group within dataset"

Row = dict[str, Any]


@dataclass(frozen=True)
class Agreements:
    """All that was measured on a collection.

    Attributes:
        spaces: distances between the tasks by the name of the space; the methods first, then domains last.
        methods: names of the spaces that are the symmetric distance of a method, the main one first.
        forest: the tree.
        datasets: one per task.
        found: the agreement by kind of tree and scope.
        tasks: a row per task.
        measures: a row per number.
    """

    spaces: dict[str, np.ndarray]
    methods: tuple[str, ...]
    forest: Forest
    datasets: tuple[str, ...]
    found: dict[tuple[str, str], Agreement]
    tasks: list[Row]
    measures: list[Row]

    def look_up(self, measure: str, space: str, *, tree: str = "") -> Row:
        """The row of one number."""
        key = (measure, space, tree)
        return next(row for row in self.measures if (row["measure"], row["space"], row["tree"]) == key)


def compare_spaces(
    embedded: Embedded,
    forest: Forest,
    datasets: Sequence[str],
    *,
    permutations: int = 9999,
    seed: int = 0,
    device: str | None = None,
) -> Agreements:
    """Every space beside the tree: correlations, areas and neighbours."""
    spaces = measure_spaces(embedded, device=device) | measure_domains(embedded.domains)
    matrices = list(spaces.values())
    found: dict[tuple[str, str], Agreement] = {}
    for kind, taxonomic in forest.distances.items():
        found[kind, ALL] = agree(matrices, taxonomic, permutations=permutations, seed=seed)
        within = agree_within(matrices, taxonomic, datasets, permutations=permutations, seed=seed)
        found |= {(kind, scope): agreement for scope, agreement in within.items()}
    measures = [
        *_tell_correlations(list(spaces), found),
        *(
            {
                "measure": "area",
                "space": name,
                "tree": kind,
                "scope": ALL,
                "value": curve_area(space, taxonomic),
                "count": len(datasets),
            }
            for kind, taxonomic in forest.distances.items()
            for name, space in spaces.items()
        ),
        *_tell_neighbours(spaces, forest, datasets, seed=seed),
    ]
    columns = ("measure", "space", "tree", "scope", "value", "low", "high", "p", "chance", "count")
    return Agreements(
        spaces,
        tuple(embedded.by_method),
        forest,
        tuple(datasets),
        found,
        describe_tasks(embedded, datasets, forest),
        [{column: row.get(column) for column in columns} for row in measures],
    )


def list_pairs(agreements: Agreements) -> list[Row]:
    """One row per pair of tasks: who they are, both distances in the tree, and the distance in every space."""
    tasks, forest = agreements.tasks, agreements.forest
    columns = {**forest.distances, **agreements.spaces}
    return [
        {
            "task": tasks[i]["task"],
            "other": tasks[j]["task"],
            "dataset": tasks[i]["dataset"],
            "other_dataset": tasks[j]["dataset"],
            **{name: matrix[i, j] for name, matrix in columns.items()},
        }
        for i, j in combinations(range(len(tasks)), 2)
    ]


def compare_questions(
    family: Family, embedded: Embedded, *, permutations: int = 9999, seed: int = 0, device: str | None = None
) -> tuple[list[Row], list[Row]]:
    """A row per space of how well questions are found again, and a row per pair of questions in the main spaces."""
    k = len(family.attributes)
    domains = {name: spread_domains(matrix, k) for name, matrix in measure_domains(embedded.domains[::2]).items()}
    spaces = measure_spaces(embedded, device=device) | domains
    changed = count_changed(embedded.domains)
    rows = []
    for name, matrix in spaces.items():
        found = retrieve(matrix, permutations=permutations, seed=seed)
        told = {"family": family.name, "space": name, **asdict(found), "chance": found.chance}
        images = {"images_per_set": len(family.first[0]), "domain_features_changed": changed}
        rows.append({**told, **images})
    shown = [name for name in spaces if "," not in name or name == f"{DOMAIN}, cosine"]
    return rows, [row for name in shown for row in _list_questions(family, name, spaces[name])]


def list_asked(family: Family, embedded: Embedded) -> list[Row]:
    """A row per question and set: how many images say yes, and how hard it is; none is found that cannot be learned."""
    rows = []
    names = [(name, side) for side in (1, 2) for name in family.attributes]
    for (name, side), task, one in zip(names, embedded.tasks, embedded.by_method[embedded.main], strict=True):
        told = {"family": family.name, "question": name, "set": side, "images": len(task), "yes": int(task.counts[1])}
        head = one.provenance["head"]
        rows.append({**told, "error": head["cv_error"], "l2": head["l2"], "norm": one.norm()})
    return rows


def count_changed(domains: Sequence[t2v.DomainEmbedding]) -> int:
    """How many features differ between the domains of two questions about the same images, over both sets."""
    pairs = zip(domains[::2], domains[1::2], strict=True)
    return sum(int(((a.mean != b.mean) | (a.second_moment != b.second_moment)).sum()) for a, b in pairs)


def _list_questions(family: Family, space: str, matrix: np.ndarray) -> list[Row]:
    k, names = len(family.attributes), family.attributes
    rows = []
    for i, j in combinations(range(2 * k), 2):
        is_beside = i // k == j // k
        kind = "beside" if is_beside else "same" if i % k == j % k else "other"
        about = {"family": family.name, "space": space, "kind": kind, "sets": f"{i // k + 1}{j // k + 1}"}
        rows.append({**about, "question": names[i % k], "other": names[j % k], "distance": float(matrix[i, j])})
    return rows


def _tell_correlations(names: Sequence[str], found: dict[tuple[str, str], Agreement]) -> list[Row]:
    rows = []
    for (kind, scope), agreement in found.items():
        for number, name in enumerate(names):
            low, high = agreement.interval(number)
            row = {"measure": "spearman", "space": name, "tree": kind, "scope": scope, "count": agreement.pairs}
            told = {"value": float(agreement.rho[number]), "low": low, "high": high, "p": float(agreement.p[number])}
            rows.append({**row, **told})
    return rows


def _tell_neighbours(spaces: dict[str, np.ndarray], forest: Forest, datasets: Sequence[str], *, seed: int) -> list[Row]:
    """How often the nearest task is a relative, over the tasks that have one."""
    groups = [" > ".join((*group.above, group.name)) for group in forest.groups]
    kinds = {
        SAME_DATASET: (datasets, None),
        SAME_GROUP: (groups, None),
        SAME_GROUP_WITHIN: (groups, datasets),
    }
    rows = []
    for kind, (labels, among) in kinds.items():
        chance = chance_shares(labels, among=among)
        # Where all of a dataset are of one group, the nearest of them cannot be of another.
        counted = np.isfinite(chance) & (chance < 1)
        if not counted.any():
            continue
        for name, matrix in spaces.items():
            shares = nearest_shares(matrix, labels, among=among)[counted]
            low, high = mean_interval(shares, seed=seed)
            about = {"measure": kind, "space": name, "tree": "", "scope": ALL, "count": int(counted.sum())}
            told = {"value": float(shares.mean()), "low": low, "high": high, "chance": float(chance[counted].mean())}
            rows.append({**about, **told})
    return rows
