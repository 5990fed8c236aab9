"""From rows to the Fisher and its standard error, and from the Fisher to the Gaussian posterior of the weights.

Let y_i be the Fisher row of image i (times its relative weight u_i), pi_i the probability that the image was drawn, and
z_i = y_i / pi_i. Then F = sum z_i / N is unbiased, and its variance has two parts:

* the images that were not drawn: m/(m-1) sum (1 - pi_i)(z_i - B)^2 / N^2, with B the mean of z under weights 1 - pi_i
  (Hajek's estimator for sampling without replacement);
* the images that do not exist: the task is itself a sample of N images, which adds sum u_i^2 (f_i - F)^2 / N^2 with
  f_i = y_i / u_i (var(y) / N where all weights are one; class sizes, which the weights undo, are no noise).

The noise of drawing labels is inside y_i and counted once by the sum of the two: (1 - pi)/pi^2 + 1/pi = 1/pi^2. The
standard error therefore says how far the numbers would move with other images of the same kind and the same head.

The posterior has one precision per filter and one prior variance per layer. The paper measures the Fisher by how much
noise the weights tolerate. It minimises, over one variance s_k^2 per filter,

    L = E_{w ~ N(w0, s^2)}[H(w)] + beta KL(N(w0, s^2) || N(0, v)),
    KL = 1/2 sum_w [ (w0^2 + s^2) / v - 1 - log(s^2 / v) ],

with H the cross-entropy, here the *mean* over images (for a sum over N images divide beta by N: the paper's text writes
beta / N, its appendix beta). To second order E[H] = H(w0) + 1/2 sum_w s_w^2 H_ww. With n_k weights in filter k, whose
mean curvature is F_k, stationarity in s_k^2 reads n_k/2 [ F_k + beta (1/v - 1/s_k^2) ] = 0, hence

    1 / s_k^2 = 1 / v + F_k / beta,          beta / s_k^2 = F_k + beta / v.

The appendix ends with (2 / beta) H instead of F / beta, which does not follow from its own loss: that has a 1/2 before
both the trace and the KL. Without the 1/2 of the KL, as in the first public code, the result is 1 / v + F_k / (2 beta).
The two-layer network of the tests confirms the formula above.

v, the prior variance of a layer, is trained as well. Stationarity in v gives v = mean over the layer's weights of
(w0^2 + s^2). Inserting s^2 leaves one equation per layer, g(v) = v - mean(w0^2) - mean_k 1 / (1/v + F_k / beta) = 0,
whose left side grows with v: the root is unique. But for a layer without any Fisher s^2 = v, and the root is infinite:
a trained prior would put the trivial embedding, beta / v, at zero. So v is kept between mean(w0^2), where only the
weights count, and `MAX_PRIOR_RATIO` times that, which it reaches when the layer tolerates almost any noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from task2vec.probe import FilterLayer

_SUMS = 5  # of z, y, z^2, yz and uz over the images
# The prior is at most this many times as wide as the weights of its layer.
MAX_PRIOR_RATIO = 2.0
_TINY = 1e-30
_STEPS = 10  # each doubles the number of right digits


@dataclass(frozen=True)
class FisherEstimate:
    """Fisher per filter with its standard error, and the numbers of images and terms behind them."""

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


def smooth(values: Tensor, layers: tuple[FilterLayer, ...], share: float) -> Tensor:
    """Fishers or errors (..., filters) with every filter moved towards the mean of its layer by `share`.

    The norm stays the same. Filters that few images use are noisy, and their logarithms, which distances compare, are
    the noisiest. The errors of the filters of a layer come from the same images, so they are averaged like the values.
    """
    return torch.lerp(values, spread_over_filters(mean_over_layers(values, layers), layers), share)


class Design(NamedTuple):
    """How the images of a task were drawn: N, the number drawn, and the sum of u_i^2 over all N."""

    total: int
    drawn: int
    square_weights: float


class Ledger:
    """Running sums over the images of many tasks, whose rows arrive in any order; an estimate can be read at any time.

    Attributes:
        sums: (tasks, 5, filters), on the device of the rows: nothing is copied to the host before the end.
        facts: (tasks, 5) images, terms, and sums of inclusions, of masses and of their squares.
    """

    def __init__(self, designs: Sequence[Design], *, filters: int, device: torch.device):
        self.designs = designs
        self.sums = torch.zeros(len(designs), _SUMS, filters, dtype=torch.float64, device=device)
        self.facts = torch.zeros(len(designs), 5, dtype=torch.float64, device=device)
        self.is_batched = device.type != "cpu"

    def add(self, rows: Tensor, owners: Tensor, *, inclusion: Tensor, terms: Tensor, weights: Tensor) -> None:
        """Adds one row y_i per image.

        Args:
            rows: (images, filters).
            owners: the task that each belongs to.
            inclusion: the probabilities that those images were drawn.
            terms: how many rank-one terms each row is the sum of.
            weights: u_i.
        """
        rows = rows.double()
        owners, inclusion, weights, terms = (
            values.to(rows.device, non_blocking=True) for values in (owners, inclusion, weights, terms)
        )
        mass = rows.sum(1) / inclusion
        facts = torch.stack([torch.ones_like(mass), terms.double(), inclusion, mass, mass * mass], dim=1)
        facts = self.facts.index_put((owners,), facts, accumulate=True)
        add = self._add_together if self.is_batched else self._add_one_by_one
        add(rows, owners, 1 / inclusion, weights / inclusion)
        self.facts = facts  # last, because memory may run out before

    def _add_one_by_one(self, rows: Tensor, owners: Tensor, inverse: Tensor, weights: Tensor) -> None:
        """One image after the other: three times faster on a CPU, since only the sums of its task are written."""
        for owner, y, p, u in zip(owners.tolist(), rows, inverse.tolist(), weights.tolist(), strict=True):
            z, plain, zz, yz, uz = self.sums[owner]
            z.add_(y, alpha=p)
            plain.add_(y)
            zz.addcmul_(y, y, value=p * p)
            yz.addcmul_(y, y, value=p)
            uz.add_(y, alpha=u)

    def _add_together(self, rows: Tensor, owners: Tensor, inverse: Tensor, weights: Tensor) -> None:
        """All images in a few operations, for a GPU; memory is allocated first, so that all rows are added or none.

        `index_add_` would add in another order every time, and round differently.
        """
        z = rows * inverse[:, None]
        parts = torch.stack([z, rows, z * z, rows * z, rows * weights[:, None]], dim=1)
        self.sums.index_put_((owners,), parts, accumulate=True)

    def estimate(self, task: int) -> FisherEstimate:
        """The estimate of a task from its images so far: a random part of those drawn, so inclusions shrink with it."""
        return self.estimates(slice(task, task + 1))[0]

    def estimates(self, tasks: slice = slice(None)) -> list[FisherEstimate]:
        """The estimates of the given tasks, all at once: reading a number makes a GPU wait."""
        m, terms, inclusion, mass, square_mass = self.facts[tasks].T[..., None]
        designs = torch.tensor(self.designs[tasks], dtype=torch.float64, device=self.facts.device)
        n, drawn, square_weights = designs.T[..., None]
        fraction = m / drawn
        z, y, zz, yz, uz = self.sums[tasks].unbind(1)
        fisher = z / fraction / n
        squares = yz / fraction - 2 * fisher * uz / fraction + fisher**2 * square_weights
        population = squares.clamp_min(0) * (n / (n - 1).clamp_min(1)) / n**2
        left_out = m - fraction * inclusion
        squares = (zz - fraction * yz) / fraction**2 - ((z - fraction * y) / fraction) ** 2 / left_out
        design = squares.clamp_min(0) * (m / (m - 1)) / n**2
        stderr = torch.where((m > 1) & (left_out > 1e-9), population + design, population).sqrt()
        effective = torch.where(square_mass > 0, mass**2 / square_mass, 0)
        figures = torch.cat([m, terms, effective], dim=1).tolist()
        return [
            FisherEstimate(values, errors, round(images), round(count), masses)
            for values, errors, (images, count, masses) in zip(fisher, stderr, figures, strict=True)
        ]


# --- the posterior of the weights -------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def _places(layers: tuple[FilterLayer, ...], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The layer of every filter, the filters of every layer, filled up with the number of all, and how many it has."""
    counts = torch.tensor([layer.filters for layer in layers])
    within = torch.arange(int(counts.max()))
    members = torch.where(within < counts[:, None], (counts.cumsum(0) - counts)[:, None] + within, counts.sum())
    return torch.repeat_interleave(counts).to(device), members.to(device), counts.to(device)


