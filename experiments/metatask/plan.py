"""The plans of our meta-tasks: tasks, models, and how each of them is measured.

Two families of tasks come from a collection. *taxa* are its tasks (families of birds, orders of flowers, groups of
dogs) and its whole datasets: here the domain alone is informative. *labels* are the same pictures of birds under many
label sets, where the domain carries no information: species, family and order, one taxon against the rest, and
statistics of the pixels. The experts of this family were trained on other pictures of the same birds. A third family,
*sources*, is every dataset below `domains/` and `public/`.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

import task2vec as t2v
from experiments.collection import MIN_IMAGES, Collection, Dataset, read_collection
from experiments.report import say
from task2vec.probe import Preprocess

# Pixels: the images that experts see, the pictures that these are crops of, and the default probe's own size.
EXPERT_SIZE, CANVAS, SIZE = 112, 128, 224
GENERIC = "generic resnet34"
OTHER_NETWORKS = (*(f"tf_efficientnet_lite{number}" for number in range(3)), "mobilenet_v2", "vgg16_features")
# Pictures of every species in the tasks of the family labels; its experts are trained on the others.
PICTURES = 10
TAXA = {"family": 4, "order": 2}  # the number of taxa that are one against the rest, the largest first
STATISTICS = ("brightness", "contrast", "saturation", "warmth", "hue", "sharpness", "grain", "direction", "parallelism",
              "left to right", "top to bottom", "symmetry", "centre against border")  # fmt: skip
EXPERT_STATISTICS = ("brightness", "saturation", "hue", "sharpness", "grain", "direction", "left to right", "symmetry")
# Mirror images of these label sets and datasets have other labels, or none.
SIDED = ("direction", "left to right", "documents", "signs_hand", "traffic_signs")
TWO, FIVE, TEN, TWENTY, HALF = (t2v.ErrorProtocol(shots=shots) for shots in (2, 5, 10, 20, "half"))  # type: ignore[arg-type]
# Transferability scores that are no worse than others of their kind.
SCORES = ("logme", "leep", "h_score_shrunk", "knn")
# Tasks that every expert is fine-tuned on as a whole: of all domains, with few and many classes.
TRANSFER_TASKS = ("cub_Icteridae", "cub_Tyrannidae", "flowers_Asterales", "dogs_toy", "clothing10", "dtd10",
                  "birds: saturation")  # fmt: skip
# Errors by training size: of these tasks, by the generic expert and by halves of each domain.
CURVE_TASKS, CURVE_KINDS = ("cub_Icteridae", "flowers_Asterales", "dogs_toy", "clothing10"), ("generic", "half")
# A probe, a method, and the size of the images.
Space = tuple[str, str, int]
# Users compare their own tasks with the first one, which has the size of the default probe.
SPACES: dict[str, Space] = {
    "tf_efficientnet_lite0 robust": ("tf_efficientnet_lite0", "robust", SIZE),
    **{f"{probe} {method}": (probe, method, CANVAS) for probe, method in (
        ("resnet34", "robust"), ("resnet34", "direct"), ("resnet34", "variational"), ("mobilenet_v2", "robust"),
        ("vgg16_features", "robust"))},
    **{f"tf_efficientnet_lite0 at {CANVAS} {method}": ("tf_efficientnet_lite0", method, CANVAS)
       for method in ("robust", "direct", "variational")},
}  # fmt: skip
NETWORKS = ("tf_efficientnet_lite0", "tf_efficientnet_lite1", "tf_efficientnet_lite2", "resnet34", "mobilenet_v2",
            "resnet50_keras", "vgg16_features")  # fmt: skip
# Where they can be loaded from. The file of MobileNetV2 has torchvision's first weights (286 epochs of batches of 256),
# and without a tag its second ones would be loaded.
LOCATIONS = {name: f"timm:{name}" for name in NETWORKS[:3]}
LOCATIONS |= {"mobilenet_v2": "torchvision:mobilenet_v2.IMAGENET1K_V1"}
# The origin of the weights of the others, which no library has under these names.
ORIGINS = {
    "resnet34": "the body of a published moderation model, its batch-norm statistics re-estimated on 800 ImageNet "
    "images",
    "resnet50_keras": "those of Keras, under other names and for images of another scale",
    "vgg16_features": "the convolutions alone, from packages for perceptual similarity",
}
# Networks that are fine-tuned as a whole, and that tasks are embedded by.
TUNED = ("tf_efficientnet_lite0", "resnet34")
NETWORK_SPACES: dict[str, Space] = {f"{name} robust": (name, "robust", SIZE) for name in TUNED}
# Photographs of the same origin are one source, so that none is left out while its relatives are known.
SOURCES = {"food15": "food101", "objects20": "caltech101", "grocery_packages": "grocery", "grocery_fruit": "grocery"}


@dataclass(frozen=True)
class PlannedTask:
    """A task of the meta-task.

    Attributes:
        family: "taxa", "labels", or "sources".
        dataset: of its images.
        task: the images and labels.
        label_set: tasks with the same label set have the same labels, if not the same images.
    """

    family: Literal["taxa", "labels", "sources"]
    dataset: str
    task: t2v.Task
    label_set: str


@dataclass(frozen=True)
class PlannedExpert:
    """A model of a meta-task: a pretrained network, or an expert fine-tuned from one.

    Attributes:
        name: no two have the same.
        kind: "generic", "network" (pretrained elsewhere, its source task unknown), "half", "whole", "taxon"
            or "label".
        source: the task that it is fine-tuned on; None for a pretrained network.
        network: name of the pretrained network.
        seed: of the training.
        mirrors: whether pictures may be mirrored in training.
        is_repeat: whether it repeats the training of another one.
        recipe: of the training.
        size: side of the images, in pixels; None for the network's own.
        resize: side of the pictures whose middles it sees; None for the network's own.
    """

    name: str
    kind: str
    source: PlannedTask | None = None
    network: str = "resnet34"
    seed: int = 0
    mirrors: bool = True
    is_repeat: bool = False
    recipe: str = "achille2019"
    size: int | None = EXPERT_SIZE
    resize: int | None = CANVAS


Curve = tuple[PlannedExpert, PlannedTask, tuple[t2v.ErrorProtocol, ...]]


@dataclass(frozen=True)
class MetaTaskPlan:
    """All tasks and models of a meta-task, and how they are measured.

    Attributes:
        name: of the meta-task.
        tasks: its tasks.
        experts: its models.
        protocols: of the errors.
        scored: by which protocols there are transferability scores.
        scores: their names; None for all.
        seeds: of the splits.
        spaces: that tasks are embedded in.
        curves: models that are fine-tuned as a whole on a task, by some protocols.
        curve_seeds: of their splits.
        has_linear: whether they have errors of linear classifiers beside these.
        transfers: tasks that every expert is fine-tuned on as a whole, for the transfer distance of its source task.
    """

    name: str
    tasks: tuple[PlannedTask, ...]
    experts: tuple[PlannedExpert, ...]
    protocols: tuple[t2v.ErrorProtocol, ...] = (HALF, FIVE)
    scored: tuple[t2v.ErrorProtocol, ...] = (HALF, FIVE)
    scores: tuple[str, ...] | None = None
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    spaces: Mapping[str, Space] = field(default_factory=dict)
    curves: tuple[Curve, ...] = ()
    curve_seeds: tuple[int, ...] = (0, 1)
    has_linear: bool = True
    transfers: tuple[PlannedTask, ...] = ()

    @property
    def source_tasks(self) -> tuple[PlannedTask, ...]:
        """The tasks that experts are fine-tuned on, without those that are among the tasks."""
        known = {planned.task.fingerprint for planned in self.tasks}
        sources = {each.source.task.fingerprint: each.source for each in self.experts if each.source is not None}
        return tuple(source for fingerprint, source in sources.items() if fingerprint not in known)

    @property
    def all_tasks(self) -> list[t2v.Task]:
        """All tasks that are embedded: the tasks, then the source tasks."""
        return [planned.task for planned in (*self.tasks, *self.source_tasks)]


def plan_experts(folder: Path, recipe: str = "achille2019") -> MetaTaskPlan:
    """Experts for the tasks of a folder with a `tasks.csv` (see `collection`), and datasets beside those that it cuts.

    So `experts.safetensors` was made, which is evaluated by `experiments.selection`: all experts by the recipe of the
    paper. Those by another recipe are measured on the same tasks, without embeddings, curves and transfers.
    """
    collection = read_collection(folder)
    taxa = [PlannedTask("taxa", member.dataset, member.task, member.task.name) for member in collection.members]
    whole = list(read_whole(folder, collection))
    birds = next(dataset for dataset in collection.datasets if dataset.images.name == "cub200")
    say("computing statistics of the birds' pixels")
    labels, sources = _plan_labels(birds)
    halves = [half for dataset in collection.datasets for half in _halve(dataset, taxa)]
    experts = [PlannedExpert(GENERIC, "generic")]
    experts += [PlannedExpert(name, "network", network=name) for name in OTHER_NETWORKS]
    experts += [PlannedExpert(half.task.name, "half", half) for half in halves]
    experts += [PlannedExpert(dataset.task.name, "whole", dataset) for dataset in whole]
    experts += [
        PlannedExpert(f"label: {source.label_set}", "label", source, mirrors=source.label_set not in SIDED)
        for source in sources
    ]
    experts += [PlannedExpert(taxon.task.name, "taxon", taxon) for taxon in taxa]
    curves = [
        (expert, task, tuple(size for size in (TWO, FIVE, TEN, TWENTY, HALF) if _is_smaller(size, task.task)))
        for expert in experts if expert.kind in CURVE_KINDS
        for task in (*taxa, *whole) if task.task.name in CURVE_TASKS
    ]  # fmt: skip
    experts = [expert if expert.source is None else replace(expert, recipe=recipe) for expert in experts]
    tasks = (*taxa, *whole, *labels)
    about: dict[str, Any] = {"scores": SCORES}
    if recipe == "achille2019":
        transfers = tuple(task for task in tasks if task.task.name in TRANSFER_TASKS)
        about |= {"spaces": SPACES, "curves": tuple(curves), "transfers": transfers}
    return MetaTaskPlan(f"birds, flowers and dogs ({recipe})", tasks, tuple(experts), **about)


def plan_fast_experts(folder: Path) -> MetaTaskPlan:
    """The experts of `plan_experts` by the recipe `fast`, on the same tasks."""
    return plan_experts(folder, "fast")


def _is_smaller(protocol: t2v.ErrorProtocol, task: t2v.Task) -> bool:
    """Whether a protocol trains on half of the images, or on fewer of every class."""
    return isinstance(protocol.shots, str) or protocol.shots < int(task.counts.min()) // 2


def plan_networks(folder: Path) -> MetaTaskPlan:
    """Pretrained networks at their own image size, on the tasks of experts and on many sources: the package's own."""
    sources = read_sources(folder)
    tasks = (*plan_experts(folder).tasks, *sources)
    networks = tuple(
        PlannedExpert(name, "generic" if name == "resnet34" else "network", network=name, size=None, resize=None)
        for name in NETWORKS
    )
    whole = [*(task for task in tasks if task.family == "taxa" and task.task.name == task.dataset), *sources]
    return MetaTaskPlan(
        "pretrained networks on many sources",
        tasks,
        networks,
        protocols=(TWO, FIVE, TEN, TWENTY, HALF),
        scored=(FIVE, HALF),
        spaces=NETWORK_SPACES,
        curves=tuple((expert, task, (FIVE, HALF)) for expert in networks if expert.name in TUNED for task in whole),
        curve_seeds=(0,),
        has_linear=False,
    )


