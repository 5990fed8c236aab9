"""What our own meta-task consists of: which tasks, and which experts to try on each of them.

Two families of tasks. In *taxa*, the tasks of a collection (families of birds, orders of flowers, groups of dogs) and
its whole datasets: here much is told by the domain alone. In *labels*, the same pictures of birds under many
labellings, where the domain tells nothing: species, family and order, one taxon against the rest, and questions about
the pixels. The experts of the second family were trained on other pictures than its tasks have, of the same birds.
"""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

import task2vec as t2v
from experiments.collection import LEAST_IMAGES, Collection, Dataset, Say, read_collection
from experiments.photometry import QUESTIONS, VERSION, ask, describe_picture
from task2vec.probe.preprocess import Preprocess
from task2vec.storage import write_whole

# The pictures are small; the networks see a little less, so that crops can be chosen.
SIZE, CANVAS = 112, 128
GENERIC = "generic resnet34"
# Pictures of every species that the tasks of the second family are about; its experts have the others.
PICTURES = 10
TAXA = {"family": 4, "order": 2}  # how many taxa are asked about one against the rest, the largest first
ASKED_EXPERTS = ("brightness", "saturation", "hue", "sharpness", "grain", "direction", "left to right", "symmetry")
# Mirror images would change the answers.
_SIDED = ("direction", "left to right")


@dataclass(frozen=True)
class PlannedTask:
    """A task of the meta-task.

    Attributes:
        family: "taxa" or "labels".
        dataset: that its images are of.
        task: itself.
        question: what is asked about the images; tasks of one question have the same labels, if not the same images.
    """

    family: Literal["taxa", "labels"]
    dataset: str
    task: t2v.Task
    question: str


@dataclass(frozen=True)
class PlannedExpert:
    """An expert of the meta-task.

    Attributes:
        name: no two have the same.
        kind: "generic", "network" (pretrained elsewhere, its task unknown), "half", "whole", "taxon" or "label".
        lesson: what it is trained on, if it is.
        network: name of the pretrained network.
        seed: of the training.
        mirrors: whether pictures may be mirrored in training.
        is_repeat: whether it is another one trained a second time.
        recipe: of the training.
    """

    name: str
    kind: str
    lesson: PlannedTask | None = None
    network: str = "resnet34"
    seed: int = 0
    mirrors: bool = True
    is_repeat: bool = False
    recipe: str = "fast-1"


@dataclass(frozen=True)
class MetaTaskPlan:
    """All tasks and experts."""

    tasks: tuple[PlannedTask, ...]
    experts: tuple[PlannedExpert, ...]

    @property
    def lessons(self) -> tuple[PlannedTask, ...]:
        """What experts are taught, where that is none of the tasks."""
        known = {one.task.fingerprint for one in self.tasks}
        taught = {one.lesson.task.fingerprint: one.lesson for one in self.experts if one.lesson is not None}
        return tuple(lesson for fingerprint, lesson in taught.items() if fingerprint not in known)


def plan_metatask(
    folder: str | Path, *, seed: int = 0, numbers: Path | None = None, say: Say = lambda message: None
) -> MetaTaskPlan:
    """The plan for a folder with a `tasks.csv` (see `collection`), and datasets beside those that it cuts.

    What the pixels say of the pictures is kept in the file `numbers`, if one is named, and read from it the next time.
    """
    collection = read_collection(folder, say=say)
    taxa = [PlannedTask("taxa", member.dataset, member.task, member.task.name) for member in collection.members]
    whole = list(_read_whole(Path(folder), collection, say))
    birds = next(one for one in collection.datasets if one.images.name == "cub200")
    say("looking at the pixels of the birds")
    asked, lessons = _ask_labels(birds, numbers)
    halves = [half for dataset in collection.datasets for half in _halve(dataset, taxa, seed)]
    experts = [
        PlannedExpert(GENERIC, "generic"),
        *(PlannedExpert(name, "network", network=name) for name in OTHER_NETWORKS),
        *(PlannedExpert(one.task.name, "half", one) for one in halves),
        *(PlannedExpert(one.task.name, "whole", one) for one in whole),
        *(PlannedExpert(f"label: {one.question}", "label", one, mirrors=one.question not in _SIDED) for one in lessons),
        *(PlannedExpert(one.task.name, "taxon", one) for one in taxa),
    ]
    again = [one for one in experts if one.kind == "half"] + [one for one in experts if one.kind == "label"][:4]
    experts += [replace(one, name=f"{one.name} (second seed)", seed=1, is_repeat=True) for one in again]
    experts += [replace(one, name=f"{one.name} (achille2019)", recipe="achille2019", is_repeat=True) for one in again]
    return MetaTaskPlan((*taxa, *whole, *asked), tuple(experts))


OTHER_NETWORKS = (
    "tf_efficientnet_lite0",
    "tf_efficientnet_lite1",
    "tf_efficientnet_lite2",
    "mobilenet_v2",
    "vgg16_features",
)


def _read_whole(root: Path, collection: Collection, say: Say) -> Iterator[PlannedTask]:
    """Every dataset as one task, without classes of too few images."""
    known = {dataset.images.name: dataset.images for dataset in collection.datasets}
    for place in sorted(path.parent for path in root.glob("*/images")):
        if place.name not in known:
            say(f"reading {place.name}")
        task = known.get(place.name) or t2v.read_folder(place / "images", name=place.name)
        kept = np.flatnonzero(task.counts >= LEAST_IMAGES)
        task = task if len(kept) == len(task.classes) else task.select(kept.tolist(), name=place.name)
        yield PlannedTask("taxa", place.name, task, place.name)


