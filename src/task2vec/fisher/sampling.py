"""The Fisher of an image as a sum of rank-one terms at the logits, and which (image, term) pairs are back-propagated.

For logits z with p = softmax(z) the inner expectation over labels drawn from the model is

    E_y[(e_y - p)(e_y - p)^T] = diag(p) - p p^T = sum_y a_y a_y^T   with   a_y = sqrt(p_y) (e_y - p),

and for independent attributes with p = sigmoid(z) it is diag(p (1 - p)), so a_c = sqrt(p_c (1 - p_c)) e_c.
Back-propagating one term through the head and the probe gives its part of the Fisher exactly. With two classes the two
terms are parallel and become one, a = sqrt(p_0 p_1) (1, -1): one backward pass and no label noise.

The squared length of W^T a, the gradient at the pooled features, is known as soon as the head is fitted, and predicts
the share of a term in the Fisher. Pairs are drawn without replacement with inclusion probability proportional to it,
and their rows are divided by that probability, so the estimate is unbiased for any shares. A small uniform part
keeps the weights bounded where the prediction is poor. Pairs whose probability would exceed one are always taken,
so the estimate becomes exact as the budget grows. The draw is systematic: one random number, equal steps along the
cumulated probabilities, which spreads the sample evenly over the classes when the images are sorted by class.

How many pairs are enough? They add the noise of the draw to that of the images, which are themselves a sample. If they
are `ENOUGH` of the effective number of pairs, 1 / sum of squared drawing probabilities, and at least one per image, the
draw has a fifth to a quarter of the variance of the images (six real tasks of 100 images, two probes): no number of
pairs could lower the standard error by more than a tenth.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

UNIFORM_PART = 0.1
ENOUGH = 0.4


def probabilities(logits: Tensor, *, is_multilabel: bool) -> Tensor:
    """(..., c) model probabilities, in float64: the differences 1 - p below cancel in float32."""
    logits = logits.double()
    return logits.sigmoid() if is_multilabel else logits.softmax(-1)


def term_vectors(p: Tensor, images: Tensor, terms: Tensor, *, is_multilabel: bool) -> Tensor:
    """(m, c): the vectors a of the wanted (image, term) pairs."""
    p = p[images]
    classes = p.shape[1]
    if not is_multilabel and classes == 2:
        root = (p[:, :1] * p[:, 1:]).sqrt()
        return torch.cat([root, -root], dim=1)
    rows = torch.arange(len(p), device=p.device)
    chosen = torch.zeros_like(p).scatter_(1, terms[:, None], 1.0)
    if is_multilabel:
        return chosen * (p * (1 - p)).sqrt()
    return p[rows, terms].sqrt()[:, None] * (chosen - p)


def term_shares(p: Tensor, weight: Tensor, *, is_multilabel: bool) -> Tensor:
    """(..., n, terms): squared length of W^T a for every term, without forming the vectors."""
    products = weight.double() @ weight.double().mT
    lengths = products.diagonal(dim1=-2, dim2=-1)[..., None, :]
    if is_multilabel:
        return p * (1 - p) * lengths
    if p.shape[-1] == 2:
        return (p[..., :1] * p[..., 1:]) * (lengths.sum(-1, keepdim=True) - 2 * products[..., :1, 1:])
    cross = p @ products
    spread = lengths - 2 * cross + (cross * p).sum(-1, keepdim=True)  # |w_y - sum_j p_j w_j|^2
    return p * spread.clamp_min(0)


@dataclass(frozen=True)
class Draw:
    """Drawn pairs, adjacent if of one task and image: indices, inclusion probabilities of pair and image."""

    tasks: Tensor
    images: Tensor
    terms: Tensor
    inclusion: Tensor
    image_inclusion: Tensor


def mix_with_uniform(shares: Tensor, labels: Tensor) -> Tensor:
    """Drawing probabilities (..., n, t), summing to one: mostly `shares`, a part uniform over images.

    Within an image the uniform part follows the shares again, with the textbook label probabilities as its own floor.
    """
    per_image = shares.sum(-1, keepdim=True)
    total = per_image.sum(-2, keepdim=True)
    within = torch.where(per_image > 0, shares / per_image.clamp_min(1e-300), labels)
    floor = (1 - UNIFORM_PART) * within + UNIFORM_PART * labels
    mixed = (1 - UNIFORM_PART) * shares / total + UNIFORM_PART * floor / shares.shape[-2]
    # A head that is certain of everything, or blind: no share is larger than another.
    return torch.where(total > 0, mixed, labels / labels.sum((-2, -1), keepdim=True))


def pair_chances(
    p: Tensor, weight: Tensor, image_weights: Tensor, *, is_multilabel: bool, is_plain: bool = False
) -> Tensor:
    """(..., n, terms) drawing probabilities of all pairs, summing to one: by share of the Fisher, or plainly y ~ p."""
    # The textbook draws y ~ p; where a term is no label, all terms of an image are as likely.
    labels = p if p.shape[-1] > 2 else torch.ones_like(p[..., :1])
    if is_multilabel:
        labels = torch.full_like(p, 1 / p.shape[-1])
    if is_plain:
        return labels / labels.sum((-2, -1), keepdim=True)
    return mix_with_uniform(term_shares(p, weight, is_multilabel=is_multilabel) * image_weights[..., None], labels)


def enough_pairs(chances: Tensor) -> Tensor:
    """How many of the pairs with (..., n, t) drawing probabilities leave little noise beside that of the n images.

    Example:
        >>> enough_pairs(torch.full((10, 20), 1 / 200)), enough_pairs(torch.full((10, 1), 1 / 10))
        (tensor(80.), tensor(10.))
    """
    return (ENOUGH / chances.square().sum((-2, -1))).round().clamp_min(chances.shape[-2])


def inclusion_probabilities(probabilities: Tensor, budget: Tensor | int) -> Tensor:
    """`budget` (...) times `probabilities` (..., n, t), cut at one; what is cut off is shared out among the others."""
    wanted = torch.as_tensor(budget)[..., None, None]
    is_possible = probabilities > 0
    certain = is_possible & (wanted >= is_possible.sum((-2, -1), keepdim=True))
    while True:
        rest = probabilities.masked_fill(certain, 0)
        left = wanted - certain.sum((-2, -1), keepdim=True)
        scaled = rest * left / rest.sum((-2, -1), keepdim=True).clamp_min(1e-300)
        over = scaled >= 1
        if not bool(over.any()):
            return torch.where(certain, torch.ones_like(scaled), scaled)
        certain |= over


def draw_pairs(probabilities: Tensor, budget: Tensor | int, *, generator: torch.Generator) -> Draw:
    """A systematic sample of about `budget` pairs from (n, t) `probabilities`, at most one of each.

    Or from those of each of some tasks (tasks, n, t); their samples begin with the same random number.
    """
    inclusion = inclusion_probabilities(probabilities, budget)
    flat = inclusion.flatten(-2)
    steps = torch.cumsum(flat, -1) + torch.rand((), dtype=torch.float64, generator=generator)
    previous = torch.cat([steps[..., :1] - flat[..., :1], steps[..., :-1]], dim=-1)
    is_drawn = ((steps.floor() > previous.floor()) | (flat >= 1)) & (flat > 0)
    inclusion = inclusion.view(-1, *inclusion.shape[-2:])
    tasks, images, terms = torch.nonzero(is_drawn.view_as(inclusion)).T
    # Pairs of one image lie next to each other, so a step lands in it with the sum of their probabilities.
    image_inclusion = inclusion.sum(2).clamp_max(1)
    return Draw(tasks, images, terms, inclusion[tasks, images, terms], image_inclusion[tasks, images])
