"""Where the experts of the meta-task are trained and tried: all pictures in memory once, every network over them once.

`error_matrix` does the same for anybody's tasks and experts. Here it is taken apart, for minutes on a large GPU are
few: an expert is trained, looks at all pictures, is tried on all tasks and forgotten, and a small table remains.
"""

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import task2vec as t2v
from experiments.metatask_plan import CANVAS, SIZE, MetaTaskPlan, PlannedExpert
from task2vec.embedding.batching import Pixels, tensor_cores
from task2vec.embedding.many import gather_images
from task2vec.errors import UsageError
from task2vec.experts.checkpoint import count_gmacs, count_parameters
from task2vec.experts.linear_probe import CellPlan, plan_cells, predict_cells, score_cell
from task2vec.experts.protocol import ErrorProtocol
from task2vec.experts.recipes import Recipe, find_recipe
from task2vec.experts.train import TrainingImages, compute_features, start_training
from task2vec.probe.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from task2vec.probe.weights import read_offline_package, read_weights
from task2vec.progress import silent
from task2vec.select import score_features

PROTOCOLS = (ErrorProtocol(shots="half"), ErrorProtocol(shots=5))
SEEDS = (0, 1, 2, 3, 4)
# The paper's own classifier, on some tasks and some experts: does it rank experts as ours does?
PAPER_PROTOCOL = ErrorProtocol(shots="half", classifier="achille2019")
PAPER_TASKS = (
    "cub_Icteridae",
    "cub_Piciformes",
    "flowers_Asterales",
    "flowers_Malvales",
    "dogs_toy",
    "clothing10",
    "dtd10",
)
PAPER_KINDS = ("generic", "network", "half", "whole")
PRETRAINED = {
    "resnet34": ("torchvision:resnet34", "resnet34_body.fp16.safetensors"),
    "mobilenet_v2": ("torchvision:mobilenet_v2", "mobilenet_v2.fp16.safetensors"),
}
_VGG = "vgg16_features.fp16.safetensors"


