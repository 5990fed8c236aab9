"""Distances between log-embeddings, where every filter counts alike whatever its scale.

Example:
    >>> import numpy as np
    >>> a, b = np.log([1.0, 2.0, 4.0]), np.log([2.0, 4.0, 8.0])
    >>> round(log_euclidean_from_logs(a, b), 6)  # log 2 everywhere
    0.693147
    >>> round(centred_log_euclidean_from_logs(a, b), 6), round(correlation_from_logs(a, b), 6)  # a common factor
    (0.0, 0.0)
"""

import numpy as np

from task2vec.distance.kind import Distance


def log_euclidean_from_logs(log_a: np.ndarray, log_b: np.ndarray) -> float:
    """Root mean square of u = log a - log b: how many e-folds the two are apart in a typical filter."""
    return float(np.sqrt(np.mean(np.square(log_a - log_b))))


def centred_log_euclidean_from_logs(log_a: np.ndarray, log_b: np.ndarray) -> float:
    """Standard deviation of u = log a - log b, blind to a common factor: its square is 2 d_sym for near tasks.

    Tasks that differ by a factor are at distance 0, so it is a metric of the embeddings up to scale (Aitchison's).
    """
    u = log_a - log_b
    return 0.0 if np.ptp(u) == 0 else float(np.std(u))


def correlation_from_logs(log_a: np.ndarray, log_b: np.ndarray) -> float:
    """1 - Pearson's correlation of the logs, between 0 and 2; of the logs, since a few filters rule the values.

    A constant embedding has no shape to correlate: it is at 0 from another constant one and at 1 from all others.
    """
    shapes = [_shape(logs) for logs in (log_a, log_b)]
    if not all(shape.any() for shape in shapes):
        return 1.0 if any(shape.any() for shape in shapes) else 0.0
    a, b = (shape / np.linalg.norm(shape) for shape in shapes)
    return float(min(np.square(a - b).sum() / 2, 2.0))


def _shape(logs: np.ndarray) -> np.ndarray:
    """The centred logs, scaled to at most one; zeros if they are all the same."""
    centred = logs - logs.mean()
    largest = np.abs(centred).max()
    return np.zeros_like(logs) if np.ptp(logs) == 0 or largest == 0 else centred / largest


log_euclidean = Distance("log_euclidean", log_euclidean_from_logs, is_symmetric=True, is_metric=True)
centred_log_euclidean = Distance(
    "centred_log_euclidean", centred_log_euclidean_from_logs, is_symmetric=True, is_metric=True
)
correlation = Distance("correlation", correlation_from_logs, is_symmetric=True, is_metric=False, highest=2.0)
