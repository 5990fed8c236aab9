"""Measures our meta-tasks: errors and scores of networks on tasks, embeddings, and the file of all of them.

Every unit of work writes a file, and a training its checkpoints. What exists is not computed again, so a run that was
stopped continues; several runs may share a folder, and each model is measured by one of them. Several runs
(`--runs 10`) use a GPU better than one if CUDA's multi-process service is started before them
(`nvidia-cuda-mps-control -d`): one run uses two thirds of an H200.
"""

import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import task2vec as t2v
from experiments.embeddings import embed_all, measure_error, measure_spaces
from experiments.metatask.plan import (
    CANVAS,
    HALF,
    LOCATIONS,
    ORIGINS,
    SIZE,
    MetaTaskPlan,
    PlannedExpert,
    PlannedTask,
    rank_in_class,
    share_labels,
)
from experiments.report import Row, say
from task2vec import experts, plots
from task2vec.probe import IMAGENET_MEAN, IMAGENET_STD, Preprocess, read_weights
from task2vec.select import SCORES, SOURCE_SCORES

LICENCE = "Figures measured by the project, under its licence; no image and no weight is in them."
# Of whole networks: training twice as long changes little on so few images.
TUNING = t2v.Recipe("tuning", epochs=2, draws=8_000, rate=0.01)
WEIGHTS = {
    "resnet34": "resnet34_body.fp16.safetensors",
    "mobilenet_v2": "mobilenet_v2.fp16.safetensors",
    "resnet50_keras": "resnet50.fp16.safetensors",
    "vgg16_features": "vgg16_features.fp16.safetensors",
}
KERAS_MEAN = (123.68 / 255, 116.779 / 255, 103.939 / 255)
# A model may take this much longer than the slowest one before it.
_MARGIN = 1.1
# The decoded images of all tasks for the preprocessing used last: they are decoded once, not for each model.
_DECODED: dict[tuple[str, tuple[str, ...]], dict[int, Tensor]] = {}
# Embeddings in the file, which may have eight megabytes; of the others it has the distances.
BUNDLED = ("tf_efficientnet_lite0 robust", "resnet34 robust")


# --- networks --------------------------------------------------------------------------------------------------------


