"""Embeddings for the tests of this room."""

import numpy as np

from task2vec.embedding import Embedding
from task2vec.probe import FilterLayer


def make(fisher, *, task="a", probe="net", fingerprint="p", prior=1e-300, **own):
    """An embedding of that Fisher; `prior` is one number or one per filter, `own` are settings."""
    fisher = np.asarray(fisher, dtype=float)
    layers = (FilterLayer("conv", "convolution", len(fisher), 9, 0.1),)
    story = {
        "probe_fingerprint": fingerprint,
        "settings": {"method": "robust", "beta": 1e-5, "dtype": "float32", "balance": True, **own},
    }
    prior = np.broadcast_to(np.asarray(prior, dtype=float), fisher.shape)
    return Embedding(task, probe, fisher, np.zeros_like(fisher), prior, layers, story)


def make_many(tasks, filters, *, seed=0, dead=0.0, spread=1.0, scales=1.0, priors=0.0):
    """Random tasks with a share of dead filters; `scales` and `priors` are how much tasks differ in size and prior."""
    rng = np.random.default_rng(seed)
    logs = spread * rng.normal(size=(tasks, filters)) + scales * rng.normal(size=(tasks, 1)) + rng.normal(size=filters)
    fishers = np.exp(logs) * (rng.random((tasks, filters)) >= dead)
    levels = 1e-4 * np.exp(priors * rng.normal(size=tasks))
    return [
        make(fisher, task=f"t{index}", prior=level)
        for index, (fisher, level) in enumerate(zip(fishers, levels, strict=True))
    ]
