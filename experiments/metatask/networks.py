"""Builds the meta-task that ships with the package: pretrained networks at their own image size, on many sources.

    python -m experiments.metatask.networks --data DIR --weights DIR --out DIR

Its tasks are those of `plan`, and every dataset below `domains/` and `public/`. Errors are of linear classifiers on
frozen features, by five training sizes; on whole datasets some networks are fine-tuned, too. Every unit leaves a file,
what is there is not made again, and several runs may share a folder. Made for a GPU.
"""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import Tensor, nn

import task2vec as t2v
from experiments.embeddings_file import open_embeddings
from experiments.metatask.build import LICENCE, TUNING, _describe, load_vgg, make_once, measure, name_file, score, wrap
from experiments.metatask.plan import PlannedTask, plan_metatask
from experiments.report import Row, make_app, say
from task2vec import plots
from task2vec.experts import ModelInfo, count_gmacs, count_parameters, plan_cells
from task2vec.probe import Preprocess, read_weights

NAME = "pretrained networks on many sources"
SIZE, SEEDS = 224, (0, 1, 2, 3, 4)
PROTOCOLS = tuple(t2v.ErrorProtocol(shots=shots) for shots in (2, 5, 10, 20, "half"))  # type: ignore[arg-type]
SCORED = (1, 4)
NETWORKS = ("tf_efficientnet_lite0", "tf_efficientnet_lite1", "tf_efficientnet_lite2", "resnet34", "mobilenet_v2",
            "resnet50_keras", "vgg16_features")  # fmt: skip
WEIGHTS = {
    "resnet34": "resnet34_body.fp16.safetensors",
    "mobilenet_v2": "mobilenet_v2.fp16.safetensors",
    "resnet50_keras": "resnet50.fp16.safetensors",
    "vgg16_features": "vgg16_features.fp16.safetensors",
}
# Where they can be loaded from; the others are not published in this form.
LOCATIONS = {name: f"timm:{name}" for name in NETWORKS[:3]} | {name: f"torchvision:{name}" for name in NETWORKS[3:5]}
KERAS_MEAN = (123.68 / 255, 116.779 / 255, 103.939 / 255)
# Fine-tuned as a whole, on so many images per class, with the first seed.
TUNED, TUNED_SHOTS = ("tf_efficientnet_lite0", "resnet34"), (5, "half")
SPACES = {"tf_efficientnet_lite0 robust": "tf_efficientnet_lite0", "resnet34 robust": "resnet34"}
# Photographs of the same origin are one source, so that none is left out while its relatives are known.
SOURCES = {"food15": "food101", "objects20": "caltech101", "grocery_packages": "grocery", "grocery_fruit": "grocery"}
WHOLE = ("cub200", "flowers102", "dogs", "clothing10", "dtd10", "cifar10")


@cache
def plan_tasks(data: Path) -> tuple[PlannedTask, ...]:
    """The tasks of the older meta-task, then the other sources."""
    known = plan_metatask(data).tasks
    folders = sorted(path for part in ("domains", "public") for path in (data / part).iterdir() if path.is_dir())
    others = [PlannedTask("sources", SOURCES.get(path.name, path.name), t2v.read_folder(path), path.name)  # type: ignore[arg-type]
              for path in folders]  # fmt: skip
    return (*known, *others)


def list_whole(tasks: tuple[PlannedTask, ...]) -> list[PlannedTask]:
    """Whole datasets, one task each."""
    return [one for one in tasks if one.family == "sources" or one.task.name in WHOLE]


def split(tasks: tuple[PlannedTask, ...]) -> dict[str, list[PlannedTask]]:
    """The tasks in groups that are measured at a time, those that take longest first."""
    groups: dict[str, list[PlannedTask]] = {}
    for one in (*list_whole(tasks), *tasks):
        group = "whole" if one.task.name in WHOLE else one.family
        if one not in groups.setdefault(group, []):
            groups[group].append(one)
    return groups


def load_network(name: str, weights: Path, *, size: int | None = None) -> t2v.Probe:
    """A pretrained network at its own image size."""
    file = weights / WEIGHTS[name] if name in WEIGHTS else None
    if name == "vgg16_features":
        assert file is not None
        probe = load_vgg(file, SIZE)
        return replace(probe, preprocess=replace(probe.preprocess, resize=256))  # type: ignore[type-var]
    if name == "resnet50_keras":
        assert file is not None
        return _load_resnet50(file)
    return t2v.load_probe(f"torchvision:{name}" if file else name, weights=file, size=size)


