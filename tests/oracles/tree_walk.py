"""A taxonomy as a plain graph of neighbours: distances by walking it, one step at a time."""

from collections import defaultdict
from itertools import pairwise


def path_of(taxonomy, leaf):
    """The taxa from the root to a class, each written as all (level, name) down to it."""
    steps = [(level, name) for level, name in enumerate(taxonomy.lineages[leaf], start=1) if name]
    steps.append((len(taxonomy.ranks) + 1, leaf))
    return [tuple(steps[:count]) for count in range(len(steps) + 1)]


def walk(taxonomy, a, b):
    """The number of edges from class a to class b, by breadth-first search."""
    neighbours = defaultdict(set)
    for leaf in taxonomy.lineages:
        path = path_of(taxonomy, leaf)
        for parent, child in pairwise(path):
            neighbours[parent].add(child)
            neighbours[child].add(parent)
    start, goal = path_of(taxonomy, a)[-1], path_of(taxonomy, b)[-1]
    seen, front, steps = {start}, {start}, 0
    while goal not in seen:
        front = {there for here in front for there in neighbours[here]} - seen
        seen |= front
        steps += 1
    return steps


def common_taxon(taxonomy, names):
    """The longest path that the classes share."""
    first, *others = [path_of(taxonomy, name) for name in names]
    return max((taxon for taxon in first if all(taxon in path for path in others)), key=len)


def height(taxonomy, a, b):
    """How many levels of ranks the lowest common taxon lies above the classes."""
    taxon = common_taxon(taxonomy, [a, b])
    return len(taxonomy.ranks) + 1 - (taxon[-1][0] if taxon else 0)
