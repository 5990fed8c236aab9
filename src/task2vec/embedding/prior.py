"""The prior: what a task without information embeds to.

The paper measures the Fisher robustly as the precision of the noise that the weights can bear. With weights
w ~ N(w0, s^2) in a filter, a Gaussian prior of variance v on the weights of its layer, and a loss *summed* over N
images,

    N (1/2) s^2 F + beta KL(N(w0, s^2) || N(0, v)),   KL = 1/2 [ (w0^2 + s^2) / v - 1 - log(s^2 / v) ],

setting the derivative with respect to s^2 to zero gives

    (beta / N) (1 / s^2) = F + (beta / N) (1 / v).

So the embedding is F plus a prior (beta / N) / v: it fades as images come in, and is all that is left of a task with no
Fisher. (The paper's text has beta / 2N; its own loss gives the factor above, and beta absorbs the difference.) We take
v as the mean square of the layer's weights, the maximum of the likelihood for a zero-mean Gaussian.

How large should beta be? On 43 real tasks (benchmarks/real_tasks.py) the default, 1e-7, puts the prior at 0.5 % of the
median Fisher of a ResNet-34's layers and 0.01 % of an EfficientNet's; distances then find the dataset of a task best.
From about a tenth of the median Fisher on, the prior blurs them.

The prior also keeps a filter that is dead for two tasks from making their distance 0/0.
"""

import numpy as np

from task2vec.probe import FilterLayer


def prior_of(layers: tuple[FilterLayer, ...], *, images: int, beta: float) -> np.ndarray:
    """One value per filter: beta / (images * mean square weight of the filter's layer)."""
    tiny = float(np.finfo(np.float32).tiny)
    values = [beta / images / max(layer.mean_square_weight, tiny) for layer in layers]
    return np.repeat(values, [layer.filters for layer in layers])
