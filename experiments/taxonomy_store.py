"""One small file for all embeddings of a collection: what travels from the machine that computed to the one that draws.

Single files hold everything in float64 with standard errors. Here the Fisher is kept in float32, the prior (which is
constant within a layer) once per layer, and the standard errors not at all: a sixth of the room, distances within
1e-6. The story of every embedding is kept whole.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

import task2vec as t2v
from task2vec.embedding.embedding import hash_content
from task2vec.errors import DataError, EmbeddingFileError, UsageError
from task2vec.plots import write_file
from task2vec.probe import FilterLayer

SCHEMA = 1
_LARGEST = 1 << 31


@dataclass(frozen=True)
class Compact:
    """What such a file holds.

    Attributes:
        embeddings: by method, in the order of saving; their standard errors are zero, since they were not kept.
        domains: domain embeddings.
        datasets: the dataset of a task by its name, where it has one.
    """

    embeddings: dict[str, list[t2v.Embedding]] = field(default_factory=dict)
    domains: list[t2v.DomainEmbedding] = field(default_factory=list)
    datasets: dict[str, str] = field(default_factory=dict)


def save_compact(
    embeddings: Sequence[t2v.Embedding],
    domains: Sequence[t2v.DomainEmbedding] = (),
    *,
    path: str | Path,
    datasets: Mapping[str, str] | None = None,
) -> Path:
    """Writes embeddings of one probe, of any methods, to `path`, whole or not at all, and returns it.

    Example:
        >>> import tempfile
        >>> layer, one = FilterLayer("conv", "convolution", 2, 9, 0.1), np.ones(2)
        >>> birds = t2v.Embedding("birds", "net", one / 3, one, one, (layer,), {"settings": {"method": "robust"}})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     load_compact(save_compact([birds], path=f"{folder}/all.safetensors")).embeddings
        {'robust': [Embedding(birds, probe=net, 2 filters, ? images)]}
    """
    by_method: dict[str, list[t2v.Embedding]] = {}
    for one in embeddings:
        _check_same_layers(embeddings[0], one)
        by_method.setdefault(method_of(one), []).append(one)
    arrays = {}
    for method, group in by_method.items():
        arrays[f"{method}.fisher"] = np.stack([_shorten(one.fisher) for one in group])
        arrays[f"{method}.prior"] = np.stack([_prior_by_layer(one) for one in group])
    for moment in ("mean", "second_moment"):
        arrays |= {f"domain.{number}.{moment}": getattr(one, moment) for number, one in enumerate(domains)}
    story = {
        "schema": SCHEMA,
        "probe": embeddings[0].probe if embeddings else None,
        "layers": [list(asdict(layer).values()) for layer in embeddings[0].layers] if embeddings else [],
        "methods": {method: [_tell(one) for one in group] for method, group in by_method.items()},
        "domains": [{**_tell(one), "probe": one.probe} for one in domains],
        "datasets": dict(datasets or {}),
    }
    text = json.dumps(story, sort_keys=True, allow_nan=False)
    metadata = {"task2vec": json.dumps({"sha256": hash_content(text, arrays), "compact": text})}
    write_file(Path(path), save_tensors(arrays, metadata=metadata))
    return Path(path)


def load_compact(path: str | Path) -> Compact:
    """What `save_compact` wrote, after checking format, schema, hash and values."""
    path = Path(path)
    try:
        if path.stat().st_size > _LARGEST:
            raise ValueError(f"{path.stat().st_size} bytes")
        content = path.read_bytes()
        arrays = load_tensors(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        envelope = json.loads(header["__metadata__"]["task2vec"])
        story = json.loads(envelope["compact"])
        if story["schema"] != SCHEMA or envelope["sha256"] != hash_content(envelope["compact"], arrays):
            raise ValueError(f"schema {story['schema']}, or its SHA-256 does not fit")
        return _read_story(story, arrays)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise EmbeddingFileError(
            f"'{path}' is not a collection of embeddings, or it is damaged ({type(error).__name__}: {error}). Nothing "
            "in it can be trusted. Remove it, and embed the tasks again."
        ) from error


def method_of(embedding: t2v.Embedding) -> str:
    """The method by which an embedding was made."""
    return embedding.provenance.get("settings", {}).get("method", "unknown")


def _read_story(story: dict[str, Any], arrays: dict[str, np.ndarray]) -> Compact:
    layers = tuple(FilterLayer(*fields) for fields in story["layers"])
    sizes = [layer.filters for layer in layers]
    made: dict[str, list[t2v.Embedding]] = {}
    for method, tasks in story["methods"].items():
        rows = zip(tasks, arrays[f"{method}.fisher"], arrays[f"{method}.prior"], strict=True)
        made[method] = [
            t2v.Embedding(
                told["task"],
                story["probe"],
                fisher,
                np.zeros(len(fisher)),
                np.repeat(prior, sizes),
                layers,
                told["provenance"],
            )
            for told, fisher, prior in rows
        ]
    domains = [
        t2v.DomainEmbedding(
            told["task"],
            told["probe"],
            arrays[f"domain.{number}.mean"],
            arrays[f"domain.{number}.second_moment"],
            told["provenance"],
        )
        for number, told in enumerate(story["domains"])
    ]
    return Compact(made, domains, story["datasets"])


def _tell(one: t2v.Embedding | t2v.DomainEmbedding) -> dict[str, Any]:
    return {"task": one.task, "provenance": one.provenance}


def _shorten(fisher: np.ndarray) -> np.ndarray:
    """Float32, in which a filter that is alive stays alive however small its Fisher is."""
    short = fisher.astype(np.float32)
    return np.where(fisher > 0, np.maximum(short, np.finfo(np.float32).tiny), short)


def _prior_by_layer(embedding: t2v.Embedding) -> np.ndarray:
    parts = [embedding.prior[part] for part in embedding.layer_slices().values()]
    if any(np.ptp(part) > 1e-6 * part.max() for part in parts):
        raise DataError(
            f"the prior of '{embedding.task}' is not constant within its layers, so one number per layer cannot keep "
            "it. Save the embedding by itself: embedding.save(path)"
        )
    return np.array([part[0] for part in parts])


def _check_same_layers(a: t2v.Embedding, b: t2v.Embedding) -> None:
    # Not the layers themselves: two machines may round the mean square of the same weights differently.
    shapes = [[(layer.name, layer.filters) for layer in one.layers] for one in (a, b)]
    if shapes[0] != shapes[1] or a.probe_fingerprint != b.probe_fingerprint:
        raise UsageError(
            f"'{a.task}' and '{b.task}' were embedded by different probes ({a.probe} and {b.probe}), and one file "
            "holds those of one. Save them apart."
        )
