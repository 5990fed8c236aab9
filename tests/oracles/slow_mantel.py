"""The Mantel test pair by pair, as slow as it is plain: permute tasks, rank pairs anew, correlate."""

from itertools import combinations

import numpy as np
from scipy.stats import spearmanr


def correlate_pairs(distances: np.ndarray, taxonomic: np.ndarray) -> float:
    """Spearman's correlation over all pairs."""
    pairs = list(combinations(range(len(distances)), 2))
    return float(spearmanr([distances[i, j] for i, j in pairs], [taxonomic[i, j] for i, j in pairs]).statistic)


def permute_tasks(distances: np.ndarray, taxonomic: np.ndarray, orders: np.ndarray) -> list[float]:
    """The correlation after each of the given permutations of the tasks of the taxonomy."""
    return [correlate_pairs(distances, taxonomic[np.ix_(order, order)]) for order in orders]
