"""The same formulas as in the files of the distances, for blocks of pairs, in float64 on any device.

A kernel takes log-embeddings (rows, 1, filters) and (1, columns, filters), and which filters count for which pair
(rows, columns, filters; None for all). It returns (rows, columns), with NaN where its scale does not suffice and the
pair is to be computed by itself.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from task2vec.distance.gaussian import LARGEST_LOG_RATIO

Kernel = Callable[[Tensor, Tensor, Tensor | None], Tensor]

# Sums of squares below this have lost their digits to underflow.
_TINY = 1e-200


def _total(values: Tensor, counted: Tensor | None) -> Tensor:
    return values.sum(-1) if counted is None else torch.where(counted, values, 0).sum(-1)


def _mean(values: Tensor, counted: Tensor | None) -> Tensor:
    return values.mean(-1) if counted is None else _total(values, counted) / counted.sum(-1)


def _spread(values: Tensor, counted: Tensor | None) -> Tensor:
    """Highest less lowest of the values that count."""
    if counted is None:
        return values.amax(-1) - values.amin(-1)
    inf = float("inf")
    return torch.where(counted, values, -inf).amax(-1) - torch.where(counted, values, inf).amin(-1)


def _angle(a: Tensor, b: Tensor, counted: Tensor | None) -> Tensor:
    """1 - cos of the angle between a and b, from the difference of their directions."""
    squares = [_total(side.square().expand(torch.broadcast_shapes(a.shape, b.shape)), counted) for side in (a, b)]
    apart = a / squares[0].sqrt()[..., None] - b / squares[1].sqrt()[..., None]
    result = _total(apart.square_(), counted) / 2
    return result.masked_fill(torch.minimum(*squares) < _TINY, float("nan"))


def _cosine(a: Tensor, b: Tensor, counted: Tensor | None) -> Tensor:
    return _angle((a - a.amax(-1, keepdim=True)).exp(), (b - b.amax(-1, keepdim=True)).exp(), counted).clamp_max(1)


def _correlation(a: Tensor, b: Tensor, counted: Tensor | None) -> Tensor:
    a, b = torch.broadcast_tensors(a, b)
    is_flat = _spread(a, counted) == 0, _spread(b, counted) == 0
    a, b = a - _mean(a, counted)[..., None], b - _mean(b, counted)[..., None]
    result = _angle(a, b, counted).clamp_max(2)
    return torch.where(is_flat[0] & is_flat[1], 0.0, torch.where(is_flat[0] | is_flat[1], 1.0, result))


def _euclidean(a: Tensor, b: Tensor, counted: Tensor | None) -> Tensor:
    largest = torch.maximum(a.amax(-1), b.amax(-1))
    apart = (a - largest[..., None]).exp() - (b - largest[..., None]).exp()
    squares = _total(apart.square_(), counted)
    return (squares.sqrt() * largest.exp()).masked_fill((squares < _TINY) & (squares > 0), float("nan"))


def _log_euclidean(a: Tensor, b: Tensor, counted: Tensor | None) -> Tensor:
    return _mean((a - b).square_(), counted).sqrt()


def _centred_log_euclidean(a: Tensor, b: Tensor, counted: Tensor | None) -> Tensor:
    u = a - b
    variance = _mean((u - _mean(u, counted)[..., None]).square_(), counted)
    return variance.sqrt().masked_fill(_spread(u, counted) == 0, 0)


def _kl(a: Tensor, b: Tensor, counted: Tensor | None) -> Tensor:
    ratio = (b - a).clamp_max_(LARGEST_LOG_RATIO)
    return _mean((ratio.expm1() - ratio).div_(2), counted).clamp_min(0)


def _jeffreys(a: Tensor, b: Tensor, counted: Tensor | None) -> Tensor:
    u = (a - b).clamp_(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    return _mean(u.div_(2).sinh_().square_().mul_(2), counted)


def _jensen_shannon(a: Tensor, b: Tensor, counted: Tensor | None) -> Tensor:
    shape, inf = torch.broadcast_shapes(a.shape, b.shape), float("inf")
    sides = [a, b] if counted is None else [torch.where(counted, side.expand(shape), -inf) for side in (a, b)]
    log_p, log_q = (side - side.logsumexp(-1, keepdim=True) for side in sides)
    v = (log_p - log_q).abs_()
    v = v if counted is None else v.masked_fill_(~counted, 0)
    t = (v / 2).tanh()
    near = torch.log1p(-t.clamp_max(0.5).square())
    far = 2 * torch.log(v.new_tensor(2.0)) - v - 2 * torch.log1p((-v).exp())
    parts = (log_p.exp() + log_q.exp()) / 4 * (v * t + torch.where(t < 0.5, near, far))
    return (parts.sum(-1) / torch.log(v.new_tensor(2.0))).clamp(0, 1).sqrt()


KERNELS: dict[str, Kernel] = {
    "centred_log_euclidean": _centred_log_euclidean,
    "correlation": _correlation,
    "cosine": _cosine,
    "euclidean": _euclidean,
    "jeffreys": _jeffreys,
    "jensen_shannon": _jensen_shannon,
    "kl": _kl,
    "log_euclidean": _log_euclidean,
}
