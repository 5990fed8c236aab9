"""What each filter adds to the symmetric distance: which layers and filters set two tasks apart.

The symmetric distance is half of the squared distance between two unit vectors p and q (see `symmetric`), which is a
sum over filters: each has its part (p_k - q_k)^2 / 2, and the parts add up to the distance.
"""

import numpy as np

from task2vec.distance.kind import check_comparable, find_dead
from task2vec.distance.symmetric import direction
from task2vec.embedding import Embedding


def split_symmetric(a: Embedding, b: Embedding) -> np.ndarray:
    """(filters,) the parts that add up to the symmetric distance of two tasks; 0 where a filter is dead in both.

    Example:
        >>> from task2vec.distance.symmetric import symmetric
        >>> from task2vec.probe import FilterLayer
        >>> layers, story = (FilterLayer("conv", "convolution", 3, 9, 0.1),), {"probe_fingerprint": "p"}
        >>> prior = np.full(3, 1e-9)
        >>> values = np.array([1.0, 2.0, 1.0]), np.array([1.0, 9.0, 1.0])
        >>> a, b = (Embedding("task", "net", x, x, prior, layers, story) for x in values)
        >>> parts = split_symmetric(a, b)
        >>> int(parts.argmax()), bool(abs(parts.sum() - symmetric(a, b)) < 1e-12)
        (1, True)
    """
    check_comparable(a, b)
    counted = ~(find_dead(a) & find_dead(b))
    parts = np.zeros(len(a))
    if counted.any():
        u = np.log(a.vector[counted]) - np.log(b.vector[counted])
        p, q = direction(-np.logaddexp(0, -u)), direction(-np.logaddexp(0, u))
        parts[counted] = np.square(p - q) / 2
    return parts
