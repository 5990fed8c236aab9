"""A mixture of Gaussians with diagonal covariances, fitted by expectation-maximisation from a k-means start.

Everything is a product of matrices over all points and components, so it runs as well on a GPU. The k-means start
(Arthur and Vassilvitskii 2007: each centre drawn with probability proportional to the squared distance to those before)
uses random numbers of the CPU on every device, so the same seed gives the same mixture, but for rounding. Of more than
31 centres several are drawn at a time.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

_LLOYD_STEPS = 10
_ROUNDS = 16  # in which centres are drawn; a GPU waits for each, and more make no better start
# Of the mean log-likelihood. What is left then moves N-LEEP by a hundredth of what another seed does.
_MOST_STEPS, TOLERANCE = 100, 1e-2
# Added to every variance, in units of the mean variance of the points: a component of a single point keeps a width.
FLOOR = 1e-3


@dataclass(frozen=True, eq=False)
class Mixture:
    """A fitted mixture: (k,) weights, (k, p) means and variances."""

    weights: Tensor
    means: Tensor
    variances: Tensor

    def memberships(self, points: Tensor) -> Tensor:
        """(n, k) probabilities that a point is of each component."""
        return self._log_joint(points, points.square()).softmax(1)

    def log_likelihood(self, points: Tensor) -> float:
        """The mean log density of the points."""
        return float(self._log_joint(points, points.square()).logsumexp(1).mean())

    def _log_joint(self, points: Tensor, squares: Tensor) -> Tensor:
        """(n, k) log of weight times density."""
        precisions = 1 / self.variances
        constant = self.weights.log() - (self.variances.log() + self.means.square() * precisions).sum(1) / 2
        constant = constant - points.shape[1] / 2 * math.log(2 * math.pi)
        return torch.addmm(constant, points, (self.means * precisions).T).addmm_(squares, precisions.T, alpha=-0.5)


def fit_mixture(points: Tensor, components: int, *, generator: torch.Generator) -> Mixture:
    """The mixture of so many components on (n, p) points in float64."""
    squares = points.square()
    floor = FLOOR * float(points.var(0, correction=0).mean()) if points.shape[1] else 0.0
    memberships = assign(points, start_centres(points, components, generator=generator)).to(points)
    mixture, reached = maximise(points, squares, memberships, floor), -math.inf
    for _ in range(_MOST_STEPS):
        logs = mixture._log_joint(points, squares)
        totals = logs.logsumexp(1, keepdim=True)
        mixture = maximise(points, squares, logs.sub_(totals).exp_(), floor)
        before, reached = reached, float(totals.mean())
        if abs(reached - before) < TOLERANCE:
            break
    return mixture


def maximise(points: Tensor, squares: Tensor, memberships: Tensor, floor: float) -> Mixture:
    """The mixture that (n, k) memberships make most likely; `floor` is added to every variance."""
    # As in scikit-learn, a component that nobody belongs to stays a number instead of 0 / 0.
    sizes = memberships.sum(0) + 10 * torch.finfo(points.dtype).eps
    means = memberships.T @ points / sizes[:, None]
    variances = (memberships.T @ squares / sizes[:, None] - means.square()).clamp_min_(0) + max(floor, 1e-300)
    return Mixture(sizes / sizes.sum(), means, variances)


def start_centres(points: Tensor, count: int, *, generator: torch.Generator) -> Tensor:
    """(count, p) centres: points drawn far from each other, then moved by a few rounds of k-means."""
    # In units of their size, so that squares stay in the range of float32.
    unit = points.square().mean().sqrt().clamp_min(1e-150) if points.shape[1] else 1.0
    start = quick(points / unit)
    draws = torch.rand(count, generator=generator, dtype=torch.float64).to(points.device)
    lengths, last = start.square().sum(1), len(points) - 1
    chosen = (draws[:1] * len(points)).long()
    distances, every = torch.full_like(lengths, torch.inf), [chosen]
    for some in draws[1:].split(max(1, count // _ROUNDS)):
        fresh = measure(start, start[chosen]).add_(lengths[:, None]).amin(1).clamp_min_(0)
        distances = distances.minimum(fresh)
        sums = distances.double().cumsum(0)
        # Each from its own share of the sum, so that those of one round are not the same.
        spread = (torch.arange(len(some), device=some.device) + some) / len(some)
        chosen = torch.searchsorted(sums, spread * sums[-1]).clamp_max(last)
        every.append(chosen)
    centres = start[torch.cat(every)]
    for _ in range(_LLOYD_STEPS):
        centres = average(start, measure(start, centres).argmin(1), centres)
    return centres.to(points) * unit


def measure(points: Tensor, centres: Tensor) -> Tensor:
    """(n, k) squared distances less the squared length of the point, which is the same for all centres."""
    return torch.addmm(centres.square().sum(1), points, centres.T, alpha=-2)


def average(points: Tensor, nearest: Tensor, centres: Tensor) -> Tensor:
    """(k, p) means of the points nearest to each centre; a centre without points stays where it is."""
    if points.device.type == "cpu":
        sums = torch.zeros_like(centres).index_add_(0, nearest, points)
    else:  # there, scattered sums come in another order every time
        sums = functional.one_hot(nearest, len(centres)).to(points).T @ points
    sizes = torch.bincount(nearest, minlength=len(centres))[:, None]
    return torch.where(sizes > 0, sums / sizes.clamp_min(1), centres)


def assign(points: Tensor, centres: Tensor) -> Tensor:
    """(n, k) ones where a point is nearest to a centre, and zeros."""
    return functional.one_hot(measure(points, centres).argmin(1), len(centres))


def quick(values: Tensor) -> Tensor:
    """The values in the precision in which an order is found fastest without losing it."""
    return values.float() if values.device.type == "cpu" else values
