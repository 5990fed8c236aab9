"""Labels of a task as the scores read them: only classes that have images, counted."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from task2vec.errors import UndefinedScoreError, UsageError
from task2vec.select.scores.features import Features


@dataclass(frozen=True, eq=False)
class Labels:
    """The classes that have images.

    Attributes:
        index: (n,) the place of each image's class among them.
        onehot: (n, c) in float64.
        counts: (c,) images of each.
    """

    index: Tensor
    onehot: Tensor
    counts: Tensor

    @classmethod
    def of(cls, labels: Tensor, *, images: int, device: torch.device) -> "Labels":
        """The labels of so many images; fewer than two classes are refused."""
        if labels.ndim != 1 or len(labels) != images:
            raise UsageError(
                f"labels of shape {tuple(labels.shape)} do not fit {images} images, so it is unknown which image is of "
                "which class. Pass one whole number per image; score_features takes several attributes per image."
            )
        present, index = labels.to(device).unique(return_inverse=True)
        if len(present) < 2:
            raise UndefinedScoreError(
                f"all {images} images are of one class ({int(present[0])}), so there is nothing to tell apart and no "
                "score. Add images of another class."
            )
        onehot = functional.one_hot(index, len(present)).double()
        return cls(index, onehot, onehot.sum(0))

    def __len__(self) -> int:
        """Number of images."""
        return len(self.index)

    @property
    def classes(self) -> int:
        """Number of classes that have images."""
        return len(self.counts)


def prepare(features: Tensor | Features, labels: Tensor) -> tuple[Features, Labels]:
    """Features and labels, checked against each other."""
    prepared = Features.of(features)
    return prepared, Labels.of(labels, images=len(prepared), device=prepared.values.device)
