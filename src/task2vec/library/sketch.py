"""A few numbers that stand for a task when its neighbours are looked for among very many.

With u = log a - log b the symmetric distance is a function of u alone, and for small u it is half of its variance. So
the Euclidean distance between logarithms, each centred over its own filters, ranks much like it, and a principal
component analysis keeps most of that distance in a hundred numbers. Three things make the ranks agree better, on real
tasks and on simulated ones (docs/search.md):

- Beyond a few units a difference no longer moves a task away, because a / (a + b) is 0 or 1 by then. So what a filter
  has beyond its mean is clipped, and a dead filter counts as a fixed step below it, whatever its prior is.
- Tasks of different size are farther apart than their centred logarithms say, by a factor of 1 + 0.085 c^2 for a
  difference c of their mean logarithms (over the filters that are alive). So that mean is kept as one more number.
- What the basis leaves out of a task is kept as a number, too. Two tasks that are not related differ by all that is
  left out of either, two embeddings of the same task by none of it: 0.3 of it is a good wager. It also tells when tasks
  have come that the basis does not know.

The basis is fitted once, on a sample. A new task is projected on it, and nothing else changes.
"""

import json
from dataclasses import dataclass

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from task2vec.errors import LibraryError

SIZE = 128
# Beyond so many units from a filter's mean a logarithm counts no further, and a dead filter counts so many below it.
CLIP, DEAD = 2.5, 1.25
# How much the size of tasks counts, and what the basis leaves out.
LEVEL_WEIGHT, LEFT_WEIGHT = 0.085, 0.3
_BLOCK = 64
_FORMAT = "sketcher 1"


@dataclass(frozen=True, eq=False)
class Sketcher:
    """A basis of the space of tasks.

    Attributes:
        mean: of the centred logarithms of the sample, filter by filter, where it is alive.
        basis: (filters, numbers of a sketch), orthonormal columns; zeros where the sample had no more directions.
    """

    mean: np.ndarray
    basis: np.ndarray

    @property
    def width(self) -> int:
        """Numbers of a sketch."""
        return self.basis.shape[1] + 2

    def project(self, vectors: np.ndarray) -> np.ndarray:
        """The sketches (tasks, width) of signed vectors (tasks, filters), which are negative where a filter is dead.

        The numbers along the basis come first; squared distances between them are mean squares over the filters. Then
        come the root of the mean square that they leave out, and the mean logarithm.
        """
        sketches = np.empty((len(vectors), self.width), dtype=np.float32)
        for at in range(0, len(vectors), _BLOCK):
            part, into = vectors[at : at + _BLOCK], sketches[at : at + _BLOCK]
            logs, into[:, -1] = _centre(part)
            parts = _clip(logs, part, self.mean)
            shares = parts @ self.basis / np.sqrt(np.float32(len(self.mean)))
            into[:, :-2] = shares
            left = np.vecdot(parts, parts) / len(self.mean) - np.vecdot(shares, shares)
            into[:, -2] = np.sqrt(np.maximum(left, 0))
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
                "task2vec library check-search --refit"
            )
        return made

    def _is_sound(self) -> bool:
        is_float = self.mean.dtype == self.basis.dtype == np.float32
        is_matrix = self.basis.ndim == 2 and self.mean.shape == self.basis.shape[:1]
        return is_float and is_matrix and bool(np.isfinite(self.mean).all() and np.isfinite(self.basis).all())


def explained(sketches: np.ndarray) -> np.ndarray:
    """The share of each task's deviation from the mean that its sketch holds, 0 to 1."""
    held, left = np.square(sketches[:, :-2]).sum(1), np.square(sketches[:, -2])
    return held / np.maximum(held + left, np.finfo(np.float32).tiny)


def fit_sketcher(vectors: np.ndarray, *, size: int = SIZE) -> Sketcher:
    """The basis of the `size` directions in which these tasks differ most.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> vectors = np.exp(rng.normal(size=(40, 3)) @ rng.normal(size=(3, 500)))
        >>> sketches = fit_sketcher(vectors, size=4).project(vectors)
        >>> sketches.shape, bool(explained(sketches).min() > 0.8)
        ((40, 6), True)
    """
    logs = np.concatenate([_centre(vectors[at : at + _BLOCK])[0] for at in range(0, len(vectors), _BLOCK)])
    is_alive = vectors > 0
    mean = (np.where(is_alive, logs, 0).sum(0, dtype=np.float64) / np.maximum(is_alive.sum(0), 1)).astype(np.float32)
    parts = _clip(logs, vectors, mean)
    values, directions = np.linalg.eigh((parts @ parts.T).astype(np.float64))
    values, directions = values[::-1][:size], directions[:, ::-1][:, :size]
    is_real = values > 1e-6 * max(values[0], np.finfo(np.float32).tiny)  # rounding of the Gram matrix
    basis = np.zeros((parts.shape[1], size), dtype=np.float32)
    basis[:, : is_real.sum()] = parts.T @ (directions[:, is_real] / np.sqrt(values[is_real])).astype(np.float32)
    return Sketcher(mean, basis)


def _centre(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms in float32, from each its mean over the filters that are alive taken off, and these means."""
    logs, is_alive = np.log(np.abs(vectors)), vectors > 0
    is_alive |= ~is_alive.any(1, keepdims=True)  # a task without anything alive has the mean of its priors
    means = logs.mean(1, keepdims=True, dtype=np.float64, where=is_alive)
    return (logs - means).astype(np.float32), means[:, 0]


def _clip(logs: np.ndarray, vectors: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """What is beyond the mean of each filter, within CLIP, and one value for all dead filters."""
    parts = logs - mean
    np.clip(parts, -CLIP, CLIP, out=parts)
    parts[vectors < 0] = -DEAD
    return parts
