"""The prior: what a task without information embeds to.

The paper's posterior has the precision 1 / s^2 = 1 / v + F / beta for a mean loss, where v is the variance of the prior
of a layer's weights (derived in `task2vec.fisher.posterior`). We count beta beside a loss *summed* over the N images of
the task, so beta / N stands beside the mean, and the embedding

    (beta / N) (1 / s^2) = F + (beta / N) / v

is the Fisher plus a prior: it fades as images come in, and is all that is left of a task with no Fisher. It also keeps
a filter that is dead for two tasks from making their distance 0/0.

The direct method takes v as the mean square of the layer's weights, which is where the robust method's v lies too
unless the layer bears much noise.

How large should beta be? On 43 real tasks (benchmarks/real_tasks.py) the default, 1e-7, puts the prior at 0.5 % of the
median Fisher of a ResNet-34's layers and 0.01 % of an EfficientNet's; distances then find the dataset of a task best.
From about a tenth of the median Fisher on, the prior blurs them.
"""

import torch

from task2vec.fisher.posterior import closed_form, spread_over_filters, weight_scales
from task2vec.probe import FilterLayer


def fixed_prior(layers: tuple[FilterLayer, ...], *, beta: float) -> torch.Tensor:
    """One value per filter: beta / mean square weight of the filter's layer; beta is that of a mean loss."""
    return beta / spread_over_filters(weight_scales(layers), layers)


def fitted_prior(fisher: torch.Tensor, layers: tuple[FilterLayer, ...], *, beta: float) -> torch.Tensor:
    """One value per filter: beta / v with the best v of each layer for this Fisher."""
    _, variances = closed_form(fisher, layers, beta=beta)
    return beta / spread_over_filters(variances, layers)
