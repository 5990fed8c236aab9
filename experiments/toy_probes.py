"""The two feature extractors of the paper's toy experiment as probes.

Both take the points of `toy_tasks` as (x, y, 1) and have one filter per feature, so that the Fisher of a filter is
known in closed form. With p the head's probability of a class, w_k its weight of feature k, and E the mean over points
with both classes weighing the same:

* random features z_k = max(0, a x + b y + c): F_k = E[p (1 - p) w_k^2 1(z_k > 0) (x^2 + y^2 + 1) / 3], the mean over
  the filter's three weights (a, b, c);
* monomials m_k, each times one weight that is 1: F_k = E[p (1 - p) w_k^2 m_k^2].

Drawn as the paper says, 3 in 8 random features are zero on the whole square, as many are linear on it, and only one in
four has its kink inside: ten of them see less than ten.
"""

from functools import partial

import torch
from PIL import Image
from torch import Tensor, nn

from task2vec.probe import Probe, load_probe
from task2vec.tasks.synthetic import read_point

RANDOM_FEATURES, DEGREE = 10, 3
# The constant, which the degree allows as well, is left out: the head has a free bias of its own, and its penalty
# leaves a constant feature no weight at all, so that its Fisher would be zero for every task.
POWERS = tuple((total - j, j) for total in range(1, DEGREE + 1) for j in range(total + 1))


class RandomFeatures(nn.Module):
    """Features max(0, a x + b y + c): a convolution of 1 x 1, without bias, as c is the third channel's weight.

    Args:
        weights: (features, 3): a, b and c of each.
    """

    def __init__(self, weights: Tensor):
        super().__init__()
        self.features = nn.Conv2d(3, len(weights), 1, bias=False)
        self.features.weight = nn.Parameter(weights[:, :, None, None])
        self.head = nn.Linear(len(weights), 2)

    def forward(self, points: Tensor) -> Tensor:
        """Logits of (n, 3, 1, 1) points."""
        return self.head(self.features(points).relu().flatten(1))


class Monomials(nn.Module):
    """Features x^i y^j of degree one to three, each times a weight of 1 of its own (a depthwise convolution)."""

    def __init__(self):
        super().__init__()
        count = len(POWERS)
        self.features = nn.Conv2d(count, count, 1, groups=count, bias=False)
        nn.init.ones_(self.features.weight)
        self.head = nn.Linear(count, 2)

    def forward(self, points: Tensor) -> Tensor:
        """Logits of (n, 3, 1, 1) points."""
        x, y = points[:, :1], points[:, 1:2]
        monomials = torch.cat([x**i * y**j for i, j in POWERS], dim=1)
        return self.head(self.features(monomials).flatten(1))


def make_random_probe(*, side: int, seed: int) -> Probe:
    """Ten random features with a and b uniform in [-1/2, 1/2] and c in [-1, 1], for the tasks of a grid of `side`.

    Example:
        >>> make_random_probe(side=16, seed=0).n_filters
        10
    """
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(RANDOM_FEATURES, 3, generator=generator) * 2 - 1
    module = RandomFeatures(uniform * torch.tensor([0.5, 0.5, 1.0]))
    return load_probe(module.eval(), head="head", transform=partial(_read_point, side=side))


def make_polynomial_probe(*, side: int) -> Probe:
    """The nine monomials of degree one to three in x and y, for the tasks of a grid of `side`.

    Example:
        >>> make_polynomial_probe(side=16).n_filters
        9
    """
    return load_probe(Monomials().eval(), head="head", transform=partial(_read_point, side=side))


def name_filters(probe: Probe) -> tuple[str, ...]:
    """The feature of each filter of one of the two probes, as a formula.

    Example:
        >>> name_filters(make_polynomial_probe(side=16))[:4]
        ('x', 'y', 'x^2', 'x y')
    """
    if isinstance(probe.network, RandomFeatures):
        weights = probe.network.features.weight.detach()[:, :, 0, 0].tolist()
        return tuple(f"max(0, {a:.4g} x {b:+.4g} y {c:+.4g})" for a, b, c in weights)
    return tuple(" ".join(filter(None, (_name_power("x", i), _name_power("y", j)))) for i, j in POWERS)


def _read_point(image: Image.Image, *, side: int) -> Tensor:
    return torch.tensor(read_point(image, side=side), dtype=torch.float64)[:, None, None]


def _name_power(letter: str, power: int) -> str:
    return letter if power == 1 else f"{letter}^{power}" if power else ""
