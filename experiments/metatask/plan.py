"""The tasks of our own meta-task, and the experts to try on each of them.

Two families of tasks. In *taxa*, the tasks of a collection (families of birds, orders of flowers, groups of dogs) and
its whole datasets: here the domain alone carries much. In *labels*, the same pictures of birds under many label sets,
where the domain carries nothing: species, family and order, one taxon against the rest, and statistics of the pixels.
The experts of the second family were trained on other pictures than its tasks have, of the same birds.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

import task2vec as t2v
from experiments.collection import MIN_IMAGES, Collection, Dataset, read_collection
from experiments.report import say
from task2vec.probe import Preprocess

# The pictures are small; the networks see a little less, so that crops can be chosen.
EXPERT_SIZE, CANVAS = 112, 128
GENERIC = "generic resnet34"
OTHER_NETWORKS = (*(f"tf_efficientnet_lite{number}" for number in range(3)), "mobilenet_v2", "vgg16_features")
# Pictures of every species that the tasks of the second family are about; its experts have the others.
PICTURES = 10
TAXA = {"family": 4, "order": 2}  # how many taxa there are one against the rest, the largest first
STATISTICS = ("brightness", "contrast", "saturation", "warmth", "hue", "sharpness", "grain", "direction", "parallelism",
              "left to right", "top to bottom", "symmetry", "centre against border")  # fmt: skip
EXPERT_STATISTICS = ("brightness", "saturation", "hue", "sharpness", "grain", "direction", "left to right", "symmetry")
# Mirror images would change the labels.
_SIDED = ("direction", "left to right")


@dataclass(frozen=True)
class PlannedTask:
    """A task of the meta-task.

    Attributes:
        family: "taxa", "labels", or "sources" for the datasets of `networks`.
        dataset: that its images are of.
        task: itself.
        label_set: tasks of one label set have the same labels, if not the same images.
    """

    family: Literal["taxa", "labels", "sources"]
    dataset: str
    task: t2v.Task
    label_set: str


@dataclass(frozen=True)
class PlannedExpert:
    """An expert of the meta-task.

    Attributes:
        name: no two have the same.
        kind: "generic", "network" (pretrained elsewhere, its source task unknown), "half", "whole", "taxon",
            "label", or "domain" for those of `domains`.
        source: what it is fine-tuned on, if it is.
        network: name of the pretrained network.
        seed: of the training.
        mirrors: whether pictures may be mirrored in training.
        is_repeat: whether it is another one trained a second time.
        recipe: of the training.
        size: side of the images, in pixels; None for the network's own.
    """

    name: str
    kind: str
    source: PlannedTask | None = None
    network: str = "resnet34"
    seed: int = 0
    mirrors: bool = True
    is_repeat: bool = False
    recipe: str = "fast-1"
    size: int | None = EXPERT_SIZE


@dataclass(frozen=True)
class MetaTaskPlan:
    """All tasks and experts."""

    tasks: tuple[PlannedTask, ...]
    experts: tuple[PlannedExpert, ...]

    @property
    def source_tasks(self) -> tuple[PlannedTask, ...]:
        """What experts are fine-tuned on, where that is none of the tasks."""
        known = {one.task.fingerprint for one in self.tasks}
        sources = {one.source.task.fingerprint: one.source for one in self.experts if one.source is not None}
        return tuple(source for fingerprint, source in sources.items() if fingerprint not in known)


def plan_metatask(folder: str | Path, *, seed: int = 0) -> MetaTaskPlan:
    """The plan for a folder with a `tasks.csv` (see `collection`), and datasets beside those that it cuts."""
    collection = read_collection(folder)
    taxa = [PlannedTask("taxa", member.dataset, member.task, member.task.name) for member in collection.members]
    whole = list(read_whole(Path(folder), collection))
    birds = next(one for one in collection.datasets if one.images.name == "cub200")
    say("computing statistics of the birds' pixels")
    labels, sources = _plan_labels(birds)
    halves = [half for dataset in collection.datasets for half in _halve(dataset, taxa, seed)]
    experts = [PlannedExpert(GENERIC, "generic")]
    experts += [PlannedExpert(name, "network", network=name) for name in OTHER_NETWORKS]
    experts += [PlannedExpert(one.task.name, "half", one) for one in halves]
    experts += [PlannedExpert(one.task.name, "whole", one) for one in whole]
    for one in sources:
        name, mirrors = f"label: {one.label_set}", one.label_set not in _SIDED
        experts.append(PlannedExpert(name, "label", one, mirrors=mirrors))
    experts += [PlannedExpert(one.task.name, "taxon", one) for one in taxa]
    again = [one for one in experts if one.kind == "half"] + [one for one in experts if one.kind == "label"][:4]
    experts += [replace(one, name=f"{one.name} (second seed)", seed=1, is_repeat=True) for one in again]
    experts += [replace(one, name=f"{one.name} (achille2019)", recipe="achille2019", is_repeat=True) for one in again]
    return MetaTaskPlan((*taxa, *whole, *labels), tuple(experts))


def read_whole(root: Path, collection: Collection) -> Iterator[PlannedTask]:
    """Every dataset as one task, without classes of too few images."""
    known = {dataset.images.name: dataset.images for dataset in collection.datasets}
    for place in sorted(path.parent for path in root.glob("*/images")):
        task = known.get(place.name) or t2v.read_folder(place / "images", name=place.name)
        kept = np.flatnonzero(task.counts >= MIN_IMAGES)
        task = task if len(kept) == len(task.classes) else task.select(kept.tolist(), name=place.name)
        yield PlannedTask("taxa", place.name, task, place.name)


def _halve(dataset: Dataset, taxa: Sequence[PlannedTask], seed: int) -> Iterator[PlannedTask]:
    """Two halves of a dataset by its classes; no task of the dataset has classes in both.

    So every task has an expert of its domain that has never seen its classes.
    """
    rng = np.random.default_rng([seed, len(dataset.images)])
    groups = [one.task.classes for one in taxa if one.dataset == dataset.images.name]
    cut = {name for group in groups for name in group}
    groups += [(name,) for name in dataset.images.classes if name not in cut]
    halves: tuple[list[str], list[str]] = ([], [])
    for number in sorted(rng.permutation(len(groups)), key=lambda number: -len(groups[number])):
        min(halves, key=len).extend(groups[number])
    counts = dict(zip(dataset.images.classes, dataset.images.counts.tolist(), strict=True))
    for letter, names in zip("AB", halves, strict=True):
        kept, name = [each for each in names if counts[each] >= MIN_IMAGES], f"{dataset.images.name} half {letter}"
        yield PlannedTask("taxa", dataset.images.name, dataset.images.select(kept, name=name), name)


def _plan_labels(birds: Dataset) -> tuple[list[PlannedTask], list[PlannedTask]]:
    """The tasks of the second family, and what its experts are fine-tuned on."""
    # In the canonical order of the version that measured the errors.
    whole = birds.images.subset(np.argsort(birds.images.images.checksums))  # type: ignore[attr-defined]
    rank = rank_in_class(whole.targets)
    here, elsewhere = np.flatnonzero(rank < PICTURES), np.flatnonzero(rank >= PICTURES)
    look = Preprocess(size=(EXPERT_SIZE, EXPERT_SIZE), resize=CANVAS)
    with ThreadPoolExecutor() as pool:
        pictures = pool.map(lambda number: look(whole.images.load(number)).permute(1, 2, 0).numpy(), range(len(whole)))
        rows = [describe_picture(picture) for picture in pictures]
    numbers = {name: np.array([row[name] for row in rows]) for name in STATISTICS}
    tasks, sources = [], []

    def add(targets: np.ndarray, names: Sequence[str], label_set: str, *, has_expert: bool) -> None:
        tasks.append(_label(whole, here, targets, names, label_set))
        sources.extend([_label(whole, elsewhere, targets, names, label_set)] if has_expert else [])

    for name in STATISTICS:
        add(*label_statistic(numbers, name, numbers[name][here]), name, has_expert=name in EXPERT_STATISTICS)
    for level in ("species", *TAXA):
        column = birds.columns.get(level, level)
        taxon_of = {row["class_dir"]: row["class_dir"] if level == "species" else row[column] for row in birds.taxonomy}
        names = whole.classes if level == "species" else tuple(sorted({taxon_of[name] for name in whole.classes}))
        targets = np.array([names.index(taxon_of[whole.classes[target]]) for target in whole.targets])
        add(targets, names, level, has_expert=True)
        largest = np.argsort(-np.bincount(targets[here]), kind="stable")[: TAXA.get(level, 0)]
        for taxon in largest:
            name, is_one = names[taxon], (targets == taxon).astype(np.int64)
            add(is_one, (f"not {name}", name), f"{level} {name} or not", has_expert=bool(taxon == largest[0]))
    return tasks, sources


def rank_in_class(targets: np.ndarray) -> np.ndarray:
    """(n) the place of every image among those of its class.

    Example:
        >>> rank_in_class(np.array([1, 0, 1, 1, 0]))
        array([0, 0, 1, 2, 1])
    """
    order = np.argsort(targets, kind="stable")
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order)) - np.searchsorted(targets[order], targets[order])
    return rank


def _label(whole: t2v.Task, rows: np.ndarray, targets: np.ndarray, names: Sequence[str], label_set: str) -> PlannedTask:
    """The task of one label set of some of the pictures."""
    present, numbers = np.unique(targets[rows], return_inverse=True)
    classes = tuple(names[label] for label in present)
    task = replace(whole.subset(rows), targets=numbers, classes=classes, name=f"birds: {label_set}")
    return PlannedTask("labels", "cub200", task, label_set)


def share_labels(task: PlannedTask, source: PlannedTask) -> bool:
    """Whether two tasks have labels in common: an expert for one was trained on labels of the other.

    Label sets of taxa of the same birds have: who knows the species knows family and order.
    """

    def is_of_taxa(one: PlannedTask) -> bool:
        return one.family == "labels" and one.label_set not in STATISTICS

    if task.label_set == source.label_set or (is_of_taxa(task) and is_of_taxa(source)):
        return True
    shared = set(task.task.classes) & set(source.task.classes) - {"low", "medium", "high"}
    return task.dataset == source.dataset and bool(shared)


# --- statistics of pixels --------------------------------------------------------------------------------------------

# Red, green and blue as the eye weighs them.
_LUMA = np.array([0.299, 0.587, 0.114])
# Ends of the hues that have a name of their own, in degrees; red lies around zero.
_HUES = {"orange": (15, 45), "yellow": (45, 70), "green": (70, 165), "blue": (165, 260)}


def describe_picture(pixels: np.ndarray) -> dict[str, float]:
    """Statistics of the pixels (height, width, 3) of a picture, from 0 to 255.

    Example:
        >>> describe_picture(np.zeros((32, 32, 3)))["brightness"]
        0.0
    """
    picture = np.asarray(pixels, dtype=np.float64) / 255
    luma = picture @ _LUMA
    height, width = luma.shape
    down, across = (np.asarray(part) for part in np.gradient(luma))
    energy = down**2 + across**2
    total = energy.sum() + 1e-12
    rows, columns = (np.linspace(0, 1, side) for side in luma.shape)
    middle = luma[height // 4 : height - height // 4, width // 4 : width - width // 4]
    border = (luma.sum() - middle.sum()) / (luma.size - middle.size)
    around = luma[:-2, 1:-1] + luma[2:, 1:-1] + luma[1:-1, :-2] + luma[1:-1, 2:]
    tall, wide = height // 4, width // 4
    coarse = luma[: 4 * tall, : 4 * wide].reshape(tall, 4, wide, 4).mean((1, 3))
    coarse_energy = float(np.square(np.gradient(coarse)).sum(0).mean())
    a, b, c = (across**2).sum(), (down**2).sum(), (down * across).sum()
    red, green, blue = np.moveaxis(picture, 2, 0)
    chroma = picture.max(2) - picture.min(2)
    angle = np.rad2deg(np.arctan2(np.sqrt(3) * (green - blue), 2 * red - green - blue)) % 360
    hues = np.bincount(((angle // 15).astype(int) % 24).ravel(), weights=chroma.ravel(), minlength=24)
    is_flat = luma.std() <= 1e-9
    return {
        "brightness": float(luma.mean()),
        "contrast": float(luma.std()),
        "saturation": float(chroma.mean()),
        "warmth": float((picture[..., 0] - picture[..., 2]).mean()),
        "hue": float(hues.argmax() * 15 + 7.5),
        "sharpness": float(np.log((around - 4 * luma[1:-1, 1:-1]).var() + 1e-9)),
        "grain": float(np.log((energy.mean() + 1e-9) / (coarse_energy + 1e-9))),
        "direction": float(np.rad2deg(0.5 * np.arctan2(2 * c, (across**2 - down**2).sum())) % 180),
        "parallelism": float(np.hypot(a - b, 2 * c) / (a + b + 1e-12)),
        "left to right": float((energy.sum(0) @ columns) / total),
        "top to bottom": float((energy.sum(1) @ rows) / total),
        "symmetry": 1.0 if is_flat else float(np.corrcoef(luma.ravel(), luma[:, ::-1].ravel())[0, 1]),
        "centre against border": float(middle.mean() - border),
    }


def label_statistic(
    numbers: Mapping[str, np.ndarray], name: str, reference: np.ndarray | None = None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Class numbers and class names by one statistic; thirds are those of `reference`, or of the images themselves.

    Example:
        >>> label_statistic({"contrast": np.arange(6.0)}, "contrast")
        (array([0, 0, 1, 1, 2, 2]), ('low', 'medium', 'high'))
    """
    values = numbers[name]
    if name == "hue":
        is_named = [(values >= start) & (values < end) for start, end in _HUES.values()]
        return np.select(is_named, range(1, len(_HUES) + 1), 0), ("red or violet", *_HUES)
    if name == "direction":
        return np.round(values / 45).astype(np.int64) % 4, ("across", "rising", "down", "falling")
    ends = np.quantile(values if reference is None else reference, [1 / 3, 2 / 3])
    return np.searchsorted(ends, values), ("low", "medium", "high")
