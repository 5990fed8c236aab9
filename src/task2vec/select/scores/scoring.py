"""All transferability scores of one task in one network, sharing what can be shared.

A score of several attributes per image is the mean over the attributes, each a task of two classes; attributes that are
the same in all images have nothing to tell and are left out by name.
"""

import math
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from task2vec.errors import DataError, UndefinedScoreError, UsageError
from task2vec.select.scores.features import Features
from task2vec.select.scores.table import SCORES, Score


class FeatureScores(dict[str, float]):
    """Scores by name; NaN where one is not defined.

    Attributes:
        reasons: why, for every NaN.
        seconds: what each took; the first one to need something shared pays for it.
        left_out: attributes that are the same in all images.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reasons: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        self.left_out: tuple[int, ...] = ()


def score_features(
    features: Tensor,
    targets: Tensor,
    *,
    classes: int,
    source_probabilities: Tensor | None = None,
    is_multilabel: bool = False,
    which: Sequence[str] | None = None,
    seed: int = 0,
) -> FeatureScores:
    """Every score of (n, d) features for (n,) class indices, or for (n, classes) zeros and ones.

    Args:
        features: pooled features of the task's images in the network; a GPU's stay there.
        targets: class indices below `classes`, or attributes with `is_multilabel`.
        classes: how many classes or attributes the task has; a class without images is left out.
        source_probabilities: (n, s) softmax output of the network's own head, which LEEP and NCE need. What is none
            (logits, separate probabilities of attributes) leaves these two undefined.
        is_multilabel: whether the targets are independent attributes.
        which: names from `SCORES`; all by default.
        seed: of the mixture of N-LEEP, the only thing drawn.

    Example:
        >>> import torch
        >>> labels = torch.arange(60) % 3
        >>> features = torch.nn.functional.one_hot(labels, 3) + torch.randn(60, 3) / 10
        >>> scores = score_features(features, labels, classes=3, which=["knn", "leep"])
        >>> scores["knn"], scores["leep"]
        (1.0, nan)
        >>> scores.reasons["leep"]
        'it reads the probabilities of source classes, and none were given: pass source_probabilities=...'
    """
    names = list(SCORES) if which is None else list(which)
    given = {"features": features, "targets": targets, "source_probabilities": source_probabilities}
    _check_kinds(given)
    _check(names, targets, classes, is_multilabel)
    prepared = Features.of(features)
    _check_lengths(len(prepared), targets, source_probabilities)
    result = FeatureScores()
    if is_multilabel:
        is_constant = (targets == targets[:1]).all(0).tolist()
        result.left_out = tuple(i for i, alike in enumerate(is_constant) if alike)
        tasks = [column.long() for column, alike in zip(targets.T, is_constant, strict=True) if not alike]
    else:
        tasks = [targets]
    for name in names:
        before = time.perf_counter()
        try:
            result[name] = _average(_bind(SCORES[name], prepared, source_probabilities, seed), tasks)
        except UndefinedScoreError as undefined:
            result[name], result.reasons[name] = math.nan, str(undefined)
        except DataError as error:
            if not SCORES[name].needs_source:
                raise
            result[name], result.reasons[name] = math.nan, str(error)  # of the source alone: the others can do without
        result.seconds[name] = time.perf_counter() - before
    return result


def _bind(score: Score, features: Features, source: Tensor | None, seed: int) -> Callable[[Tensor], float]:
    """The score as a function of the labels."""
    if score.needs_source:
        if source is None:
            raise UndefinedScoreError(
                "it reads the probabilities of source classes, and none were given: pass source_probabilities=..."
            )
        return partial(score.function, source)
    return partial(score.function, features, **({"seed": seed} if score.is_seeded else {}))


def _average(score: Callable[[Tensor], float], tasks: list[Tensor]) -> float:
    """The mean over the attributes; there is one task where images have one label."""
    if not tasks:
        raise UndefinedScoreError("every attribute is the same in all images, so there is nothing to tell apart")
    return sum(score(labels) for labels in tasks) / len(tasks)


def _check_kinds(given: dict[str, object]) -> None:
    for name, value in given.items():
        if value is not None and not isinstance(value, Tensor):
            raise UsageError(
                f"{name} is {type(value).__name__}, and scores are computed on tensors, where they lie. Give a tensor: "
                f"torch.as_tensor({name})"
            )


def _check(names: list[str], targets: Tensor, classes: int, is_multilabel: bool) -> None:
    unknown = [name for name in names if name not in SCORES]
    if unknown:
        raise UsageError(
            f"no score is called {unknown[0]!r}, so it cannot be computed. The scores are: {', '.join(SCORES)}."
        )
    if is_multilabel and (targets.ndim != 2 or targets.shape[1] != classes):
        raise UsageError(
            f"targets of shape {tuple(targets.shape)} are not one row of {classes} attributes per image, so it is "
            "unknown which image has which. Pass (n, classes) zeros and ones, or is_multilabel=False."
        )
    if not is_multilabel and targets.ndim != 1:
        raise UsageError(
            f"targets of shape {tuple(targets.shape)} are not one class per image. Pass (n,) class indices, or "
            "is_multilabel=True for attributes."
        )
    if torch.is_floating_point(targets) and not bool((targets == targets.round()).all()):
        raise DataError("the targets are not whole numbers, so they name no classes. Pass class indices.")
    if targets.numel():
        low, high, limit = int(targets.min()), int(targets.max()), 1 if is_multilabel else classes - 1
        if low < 0 or high > limit:
            raise DataError(
                f"the targets run from {low} to {high}, and only 0 to {limit} mean something in a task of {classes} "
                "classes. Check the labels, or pass the right number of classes."
            )


def _check_lengths(images: int, targets: Tensor, source: Tensor | None) -> None:
    for what, tensor in (("targets", targets), ("source_probabilities", source)):
        if tensor is not None and len(tensor) != images:
            raise UsageError(
                f"{images} rows of features and {len(tensor)} of {what} cannot belong to the same images. Pass one row "
                "per image in both."
            )
