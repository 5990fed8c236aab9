"""The head: a linear classifier on pooled features, fitted to convergence with an explicit L2 penalty.

    minimise  sum_i omega_i loss(W x_i + b, y_i) + (q / 2) s^2 |W|^2

with softmax cross-entropy for one label per image and the sum of binary cross-entropies for independent attributes. The
image weights omega sum to one; balanced, every class has the same total weight, as when the paper draws images
uniformly over classes. s^2 is the mean squared distance of the features from their mean, so the penalty q has no unit
and means the same for every probe; the bias is not penalised.

The penalty decides how soft the probabilities are, and so the scale of the Fisher: too small, and the head is certain
of every training image, which leaves no Fisher at all. It is q = l2 / C for C classes (`find_penalty`), with the same
`l2` for all tasks: in a mean loss each class has 1 / C of the weight, so the penalty weighs as much as a fixed share of
the images of each class, for any number of classes. A penalty that each task chooses by cross-validation would be the
largest noise of an embedding: over random halves of a task, the logarithm of the norm then has a standard deviation of
0.34 to 0.37 instead of 0.06 (docs/measured/steadiness.json). Cross-validation only measures the error.

Training splits (seeds and sizes of the training set of an error matrix) share their features, too. Every split has its
own mean, scale, folds, cross-validated penalty and head; images outside of it have no weight.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from task2vec.head.problem import CHUNK, MEMORY, MIN_IMAGES_PER_CLASS, Problem, compress, make_problem, whiten

FOLDS = 5
L2 = 2e-3
# The tolerance is relative to the first gradient, whose entries are tiny for many classes and features.
_STOP = {"tolerance": 1e-5, "max_steps": 1000}
# The folds move the error of a small task: it is averaged over repetitions, up to so many predicted images in all.
REPETITIONS = 5
MAX_REPEATED = 1200
# Cross-validation uses at most so many images, evenly over the classes.
MAX_VALIDATED = 4000

# For splits: the error of a head hardly changes within a decade.
SPLIT_L2_GRID = tuple(10.0**e for e in (-6, -5, -4, -3, -2, -1, 0))
# Ten steps of history would save a tenth of the steps, but each would take a GPU half as long again.
_SPLIT_STOP = {"tolerance": 1e-3, "max_steps": 200, "history": 4}
# Splits share a call as long as a pass over their images takes no more multiplications than this: each split then reads
# the images of all, which pays only where launching the work takes longer than doing it.
_MAX_PRODUCTS = {"cpu": 1 << 26, "cuda": 1 << 33}
_MIN_MEMORY = 1 << 20


@dataclass(frozen=True)
class Head:
    """A fitted classifier and how well it does; errors are class-balanced, or averaged over attributes.

    Cross-validated figures are of the images that can be judged (see `assign_folds`); if none can, they are those of a
    head that knows nothing. It beats chance if its error is more than a standard error below that of guessing. `l2` is
    the penalty q of the objective.
    """

    weight: Tensor
    bias: Tensor
    l2: float
    train_loss: float
    cv_loss: float
    cv_error: float
    beats_chance: bool
    has_converged: bool

    def logits(self, features: Tensor) -> Tensor:
        """(n, c) in float64."""
        return torch.cat([chunk.double() @ self.weight.T + self.bias for chunk in features.split(CHUNK["cpu"])])


def fit_head(
    features: Tensor,
    targets: Tensor,
    *,
    classes: int,
    l2: float = L2,
    balance: bool = True,
    groups: Tensor | None = None,
) -> Head:
    """The head of a task on (n, d) `features`; `targets` are (n,) class indices or (n, c) zeros and ones.

    Deterministic: folds follow from the order of the images, and the solver starts at zero.
    """
    return fit_heads(features, targets[None], classes=classes, l2=l2, balance=balance, groups=groups)[0]


def fit_heads(
    features: Tensor,
    targets: Tensor,
    *,
    classes: int,
    l2: float = L2,
    balance: bool = True,
    groups: Tensor | None = None,
    members: Sequence[Tensor] | None = None,
) -> list[Head]:
    """The heads of tasks on the same features; `targets` are (tasks, n) class indices or (tasks, n, c) zeros and ones.

    Fitted together, since that takes a fraction of the time; each is the head that its task has alone, but for
    rounding. Images with the same number in `groups` (n,), such as copies, are in the same fold. `members` are the
    images of each task, if it does not have all of them; then all tasks must be small (see `is_small`), on at most
    `MAX_VALIDATED` images.
    """
    l2 = find_penalty(l2, classes, is_multilabel=targets.ndim == 3)
    whole = _make_whole(features, targets, classes=classes, balance=balance, members=members)
    problem, basis = compress(whole)
    white = whiten(problem, l2) if members is None else problem
    weights = whole.weights
    groups = torch.arange(len(problem), device=features.device) if groups is None else groups
    tasks = torch.arange(len(weights), device=features.device)
    penalties = torch.full(tasks.shape, l2, dtype=torch.float64, device=features.device)
    # Of many images, every task is validated on a subset of its own, so each is validated alone.
    parts, source = (tasks.split(1), problem) if len(problem) > MAX_VALIDATED else ([tasks], white)
    validated: list[list[float]] = []
    for batch in parts:
        validated += _validate(source.select(batch), penalties[:1], groups, members)
    heads = []
    for batch in tasks.split(problem.count_together()):
        solution, loss, converged = white.solve(weights[batch], penalties[batch], batch, **_STOP)
        weight, bias = white.to_heads(solution, batch)
        weight = weight if basis is None else weight @ basis.T
        bias = bias - weight @ whole.centre
        train_loss = loss - l2 / 2 * whole.scales[batch].square() * weight.square().sum((1, 2))
        figures = torch.stack([train_loss, converged], dim=1).tolist()  # all at once: each read makes a GPU wait
        for i, (loss, has_converged) in enumerate(figures):
            cv_loss, cv_error, beats_chance = validated[len(heads)]
            heads.append(Head(weight[i], bias[i], l2, loss, cv_loss, cv_error, bool(beats_chance), bool(has_converged)))
    return heads


def predict_held_out(
    features: Tensor,
    targets: Tensor,
    *,
    classes: int,
    penalty: float = 1e-3,
    balance: bool = True,
    groups: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(n, c) probabilities and votes of heads fitted without the image and its group, and (n,) which can be judged.

    The heads are like those whose error `fit_head` reports, but of all images, and with one `penalty` beside a mean
    loss for any number of classes, with which wrong labels are found best (`benchmarks/report.py`). Probabilities
    are averaged over repetitions, attributes have one each; votes are the share of repetitions that predict the class.
    See `assign_folds` for the images that can be judged.

    Example:
        >>> features = torch.tensor([[-1.0], [-1.1], [-0.9], [1.0], [1.1], [-1.05]])
        >>> probabilities, _, is_judged = predict_held_out(features, torch.tensor([0, 0, 0, 1, 1, 1]), classes=2)
        >>> probabilities.argmax(1).tolist()  # the last one has the wrong label
        [0, 0, 0, 1, 1, 0]
    """
    whole = _make_whole(features, targets[None], classes=classes, balance=balance)
    groups = torch.arange(len(whole), device=features.device) if groups is None else groups
    held_out = torch.zeros(2, *whole.onehot.shape, device=features.device)
    penalties = torch.tensor([penalty], dtype=torch.float64, device=features.device)
    _, _, is_judged, _ = _hold_out(whiten(compress(whole)[0], penalty), penalties, groups, held_out)
    return held_out[0, 0], held_out[1, 0], is_judged[0]


