"""A small world to choose experts in: tasks of two kinds, networks to be loaded, and experts that nobody has."""

import hashlib
from dataclasses import replace

import numpy as np

from task2vec.experts.measured import MeasuredExpert, MeasuredMetaTask, MeasuredTask
from task2vec.library import Expert, MeasuredError
from tests.cli.material import make

TASKS = 12
PROTOCOLS = ("linear-2, train 5, logistic, usual", "linear-2, train half, logistic, usual")
# Effects of the experts on tasks of both kinds: lite1 is best on average, lite0 is best for the first kind.
EFFECTS = {
    "generic resnet34": (0.02, 0.02),
    "tf_efficientnet_lite0": (-0.10, 0.10),
    "tf_efficientnet_lite1": (-0.03, -0.06),
    "mobilenet_v2": (0.06, 0.06),
    "vgg16_features": (0.2, 0.2),
    "birds": (-0.2, 0.1),
}
EXPERTS = (
    MeasuredExpert("generic resnet34", "generic", "resnet34", parameters=21_000_000, cost=1.0),
    MeasuredExpert("tf_efficientnet_lite0", "network", "tf_efficientnet_lite0", parameters=3_400_000, cost=0.1),
    MeasuredExpert("tf_efficientnet_lite1", "network", "tf_efficientnet_lite1", parameters=4_100_000, cost=0.14),
    MeasuredExpert("mobilenet_v2", "network", "mobilenet_v2", parameters=2_200_000, cost=0.08),
    MeasuredExpert("vgg16_features", "network", "vgg16_features", parameters=14_700_000, cost=3.8),
    MeasuredExpert("birds", "whole", "resnet34", "birds", "b" * 64, parameters=21_000_000, cost=1.0),
    MeasuredExpert("birds again", "whole", "resnet34", "birds", "b" * 64, is_repeat=True),
)


def fingerprint(seed: int) -> str:
    """Of the task that `make` makes by this seed."""
    return hashlib.sha256(str(seed).encode()).hexdigest()


def make_metatask(*, noise: float = 0.01, missing: float = 0.0, **how) -> MeasuredMetaTask:
    """Twelve tasks of two kinds on six experts; `missing` is the part of the cells that nobody measured."""
    rng = np.random.default_rng(0)
    effects = np.array([EFFECTS["birds" if expert.is_repeat else expert.name] for expert in EXPERTS])
    levels = rng.uniform(0.3, 0.5, TASKS)
    errors = np.empty((TASKS, len(EXPERTS), 2, 3))
    for task in range(TASKS):
        for protocol in range(2):
            cell = levels[task] + (0.1 if protocol == 0 else 0) + effects[:, task % 2]
            errors[task, :, protocol] = (cell[:, None] + noise * rng.normal(size=(len(EXPERTS), 3))).clip(0, 1)
    errors[rng.random((TASKS, len(EXPERTS))) < missing] = np.nan
    tasks = tuple(
        MeasuredTask(f"task {number}", "all", "one" if number % 2 else "other", fingerprint(number), 100 + number, 2)
        for number in range(TASKS)
    )
    embeddings = [make(f"task {number}", number, kind=number % 2, **how) for number in range(TASKS)]
    shares = np.zeros((TASKS, len(EXPERTS)))
    whole = (errors, errors - 0.05, errors + 0.05, shares, shares.astype(bool))
    return MeasuredMetaTask(
        "a small world", tasks, EXPERTS, PROTOCOLS, (0, 1, 2), *whole, embeddings={"net robust": embeddings}
    )


def fill_library(library, *, tasks: int = 4, protocol: str = PROTOCOLS[1], embeds: bool = True, **how) -> None:
    """Tasks of the first kind in a library, with the errors of an expert of its own and of a network."""
    file = library.folder / "mine.expert.safetensors"
    file.write_bytes(b"weights")
    library.add(
        Expert("mine", "file", str(file), task="c" * 64, parameters=5_000_000),
        Expert("small", "hub", "timm:tf_efficientnet_lite0", input_size=112, parameters=3_400_000),
    )
    for number in range(tasks):
        embedding = make(f"own {number}", 50 + number, kind=0, **how)
        library.add(embedding)
        if not embeds:
            library.remove(embedding.provenance["task_fingerprint"])
        for seed in range(2):
            for name, error in (("mine", 0.15), ("small", 0.30)):
                library.add(
                    MeasuredError(
                        fingerprint(50 + number), name, error + 0.01 * seed, protocol, seed, error - 0.05, error + 0.1
                    )
                )


def make_seen_world(probe, *, tasks: int = 4) -> MeasuredMetaTask:
    """The same experts on tasks of real pictures, embedded by a probe: for what reads and measures images."""
    from task2vec.embedding import EmbedSettings, embed
    from tests.embedding.conftest import make_task

    known = make_metatask()
    made = [make_task((8, 7), seed=40 + number, name=f"task {number}") for number in range(tasks)]
    embeddings = [embed(task, probe, settings=EmbedSettings(max_samples=6, l2=0.01), device="cpu") for task in made]
    told = tuple(
        replace(one, fingerprint=task.fingerprint) for one, task in zip(known.tasks[:tasks], made, strict=True)
    )
    arrays = {
        name: getattr(known, name)[:tasks] for name in ("errors", "low", "high", "shares_images", "shares_labels")
    }
    return replace(known, tasks=told, embeddings={"tiny robust": embeddings}, **arrays)