def read_sources(folder: Path) -> list[PlannedTask]:
    """Every dataset below `domains/` and `public/`."""
    folders = sorted(path for kind in ("domains", "public") for path in (folder / kind).iterdir() if path.is_dir())
    return [PlannedTask("sources", SOURCES.get(path.name, path.name), t2v.read_folder(path), path.name)
            for path in folders]  # fmt: skip


def read_whole(root: Path, collection: Collection) -> Iterator[PlannedTask]:
    """Every dataset as one task, without classes of too few images."""
    known = {dataset.images.name: dataset.images for dataset in collection.datasets}
    for name in sorted(path.parent.name for path in root.glob("*/images")):
        task = known.get(name) or t2v.read_folder(root / name / "images", name=name)
        kept = np.flatnonzero(task.counts >= MIN_IMAGES)
        task = task if len(kept) == len(task.classes) else task.select(kept.tolist(), name=name)
        yield PlannedTask("taxa", name, task, name)


def _halve(dataset: Dataset, taxa: Sequence[PlannedTask]) -> Iterator[PlannedTask]:
    """Two halves of a dataset by its classes; no task of the dataset has classes in both.

    So every task has an expert of its domain that has never seen its classes.
    """
    rng = np.random.default_rng([0, len(dataset.images)])
    groups = [taxon.task.classes for taxon in taxa if taxon.dataset == dataset.images.name]
    grouped = {name for group in groups for name in group}
    groups += [(name,) for name in dataset.images.classes if name not in grouped]
    halves: tuple[list[str], list[str]] = ([], [])
    for number in sorted(rng.permutation(len(groups)), key=lambda number: -len(groups[number])):
        min(halves, key=len).extend(groups[number])
    counts = dataset.count_images()
    for letter, names in zip("AB", halves, strict=True):
        kept = [name for name in names if counts[name] >= MIN_IMAGES]
        name = f"{dataset.images.name} half {letter}"
        yield PlannedTask("taxa", dataset.images.name, dataset.images.select(kept, name=name), name)


