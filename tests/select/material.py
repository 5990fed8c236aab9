"""Small meta-tasks with everything that strategies need, and a small world to recommend models in."""

import hashlib
from dataclasses import replace

import numpy as np

from task2vec.distance import pairwise_from_logs
from task2vec.library import Expert, MeasuredError
from task2vec.metatask import DOMAIN, SYMMETRIC, MetaTask, ModelInfo, TaskInfo, View
from tests.cli.material import make as embed

HALF, FIVE = "linear-2, train half, logistic, usual", "linear-2, train 5, logistic, usual"


def build(errors, *, datasets=None, classes=None, seen=None, models=None, source_tasks=(), **more):
    """A view of (T, M, S) errors; `task 0`, `model 0` and so on."""
    tasks, count, seeds = errors.shape
    names = datasets or [f"task {row}" for row in range(tasks)]
    numbers = [0] * tasks if classes is None else [int(one) for one in classes]
    rows = zip(range(tasks), names, numbers, strict=True)
    return View(
        "small",
        tuple(TaskInfo(f"task {row}", "", name, f"task {row}", 100 + row, number) for row, name, number in rows),
        models or tuple(ModelInfo(f"model {column}") for column in range(count)),
        HALF,
        tuple(range(seeds)),
        errors,
        shares_images=np.zeros((tasks, count)),
        shares_labels=np.zeros((tasks, count), dtype=bool) if seen is None else seen,
        source_tasks=tuple(source_tasks),
        **more,
    )


def with_errors(view, errors):
    """The view with other (T, M, S) errors."""
    return replace(view, errors=errors, seeds=tuple(range(errors.shape[2])), halves=None)


def make_metatask(seed=0, *, tasks=9, models=6, filters=40, seeds=3, missing=0.0, unknown=1, datasets=3):
    """Random tasks and models: the first is generic, others are fine-tuned on tasks of their own."""
    rng = np.random.default_rng(seed)
    sources = models - unknown
    rows = tasks + sources
    vectors = np.exp(rng.normal(size=(rows, filters)))
    gaps = pairwise_from_logs(np.log(vectors), device="cpu")
    trivials = np.full((rows, filters), 1e-2)
    simplicity = pairwise_from_logs(np.log(vectors), others=np.log(trivials[:1]), device="cpu")
    level = rng.uniform(0.2, 0.5, size=(tasks, 1)) + rng.normal(scale=0.05, size=models)
    errors = np.clip(level + rng.normal(scale=0.05, size=(tasks, models)), 0.05, 0.9)[:, :, None]
    errors = errors + rng.normal(scale=0.01, size=(tasks, models, seeds))
    errors[rng.random((tasks, models)) < missing] = np.nan
    seen = np.zeros((tasks, models), dtype=bool)
    seen[1, min(unknown, models - 1)] = True
    domain = np.abs(rng.normal(size=(rows, rows)))
    described = []
    for column in range(models):
        source, dataset = (f"source {column}", f"set {column % datasets}") if column >= unknown else (None, None)
        about = {"params": int(rng.integers(1, 4)), "source_dataset": dataset}
        kind = "generic" if column == 0 and unknown else "network"
        described.append(ModelInfo(f"model {column}", kind, None, source, source, **about))
    return build(
        errors,
        datasets=[f"set {row % datasets}" for row in range(tasks)],
        classes=rng.integers(2, 20, size=tasks),
        seen=seen,
        models=tuple(described),
        source_tasks=[TaskInfo(f"source {n}", fingerprint=f"source {n}") for n in range(unknown, models)],
        distances={SYMMETRIC: gaps, DOMAIN: (domain + domain.T) * (1 - np.eye(rows))},
        trivial_distances=simplicity[:, 0],
        norms=vectors.sum(1),
        vectors=vectors,
        trivial_vectors=trivials,
        halves=errors[:, :, :, None] + rng.normal(scale=0.01, size=(tasks, models, seeds, 2)),
    )


# --- a small world ---------------------------------------------------------------------------------------------------

TASKS = 12
MODELS = (
    ModelInfo("generic resnet34", "generic", "resnet34", params=21_000_000, gmacs=1.0, location="torchvision:resnet34"),
    ModelInfo("tf_efficientnet_lite0", params=3_400_000, location="timm:tf_efficientnet_lite0"),
    ModelInfo("tf_efficientnet_lite1", params=4_100_000, location="timm:tf_efficientnet_lite1"),
    ModelInfo("mobilenet_v2", params=2_200_000, gmacs=0.08, location="torchvision:mobilenet_v2"),
    ModelInfo("vgg16_features", network="vgg16_features", params=14_700_000),
    ModelInfo("birds", "whole", "resnet34", "birds", "b" * 64, params=21_000_000),
    ModelInfo("birds again", "whole", "resnet34", "birds", "b" * 64, is_repeat=True),
)
# Their effects on tasks of both kinds: lite1 is best on average, lite0 is best for the first kind.
EFFECTS = np.array([[0.02, -0.10, -0.03, 0.06, 0.2, -0.2, -0.2], [0.02, 0.10, -0.06, 0.06, 0.2, 0.1, 0.1]])


