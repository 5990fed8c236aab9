"""Models and tasks in one space: model2vec of Achille 2019, fitted on known errors.

Model j lies at m_j = F_j + b_j, where F_j is the embedding of its source task and b_j is learned, so that
softmax(-gamma d_asym(m_j -> t_i)) over the candidates of task i comes near to soft labels

    p_ij = softmax_j(-20 (error_ij - mean_i) / std_i)

in cross-entropy: Adam, learning rate 0.05, weight decay 5e-4, 81 epochs of all tasks at once. With `as_published` these
are the paper's, and F_j of an unknown source task is zero. In one point we always differ:

* Positive: m_j = F_j exp(b_j), so b_j moves logarithms, where the paper adds and does not say how m_j stays positive.
  Filters differ by orders of magnitude, and one step of Adam is of the same size in all of them: in logarithms 0.05
  means 5% everywhere.

What the paper leaves open and what we do:

* Mean and standard deviation of the labels are over the candidates of each task: the paper's index is the task's.
* gamma = exp(g) is learned without decay, and starts where distances within a task have a spread of one.
* Models that have seen a task, or whose error is not known, are not in its softmax.

Where we differ from the paper unless it is asked for:

* Unknown source task: F_j = 0 is the trivial embedding, which is far from every task and counts against the model. Here
  it is the mean of all tasks in logarithms.
* Weight decay is decoupled, as in AdamW. Added to the gradient, as Adam's own is, it would outweigh a gradient that
  thousands of filters share after a single step, and little would be fitted: of 49 taxa known in full, the best model
  was first for 18% and not for over 90%.

These were chosen after looking at tasks of ours. They were compared on the first bundle (ResNet-34, half of the images,
each task left out in turn), by the mean error of the choices in percent. Taxa: decoupled decay 25.2, in the gradient
30.5 (average-best 26.6, asymmetric 33.1). Labels: 33.5 and 31.9 (average-best 36.3, asymmetric 36.6); from the trivial
embedding 33.7; additive with decay in the gradient 34.2. The 22 labels do not distinguish them; the taxa decided, and
that what is known must be fitted.

It is fitted on some filters, evenly spread (`filters`): rankings of tasks that were left out correlate with those of
all by 0.94 to 0.99 (512 of 8,512, Spearman, one task of each family of the bundle), in a fifteenth of the time. What
the distance of the source task from a task is on all filters more than on these is added, so that before the first step
the ranking is that of the asymmetric distance.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from task2vec.distance import ALPHA, pairwise_from_logs
from task2vec.errors import UndefinedScoreError
from task2vec.metatask.view import SYMMETRIC, Query, View
from task2vec.select.strategies import Prediction, check_errors, find_known_errors, order_on_average

# The paper's: of the soft labels, of Adam, of b per step and learning rate.
_SHARPNESS = 20.0
_LEARNING_RATE = 0.05
_WEIGHT_DECAY = 5e-4


@dataclass(frozen=True, eq=False, repr=False)
class ModelSpace:
    """Models as points among tasks.

    Attributes:
        places: (M, filters) logarithms of the models' vectors.
        start: the same before the first step.
        filters: which these are.
        simplicity: (M) symmetric distance of each from its trivial embedding.
        gamma: how sharply distances become probabilities.
        loss: cross-entropy at the end.
        on_average: (M) mean effects, to order models at the same distance.
    """

    places: np.ndarray
    start: np.ndarray
    filters: np.ndarray
    simplicity: np.ndarray
    gamma: float
    loss: float
    on_average: np.ndarray

    def __repr__(self) -> str:
        """The space in one line."""
        return f"ModelSpace({len(self.places)} models, {len(self.filters)} filters, loss {self.loss:.3f})"

    def predict(self, query: Query) -> Prediction:
        """The nearest model first, by the asymmetric distance from where it lies now."""
        if query.vector is None:
            raise UndefinedScoreError(
                f"'{query.name}' has no embedding, so it has no place among the models. Embed it first."
            )
        log_task = np.log(query.vector[self.filters])[None]
        distances = _measure(self.places, log_task)[:, 0]
        known = query.to_sources.get(SYMMETRIC)
        if known is not None:
            distances = distances + np.nan_to_num(known - _measure(self.start, log_task)[:, 0])
        return Prediction(distances - ALPHA * self.simplicity, fallback=self.on_average)


def fit_model_space(view: View, *, epochs: int = 81, filters: int = 512, as_published: bool = False) -> ModelSpace:
    """Places models among tasks so that the near ones are those of small error (the paper's model2vec).

    Args:
        view: with embeddings of the tasks, and of source tasks where they are known.
        epochs: steps of Adam on all tasks.
        filters: how many are fitted at most.
        as_published: with the paper's weight decay, in the gradient of Adam, and F = 0 for unknown source tasks. Ours
            differs in both, see the top of this module.

    Raises:
        UndefinedScoreError: No task has an embedding, or no error is known.

    Example:
        >>> from task2vec.metatask import bundled_metatask
        >>> fit_model_space(bundled_metatask().select(family="labels"), epochs=2, filters=64)
        ModelSpace(7 models, 64 filters, loss ...)
    """
    tasks = len(view.tasks)
    if view.vectors is None or not np.isfinite(view.vectors[:tasks]).all():
        raise UndefinedScoreError(
            "not every task of the meta-task has an embedding, so models cannot be placed among them. Give embeddings, "
            "or leave the model space out."
        )
    check_errors(view)
    count = view.vectors.shape[1]
    columns = np.linspace(0, count - 1, min(filters, count)).round().astype(int)
    log_tasks = np.log(view.vectors[:tasks, columns])
    sources = np.log(view.pick_sources(view.vectors[:, columns]))
    trivials, unknown = None, log_tasks.mean(0)
    if view.trivial_vectors is not None:
        log_trivials = np.log(view.trivial_vectors[:, columns])
        unknown = log_trivials[:tasks].mean(0) if as_published else unknown
        trivials = view.pick_sources(log_trivials)
        is_known = np.all(np.isfinite(trivials), axis=1)
        trivials = np.where(is_known[:, None], trivials, trivials[is_known].mean(0)) if is_known.any() else None
    start = np.where(np.isfinite(sources).all(1, keepdims=True), sources, unknown)
    # What distances on all filters are more than on these; unknown is none.
    on_columns = _measure(log_tasks, start)
    offsets = np.nan_to_num(view.to_sources(SYMMETRIC) - on_columns) if SYMMETRIC in view.distances else 0 * on_columns
    optimiser = torch.optim.Adam if as_published else torch.optim.AdamW
    places, gamma, loss = _train(log_tasks, start, find_known_errors(view), offsets, trivials, epochs, optimiser)
    simplicity = np.zeros(len(places))
    if trivials is not None:
        before, simplicity = (np.diagonal(_measure(rows, trivials)).copy() for rows in (start, places))
        if view.trivial_distances is not None:
            simplicity += np.nan_to_num(view.pick_sources(view.trivial_distances) - before)
    return ModelSpace(places, start, columns, simplicity, gamma, loss, order_on_average(view))


def _measure(logs: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Symmetric distances of log-embeddings from others."""
    return pairwise_from_logs(logs, others=others, device="cpu")


# --- training --------------------------------------------------------------------------------------------------------


def _train(
    log_tasks: np.ndarray,
    start: np.ndarray,
    errors: np.ndarray,
    offsets: np.ndarray,
    trivials: np.ndarray | None,
    epochs: int,
    optimiser: type[torch.optim.Optimizer],
) -> tuple[np.ndarray, float, float]:
    """Logarithms of the models' vectors, gamma, and the loss.

    Args:
        log_tasks: (T, F) log-embeddings.
        start: (M, F) where models lie at first.
        errors: (T, M), NaN where a model does not count.
        offsets: (T, M) that are added to the distances.
        trivials: (M, F) log-embeddings of the trivial task; without them complexity does not count.
        epochs: steps of Adam.
        optimiser: Adam, with weight decay in the gradient, or AdamW, with decoupled one.
    """
    middle = log_tasks.mean(0)
    tasks, first = torch.from_numpy(log_tasks - middle).float().exp(), torch.from_numpy(start - middle).float()
    trivial = None if trivials is None else torch.from_numpy(trivials - middle).float()
    added, labels = (torch.from_numpy(values).float() for values in (offsets, make_labels(errors)))
    counted = torch.from_numpy(np.isfinite(errors))
    bias = torch.zeros_like(first, requires_grad=True)

    def find_distances() -> Tensor:
        places = first + bias
        distances = measure_shares(*ShareSums.apply(places.exp(), tasks), places.shape[1]) + added  # type: ignore[misc]
        if trivial is None:
            return distances
        q = torch.sigmoid(trivial - places)
        return distances - ALPHA * measure_shares(q.sum(1), q.square().sum(1), places.shape[1])

    with torch.no_grad():
        # One model alone has no spread, and nothing to be compared with.
        has_spread = len(tasks) > 0 and len(first) > 1
        spread = find_distances()[counted.any(1)].std(1).mean() if has_spread else torch.tensor(1.0)
        log_gamma = -torch.log(spread.clamp_min(1e-6))
    log_gamma.requires_grad_(True)
    decays = {"params": [bias], "weight_decay": _WEIGHT_DECAY}
    adam = optimiser([decays, {"params": [log_gamma], "weight_decay": 0.0}], lr=_LEARNING_RATE)  # type: ignore[call-arg]
    for _ in range(epochs):
        adam.zero_grad()
        cross_entropy(find_distances(), labels, counted, log_gamma.exp()).backward()
        adam.step()
    with torch.no_grad():
        loss = cross_entropy(find_distances(), labels, counted, log_gamma.exp())
    return (first + bias).detach().double().numpy() + middle, float(log_gamma.detach().exp()), float(loss)


def make_labels(errors: np.ndarray) -> np.ndarray:
    """(T, M) softmax of -20 (error - mean) / std over what is known of each row; equal where all are equal."""
    known = np.ma.masked_invalid(errors)
    deviations = known.std(1, keepdims=True)
    exponents = -_SHARPNESS * (known - known.min(1, keepdims=True)) / np.ma.where(deviations > 0, deviations, 1)
    weights = np.ma.exp(exponents)
    return (weights / weights.sum(1, keepdims=True)).filled(0)


class ShareSums(torch.autograd.Function):
    """Sums over filters of q = m / (m + t) and of q^2 for all pairs of T tasks and M models, (T, M) each.

    One model at a time, so that its shares stay in the cache, where they are computed again for the gradient,
    dq / dm = q (1 - q) / m. With the gradient by torch the fit takes 1.5 times as long.
    """

    @staticmethod
    def forward(ctx, models: Tensor, tasks: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """The sums of (M, F) models with (T, F) tasks."""
        ctx.save_for_backward(models, tasks)
        shares = (model / (model + tasks) for model in models)
        sums, squares = zip(*((q.sum(1), q.square().sum(1)) for q in shares), strict=True)
        return torch.stack(sums, 1), torch.stack(squares, 1)

    @staticmethod
    def backward(ctx, slopes: Tensor, square_slopes: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        """The gradient by the models."""
        models, tasks = ctx.saved_tensors
        gradient = torch.empty_like(models)
        for number, model in enumerate(models):
            q = model / (model + tasks)
            rises = q - q.square()
            gradient[number] = slopes[:, number] @ rises + 2 * square_slopes[:, number] @ (q * rises)
        return gradient / models, None


def measure_shares(sums: Tensor, squares: Tensor, filters: int) -> Tensor:
    """The distance of m and t from sums over filters of q = m / (m + t) and of q^2: 1 - cosine of q and 1 - q.

    `task2vec.distance` has the same formula without a gradient. Here sums over 1 - q come from those over q, and cancel
    unless m is mostly the smaller one.
    """
    return 1 - (sums - squares) / torch.sqrt((filters - 2 * sums + squares) * squares)


def cross_entropy(distances: Tensor, labels: Tensor, counted: Tensor, gamma: Tensor) -> Tensor:
    """Mean over tasks of -sum_j label_j log softmax_j(-gamma d), over models that count."""
    rows = counted.any(1)
    logits = (-gamma * distances).masked_fill(~counted, -torch.inf)[rows]
    logs = torch.log_softmax(logits, 1).masked_fill(~counted[rows], 0)
    return -(labels[rows] * logs).sum(1).mean()
