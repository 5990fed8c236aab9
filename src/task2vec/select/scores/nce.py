"""NCE (Tran 2019): minus the conditional entropy of the labels given the network's source classes.

With z the source class that the network finds most probable for an image, and P(y, z) the shares of images,

    NCE = -H(Y | Z) = sum_yz P(y, z) log P(y | z)

between minus the entropy of the labels and 0. It is LEEP for a network that is sure of itself. With as many source
classes as images it is 0 for every network. Among equally probable source classes the first one counts.

Example:
    >>> import torch
    >>> sure = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]])
    >>> nce(sure, torch.tensor([0, 0, 1, 1])), round(nce(sure, torch.tensor([0, 1, 0, 1])), 4)
    (0.0, -0.6931)
"""

import torch
from torch import Tensor

from task2vec.select.scores.labels import Labels
from task2vec.select.scores.leep import check_probabilities


def nce(source_probabilities: Tensor, labels: Tensor) -> float:
    """Minus the conditional entropy in nats; 0 at best."""
    theta = check_probabilities(source_probabilities)
    y = Labels.of(labels, images=len(theta), device=theta.device)
    cells = y.index * theta.shape[1] + theta.argmax(1)
    table = torch.bincount(cells, minlength=y.classes * theta.shape[1]).view(y.classes, -1).double()
    # xlogy(0, 0) = 0: pairs that do not occur add nothing.
    joint, marginal = torch.special.xlogy(table, table).sum(), table.sum(0)
    return float((joint - torch.special.xlogy(marginal, marginal).sum()) / len(y))