def load_network(name: str, weights: Path, *, size: int | None = None, resize: int | None = None) -> t2v.Probe:
    """A pretrained network at its own image size or at `size`; with `resize`, it sees the middle of larger pictures."""
    file = weights / WEIGHTS.get(name, "")
    if name == "vgg16_features":
        probe = _load_vgg(file)
    elif name == "resnet50_keras":
        probe = _load_resnet50(file)
    elif name in WEIGHTS:
        location = LOCATIONS.get(name, f"torchvision:{name}")
        probe = t2v.load_probe(location, weights=file, size=size)
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
    for layer in module.modules():
        if isinstance(layer, torchvision.models.resnet.Bottleneck):
            layer.conv1.stride = layer.conv2.stride
            layer.conv2.stride = (1, 1)
        elif isinstance(layer, nn.BatchNorm2d):
            layer.eps = 1e-3
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
    """Where and how a meta-task is measured.

    Attributes:
        plan: the tasks and models.
        weights: the folder of pretrained networks.
        out: the folder for results.
        device: "cpu" or "cuda".
        until: the time, by `time.monotonic`, at which a run ends: a model that would take longer is not begun.
    """

    plan: MetaTaskPlan
    weights: Path
    out: Path
    device: str
    until: float = math.inf

    def make_all(self) -> bool:
        """Whether everything is measured, after measuring what is missing and no other run is measuring."""
        files = [self.name_file("embeddings", space) for space in self.plan.spaces]
        for space, file in zip(self.plan.spaces, files, strict=True):
            make_once(file, partial(self.embed, space))
        units = {expert.name: self.list_units(expert) for expert in self.plan.experts}
        files += [file for of_expert in units.values() for file in of_expert]
        longest = 0.0
        for expert in self.plan.experts:
            start = time.monotonic()
            if start + _MARGIN * longest < self.until:
                self.make_expert(expert, units[expert.name])
                longest = max(longest, time.monotonic() - start)
        left = sum(not file.exists() for file in files)
        if left:
            say(f"{left} of {len(files)} are left to other runs")
        return not left

    def list_units(self, expert: PlannedExpert) -> dict[Path, Callable[..., Any]]:
        """The measurements of a model, as functions of its network, by the files of their results."""
        units: dict[Path, Callable[..., Any]] = {self.name_file("tables", expert.name): partial(self.measure, expert)}
        for model, task, protocols in self.plan.curves:
            if model.name == expert.name:
                file = self.name_file("curves", f"{expert.name} on {task.task.name}")
                units[file] = partial(self.tune, expert, task.task, protocols)
        if self.plan.transfers and expert.kind != "network":
            units[self.name_file("transfers", expert.name)] = partial(self.transfer, expert)
        return units

    def make_expert(self, expert: PlannedExpert, units: Mapping[Path, Callable[..., Any]]) -> None:
        """Trains a model once for all of its units that are missing, unless another run does."""
        with _lock(next(iter(units))) as is_ours:
            missing = {file: measure for file, measure in units.items() if is_ours and not file.exists()}
            if not missing:
                return
            start = time.monotonic()
            probe, trained = self.train(expert)
            seconds = time.monotonic() - start
            for file, measure in missing.items():
                content = json.dumps(measure(probe, trained, seconds), sort_keys=True).encode()
                plots.write_file(file, content, makes_folder=True)
            if trained is not None and trained.path is not None:
                trained.path.unlink()
            say(f"{expert.name}: {seconds:.1f} s of training, {time.monotonic() - start - seconds:.1f} s of measuring")

    def train(self, expert: PlannedExpert) -> tuple[t2v.Probe, t2v.TrainedExpert | None]:
        """The network of a model, fine-tuned if it has a source task; a training that was stopped continues."""
        base = load_network(expert.network, self.weights, size=expert.size, resize=expert.resize)
        if expert.source is None:
            return base, None
        recipe = replace(experts.find_recipe(expert.recipe), mirrors=expert.mirrors)
        file = self.name_file("weights", expert.name).with_suffix(".expert.safetensors")
        file.unlink(missing_ok=True)  # of a run that ended between training and measuring
        options: Row = {"name": expert.name, "seed": expert.seed, "device": self.device, "out": file}
        trained = t2v.train_expert(expert.source.task, base, recipe, **options)
        return trained.probe, trained

    def name_file(self, kind: str, name: str) -> Path:
        """The file of a unit of work."""
        return self.out / kind / f"{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}.json"

    def measure(
        self, expert: PlannedExpert, probe: t2v.Probe, trained: t2v.TrainedExpert | None, seconds: float
    ) -> Row:
        """The errors and scores of a model on all tasks, and the seconds that they took."""
        about = {name: getattr(expert, name) for name in ("name", "kind", "network", "seed", "is_repeat")}
        about |= {"recipe": "" if trained is None else trained.metadata["recipe"]["name"]}
        if expert.source is not None:
            source, dataset = expert.source.task, expert.source.dataset
            about |= {"source_task": source.name, "source_fingerprint": source.fingerprint, "source_dataset": dataset}
        times = [time.monotonic()]
        plans = [plan_once(task, self.plan.protocols, self.plan.seeds, self.device) for task in self.plan.tasks]
        cells, scores = {}, {}
        features = self.compute_features(probe, [plan.task for plan in plans])
        times.append(time.monotonic())
        for plan, task_features in zip(plans, features, strict=True):
            cells[plan.task.name] = measure_halves(task_features, plan)
            scores[plan.task.name] = self.score(task_features, plan, trained)
        times.append(time.monotonic())
        about |= {
            "location": LOCATIONS.get(expert.name),
            "size": probe.size[0],
            "params": experts.count_parameters(probe.network),
            "gmacs": round(experts.count_gmacs(probe.network, probe.size), 6),
        }
        spent = zip(("training", "features", "errors and scores"), (seconds, *np.diff(times).tolist()), strict=True)
        costs = {work: round(value, 3) for work, value in spent}
        return {"info": about, "cells": cells, "scores": scores, "seconds": costs}

    def compute_features(self, probe: t2v.Probe, tasks: Sequence[t2v.Task]) -> list[Tensor]:
        """The features of the images of each task; images are decoded once for all models that see them alike."""
        key = (probe.preprocess.description, tuple(task.fingerprint for task in tasks))
        decoded = _DECODED.get(key, {})
        _DECODED.clear()  # two sets of images may not fit into memory
        _DECODED[key] = decoded
        return experts.features_of_tasks(probe, tasks, device=self.device, decoded=decoded)

    def score(
        self, features: Tensor, plan: experts.CellPlan, trained: t2v.TrainedExpert | None
    ) -> dict[str, dict[str, float | None]]:
        """The transferability scores of a model on a task, on the training images of the first seed alone."""
        scores = {}
        for protocol in self.plan.scored:
            is_train = find_training(plan, protocol, plan.seeds[0])
            training = features[torch.from_numpy(np.flatnonzero(is_train)).to(features.device)]
            targets = torch.from_numpy(plan.targets[is_train].astype(np.int64)).to(features.device)
            source = None if trained is None else trained.probabilities(training)
            names = [name for name in self.plan.scores or SCORES if source is not None or name not in SOURCE_SCORES]
            about: Row = {"classes": len(plan.task.classes), "source_probabilities": source, "which": names}
            values = t2v.score_features(training, targets, **about)
            scores[protocol.key] = {name: round(value, 8) for name, value in values.items()}
        return scores

    def tune(
        self,
        expert: PlannedExpert,
        task: t2v.Task,
        protocols: Sequence[t2v.ErrorProtocol],
        probe: t2v.Probe,
        *_: Any,
    ) -> list[Row]:
        """Errors by training size of the fine-tuned whole network, and of linear classifiers on its features."""
        points, predictions, task = [], {}, task.canonical()
        plan = experts.plan_cells(task, protocols, self.plan.curve_seeds).to(self.device)
        if self.plan.has_linear:
            (features,) = experts.features_of_tasks(probe, [task], device=self.device)
            predictions = {(protocol, seed): labels for protocol, seed, labels in experts.predict_cells(features, plan)}
        for protocol, seed in product(protocols, self.plan.curve_seeds):
            errors = {"tuned": self.tune_once(probe, plan, protocol, seed)}
            if predictions:
                errors["linear"] = experts.score_cell(predictions[protocol, seed], plan, protocol, seed).error
            about = {"task": task.name, "expert": expert.name, "train": str(protocol.shots), "seed": seed}
            about["images"] = int(find_training(plan, protocol, seed).sum())
            points += [{**about, "way": way, "error": errors[way]} for way in sorted(errors)]
        return points

    def transfer(self, expert: PlannedExpert, probe: t2v.Probe, *_: Any) -> list[Row]:
        """Errors of the network fine-tuned as a whole on some tasks, for the paper's transfer distance."""
        plans = [plan_once(task, (HALF,), (0,), self.device) for task in self.plan.transfers]
        return [
            {"expert": expert.name, "task": plan.task.name, "seed": 0, "error": self.tune_once(probe, plan, HALF, 0)}
            for plan in plans
        ]

    def tune_once(self, probe: t2v.Probe, plan: experts.CellPlan, protocol: t2v.ErrorProtocol, seed: int) -> float:
        """The test error of a network that is fine-tuned as a whole on the training images of a protocol and seed."""
        is_train, is_test = find_training(plan, protocol, seed), plan.tests[plan.seeds.index(seed)]
        training, tested = (plan.task.subset(np.flatnonzero(mask)) for mask in (is_train, is_test))
        tuned = t2v.train_expert(training, probe, TUNING, seed=seed, device=self.device)
        (features,) = experts.features_of_tasks(tuned.probe, [tested], device=self.device)
        return measure_error(tuned, features, tested)

    def embed(self, space: str) -> dict[str, list[float]]:
        """The mean features of all tasks and source tasks, their domain embeddings, after embedding them in a space."""
        network, method, size = self.plan.spaces[space]
        resize = CANVAS if size == CANVAS and network != "tf_efficientnet_lite0" else None
        probe = load_network(network, self.weights, size=size, resize=resize)
        settings = t2v.EmbedSettings(method=method, variational=t2v.VariationalSettings(epochs=2))  # type: ignore[arg-type]
        tasks, folder = self.plan.all_tasks, self.name_file("embeddings", space).with_suffix("")
        embed_all(tasks, probe, folder, settings=settings, device=self.device)
        domains = tasks if method == "robust" else ()
        return {task.fingerprint: t2v.embed_domain(task, probe, device=self.device).mean.tolist() for task in domains}

    def read(self, kind: str) -> list[Any]:
        """The results of all units of a kind."""
        return [json.loads(path.read_text()) for path in sorted((self.out / kind).glob("*.json"))]

    def gather(self, note: str) -> t2v.MetaTask:
        """The meta-task of all that was measured; scores that no table has are NaN."""
        plan = self.plan
        tables = {table["info"]["name"]: table for table in self.read("tables")}
        ordered = [tables[expert.name] for expert in plan.experts]
        names = [planned.task.name for planned in plan.tasks]
        keys = [protocol.key for protocol in plan.protocols]
        cells = np.array([[[t["cells"][task][key] for key in keys] for t in ordered] for task in names])
        kinds = {kind for t in ordered for task in t["scores"].values() for cell in task.values() for kind in cell}
        scores = {
            kind: np.array(  # None is NaN
                [[[t["scores"][task].get(key, {}).get(kind) for key in keys] for t in ordered] for task in names],
                dtype=np.float64,
            )
            for kind in sorted(kinds)
        }
        images, labels = np.zeros((2, len(plan.tasks), len(plan.experts)))
        for column, source in enumerate(expert.source for expert in plan.experts):
            seen = set() if source is None else set(source.task.digests)
            for row, task in enumerate(plan.tasks):
                images[row, column] = round(np.mean([digest in seen for digest in task.task.digests]), 4)
                labels[row, column] = source is not None and share_labels(task, source)
        points = [point for points in self.read("curves") for point in points]
        info = {"licence": LICENCE, "note": note, "seconds": {name: tables[name]["seconds"] for name in tables}}
        return t2v.MetaTask(
            plan.name,
            tuple(map(describe, plan.tasks)),
            tuple(
                t2v.ModelInfo(**table["info"], weights_origin=ORIGINS.get(table["info"]["network"], ""))
                for table in ordered
            ),
            tuple(keys),
            plan.seeds,
            *np.moveaxis(cells[..., 1:4], -1, 0),
            shares_images=images,
            shares_labels=labels.astype(bool),
            scores={kind: values for kind, values in scores.items() if np.isfinite(values).any()},
            source_tasks=tuple(map(describe, plan.source_tasks)),
            halves=cells[..., 4:],
            info=info | {"curves": points, "transfers": [row for rows in self.read("transfers") for row in rows]},
            **self.gather_embeddings(),
        )

    def gather_embeddings(self) -> dict[str, Any]:
        """The embeddings of all spaces and what follows from them, as fields of a meta-task."""
        embedded, domains = {}, {}
        for name in self.plan.spaces:
            file = self.name_file("embeddings", name)
            kept = [t2v.load_embedding(path) for path in file.with_suffix("").glob("*.safetensors")]
            # Not by name: a label set of other pictures of the same birds has the same name.
            known = {embedding.provenance["task_fingerprint"]: embedding for embedding in kept}
            embedded[name] = [known[task.fingerprint] for task in self.plan.all_tasks]
            if means := json.loads(file.read_text()):
                domains[name.split(" ")[0]] = np.array([means[task.fingerprint] for task in self.plan.all_tasks])
        kept = {name: embeddings for name, embeddings in embedded.items() if name in BUNDLED}
        return measure_spaces(embedded) | {"embeddings": kept, "domains": domains}


