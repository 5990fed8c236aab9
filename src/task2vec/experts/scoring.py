"""From what a classifier says of test images to an error with its 95 % confidence interval.

The interval tells how much the error would move with other test images of the same kind. How much it would move with
other training images is told by other seeds.

The bootstrap knows only what it has seen: where nothing is wrong, nothing is in any resample, and its interval would be
0 to 0 however few the images. There (and where all is wrong) the other end is Wilson's, for as many images as the mean
over classes is worth: its variance is that of a share of n images with 1/n = mean of 1/n_c, over the number of classes
where these have different images. Attributes share their images, and may all be wrong at once, so they count as one.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np

_Z = 1.959964  # of 95 %
_RESAMPLES = 500


@dataclass(frozen=True)
class Score:
    """An error and the ends of its confidence interval."""

    error: float
    low: float
    high: float


def score_wrong(wrong: float, count: float) -> Score:
    """The share of test images that are wrong, with Wilson's interval.

    Example:
        >>> score = score_wrong(3, 10)
        >>> round(score.low, 3), score.error, round(score.high, 3)
        (0.108, 0.3, 0.603)
    """
    share, spare = wrong / count, _Z**2 / count
    middle = (share + spare / 2) / (1 + spare)
    reach = sqrt(spare * share * (1 - share) + spare**2 / 4) / (1 + spare)
    return Score(share, min(max(middle - reach, 0.0), share), max(min(middle + reach, 1.0), share))


def score_balanced(wrong: np.ndarray, targets: np.ndarray) -> Score:
    """The mean over classes of the part that is wrong, with a bootstrap interval.

    `wrong` is (n,) for (n,) class numbers. For attributes both are (n, c), and the mean is over their answers.
    """
    if targets.ndim == 1:
        belongs = (targets[:, None] == np.unique(targets)).astype(np.float64)
        missed = belongs * wrong[:, None]
        apart = belongs.shape[1]
    else:
        belongs = np.hstack([targets, 1 - targets]).astype(np.float64)
        missed = belongs * np.hstack([wrong, wrong])
        apart = 2  # the answers to one attribute

    def measure(weights: np.ndarray) -> np.ndarray:
        return _mean_known(weights @ missed, weights @ belongs)

    return _resample(measure, len(wrong), worth=apart * _mean_count(belongs))


def score_precision(logits: np.ndarray, targets: np.ndarray) -> Score:
    """One less the mean over attributes of the average precision, with a bootstrap interval."""

    def measure(weights: np.ndarray) -> np.ndarray:
        sums = np.zeros((2, len(weights), targets.shape[1]))
        for column, (scores, is_true) in enumerate(zip(logits.T, targets.T, strict=True)):
            order = np.argsort(-scores, kind="stable")
            # Equal scores are called together, so all of them count in the precision of each.
            ends = np.searchsorted(-scores[order], -scores[order], side="right") - 1
            called, hits = weights[:, order], weights[:, order] * is_true[order]
            precision = hits.cumsum(1)[:, ends] / np.maximum(called.cumsum(1)[:, ends], 1e-12)
            sums[0, :, column], sums[1, :, column] = (hits * precision).sum(1), hits.sum(1)
        return 1 - _mean_known(*sums)

    # Each positive has a precision, and one that is missed costs no more than its share.
    return _resample(measure, len(targets), worth=_mean_count(targets))


def _mean_count(belongs: np.ndarray) -> float:
    """The harmonic mean of how many images the columns have; those without any have no say."""
    counts = belongs.sum(0)
    return 1 / float((1 / counts[counts > 0]).mean())


def _mean_known(parts: np.ndarray, wholes: np.ndarray) -> np.ndarray:
    """The mean over columns of parts / wholes; a resample may have nothing of a column, which then has no say."""
    is_known = wholes > 0
    shares = np.divide(parts, wholes, out=np.zeros_like(parts), where=is_known)
    return shares.sum(1) / np.maximum(is_known.sum(1), 1)


def _resample(measure, count: int, *, worth: float) -> Score:
    """What `measure` makes of the images as they are, and the middle 95 % of what it makes of resamples of them.

    Where these are all 0 or 1, the end that is missing is Wilson's for a share of so many images as it is `worth`.
    """
    error = float(measure(np.ones((1, count)))[0])
    draws = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=_RESAMPLES)
    low, high = np.quantile(measure(draws.astype(np.float64)), [0.025, 0.975]).tolist()
    if low == high and error in (0.0, 1.0):
        known = score_wrong(error * worth, worth)
        low, high = known.low, known.high
    return Score(*(min(max(value, 0.0), 1.0) for value in (error, min(low, error), max(high, error))))
