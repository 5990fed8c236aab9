"""Builds a meta-task of the paper (see `paper`) from the original datasets: embeddings, experts, errors, fine-tuning.

Results are kept in a library and in the files of the experts, below the output folder: a run that was stopped
continues, and a finished one only reads the images again. Errors are measured as the paper does: a linear classifier
by its recipe on the published training split, tested on the published validation or test split.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import task2vec as t2v
from experiments.embeddings import measure_error, measure_spaces
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
        download: whether weights that are not on this machine may be downloaded.
    """
    probes = {}
    for name in dict.fromkeys((BASE, *names)):
        file = weights if name == BASE else None
        if weights is not None and weights.is_dir():
            file = next(iter(sorted(weights.glob(f"{name.rpartition(':')[2]}[-.]*"))), None)
        probes[name] = t2v.load_probe(name, weights=file, download=download)
    return probes


# --- cost ------------------------------------------------------------------------------------------------------------


def describe_plan(plan: PaperPlan, probes: Sequence[str], recipe: t2v.Recipe, tuning: t2v.Recipe) -> str:
    """Tables of all tasks and experts, and of the GPU hours and the disk that they need."""
    tables = []
    for title, tasks in (("tasks", plan.tasks), ("experts", plan.experts)):
        rows = [[task.name, task.definition.kind, task.definition.group, str(len(task.definition.classes)),
                 f"{task.samples:,}", f"{task.definition.counts[task.test_split]:,}"] for task in tasks]  # fmt: skip
        header = [f"{len(tasks)} {title}", "kind", "group", "classes", "training images", "test images"]
        tables += [format_markdown(header, rows)] if tasks else []
    hours, gigabytes = estimate_cost(plan, probes, recipe, tuning)
    rows = [[name, f"{value:.1f}"] for name, value in {**hours, "in all": sum(hours.values())}.items()]
    tables.append(format_markdown(["", "GPU hours"], rows))
    tables.append(
        f"GPU hours are of one H200 with 16 cores at 224 pixels: training {TRAINING:,} images/s, features {FEATURES:,} "
        f"images/s, {FISHER:g} s per embedding, {CLASSIFIER:g} s per classifier; for other networks than ResNet-34, in "
        f"proportion to their multiply-accumulates. Disk: {gigabytes:.1f} GB beside the datasets."
    )
    return "\n\n".join(tables)


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
        seconds["experts"] = networks / TRAINING + sum(task.samples for task in plan.experts) / FEATURES
        seen = count_images(plan.tasks) + count_images(plan.tasks, is_test=True)
        sizes, starts = len(plan.shots) + 1, len(plan.tuned_experts) + 1
        cells = tasks * models + len(plan.tuned_tasks) * starts * len(plan.shots)
        seconds["errors"] = models * seen / FEATURES + cells * CLASSIFIER
        tested = sum(task.definition.counts[task.test_split] for task in plan.tuned_tasks)
        tuned = len(plan.tuned_tasks) * tuning.epochs * tuning.draws
        seconds["fine-tuning"] = starts * sizes * (tuned / TRAINING + tested / FEATURES)
    # Tuned networks are kept until they are tested, those of one expert at a time.
    files = len(plan.experts) + len(plan.tuned_tasks) * (len(plan.shots) + 1)
    size = 4 * about[BASE]["num_params"] * files + EMBEDDING_BYTES * len(plan.embedded) * len(probes)
    return {name: value / 3600 for name, value in seconds.items()}, size / 1e9


def count_images(tasks: Sequence[PaperTask], *, is_test: bool = False) -> int:
    """The number of different images that tasks are trained, or tested, on."""
    used: dict[Catalog, np.ndarray] = {}
    for task in tasks:
        split_rows = task.catalog.rows(task.test_split if is_test else TRAIN)
        rows, _ = task.catalog.tables[task.definition.table].select(task.definition, split_rows)
        used.setdefault(task.catalog, np.zeros(len(task.catalog), dtype=bool))[rows] = True
    return int(sum(mask.sum() for mask in used.values()))


