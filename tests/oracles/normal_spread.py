"""The symmetric distance of two tasks whose logarithms differ by a normal u, by integrals from the definition."""

import math
from itertools import pairwise

from scipy.integrate import quad


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
    return apart / (2 * mean(lambda u: _sigmoid(u) ** 2))


def _sigmoid(u: float) -> float:
    return 1 / (1 + math.exp(-u)) if u >= 0 else math.exp(u) / (1 + math.exp(u))