def _halve(dataset: Dataset, taxa: Sequence[PlannedTask], seed: int) -> Iterator[PlannedTask]:
    """Two halves of a dataset by its classes; no task of the dataset has classes in both.

    So every task has an expert that knows its domain well and has never seen its classes.
    """
    rng = np.random.default_rng([seed, len(dataset.images)])
    groups = [one.task.classes for one in taxa if one.dataset == dataset.images.name]
    cut = {name for group in groups for name in group}
    groups += [(name,) for name in dataset.images.classes if name not in cut]
    halves: tuple[list[str], list[str]] = ([], [])
    for number in sorted(rng.permutation(len(groups)), key=lambda number: -len(groups[number])):
        smaller = min(halves, key=len)
        smaller.extend(groups[number])
    counts = dict(zip(dataset.images.classes, dataset.images.counts.tolist(), strict=True))
    for letter, names in zip("AB", halves, strict=True):
        kept = [name for name in names if counts[name] >= LEAST_IMAGES]
        name = f"{dataset.images.name} half {letter}"
        yield PlannedTask("taxa", dataset.images.name, dataset.images.select(kept, name=name), name)


def _ask_labels(birds: Dataset, file: Path | None) -> tuple[list[PlannedTask], list[PlannedTask]]:
    """The tasks of the second family, and what its experts learn from."""
    whole = birds.images.canonical()
    order = np.argsort(whole.targets, kind="stable")
    rank = np.empty(len(whole), dtype=np.int64)
    rank[order] = np.arange(len(whole)) - np.searchsorted(whole.targets[order], whole.targets[order])
    here, elsewhere = (np.flatnonzero(side) for side in (rank < PICTURES, rank >= PICTURES))
    numbers = _look_at(whole, file)
    tasks, lessons = [], []
    for question in QUESTIONS:
        targets, names = ask(numbers, question, numbers[question][here])
        tasks.append(_label(whole, here, targets, names, question))
        if question in ASKED_EXPERTS:
            lessons.append(_label(whole, elsewhere, targets, names, question))
    for level in ("species", *TAXA):
        targets, names = _find_taxa(whole, birds, level)
        tasks.append(_label(whole, here, targets, names, level))
        lessons.append(_label(whole, elsewhere, targets, names, level))
        largest = np.argsort(-np.bincount(targets[here]), kind="stable")[: TAXA.get(level, 0)]
        for taxon in largest:
            is_one = (targets == taxon).astype(np.int64)
            name = names[taxon]
            tasks.append(_label(whole, here, is_one, (f"not {name}", name), f"{level} {name} or not"))
            if taxon == largest[0]:
                lessons.append(_label(whole, elsewhere, is_one, (f"not {name}", name), f"{level} {name} or not"))
    return tasks, lessons


def _look_at(whole: t2v.Task, file: Path | None) -> dict[str, np.ndarray]:
    """What the pixels say of every picture, by question."""
    kept = json.loads(file.read_text()) if file is not None and file.exists() else {}
    known: dict[str, list[float]] = kept["numbers"] if kept.get("version") == VERSION else {}
    look = Preprocess(size=(SIZE, SIZE), resize=CANVAS)

    def describe(number: int) -> list[float]:
        told = known.get(whole.digests[number])
        return told or list(describe_picture(look(whole.images.load(number)).permute(1, 2, 0).numpy()).values())

    with ThreadPoolExecutor() as pool:
        rows = list(pool.map(describe, range(len(whole))))
    if file is not None and len(known) < len(set(whole.digests)):
        numbers = dict(zip(whole.digests, rows, strict=True))
        write_whole(file, json.dumps({"version": VERSION, "numbers": numbers}).encode())
    return dict(zip(QUESTIONS, np.array(rows).T, strict=True))


def _find_taxa(whole: t2v.Task, birds: Dataset, level: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """The taxon of every picture, and the names of the taxa."""
    if level == "species":
        return whole.targets, whole.classes
    column = birds.columns.get(level, level)
    taxon_of = {row["class_dir"]: row[column] for row in birds.taxonomy}
    names = tuple(sorted({taxon_of[name] for name in whole.classes}))
    return np.array([names.index(taxon_of[whole.classes[target]]) for target in whole.targets]), names


def _label(whole: t2v.Task, rows: np.ndarray, targets: np.ndarray, names: Sequence[str], question: str) -> PlannedTask:
    """The task of one question about some of the pictures."""
    part = whole.subset(rows)
    present, numbers = np.unique(targets[rows], return_inverse=True)
    task = replace(part, targets=numbers, classes=tuple(names[label] for label in present), name=f"birds: {question}")
    return PlannedTask("labels", "cub200", task, question)


def share_labels(task: PlannedTask, lesson: PlannedTask) -> bool:
    """Whether two tasks have labels in common: an expert for one has answered questions of the other before.

    Of the questions about the same birds, those about taxa do: who knows the species knows family and order.
    """
    if task.question == lesson.question or (is_about_taxa(task) and is_about_taxa(lesson)):
        return True
    if task.dataset != lesson.dataset:
        return False
    return bool(set(task.task.classes) & set(lesson.task.classes) - {"low", "medium", "high"})


def is_about_taxa(task: PlannedTask) -> bool:
    """Whether it is one of the questions about the same birds that their taxonomy answers."""
    return task.family == "labels" and task.question not in QUESTIONS
