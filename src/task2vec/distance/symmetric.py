"""The symmetric task distance of Achille 2019: cosine distance between a / (a + b) and b / (a + b), filter by filter.

With u = log a - log b the two vectors are sigmoid(u) and sigmoid(-u) = 1 - sigmoid(u), so the distance depends on the
logarithms alone and nothing overflows. Priors keep every entry positive.
"""

import numpy as np

from task2vec.embedding import Embedding
from task2vec.errors import ProbeMismatchError, SettingsMismatchError

_BELOW_ONE = float(np.nextafter(1, 0))


def symmetric(a: Embedding, b: Embedding) -> float:
    """Distance between two tasks, 0 for a task with itself, below 1; embeddings of different probes are refused.

    Example:
        >>> import numpy as np
        >>> from task2vec.probe import FilterLayer
        >>> layers = (FilterLayer("conv", "convolution", 2, 9, 0.1),)
        >>> story = {"probe_fingerprint": "p", "settings": {}}
        >>> prior = np.full(2, 1e-9)
        >>> a = Embedding("a", "net", np.array([1.0, 2.0]), np.zeros(2), prior, layers, story)
        >>> b = Embedding("b", "net", np.array([2.0, 1.0]), np.zeros(2), prior, layers, story)
        >>> round(symmetric(a, b), 6), symmetric(a, a)
        (0.2, 0.0)
    """
    check_comparable(a, b)
    return symmetric_from_logs(np.log(a.vector), np.log(b.vector))


def symmetric_from_logs(log_a: np.ndarray, log_b: np.ndarray) -> float:
    """The distance from two log-embeddings."""
    u = log_a - log_b
    a, b = _direction(-np.logaddexp(0, -u)), _direction(-np.logaddexp(0, u))
    # 1 - cos(a, b) = |a - b|^2 / 2 for unit vectors: no cancellation for tasks that are nearly the same. Both are
    # positive, so the distance is below one, and rounding must not say otherwise.
    return float(min(np.square(a - b).sum() / 2, _BELOW_ONE))


def _direction(logs: np.ndarray) -> np.ndarray:
    """The unit vector along exp(logs); where all are tiny, they are brought up to the largest first."""
    values = np.exp(logs - logs.max())
    return values / np.linalg.norm(values)


def check_comparable(a: Embedding, b: Embedding) -> None:
    """Refuses embeddings whose coordinates or scales mean different things."""
    if a.probe_fingerprint != b.probe_fingerprint or a.probe_fingerprint == "unknown":
        same_name = " under the same name but with other weights or another image size" if a.probe == b.probe else ""
        raise ProbeMismatchError(
            f"cannot compare '{a.task}' with '{b.task}': they were embedded by different probes ({a.probe} and "
            f"{b.probe}{same_name}), "
            f"so their coordinates mean different filters. Embed one again: task2vec embed --probe {a.probe} {b.task}"
        )
    for name in ("method", "dtype", "beta", "balance"):
        one, other = (e.provenance.get("settings", {}).get(name) for e in (a, b))
        if one != other:
            raise SettingsMismatchError(
                f"cannot compare '{a.task}' with '{b.task}': they were embedded with {name}={one} and "
                f"{name}={other}, which changes the "
                f"numbers themselves. Embed one again with the settings of the other."
            )
