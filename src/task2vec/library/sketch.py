"""A few numbers that stand for a task when its neighbours are looked for among very many.

With u = log a - log b the symmetric distance is a function of u alone, and for small u it is half of its variance. So
the Euclidean distance between logarithms, each centred over its own filters, ranks nearly like it, and a principal
component analysis keeps most of that distance in a hundred numbers. A difference beyond a few units no longer moves a
task away (a / (a + b) is 0 or 1 by then), while its square would: so what a filter has beyond its mean is clipped.

The basis is fitted once, on a sample. A new task is projected on it, and nothing else changes. What the basis does not
hold of a task is kept as one more number, which tells when tasks have come that the basis does not know.
"""

import json
from dataclasses import dataclass

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from task2vec.errors import LibraryError

SIZE = 128
# Beyond this many units from a filter's mean, a logarithm counts no further.
CLIP = 2.5
_BLOCK = 64
_FORMAT = "sketcher 1"


@dataclass(frozen=True, eq=False)
class Sketcher:
    """A basis of the space of tasks.

    Attributes:
        mean: of the centred logarithms of the sample, filter by filter.
        basis: (filters, numbers of a sketch), orthonormal columns; zeros where the sample had no more directions.
    """

    mean: np.ndarray
    basis: np.ndarray

    @property
    def width(self) -> int:
        """Numbers of a sketch, the last of which is what the others leave out."""
        return self.basis.shape[1] + 1

    def project(self, vectors: np.ndarray) -> np.ndarray:
        """The sketches (tasks, width) of vectors (tasks, filters), whose signs say nothing here.

        Squared distances between sketches without their last number are mean squares over the filters. The last one is
        the root of the mean square that they leave out.
        """
        sketches = np.empty((len(vectors), self.width), dtype=np.float32)
        for at in range(0, len(vectors), _BLOCK):
            part = _clip(_centre(vectors[at : at + _BLOCK]), self.mean)
            shares = part @ self.basis / np.sqrt(np.float32(len(self.mean)))
            left = np.vecdot(part, part) / len(self.mean) - np.vecdot(shares, shares)
            sketches[at : at + _BLOCK, :-1] = shares
            sketches[at : at + _BLOCK, -1] = np.sqrt(np.maximum(left, 0))
        return sketches

    def to_bytes(self) -> bytes:
        """The basis as safetensors."""
        return save_tensors({"basis": self.basis, "mean": self.mean}, metadata={"task2vec": _FORMAT})

    @classmethod
    def from_bytes(cls, content: bytes) -> "Sketcher":
        """The basis that `to_bytes` wrote, after checking form and values.

        Raises:
            LibraryError: It is something else, or damaged.
        """
        try:
            tensors = load_tensors(content)
            header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
            made = cls(tensors["mean"], tensors["basis"])
            is_sound = header["__metadata__"]["task2vec"] == _FORMAT and made._is_sound()
        except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            made, is_sound = None, False
        if made is None or not is_sound:
            raise LibraryError(
                "the basis of the sketches is damaged, so they cannot be compared with new ones. Make it anew: "
                "task2vec library refit"
            )
        return made

    def _is_sound(self) -> bool:
        is_float = self.mean.dtype == self.basis.dtype == np.float32
        is_matrix = self.basis.ndim == 2 and self.mean.shape == self.basis.shape[:1]
        return is_float and is_matrix and bool(np.isfinite(self.mean).all() and np.isfinite(self.basis).all())


def explained(sketches: np.ndarray) -> np.ndarray:
    """The share of each task's deviation from the mean that its sketch holds, 0 to 1."""
    held, left = np.square(sketches[:, :-1]).sum(1), np.square(sketches[:, -1])
    return held / np.maximum(held + left, np.finfo(np.float32).tiny)


def fit_sketcher(vectors: np.ndarray, *, size: int = SIZE) -> Sketcher:
    """The basis of the `size` directions in which these tasks differ most.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> vectors = np.exp(rng.normal(size=(40, 3)) @ rng.normal(size=(3, 500)))
        >>> sketches = fit_sketcher(vectors, size=4).project(vectors)
        >>> sketches.shape, bool(explained(sketches).min() > 0.8)
        ((40, 5), True)
    """
    logs = np.concatenate([_centre(vectors[at : at + _BLOCK]) for at in range(0, len(vectors), _BLOCK)])
    mean = logs.mean(0, dtype=np.float64).astype(np.float32)
    parts = _clip(logs, mean)
    values, directions = np.linalg.eigh((parts @ parts.T).astype(np.float64))
    values, directions = values[::-1][:size], directions[:, ::-1][:, :size]
    is_real = values > 1e-6 * max(values[0], np.finfo(np.float32).tiny)  # rounding of the Gram matrix
    basis = np.zeros((parts.shape[1], size), dtype=np.float32)
    basis[:, : is_real.sum()] = parts.T @ (directions[:, is_real] / np.sqrt(values[is_real])).astype(np.float32)
    return Sketcher(mean, basis)


def _centre(vectors: np.ndarray) -> np.ndarray:
    """Logarithms in float32, from each the mean over its filters taken off."""
    logs = np.log(np.abs(vectors))
    return (logs - logs.mean(1, keepdims=True, dtype=np.float64)).astype(np.float32)


def _clip(logs: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """What is beyond the mean of each filter, within CLIP."""
    parts = logs - mean
    return np.clip(parts, -CLIP, CLIP, out=parts)
