"""Which (image, term) pairs are back-propagated, and with which weight.

Pairs are drawn without replacement with inclusion probability proportional to their predicted share of the Fisher, and
the drawn ones are divided by that probability, so the estimate is unbiased for any shares. A small uniform part keeps
the weights bounded where the prediction is poor. Pairs whose probability would exceed one are taken for certain, so the
estimate becomes exact as the budget grows. The draw is systematic: one random number, equal steps along the cumulated
probabilities, which spreads the sample evenly over the classes when the images are sorted by class.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

UNIFORM_PART = 0.1


@dataclass(frozen=True)
class Draw:
    """Drawn pairs, sorted by image: indices, inclusion probabilities of the pair, and of its image."""

    images: Tensor
    terms: Tensor
    inclusion: Tensor
    image_inclusion: Tensor

    def __len__(self) -> int:
        return len(self.images)


def mix_with_uniform(shares: Tensor, labels: Tensor) -> Tensor:
    """Drawing probabilities (n, t), summing to one: mostly `shares`, a part uniform over images.

    Within an image the uniform part follows the shares again, with the textbook label probabilities as its own floor.
    """
    per_image = shares.sum(1, keepdim=True)
    total = per_image.sum()
    if total <= 0:  # a head that is certain of everything, or blind: no share is larger than another
        return labels / labels.sum()
    within = torch.where(per_image > 0, shares / per_image.clamp_min(1e-300), labels)
    floor = (1 - UNIFORM_PART) * within + UNIFORM_PART * labels
    return (1 - UNIFORM_PART) * shares / total + UNIFORM_PART * floor / len(shares)


def inclusion_probabilities(probabilities: Tensor, budget: int) -> Tensor:
    """`budget` times `probabilities`, cut at one; what is cut off is shared out among the others."""
    certain = torch.zeros_like(probabilities, dtype=torch.bool)
    if budget >= int((probabilities > 0).sum()):
        return (probabilities > 0).to(probabilities)
    while True:
        rest = probabilities.masked_fill(certain, 0)
        scaled = rest * (budget - int(certain.sum())) / rest.sum()
        over = scaled >= 1
        if not bool(over.any()):
            return torch.where(certain, torch.ones_like(scaled), scaled)
        certain |= over


def draw_pairs(probabilities: Tensor, budget: int, *, generator: torch.Generator) -> Draw:
    """A systematic sample of about `budget` pairs from (n, t) `probabilities`, at most one of each."""
    inclusion = inclusion_probabilities(probabilities, budget)
    steps = torch.cumsum(inclusion.flatten(), 0) + torch.rand((), dtype=torch.float64, generator=generator)
    previous = torch.cat([steps[:1] - inclusion.flatten()[:1], steps[:-1]])
    chosen = torch.nonzero((steps.floor() > previous.floor()) | (inclusion.flatten() >= 1)).flatten()
    chosen = chosen[inclusion.flatten()[chosen] > 0]
    images, terms = chosen // inclusion.shape[1], chosen % inclusion.shape[1]
    # Pairs of one image lie next to each other, so a step lands in it with the sum of their probabilities.
    image_inclusion = inclusion.sum(1).clamp_max(1)
    return Draw(images, terms, inclusion[images, terms], image_inclusion[images])
