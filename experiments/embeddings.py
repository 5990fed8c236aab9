"""Embeddings of many tasks for the experiments, numbers that follow from them, and the committed ones of 43 tasks."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import load as load_arrays

import task2vec as t2v
from task2vec.probe import FilterLayer

if TYPE_CHECKING:
    from torch import Tensor


def embed_all(
    tasks: Sequence[t2v.Task], probe: t2v.Probe, folder: Path, *, settings: t2v.EmbedSettings, device: str | None
) -> list[t2v.Embedding]:
    """One embedding per task, in their order, kept in `folder` for the next run.

    Raises:
        Task2VecError: The first error of a task.
    """
    results = sorted(
        t2v.embed_many(tasks, probe, folder=folder, settings=settings, device=device), key=lambda result: result.number
    )
    for result in results:
        if result.error is not None:
            raise result.error
    return [result.embedding for result in results if result.embedding is not None]


def measure_spaces(embedded: Mapping[str, Sequence[t2v.Embedding]]) -> dict[str, Any]:
    """Distances and norms of the embeddings of every space, as fields of a meta-task."""
    return {
        "distances": {name: np.array(t2v.distance.pairwise(embeddings)) for name, embeddings in embedded.items()},
        "trivial_distances": {
            name: np.array([t2v.distance.symmetric(embedding, t2v.trivial(embedding)) for embedding in embeddings])
            for name, embeddings in embedded.items()
        },
        "norms": {
            name: np.array([embedding.norm() for embedding in embeddings]) for name, embeddings in embedded.items()
        },
    }


def measure_error(network: t2v.TrainedExpert, features: "Tensor", task: t2v.Task) -> float:
    """The share of the images of a task that a network with its head gets wrong, from their features.

    Classes are matched by name: the head has them in the canonical order of its own training images.
    """
    predicted = np.array(network.metadata["classes"])[network.probabilities(features).argmax(1).cpu().numpy()]
    return float((predicted != np.array(task.classes)[task.targets]).mean())


def share_embeddings(known: t2v.MetaTask, metatask: t2v.MetaTask) -> t2v.MetaTask:
    """The second meta-task with the embeddings of the first: of the same tasks and source tasks, on other models."""
    fingerprints = [[task.fingerprint for task in (*each.tasks, *each.source_tasks)] for each in (known, metatask)]
    if fingerprints[0] != fingerprints[1]:
        raise t2v.errors.UsageError(
            f"the tasks and source tasks of '{known.name}' and '{metatask.name}' differ, so the embeddings of the one "
            "are not those of the other. Give a meta-task that was built by the same plan (--against, --embeddings)"
        )
    names = ("embeddings", "domains", "distances", "trivial_distances", "norms")
    return replace(metatask, **{name: getattr(known, name) for name in names})


def read_committed(path: Path) -> tuple[list[t2v.Embedding], list[str]]:
    """The robust embeddings in a file of docs/results/taxonomy, and the dataset of each.

    An earlier version wrote these files: the Fisher in float32, a prior for each layer, no standard errors (here NaN).
    """
    content = path.read_bytes()
    arrays, end = load_arrays(content), 8 + int.from_bytes(content[:8], "little")
    header = json.loads(json.loads(json.loads(content[8:end])["__metadata__"]["task2vec"])["compact"])
    layers = tuple(FilterLayer(*fields) for fields in header["layers"])
    fishers = arrays["robust.fisher"]
    priors = np.repeat(arrays["robust.prior"], [layer.filters for layer in layers], axis=1)
    stderr = np.full(fishers.shape[1], np.nan)
    embeddings = [
        t2v.Embedding(about["task"], header["probe"], fisher, stderr, prior, layers, about["provenance"])
        for about, fisher, prior in zip(header["methods"]["robust"], fishers, priors, strict=True)
    ]
    return embeddings, [header["datasets"][embedding.task] for embedding in embeddings]
