"""Adam for the model space, and the distances of all tasks from all experts as matrix products.

The symmetric distance needs two sums over filters for each pair, of q = m / (m + t) = sigmoid(log m - log t) and of
q^2 (see `distance.sums`). Both are smooth in x = log t: from Chebyshev points x_r in the range that the tasks have in a
filter, q(x) is sum_r L_r(x) sigmoid(y - x_r) with Lagrange's polynomials L_r, and in a range of 2 h the error falls by
(pi + sqrt(pi^2 + h^2)) / h with every point, for the nearest pole is pi away. The L_r of the tasks never change, so an
epoch is (tasks, filters x points) times (filters x points, experts).
"""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from task2vec.select.strategies.model_space import ModelSpaceSettings

POINTS = 12
_FLOOR, _NARROWEST = 1e-3, 1e-3


def train(
    log_tasks: np.ndarray,
    start: np.ndarray,
    errors: np.ndarray,
    *,
    offsets: np.ndarray,
    trivials: np.ndarray | None,
    settings: "ModelSpaceSettings",
) -> tuple[np.ndarray, float, float]:
    """Logarithms of the experts' vectors, gamma, and the loss.

    Args:
        log_tasks: (T, F) log-embeddings.
        start: (E, F) where experts lie at first.
        errors: (T, E), NaN where an expert does not count.
        offsets: (T, E) that are added to the distances.
        trivials: (E, F) log-embeddings of the trivial task; without them complexity does not count.
        settings: of the model space.
    """
    middle = log_tasks.mean(0)
    tasks = torch.from_numpy(log_tasks - middle).float()
    first = torch.from_numpy(start - middle).float()
    trivial = None if trivials is None else torch.from_numpy(trivials - middle).float()
    added = torch.from_numpy(np.ascontiguousarray(offsets)).float()
    labels = torch.from_numpy(make_labels(errors, settings.sharpness)).float()
    counted = torch.from_numpy(np.isfinite(errors))
    points, basis = interpolate(tasks)
    bias = torch.zeros_like(first, requires_grad=True)

    def find_distances() -> Tensor:
        places = move(first, bias, settings.form)
        distances = measure_all(points, basis, places) + added
        return distances if trivial is None else distances - settings.alpha * measure_rows(places, trivial)

    with torch.no_grad():
        spread = find_distances()[counted.any(1)].std(1).mean() if len(tasks) else torch.tensor(1.0)
        log_gamma = -torch.log(spread.clamp_min(1e-6))
    log_gamma.requires_grad_(True)
    decays = {"params": [bias], "weight_decay": settings.weight_decay}
    adam = torch.optim.AdamW([decays, {"params": [log_gamma], "weight_decay": 0.0}], lr=settings.learning_rate)
    for _ in range(settings.epochs):
        adam.zero_grad()
        loss = cross_entropy(find_distances(), labels, counted, log_gamma.exp())
        loss.backward()
        adam.step()
    with torch.no_grad():
        loss = cross_entropy(find_distances(), labels, counted, log_gamma.exp())
        places = move(first, bias, settings.form)
    return places.double().numpy() + middle, float(log_gamma.detach().exp()), float(loss)


def make_labels(errors: np.ndarray, sharpness: float) -> np.ndarray:
    """(T, E) softmax of -sharpness (error - mean) / std over what is known of each row; equal where all are equal."""
    labels = np.zeros(errors.shape)
    for label, row in zip(labels, errors, strict=True):
        known = np.isfinite(row)
        if known.any():
            centred = row[known] - row[known].mean()
            deviation = centred.std()
            exponents = -sharpness * centred / (deviation if deviation > 0 else 1)
            weights = np.exp(exponents - exponents.max())
            label[known] = weights / weights.sum()
    return labels


def cross_entropy(distances: Tensor, labels: Tensor, counted: Tensor, gamma: Tensor) -> Tensor:
    """Mean over tasks of -sum_j label_j log softmax_j(-gamma d), over experts that count."""
    rows = counted.any(1)
    logits = (-gamma * distances).masked_fill(~counted, -torch.inf)[rows]
    logs = torch.log_softmax(logits, 1).masked_fill(~counted[rows], 0)
    return -(labels[rows] * logs).sum(1).mean()


def move(first: Tensor, bias: Tensor, form: str) -> Tensor:
    """Logarithms of the experts' vectors, moved by their biases."""
    if form == "log":
        return first + bias
    values = first.exp()
    # In centred logarithms a filter's typical value is one.
    return torch.log(torch.maximum(values + bias, _FLOOR * values))


def interpolate(logs: Tensor, count: int = POINTS) -> tuple[Tensor, Tensor]:
    """(F, R) Chebyshev points in the range of each column, and (T, F R) Lagrange's polynomials of all entries."""
    low, high = logs.min(0).values.double(), logs.max(0).values.double()
    half = ((high - low) / 2).clamp_min(_NARROWEST)
    angles = (2 * torch.arange(count, dtype=torch.float64) + 1) * torch.pi / (2 * count)
    nodes, weights = torch.cos(angles), torch.sin(angles) * (-1.0) ** torch.arange(count)
    scaled = (logs.double() - (low + high) / 2) / half
    gaps = scaled[..., None] - nodes
    is_node = gaps.abs() < 1e-12
    terms = weights / gaps.masked_fill(is_node, 1)
    basis = terms / terms.sum(-1, keepdim=True)
    basis = torch.where(is_node.any(-1, keepdim=True), is_node.double(), basis)
    points = ((low + high) / 2)[:, None] + half[:, None] * nodes
    return points.float(), basis.float().flatten(1)


def measure_all(points: Tensor, basis: Tensor, places: Tensor) -> Tensor:
    """(T, E) symmetric distances of the interpolated tasks from experts at (E, F) places."""
    q = torch.sigmoid(places[..., None] - points).flatten(1)
    return finish(basis @ q.T, basis @ q.square().T, places.shape[1])


def measure_rows(one: Tensor, other: Tensor) -> Tensor:
    """Symmetric distances of rows from rows."""
    q = torch.sigmoid(one - other)
    return finish(q.sum(1), q.square().sum(1), one.shape[1])


def finish(s: Tensor, v: Tensor, count: int) -> Tensor:
    """1 - cosine of q and 1 - q from the sums of q and q^2."""
    return 1 - (s - v) / torch.sqrt((count - 2 * s + v) * v)