def is_small(images: int, classes: int) -> bool:
    """Whether a task with one label per image can be fitted together with tasks on other images.

    Its problem is not whitened when it is alone, and its error is averaged over all repetitions.
    """
    return images < MIN_IMAGES_PER_CLASS * classes and images <= MAX_REPEATED // REPETITIONS


def _make_whole(
    features: Tensor, targets: Tensor, *, classes: int, balance: bool, members: Sequence[Tensor] | None = None
) -> Problem:
    """The problem of tasks with (tasks, n) or (tasks, n, c) targets, as `fit_heads` takes them."""
    kind = {"is_multilabel": targets.ndim == 3}
    onehot = to_onehot(targets, classes, **kind)
    if members is None:
        return make_problem(features, onehot, image_weights(onehot, **kind, balance=balance), **kind)
    # The targets of images without weight do not matter.
    return make_problem(features, onehot, weigh_parts(onehot, members, **kind, balance=balance), **kind)


def find_penalty(l2: float, classes: int, *, is_multilabel: bool) -> float:
    """The penalty beside a mean loss, for any number of classes from the same setting `l2`.

    A softmax of two classes with the penalty q on both columns is the sigmoid of their difference with the penalty
    q / 2. So independent attributes, whose losses are summed, have half of that of two classes: an attribute has the
    head that the same question has as a task of two classes.

    Example:
        >>> find_penalty(2e-3, 2, is_multilabel=False), find_penalty(2e-3, 7, is_multilabel=True)
        (0.001, 0.0005)
    """
    return l2 / (4 if is_multilabel else classes)


