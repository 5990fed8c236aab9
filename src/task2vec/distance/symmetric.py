"""The symmetric task distance of Achille 2019: cosine distance between a / (a + b) and b / (a + b), filter by filter.

With u = log a - log b the two vectors are sigmoid(u) and sigmoid(-u) = 1 - sigmoid(u), so the distance depends on the
logarithms alone and nothing overflows. Priors keep every entry positive. It is no metric: from (1, 1)
over (1, 3) to (1, 9) it is 0.264, and 0.352 the direct way.

Example:
    >>> import numpy as np
    >>> from task2vec.embedding import Embedding
    >>> from task2vec.probe import FilterLayer
    >>> layers = (FilterLayer("conv", "convolution", 2, 9, 0.1),)
    >>> story = {"probe_fingerprint": "p", "settings": {}}
    >>> prior = np.full(2, 1e-9)
    >>> a = Embedding("a", "net", np.array([1.0, 2.0]), np.zeros(2), prior, layers, story)
    >>> b = Embedding("b", "net", np.array([2.0, 1.0]), np.zeros(2), prior, layers, story)
    >>> round(symmetric(a, b), 6), symmetric(a, a)
    (0.2, 0.0)
"""

import numpy as np

from task2vec.distance.kind import Distance

BELOW_ONE = float(np.nextafter(1, 0))


def symmetric_from_logs(log_a: np.ndarray, log_b: np.ndarray) -> float:
    """The distance from two log-embeddings."""
    u = log_a - log_b
    a, b = direction(-np.logaddexp(0, -u)), direction(-np.logaddexp(0, u))
    # 1 - cos(a, b) = |a - b|^2 / 2 for unit vectors: no cancellation for tasks that are nearly the same. Both are
    # positive, so the distance is below one, and rounding must not say otherwise.
    return float(min(np.square(a - b).sum() / 2, BELOW_ONE))


def direction(logs: np.ndarray) -> np.ndarray:
    """The unit vector along exp(logs); where all are tiny, they are brought up to the largest first."""
    values = np.exp(logs - logs.max())
    return values / np.linalg.norm(values)


symmetric = Distance("symmetric", symmetric_from_logs, is_symmetric=True, is_metric=False, highest=1.0)
