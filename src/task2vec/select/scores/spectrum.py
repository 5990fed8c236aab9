"""Singular values of features, from the eigenvalues of the smaller of the two products X^T X and X X^T.

That costs the cube of the smaller side and squares the condition number; directions with less than about 10^-12 of the
largest square are below the rounding of the product and are dropped.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

_EPSILON = torch.finfo(torch.float64).eps


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The decomposition X = U S V^T of (n, d) features of rank r.

    Attributes:
        squares: (r,) squared singular values, largest first.
        rows: (n, d) the features.
        left: (n, r) the vectors U, if n is the smaller side.
        right: (d, r) the vectors V, if d is.
    """

    squares: Tensor
    rows: Tensor
    left: Tensor | None = None
    right: Tensor | None = None

    def __len__(self) -> int:
        """The rank."""
        return len(self.squares)

    def project(self, columns: Tensor) -> Tensor:
        """(r, c) products U^T Y with (n, c) columns."""
        if self.left is not None:
            return self.left.T @ columns
        assert self.right is not None
        return (self.right.T @ (self.rows.T @ columns)) / self.squares.sqrt()[:, None]

    def principal(self, count: int) -> Tensor:
        """(n, count) coordinates U S along the first directions; fewer where the rank is lower."""
        if self.left is not None:
            return self.left[:, :count] * self.squares[:count].sqrt()
        assert self.right is not None
        return self.rows @ self.right[:, :count]

    def count_energy(self, share: float) -> int:
        """How many directions hold this share of the sum of squares."""
        if not len(self):
            return 0
        sums = self.squares.cumsum(0)
        return min(int((sums < share * sums[-1]).sum()) + 1, len(self))


def multiply(rows: Tensor) -> Tensor:
    """The smaller of the products X X^T and X^T X."""
    return rows @ rows.T if is_wide(rows) else rows.T @ rows


def decompose(rows: Tensor, product: Tensor) -> Spectrum:
    """The spectrum of (n, d) rows in float64 from their smaller product."""
    squares, vectors = torch.linalg.eigh(product)
    squares, vectors = squares.flip(0), vectors.flip(1)
    rank = int((squares > squares[0].clamp_min(0) * max(rows.shape) * 10 * _EPSILON).sum())
    squares, vectors = squares[:rank], vectors[:, :rank]
    return Spectrum(squares, rows, left=vectors) if is_wide(rows) else Spectrum(squares, rows, right=vectors)


def is_wide(rows: Tensor) -> bool:
    """Whether there are more features than images."""
    return rows.shape[1] > rows.shape[0]