class Studio:
    """All tasks, their pictures on one device, and the networks that look at them."""

    def __init__(self, plan: MetaTaskPlan, weights: str | Path, *, device: torch.device, workers: int):
        self.plan, self.weights, self.device = plan, Path(weights), device
        lessons = [one.lesson.task for one in plan.experts if one.lesson is not None]
        tasks = [one.task for one in plan.tasks]
        unique = {task.fingerprint: task.canonical() for task in (*tasks, *lessons)}
        images, places = gather_images(list(unique.values()))
        self.canonical = unique
        self.places = dict(zip(unique, places, strict=True))
        wide = replace(self.base("resnet34"), preprocess=Preprocess(size=(CANVAS, CANVAS), resize=CANVAS))
        self.pixels = Pixels(images, wide, device=device, num_workers=workers)
        for _ in self.pixels.batches(range(len(self.pixels)), 512):
            pass  # decoded once, and kept
        self.cells = {
            one.task.fingerprint: plan_cells(unique[one.task.fingerprint], PROTOCOLS, SEEDS).to(device)
            for one in plan.tasks
        }
        self.paper_cells = {
            one.task.fingerprint: plan_cells(unique[one.task.fingerprint], [PAPER_PROTOCOL], SEEDS).to(device)
            for one in plan.tasks
            if one.task.name in PAPER_TASKS
        }

    def base(self, network: str) -> t2v.Probe:
        """A pretrained network that sees the middles of the pictures."""
        if network not in self._bases:
            self._bases[network] = load_pretrained(network, self.weights)
        return self._bases[network]

    @cached_property
    def _bases(self) -> dict[str, t2v.Probe]:
        return {}

    def lessons(self, task: t2v.Task) -> TrainingImages:
        """The pictures of a task, for training."""
        canonical = self.canonical[task.fingerprint]
        pixels = self.pixels.part(self.places[task.fingerprint].tolist(), canonical.images)
        self.pixels.parts.clear()  # nobody is to forget them together with the whole
        return TrainingImages(pixels, canonical.targets, (SIZE, SIZE), self.base("resnet34").preprocess.normalise)

    def try_expert(self, expert: PlannedExpert) -> dict[str, Any]:
        """Trains an expert if need be, tries it on all tasks, and tells all that was found."""
        clock = _Clock()
        base = self.base(expert.network)
        network, head = base.prepare(device=self.device).module, None
        told: dict[str, Any] = {
            "name": expert.name,
            "kind": expert.kind,
            "network": expert.network,
            "seed": expert.seed,
            "code": fingerprint_code(),
        }
        told |= {"parameters": count_parameters(base.network), "is_repeat": expert.is_repeat}
        told["cost"] = round(count_gmacs(base.network, (SIZE, SIZE)), 6)
        if expert.lesson is None:
            head = read_classifier(expert.network, self.weights)
        else:
            with clock.time("training"):
                network, head, metrics = self.train(expert)
            told |= {"lesson": expert.lesson.task.name, "lesson_fingerprint": expert.lesson.task.fingerprint}
            told |= {"recipe": _find_recipe(expert).to_dict(), "metrics": metrics}
        with clock.time("features"), tensor_cores(self.device):
            features = self.features(network, base)
        cells, scores = {}, {}
        for planned in self.plan.tasks:
            own, plan = self._own(features, planned.task), self.cells[planned.task.fingerprint]
            with clock.time("errors"):
                cells[planned.task.name] = measure(own, plan)
            paper = self.paper_cells.get(planned.task.fingerprint) if expert.kind in PAPER_KINDS else None
            if paper is not None and not expert.is_repeat:
                with clock.time("errors as in the paper"):
                    cells[planned.task.name] |= measure(own, paper)
            with clock.time("scores"):
                scores[planned.task.name] = score(own, plan, head)
        told |= {"cells": cells, "scores": scores, "relations": self.relate(expert), "seconds": clock.seconds}
        return told

    def train(self, expert: PlannedExpert) -> tuple[nn.Module, tuple[Tensor, Tensor], list[dict]]:
        """The network of an expert, its head and how its training went."""
        assert expert.lesson is not None
        task, recipe = expert.lesson.task, _find_recipe(expert)
        lessons, base = self.lessons(task), self.base(expert.network)
        training = start_training(
            base, lessons, recipe, seed=expert.seed, device=self.device, classes=len(task.classes), report=silent
        )
        with tensor_cores(self.device):
            training.run(lessons, silent)
        learner = training.learner.eval().requires_grad_(False)
        head = (learner.head.weight.detach(), learner.head.bias.detach())
        return learner.network, head, [asdict(one) for one in training.metrics]

    def features(self, network: nn.Module, base: t2v.Probe) -> Tensor:
        """(pictures, d) features of the middles of all pictures."""
        lessons = TrainingImages(self.pixels, np.empty(0), (SIZE, SIZE), base.preprocess.normalise)
        return compute_features(network, lessons, silent, batch=512)

    def relate(self, expert: PlannedExpert) -> dict[str, float]:
        """For every task the share of its pictures that the expert was trained on."""
        if expert.lesson is None:
            return {}
        seen = set(self.places[expert.lesson.task.fingerprint].tolist())
        found = {}
        for planned in self.plan.tasks:
            places = self.places[planned.task.fingerprint].tolist()
            share = sum(place in seen for place in places) / len(places)
            found[planned.task.name] = round(share, 4)
        return found

    def _own(self, features: Tensor, task: t2v.Task) -> Tensor:
        return features[torch.from_numpy(self.places[task.fingerprint]).to(features.device)]


def measure(features: Tensor, plan: CellPlan) -> dict[str, list]:
    """Errors by protocol and seed: with their intervals, and on two halves of the test images."""
    halves = halve(plan.targets)
    found: dict[str, list] = {}
    for protocol, seed, answer in predict_cells(features, plan):
        whole = score_cell(answer, plan, protocol, seed)
        parts = [score_cell(answer, plan, protocol, seed, among=half).error for half in (halves, ~halves)]
        row = [round(value, 6) for value in (whole.error, whole.low, whole.high, *parts)]
        found.setdefault(protocol.key, []).append([seed, *row])
    return found


def halve(targets: np.ndarray) -> np.ndarray:
    """(n,) every other image of each class: the same images for all experts and seeds, whatever is tested of them."""
    order = np.argsort(targets, kind="stable")
    rank = np.empty(len(targets), dtype=np.int64)
    rank[order] = np.arange(len(targets)) - np.searchsorted(targets[order], targets[order])
    return rank % 2 == 0


