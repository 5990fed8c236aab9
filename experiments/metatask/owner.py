"""Builds a meta-task of the paper (see `paper`) from the original datasets: embeddings, experts, errors, fine-tuning.

What was computed is kept in a library and in the files of the experts, below the output folder: a run that was stopped
continues, and a finished one only reads the images again. Errors are measured as the paper does: a linear classifier by
its recipe on the published training split, tested on the published validation or test split.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import task2vec as t2v
from experiments.metatask.paper import TRAIN, PaperPlan, PaperTask
from experiments.report import Row, format_markdown, say
from task2vec import experts, plots
from task2vec.tasks import Catalog

BASE = "torchvision:resnet34"
PROBES = (BASE, "torchvision:vgg13", "torchvision:densenet121")
PROTOCOL = t2v.ErrorProtocol("all", "achille2019")
METHOD, SEED = "robust", 0
# Measured with ResNet-34 on one H200 at 224 pixels: images per second of training and of features; seconds for the head
# and the Fisher of an embedding, and for a linear classifier. See docs/results/metatask and docs/how-to/scale.md.
TRAINING, FEATURES, FISHER, CLASSIFIER = 6_400, 17_700, 0.08, 1.11
EMBEDDING_BYTES = 300_000
RULE = "an expert is no candidate for a task if it was trained on a label of the task on images of its dataset"


def load_probes(names: Sequence[str], weights: Path | None, *, download: bool) -> dict[str, t2v.Probe]:
    """The networks by name, the base network first.

    Args:
        names: such as "torchvision:vgg13".
        weights: a file for the base network, or a folder with one file for each, named as torchvision does
            ("vgg13-19584684.pth"); without a file, weights come from torch's cache.
        download: whether what is not there may be downloaded.
    """
    found = {}
    for name in dict.fromkeys((BASE, *names)):
        file = weights if name == BASE else None
        if weights is not None and weights.is_dir():
            file = next(iter(sorted(weights.glob(f"{name.rpartition(':')[2]}[-.]*"))), None)
        found[name] = t2v.load_probe(name, weights=file, download=download)
    return found


# --- what it will take -----------------------------------------------------------------------------------------------


def describe_plan(plan: PaperPlan, probes: Sequence[str], recipe: t2v.Recipe, tuning: t2v.Recipe) -> str:
    """All tasks and experts, and what they will take of a GPU and of the disk, as tables."""
    parts = []
    for title, chosen in (("tasks", plan.tasks), ("experts", plan.experts)):
        rows = [[one.name, one.definition.kind, one.definition.group, str(len(one.definition.classes)),
                 f"{one.samples:,}", f"{one.definition.counts[one.test_split]:,}"] for one in chosen]  # fmt: skip
        header = [f"{len(chosen)} {title}", "kind", "group", "classes", "training images", "test images"]
        parts += [format_markdown(header, rows)] if chosen else []
    hours, gigabytes = estimate_cost(plan, probes, recipe, tuning)
    rows = [[name, f"{value:.1f}"] for name, value in {**hours, "in all": sum(hours.values())}.items()]
    parts.append(format_markdown(["", "GPU hours"], rows))
    parts.append(
        f"GPU hours are of one H200 with 16 cores at 224 pixels: training {TRAINING:,} images/s, features {FEATURES:,} "
        f"images/s, {FISHER:g} s per embedding, {CLASSIFIER:g} s per classifier; for other networks than ResNet-34, in "
        f"proportion to their multiply-accumulates. Disk: {gigabytes:.1f} GB beside the datasets."
    )
    return "\n\n".join(parts)


def estimate_cost(
    plan: PaperPlan, probes: Sequence[str], recipe: t2v.Recipe, tuning: t2v.Recipe
) -> tuple[dict[str, float], float]:
    """GPU hours by kind of work, and gigabytes."""
    from torchvision.models import get_model_weights

    about = {name: get_model_weights(name.rpartition(":")[2]).DEFAULT.meta for name in (BASE, *probes)}  # type: ignore[attr-defined]
    images, tasks, models = count_images(plan.embedded), len(plan.tasks), len(plan.experts) + 1
    passes = sum(about[name]["_ops"] / about[BASE]["_ops"] for name in probes)
    seconds = {"embeddings": (passes + 1) * images / FEATURES + passes * len(plan.embedded) * FISHER}
    networks = len(plan.experts) * recipe.epochs * recipe.draws
    if plan.experts:
        seconds["experts"] = networks / TRAINING + sum(one.samples for one in plan.experts) / FEATURES
        seen = count_images(plan.tasks) + count_images(plan.tasks, is_test=True)
        sizes, starts = len(plan.shots) + 1, len(plan.tuned_experts) + 1
        cells = tasks * models + len(plan.tuned_tasks) * starts * len(plan.shots)
        seconds["errors"] = models * seen / FEATURES + cells * CLASSIFIER
        tested = sum(one.definition.counts[one.test_split] for one in plan.tuned_tasks)
        tuned = len(plan.tuned_tasks) * tuning.epochs * tuning.draws
        seconds["fine-tuning"] = starts * sizes * (tuned / TRAINING + tested / FEATURES)
    # Tuned networks are kept until they are tested, those of one expert at a time.
    files = len(plan.experts) + len(plan.tuned_tasks) * (len(plan.shots) + 1)
    size = 4 * about[BASE]["num_params"] * files + EMBEDDING_BYTES * len(plan.embedded) * len(probes)
    return {name: value / 3600 for name, value in seconds.items()}, size / 1e9


def count_images(tasks: Sequence[PaperTask], *, is_test: bool = False) -> int:
    """The number of different images that tasks are trained, or tested, on."""
    used: dict[Catalog, np.ndarray] = {}
    for one in tasks:
        rows = one.catalog.rows(one.test_split if is_test else TRAIN)
        own, _ = one.catalog.tables[one.definition.table].select(one.definition, rows)
        used.setdefault(one.catalog, np.zeros(len(one.catalog), dtype=bool))[own] = True
    return int(sum(mask.sum() for mask in used.values()))


def read_tasks(chosen: Sequence[PaperTask], *, is_test: bool = False) -> list[t2v.Task]:
    """The tasks of the training split, or of that for testing; a file of several tasks is read once."""
    found: dict[PaperTask, t2v.Task] = {}
    for catalog in dict.fromkeys(one.catalog for one in chosen):
        own = [one for one in chosen if one.catalog is catalog]
        split = own[0].test_split if is_test else TRAIN
        say(f"reading {len(own)} tasks of {catalog.name}, {split}")
        tasks = catalog.tasks([one.definition for one in own], split=split, progress=True)
        found |= {one: replace(task, name=one.name) for one, task in zip(own, tasks, strict=True)}
    return [found[one] for one in chosen]


# --- the run ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """How a plan is measured.

    Attributes:
        plan: what is measured.
        out: the folder for results.
        probes: networks that tasks are embedded with, by name; the base network of the experts is the first.
        recipe: that experts are trained by.
        tuning: that whole networks are fine-tuned on tasks by.
        backend: "serial" or "ray".
        device: "cpu", "cuda"; None takes a GPU if there is one.
    """

    plan: PaperPlan
    out: Path
    probes: Mapping[str, t2v.Probe]
    recipe: t2v.Recipe
    tuning: t2v.Recipe
    backend: str = "serial"
    device: str | None = None

    @property
    def base(self) -> t2v.Probe:
        """The generic expert, from which the others are trained."""
        return next(iter(self.probes.values()))

    @cached_property
    def training(self) -> dict[PaperTask, t2v.Task]:
        """All tasks that are embedded, with the images of their training split."""
        return dict(zip(self.plan.embedded, read_tasks(self.plan.embedded), strict=True))

    @cached_property
    def tests(self) -> dict[PaperTask, t2v.Task]:
        """The tasks, with the images that errors are measured on."""
        return dict(zip(self.plan.tasks, read_tasks(self.plan.tasks, is_test=True), strict=True))

    def make_metatask(self) -> t2v.MetaTask:
        """The meta-task: computes what is missing, and gathers all of it."""
        plan, lineages = self.plan, {one.name: list(one.lineage) for one in self.plan.embedded if one.lineage}
        info: Row = {"rule": RULE, "lineages": lineages, "curves": [], "transfers": []}
        with t2v.Library(self.out / "library") as library:
            spaces = self.embed(library)
            if not plan.experts:
                tasks = tuple(self.describe(one) for one in plan.tasks)
                errors, seen = np.zeros((len(tasks), 0, 0, 0)), np.zeros((len(tasks), 0))
                shares = {"shares_images": seen, "shares_labels": seen > 0}
                return t2v.MetaTask(plan.name, tasks, (), (), (), errors, errors, errors, info=info, **shares, **spaces)
            models = [self.base, *self.train(library)]
            measured = self.measure(library, plan.tasks, models, [PROTOCOL])
            info |= {"recipe": self.recipe.to_dict(), "tuning": self.tuning.to_dict()}
            info |= self.tune(library, dict(zip(("", *(one.name for one in plan.experts)), models, strict=True)))
        seen = np.array([[one.was_trained_on(expert) for expert in plan.experts] for one in plan.tasks])
        known = set(plan.tasks)
        return replace(
            measured,
            name=plan.name,
            tasks=tuple(self.describe(one) for one in plan.tasks),
            models=self.describe_models(models),
            shares_images=np.zeros((len(plan.tasks), len(models))),  # of the test images, none
            shares_labels=np.hstack([np.zeros((len(plan.tasks), 1), dtype=bool), seen]),
            source_tasks=tuple(self.describe(one) for one in plan.embedded if one not in known),
            info=info,
            **spaces,
        )

    def describe(self, one: PaperTask) -> t2v.TaskInfo:
        """The task as a meta-task has it; the tasks of a meta-task of the paper are one family."""
        task = self.training[one]
        counts = (len(task), len(task.classes))
        return t2v.TaskInfo(one.name, self.plan.name, one.dataset, task.fingerprint, *counts, one.definition.group)

    def describe_models(self, models: Sequence[Any]) -> tuple[t2v.ModelInfo, ...]:
        """The generic expert and the others as a meta-task has them."""
        network = self.base.name
        about: Row = {"network": network, "params": experts.count_parameters(self.base.network)}
        about["gmacs"] = round(experts.count_gmacs(self.base.network, self.base.size), 6)
        found = [t2v.ModelInfo(network, "generic", location=BASE, **about)]
        for one, entry in zip(self.plan.experts, models[1:], strict=True):
            source = {"source_task": one.name, "source_fingerprint": self.training[one].fingerprint}
            source |= {"source_dataset": one.dataset, "seed": SEED, "location": entry.location}
            source["recipe"] = self.recipe.name
            found.append(t2v.ModelInfo(one.name, one.definition.kind, **source, **about))
        return tuple(found)

    def embed(self, library: t2v.Library) -> Row:
        """The embeddings of all tasks by all probes, and what follows from them, as fields of a meta-task."""
        tasks, settings, embedded = list(self.training.values()), t2v.EmbedSettings(method=METHOD), {}
        for name, probe in self.probes.items():
            found = [library.find(task, probe, settings=settings) for task in tasks]
            missing = [number for number, embedding in enumerate(found) if embedding is None]
            say(f"embedding {len(missing)} of {len(tasks)} tasks with {name}")
            how: Row = {"settings": settings, "device": self.device, "progress": True}
            how["backend"] = None if self.backend == "serial" else self.backend
            for result in t2v.embed_many([tasks[number] for number in missing], probe, **how):
                found[missing[result.number]] = check(result).embedding
                library.add(check(result).embedding, source=tasks[missing[result.number]].source)
            embedded[f"{name} {METHOD}"] = found
        trivial = {name: [t2v.trivial(one) for one in each] for name, each in embedded.items()}
        return {
            "embeddings": embedded,
            "domains": {next(iter(self.probes)): np.array([self.find_domain(task) for task in tasks])},
            "distances": {name: np.array(t2v.distance.pairwise(each)) for name, each in embedded.items()},
            "trivial_distances": {
                name: np.array(list(map(t2v.distance.symmetric, each, trivial[name])))
                for name, each in embedded.items()
            },
            "norms": {name: np.array([one.norm() for one in each]) for name, each in embedded.items()},
        }

    def find_domain(self, task: t2v.Task) -> list[float]:
        """The mean features of a task, kept in a file: a library has no place for them."""
        file = plots.make_folder(self.out / "domains") / f"{task.fingerprint[:32]}-{self.base.fingerprint[:16]}.json"
        if not file.exists():
            mean = t2v.embed_domain(task, self.base, device=self.device).mean
            plots.write_file(file, json.dumps(mean.tolist()).encode())
        return json.loads(file.read_text())

    def train(self, library: t2v.Library) -> list[t2v.Expert]:
        """An expert for every source task of the plan."""
        chosen = self.plan.experts
        say(f"training {len(chosen)} experts")
        how: Row = {"folder": self.out / "experts", "names": [one.name for one in chosen], "backend": self.backend}
        how |= {"seed": SEED, "device": self.device, "progress": True}
        results = t2v.train_experts([self.training[one] for one in chosen], self.base, self.recipe, **how)
        found = [check(result).entry for result in sorted(results, key=lambda result: result.number)]
        library.add(*found)
        return found

    def measure(
        self,
        library: t2v.Library,
        tasks: Sequence[PaperTask],
        models: Sequence[Any],
        protocols: Sequence[t2v.ErrorProtocol],
    ) -> t2v.MetaTask:
        """The errors of linear classifiers for tasks on the features of models."""
        say(f"measuring the errors of {len(tasks)} tasks on {len(models)} models")
        how: Row = {"protocols": protocols, "seeds": (SEED,), "library": library, "backend": self.backend}
        how |= {"device": self.device, "progress": True, "tests": [self.tests[one] for one in tasks]}
        found = t2v.error_matrix([self.training[one] for one in tasks], models, **how)
        for failure in found.failures:
            say(f"no error of {failure.task} on {failure.model}: {failure.message}")
        return found

    # --- fine-tuning -----------------------------------------------------------------------------------------------

    def tune(self, library: t2v.Library, models: Mapping[str, Any]) -> Row:
        """Errors after fine-tuning whole networks on tasks: `transfers` of all images, and `curves` by their number.

        The curves also have the errors of linear classifiers on the features as they were.
        """
        plan, curves, transfers = self.plan, [], []
        chosen = {name: models[name] for name in ("", *(one.name for one in plan.tuned_experts))}
        sizes = [t2v.ErrorProtocol(shots, PROTOCOL.classifier) for shots in plan.shots]
        linear = self.measure(library, plan.tuned_tasks, list(chosen.values()), [*sizes, PROTOCOL]) if sizes else None
        for column, (name, model) in enumerate(chosen.items()):
            expert = name or self.base.name
            parts = {
                (row, place): self.draw(one, protocol.shots)
                for row, one in enumerate(plan.tuned_tasks)
                for place, protocol in enumerate([*sizes, PROTOCOL])
            }
            # A size that is no smaller than the task is left out.
            parts = {key: part for key, part in parts.items()
                     if key[1] == len(sizes) or len(part) < len(self.training[plan.tuned_tasks[key[0]]])}  # fmt: skip
            errors = self.find_tuned(library, model, expert, parts)
            for (row, place), part in parts.items():
                one = plan.tuned_tasks[row]
                about: Row = {"task": one.name, "expert": expert, "seed": SEED}
                if place == len(sizes):
                    transfers.append(about | {"error": errors[row, place]})
                if linear is not None:
                    about |= {"train": str([*sizes, PROTOCOL][place].shots), "images": len(part)}
                    curves.append(about | {"way": "linear", "error": float(linear.errors[row, column, place, 0])})
                    curves.append(about | {"way": "tuned", "error": errors[row, place]})
        return {"curves": curves, "transfers": transfers}

    def draw(self, one: PaperTask, shots: Any) -> t2v.Task:
        """The training images of a task, or so many per class, as the linear classifiers have them."""
        task = self.training[one]
        if shots == PROTOCOL.shots:
            return task
        chosen = experts.choose_training(task, np.zeros(len(task), dtype=bool), shots=shots, seed=SEED)
        return replace(task.subset(np.flatnonzero(chosen)), name=f"{one.name}, {shots} per class")

    def find_tuned(
        self, library: t2v.Library, model: Any, expert: str, parts: Mapping[tuple[int, int], t2v.Task]
    ) -> dict[tuple[int, int], float]:
        """The errors after fine-tuning a model on each part of a task, from the library or trained now."""
        protocol = f"fine-tuned by {self.tuning.name}"
        known = {(error.task, error.expert): error.error for error in library.errors(protocol)}
        missing = {key: part for key, part in parts.items() if (part.fingerprint, expert) not in known}
        if missing:
            say(f"fine-tuning {expert} on {len(missing)} tasks")
            start = t2v.load_expert(model) if isinstance(model, t2v.Expert) else model
            names = [f"{expert} on {part.name}" for part in missing.values()]
            how: Row = {"folder": self.out / "tuned", "names": names, "backend": self.backend, "device": self.device}
            results = t2v.train_experts(list(missing.values()), start, self.tuning, seed=SEED, progress=True, **how)
            for result in results:
                (row, _), part = list(missing.items())[result.number]
                file = Path(check(result).entry.location)
                test = self.tests[self.plan.tuned_tasks[row]]
                error = measure_network(experts.load_trained(file), test, device=self.device)
                library.add(part, t2v.MeasuredError(part.fingerprint, expert, error, protocol, SEED))
                file.unlink()
                known[part.fingerprint, expert] = error
        return {key: known[part.fingerprint, expert] for key, part in parts.items()}


def measure_network(network: t2v.TrainedExpert, task: t2v.Task, *, device: str | None) -> float:
    """The share of the images of a task that a network with its head gets wrong; classes are matched by name."""
    (features,) = experts.features_of_tasks(network.probe, [task], device=device)
    predicted = np.array(network.metadata["classes"])[network.probabilities(features).argmax(1).cpu().numpy()]
    return float((predicted != np.array(task.classes)[task.targets]).mean())


def check(result: Any) -> Any:
    """The result of one of many tasks; its error is raised, if there is one."""
    if result.error is not None:
        raise result.error
    return result
