"""One small file for all embeddings of an experiment: what travels from the machine that embeds to the one that draws.

The Fisher is kept in float32, the prior (which is constant within a layer) once per layer, and the standard errors not
at all: a sixth of the size, distances within 1e-6. Provenance is kept whole.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

import task2vec as t2v
from task2vec import plots
from task2vec.errors import EmbeddingFileError, UsageError
from task2vec.probe import FilterLayer


@dataclass
class EmbeddingFile:
    """Embeddings of one probe by method and task, and domain embeddings by task.

    `embed_many(..., library=file)` finds in it what was embedded before and adds what is new.

    Attributes:
        path: its place.
        embeddings: in the order in which they were made; those that were loaded have no standard errors.
        domains: domain embeddings.
        datasets: the dataset of a task, where it has one.
    """

    path: Path
    embeddings: dict[tuple[str, str], t2v.Embedding] = field(default_factory=dict)
    domains: dict[str, t2v.DomainEmbedding] = field(default_factory=dict)
    datasets: dict[str, str] = field(default_factory=dict)

    def of_method(self, method: str) -> list[t2v.Embedding]:
        """The embeddings by one method."""
        return [one for (name, _), one in self.embeddings.items() if name == method]

    def find(self, task: t2v.Task, probe: t2v.Probe, *, settings: t2v.EmbedSettings) -> t2v.Embedding | None:
        """The embedding of the same images and labels by the same probe and method; other settings do not count."""
        known = self.embeddings.get((settings.method, task.name))
        return known if known is not None and _is_same(known, task, probe) else None

    def keep(self, embedding: t2v.Embedding, *, source: str = "") -> None:
        """Adds an embedding and writes the file."""
        self.embeddings[method_of(embedding), embedding.task] = embedding
        self.save()

    def embed(
        self, tasks: Sequence[t2v.Task], probe: t2v.Probe, *, settings: t2v.EmbedSettings, device: str | None
    ) -> list[t2v.Embedding]:
        """One embedding per task; tasks on the same images share their passes. Where one fails, the others are kept."""
        options = {"settings": settings, "library": self, "device": device}
        results = sorted(t2v.embed_many(tasks, probe, **options), key=lambda one: one.number)
        for error in (result.error for result in results if result.error is not None):
            raise error
        return [result.embedding for result in results if result.embedding is not None]

    def embed_domain(self, task: t2v.Task, probe: t2v.Probe, *, device: str | None) -> t2v.DomainEmbedding:
        """The domain embedding of a task, computed if it is new."""
        known = self.domains.get(task.name)
        if known is None or not _is_same(known, task, probe):
            self.domains[task.name] = t2v.embed_domain(task, probe, device=device)
        return self.domains[task.name]

    def save(self) -> Path:
        """Writes all of them, whole or not at all."""
        every = list(self.embeddings.values())
        for one in every:
            # Not the layers themselves: two machines may round the mean square of the same weights differently.
            shapes = [[(layer.name, layer.filters) for layer in each.layers] for each in (every[0], one)]
            if shapes[0] != shapes[1] or every[0].probe_fingerprint != one.probe_fingerprint:
                raise UsageError(
                    f"'{every[0].task}' and '{one.task}' were embedded by different probes ({every[0].probe} and "
                    f"{one.probe}), and one file holds those of one. Choose another folder: --out DIR"
                )
        arrays, methods = {}, {}
        for method in dict.fromkeys(method for method, _ in self.embeddings):
            group = self.of_method(method)
            arrays[f"{method}.fisher"] = np.stack([_shorten(one.fisher) for one in group])
            starts = [part.start for part in group[0].layer_slices().values()]
            arrays[f"{method}.prior"] = np.stack([one.prior[starts] for one in group])
            methods[method] = [{"task": one.task, "provenance": one.provenance} for one in group]
        for number, one in enumerate(self.domains.values()):
            arrays |= {f"domain.{number}.mean": one.mean, f"domain.{number}.second_moment": one.second_moment}
        header = {
            "probe": every[0].probe if every else None,
            "layers": [list(asdict(layer).values()) for layer in every[0].layers] if every else [],
            "methods": methods,
            "domains": [{"task": d.task, "provenance": d.provenance, "probe": d.probe} for d in self.domains.values()],
            "datasets": self.datasets,
        }
        text = json.dumps({"compact": json.dumps(header, sort_keys=True, allow_nan=False)})
        plots.write_file(self.path, save_tensors(arrays, metadata={"task2vec": text}))
        return self.path


def open_embeddings(path: str | Path) -> EmbeddingFile:
    """The embeddings of a file; none if it is not there yet."""
    path = Path(path)
    if not path.exists():
        return EmbeddingFile(path)
    try:
        content = path.read_bytes()
        arrays = load_tensors(content)
        metadata = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
        return _decode(path, json.loads(json.loads(metadata["task2vec"])["compact"]), arrays)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise EmbeddingFileError(
            f"'{path}' is not a file of embeddings, or it is damaged ({type(error).__name__}: {error}). Remove it, and "
            "embed the tasks again."
        ) from error


def _decode(path: Path, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> EmbeddingFile:
    layers = tuple(FilterLayer(*fields) for fields in header["layers"])
    sizes = [layer.filters for layer in layers]
    found = EmbeddingFile(path, datasets=header["datasets"])
    for method, tasks in header["methods"].items():
        for known, fisher, prior in zip(tasks, arrays[f"{method}.fisher"], arrays[f"{method}.prior"], strict=True):
            vectors = (fisher, np.zeros(len(fisher)), np.repeat(prior, sizes))
            one = t2v.Embedding(known["task"], header["probe"], *vectors, layers, known["provenance"])
            found.embeddings[method, one.task] = one
    for number, known in enumerate(header["domains"]):
        moments = (arrays[f"domain.{number}.mean"], arrays[f"domain.{number}.second_moment"])
        found.domains[known["task"]] = t2v.DomainEmbedding(known["task"], known["probe"], *moments, known["provenance"])
    return found


def method_of(embedding: t2v.Embedding) -> str:
    """The method by which an embedding was made."""
    return embedding.provenance.get("settings", {}).get("method", "unknown")


def _is_same(known: t2v.Embedding | t2v.DomainEmbedding, task: t2v.Task, probe: t2v.Probe) -> bool:
    has = known.provenance.get("task_fingerprint") == task.fingerprint
    return has and known.probe_fingerprint == probe.fingerprint


def _shorten(fisher: np.ndarray) -> np.ndarray:
    """Float32, in which no positive Fisher becomes zero."""
    short = fisher.astype(np.float32)
    return np.where(fisher > 0, np.maximum(short, np.finfo(np.float32).tiny), short)
