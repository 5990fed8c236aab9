"""Divergences between tasks as Gaussians: an embedding holds the precisions of the weights, N(0, 1 / a) in a filter.

That is what an embedding means (Achille 2019, section 2): beta times the precision of the posterior around the weights.
Both divergences are means over the filters. They grow with the ratio a / b itself, so one filter can outweigh all
others; ratios beyond e^690 count as e^690, which keeps them finite.

Example:
    >>> import numpy as np
    >>> kl_from_logs(np.log([4.0]), np.log([1.0]))  # (1/4 - 1 + log 4) / 2
    0.318...
    >>> kl_from_logs(np.log([1.0]), np.log([4.0]))  # (4 - 1 - log 4) / 2
    0.806...
    >>> jeffreys_from_logs(np.log([1.0]), np.log([4.0]))  # their sum
    1.125
"""

import numpy as np

from task2vec.distance.kind import Distance

# exp of more than 709 is infinite; this leaves room for a sum.
LARGEST_LOG_RATIO = 690.0


def kl_from_logs(log_a: np.ndarray, log_b: np.ndarray) -> float:
    """KL(N(0, 1/a) || N(0, 1/b)) = (b/a - 1 - log(b/a)) / 2, averaged over the filters; it is not symmetric."""
    ratio = np.minimum(log_b - log_a, LARGEST_LOG_RATIO)
    return float(max(np.mean((np.expm1(ratio) - ratio) / 2), 0.0))


def jeffreys_from_logs(log_a: np.ndarray, log_b: np.ndarray) -> float:
    """KL there plus KL back, cosh(u) - 1 with u = log a - log b, averaged over the filters."""
    u = np.clip(log_a - log_b, -LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    return float(np.mean(2 * np.square(np.sinh(u / 2))))


kl = Distance("kl", kl_from_logs, is_symmetric=False, is_metric=False)
jeffreys = Distance("jeffreys", jeffreys_from_logs, is_symmetric=True, is_metric=False)