def to_onehot(targets: Tensor, classes: int, *, is_multilabel: bool) -> Tensor:
    """Targets as (..., c) zeros and ones in float64."""
    return targets.double() if is_multilabel else functional.one_hot(targets, classes).double()


def image_weights(onehot: Tensor, *, is_multilabel: bool, balance: bool) -> Tensor:
    """(..., n) weights summing to one: every class the same weight in all, or every image the same.

    Attributes have no single class to balance, so their images always have the same weight.
    """
    if is_multilabel or not balance:
        return torch.full(onehot.shape[:-1], 1 / onehot.shape[-2], dtype=torch.float64, device=onehot.device)
    per_class = onehot.sum(-2, keepdim=True)
    return (onehot / per_class.clamp_min(1)).sum(-1) / (per_class > 0).sum(-1)


def weigh_parts(onehot: Tensor, parts: Sequence[Tensor], *, is_multilabel: bool, balance: bool) -> Tensor:
    """(tasks, n) weights of the images of each task, which are a part of all; zero for the others."""
    weights = onehot.new_zeros(onehot.shape[:2])
    for task, images in enumerate(parts):
        weights[task, images] = image_weights(onehot[task, images], is_multilabel=is_multilabel, balance=balance)
    return weights


def _validate(
    problem: Problem, l2: Tensor, groups: Tensor, members: Sequence[Tensor] | None = None
) -> list[list[float]]:
    """The held-out loss and class-balanced error of every task, and whether it beats chance, for `l2` (1,)."""
    if len(problem) > MAX_VALIDATED:
        order = (problem.onehot[0].argmax(1) * (not problem.is_multilabel)).argsort(stable=True)
        images = order[torch.linspace(0, len(order) - 1, MAX_VALIDATED, device=order.device).long()]
        problem = problem.select(images=images)
        groups = groups[images].unique(return_inverse=True)[1]
        problem = whiten(problem, float(l2))
    losses, errors, is_judged, error_weights = _hold_out(problem, l2, groups, members=members)
    judged = problem.onehot * is_judged[..., None]
    # Guessing errs in all classes but one, or every second time; images of a group are right or wrong together.
    known = torch.full_like(losses, 2) if problem.is_multilabel else (judged.sum(1) > 0).sum(1, keepdim=True)
    chance = 1 - 1 / known.clamp_min(2)
    shares = torch.zeros_like(error_weights[..., 0]).index_add(1, groups, error_weights.sum(2))
    least = chance - (shares.square().sum(1, keepdim=True) * chance * (1 - chance)).sqrt()
    classes = problem.onehot.shape[2]
    nothing = losses.new_tensor([[math.log(classes), 1 - 1 / classes, False]])
    figures = torch.cat([losses, errors, errors < least], dim=1)
    return torch.where(losses.isnan(), nothing, figures).tolist()


