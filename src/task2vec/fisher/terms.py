"""The Fisher of one image as a sum of rank-one terms at the logits, and the share of each term.

For logits z with p = softmax(z) the inner expectation over labels drawn from the model is

    E_y[(e_y - p)(e_y - p)^T] = diag(p) - p p^T = sum_y a_y a_y^T   with   a_y = sqrt(p_y) (e_y - p),

and for independent attributes with p = sigmoid(z) it is diag(p (1 - p)), so a_c = sqrt(p_c (1 - p_c)) e_c.
Back-propagating
one term through the head and the probe gives its part of the Fisher exactly. With two classes the two terms are
parallel and become one, a = sqrt(p_0 p_1) (1, -1): one backward pass and no label noise.

The squared length of W^T a, the gradient at the pooled features, is known as soon as the head is fitted, and predicts
how much of the Fisher a term will bring. Terms are drawn in proportion to it (see `sampling`).
"""

import torch
from torch import Tensor


def count_terms(classes: int, *, is_multilabel: bool) -> int:
    """Number of rank-one terms per image."""
    return 1 if classes == 2 and not is_multilabel else classes


def probabilities(logits: Tensor, *, is_multilabel: bool) -> Tensor:
    """(n, c) model probabilities, in float64: the differences 1 - p below cancel in float32."""
    logits = logits.double()
    return logits.sigmoid() if is_multilabel else logits.softmax(1)


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
    """(n, terms): squared length of W^T a for every term, without forming the vectors."""
    products = weight.double() @ weight.double().T
    if is_multilabel:
        return p * (1 - p) * products.diagonal()
    if p.shape[1] == 2:
        return (p[:, :1] * p[:, 1:]) * (products[0, 0] + products[1, 1] - 2 * products[0, 1])
    cross = p @ products
    spread = products.diagonal() - 2 * cross + (cross * p).sum(1, keepdim=True)  # |w_y - sum_j p_j w_j|^2
    return p * spread.clamp_min(0)


def label_probabilities(p: Tensor, *, is_multilabel: bool) -> Tensor:
    """(n, terms) summing to 1 per image: the textbook draw y ~ p for classes, uniform where a term is no label."""
    if is_multilabel:
        return torch.full_like(p, 1 / p.shape[1])
    return torch.ones_like(p[:, :1]) if p.shape[1] == 2 else p
