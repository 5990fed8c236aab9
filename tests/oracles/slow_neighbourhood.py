"""The neighbourhood curve by trying every order of the tasks that the distances allow."""

from itertools import permutations

import numpy as np


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