def spread_over_filters(values: Tensor, layers: tuple[FilterLayer, ...]) -> Tensor:
    """(..., filters) from one value per layer."""
    return values[..., _places(layers, values.device)[0]]


def mean_over_layers(values: Tensor, layers: tuple[FilterLayer, ...]) -> Tensor:
    """(..., layers): the mean over the filters of each layer, which have equally many weights."""
    _, members, counts = _places(layers, values.device)
    return functional.pad(values, (0, 1))[..., members].sum(-1) / counts


def weight_scales(layers: tuple[FilterLayer, ...]) -> Tensor:
    """(layers,): the mean square weight of each layer; a layer of zeros counts as the smallest number."""
    return torch.tensor([max(layer.mean_square_weight, _TINY) for layer in layers], dtype=torch.float64)


def best_prior_variances(variances: Tensor, scales: Tensor, layers: tuple[FilterLayer, ...]) -> Tensor:
    """(layers,): the prior variance that minimises the KL for given variances (filters,), within its bounds."""
    return torch.minimum(scales + mean_over_layers(variances, layers), MAX_PRIOR_RATIO * scales)


def closed_form(fisher: Tensor, layers: tuple[FilterLayer, ...], *, beta: float | Tensor) -> tuple[Tensor, Tensor]:
    """Precision of every filter and prior variance of every layer at the minimum, from the Fisher (..., filters).

    Example:
        >>> layers = (FilterLayer("conv", "convolution", 2, 9, 0.5),)
        >>> precision, variance = closed_form(torch.tensor([4.0, 0.0]), layers, beta=1e-2)
        >>> [round(x, 3) for x in precision.tolist()], round(variance.item(), 3)
        ([401.0, 1.0], 1.0)
    """
    ratio = fisher.double() / beta
    scales = weight_scales(layers).to(fisher.device)
    # The gap scales + mean(1 / (1/v + ratio)) - v is concave in v, and where it is zero below the upper bound its slope
    # is at most -1/2: Newton's steps from the bound come down to the root and never pass it.
    v = (MAX_PRIOR_RATIO * scales).expand(*ratio.shape[:-1], len(layers))
    for _ in range(_STEPS):
        shrinkage = 1 / (1 + ratio * spread_over_filters(v, layers))
        gap = scales + v * mean_over_layers(shrinkage, layers) - v
        v = torch.where(gap < 0, v - gap / (mean_over_layers(shrinkage.square(), layers) - 1), v)
    return 1 / spread_over_filters(v, layers) + ratio, v


def kl_divergence(log_precision: Tensor, prior_variances: Tensor, layers: tuple[FilterLayer, ...]) -> Tensor:
    """KL(N(w0, 1 / precision) || N(0, v)), summed over all weights, in nats."""
    weights = torch.tensor([layer.weights_per_filter * layer.filters for layer in layers], dtype=torch.float64)
    log_precision, v = log_precision.double().cpu(), prior_variances.double().cpu()
    noise = mean_over_layers((-log_precision).exp(), layers)
    parts = (weight_scales(layers) + noise) / v - 1 + v.log() + mean_over_layers(log_precision, layers)
    return (weights * parts).sum() / 2
