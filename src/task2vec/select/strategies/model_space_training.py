"""Adam for the model space, and the distances of all tasks from all experts with their gradient.

The symmetric distance needs two sums over filters for each pair, of q = m / (m + t) and of q^2 (see `distance.sums`),
and with d q / d log m = q (1 - q) the gradient of a loss with slopes A and B by the two sums is

    sum over tasks of (A + 2 B q) q (1 - q) = q (A + q ((2 B - A) - 2 B q))

so that an epoch is a dozen plain operations on (tasks, experts, filters), and no exponential.
"""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from task2vec.select.strategies.model_space import ModelSpaceSettings

_FLOOR = 1e-3
# Numbers of a block that a processor's cache holds.
_BLOCK = 1 << 17


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
    tasks = torch.from_numpy(log_tasks - middle).float().exp()
    first = torch.from_numpy(start - middle).float()
    trivial = None if trivials is None else torch.from_numpy(trivials - middle).float()
    added = torch.from_numpy(np.ascontiguousarray(offsets)).float()
    labels = torch.from_numpy(make_labels(errors, settings.sharpness)).float()
    counted = torch.from_numpy(np.isfinite(errors))
    bias = torch.zeros_like(first, requires_grad=True)

    def find_distances() -> Tensor:
        places = move(first, bias, settings.form)
        distances = measure_all(tasks, places) + added
        return distances if trivial is None else distances - settings.alpha * measure_rows(places, trivial)

    with torch.no_grad():
        # One expert alone has no spread, and nothing to be told from.
        has_spread = len(tasks) > 0 and len(first) > 1
        spread = find_distances()[counted.any(1)].std(1).mean() if has_spread else torch.tensor(1.0)
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


def measure_all(tasks: Tensor, places: Tensor) -> Tensor:
    """(T, E) symmetric distances of tasks with (T, F) vectors from experts with (E, F) logarithms."""
    sums: tuple[Tensor, Tensor] = _Sums.apply(tasks, places)  # type: ignore[assignment]
    return finish(*sums, places.shape[1])


class _Sums(torch.autograd.Function):
    """Sums of q and q^2 of all pairs, (T, E) each, some experts at a time: blocks that a cache holds."""

    @staticmethod
    def forward(ctx, tasks: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """The sums; q is kept for the way back."""
        models, kept = places.exp()[:, None], places.new_empty(len(places), *tasks.shape)
        sums = places.new_empty(2, len(places), len(tasks))
        for some in _cut(kept):
            q = torch.add(models[some], tasks, out=kept[some])
            torch.div(models[some], q, out=q)
            torch.sum(q, -1, out=sums[0, some])
            torch.sum(q.square(), -1, out=sums[1, some])
        ctx.save_for_backward(kept)
        return sums[0].T, sums[1].T

    @staticmethod
    def backward(ctx, ds: Tensor, dv: Tensor) -> tuple[None, Tensor]:  # type: ignore[override]
        """What a shift of each expert's logarithms does."""
        (kept,) = ctx.saved_tensors
        a, b = ds.T[..., None], 2 * dv.T[..., None]
        found = kept.new_empty(len(kept), kept.shape[2])
        for some in _cut(kept):
            slope = kept[some] * -b[some]
            slope.add_((b - a)[some]).mul_(kept[some]).add_(a[some]).mul_(kept[some])
            torch.sum(slope, 1, out=found[some])
        return None, found


def _cut(kept: Tensor) -> list[slice]:
    step = max(1, _BLOCK * len(kept) // kept.numel())
    return [slice(start, min(start + step, len(kept))) for start in range(0, len(kept), step)]


def measure_rows(one: Tensor, other: Tensor) -> Tensor:
    """Symmetric distances of rows from rows."""
    q = torch.sigmoid(one - other)
    return finish(q.sum(1), q.square().sum(1), one.shape[1])


def finish(s: Tensor, v: Tensor, count: int) -> Tensor:
    """1 - cosine of q and 1 - q from the sums of q and q^2."""
    return 1 - (s - v) / torch.sqrt((count - 2 * s + v) * v)