def describe(planned: PlannedTask) -> t2v.TaskInfo:
    """The task as a meta-task has it."""
    task = planned.task
    about = (planned.family, planned.dataset, task.fingerprint, len(task), len(task.classes), planned.label_set)
    return t2v.TaskInfo(task.name, *about)


@cache
def plan_once(
    planned: PlannedTask, protocols: tuple[t2v.ErrorProtocol, ...], seeds: tuple[int, ...], device: str
) -> experts.CellPlan:
    """The splits of a task, which serve all models."""
    return experts.plan_cells(planned.task.canonical(), protocols, seeds).to(device)


def measure_halves(features: Tensor, plan: experts.CellPlan) -> dict[str, list]:
    """Errors by protocol and seed, with their intervals, and on two halves of the test images."""
    # Every other image of each class: the same images for all models and seeds.
    half = rank_in_class(plan.targets) % 2 == 0
    cells: dict[str, list] = {}
    for protocol, seed, predicted in experts.predict_cells(features, plan):
        whole = experts.score_cell(predicted, plan, protocol, seed)
        halves = [experts.score_cell(predicted, plan, protocol, seed, among=mask).error for mask in (half, ~half)]
        row = [seed, *(round(value, 6) for value in (whole.error, whole.low, whole.high, *halves))]
        cells.setdefault(protocol.key, []).append(row)
    return cells


def find_training(plan: experts.CellPlan, protocol: t2v.ErrorProtocol, seed: int) -> np.ndarray:
    """A mask of the training images of a protocol and seed."""
    return np.asarray(plan.parts.train[plan.pairs.index((protocol.shots, seed))], dtype=bool)


# --- units of work ---------------------------------------------------------------------------------------------------


def make_once(file: Path, make: Callable[[], Any]) -> None:
    """Makes a file unless it exists or another run is making it."""
    with _lock(file) as is_ours:
        if is_ours and not file.exists():
            start = time.monotonic()
            plots.write_file(file, json.dumps(make(), sort_keys=True).encode())
            say(f"{file.stem}: {time.monotonic() - start:.1f} s")


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
