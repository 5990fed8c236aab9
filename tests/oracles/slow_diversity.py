"""Diversity by loops over pairs, and its error by leaving out one batch after the other and beginning again."""

import math

import numpy as np


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
