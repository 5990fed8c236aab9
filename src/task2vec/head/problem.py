"""The convex problem that a head solves, for many choices of image weights and penalties at once."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from task2vec.head.lbfgs import minimise

# Features are brought to the wanted precision in parts of so many images, once for tasks of at most `_KEPT` images.
_PART = 1024
_KEPT = 4096


@dataclass(frozen=True)
class Problem:
    """Features (n, d), of which (x - shift) / scale is used, one-hot or 0/1 targets (n, c), and image weights (n,)."""

    features: Tensor
    shift: Tensor
    scale: Tensor
    onehot: Tensor
    weights: Tensor
    is_multilabel: bool
    dtype: torch.dtype = torch.float64

    def __len__(self) -> int:
        """Number of images."""
        return len(self.features)

    def subset(self, kept: Tensor) -> "Problem":
        """The problem of some of the images."""
        weights = self.weights[kept]
        return replace(self, features=self.features[kept], onehot=self.onehot[kept], weights=weights / weights.sum())

    def parts(self) -> Iterator[tuple[slice, Tensor]]:
        """Runs of images with their standardised features and a column of ones for the bias."""
        shift, scale = self.shift.to(self.dtype), self.scale.to(self.dtype)
        for start in range(0, len(self), _PART):
            rows = slice(start, start + _PART)
            x = (self.features[rows].to(self.dtype) - shift).div_(scale)
            yield rows, torch.cat([x, torch.ones_like(x[:, :1])], dim=1)

    def logits(self, solution: Tensor) -> Tensor:
        """(p, n, c) for (p, d + 1, c) solutions."""
        return torch.cat([torch.matmul(x, solution) for _, x in self.parts()], dim=1)

    def losses(self, logits: Tensor, rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """(p, n) losses of some images and their (p, n, c) derivatives at the logits."""
        onehot = self.onehot[rows].to(logits)
        if self.is_multilabel:
            losses = functional.softplus(logits) - logits * onehot
            return losses.sum(2), logits.sigmoid() - onehot
        log_p = logits.log_softmax(2)
        return -(log_p * onehot).sum(2), log_p.exp() - onehot

    def solve(self, weights: Tensor, l2: Tensor, *, tolerance: float, max_steps: int) -> tuple[Tensor, Tensor, Tensor]:
        """(p, d + 1, c) solutions for p rows of image weights and penalties, losses, and who converged."""
        width, classes = self.features.shape[1] + 1, self.onehot.shape[1]
        penalty = l2.to(self.dtype)[:, None, None].repeat(1, width, classes)
        penalty[:, -1] = 0
        weights = weights.to(self.dtype)
        kept = list(self.parts()) if len(self) <= _KEPT else None

        def loss_and_gradient(flat: Tensor) -> tuple[Tensor, Tensor]:
            w = flat.view(len(l2), width, classes)
            loss, gradient = (penalty * w.square()).sum((1, 2)) / 2, penalty * w
            for rows, x in kept or self.parts():
                losses, residuals = self.losses(torch.matmul(x, w), rows)
                loss = loss + (losses * weights[:, rows]).sum(1)
                gradient = gradient + torch.matmul(x.T, residuals * weights[:, rows, None])
            return loss, gradient.flatten(1)

        start = torch.zeros(len(l2), width * classes, dtype=self.dtype, device=self.features.device)
        solution, loss, converged = minimise(loss_and_gradient, start, tolerance=tolerance, max_steps=max_steps)
        return solution.view(len(l2), width, classes), loss, converged