def score(features: Tensor, plan: CellPlan, head: tuple[Tensor, Tensor] | None) -> dict[str, dict[str, float | None]]:
    """The transferability scores of an expert on a task by protocol, on the training images of its first seed.

    Nothing of the test images enters: a score is to be compared with errors that it could not have seen.
    """
    found = {}
    for protocol in PROTOCOLS:
        mask = plan.parts.train[plan.pairs.index((protocol.shots, SEEDS[0]))]
        own = torch.from_numpy(np.flatnonzero(np.asarray(mask)))
        targets = torch.from_numpy(plan.targets.astype(np.int64))[own].to(features.device)
        some = features[own.to(features.device)]
        probabilities = None
        if head is not None:
            weight, bias = (part.to(features.device).double() for part in head)
            probabilities = (some.double() @ weight.T + bias).softmax(1)
        scores = score_features(some, targets, classes=len(plan.task.classes), source_probabilities=probabilities)
        found[protocol.key] = {name: round(value, 8) if np.isfinite(value) else None for name, value in scores.items()}
    return found


@cache
def fingerprint_code() -> str:
    """A hash of the whole package: tables of one meta-task are to come from one."""
    root = Path(t2v.__file__).parent
    files = sorted(root.rglob("*.py"), key=lambda file: file.relative_to(root).as_posix())
    whole = hashlib.sha256()
    for file in files:
        whole.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes())
    return whole.hexdigest()[:16]


def _find_recipe(expert: PlannedExpert) -> Recipe:
    """The recipe of an expert's training."""
    return replace(find_recipe(expert.recipe), mirrors=expert.mirrors)


def read_classifier(network: str, weights: Path) -> tuple[Tensor, Tensor] | None:
    """Weight and bias of a pretrained network's own classifier, where the file has them."""
    if network.startswith("tf_efficientnet_lite"):
        import timm

        wanted = timm.create_model(network, pretrained=False).state_dict()
        tensors = read_offline_package(network, wanted) or {}
    elif network in PRETRAINED:
        tensors = read_weights(weights / PRETRAINED[network][1])
    else:
        return None
    names = [name for name in ("classifier", "classifier.1") if f"{name}.weight" in tensors]
    return (tensors[f"{names[0]}.weight"].float(), tensors[f"{names[0]}.bias"].float()) if names else None


def load_pretrained(network: str, weights: Path, *, size: int = SIZE) -> t2v.Probe:
    """A pretrained network that sees the middles of pictures of 128 pixels, with its own mean and spread of colours."""
    if network == "vgg16_features":
        return _load_vgg(weights / _VGG, size)
    name, file = PRETRAINED.get(network, (network, None))
    if file is not None and not (weights / file).is_file():
        raise UsageError(
            f"there is no '{file}' in {weights}, so the expert '{network}' cannot be loaded: --weights DIR"
        )
    probe = t2v.load_probe(name, weights=None if file is None else weights / file, size=size)
    own = probe.preprocess
    assert isinstance(own, Preprocess)
    look = Preprocess(size=(size, size), resize=CANVAS, interpolation=own.interpolation, mean=own.mean, std=own.std)
    return replace(probe, preprocess=look)


def _load_vgg(file: Path, size: int) -> t2v.Probe:
    """The convolutions of VGG-16 and a mean over the map: its linear layers are not in the file."""
    import torchvision

    module = nn.Sequential(torchvision.models.vgg16(weights=None).features, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    tensors = read_weights(file)
    module.load_state_dict({name.replace("features.", "0."): tensor.float() for name, tensor in tensors.items()})
    module.add_module("head", nn.Identity())
    look = Preprocess(size=(size, size), resize=CANVAS, mean=IMAGENET_MEAN, std=IMAGENET_STD)

    def transform(image: Any) -> Tensor:
        return look.normalise(look(image)[None], torch.float32)[0]

    probe = t2v.load_probe(module.eval(), head="head", transform=transform)
    return replace(probe, name="vgg16_features", preprocess=look)


class _Clock:
    """Seconds by what they were spent on."""

    def __init__(self):
        self.seconds: dict[str, float] = {}

    @contextmanager
    def time(self, what: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds[what] = round(self.seconds.get(what, 0) + time.perf_counter() - begun, 3)
