"""PARC (Bolya 2021): do pairs of images that look alike to the network have the same label?

    PARC = Spearman's rank correlation, over all pairs of images, of  1 - Pearson(f_i, f_j)  and  1 - Pearson(y_i, y_j)

with y one-hot. The features are standardised column by column first, as the authors' code does; features that never
vary are left out. Label distances have two values, so all that counts is how the pairs of one class rank among all
pairs: two histograms of the correlations in 2^17 bins tell, each bin a tie. So nothing is sorted and no image is left
out (the paper scores a draw of 500); the value is right to four digits, far below what other images would change. From
-1 to 1, without the authors' factor of 100 and without their bonus for deep networks. Invariant to shift and scale of
each feature, not to rotation. With many classes few pairs are of one class, and even a perfect network is far below 1:
compare networks on one task, not tasks.

Example:
    >>> import torch
    >>> labels = torch.arange(60) % 3
    >>> features = torch.randn(60, 8, generator=torch.Generator().manual_seed(0))
    >>> features[:, :3] += 3 * torch.nn.functional.one_hot(labels, 3)
    >>> parc(features, labels) > 0.3 > parc(features, labels.sort().values)
    True
"""

import torch
from torch import Tensor

from task2vec.errors import UndefinedScoreError
from task2vec.select.scores.features import LIKENESS_BINS, Features
from task2vec.select.scores.labels import Labels, prepare


def parc(features: Tensor | Features, labels: Tensor) -> float:
    """The rank correlation of likeness and sameness of class; 0 for features that say nothing."""
    x, y = prepare(features, labels)
    pairs, same = count_pairs(x, y)
    total, alike = pairs.sum(), same.sum()
    if not alike:
        raise UndefinedScoreError(
            f"no two of the {len(x)} images are of one class, so pairs of one class cannot be told from others and "
            "there is no PARC. Give each class at least two images."
        )
    # Ranks from the middle, so that sums of squares stay small; images of one bin share the mean of their ranks.
    ranks = pairs.cumsum(0) - pairs / 2 - total / 2
    spread = (pairs * ranks.square()).sum() / total
    if not spread:
        return 0.0
    share = alike / total
    return float((same * ranks).sum() / total / (spread * share * (1 - share)).sqrt())


def count_pairs(x: Features, y: Labels) -> tuple[Tensor, Tensor]:
    """(bins,) pairs of images by the correlation of their features, least first: all, and those of one class."""
    counts = torch.zeros(2 * LIKENESS_BINS, dtype=torch.long, device=x.values.device)
    for start, bins in x.likeness:
        is_same = y.index[start : start + len(bins), None] == y.index[start:]
        is_pair = torch.ones_like(is_same).triu_(1)
        counts += torch.bincount((bins + LIKENESS_BINS * is_same)[is_pair], minlength=2 * LIKENESS_BINS)
    different, same = counts.double().split(LIKENESS_BINS)
    return different + same, same
