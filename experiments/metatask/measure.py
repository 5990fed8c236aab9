"""What all meta-tasks are measured by: pretrained networks, errors and scores on tasks, embeddings, and their file.

Every unit of work leaves a file. What is there is not made again, so a run that was stopped continues; several runs may
share a folder, and each unit is made by one of them. Made for a GPU.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import task2vec as t2v
from experiments.embeddings_file import open_embeddings
from experiments.metatask.plan import PlannedTask, rank_in_class
from experiments.report import Row, say
from task2vec import experts, plots
from task2vec.probe import IMAGENET_MEAN, IMAGENET_STD, Preprocess, read_weights

SEEDS = (0, 1, 2, 3, 4)
SIZE = 224
LICENCE = "Figures measured by the project, under its licence; no image and no weight is in them."
# Whole networks are tuned for this long: twice the time changes little on so few images.
TUNING = t2v.Recipe("tuning", epochs=2, draws=8_000, rate=0.01)
WEIGHTS = {
    "resnet34": "resnet34_body.fp16.safetensors",
    "mobilenet_v2": "mobilenet_v2.fp16.safetensors",
    "resnet50_keras": "resnet50.fp16.safetensors",
    "vgg16_features": "vgg16_features.fp16.safetensors",
}
KERAS_MEAN = (123.68 / 255, 116.779 / 255, 103.939 / 255)
# Embeddings that are kept whole: eight megabytes hold no more. Of the others, the distances.
BUNDLED = ("tf_efficientnet_lite0 robust", "resnet34 robust")
# A probe, a method, and the size of the images.
Space = tuple[str, str, int]
Units = list[tuple[Path, Callable[[], Any]]]


# --- networks --------------------------------------------------------------------------------------------------------


def load_network(name: str, weights: Path, *, size: int | None = None, resize: int | None = None) -> t2v.Probe:
    """A pretrained network at its own image size or at `size`, or that sees the middles of pictures of `resize`."""
    file = weights / WEIGHTS.get(name, "")
    if name == "vgg16_features":
        probe = _load_vgg(file)
    elif name == "resnet50_keras":
        probe = _load_resnet50(file)
    elif name in WEIGHTS:
        probe = t2v.load_probe(f"torchvision:{name}", weights=file, size=size)
    else:
        probe = t2v.load_probe(name, size=size)
    look = probe.preprocess
    assert isinstance(look, Preprocess)
    return probe if not (size and resize) else replace(probe, preprocess=replace(look, size=(size,) * 2, resize=resize))


def _load_vgg(file: Path) -> t2v.Probe:
    """The convolutions of VGG-16 and a mean over the map: its linear layers are not in the file."""
    import torchvision

    module = nn.Sequential(torchvision.models.vgg16(weights=None).features, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    module.load_state_dict({k.replace("features.", "0."): tensor.float() for k, tensor in read_weights(file).items()})
    module.add_module("head", nn.Identity())
    return _wrap(module, "vgg16_features", "head", IMAGENET_MEAN, IMAGENET_STD)


def _load_resnet50(file: Path) -> t2v.Probe:
    """ResNet-50 as Keras distributes it: strides in the first convolution of a block, colours from 0 to 255."""
    import torchvision

    module = torchvision.models.resnet50(weights=None)
    for part in module.modules():
        if isinstance(part, torchvision.models.resnet.Bottleneck):
            part.conv1.stride, part.conv2.stride = part.conv2.stride, (1, 1)
        elif isinstance(part, nn.BatchNorm2d):
            part.eps = 1e-3
    module.fc = nn.Identity()  # type: ignore[assignment]
    module.load_state_dict({name: tensor.float() for name, tensor in read_weights(file).items()}, strict=False)
    return _wrap(module, "resnet50_keras", "fc", KERAS_MEAN, (1 / 255,) * 3)


def _wrap(module: nn.Module, name: str, head: str, mean: tuple[float, ...], std: tuple[float, ...]) -> t2v.Probe:
    """A module that ends in features as a probe with its own mean and spread of colours."""
    look = Preprocess(size=(SIZE, SIZE), resize=256, mean=mean, std=std)

    def transform(image: Any) -> Tensor:
        return look.normalise(look(image)[None], torch.float32)[0]

    probe = t2v.load_probe(module.eval(), head=head, transform=transform)
    return replace(probe, name=name, preprocess=look)


# --- errors and embeddings -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Studio:
    """Where and how models are measured.

    Attributes:
        weights: the folder of pretrained networks.
        out: the folder for results.
        device: "cpu" or "cuda".
        seeds: of the splits.
        scores: transferability scores to compute; None for all.
        pixels: of the images seen last, on the device, by preprocessing and digest: decoding takes longer than features
            do, and experts have the preprocessing of their network.
    """

    weights: Path
    out: Path
    device: str
    seeds: tuple[int, ...] = field(default_factory=lambda: SEEDS)
    scores: tuple[str, ...] | None = None
    pixels: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def name_file(self, kind: str, name: str, suffix: str = ".json") -> Path:
        """The file of a unit of work."""
        return self.out / kind / f"{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}{suffix}"

    @torch.no_grad()
    def compute_features(self, probe: t2v.Probe, tasks: Sequence[PlannedTask]) -> dict[str, Tensor]:
        """By the name of a task: features of its images in canonical order. The network sees each image once."""
        own = [one.task.canonical() for one in tasks]
        first = {digest: (task, row) for task in own for row, digest in enumerate(task.digests)}
        numbers = {digest: number for number, digest in enumerate(first)}
        network, digests, parts = probe.network.eval().to(self.device), list(first), []
        look = repr(probe.preprocess)
        if look not in self.pixels:
            self.pixels.clear()
        known = self.pixels.setdefault(look, {})

        def load(digest: str) -> Tensor:
            if digest not in known:
                task, row = first[digest]
                known[digest] = probe.preprocess(task.images.load(row)).to(self.device)
            return known[digest]

        with ThreadPoolExecutor() as pool:
            for start in range(0, len(digests), 256):
                batch = torch.stack(list(pool.map(load, digests[start : start + 256])))
                parts.append(network(probe.preprocess.normalise(batch, torch.float32)))
        features = torch.cat(parts)
        return {task.name: features[[numbers[digest] for digest in task.digests]] for task in own}

    def try_model(
        self,
        about: Row,
        probe: t2v.Probe,
        tasks: Sequence[PlannedTask],
        protocols: Callable[[PlannedTask], Sequence[t2v.ErrorProtocol]],
        scored: Sequence[t2v.ErrorProtocol],
        trained: t2v.TrainedExpert | None = None,
    ) -> Row:
        """The errors of a model on tasks by their protocols, its scores by some of them, and what both cost."""
        begun, features = time.monotonic(), self.compute_features(probe, tasks)
        computed, cells, scores = time.monotonic(), {}, {}
        for one in tasks:
            plan = experts.plan_cells(one.task.canonical(), protocols(one), self.seeds).to(self.device)
            own, name = features[one.task.name], one.task.name
            cells[name], scores[name] = measure(own, plan), score(own, plan, trained, scored, self.scores)
        costs = {
            "params": experts.count_parameters(probe.network),
            "gmacs": round(experts.count_gmacs(probe.network, probe.size), 6),
        }
        seconds = {"features": computed - begun, "errors and scores": time.monotonic() - computed}
        return {"info": about | costs, "cells": cells, "scores": scores, "seconds": seconds}

    def tune(
        self,
        name: str,
        probe: t2v.Probe,
        task: t2v.Task,
        protocols: Sequence[t2v.ErrorProtocol],
        seeds: Sequence[int],
        features: Tensor | None = None,
    ) -> list[Row]:
        """Errors by training size of the whole network tuned, and with features of linear classifiers on them."""
        task, points = task.canonical(), []
        plan = experts.plan_cells(task, protocols, seeds).to(self.device)
        linear = {} if features is None else {each[:2]: each[2] for each in experts.predict_cells(features, plan)}
        for protocol, seed in product(protocols, seeds):
            is_train, is_test = find_training(plan, protocol, seed), plan.tests[plan.seeds.index(seed)]
            train, test = (task.subset(np.flatnonzero(mask)) for mask in (is_train, is_test))
            tuned = t2v.train_expert(train, probe, TUNING, validation=test, seed=seed, device=self.device)
            errors = {"tuned": tuned.metrics[-1].validation_error}
            if linear:
                errors["linear"] = experts.score_cell(linear[protocol, seed], plan, protocol, seed).error
            about = {"task": task.name, "expert": name, "train": str(protocol.shots), "seed": seed}
            about["images"] = int(is_train.sum())
            points += [{**about, "way": way, "error": errors[way]} for way in sorted(errors)]
        return points

    def embed(self, space: str, probe: t2v.Probe, method: str, tasks: Sequence[PlannedTask], has_domains: bool) -> None:
        """Embeds tasks in one space, and their domains."""
        settings = t2v.EmbedSettings(method=method, variational=t2v.VariationalSettings(epochs=2))  # type: ignore[arg-type]
        kept = open_embeddings(self.name_file("embeddings", space, ".safetensors"))
        own = [one.task for one in tasks]
        kept.embed(own, probe, settings=settings, device=self.device)
        for task in own if has_domains else ():
            kept.embed_domain(task, probe, device=self.device)
        kept.save()

    def read_tables(self, kind: str) -> list[Row]:
        """What all units of a kind have found."""
        return [json.loads(path.read_text()) for path in sorted((self.out / kind).glob("*.json"))]

    def gather(
        self,
        name: str,
        tasks: Sequence[PlannedTask],
        models: Sequence[str],
        protocols: Sequence[t2v.ErrorProtocol],
        spaces: Mapping[str, Space],
        info: Row,
        *,
        source_tasks: Sequence[PlannedTask] = (),
        **more: np.ndarray,
    ) -> t2v.MetaTask:
        """One meta-task of all that was measured, its models in the order of their names; `more` are other fields.

        Errors and scores that no table has are NaN.
        """
        tables: dict[str, Row] = {}
        for table in self.read_tables("tables"):  # each has some of the tasks
            known = tables.setdefault(table["info"]["name"], table)
            known["cells"] |= table["cells"]
            known["scores"] |= table["scores"]
        ordered, names = [tables[model] for model in models], [one.task.name for one in tasks]
        keys = [protocol.key for protocol in protocols]
        unknown = np.full((len(self.seeds), 6), np.nan)

        def collect(kind: str, find: Callable[[Row], Any]) -> np.ndarray:
            found = [[[find(t[kind].get(task, {}).get(key, {})) for key in keys] for t in ordered] for task in names]
            return np.array(found, dtype=np.float64)  # None is NaN

        cells = collect("cells", lambda cell: cell or unknown)
        kinds = next(iter(next(iter(ordered[0]["scores"].values())).values()))
        scores = {kind: collect("scores", lambda cell, kind=kind: cell.get(kind)) for kind in kinds}
        nothing = np.zeros(cells.shape[:2])
        return t2v.MetaTask(
            name,
            tuple(map(describe, tasks)),
            tuple(experts.ModelInfo(**table["info"]) for table in ordered),
            tuple(keys),
            self.seeds,
            *np.moveaxis(cells[..., 1:4], -1, 0),
            **{"shares_images": nothing, "shares_labels": nothing.astype(bool)} | more,
            scores={kind: each for kind, each in scores.items() if np.isfinite(each).any()},
            source_tasks=tuple(map(describe, source_tasks)),
            halves=cells[..., 4:],
            info={"licence": LICENCE, **info},
            **self.gather_embeddings([*tasks, *source_tasks], spaces),
        )

    def gather_embeddings(self, tasks: Sequence[PlannedTask], spaces: Mapping[str, Space]) -> dict[str, Any]:
        """The embeddings of all spaces and what follows from them, as fields of a meta-task."""
        embedded, domains = {}, {}
        for name, (_, method, _) in spaces.items():
            file = open_embeddings(self.name_file("embeddings", name, ".safetensors"))
            if file.embeddings:
                embedded[name] = [file.embeddings[method, one.task.name] for one in tasks]
            if file.domains:
                domains[name.split(" ")[0]] = np.stack([file.domains[one.task.name].mean for one in tasks])
        return {
            "embeddings": {name: each for name, each in embedded.items() if name in BUNDLED},
            "domains": domains,
            "distances": {name: np.array(t2v.distance.pairwise(each)) for name, each in embedded.items()},
            "trivial_distances": {
                name: np.array([t2v.distance.symmetric(one, t2v.trivial(one)) for one in each])
                for name, each in embedded.items()
            },
            "norms": {name: np.array([one.norm() for one in each]) for name, each in embedded.items()},
        }


def describe(one: PlannedTask) -> experts.TaskInfo:
    """The task as a meta-task has it."""
    counts = (len(one.task), len(one.task.classes))
    return experts.TaskInfo(one.task.name, one.family, one.dataset, one.task.fingerprint, *counts, one.label_set)


def measure(features: Tensor, plan: experts.CellPlan) -> dict[str, list]:
    """Errors by protocol and seed, with their intervals, and on two halves of the test images."""
    # Every other image of each class: the same images for all models and seeds.
    half = rank_in_class(plan.targets) % 2 == 0
    found: dict[str, list] = {}
    for protocol, seed, predicted in experts.predict_cells(features, plan):
        whole = experts.score_cell(predicted, plan, protocol, seed)
        halves = [experts.score_cell(predicted, plan, protocol, seed, among=part).error for part in (half, ~half)]
        row = [seed, *(round(value, 6) for value in (whole.error, whole.low, whole.high, *halves))]
        found.setdefault(protocol.key, []).append(row)
    return found


def score(
    features: Tensor,
    plan: experts.CellPlan,
    trained: t2v.TrainedExpert | None,
    protocols: Sequence[t2v.ErrorProtocol],
    which: Sequence[str] | None = None,
) -> dict[str, dict[str, float | None]]:
    """The transferability scores of a model on a task by protocol, on the training images of its first seed alone."""
    found = {}
    for protocol in protocols:
        is_train = find_training(plan, protocol, plan.seeds[0])
        some = features[torch.from_numpy(np.flatnonzero(is_train)).to(features.device)]
        targets = torch.from_numpy(plan.targets[is_train].astype(np.int64)).to(features.device)
        source = None if trained is None else trained.probabilities(some)
        how: Row = {"classes": len(plan.task.classes), "source_probabilities": source, "which": which}
        values = t2v.score_features(some, targets, **how)
        found[protocol.key] = {name: round(value, 8) if np.isfinite(value) else None for name, value in values.items()}
    return found


def find_training(plan: experts.CellPlan, protocol: t2v.ErrorProtocol, seed: int) -> np.ndarray:
    """A mask of the training images of a protocol and seed."""
    return np.asarray(plan.parts.train[plan.pairs.index((protocol.shots, seed))], dtype=bool)


# --- units of work ---------------------------------------------------------------------------------------------------


def make_all(units: Units) -> bool:
    """Makes what is missing; whether nothing is left to other runs."""
    for file, make in units:
        make_once(file, make)
    left = sum(not file.exists() for file, _ in units)
    if left:
        say(f"{left} of {len(units)} are left to other runs")
    return not left


def make_once(file: Path, make: Callable[[], Any]) -> None:
    """Makes a file unless it is there or another run is making it."""
    with _lock(file) as is_ours:
        if is_ours and not file.exists():
            begun, made = time.monotonic(), make()
            plots.write_file(file, json.dumps(made, sort_keys=True).encode())
            say(f"{file.stem}: {time.monotonic() - begun:.1f} s")


@contextmanager
def _lock(file: Path) -> Iterator[bool]:
    """Whether this run may make a file: others may not until it is done, or dead."""
    import fcntl  # not on Windows, where nothing else of this project needs it

    file.parent.mkdir(parents=True, exist_ok=True)
    with file.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
