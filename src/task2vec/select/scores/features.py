"""Features of one task in one network, with what several scores need computed once and kept.

Scores take a plain (n, d) tensor or such a value; hand the same value to several scores, and they share spectra,
neighbours and mixtures. The arithmetic is in float64, on the device of the features: squares of singular values span a
range of 10^12, which float32 cannot hold. Where only an order of distances is wanted float32 is enough, and on a CPU
twice as fast; not on a GPU, which may be set to round its products to ten bits.
"""

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from task2vec.errors import NotFiniteError, UsageError
from task2vec.select.scores.mixture import fit_mixture, quick
from task2vec.select.scores.spectrum import Spectrum, decompose, is_wide, multiply

# Deviations from the mean below this part of the largest value of a column are rounding.
_ROUNDING = 1e-13
_ROWS = 512  # rows of an (n, n) table that are made at a time
MOST_NEIGHBOURS = 16
_SPARE = 16  # neighbours beyond these, among which ties are found
LIKENESS_BINS = 2**17

_SMALLEST = 1e-150


@dataclass(frozen=True, eq=False)
class Features:
    """(n, d) features in float64; whatever is asked of them is computed once."""

    values: Tensor
    _mixtures: dict[tuple[int, int], Tensor] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, features: "Tensor | Features") -> "Features":
        """The features, checked and in float64; what has been prepared already is handed on."""
        if isinstance(features, Features):
            return features
        if features.ndim != 2 or 0 in features.shape:
            raise UsageError(
                f"features of shape {tuple(features.shape)} are not one row per image, so there is nothing to score. "
                "Pass an (n, d) tensor of pooled features."
            )
        values = features.detach().double()
        is_bad = ~values.isfinite().all(1)
        if is_bad.any():
            raise NotFiniteError(
                f"the features of image {int(is_bad.nonzero()[0])} are not finite ({int(is_bad.sum())} such images), "
                "and a score of them would mean nothing. Look for infinities in the network, or leave the images out."
            )
        return cls(values)

    def __len__(self) -> int:
        """Number of images."""
        return len(self.values)

    @property
    def width(self) -> int:
        """Number of features."""
        return self.values.shape[1]

    @cached_property
    def centred(self) -> Tensor:
        """(n, d) features from their mean; a constant feature is exactly zero."""
        deviations = self.values - self.values.mean(0)
        return deviations.masked_fill_(deviations.abs() <= _ROUNDING * self.values.abs().amax(0), 0)

    @cached_property
    def product(self) -> Tensor:
        """The smaller of the two products of the centred features with themselves."""
        return multiply(self.centred)

    @cached_property
    def spectrum(self) -> Spectrum:
        """Singular values and vectors of the centred features."""
        return decompose(self.centred, self.product)

    @cached_property
    def raw_spectrum(self) -> Spectrum:
        """Singular values and vectors of the features as they are."""
        if is_wide(self.values):
            return decompose(self.values, multiply(self.values))
        # The other way round, from raw to centred, would cancel.
        mean = self.values.mean(0)
        return decompose(self.values, torch.addr(self.product, mean, mean, alpha=len(self)))

    @cached_property
    def compact(self) -> Tensor:
        """(n, r) centred features in coordinates of their own span where that is narrower: same lengths and angles."""
        return self.spectrum.principal(len(self)) if is_wide(self.values) else self.centred

    @cached_property
    def nearest(self) -> tuple[Tensor, Tensor]:
        """(n, m) squared distances to the nearest other images, nearest first, and which they are.

        In units of the longest vector from the mean.
        """
        # In units of the longest, so that squares stay in the range of float32, which finds who is near. How near is
        # measured again in float64: one very long vector would make all others alike.
        exact = self.compact / self.compact.norm(dim=1).max().clamp_min(_SMALLEST)
        points = quick(exact)
        lengths = points.square().sum(1)
        count = min(MOST_NEIGHBOURS + _SPARE, len(self) - 1)
        found = []
        for start in range(0, len(self), _ROWS):
            rows = points[start : start + _ROWS]
            squares = torch.addmm(lengths, rows, points.T, alpha=-2).add_(lengths[start : start + _ROWS, None])
            squares.diagonal(start).fill_(torch.inf)
            which = squares.topk(count, largest=False).indices
            near, order = (exact[start : start + _ROWS, None] - exact[which]).square().sum(2).sort(stable=True)
            found.append((near, which.gather(1, order)))
        return torch.cat([near for near, _ in found]), torch.cat([which for _, which in found])

    def memberships(self, components: int, *, energy: float, seed: int) -> Tensor:
        """(n, components) probabilities that an image is of each component of a mixture on the principal directions."""
        key = (components, seed)
        if key not in self._mixtures:
            points = self.spectrum.principal(self.spectrum.count_energy(energy))
            generator = torch.Generator().manual_seed(seed)
            self._mixtures[key] = fit_mixture(points, components, generator=generator).memberships(points)
        return self._mixtures[key]

    @cached_property
    def likeness(self) -> list[tuple[int, Tensor]]:
        """Correlations between images on standardised features, as bins from -1 to 1 in whole numbers.

        In blocks (b, n - start) of the rows from `start` on, without the pairs that stood in earlier blocks: two bytes
        times the number of images squared in all.
        """
        rows, blocks = quick(self.standardised), []
        for start in range(0, len(rows), _ROWS):
            products = rows[start : start + _ROWS] @ rows[start:].T
            bins = products.add_(1).mul_((LIKENESS_BINS - 1) / 2).round_().clamp_(0, LIKENESS_BINS - 1)
            blocks.append((start, bins.int()))
        return blocks

    @property
    def standardised(self) -> Tensor:
        """(n, d) rows whose products are the correlations of images on features of mean 0 and variance 1."""
        spread = self.centred.square().mean(0).sqrt()
        varies = spread > 0
        rows = self.centred[:, varies] / spread[varies]
        rows = rows - rows.mean(1, keepdim=True)
        # An image whose features are all alike correlates with nothing.
        return rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-12)
