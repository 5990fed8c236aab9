"""Errors of a task on a model: linear classifiers on the model's features, for several protocols and seeds at once."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from task2vec.embedding.batching import Passes, refuse_infinite
from task2vec.embedding.embedding import EmbedSettings
from task2vec.errors import UsageError
from task2vec.experts.checkpoint import TrainedExpert, load_expert
from task2vec.experts.protocol import (
    ADAM,
    DRAWS,
    ErrorProtocol,
    Score,
    Shots,
    choose_test_half,
    choose_training,
    score_balanced,
    score_precision,
    wilson_interval,
)
from task2vec.experts.train import draw_epoch
from task2vec.head import TrainingSplits, fit_split_heads, make_training_splits, train_split_heads
from task2vec.library import Expert, MeasuredError
from task2vec.probe import Probe
from task2vec.progress import Report, show_progress, silent
from task2vec.tasks import Images, Task

# What errors are measured on: a pretrained network, an expert trained here, or an entry of a library.
Model = Probe | TrainedExpert | Expert


def linear_error(
    model: Model,
    task: Task,
    protocol: ErrorProtocol = ErrorProtocol(),
    *,
    seeds: Sequence[int] = (0,),
    device: str | None = None,
    num_workers: int | None = None,
    batch_size: int | None = None,
    download: bool = False,
    progress: bool = False,
) -> tuple[MeasuredError, ...]:
    """The test error of a linear classifier for `task` on the features of `model`, one for each seed.

    The order of the images and the names of classes change nothing. Features are computed once for all seeds; for
    several protocols too, call `error_matrix`.

    Args:
        model: what `load_probe`, `train_expert` or `library.experts()` return.
        task: what `read_folder` and its siblings return.
        protocol: how it is measured; see `ErrorProtocol`.
        seeds: of splits and all other randomness.
        device: "cpu", "cuda"; None takes a GPU if there is one.
        num_workers: threads that decode images; None takes one per core.
        batch_size: images per step; None chooses one. Halved automatically when GPU memory runs out.
        download: download weights that are not on this machine.
        progress: show a progress bar on standard error.

    Example:
        >>> import task2vec as t2v
        >>> shapes = t2v.sample_tasks(images_per_task=40)[2]
        >>> errors = linear_error(t2v.load_probe(size=32), shapes, seeds=(0, 1))
        >>> [(error.expert, error.seed, error.low <= error.error <= error.high) for error in errors]
        [('tf_efficientnet_lite0', 0, True), ('tf_efficientnet_lite0', 1, True)]
    """
    (model,) = check_models([model])
    plan = plan_cells(task.canonical(), [protocol], seeds)
    probe = open_model(model, download=download)
    options = {"device": device, "num_workers": num_workers, "batch_size": batch_size}
    with show_progress(progress) as report:
        features = compute_features(probe, plan.task.images, report, **options)
        return tuple(measure_cells(features, plan.to(features.device), model=model.name))


# --- models ----------------------------------------------------------------------------------------------------------


def check_models(models: Iterable[Model]) -> tuple[Model, ...]:
    """The models, if each is one, and no two have one name."""
    wrong = "gives no features, so it is no model. Pass what load_probe, train_expert or library.experts() return."
    twice = "are models of one name, so their errors are ambiguous. Rename one: dataclasses.replace(model, name=...)."
    return _check_inputs(models, Model, attrgetter("name"), wrong, twice)


def check_tasks(tasks: Iterable[Task]) -> tuple[Task, ...]:
    """The tasks in canonical order, if each is one, and no two are the same."""
    wrong = "has no images to classify, so it is no task. Make one of it: read_folder, read_table, from_dataset."
    twice = "are the same images in the same classes, so they are one task. Pass it once."
    return tuple(task.canonical() for task in _check_inputs(tasks, Task, attrgetter("fingerprint"), wrong, twice))


def _check_inputs(values: Any, kind: Any, identity: Callable[[Any], str], wrong: str, twice: str) -> tuple[Any, ...]:
    found: dict[str, Any] = {}
    for one in (values,) if isinstance(values, kind) else values:
        if not isinstance(one, kind):
            raise UsageError(f"a {type(one).__name__} {wrong}")
        if identity(one) in found:
            raise UsageError(f"'{found[identity(one)].name}' and '{one.name}' {twice}")
        found[identity(one)] = one
    return tuple(found.values())


def open_model(model: Model, *, download: bool = False) -> Probe:
    """The network of a model."""
    if isinstance(model, TrainedExpert):
        return model.probe
    return model if isinstance(model, Probe) else load_expert(model, download=download)


def compute_features(probe: Probe, images: Images, report: Report = silent, **options: Any) -> Tensor:
    """(n, d) pooled features of all images; options are device, num_workers and batch_size."""
    return Passes(images, probe, settings=EmbedSettings(), **options).features(report)


# --- cells -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CellPlan:
    """The splits of a task: all that its cells need besides features. Made once, it serves every model.

    Attributes:
        task: as it was given.
        order: of the images, as their content decides it.
        targets: in that order.
        protocols: how errors are measured.
        seeds: of splits and all other randomness.
        tests: (seeds, n) the test images of each seed.
        pairs: shots and seeds, one pair for each part.
        parts: the training images of each pair.
    """

    task: Task
    order: np.ndarray
    targets: np.ndarray
    protocols: tuple[ErrorProtocol, ...]
    seeds: tuple[int, ...]
    tests: np.ndarray
    pairs: tuple[tuple[Shots, int], ...]
    parts: TrainingSplits

    def to(self, device: torch.device | str) -> "CellPlan":
        """The same, on the device of the features."""
        return replace(self, parts=self.parts.to(device))

    def draw(self, part: int, epochs: int) -> Tensor:
        """(epochs, draws) numbers of training images of a part, uniformly over classes."""
        mask, seed = self.parts.train[part], self.pairs[part][1]
        rows, own = torch.from_numpy(np.flatnonzero(mask)), self.targets[mask]
        draws = [draw_epoch(own, draws=DRAWS, seed=seed, epoch=epoch)[0] for epoch in range(epochs)]
        return rows[torch.stack(draws)]


def plan_cells(task: Task, protocols: Sequence[ErrorProtocol], seeds: Sequence[int] = (0,)) -> CellPlan:
    """The splits of `task` for all protocols and seeds.

    Raises:
        DataError: It cannot be split.
    """
    if not task.is_multilabel and any(protocol.measure == "precision" for protocol in protocols):
        raise UsageError(
            f"measure='precision' is for attributes, and '{task.name}' has one class per image. Choose 'usual'."
        )
    order = np.array(task.canonical_order[0])
    task_in_order = task.canonical()
    tests = np.stack([choose_test_half(task_in_order, seed) for seed in seeds])
    sizes: list[Shots] = list(dict.fromkeys(protocol.shots for protocol in protocols))
    pairs: tuple[tuple[Shots, int], ...] = tuple((shots, seed) for shots in sizes for seed in seeds)
    by_seed = dict(zip(seeds, tests, strict=True))
    train = np.stack([choose_training(task_in_order, by_seed[seed], shots=shots, seed=seed) for shots, seed in pairs])
    targets = task_in_order.targets
    parts = make_training_splits(torch.from_numpy(targets.astype(np.int64)), train, classes=len(task.classes))
    return CellPlan(task, order, targets, tuple(protocols), tuple(seeds), tests, pairs, parts)


def measure_cells(
    features: Tensor, plan: CellPlan, *, model: str, only: Iterable[tuple[str, int]] | None = None
) -> list[MeasuredError]:
    """The errors of a task on (n, d) `features` of its images, given in the order of the task.

    All classifiers are fitted together, on the device of the features.

    Args:
        features: pooled features by the model; their precision is that of the arithmetic. Single precision moves an
            error by an image now and then.
        plan: what `plan_cells` returns, on the same device.
        model: name of the model.
        only: keys of protocols and seeds, where not all of the plan's are wanted.

    Example:
        >>> from task2vec import sample_tasks
        >>> colours = next(task for task in sample_tasks(images_per_task=40) if task.name == "colours")
        >>> pictures = [torch.tensor(np.array(colours.images.load(number))).float() for number in range(40)]
        >>> means = torch.stack([picture.mean((0, 1)) for picture in pictures])
        >>> plan = plan_cells(colours, [ErrorProtocol()])
        >>> measure_cells(means, plan, model="mean colour")[0].error < 0.2
        True
    """
    found = []
    for protocol, seed, predicted in predict_cells(features, plan, only=only):
        score = score_cell(predicted, plan, protocol, seed)
        ends = (score.error, protocol.key, seed, score.low, score.high)
        found.append(MeasuredError(plan.task.fingerprint, model, *ends))
    return found


def predict_cells(
    features: Tensor, plan: CellPlan, *, only: Iterable[tuple[str, int]] | None = None
) -> list[tuple[ErrorProtocol, int, np.ndarray]]:
    """What the classifier of every protocol and seed predicts for all images, in the order of the plan's targets.

    (n,) class numbers, or (n, c) logits of attributes. The arguments are those of `measure_cells`.
    """
    if features.ndim != 2 or len(features) != len(plan.task):
        raise UsageError(
            f"features of the shape {tuple(features.shape)} are not those of '{plan.task.name}', which has "
            f"{len(plan.task)} images: some would have the label of another. Pass one row per image, in its order."
        )
    refuse_infinite(features, plan.task.images.name)
    wanted = [(protocol, seed) for protocol in plan.protocols for seed in plan.seeds]
    if only is not None:
        kept = set(only)
        wanted = [cell for cell in wanted if (cell[0].key, cell[1]) in kept]
    features = features[torch.from_numpy(plan.order).to(features.device)]
    found: dict[tuple[ErrorProtocol, int], np.ndarray] = {}
    for kind in dict.fromkeys((protocol.classifier, protocol.epochs) for protocol, _ in wanted):
        some = [(protocol, seed) for protocol, seed in wanted if (protocol.classifier, protocol.epochs) == kind]
        rows = sorted({plan.pairs.index((protocol.shots, seed)) for protocol, seed in some})
        predicted = _fit_classifiers(features, plan, rows, kind)
        for protocol, seed in some:
            found[protocol, seed] = predicted[rows.index(plan.pairs.index((protocol.shots, seed)))]
    return [(protocol, seed, found[protocol, seed]) for protocol, seed in wanted]


def _fit_classifiers(features: Tensor, plan: CellPlan, rows: list[int], kind: tuple[str, int]) -> np.ndarray:
    """Predictions of the classifiers of some parts: (m, n) class numbers, or (m, n, c) logits of attributes."""
    parts, (classifier, epochs) = plan.parts.only(rows), kind
    if classifier == "logistic":
        logits = fit_split_heads(features, parts)
    else:
        draws = torch.stack([plan.draw(row, epochs) for row in rows])
        is_multilabel = parts.is_multilabel
        logits = train_split_heads(features, parts.onehot, draws, **ADAM, is_multilabel=is_multilabel)  # type: ignore[arg-type]
    return (logits if parts.is_multilabel else logits.argmax(2)).cpu().numpy()


def score_cell(
    predicted: np.ndarray, plan: CellPlan, protocol: ErrorProtocol, seed: int, *, among: np.ndarray | None = None
) -> Score:
    """The error of one classifier on the test images of its seed, or on those of them that are `among` some (n,)."""
    is_test = plan.tests[plan.seeds.index(seed)]
    is_test = is_test if among is None else is_test & among
    predicted, targets = predicted[is_test], plan.targets[is_test]
    if protocol.measure == "precision":
        return score_precision(predicted, targets)
    wrong = (predicted > 0) != targets.astype(bool) if plan.parts.is_multilabel else predicted != targets
    if protocol.measure == "balanced" or plan.parts.is_multilabel:
        return score_balanced(wrong, targets)
    return wilson_interval(int(wrong.sum()), len(wrong))
