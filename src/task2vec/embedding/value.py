"""The embedding: one number per filter with its standard error and prior, and the story of how it came about."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from task2vec.errors import DataError
from task2vec.probe import FilterLayer


@dataclass(frozen=True, eq=False, repr=False)
class Embedding:
    """A task as a vector.

    Attributes:
        task: name of the task.
        probe: name of the probe.
        fisher: mean Fisher information of each filter.
        stderr: its standard error (how far it would move with other images of the same kind, the head being held fixed;
            of the variational method, only how far its optimisation still moves).
        prior: what a task without information has instead.
        layers: name and number of filters of each layer, in the order of the numbers.
        provenance: fingerprints of task and probe, settings, versions, counts, head metrics, effective images.
        halves: the Fisher of two halves of the task, each embedded by itself, if that was asked for: what other images
            of the same kind would have changed, head and all (see `task2vec.distance.with_error`).
    """

    task: str
    probe: str
    fisher: np.ndarray
    stderr: np.ndarray
    prior: np.ndarray
    layers: tuple[FilterLayer, ...]
    provenance: dict[str, Any] = field(default_factory=dict)
    halves: np.ndarray | None = None

    def __post_init__(self):
        """Refuse arrays that do not fit together or are not finite, and make them read-only."""
        filters = sum(layer.filters for layer in self.layers)
        for name in ("fisher", "stderr", "prior") if self.halves is None else ("fisher", "stderr", "prior", "halves"):
            values = np.array(getattr(self, name), dtype=np.float64, order="C")  # a copy: the caller's stays writable
            if values.shape != ((2, filters) if name == "halves" else (filters,)):
                raise DataError(
                    f"'{name}' has shape {values.shape}, and the layers have {filters} filters: they do not belong "
                    "together."
                )
            is_low = values <= 0 if name == "prior" else values < 0
            if not np.isfinite(values).all() or is_low.any():
                raise DataError(
                    f"'{name}' of the embedding of '{self.task}' holds values that no Fisher can have (NaN, infinite "
                    "or negative)."
                )
            values.setflags(write=False)
            object.__setattr__(self, name, values)

    def __repr__(self) -> str:
        """The embedding in one line."""
        images = self.provenance.get("counts", {}).get("images", "?")
        return f"Embedding({self.task}, probe={self.probe}, {len(self.fisher)} filters, {images} images)"

    def __len__(self) -> int:
        """Number of filters."""
        return len(self.fisher)

    @property
    def vector(self) -> np.ndarray:
        """Fisher plus prior: positive everywhere, the vector that distances compare."""
        return self.fisher + self.prior

    @property
    def probe_fingerprint(self) -> str:
        """SHA-256 of the probe's weights and preprocessing: only equal ones can be compared."""
        return self.provenance.get("probe_fingerprint", "unknown")

    def norm(self) -> float:
        """L1 norm of the Fisher: a measure of the task's difficulty for this probe."""
        return float(self.fisher.sum())

    def layer_slices(self) -> dict[str, slice]:
        """Where each layer's filters lie in the arrays."""
        ends = np.cumsum([layer.filters for layer in self.layers])
        return {
            layer.name: slice(int(end) - layer.filters, int(end)) for layer, end in zip(self.layers, ends, strict=True)
        }

    def save(self, path: str | Path) -> Path:
        """Writes the embedding to `path`, whole or not at all (safetensors with its SHA-256), and returns it."""
        from task2vec.embedding.store import save_embedding

        return save_embedding(self, path)


def trivial(embedding: Embedding) -> Embedding:
    """The trivial embedding beside `embedding`: the prior alone, t0 of the asymmetric distance.

    Example:
        >>> import numpy as np
        >>> layer = FilterLayer("conv", "convolution", 2, 9, 0.1)
        >>> one = np.ones(2)
        >>> trivial(Embedding("birds", "net", one, one, one / 4, (layer,))).vector
        array([0.25, 0.25])
    """
    nothing = np.zeros_like(embedding.fisher)
    return replace(embedding, task=f"trivial ({embedding.task})", fisher=nothing, stderr=nothing, halves=None)