def read_tasks(planned: Sequence[PaperTask], *, is_test: bool = False) -> dict[PaperTask, t2v.Task]:
    """The tasks of the training split, or of that for testing; a file of several tasks is read once."""
    tasks: dict[PaperTask, t2v.Task] = {}
    for catalog in dict.fromkeys(task.catalog for task in planned):
        of_catalog = [task for task in planned if task.catalog is catalog]
        split = of_catalog[0].test_split if is_test else TRAIN
        say(f"reading {len(of_catalog)} tasks of {catalog.name}, {split}")
        loaded = catalog.tasks([task.definition for task in of_catalog], split=split, progress=True)
        tasks |= {each: replace(task, name=each.name) for each, task in zip(of_catalog, loaded, strict=True)}
    return {task: tasks[task] for task in planned}


# --- the run ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """The measurement of a plan.

    Attributes:
        plan: the tasks and experts.
        out: the folder for results.
        probes: networks that tasks are embedded with, by name; the base network of the experts is the first.
        recipe: that experts are trained by.
        tuning: that whole networks are fine-tuned on tasks by.
        backend: "serial" or "ray".
        device: "cpu" or "cuda"; None takes a GPU if there is one.
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
        """The generic expert, which the others are fine-tuned from."""
        return next(iter(self.probes.values()))

    @cached_property
    def training(self) -> dict[PaperTask, t2v.Task]:
        """All tasks that are embedded, with the images of their training split."""
        return read_tasks(self.plan.embedded)

    @cached_property
    def tests(self) -> dict[PaperTask, t2v.Task]:
        """The tasks, with the images that errors are measured on."""
        return read_tasks(self.plan.tasks, is_test=True)

    def make_metatask(self) -> t2v.MetaTask:
        """The meta-task, after computing what is missing."""
        plan = self.plan
        lineages = {task.name: list(task.lineage) for task in plan.embedded if task.lineage}
        info: Row = {"rule": RULE, "lineages": lineages, "curves": [], "transfers": []}
        with t2v.Library(self.out / "library") as library:
            spaces = self.embed(library)
            if not plan.experts:
                tasks = tuple(map(self.describe, plan.tasks))
                errors, seen = np.zeros((len(tasks), 0, 0, 0)), np.zeros((len(tasks), 0))
                shares = {"shares_images": seen, "shares_labels": seen > 0}
                return t2v.MetaTask(plan.name, tasks, (), (), (), errors, errors, errors, info=info, **shares, **spaces)
            models = [self.base, *self.train(library)]
            measured = self.measure(library, plan.tasks, models, [PROTOCOL])
            info |= {"recipe": self.recipe.to_dict(), "tuning": self.tuning.to_dict()}
            info |= self.tune(library, dict(zip(("", *(task.name for task in plan.experts)), models, strict=True)))
        seen = np.array([[task.was_trained_on(expert) for expert in plan.experts] for task in plan.tasks])
        known = set(plan.tasks)
        return replace(
            measured,
            name=plan.name,
            tasks=tuple(map(self.describe, plan.tasks)),
            models=self.describe_models(models),
            shares_images=np.zeros((len(plan.tasks), len(models))),  # of the test images, none
            shares_labels=np.hstack([np.zeros((len(plan.tasks), 1), dtype=bool), seen]),
            source_tasks=tuple(self.describe(task) for task in plan.embedded if task not in known),
            info=info,
            **spaces,
        )

    def describe(self, planned: PaperTask) -> t2v.TaskInfo:
        """The task as a meta-task has it; the tasks of a meta-task of the paper are one family."""
        task = self.training[planned]
        about = (self.plan.name, planned.dataset, task.fingerprint, len(task), len(task.classes))
        return t2v.TaskInfo(planned.name, *about, planned.definition.group)

    def describe_models(self, models: Sequence[Any]) -> tuple[t2v.ModelInfo, ...]:
        """The generic expert and the others as a meta-task has them."""
        network = self.base.name
        about: Row = {"network": network, "params": experts.count_parameters(self.base.network)}
        about["gmacs"] = round(experts.count_gmacs(self.base.network, self.base.size), 6)
        infos = [t2v.ModelInfo(network, "generic", location=BASE, **about)]
        for task, entry in zip(self.plan.experts, models[1:], strict=True):
            source = {"source_task": task.name, "source_fingerprint": self.training[task].fingerprint}
            source |= {"source_dataset": task.dataset, "seed": SEED, "location": entry.location}
            source["recipe"] = self.recipe.name
            infos.append(t2v.ModelInfo(task.name, task.definition.kind, **source, **about))
        return tuple(infos)

    def embed(self, library: t2v.Library) -> Row:
        """The embeddings of all tasks by all probes, and what follows from them, as fields of a meta-task."""
        tasks, settings, embedded = list(self.training.values()), t2v.EmbedSettings(method=METHOD), {}
        for name, probe in self.probes.items():
            embeddings = [library.find(task, probe, settings=settings) for task in tasks]
            missing = [number for number, embedding in enumerate(embeddings) if embedding is None]
            say(f"embedding {len(missing)} of {len(tasks)} tasks with {name}")
            options: Row = {"settings": settings, "device": self.device, "progress": True}
            options["backend"] = None if self.backend == "serial" else self.backend
            for result in t2v.embed_many([tasks[number] for number in missing], probe, **options):
                embeddings[missing[result.number]] = check(result).embedding
                library.add(check(result).embedding, source=tasks[missing[result.number]].source)
            embedded[f"{name} {METHOD}"] = embeddings
        domains = {next(iter(self.probes)): np.array([self.find_domain(task) for task in tasks])}
        return measure_spaces(embedded) | {"embeddings": embedded, "domains": domains}

    def find_domain(self, task: t2v.Task) -> list[float]:
        """The mean features of a task, kept in a file: a library does not store them."""
        file = plots.make_folder(self.out / "domains") / f"{task.fingerprint[:32]}-{self.base.fingerprint[:16]}.json"
        if not file.exists():
            mean = t2v.embed_domain(task, self.base, device=self.device).mean
            plots.write_file(file, json.dumps(mean.tolist()).encode())
        return json.loads(file.read_text())

    def train(self, library: t2v.Library) -> list[t2v.Expert]:
        """An expert for every source task of the plan."""
        tasks = self.plan.experts
        say(f"training {len(tasks)} experts")
        options: Row = {"folder": self.out / "experts", "names": [task.name for task in tasks], "seed": SEED}
        options |= {"backend": self.backend, "device": self.device, "progress": True}
        results = t2v.train_experts([self.training[task] for task in tasks], self.base, self.recipe, **options)
        entries = [check(result).entry for result in sorted(results, key=lambda result: result.number)]
        library.add(*entries)
        return entries

    def measure(
        self,
        library: t2v.Library,
        tasks: Sequence[PaperTask],
        models: Sequence[Any],
        protocols: Sequence[t2v.ErrorProtocol],
    ) -> t2v.MetaTask:
        """The errors of linear classifiers for tasks on the features of models."""
        say(f"measuring the errors of {len(tasks)} tasks on {len(models)} models")
        options: Row = {"protocols": protocols, "seeds": (SEED,), "library": library, "backend": self.backend}
        options |= {"device": self.device, "progress": True, "tests": [self.tests[task] for task in tasks]}
        metatask = t2v.error_matrix([self.training[task] for task in tasks], models, **options)
        for failure in metatask.failures:
            say(f"no error of {failure.task} on {failure.model}: {failure.message}")
        return metatask

    # --- fine-tuning -----------------------------------------------------------------------------------------------

    def tune(self, library: t2v.Library, models: Mapping[str, Any]) -> Row:
        """Errors after fine-tuning whole networks on tasks: `transfers` of all images, and `curves` by their number.

        The curves also have the errors of linear classifiers on the features of the network before.
        """
        plan, curves, transfers = self.plan, [], []
        starts = {name: models[name] for name in ("", *(task.name for task in plan.tuned_experts))}
        protocols = [*(t2v.ErrorProtocol(shots, PROTOCOL.classifier) for shots in plan.shots), PROTOCOL]
        linear = self.measure(library, plan.tuned_tasks, list(starts.values()), protocols) if plan.shots else None
        samples = {
            (row, number): self.draw(task, protocol.shots)
            for row, task in enumerate(plan.tuned_tasks)
            for number, protocol in enumerate(protocols)
        }
        # A size that is no smaller than the task is left out.
        samples = {
            (row, number): sample
            for (row, number), sample in samples.items()
            if protocols[number] is PROTOCOL or len(sample) < len(self.training[plan.tuned_tasks[row]])
        }
        for column, (name, model) in enumerate(starts.items()):
            expert = name or self.base.name
            errors = self.find_tuned(library, model, expert, samples)
            for (row, number), sample in samples.items():
                about: Row = {"task": plan.tuned_tasks[row].name, "expert": expert, "seed": SEED}
                if protocols[number] is PROTOCOL:
                    transfers.append(about | {"error": errors[row, number]})
                if linear is not None:
                    about |= {"train": str(protocols[number].shots), "images": len(sample)}
                    curves.append(about | {"way": "linear", "error": float(linear.errors[row, column, number, 0])})
                    curves.append(about | {"way": "tuned", "error": errors[row, number]})
        return {"curves": curves, "transfers": transfers}

    def draw(self, planned: PaperTask, shots: Any) -> t2v.Task:
        """The training images of a task, or so many per class, as the linear classifiers have them."""
        task = self.training[planned]
        if shots == PROTOCOL.shots:
            return task
        is_train = experts.choose_training(task, np.zeros(len(task), dtype=bool), shots=shots, seed=SEED)
        return replace(task.subset(np.flatnonzero(is_train)), name=f"{planned.name}, {shots} per class")

    def find_tuned(
        self, library: t2v.Library, model: Any, expert: str, samples: Mapping[tuple[int, int], t2v.Task]
    ) -> dict[tuple[int, int], float]:
        """The errors after fine-tuning a model on each sample of a task, from the library or trained now."""
        protocol = f"fine-tuned by {self.tuning.name}"
        known = {(error.task, error.expert): error.error for error in library.errors(protocol)}
        missing = {key: sample for key, sample in samples.items() if (sample.fingerprint, expert) not in known}
        if missing:
            say(f"fine-tuning {expert} on {len(missing)} tasks")
            start = t2v.load_expert(model) if isinstance(model, t2v.Expert) else model
            names = [f"{expert} on {sample.name}" for sample in missing.values()]
            options: Row = {"folder": self.out / "tuned", "names": names, "backend": self.backend}
            options |= {"device": self.device, "seed": SEED, "progress": True}
            for result in t2v.train_experts(list(missing.values()), start, self.tuning, **options):
                (row, _), sample = list(missing.items())[result.number]
                file = Path(check(result).entry.location)
                network, test = experts.load_trained(file), self.tests[self.plan.tuned_tasks[row]]
                (features,) = experts.features_of_tasks(network.probe, [test], device=self.device)
                error = measure_error(network, features, test)
                library.add(sample, t2v.MeasuredError(sample.fingerprint, expert, error, protocol, SEED))
                file.unlink()
                known[sample.fingerprint, expert] = error
        return {key: known[sample.fingerprint, expert] for key, sample in samples.items()}


def check(result: Any) -> Any:
    """The result of one of many tasks.

    Raises:
        Task2VecError: Its error, if there is one.
    """
    if result.error is not None:
        raise result.error
    return result
