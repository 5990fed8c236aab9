"""Which of the measured models to use: intervals, a paired comparison with the best, the tie, and the choice.

The error of a model is the mean of its held-out losses. Its 95% interval is Wilson's, with copies counted once, and
with as many images as explain the spread of the losses where a few count for many: those of a rare attribute.

Models see the same images, so they are compared pair by pair: the gap to the model with the lowest error is a mean of
differences, most of which are zero. As the lowest of many errors is low by luck, too, a gap has to be larger the more
models there are (Bonferroni, one-sided), so that the truly best one is left out of the tie at most once in twenty
times, however many models there are. Both spreads are a tenth wider than images drawn at random explain, for held-out
heads share training images. Measured on one half of the images and judged on the other, over 38 datasets and six
networks, 95 of 100 intervals hold, the sampling of the other half allowed for, and 97 of 100 ties have the truly best
(benchmarks/decide_calibration.py).

Of models that cannot be told apart the cheapest is recommended. Those that a later round dropped are compared on the
images of their last round, which the best model has seen, too, with heads of the same images; they are not recommended.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from task2vec.select.measure import Measurements

CONFIDENCE = 0.95
# Standard errors are multiplied by this for the training images that held-out heads share.
SPREAD_FACTOR = 1.1
# Beyond so many times the images nobody can say how many would separate two models.
MAX_TIMES_IMAGES = 100


@dataclass(frozen=True)
class Judgement:
    """A measured model beside the best one; errors and gaps are shares, from 0 to 1.

    Attributes:
        name: of the model.
        error: the mean of its held-out losses.
        low: lower end of the 95% interval of the error.
        high: upper end.
        gap: by how much its error is above that of the best on the same images.
        gap_low: lower end of an interval that holds for all models together.
        gap_high: upper end.
        is_tied: whether it cannot be told apart from the best.
        images: how many images it was judged on.
    """

    name: str
    error: float
    low: float
    high: float
    gap: float
    gap_low: float
    gap_high: float
    is_tied: bool
    images: int


@dataclass(frozen=True)
class Decision:
    """What measurements say.

    Attributes:
        judgements: of all measured models, best first; those that a later round dropped come last.
        tie: the model with the lowest error, and those that cannot be told apart from it, in the same order.
        choice: the recommended model, which all images of the last round have measured.
        images_needed: about how many images would separate the best from the second, where they are tied; None where
            they are not, or where even a hundred times the images would not be enough.
    """

    judgements: tuple[Judgement, ...]
    tie: tuple[str, ...]
    choice: str | None
    images_needed: int | None


def decide(measurements: Measurements, costs: Mapping[str, Any], *, prefer: str = "cheapest") -> Decision:
    """The tie of the best models, and which of them to use.

    Args:
        measurements: of one model or more, or of none.
        costs: what each model costs: numbers, or tuples of them. A model without one is the most expensive.
        prefer: recommend the "cheapest" of the tie, or the lowest "error".

    Example:
        >>> losses = np.array([[0, 0, 1], [0, 1, 1], [0, 0, 1], [1, 0, 1]] * 10, dtype=float)
        >>> images = np.arange(40)
        >>> measured = Measurements(images, images, ("large", "small", "poor"), losses, total_images=40)
        >>> decision = decide(measured, {"large": 4.0, "small": 0.5, "poor": 0.1})
        >>> decision.tie, decision.choice
        (('large', 'small'), 'small')
    """
    if not measurements.models:
        return Decision((), (), None, None)
    rounds = [measurements]
    while (earlier := rounds[-1].earlier) is not None:
        rounds.append(earlier)
    count = len(set().union(*(measured.models for measured in rounds)))
    errors = measurements.errors
    best = min(errors, key=errors.__getitem__)  # the first of equals: the most promising
    judgements: dict[str, Judgement] = {}
    for measured in rounds:
        new = {name: error for name, error in measured.errors.items() if name not in judgements}
        for name in sorted(new, key=lambda name: (new[name], name != best)):
            judgements[name] = judge(measured, name, best, count)
    tie = tuple(name for name, judgement in judgements.items() if judgement.is_tied)
    eligible = [name for name in tie if name in errors]
    cheapest = min(eligible, key=lambda name: (name not in costs, costs.get(name, 0), errors[name]))
    rows = tuple(judgements.values())
    return Decision(rows, tie, best if prefer == "error" else cheapest, count_needed(rows))


def judge(measurements: Measurements, name: str, best: str, count: int) -> Judgement:
    """A model beside the best of `count` models, on the images of one round."""
    is_judged = measurements.is_judged
    losses, best_losses = (measurements.losses[is_judged, measurements.models.index(model)] for model in (name, best))
    groups = measurements.groups[is_judged]
    gap, reach = 0.0, 0.0
    if name != best:
        gap, reach = compare(losses, best_losses, groups, count, answer=measurements.answer)
    error, low, high = find_interval(losses, groups)
    return Judgement(name, error, low, high, gap, gap - reach, gap + reach, gap <= reach, int(is_judged.sum()))


def find_interval(losses: np.ndarray, groups: np.ndarray) -> tuple[float, float, float]:
    """The mean of (n,) losses and its 95% interval; images of one group count as one.

    Example:
        >>> [round(value, 3) for value in find_interval(np.array([0.0] * 45 + [1.0] * 5), np.arange(50))]
        [0.1, 0.04, 0.228]
    """
    error = float(losses.mean())
    sizes = np.unique(groups, return_counts=True)[1]
    images = len(losses) ** 2 / float(np.square(sizes).sum())
    squares = float(np.square(np.bincount(groups, weights=losses - error)).sum())
    if 0 < error < 1 and squares > 0:
        images = min(images, error * (1 - error) * len(losses) ** 2 / squares)
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * SPREAD_FACTOR
    centre, wide = (error + z * z / 2 / images) / (1 + z * z / images), z / (1 + z * z / images)
    reach = wide * math.sqrt(error * (1 - error) / images + (z / images / 2) ** 2)
    return error, max(0.0, min(centre - reach, error)), min(1.0, max(centre + reach, error))


def compare(
    losses: np.ndarray, best: np.ndarray, groups: np.ndarray, count: int, *, answer: float = 1.0
) -> tuple[float, float]:
    """How much higher the mean of (n,) losses is than that of the best of `count` models, and the largest gap by luck.

    `answer` is what a wrong answer adds to a loss, see `find_spread`.

    Example:
        >>> best, other = np.array([0.0] * 50), np.array([0.0] * 45 + [1.0] * 5)
        >>> [round(value, 3) for value in compare(other, best, np.arange(50), 2)]
        [0.1, 0.089]
    """
    z = NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / max(1, count - 1))
    return float((losses - best).mean()), z * SPREAD_FACTOR * find_spread(losses - best, groups, answer=answer)


def find_spread(values: np.ndarray, groups: np.ndarray, *, answer: float = 1.0) -> float:
    """The standard error of the mean of (n,) differences whose true mean is zero; those of a group go together.

    A difference more than was seen counts, for where all are zero the spread is not known to be zero: one as large as
    the largest of an image, or as a wrong `answer`. That is 1 where an image is right or wrong. With many attributes it
    is little, for an answer is one of many there.

    Example:
        >>> find_spread(np.zeros(50), np.arange(50)), find_spread(np.zeros(50), np.arange(50), answer=0.1)
        (0.02, 0.002)
    """
    sums, largest = np.bincount(groups, weights=values), float(np.abs(values).max(initial=answer))
    return math.sqrt(float(np.square(sums).sum()) + largest**2) / len(values)


def count_needed(judgements: tuple[Judgement, ...]) -> int | None:
    """About how many images would separate the first two models, if they are tied; the gap's reach falls as the root.

    Example:
        >>> best, second = (
        ...     Judgement(name, 0.1, 0, 1, gap, gap - 0.1, gap + 0.1, True, 90)
        ...     for name, gap in (("a", 0.0), ("b", 0.05))
        ... )
        >>> count_needed((best, second))
        360
    """
    if len(judgements) < 2 or not judgements[1].is_tied:
        return None
    second = judgements[1]
    times = ((second.gap_high - second.gap) / second.gap) ** 2 if second.gap > 0 else math.inf
    return None if times > MAX_TIMES_IMAGES else math.ceil(round(times * second.images, 6))