class Studio:
    """Networks, tasks and a device."""

    def __init__(self, data: Path, weights: Path, *, device: str):
        self.data, self.weights, self.device = data, weights, torch.device(device)

    @torch.no_grad()
    def compute_features(self, probe: t2v.Probe, tasks: list[PlannedTask]) -> tuple[Tensor, dict[str, Tensor]]:
        """Features of all images of the tasks, and the rows of each task in its canonical order."""
        assert isinstance(probe.preprocess, Preprocess)
        own = [one.task.canonical() for one in tasks]
        first = {digest: (task, row) for task in own for row, digest in enumerate(task.digests)}
        numbers = {digest: number for number, digest in enumerate(first)}
        network, places, parts = probe.network.eval().to(self.device), list(first.values()), []
        with ThreadPoolExecutor(3) as pool:
            for start in range(0, len(places), 256):
                some = places[start : start + 256]
                pixels = pool.map(lambda place: probe.preprocess(place[0].images.load(place[1])), some)
                batch = torch.stack(list(pixels)).to(self.device)
                parts.append(network(probe.preprocess.normalise(batch, torch.float32)))
        rows = {task.name: torch.tensor([numbers[digest] for digest in task.digests]) for task in own}
        return torch.cat(parts), {name: each.to(self.device) for name, each in rows.items()}

    def try_network(self, name: str, tasks: list[PlannedTask]) -> Row:
        """The errors and scores of a network on some tasks."""
        begun, probe = time.monotonic(), load_network(name, self.weights)
        features, rows = self.compute_features(probe, tasks)
        seconds, cells, scores = {"features": time.monotonic() - begun}, {}, {}
        begun = time.monotonic()
        for one in tasks:
            plan = plan_cells(one.task.canonical(), PROTOCOLS, SEEDS).to(self.device)
            own = features[rows[one.task.name]]
            cells[one.task.name] = measure(own, plan)
            scores[one.task.name] = score(own, plan, None, [PROTOCOLS[number] for number in SCORED])
        seconds["errors and scores"] = time.monotonic() - begun
        size = probe.size[0]
        info = {"name": name, "kind": "generic" if name == "resnet34" else "network", "network": name}
        info |= {"params": count_parameters(probe.network), "gmacs": round(count_gmacs(probe.network, (size, size)), 6)}
        info |= {"location": LOCATIONS.get(name), "size": size}
        times = {kind: round(value, 3) for kind, value in seconds.items()}
        return {"info": info, "cells": cells, "scores": scores, "seconds": times}

    def tune(self, name: str, one: PlannedTask) -> Row:
        """Errors of a network fine-tuned as a whole on part of a task."""
        probe, task, points = load_network(name, self.weights), one.task.canonical(), []
        protocols = [t2v.ErrorProtocol(shots=shots) for shots in TUNED_SHOTS]  # type: ignore[arg-type]
        plan = plan_cells(task, protocols, SEEDS[:1])
        for protocol in protocols:
            is_train = np.asarray(plan.parts.train[plan.pairs.index((protocol.shots, SEEDS[0]))], dtype=bool)
            train, test = (task.subset(np.flatnonzero(mask)) for mask in (is_train, plan.tests[0]))
            options: Row = {"validation": test, "seed": 0, "device": str(self.device)}
            tuned = t2v.train_expert(train, probe, TUNING, **options).metrics[-1].validation_error
            about = {"task": task.name, "expert": name, "train": str(protocol.shots), "seed": 0}
            points.append({**about, "images": int(is_train.sum()), "way": "tuned", "error": tuned})
        return {"points": points}

    def embed(self, space: str, tasks: tuple[PlannedTask, ...], folder: Path) -> None:
        """Embeds all tasks in one space, with their domains."""
        probe = load_network(SPACES[space], self.weights, size=SIZE)
        kept = open_embeddings(name_file(folder, space, ".safetensors"))
        own = [one.task for one in tasks]
        for result in t2v.embed_many(own, probe, library=kept, device=str(self.device)):
            if result.error is not None:
                raise result.error
        for task in own:
            kept.embed_domain(task, probe, device=str(self.device))
        kept.save()


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
    look = Preprocess(size=(SIZE, SIZE), resize=256, mean=KERAS_MEAN, std=(1 / 255,) * 3)
    return wrap(module, "resnet50_keras", "fc", look)


