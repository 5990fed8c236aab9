"""Builds our meta-task: trains the experts, tries each on all tasks, embeds the tasks by several probes.

    python -m experiments.metatask.build --data DIR --weights DIR --out DIR

Every expert leaves a small table and every probe and method a file of embeddings. What is there is not made again, so a
run that was stopped continues; several runs may share a folder, and each unit is made by one of them. Made for a GPU.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import typer
from torch import Tensor, nn

import task2vec as t2v
from experiments.embeddings_file import open_embeddings
from experiments.metatask.plan import (
    CANVAS,
    SIZE,
    MetaTaskPlan,
    PlannedExpert,
    PlannedTask,
    plan_metatask,
    share_labels,
)
from experiments.metatask.quality import write_results
from experiments.report import Row, make_app, say
from task2vec import plots
from task2vec.experts import (
    CellPlan,
    ModelInfo,
    TaskInfo,
    count_gmacs,
    count_parameters,
    find_recipe,
    plan_cells,
    predict_cells,
    score_cell,
)
from task2vec.probe import IMAGENET_MEAN, IMAGENET_STD, Preprocess, read_weights

NAME = "birds, flowers and dogs"
LICENCE = "Figures measured by the project, under its licence; no image and no weight is in them."
PROTOCOLS, SEEDS = (t2v.ErrorProtocol(shots="half"), t2v.ErrorProtocol(shots=5)), (0, 1, 2, 3, 4)
# The paper's own classifier, on some tasks and some experts: does it rank experts as ours does?
PAPER_PROTOCOL = t2v.ErrorProtocol(shots="half", classifier="achille2019")
PAPER_TASKS = ("cub_Icteridae", "cub_Piciformes", "flowers_Asterales", "flowers_Malvales", "dogs_toy", "clothing10",
               "dtd10")  # fmt: skip
PAPER_KINDS = ("generic", "network", "half", "whole")
# Errors by training size: of these tasks, by the generic expert and by halves of each domain.
CURVE_TASKS, CURVE_KINDS = ("cub_Icteridae", "flowers_Asterales", "dogs_toy", "clothing10"), ("generic", "half")
CURVE_SEEDS = (0, 1)
CURVE_SHOTS: tuple[int | Literal["half"], ...] = (2, 5, 10, 20, "half")
# Whole networks are tuned for this long: twice the time changes little on so few images.
TUNING = t2v.Recipe("tuning", epochs=2, draws=8_000, rate=0.01)
WEIGHTS = {"resnet34": "resnet34_body.fp16.safetensors", "mobilenet_v2": "mobilenet_v2.fp16.safetensors",
           "vgg16_features": "vgg16_features.fp16.safetensors"}  # fmt: skip
# Embeddings: probe, method and size; what others compare their own tasks with has the size of the default probe.
USUAL_SIZE = 224
SPACES = {
    "tf_efficientnet_lite0 robust": ("tf_efficientnet_lite0", "robust", USUAL_SIZE),
    **{f"{probe} {method}": (probe, method, CANVAS) for probe, method in (
        ("resnet34", "robust"), ("resnet34", "direct"), ("resnet34", "variational"), ("mobilenet_v2", "robust"),
        ("vgg16_features", "robust"))},
    **{f"tf_efficientnet_lite0 at {CANVAS} {method}": ("tf_efficientnet_lite0", method, CANVAS)
       for method in ("robust", "direct", "variational")},
}  # fmt: skip
# What is shipped whole: eight megabytes hold no more. Of the others, the distances.
BUNDLED = ("tf_efficientnet_lite0 robust", "resnet34 robust")


def load_base(network: str, weights: Path, *, size: int = SIZE) -> t2v.Probe:
    """A pretrained network that sees the middles of pictures of 128 pixels, with its own mean and spread of colours."""
    file = weights / WEIGHTS[network] if network in WEIGHTS else None
    if network == "vgg16_features":
        return load_vgg(weights / WEIGHTS[network], size)
    probe = t2v.load_probe(f"torchvision:{network}" if file else network, weights=file, size=size)
    own = probe.preprocess
    assert isinstance(own, Preprocess)
    return replace(probe, preprocess=replace(own, size=(size, size), resize=CANVAS))


def load_vgg(file: Path, size: int) -> t2v.Probe:
    """The convolutions of VGG-16 and a mean over the map: its linear layers are not in the file."""
    import torchvision

    module = nn.Sequential(torchvision.models.vgg16(weights=None).features, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    module.load_state_dict({k.replace("features.", "0."): tensor.float() for k, tensor in read_weights(file).items()})
    module.add_module("head", nn.Identity())
    look = Preprocess(size=(size, size), resize=CANVAS, mean=IMAGENET_MEAN, std=IMAGENET_STD)
    return wrap(module, "vgg16_features", "head", look)


def wrap(module: nn.Module, name: str, head: str, look: Preprocess) -> t2v.Probe:
    """A module that ends in features as a probe with its own preprocessing."""

    def transform(image: Any) -> Tensor:
        return look.normalise(look(image)[None], torch.float32)[0]

    probe = t2v.load_probe(module.eval(), head=head, transform=transform)
    return replace(probe, name=name, preprocess=look)


class Studio:
    """All pictures on one device, decoded once, and the splits of all tasks."""

    def __init__(self, plan: MetaTaskPlan, weights: Path, out: Path, *, device: str):
        self.plan, self.weights, self.out, self.device = plan, weights, out, torch.device(device)
        sources = [one.source.task for one in plan.experts if one.source is not None]
        self.tasks = {task.fingerprint: task.canonical() for task in (*(one.task for one in plan.tasks), *sources)}
        places: dict[str, int] = {}
        self.rows = {
            key: np.array([places.setdefault(digest, len(places)) for digest in task.digests])
            for key, task in self.tasks.items()
        }
        look = Preprocess(size=(CANVAS, CANVAS), resize=CANVAS)
        first = {digest: (task, number) for task in self.tasks.values() for number, digest in enumerate(task.digests)}
        with ThreadPoolExecutor() as pool:
            pixels = list(pool.map(lambda digest: look(first[digest][0].images.load(first[digest][1])), places))
        self.pixels = torch.stack(pixels).to(self.device)
        self.cells = {one.task.fingerprint: self._plan(one.task, PROTOCOLS, SEEDS) for one in plan.tasks}
        say(f"{len(plan.tasks)} tasks, {len(plan.experts)} experts, {len(self.pixels)} pictures")

    def _plan(self, task: t2v.Task, protocols: Sequence[t2v.ErrorProtocol], seeds: Sequence[int]) -> CellPlan:
        return plan_cells(self.tasks[task.fingerprint], protocols, seeds).to(self.device)

    def train(self, expert: PlannedExpert) -> tuple[t2v.Probe, t2v.TrainedExpert | None]:
        """The network of an expert, fine-tuned if it has a source task."""
        base = load_base(expert.network, self.weights)
        if expert.source is None:
            return base, None
        recipe = replace(find_recipe(expert.recipe), mirrors=expert.mirrors)
        file = name_file(self.out / "experts", expert.name, ".expert.safetensors")
        options: Row = {"name": expert.name, "out": file, "seed": expert.seed, "device": str(self.device)}
        trained = t2v.train_expert(self.tasks[expert.source.task.fingerprint], base, recipe, **options)
        return trained.probe, trained

    @torch.no_grad()
    def compute_features(self, probe: t2v.Probe) -> Tensor:
        """(pictures, d) features of the middles of all pictures."""
        network, start = probe.network.eval().to(self.device), (CANVAS - SIZE) // 2
        middles = self.pixels[:, :, start : start + SIZE, start : start + SIZE]
        features = [network(probe.preprocess.normalise(part, torch.float32)) for part in middles.split(512)]
        network.cpu()
        return torch.cat(features)

    def try_expert(self, expert: PlannedExpert) -> Row:
        """The errors and scores of an expert on all tasks, and what they cost."""
        seconds, begun = {}, time.monotonic()
        probe, trained = self.train(expert)
        seconds["training"], begun = time.monotonic() - begun, time.monotonic()
        features = self.compute_features(probe)
        seconds["features"], begun = time.monotonic() - begun, time.monotonic()
        cells, scores, shares = {}, {}, {}
        seen = set() if expert.source is None else set(self.rows[expert.source.task.fingerprint].tolist())
        for one in self.plan.tasks:
            rows, plan = self.rows[one.task.fingerprint], self.cells[one.task.fingerprint]
            own = features[torch.from_numpy(rows).to(self.device)]
            cells[one.task.name] = measure(own, plan)
            if one.task.name in PAPER_TASKS and expert.kind in PAPER_KINDS and not expert.is_repeat:
                cells[one.task.name] |= measure(own, self._plan(one.task, [PAPER_PROTOCOL], SEEDS))
            scores[one.task.name] = score(own, plan, trained)
            shares[one.task.name] = round(sum(row in seen for row in rows.tolist()) / len(rows), 4)
        seconds["errors and scores"] = time.monotonic() - begun
        info = {"name": expert.name, "kind": expert.kind, "network": expert.network, "seed": expert.seed}
        info |= {"params": count_parameters(probe.network), "gmacs": round(count_gmacs(probe.network, (SIZE, SIZE)), 6)}
        info |= {"is_repeat": expert.is_repeat}
        if expert.source is not None:
            source = expert.source.task
            info |= {"source_task": source.name, "source_fingerprint": source.fingerprint}
        times = {kind: round(value, 3) for kind, value in seconds.items()}
        return {"info": info, "cells": cells, "scores": scores, "shares_images": shares, "seconds": times}

    def measure_curves(self, expert: PlannedExpert) -> Row:
        """Errors by training size: of linear classifiers on frozen features, and of the whole network tuned."""
        probe, _ = self.train(expert)
        features, points = self.compute_features(probe), []
        for one in (one for one in self.plan.tasks if one.task.name in CURVE_TASKS):
            task, rows = self.tasks[one.task.fingerprint], self.rows[one.task.fingerprint]
            fewest = int(task.counts.min()) // 2
            protocols = [t2v.ErrorProtocol(shots=each) for each in CURVE_SHOTS if each == "half" or each < fewest]
            plan = self._plan(task, protocols, CURVE_SEEDS)
            own = features[torch.from_numpy(rows).to(self.device)]
            for protocol, seed, predicted in predict_cells(own, plan):
                is_train = np.asarray(plan.parts.train[plan.pairs.index((protocol.shots, seed))], dtype=bool)
                is_test = plan.tests[plan.seeds.index(seed)]
                train, test = (task.subset(np.flatnonzero(mask)) for mask in (is_train, is_test))
                options: Row = {"validation": test, "seed": seed, "device": str(self.device)}
                tuned = t2v.train_expert(train, probe, TUNING, **options).metrics[-1].validation_error
                about = {"task": task.name, "expert": expert.name, "train": str(protocol.shots), "seed": seed}
                about["images"] = int(is_train.sum())
                points.append({**about, "way": "linear", "error": score_cell(predicted, plan, protocol, seed).error})
                points.append({**about, "way": "tuned", "error": tuned})
        return {"name": expert.name, "points": points}


def measure(features: Tensor, plan: CellPlan) -> dict[str, list]:
    """Errors by protocol and seed, with their intervals, and on two halves of the test images."""
    # Every other image of each class: the same images for all experts and seeds.
    order = np.argsort(plan.targets, kind="stable")
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order)) - np.searchsorted(plan.targets[order], plan.targets[order])
    half = rank % 2 == 0
    found: dict[str, list] = {}
    for protocol, seed, predicted in predict_cells(features, plan):
        whole = score_cell(predicted, plan, protocol, seed)
        halves = [score_cell(predicted, plan, protocol, seed, among=part).error for part in (half, ~half)]
        row = [seed, *(round(value, 6) for value in (whole.error, whole.low, whole.high, *halves))]
        found.setdefault(protocol.key, []).append(row)
    return found


def score(
    features: Tensor,
    plan: CellPlan,
    trained: t2v.TrainedExpert | None,
    protocols: Sequence[t2v.ErrorProtocol] = PROTOCOLS,
) -> dict[str, dict[str, float | None]]:
    """The transferability scores of an expert on a task by protocol, on the training images of its first seed alone."""
    found = {}
    for protocol in protocols:
        is_train = np.asarray(plan.parts.train[plan.pairs.index((protocol.shots, SEEDS[0]))], dtype=bool)
        some = features[torch.from_numpy(np.flatnonzero(is_train)).to(features.device)]
        targets = torch.from_numpy(plan.targets[is_train].astype(np.int64)).to(features.device)
        source = None if trained is None else trained.probabilities(some)
        values = t2v.score_features(some, targets, classes=len(plan.task.classes), source_probabilities=source)
        found[protocol.key] = {name: round(value, 8) if np.isfinite(value) else None for name, value in values.items()}
    return found


def embed_space(plan: MetaTaskPlan, name: str, folder: Path, *, weights: Path, device: str) -> None:
    """Embeds all tasks and source tasks by one probe and method, with their domains."""
    network, method, size = SPACES[name]
    is_default = network == "tf_efficientnet_lite0"
    probe = t2v.load_probe(network, size=size) if is_default else load_base(network, weights, size=size)
    settings = t2v.EmbedSettings(method=method, variational=t2v.VariationalSettings(epochs=2))
    kept = open_embeddings(name_file(folder, name, ".safetensors"))
    tasks = [one.task for one in (*plan.tasks, *plan.source_tasks)]
    for result in t2v.embed_many(tasks, probe, settings=settings, library=kept, device=device):
        if result.error is not None:
            raise result.error
    for task in tasks if method == "robust" and size == CANVAS else ():
        kept.embed_domain(task, probe, device=device)
    kept.save()


def gather(
    plan: MetaTaskPlan, tables: Sequence[Row], folder: Path, *, note: str, curves: Sequence[Row]
) -> t2v.MetaTask:
    """One meta-task of all that was measured; experts in the order of the plan."""
    by_name = {table["info"]["name"]: table for table in tables}
    experts = [one for one in plan.experts if one.name in by_name]
    ordered = [by_name[one.name] for one in experts]
    names, protocols = [one.task.name for one in plan.tasks], [protocol.key for protocol in PROTOCOLS]
    cells = np.array([[[t["cells"][name][key] for key in protocols] for t in ordered] for name in names])
    kinds = list(ordered[0]["scores"][names[0]][protocols[0]])
    scores = np.array([[[[np.nan if (value := t["scores"][name][key][kind]) is None else value for kind in kinds]
                         for key in protocols] for t in ordered] for name in names])  # fmt: skip
    return t2v.MetaTask(
        NAME,
        tuple(_describe(one) for one in plan.tasks),
        tuple(ModelInfo(**table["info"]) for table in ordered),
        tuple(protocols),
        SEEDS,
        cells[..., 1],
        cells[..., 2],
        cells[..., 3],
        np.array([[table["shares_images"][name] for table in ordered] for name in names]),
        np.array(
            [[one.source is not None and share_labels(task, one.source) for one in experts] for task in plan.tasks]
        ),
        scores={kind: scores[..., number] for number, kind in enumerate(kinds)},
        source_tasks=tuple(_describe(one) for one in plan.source_tasks),
        **gather_embeddings(plan, folder),
        halves=cells[..., 4:],
        info={
            "note": note,
            "licence": LICENCE,
            "curves": list(curves),
            "seconds": {table["info"]["name"]: table["seconds"] for table in tables},
        },
    )


def gather_embeddings(plan: MetaTaskPlan, folder: Path) -> dict[str, Any]:
    """The embeddings of all spaces in a folder and what follows from them, as fields of a meta-task."""
    embedded, domains = {}, {}
    wanted = [one.task.name for one in (*plan.tasks, *plan.source_tasks)]
    for name, (_, method, _) in SPACES.items():
        file = open_embeddings(name_file(folder, name, ".safetensors"))
        if file.embeddings:
            embedded[name] = [file.embeddings[method, task] for task in wanted]
        if file.domains:
            domains[name.split(" ")[0]] = np.stack([file.domains[task].mean for task in wanted])
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


def renew(base: t2v.MetaTask, plan: MetaTaskPlan, folder: Path) -> t2v.MetaTask:
    """The errors of a meta-task with the embeddings of a folder; what that lacks is kept."""
    new = {name: {**getattr(base, name), **each} for name, each in gather_embeddings(plan, folder).items()}
    tasks, sources = (tuple(_describe(one) for one in each) for each in (plan.tasks, plan.source_tasks))
    prints = {one.name: one.fingerprint for one in (*tasks, *sources)}
    models = tuple(replace(one, source_fingerprint=prints.get(one.source_task or "")) for one in base.models)
    return replace(base, tasks=tasks, source_tasks=sources, models=models, **new)


def _describe(one: PlannedTask) -> TaskInfo:
    task = one.task
    about = (task.name, one.family, one.dataset, task.fingerprint, len(task), len(task.classes))
    return TaskInfo(*about, one.label_set)


def name_file(folder: Path, expert: str, suffix: str = ".json") -> Path:
    """A file of an expert."""
    return folder / f"{re.sub(r'[^a-z0-9]+', '-', expert.lower()).strip('-')}{suffix}"


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


def build(
    data: Annotated[Path, typer.Option(help="Folder with a tasks.csv by taxon, taxonomies, and datasets.")],
    weights: Annotated[Path, typer.Option(help="Folder with the weights of the pretrained networks.")],
    out: Annotated[Path, typer.Option(help="Folder for tables, experts and embeddings.")] = Path("task2vec-metatask"),
    note: Annotated[str, typer.Option(help="Where, when and by which commit it was measured.")] = "",
    device: Annotated[str | None, typer.Option(help="cpu or cuda; default: a GPU if there is one.")] = None,
    base: Annotated[Path | None, typer.Option(help="Keep the errors of this meta-task; only embed.")] = None,
) -> None:
    """Train experts, try each on all tasks, embed the tasks, and write the meta-task and its tables."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    plan, folder = plan_metatask(data), out / "embeddings"
    for name in SPACES:
        embed = partial(embed_space, plan, name, folder, weights=weights, device=device)
        if base is None or SPACES[name][1] != "variational":
            make_once(name_file(folder, name, ".done"), embed)
    if base is not None:
        path = renew(t2v.load_metatask(base), plan, folder).save(
            plots.make_folder(out / "results") / "metatask.safetensors"
        )
        return say(f"the embeddings of {base} are new in {path}")
    studio = Studio(plan, weights, out, device=device)
    for expert in plan.experts:
        make_once(name_file(out / "tables", expert.name), partial(studio.try_expert, expert))
        if expert.kind in CURVE_KINDS and not expert.is_repeat:
            make_once(name_file(out / "curves", expert.name), partial(studio.measure_curves, expert))
    tables, curves = ([json.loads(path.read_text()) for path in sorted((out / part).glob("*.json"))]
                      for part in ("tables", "curves"))  # fmt: skip
    if len(tables) < len(plan.experts):
        return say(f"{len(plan.experts) - len(tables)} experts are left to other runs")
    points = [point for table in curves for point in table["points"]]
    metatask = gather(plan, tables, folder, note=note, curves=points)
    path = metatask.save(plots.make_folder(out / "results") / "metatask.safetensors")
    write_results(t2v.load_metatask(path), path.parent, tables)  # the tables are of what others will have
    say(f"{metatask} in {path}")


app = make_app(build)

if __name__ == "__main__":
    app()
