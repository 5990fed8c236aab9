"""How much data an expert saves: error by training size, with the expert frozen and with all of it fine-tuned."""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

import task2vec as t2v
from experiments.metatask_plan import SIZE, PlannedExpert
from experiments.metatask_studio import Studio
from task2vec.embedding.batching import tensor_cores
from task2vec.experts.linear_probe import measure_cells, plan_cells
from task2vec.experts.protocol import ErrorProtocol, Shots, choose_test_half, choose_training
from task2vec.experts.recipes import Recipe
from task2vec.experts.train import TrainingImages, measure_error, start_training
from task2vec.progress import silent

TASKS = ("cub_Icteridae", "flowers_Asterales", "dogs_toy", "clothing10")
SIZES: tuple[Shots, ...] = (2, 5, 10, 20, "half")
SEEDS = (0, 1)
# Whole networks are tuned for this long: twice the time changes little on so few images.
TUNING = Recipe("tuning", epochs=2, draws=8_000, rate=0.01)


@dataclass(frozen=True)
class CurvePoint:
    """The test error of one task by one expert, trained on a part of the images.

    Attributes:
        task: its name.
        expert: its name.
        way: "linear" (frozen features) or "tuned" (the whole network).
        train: "half", or the number of images per class.
        images: how many images that were.
        seed: of the split.
        error: share of the test images that are wrong.
    """

    task: str
    expert: str
    way: str
    train: str
    images: int
    seed: int
    error: float


def draw_curves(studio: Studio, expert: PlannedExpert) -> list[dict[str, Any]]:
    """All points of one expert."""
    base = studio.base(expert.network)
    network = base.network if expert.lesson is None else studio.train(expert)[0].cpu()
    own = replace(base, network=network.eval().requires_grad_(False))
    points: list[CurvePoint] = []
    for planned in studio.plan.tasks:
        if planned.task.name in TASKS:
            task = studio.canonical[planned.task.fingerprint]
            points += _linear_points(studio, own, task, expert.name)
            for seed in SEEDS:
                points += [_tune(studio, own, task, expert.name, size, seed) for size in _sizes(task, seed)]
    return [asdict(point) for point in points]


def _sizes(task: t2v.Task, seed: int) -> list[Shots]:
    """The training sizes that this task has images for; one as large as the half is left out."""
    is_test = choose_test_half(task, seed)
    fewest = int(np.bincount(task.targets[~is_test]).min())
    return [size for size in SIZES if size == "half" or int(size) < fewest]


def _linear_points(studio: Studio, base: t2v.Probe, task: t2v.Task, expert: str) -> list[CurvePoint]:
    sizes = _sizes(task, SEEDS[0])
    protocols = [ErrorProtocol(shots=size) for size in sizes]
    plan = plan_cells(task, protocols, SEEDS).to(studio.device)
    with tensor_cores(studio.device):
        features = studio.features(base.network.to(studio.device), base)
    base.network.cpu()
    own = features[torch.from_numpy(studio.places[task.fingerprint]).to(features.device)]
    counts = {pair: int(mask.sum()) for pair, mask in zip(plan.pairs, plan.parts.train, strict=True)}
    sizes_by_key: dict[str, Shots] = {protocol.key: protocol.shots for protocol in protocols}
    return [
        CurvePoint(
            task.name,
            expert,
            "linear",
            str(sizes_by_key[cell.protocol]),
            counts[sizes_by_key[cell.protocol], cell.seed],
            cell.seed,
            cell.error,
        )
        for cell in measure_cells(own, plan, model=expert)
    ]


def _tune(studio: Studio, base: t2v.Probe, task: t2v.Task, expert: str, size: Shots, seed: int) -> CurvePoint:
    is_test = choose_test_half(task, seed)
    is_train = choose_training(task, is_test, shots=size, seed=seed)
    lessons, test = (_part(studio, task, mask) for mask in (is_train, is_test))
    training = start_training(
        base, lessons, TUNING, seed=seed, device=studio.device, classes=len(task.classes), report=silent
    )
    with tensor_cores(studio.device):
        training.run(lessons, silent)
        error = measure_error(training.learner, test)
    return CurvePoint(task.name, expert, "tuned", str(size), int(is_train.sum()), seed, error)


def _part(studio: Studio, task: t2v.Task, mask: np.ndarray) -> TrainingImages:
    """Some of the pictures of a task."""
    rows = np.flatnonzero(mask)
    places = studio.places[task.fingerprint][rows]
    pixels = studio.pixels.part(places.tolist(), task.subset(rows).images)
    studio.pixels.parts.clear()
    return TrainingImages(pixels, task.targets[rows], (SIZE, SIZE), studio.base("resnet34").preprocess.normalise)