def _hold_out(
    problem: Problem,
    l2: Tensor,
    groups: Tensor,
    held_out: Tensor | None = None,
    members: Sequence[Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(tasks, 1) held-out losses and errors, (tasks, n) which images are judged, and (tasks, n, 1 or c) error weights.

    Single precision is enough, and twice as fast. `held_out` is that of `cross_validate`.
    """
    problem = replace(problem, dtype=torch.float32)
    kind = {"is_multilabel": problem.is_multilabel}
    if members is None:
        repetitions = max(1, min(REPETITIONS, MAX_REPEATED // (int(groups.max()) + 1)))
        folds, is_judged = assign_folds(problem.onehot, groups=groups, repetitions=repetitions, **kind)
    else:
        folds, is_judged = assign_part_folds(problem.onehot, members, groups=groups, repetitions=REPETITIONS, **kind)
    error_weights = _error_weights(problem.onehot * is_judged[..., None], **kind)
    # The gradients of a whitened problem have other lengths; either way losses are right to about 1%.
    stop = _STOP | {"max_steps": 100, "tolerance": 1e-2 if problem.factor is None else 3e-3}
    together = problem.count_together()
    losses, errors, _ = cross_validate(
        problem, l2, folds, is_judged, together=together, error_weights=error_weights, held_out=held_out, **stop
    )
    return losses, errors, is_judged, error_weights


def _error_weights(onehot: Tensor, *, is_multilabel: bool) -> Tensor:
    """(tasks, n, 1) what a wrong answer counts, every class the same in all; (tasks, n, c) so for either value."""
    if not is_multilabel:
        return image_weights(onehot, is_multilabel=False, balance=True)[..., None]
    shares = [values / values.sum(1, keepdim=True).clamp_min(1) for values in (onehot, 1 - onehot)]
    return (shares[0] + shares[1]) / 2 / onehot.shape[2]


# --- cross-validation -------------------------------------------------------------------------------------------------


def cross_validate(
    problem: Problem,
    grid: Tensor,
    folds: Tensor,
    is_judged: Tensor,
    *,
    together: int,
    error_weights: Tensor | None = None,
    held_out: Tensor | None = None,
    fit_all: bool = False,
    from_base_rates: bool = False,
    **stop,
) -> tuple[Tensor, Tensor, Tensor]:
    """(tasks, penalties) held-out losses, held-out errors, and (tasks, penalties, d + 1, columns) solutions.

    Losses are NaN for a task without judged images. Errors are zero without their weights. Solutions are those on all
    images, with `fit_all`; else there are none.

    Folds, penalties and (with `fit_all`) the heads on all images are problems of the same calls of the solver, since
    its steps take a GPU the same time for one problem and for hundreds.

    Args:
        problem: the tasks.
        grid: (penalties,).
        folds: (tasks, repetitions, n) the fold of each image; -1 for images that are not of the task, which have no
            weight.
        is_judged: (tasks, n) which images count for the loss.
        together: how many heads are fitted at a time.
        error_weights: (tasks, n, 1 or c) what a wrong answer counts.
        held_out: (2, tasks, n, c) to which the probabilities of all images by heads without them, and ones for what
            these predict, are added, averaged over repetitions and penalties.
        fit_all: fit heads on all images as well.
        from_base_rates: start attributes (common to all tasks) at the log odds of their rates, for rare ones are far
            from zero.
        stop: arguments of `Problem.solve`.
    """
    tasks, repetitions, _ = folds.shape
    device = grid.device
    count = int(folds.max()) + 1
    shape = (tasks, repetitions, count + fit_all, len(grid))
    losses, errors = torch.zeros(2, *shape, dtype=torch.float64, device=device)
    solutions = []
    judging = problem.weights * is_judged
    # The last "fold", if there is one too many, holds nothing out.
    jobs = torch.cartesian_prod(*(torch.arange(size, device=device) for size in shape))
    for batch in jobs.split(together):
        task, repetition, held, chosen = batch.T
        is_out = folds[task, repetition] == held[:, None]
        train = problem.weights[task] * ~is_out
        train = train / train.sum(1, keepdim=True).clamp_min(1e-12)
        biases = _log_odds(problem, train) if from_base_rates and problem.is_multilabel else None
        solution, _, _ = problem.solve(train, grid[chosen], task, biases=biases, **stop)
        logits = problem.logits(solution, task)
        targets = problem.targets(task)
        losses[task, repetition, held, chosen] = (problem.losses(logits, targets) * is_out * judging[task]).sum(1)
        if error_weights is not None:
            if problem.is_multilabel:
                is_wrong = (logits > 0) != targets.bool()
            else:
                is_wrong = (logits.argmax(2) != targets.argmax(2))[..., None]
            errors[task, repetition, held, chosen] = (is_wrong * is_out[..., None] * error_weights[task]).sum((1, 2))
        if held_out is not None:
            p = logits.sigmoid() if problem.is_multilabel else logits.softmax(2)
            votes = p > 0.5 if problem.is_multilabel else functional.one_hot(p.argmax(2), p.shape[2])
            for sums, values in zip(held_out, (p, votes), strict=True):
                sums.index_add_(0, task, (values * is_out[..., None]).to(sums), alpha=1 / (repetitions * len(grid)))
        solutions.append(solution[held == count])
    mean_losses = losses.sum(2).mean(1) / judging.sum(1, keepdim=True)
    solved = torch.cat(solutions).unflatten(0, (tasks if fit_all else 0, len(grid)))
    return mean_losses, errors.sum(2).mean(1), solved


def _log_odds(problem: Problem, train: Tensor) -> Tensor:
    """(p, c) log odds of the common attributes among the training images."""
    least = 0.5 / (train > 0).sum(1, keepdim=True).clamp_min(1)
    return torch.clamp(train @ problem.onehot[0], least, 1 - least).logit()


def assign_folds(
    onehot: Tensor, *, is_multilabel: bool, groups: Tensor | None = None, repetitions: int = 1
) -> tuple[Tensor, Tensor]:
    """(tasks, repetitions, n) the fold of each image, and (tasks, n) which images count for the held-out loss.

    Folds go round-robin through the images sorted by class, so each class is spread evenly; images with the same number
    in `groups` (n,) stay together. Each repetition shuffles them before, but the first.

    Images count that have another image of their class in another fold: no head can predict a class that it has never
    seen. If all that count are of one class, none does. With attributes every image counts, if there are two groups.
    """
    tasks, count, classes = onehot.shape
    device = onehot.device
    numbers = torch.arange(count, device=device)
    groups = numbers if groups is None else groups
    size = int(groups.max()) + 1
    first = torch.full((size,), count, device=device).scatter_reduce(0, groups, numbers, "amin")
    shuffles = [torch.randperm(size, generator=torch.Generator().manual_seed(k)) for k in range(1, repetitions)]
    shuffled = torch.stack([torch.arange(size), *shuffles]).to(device).expand(tasks, -1, -1)
    labels = onehot.argmax(2) * (not is_multilabel)  # attributes have no single class to sort by
    order = shuffled.gather(2, labels[:, first][:, shuffled[0]].argsort(dim=2, stable=True))
    fold = torch.empty_like(order).scatter_(2, order, (torch.arange(size, device=device) % FOLDS).expand_as(order))
    fold = fold[..., groups]
    if is_multilabel:
        return fold, torch.full_like(labels, size > 1, dtype=torch.bool)
    cells = fold * classes + labels[:, None]
    members = torch.zeros(tasks, repetitions, FOLDS * classes, dtype=torch.long, device=device)
    members.scatter_add_(2, cells, torch.ones_like(cells))
    # Images of a class that the fold is fitted without; a task is one with at least two such classes.
    elsewhere = onehot.sum(1).gather(1, labels)[:, None] - members.gather(2, cells)
    is_judged = (elsewhere > 0).all(1)
    return fold, is_judged & (((onehot * is_judged[..., None]).sum(1) > 0).sum(1, keepdim=True) > 1)


def assign_part_folds(
    onehot: Tensor, parts: Sequence[Tensor], *, is_multilabel: bool, groups: Tensor, repetitions: int = 1
) -> tuple[Tensor, Tensor]:
    """What `assign_folds` gives each task, which has a part of the images; -1 is the fold of the others."""
    folds = torch.full((len(parts), repetitions, onehot.shape[1]), -1, device=onehot.device)
    is_judged = torch.zeros_like(folds[:, 0], dtype=torch.bool)
    for task, images in enumerate(parts):
        task_groups = groups[images].unique(return_inverse=True)[1]
        fold, judged = assign_folds(
            onehot[task, images][None], is_multilabel=is_multilabel, groups=task_groups, repetitions=repetitions
        )
        folds[task][:, images] = fold[0]
        is_judged[task, images] = judged[0]
    return folds, is_judged


# --- training splits --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainingSplits:
    """Training sets among the images of a task, and all about them that does not depend on features.

    Attributes:
        onehot: (n, c) one-hot or 0/1 targets.
        weights: (m, n) weight of each image in each split; zero outside of it.
        folds: (m, n) the fold of each image within each split; -1 outside of it.
        is_judged: (m, n) which images count for the held-out loss.
        is_multilabel: whether classes are independent attributes.
    """

    onehot: Tensor
    weights: Tensor
    folds: Tensor
    is_judged: Tensor
    is_multilabel: bool

    @property
    def train(self) -> np.ndarray:
        """(m, n) which images each split trains on."""
        return (self.folds >= 0).cpu().numpy()

    def to(self, device: torch.device | str) -> "TrainingSplits":
        """The same, on the device of the features."""
        names = ("onehot", "weights", "folds", "is_judged")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def only(self, numbers: Sequence[int]) -> "TrainingSplits":
        """Some of the splits."""
        return replace(self, **{name: getattr(self, name)[list(numbers)] for name in ("weights", "folds", "is_judged")})


def make_training_splits(
    targets: Tensor, train: np.ndarray, *, classes: int, balance: bool = True, groups: np.ndarray | None = None
) -> TrainingSplits:
    """The splits of a task with (n,) class indices or (n, c) zeros and ones, one for each row of `train` (m, n).

    Images with the same number in `groups` (n,) are in the same fold of a split.

    Example:
        >>> splits = make_training_splits(torch.tensor([0, 0, 1, 1]), np.array([[True, True, True, False]]), classes=2)
        >>> splits.weights.tolist()
        [[0.25, 0.25, 0.5, 0.0]]
    """
    kind = {"is_multilabel": targets.ndim == 2}
    onehot = to_onehot(targets, classes, **kind)
    rows = [torch.from_numpy(np.flatnonzero(mask)) for mask in train]
    common = onehot.expand(len(train), -1, -1)
    numbers = torch.arange(len(onehot)) if groups is None else torch.from_numpy(groups)
    folds, is_judged = assign_part_folds(common, rows, groups=numbers, **kind)
    return TrainingSplits(onehot, weigh_parts(common, rows, balance=balance, **kind), folds[:, 0], is_judged, **kind)


def fit_split_heads(features: Tensor, splits: TrainingSplits) -> Tensor:
    """(m, n, c) logits of all images by the head of each of the `splits`, fitted on (n, d) `features`.

    Each head has the penalty that its own folds prefer; images outside of a split have logits, too. `splits` are on the
    device of the features, whose precision is that of the arithmetic.
    """
    problem = make_problem(features, splits.onehot[None], splits.weights, is_multilabel=splits.is_multilabel)
    if not features.is_cuda:  # a GPU takes longer to find the span than it saves
        problem, _ = compress(problem)
    problem = replace(problem, dtype=features.dtype)
    memory = torch.cuda.get_device_properties(features.device).total_memory // 8 if features.is_cuda else MEMORY
    cost = (FOLDS + 1) * len(SPLIT_L2_GRID) * problem.columns * problem.features.shape[1]
    logits = []
    for group in _group_splits(splits.train, cost, _MAX_PRODUCTS[problem.device_type]):
        while True:
            try:
                logits.append(_fit_together(problem, splits.only(group), group, memory))
                break
            except torch.cuda.OutOfMemoryError:
                if memory < _MIN_MEMORY:
                    raise
            torch.cuda.empty_cache()
            memory //= 4
    return torch.cat(logits)


def _group_splits(train: np.ndarray, cost: int, limit: int) -> Iterator[list[int]]:
    """Splits that are fitted together, in their order; each takes `cost` products for every image of its group."""
    group: list[int] = []
    is_read = np.zeros(train.shape[1], dtype=bool)
    for split, mask in enumerate(train):
        if group and (len(group) + 1) * (is_read | mask).sum() * cost > limit:
            yield group
            group = []
            is_read = np.zeros_like(is_read)
        group.append(split)
        is_read |= mask
    yield group


def _fit_together(whole: Problem, splits: TrainingSplits, numbers: list[int], memory: int) -> Tensor:
    """(splits, n, c) logits of the splits with these numbers, fitted in so many bytes at a time."""
    device = whole.features.device
    tasks = torch.tensor(numbers, device=device)
    images = torch.nonzero(splits.folds.amax(0) >= 0).flatten()
    problem = whole.select(tasks, images)
    penalties = torch.tensor(SPLIT_L2_GRID, dtype=torch.float64, device=device)
    folds, is_judged = splits.folds[:, None, images], splits.is_judged[:, images]
    together = problem.count_together(memory)
    losses, _, solutions = cross_validate(
        problem, penalties, folds, is_judged, together=together, fit_all=True, from_base_rates=True, **_SPLIT_STOP
    )
    # The strongest penalty where nothing could be validated.
    chosen = torch.where(losses.isnan().any(1), losses.shape[1] - 1, losses.nan_to_num().argmin(1))
    best = solutions[torch.arange(len(tasks), device=device), chosen]
    return whole.logits(best, tasks)


def train_split_heads(
    features: Tensor,
    onehot: Tensor,
    draws: Tensor,
    *,
    batch: int,
    rate: float,
    weight_decay: float,
    is_multilabel: bool,
) -> Tensor:
    """(m, n, c) logits of all (n, d) `features` by m heads, trained by Adam from zero, each on the images it drew.

    The paper trains its linear classifiers in this way.

    Args:
        features: of all images, as they are.
        onehot: (n, c) one-hot or 0/1 targets.
        draws: (m, epochs, draws) numbers of images, in the order in which each head sees them.
        batch: images per step; the last step of an epoch has the remaining ones.
        rate: learning rate.
        weight_decay: of weights and biases, added to the gradient.
        is_multilabel: whether classes are independent attributes; their losses are averaged.

    Example:
        >>> features = torch.tensor([[-1.0], [1.0]])
        >>> draws = torch.tensor([[[0, 1] * 50]])
        >>> how = {"batch": 2, "rate": 0.1, "weight_decay": 0.0, "is_multilabel": False}
        >>> train_split_heads(features, torch.eye(2), draws, **how).argmax(2).tolist()
        [[0, 1]]
    """
    heads = len(draws)
    classes = onehot.shape[1]
    onehot = onehot.to(features)
    weight = features.new_zeros(heads, features.shape[1], classes)
    bias = features.new_zeros(heads, 1, classes)
    optimiser = torch.optim.Adam([weight, bias], lr=rate, weight_decay=weight_decay)
    for epoch in draws.to(features.device).unbind(1):
        for rows in epoch.split(batch, dim=1):
            x, y = features[rows], onehot[rows]
            logits = torch.baddbmm(bias, x, weight)
            residual = logits.sigmoid_().sub_(y).div_(classes) if is_multilabel else logits.softmax(2).sub_(y)
            residual /= rows.shape[1]
            weight.grad = x.mT @ residual
            bias.grad = residual.sum(1, keepdim=True)
            optimiser.step()
    return features @ weight + bias