def _plan_labels(birds: Dataset) -> tuple[list[PlannedTask], list[PlannedTask]]:
    """The tasks of the family labels, and those that its experts are fine-tuned on."""
    # In the canonical order of the version that measured the errors.
    whole = birds.images.subset(np.argsort(birds.images.images.checksums))  # type: ignore[attr-defined]
    rank = rank_in_class(whole.targets)
    of_tasks = np.flatnonzero(rank < PICTURES)
    of_experts = np.flatnonzero(rank >= PICTURES)
    look = Preprocess(size=(EXPERT_SIZE, EXPERT_SIZE), resize=CANVAS)
    with ThreadPoolExecutor() as pool:
        pictures = pool.map(lambda number: look(whole.images.load(number)).permute(1, 2, 0).numpy(), range(len(whole)))
        rows = [describe_picture(picture) for picture in pictures]
    numbers = {name: np.array([row[name] for row in rows]) for name in STATISTICS}
    tasks, sources = [], []

    def add(targets: np.ndarray, names: Sequence[str], label_set: str, *, has_expert: bool) -> None:
        tasks.append(_label(whole, of_tasks, targets, names, label_set))
        if has_expert:
            sources.append(_label(whole, of_experts, targets, names, label_set))

    for name in STATISTICS:
        add(*label_statistic(numbers, name, numbers[name][of_tasks]), name, has_expert=name in EXPERT_STATISTICS)
    for level in ("species", *TAXA):
        column = birds.columns.get(level, level)
        taxon_of = {row["class_dir"]: row["class_dir"] if level == "species" else row[column] for row in birds.taxonomy}
        names = whole.classes if level == "species" else tuple(sorted({taxon_of[name] for name in whole.classes}))
        targets = np.array([names.index(taxon_of[whole.classes[target]]) for target in whole.targets])
        add(targets, names, level, has_expert=True)
        largest = np.argsort(-np.bincount(targets[of_tasks]), kind="stable")[: TAXA.get(level, 0)]
        for taxon in largest:
            is_taxon = (targets == taxon).astype(np.int64)
            classes = (f"not {names[taxon]}", names[taxon])
            add(is_taxon, classes, f"{level} {names[taxon]} or not", has_expert=bool(taxon == largest[0]))
    return tasks, sources


def rank_in_class(targets: np.ndarray) -> np.ndarray:
    """(n) the rank of every image among those of its class, from 0.

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

    Species, family and order of the same birds have: the species determines the others.
    """

    def is_of_taxa(planned: PlannedTask) -> bool:
        return planned.family == "labels" and planned.label_set not in STATISTICS

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
    down, across = map(np.asarray, np.gradient(luma))
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
