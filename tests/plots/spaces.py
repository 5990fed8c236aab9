"""Made-up task spaces: datasets of tasks, apart from one another."""

import numpy as np


def make_space(count=43, datasets=3, *, seed=0):
    """Distances between tasks and the dataset of each."""
    rng = np.random.default_rng(seed)
    dataset = np.sort(np.arange(count) % datasets)
    points = 1.5 * rng.normal(size=(datasets, 12))[dataset] + 0.4 * rng.normal(size=(count, 12))
    return measure(points), [f"dataset {number}" for number in dataset]


def measure(points):
    """Euclidean distances between the rows."""
    points = np.asarray(points, dtype=float)
    return np.sqrt(np.square(points[:, None] - points[None, :]).sum(axis=-1))