def fingerprint(seed: int) -> str:
    """Of the task that `embed` makes up by this seed."""
    return hashlib.sha256(str(seed).encode()).hexdigest()


def make_world() -> MetaTask:
    """Twelve tasks of two kinds on six models and a repeat."""
    rng = np.random.default_rng(0)
    levels = rng.uniform(0.3, 0.5, TASKS)
    errors = np.empty((TASKS, len(MODELS), 2, 3))
    for task, protocol in np.ndindex(TASKS, 2):
        cell = levels[task] + (0.1 if protocol == 0 else 0) + EFFECTS[task % 2]
        errors[task, :, protocol] = (cell[:, None] + 0.01 * rng.normal(size=(len(MODELS), 3))).clip(0, 1)
    tasks = tuple(
        TaskInfo(f"task {number}", "all", "one" if number % 2 else "other", fingerprint(number), 100 + number, 2)
        for number in range(TASKS)
    )
    embeddings = [embed(f"task {number}", number, kind=number % 2) for number in range(TASKS)]
    shares = np.zeros((TASKS, len(MODELS)))
    models = tuple(replace(model, size=112) for model in MODELS)
    more = {"shares_images": shares, "shares_labels": shares.astype(bool), "embeddings": {"net robust": embeddings}}
    return MetaTask("world", tasks, models, (FIVE, HALF), (0, 1, 2), errors, errors - 0.05, errors + 0.05, **more)


def make_whole(*, has_source=True):
    """Three tasks of two families, five models, and a source task that has the name of a task."""
    rng = np.random.default_rng(0)
    families = (("birds", "taxa", "cub"), ("dogs", "taxa", "dogs"), ("hue", "labels", "cub"))
    tasks = tuple(TaskInfo(*told, f"print {told[0]}", 100 + place, 3) for place, told in enumerate(families))
    sources = (TaskInfo("hue", "labels", "cub", "print of other photographs", 90, 3),) if has_source else ()
    models = (
        ModelInfo("generic resnet34", "generic", "resnet34", params=7),
        ModelInfo("of birds", "taxon", "resnet34", "birds", "print birds"),
        ModelInfo("of hue", "label", "resnet34", "hue", "print of other photographs", params=9),
        ModelInfo("of dogs", "whole", "resnet34", "dogs", "print dogs"),
        ModelInfo("of dogs again", "whole", "resnet34", "dogs", "print dogs", is_repeat=True),
    )
    errors = rng.uniform(0.1, 0.9, size=(3, 5, 2, 3))
    shares = np.zeros((3, 5))
    shares[0, 1] = shares[1, 3] = shares[1, 4] = 1
    rows = 3 + len(sources)
    cells = (errors, errors * 0.9, errors * 0.9 + 0.1)
    more = {"shares_images": shares, "shares_labels": np.eye(3, 5, 2, dtype=bool)}
    more |= {"scores": {"logme": rng.normal(size=(3, 5, 2))}, "halves": rng.uniform(size=(3, 5, 2, 3, 2))}
    more |= {"embeddings": {"net robust": [embed(f"e{row}", row) for row in range(rows)]}, "source_tasks": sources}
    more |= {"domains": {"net": np.abs(rng.normal(size=(rows, 6)))}}
    return MetaTask("small", tasks, models, (FIVE, HALF), (0, 1, 2), *cells, **more)


def fill_library(library, *, tasks: int = 4, protocol: str = HALF, **options) -> None:
    """Tasks of the first kind in a library, with the errors of an expert of its own and of a network."""
    file = library.folder / "mine.expert.safetensors"
    file.write_bytes(b"weights")
    library.add(
        Expert("mine", "file", str(file), task="c" * 64, parameters=5_000_000),
        Expert("small", "hub", "timm:tf_efficientnet_lite0", input_size=112, parameters=3_400_000),
    )
    for number in range(tasks):
        library.add(embed(f"own {number}", 50 + number, **options))
        for seed in range(2):
            for name, error in (("mine", 0.15), ("small", 0.30)):
                ends = (error + 0.01 * seed, protocol, seed, error - 0.05, error + 0.1)
                library.add(MeasuredError(fingerprint(50 + number), name, *ends))
