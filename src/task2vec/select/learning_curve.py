"""Whether more labelled images would help: the error of a model with a quarter, a half and all of the images, measured.

Every image is judged by heads that were fitted to a quarter, a half or all of the images of the other folds. The four
quarters and two halves have the same share of every class, and take their turns; the folds are those of the measurement
(`measure.Folds`), so the last error is the measured one.

What twice the images would bring is about the last drop times `FADING`. A number is named if the last drop is above
twice its standard error and the prediction above a point: in 87 of 100 cases over 38 datasets and three networks, and
96 of 100 of these numbers are within a factor of two of the drop that twice the images then brought
(benchmarks/decide_calibration.py). Fits to both drops did no better.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from task2vec.head.fit import (
    MAX_REPEATED,
    REPETITIONS,
    assign_folds,
    cross_validate,
    image_weights,
    to_onehot,
)
from task2vec.head.problem import compress, make_problem, whiten
from task2vec.select.decide import find_interval, find_spread
from task2vec.select.measure import MAX_IMAGES_FOR_ONE_THREAD, PENALTY, Folds, use_threads
from task2vec.tasks.sampling import rank_within

PARTS = (4, 2, 1)
# How much smaller the drop of the error is from one doubling of the images to the next.
FADING = 0.7
# A drop is clear if it is so many times its standard error; a predicted one is worth a number from a point on.
MIN_STANDARD_ERRORS, MIN_PREDICTED_DROP = 2.0, 0.01
# A quarter of the images has two of a class on average.
MIN_PER_CLASS, MIN_IMAGES = 8, 40


@dataclass(frozen=True)
class LearningCurve:
    """The error of a model by the number of labelled images; the last is that of all images.

    Attributes:
        images: how many, ascending.
        errors: shares, from 0 to 1, each with a 95% interval.
        low: lower ends.
        high: upper ends.
        sentence: what that means for more images.
    """

    images: tuple[int, ...]
    errors: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    sentence: str


def measure_learning_curve(
    features: Tensor, targets: np.ndarray, *, classes: int, groups: np.ndarray | None = None
) -> LearningCurve | None:
    """The learning curve of a model with these features; None for a task of too few images, copies aside.

    Args:
        features: (n, d) of all images.
        targets: (n,) class indices or (n, c) zeros and ones.
        classes: how many.
        groups: (n,) a number for each image, from 0 on, the same for copies; None for none.

    Example:
        >>> random = np.random.default_rng(0)
        >>> targets = np.arange(160) % 2
        >>> features = torch.from_numpy(random.normal(size=(160, 30)) + 0.4 * targets[:, None])
        >>> curve = measure_learning_curve(features.float(), targets, classes=2)
        >>> curve.images
        (40, 80, 160)
        >>> curve.errors[0] > curve.errors[2]
        True
    """
    groups = np.arange(len(targets)) if groups is None else groups
    if groups.max() + 1 < max(MIN_IMAGES, MIN_PER_CLASS * classes):
        return None
    folds = Folds(targets, groups, classes=classes)
    with use_threads(1 if len(targets) <= MAX_IMAGES_FOR_ONE_THREAD else torch.get_num_threads()):
        losses = measure_losses(features, folds)
    is_judged = ~np.isnan(losses).any(0)
    losses, groups = losses[:, is_judged], groups[is_judged]
    errors, low, high = zip(*(find_interval(row, groups) for row in losses), strict=True)
    sentence = describe(errors[1] - errors[2], find_spread(losses[1] - losses[2], groups, answer=folds.answer))
    return LearningCurve(tuple(len(targets) // part for part in PARTS), errors, low, high, sentence)


def describe(drop: float, spread: float) -> str:
    """What the drop of the error from half of the images to all, with its standard error, means for twice as many.

    Example:
        >>> describe(0.04, 0.01)
        'Still falling: twice the images, about 3 points less.'
        >>> describe(0.012, 0.01)
        'The second half of the images lowered the error by 1.2 points, which may be chance.'
    """
    points, predicted = 100 * drop, FADING * drop
    if drop < MIN_STANDARD_ERRORS * spread:
        if drop <= 0:
            return "The second half of the images did not lower the error."
        return f"The second half of the images lowered the error by {points:.1f} points, which may be chance."
    if predicted < MIN_PREDICTED_DROP:
        return f"Nearly flat: the second half of the images lowered the error by {points:.1f} points."
    number = f"{100 * predicted:.0f} point" + "s" * (round(100 * predicted) != 1)
    return f"Still falling: twice the images, about {number} less."


def measure_losses(features: Tensor, folds: Folds, parts: Sequence[int] = PARTS) -> np.ndarray:
    """(parts, n) losses of images whose heads were fitted to 1 / part of the other folds; NaN if not judged."""
    targets = torch.from_numpy(folds.targets.astype(np.int64)).to(features.device)
    groups = torch.from_numpy(folds.groups.astype(np.int64)).to(features.device)
    kind = {"is_multilabel": targets.ndim == 2}
    onehot = to_onehot(targets, folds.classes, **kind)[None]
    repetitions = max(1, min(REPETITIONS, MAX_REPEATED // (int(groups.max()) + 1)))
    fold, is_judged = assign_folds(onehot, groups=groups, repetitions=repetitions, **kind)
    # The group of an image is in one part, by its rank among those of its class.
    first = np.unique(folds.groups, return_index=True)[1]
    labels = np.zeros(len(first), dtype=np.int64) if folds.targets.ndim == 2 else folds.targets[first]
    ranks = torch.from_numpy(rank_within(labels)[folds.groups]).to(features.device)
    masks = [ranks % count == turn for count in parts for turn in range(count)]
    weights = torch.stack([image_weights(onehot[0], balance=False, **kind) * mask for mask in masks])
    weights = weights / weights.sum(1, keepdim=True).clamp_min(1e-12)
    problem, _ = compress(make_problem(features, onehot, weights, **kind))
    problem = replace(whiten(problem, PENALTY), dtype=torch.float32)
    held_out = torch.zeros(2, len(masks), *onehot.shape[1:], device=features.device)
    stop = {"tolerance": 1e-2 if problem.factor is None else 3e-3, "max_steps": 100}
    penalty = torch.tensor([PENALTY], dtype=torch.float64, device=features.device)
    shared = fold.expand(len(masks), -1, -1), is_judged.expand(len(masks), -1)
    cross_validate(problem, penalty, *shared, together=problem.count_together(), held_out=held_out, **stop)
    judged = is_judged[0].cpu().numpy()
    losses = np.stack([folds.find_losses(votes, judged) for votes in held_out[1].cpu().numpy()])
    ends = np.cumsum(parts)
    return np.stack([losses[end - count : end].mean(0) for count, end in zip(parts, ends, strict=True)])