def gather(tasks: tuple[PlannedTask, ...], out: Path, *, note: str) -> t2v.MetaTask:
    """One meta-task of all that was measured."""
    tables = [json.loads(path.read_text()) for path in sorted((out / "tables").glob("*.json"))]
    by_name: dict[str, Row] = {}
    for table in tables:  # each has some of the tasks
        known = by_name.setdefault(table["info"]["name"], {"info": table["info"], "cells": {}, "scores": {}})
        known["cells"] |= table["cells"]
        known["scores"] |= table["scores"]
    ordered, names = [by_name[name] for name in NETWORKS if name in by_name], [one.task.name for one in tasks]
    keys = [protocol.key for protocol in PROTOCOLS]
    cells = np.array([[[table["cells"][name][key] for key in keys] for table in ordered] for name in names])
    kinds = list(ordered[0]["scores"][names[0]][keys[SCORED[0]]])
    scores = np.full((len(kinds), *cells.shape[:3]), np.nan)
    for place in np.ndindex(*cells.shape[:2]):
        for number in SCORED:
            found = ordered[place[1]]["scores"][names[place[0]]][keys[number]]
            scores[(slice(None), *place, number)] = [np.nan if found[kind] is None else found[kind] for kind in kinds]
    files = {space: open_embeddings(name_file(out / "embeddings", space, ".safetensors")) for space in SPACES}
    embedded = {space: [file.embeddings["robust", name] for name in names] for space, file in files.items()}
    domains = {SPACES[space]: np.stack([file.domains[name].mean for name in names]) for space, file in files.items()}
    points = [
        point for path in sorted((out / "tuned").glob("*.json")) for point in json.loads(path.read_text())["points"]
    ]
    return t2v.MetaTask(
        NAME,
        tuple(_describe(one) for one in tasks),
        tuple(ModelInfo(**table["info"]) for table in ordered),
        tuple(keys),
        SEEDS,
        cells[..., 1],
        cells[..., 2],
        cells[..., 3],
        np.zeros(cells.shape[:2]),
        np.zeros(cells.shape[:2], dtype=bool),
        scores={kind: scores[number] for number, kind in enumerate(kinds) if np.isfinite(scores[number]).any()},
        embeddings=embedded,
        domains=domains,
        distances={space: np.array(t2v.distance.pairwise(each)) for space, each in embedded.items()},
        trivial_distances={
            space: np.array([t2v.distance.symmetric(one, t2v.trivial(one)) for one in each])
            for space, each in embedded.items()
        },
        norms={space: np.array([one.norm() for one in each]) for space, each in embedded.items()},
        halves=cells[..., 4:],
        info={"note": note, "licence": LICENCE, "curves": points},
    )


def write_tables(metatask: t2v.MetaTask, folder: Path) -> None:
    """Mean errors by task and training size, and those of fine-tuning, as CSV."""
    names, means = [model.name for model in metatask.models], metatask.mean_errors()
    rows = [
        (task.name, task.dataset, task.family, task.images, task.classes, key.split(", ")[1].removeprefix("train "),
         *(f"{100 * error:.2f}" for error in means[row, :, number]))
        for row, task in enumerate(metatask.tasks) for number, key in enumerate(metatask.protocols)
    ]  # fmt: skip
    heads = ["task", "source", "family", "images", "classes", "training images", *names]
    plots.write_table(folder / "errors.csv", heads, rows)
    points = metatask.info["curves"]
    plots.write_table(folder / "tuned.csv", list(points[0]), (point.values() for point in points))


def build(
    data: Annotated[Path, typer.Option(help="Folder with a tasks.csv, datasets, and the folders domains and public.")],
    weights: Annotated[Path, typer.Option(help="Folder with the weights of the pretrained networks.")],
    out: Annotated[Path, typer.Option(help="Folder for tables and embeddings.")] = Path("task2vec-networks"),
    note: Annotated[str, typer.Option(help="Where, when and by which commit it was measured.")] = "",
    device: Annotated[str | None, typer.Option(help="cpu or cuda; default: a GPU if there is one.")] = None,
    part: Annotated[str, typer.Option(help="errors, tuned, embeddings or all.")] = "all",
) -> None:
    """Measure networks on all tasks, embed the tasks, and write the meta-task."""
    tasks = plan_tasks(data)
    studio = Studio(data, weights, device=device or ("cuda" if torch.cuda.is_available() else "cpu"))
    units: list[tuple[Path, Any]] = []
    if part in ("embeddings", "all"):
        place = out / "embeddings"
        units += [(name_file(place, space, ".done"), partial(studio.embed, space, tasks, place)) for space in SPACES]
    if part in ("errors", "all"):
        units += [(name_file(out / "tables", f"{name} {group}"), partial(studio.try_network, name, own))
                  for group, own in split(tasks).items() for name in NETWORKS]  # fmt: skip
    if part in ("tuned", "all"):
        units += [(name_file(out / "tuned", f"{name} {one.task.name}"), partial(studio.tune, name, one))
                  for one in list_whole(tasks) for name in TUNED]  # fmt: skip
    for file, make in units:
        make_once(file, make)
    if all(file.exists() for file, _ in units) and part == "all":
        path = gather(tasks, out, note=note).save(plots.make_folder(out / "results") / "metatask.safetensors")
        write_tables(t2v.load_metatask(path), path.parent)
        say(f"{t2v.load_metatask(path)} in {path}")


app = make_app(build)

if __name__ == "__main__":
    app()
