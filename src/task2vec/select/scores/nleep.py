"""N-LEEP (Li 2021): LEEP with the components of a Gaussian mixture on the features in place of source classes.

The features are reduced to the principal directions that hold 80 % of their variance, a mixture with five components
per class is fitted to them without labels, and LEEP is computed from the probabilities of the components. So it
needs no head, and measures whether the classes are where the features cluster.

What the paper leaves open, and what is done here: covariances are diagonal (after PCA, and with a handful of images per
component full ones would be singular) with a floor of 0.1 % of the mean variance; at least five images stand behind a
component on average, so small tasks get fewer than five per class; the start is k-means from a seed. The mixture is a
local optimum: between seeds the score moves by some hundredths. Invariant to rotation, shift and a common
scale of the features, but for rounding. The labels are judged on the images that the table P(y | z) was counted on, so
the score is optimistic when components are small.

Example:
    >>> import torch
    >>> labels = torch.arange(200) % 2
    >>> features = torch.randn(200, 5, generator=torch.Generator().manual_seed(0))
    >>> nleep(features + 3 * labels[:, None], labels) > nleep(features, labels)
    True
"""

from torch import Tensor

from task2vec.select.scores.features import Features
from task2vec.select.scores.labels import prepare
from task2vec.select.scores.leep import average_log_likelihood

_ENERGY = 0.8
_PER_CLASS = 5
_IMAGES_EACH = 5


def nleep(features: Tensor | Features, labels: Tensor, *, seed: int = 0) -> float:
    """The mean log-likelihood of the labels given the components; 0 at best."""
    x, y = prepare(features, labels)
    components = max(1, min(_PER_CLASS * y.classes, len(x) // _IMAGES_EACH))
    return average_log_likelihood(x.memberships(components, energy=_ENERGY, seed=seed), y)
