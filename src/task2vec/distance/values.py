"""Distances between the embeddings as they are: cosine, Euclidean, and Jensen-Shannon of what sums to one.

The largest filters decide all three; the paper warns of the Euclidean one for that reason. They are here to be compared
with. Everything is scaled by the largest value first, so nothing overflows.

Example:
    >>> import numpy as np
    >>> a, b = np.log([3.0, 4.0]), np.log([4.0, 3.0])
    >>> round(cosine_from_logs(a, b), 6), round(euclidean_from_logs(a, b), 6)
    (0.04, 1.414214)
    >>> round(jensen_shannon_from_logs(a, b) ** 2, 6)  # the divergence itself, in bits
    0.014772
"""

import numpy as np

from task2vec.distance.kind import Distance
from task2vec.distance.symmetric import direction

_LOG_2 = float(np.log(2))


def cosine_from_logs(log_a: np.ndarray, log_b: np.ndarray) -> float:
    """1 - cos(a, b), between 0 and 1 since all entries are positive."""
    return float(min(np.square(direction(log_a) - direction(log_b)).sum() / 2, 1.0))


def euclidean_from_logs(log_a: np.ndarray, log_b: np.ndarray) -> float:
    """|a - b|."""
    largest = max(log_a.max(), log_b.max())
    return float(np.linalg.norm(np.exp(log_a - largest) - np.exp(log_b - largest)) * np.exp(largest))


def jensen_shannon_from_logs(log_a: np.ndarray, log_b: np.ndarray) -> float:
    """Root of the Jensen-Shannon divergence in bits between a / sum(a) and b / sum(b): between 0 and 1.

    The root is returned, and not the divergence, because the root is a metric (Endres and Schindelin 2003).
    """
    log_p, log_q = log_a - np.logaddexp.reduce(log_a), log_b - np.logaddexp.reduce(log_b)
    v = np.abs(log_p - log_q)
    # With t = (p - q) / (p + q) a filter adds (p + q) / 4 ((1 + t) log(1 + t) + (1 - t) log(1 - t)). In v = 2 atanh(t)
    # this is (p + q) / 4 (v t - 2 log cosh(v / 2)), which never cancels for small v in its first form.
    t = np.tanh(v / 2)
    near = np.log1p(-np.square(np.minimum(t, 0.5)))
    far = 2 * _LOG_2 - v - 2 * np.log1p(np.exp(-v))
    bits = (np.exp(log_p) + np.exp(log_q)) / 4 * (v * t + np.where(t < 0.5, near, far))
    return float(np.sqrt(np.clip(bits.sum() / _LOG_2, 0, 1)))


cosine = Distance("cosine", cosine_from_logs, is_symmetric=True, is_metric=False, highest=1.0)
euclidean = Distance("euclidean", euclidean_from_logs, is_symmetric=True, is_metric=True)
jensen_shannon = Distance("jensen_shannon", jensen_shannon_from_logs, is_symmetric=True, is_metric=True, highest=1.0)
