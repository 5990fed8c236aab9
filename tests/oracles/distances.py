"""Distances, diversity, neighbourhoods, trees and permutation tests by their definitions, with loops."""

import math
from collections import defaultdict
from itertools import combinations, pairwise, permutations

import numpy as np
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import spearmanr

# Every distance by its definition, from the values themselves, one pair and one filter at a time.


def cosine(a, b):
    dot, aa, bb = (math.fsum(x * y for x, y in zip(*pair, strict=True)) for pair in ((a, b), (a, a), (b, b)))
    return 1 - dot / math.sqrt(aa * bb)


def symmetric(a, b):
    return cosine([x / (x + y) for x, y in zip(a, b, strict=True)], [y / (x + y) for x, y in zip(a, b, strict=True)])


def euclidean(a, b):
    return math.dist(a, b)


def kl(a, b):
    """KL(N(0, 1/a) || N(0, 1/b)) from the textbook's formula for variances: (r - 1 - log r) / 2, r = var_a / var_b."""
    terms = []
    for x, y in zip(a, b, strict=True):
        r = (1 / x) / (1 / y)
        terms.append((r - 1 - math.log(r)) / 2)
    return math.fsum(terms) / len(terms)


def jeffreys(a, b):
    return kl(a, b) + kl(b, a)


def jensen_shannon(a, b):
    """Root of the divergence in bits, of the two scaled to sum one."""
    p, q = ([x / math.fsum(side) for x in side] for side in (a, b))
    halves = [
        x * math.log2(2 * x / (x + y)) + y * math.log2(2 * y / (x + y)) if x + y > 0 else 0.0
        for x, y in zip(p, q, strict=True)
    ]
    return math.sqrt(max(math.fsum(halves) / 2, 0))


def correlation(a, b):
    a, b = [math.log(x) for x in a], [math.log(x) for x in b]
    means = math.fsum(a) / len(a), math.fsum(b) / len(b)
    return cosine([x - means[0] for x in a], [y - means[1] for y in b])


def log_euclidean(a, b):
    return math.sqrt(math.fsum((math.log(x) - math.log(y)) ** 2 for x, y in zip(a, b, strict=True)) / len(a))


def centred_log_euclidean(a, b):
    u = [math.log(x) - math.log(y) for x, y in zip(a, b, strict=True)]
    mean = math.fsum(u) / len(u)
    return math.sqrt(math.fsum((x - mean) ** 2 for x in u) / len(u))


# Diversity by loops over pairs, and its error by leaving out one batch after the other and beginning again.


def slow_coefficient(batches, twins, distance):
    """The mean distance of any two different batches, either of which may be its twin."""
    draws = list(zip(batches, twins, strict=True)) if twins else [(one,) for one in batches]
    found = []
    for i, one in enumerate(draws):
        for j, other in enumerate(draws):
            if i != j:
                found += [distance(a, b) for a in one for b in other]
    return float(np.mean(found))


def slow_floor(batches, twins, distance):
    """The mean distance of a batch from its twin."""
    return float(np.mean([distance(one, twin) for one, twin in zip(batches, twins, strict=True)]))


def slow_cross(batches, others, distance):
    """The mean distance of a batch of the one collection from one of the other."""
    return float(np.mean([distance(one, other) for one in batches for other in others]))


def slow_error(number, *collections):
    """The standard error of number(*collections); of each collection every member is left out once.

    The members of a collection are lists (batches, or batches and twins) that lose the same place together.
    """
    variance = 0.0
    for which, collection in enumerate(collections):
        count, without = len(collection[0]), []
        for place in range(count):
            rest = [[*members[:place], *members[place + 1 :]] for members in collection]
            without.append(number(*collections[:which], rest, *collections[which + 1 :]))
        mean = sum(without) / count
        variance += (count - 1) / count * sum((one - mean) ** 2 for one in without)
    return math.sqrt(variance)


# The symmetric distance of two tasks whose logarithms differ by a normal u, by integrals from the definition.


def spread_distance(variance: float) -> float:
    """1 - E[s(u) s(-u)] / E[s(u)^2], u ~ N(0, variance), s the sigmoid: a cosine over infinitely many filters."""
    if variance == 0:
        return 0.0
    size = math.sqrt(variance)

    def mean(take) -> float:
        def density(u):
            return take(u) * math.exp(-u * u / (2 * variance)) / math.sqrt(2 * math.pi * variance)

        # In parts, so that neither the bend of the sigmoid nor that of the normal is stepped over.
        edges = sorted({0.0, *(min(12 * size, edge) for edge in (size, 4 * size, 4.0, 40.0, 12 * size))})
        ends = [-edge for edge in edges[:0:-1]] + edges
        return math.fsum(quad(density, low, high, limit=200, epsabs=0)[0] for low, high in pairwise(ends))

    # The difference 1 - cos, without cancellation: E[(s(u) - s(-u))^2] / (2 E[s(u)^2]).
    apart = mean(lambda u: math.tanh(u / 2) ** 2)
    return apart / (2 * mean(lambda u: expit(u) ** 2))


# The Mantel test pair by pair, as slow as it is plain: permute tasks, rank pairs anew, correlate.


def correlate_pairs(distances: np.ndarray, taxonomic: np.ndarray) -> float:
    """Spearman's correlation over all pairs."""
    pairs = list(combinations(range(len(distances)), 2))
    return float(spearmanr([distances[i, j] for i, j in pairs], [taxonomic[i, j] for i, j in pairs]).statistic)


def permute_tasks(distances: np.ndarray, taxonomic: np.ndarray, orders: np.ndarray) -> list[float]:
    """The correlation after each of the given permutations of the tasks of the taxonomy."""
    return [correlate_pairs(distances, taxonomic[np.ix_(order, order)]) for order in orders]


# The neighbourhood curve by trying every order of the tasks that the distances allow.


def slow_curve(distances: np.ndarray, taxonomic: np.ndarray) -> np.ndarray:
    """Mean over tasks, and over all orders of neighbours that never step nearer, of the mean of the first k."""
    count = len(distances)
    curves = []
    for task in range(count):
        others = [other for other in range(count) if other != task]
        allowed = []
        for order in permutations(others):
            steps = [distances[task][other] for other in order]
            if steps == sorted(steps):
                allowed.append([np.mean([taxonomic[task][o] for o in order[:k]]) for k in range(1, count)])
        curves.append(np.mean(allowed, axis=0))
    return np.mean(curves, axis=0)


# A taxonomy as a plain graph of neighbours: distances by walking it, one step at a time.


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


def height(taxonomy, a, b):
    """How many levels of ranks the lowest common taxon lies above the classes."""
    *_, taxon = (taxon for taxon in path_of(taxonomy, a) if taxon in path_of(taxonomy, b))
    return len(taxonomy.ranks) + 1 - (taxon[-1][0] if taxon else 0)
