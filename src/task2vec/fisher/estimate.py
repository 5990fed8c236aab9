"""From rows to the Fisher and its standard error.

Let y_i be the Fisher row of image i (times its relative weight u_i), pi_i the probability that the image was drawn, and
z_i = y_i / pi_i. Then F = sum z_i / N is unbiased, and its variance has two parts:

* the images that were not drawn: m/(m-1) sum (1 - pi_i)(z_i - B)^2 / N^2, with B the mean of z under weights 1 - pi_i
  (Hajek's estimator for sampling without replacement);
* the images that do not exist: the task is itself a sample of N images, which adds sum u_i^2 (f_i - F)^2 / N^2 with
  f_i = y_i / u_i (var(y) / N where all weights are one; class sizes, which the weights undo, are no noise).

The noise of drawing labels is inside y_i and counted once by the sum of the two: (1 - pi)/pi^2 + 1/pi = 1/pi^2. The
standard error so says how far the numbers would move with other images of the same kind, the head being held fixed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_SUMS = 5  # of z, y, z^2, yz and uz over the images


@dataclass(frozen=True)
class FisherEstimate:
    """Fisher per filter with its standard error, and what they rest on."""

    fisher: Tensor
    stderr: Tensor
    images: int
    terms: int
    effective_images: float

    @property
    def relative_error(self) -> float:
        """Median of stderr / fisher over the filters that have any Fisher; 0 if none has."""
        alive = self.fisher > 0
        return float((self.stderr[alive] / self.fisher[alive]).median()) if bool(alive.any()) else 0.0


class Accumulator:
    """Running sums over images; the estimate can be read at any moment."""

    def __init__(self, total_images: int, drawn_images: int, *, square_weights: float | None = None):
        """Begins with nothing; `square_weights` is the sum of u_i^2 over the task, if not all u_i are one."""
        self.total, self.drawn = total_images, drawn_images
        self.square_weights = float(total_images) if square_weights is None else square_weights
        self.images = self.terms = 0
        self.inclusion = 0.0
        self.sums: Tensor | None = None
        self.weight = self.square_weight = 0.0

    def add(self, rows: Tensor, inclusion: Tensor, *, terms: int, weights: Tensor | None = None) -> None:
        """Takes in one row y_i per image, the probabilities that those images were drawn, and their weights u_i."""
        rows = rows.double()
        inclusion = inclusion.to(rows)
        z = rows / inclusion[:, None]
        u = torch.ones_like(inclusion) if weights is None else weights.to(rows)
        parts = torch.stack([z.sum(0), rows.sum(0), (z * z).sum(0), (rows * z).sum(0), u @ z]).cpu()
        self.sums = parts if self.sums is None else self.sums + parts
        self.images += len(rows)
        self.terms += terms
        self.inclusion += float(inclusion.sum())
        mass = z.sum(1)
        self.weight += float(mass.sum())
        self.square_weight += float((mass * mass).sum())

    def estimate(self) -> FisherEstimate:
        """The estimate from the images so far: a random part of those drawn, so inclusions shrink by it."""
        assert self.sums is not None
        part = self.images / self.drawn
        z, y, zz, yz, uz = self.sums
        n, m = self.total, self.images
        fisher = z / part / n
        squares = yz / part - 2 * fisher * uz / part + fisher**2 * self.square_weights
        population = squares.clamp_min(0) * (n / max(n - 1, 1)) / n**2
        left_out = m - part * self.inclusion
        design = torch.zeros_like(fisher)
        if m > 1 and left_out > 1e-9:
            squares = (zz - part * yz) / part**2 - ((z - part * y) / part) ** 2 / left_out
            design = squares.clamp_min(0) * (m / (m - 1)) / n**2
        effective = self.weight**2 / self.square_weight if self.square_weight > 0 else 0.0
        return FisherEstimate(fisher, (population + design).sqrt(), m, self.terms, effective)


class Ledger:
    """The accounts of many tasks whose rows come in mixed; each ends with the estimate that it has alone.

    Attributes:
        sums: (tasks, 5, filters), on the device of the rows: nothing is carried off it, nor waited for, before the end.
        facts: (tasks, 5) images, terms, and sums of inclusions, of masses and of their squares.
    """

    def __init__(self, accounts: Sequence[Accumulator], *, filters: int, device: torch.device):
        """Begins with nothing for each of `accounts`, which are empty."""
        self.accounts = accounts
        self.sums = torch.zeros(len(accounts), _SUMS, filters, dtype=torch.float64, device=device)
        self.facts = torch.zeros(len(accounts), 5, dtype=torch.float64, device=device)

    def add(self, rows: Tensor, owners: Tensor, *, inclusion: Tensor, terms: Tensor, weights: Tensor) -> None:
        """Takes in one row y_i per image, the task that each belongs to, and the rest as `Accumulator.add` does."""
        rows = rows.double()
        parts = (owners, inclusion, weights, terms)
        owners, inclusion, weights, terms = (part.to(rows.device, non_blocking=True) for part in parts)
        mass = rows.sum(1) / inclusion
        facts = torch.stack([torch.ones_like(mass), terms.double(), inclusion, mass, mass * mass], dim=1)
        enter = self._enter_one_by_one if rows.device.type == "cpu" else self._enter_together
        enter(rows, owners, 1 / inclusion, weights / inclusion)
        self.facts.index_add_(0, owners, facts)

    def _enter_one_by_one(self, rows: Tensor, owners: Tensor, inverse: Tensor, weights: Tensor) -> None:
        """Three times faster than all together where memory is the limit: no sum is written but its own."""
        for owner, y, p, u in zip(owners.tolist(), rows, inverse.tolist(), weights.tolist(), strict=True):
            z, plain, zz, yz, uz = self.sums[owner]
            z.add_(y, alpha=p)
            plain.add_(y)
            zz.addcmul_(y, y, value=p * p)
            yz.addcmul_(y, y, value=p)
            uz.add_(y, alpha=u)

    def _enter_together(self, rows: Tensor, owners: Tensor, inverse: Tensor, weights: Tensor) -> None:
        """Few steps, for a GPU; all memory is taken first, so that rows are entered as a whole or not at all."""
        z = rows * inverse[:, None]
        for number, part in enumerate((z, rows, z * z, rows * z, rows * weights[:, None])):
            self.sums[:, number].index_add_(0, owners, part)

    def count(self, task: int) -> int:
        """The number of images that one task has entered so far."""
        return int(self.facts[task, 0])

    def estimate(self, task: int) -> FisherEstimate:
        """The estimate of one task from its images so far."""
        account = self.accounts[task]
        account.sums = self.sums[task].cpu()
        images, terms, account.inclusion, account.weight, account.square_weight = self.facts[task].tolist()
        account.images, account.terms = round(images), round(terms)
        return account.estimate()
