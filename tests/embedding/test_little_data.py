"""A task that tells little lies near the trivial embedding: labels of no meaning, and few images."""

from dataclasses import replace

import numpy as np
import pytest

from task2vec.distance import symmetric
from task2vec.embedding import EmbedSettings, embed, trivial
from task2vec.probe import load_probe
from task2vec.tasks import sample_tasks

REPEATS = 3


@pytest.fixture(scope="module")
def samples():
    return {task.name: task for task in sample_tasks(images_per_task=60)}


@pytest.fixture(scope="module")
def probe():
    return load_probe(size=32)


def from_trivial(task, probe):
    embedding = embed(task, probe, settings=EmbedSettings(max_samples=12))
    assert np.isfinite(embedding.vector).all() and embedding.provenance["settings"]["method"] == "robust"
    return symmetric(embedding, trivial(embedding))


def some_of(task, per_class, rng):
    """A subset with so many images of every class."""
    members = [rng.permutation(np.flatnonzero(task.targets == c))[:per_class] for c in range(len(task.classes))]
    return task.subset(np.concatenate(members))


@pytest.mark.parametrize("name", ["colours", "textures"])
def test_random_labels_lie_nearer_to_the_trivial_embedding_than_true_ones(samples, probe, name):
    rng = np.random.default_rng(0)
    few = some_of(samples[name], 4, rng)
    true = from_trivial(few, probe)
    random = [from_trivial(replace(few, targets=rng.permutation(few.targets)), probe) for _ in range(5)]
    # By chance cross-validation may believe in some of them, which then look like a task.
    error = np.std(random, ddof=1) / len(random) ** 0.5
    assert np.mean(random) + error < true and np.median(random) < 0.6 * true


def test_fewer_images_lie_nearer_to_the_trivial_embedding(samples, probe):
    rng = np.random.default_rng(0)
    found = {n: [from_trivial(some_of(samples["shapes"], n, rng), probe) for _ in range(REPEATS)] for n in (2, 6)}
    found[20] = [from_trivial(samples["shapes"], probe)]  # all of them
    means = [np.mean(values) for values in found.values()]
    errors = [np.std(values, ddof=1) / REPEATS**0.5 if len(values) > 1 else 0.0 for values in found.values()]
    for i in (0, 1):  # never away from it by more than the error
        assert means[i] < means[i + 1] + 2 * np.hypot(errors[i], errors[i + 1])
    assert means[0] + errors[0] < means[2]
