"""Embeddings of many tasks by one probe as two small arrays and a story: how a meta-task keeps them."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from task2vec.embedding import Embedding
from task2vec.probe import FilterLayer


def pack(embeddings: Sequence[Embedding]) -> dict[str, np.ndarray]:
    """Fishers as logarithms in half precision, where dead filters are minus infinity, and a prior for every layer."""
    with np.errstate(divide="ignore"):
        fisher = np.log2(np.stack([one.fisher for one in embeddings])).astype(np.float16)
    slices = [list(one.layer_slices().values()) for one in embeddings]
    prior = [[one.prior[part][0] for part in parts] for one, parts in zip(embeddings, slices, strict=True)]
    return {"fisher": fisher, "prior": np.array(prior)}


def tell_embeddings(embeddings: Sequence[Embedding]) -> dict[str, Any]:
    """All that is not an array, what they have in common said once."""
    first = embeddings[0]
    shared = {key: first.provenance.get(key) for key in ("settings", "recipe", "probe_fingerprint", "image_size")}
    own = [{key: one.provenance.get(key) for key in ("task_fingerprint", "counts", "head")} for one in embeddings]
    layers = [list(asdict(layer).values()) for layer in first.layers]
    return {"probe": first.probe, "layers": layers, "shared": shared, "own": own, "tasks": [e.task for e in embeddings]}


def unpack(name: str, told: dict[str, Any], arrays: dict[str, np.ndarray]) -> list[Embedding]:
    """The embeddings that `pack` and `tell_embeddings` were given; their standard errors are zero, for none is kept."""
    layers = tuple(FilterLayer(*fields) for fields in told["layers"])
    sizes = [layer.filters for layer in layers]
    fishers = np.exp2(arrays[f"embeddings.{name}.fisher"].astype(np.float64))
    rows = zip(told["tasks"], told["own"], fishers, arrays[f"embeddings.{name}.prior"], strict=True)
    return [
        Embedding(
            task,
            told["probe"],
            fisher,
            np.zeros(len(fisher)),
            np.repeat(prior, sizes),
            layers,
            {**told["shared"], **own},
        )
        for task, own, fisher, prior in rows
    ]
