"""Cells of an error matrix: one task on the features of one expert, by several protocols and seeds at once."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from task2vec.embedding.batching import refuse_infinite
from task2vec.errors import UsageError
from task2vec.experts.protocols import ACHILLE2019, ErrorProtocol, Size
from task2vec.experts.sampling import draw_epoch
from task2vec.experts.scoring import Score, score_balanced, score_precision, score_wrong
from task2vec.experts.splits import choose_test_half, choose_training
from task2vec.head import TrainingSplits, fit_split_heads, make_training_splits, train_split_heads
from task2vec.library import MeasuredError
from task2vec.tasks import Task, canonical_order


@dataclass(frozen=True)
class CellPlan:
    """The splits of a task: all that its cells need besides features. Made once, it serves every expert.

    Attributes:
        task: as it was given.
        order: of the images, as their content decides it.
        targets: in that order.
        protocols: how errors are measured.
        seeds: of splits and all other randomness.
        tests: (seeds, n) the test images of each seed.
        pairs: training sizes and seeds, one pair for each part.
        parts: the training images of each pair.
    """

    task: Task
    order: np.ndarray
    targets: np.ndarray
    protocols: tuple[ErrorProtocol, ...]
    seeds: tuple[int, ...]
    tests: np.ndarray
    pairs: tuple[tuple[Size, int], ...]
    parts: TrainingSplits
    _drawn: dict[tuple[int, int], Tensor] = field(default_factory=dict, repr=False)

    def to(self, device: torch.device | str) -> "CellPlan":
        """The same, where the features are."""
        return replace(self, parts=self.parts.to(device))

    def draw(self, part: int, epochs: int) -> Tensor:
        """(epochs, draws) numbers of training images of a part, uniformly over classes; made once."""
        if (part, epochs) not in self._drawn:
            mask, seed = self.parts.train[part], self.pairs[part][1]
            rows, own = torch.from_numpy(np.flatnonzero(mask)), self.targets[mask]
            how = {"draws": ACHILLE2019.draws, "seed": seed}
            drawn = [draw_epoch(own, **how, epoch=epoch).images for epoch in range(epochs)]
            self._drawn[part, epochs] = rows[torch.stack(drawn)]
        return self._drawn[part, epochs]


def plan_cells(task: Task, protocols: Sequence[ErrorProtocol], seeds: Sequence[int] = (0,)) -> CellPlan:
    """The splits of `task` for all protocols and seeds.

    Raises:
        DataError: It cannot be split.
    """
    for protocol in protocols:
        if protocol.measure == "precision" and not task.is_multilabel:
            raise UsageError(
                f"measure='precision' is for attributes, and '{task.name}' has one class per image, of which the share "
                "that is wrong says more. Choose 'usual' or 'balanced'."
            )
    order = np.array(canonical_order(task.digests, task.targets)[0])
    task_in_order = task.canonical()
    tests = np.stack([choose_test_half(task_in_order, seed) for seed in seeds])
    sizes: list[Size] = list(dict.fromkeys(protocol.train for protocol in protocols))
    pairs: tuple[tuple[Size, int], ...] = tuple((train, seed) for train in sizes for seed in seeds)
    by_seed = dict(zip(seeds, tests, strict=True))
    train = np.stack([choose_training(task_in_order, by_seed[seed], train=size, seed=seed) for size, seed in pairs])
    targets = task_in_order.targets
    parts = make_training_splits(torch.from_numpy(targets.astype(np.int64)), train, classes=len(task.classes))
    return CellPlan(task, order, targets, tuple(protocols), tuple(seeds), tests, pairs, parts)


def measure_cells(
    features: Tensor,
    plan: CellPlan,
    *,
    expert: str,
    only: Iterable[tuple[str, int]] | None = None,
    dtype: torch.dtype = torch.float32,
) -> list[MeasuredError]:
    """The errors of a task on (n, d) `features` of its images, given in the order of the task.

    All classifiers are fitted together, where the features are.

    Args:
        features: pooled features by the expert.
        plan: what `plan_cells` gives, on the same device.
        expert: name of the expert.
        only: keys of protocols and seeds, where not all of the plan's are wanted.
        dtype: of the arithmetic; single precision moves an error by an image now and then.

    Example:
        >>> from task2vec import sample_tasks
        >>> colours = next(task for task in sample_tasks(images_per_task=40) if task.name == "colours")
        >>> pictures = [torch.tensor(np.array(colours.images.load(number))).float() for number in range(40)]
        >>> means = torch.stack([picture.mean((0, 1)) for picture in pictures])
        >>> plan = plan_cells(colours, [ErrorProtocol()])
        >>> measure_cells(means, plan, expert="mean colour")[0].error < 0.2
        True
    """
    found = []
    for protocol, seed, answer in answer_cells(features, plan, only=only, dtype=dtype):
        score = judge(answer, plan, protocol, seed)
        told = (plan.task.fingerprint, expert, score.error, protocol.key, seed, score.low, score.high)
        found.append(MeasuredError(*told))
    return found


def answer_cells(
    features: Tensor,
    plan: CellPlan,
    *,
    only: Iterable[tuple[str, int]] | None = None,
    dtype: torch.dtype = torch.float32,
) -> list[tuple[ErrorProtocol, int, np.ndarray]]:
    """What the classifier of every protocol and seed says of all images, in the order of the plan's targets.

    (n,) class numbers, or (n, c) logits of attributes. The arguments are those of `measure_cells`.
    """
    if features.ndim != 2 or len(features) != len(plan.task):
        raise UsageError(
            f"features of the shape {tuple(features.shape)} are not those of '{plan.task.name}', which has "
            f"{len(plan.task)} images: some would carry the label of another. Pass one row per image, in its order."
        )
    refuse_infinite(features, plan.task.images.name)
    wanted = [(protocol, seed) for protocol in plan.protocols for seed in plan.seeds]
    if only is not None:
        asked = set(only)
        wanted = [(protocol, seed) for protocol, seed in wanted if (protocol.key, seed) in asked]
    if (plan.order[1:] < plan.order[:-1]).any():
        features = features[torch.from_numpy(plan.order).to(features.device)]
    found: dict[tuple[ErrorProtocol, int], np.ndarray] = {}
    kinds = dict.fromkeys((protocol.classifier, protocol.epochs) for protocol, _ in wanted)
    for kind in kinds:
        some = [(protocol, seed) for protocol, seed in wanted if (protocol.classifier, protocol.epochs) == kind]
        rows = sorted({plan.pairs.index((protocol.train, seed)) for protocol, seed in some})
        answers = _answer(features, plan, rows, kind, dtype)
        for protocol, seed in some:
            found[protocol, seed] = answers[rows.index(plan.pairs.index((protocol.train, seed)))]
    return [(protocol, seed, found[protocol, seed]) for protocol, seed in wanted]


def _answer(features: Tensor, plan: CellPlan, rows: list[int], kind: tuple[str, int], dtype: torch.dtype) -> np.ndarray:
    """What the classifiers of some parts say of all images: (m, n) class numbers, or (m, n, c) logits of attributes."""
    parts = plan.parts if len(rows) == len(plan.parts) else plan.parts.only(rows)
    classifier, epochs = kind
    if classifier == "logistic":
        logits = fit_split_heads(features, parts, dtype=dtype)
    else:
        draws = [plan.draw(row, epochs) for row in rows]
        recipe = ACHILLE2019
        how = {"batch": recipe.batch, "rate": recipe.rate, "weight_decay": recipe.weight_decay}
        how["is_multilabel"] = parts.is_multilabel
        logits = train_split_heads(features.to(dtype), parts.onehot, torch.stack(draws), **how)
    return (logits if parts.is_multilabel else logits.argmax(2)).cpu().numpy()


def judge(
    answer: np.ndarray, plan: CellPlan, protocol: ErrorProtocol, seed: int, *, among: np.ndarray | None = None
) -> Score:
    """The error of one classifier on the test images of its seed, or on those of them that are `among` some (n,)."""
    is_test = plan.tests[plan.seeds.index(seed)]
    is_test = is_test if among is None else is_test & among
    answer, targets = answer[is_test], plan.targets[is_test]
    if protocol.measure == "precision":
        return score_precision(answer, targets)
    wrong = (answer > 0) != targets.astype(bool) if plan.parts.is_multilabel else answer != targets
    if protocol.measure == "balanced" or plan.parts.is_multilabel:
        return score_balanced(wrong, targets)
    return score_wrong(int(wrong.sum()), len(wrong))
