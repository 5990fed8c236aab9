"""LEEP (Nguyen 2020): the log-likelihood of the labels under a classifier read off the source classes.

With the network's probabilities theta(x) over its s source classes z, and the empirical joint distribution
P(y, z) = 1/n sum over images of class y of theta(x)_z,

    LEEP = 1/n sum_i log sum_z P(y_i | z) theta(x_i)_z

between minus the entropy of the labels and 0. The classifier is fitted and judged on the same images, so with many
source classes and few images every network looks good. It looks at the network's head and not at its features: a
network without one has no LEEP.

Example:
    >>> import torch
    >>> sure = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    >>> leep(sure, torch.tensor([0, 0, 1, 1]))
    0.0
    >>> round(leep(torch.full((4, 2), 0.5), torch.tensor([0, 0, 1, 1])), 4)  # -log 2
    -0.6931
"""

from torch import Tensor

from task2vec.errors import DataError, UsageError
from task2vec.select.scores.labels import Labels

_SUM_TOLERANCE = 1e-2  # probabilities in half precision add up no better
_TINY = 1e-300


def leep(source_probabilities: Tensor, labels: Tensor) -> float:
    """The mean log-likelihood of the labels; 0 at best."""
    theta = check_probabilities(source_probabilities)
    return average_log_likelihood(theta, Labels.of(labels, images=len(theta), device=theta.device))


def average_log_likelihood(theta: Tensor, labels: Labels) -> float:
    """LEEP of (n, s) probabilities, whatever their s classes are."""
    joint = labels.onehot.T @ theta
    conditional = joint / joint.sum(0).clamp_min(_TINY)
    likelihood = (theta * conditional[labels.index]).sum(1)
    # Every image has its own share in the joint distribution, so none is impossible; rounding must not exceed one.
    return float(likelihood.clamp(_TINY, 1.0).log().mean())


def check_probabilities(probabilities: Tensor) -> Tensor:
    """(n, s) probabilities in float64 whose rows sum to one; logits and the like are refused."""
    if probabilities.ndim != 2 or 0 in probabilities.shape:
        raise UsageError(
            f"source probabilities of shape {tuple(probabilities.shape)} are not one row per image, so no source class "
            "can be read from them. Pass the (n, s) softmax output of the network."
        )
    theta = probabilities.detach().double()
    sums = theta.sum(1)
    if not bool(((sums - 1).abs() <= _SUM_TOLERANCE).all() and (theta >= 0).all()):
        worst = int((sums - 1).abs().nan_to_num(float("inf")).argmax())
        raise DataError(
            f"the source probabilities of image {worst} sum to {float(sums[worst]):.4g} (least entry "
            f"{float(theta[worst].min()):.4g}), so they are no distribution over source classes and the score would "
            "mean nothing. Pass softmax probabilities, not logits, nor those of attributes, which are no alternatives."
        )
    return theta / sums[:, None]
