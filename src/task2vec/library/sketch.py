"""A few numbers that stand for a task when its neighbours are looked for among very many.

With u = log a - log b the symmetric distance is a function of u alone, and for small u it is half of its variance. So
the Euclidean distance between logarithms, each centred over its own filters, ranks much like it. A sketch keeps that
distance in a hundred numbers: along the principal directions, in which the tasks of a sample differ most, and along
random directions for all that these leave out. Principal directions alone would do for a library of a few datasets.
But every new dataset has something of its own, and a thousand of them do not fit into a hundred directions; random ones
know none of them and miss none. Three more things make the ranks agree better, on real tasks and simulated ones
(docs/search.md):

- Beyond a few units a difference no longer moves a task away, because a / (a + b) is 0 or 1 by then. So what a filter
  has beyond its mean is clipped, and a dead filter counts as a fixed step below it, whatever its prior is.
- Tasks of different size are farther apart than their centred logarithms say, by a factor of 1 + 0.085 c^2 for a
  difference c of their mean logarithms (over the filters that are alive). So that mean is kept as one more number.
- What random directions say about the rest is noisy, and is drawn towards what tasks have that are not related: there
  the rests add up. So their size is kept as a number, too. It also tells when tasks have come that the basis does not
  know.

The basis is fitted once, on a sample. A new task is projected on it, and nothing else changes.
"""

import json
from dataclasses import dataclass

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from task2vec.errors import LibraryError

# Directions of a basis, and how many of them are principal ones.
SIZE, PRINCIPAL = 128, 32
# Beyond so many units from a filter's mean a logarithm counts no further, and a dead filter counts so many below it.
CLIP, DEAD = 2.5, 1.25
# How much the size of tasks counts, and of what the principal directions leave out, how much is not left to chance.
LEVEL_WEIGHT, LEFT_WEIGHT = 0.085, 0.3
_BLOCK = 64
_FORMAT, _SEED = "sketcher 1", 20190610


@dataclass(frozen=True, eq=False)
class Sketcher:
    """A basis of the space of tasks.

    Attributes:
        mean: of the centred logarithms of the sample, filter by filter, where it is alive.
        principal: (filters, directions), orthonormal.
        random: (filters, directions), orthogonal to those and to each other, as long as they have to be to stand for
            all the others.
    """

    mean: np.ndarray
    principal: np.ndarray
    random: np.ndarray

    @property
    def width(self) -> int:
        """Numbers of a sketch."""
        return self.principal.shape[1] + self.random.shape[1] + 2

    def project(self, vectors: np.ndarray) -> np.ndarray:
        """The sketches (tasks, width) of signed vectors (tasks, filters), which are negative where a filter is dead.

        The numbers along the principal directions come first, then those along the random ones; in squares they are
        means over the filters. Then come the root of the mean square that the principal directions leave out, and the
        mean logarithm.
        """
        sketches = np.empty((len(vectors), self.width), dtype=np.float32)
        count, root = self.principal.shape[1], np.sqrt(np.float32(len(self.mean)))
        for at in range(0, len(vectors), _BLOCK):
            part, into = vectors[at : at + _BLOCK], sketches[at : at + _BLOCK]
            logs, into[:, -1] = _centre(part)
            parts = _clip(logs, part, self.mean)
            shares = into[:, :count] = parts @ self.principal / root
            into[:, count:-2] = parts @ self.random / root
            left = np.vecdot(parts, parts) / len(self.mean) - np.vecdot(shares, shares)
            into[:, -2] = np.sqrt(np.maximum(left, 0))
        return sketches

    def explained(self, sketches: np.ndarray) -> np.ndarray:
        """The share of each task's deviation from the mean that lies along the principal directions, 0 to 1."""
        held, left = np.square(sketches[:, : self.principal.shape[1]]).sum(1), np.square(sketches[:, -2])
        return held / np.maximum(held + left, np.finfo(np.float32).tiny)

    def to_bytes(self) -> bytes:
        """The basis as safetensors."""
        tensors = {"mean": self.mean, "principal": self.principal, "random": self.random}
        return save_tensors(tensors, metadata={"task2vec": _FORMAT})

    @classmethod
    def from_bytes(cls, content: bytes) -> "Sketcher":
        """The basis that `to_bytes` wrote, after checking form and values.

        Raises:
            LibraryError: It is something else, or damaged.
        """
        try:
            tensors = load_tensors(content)
            header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
            made = cls(tensors["mean"], tensors["principal"], tensors["random"])
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
        arrays, shape = (self.mean, self.principal, self.random), self.mean.shape
        has_shape = len(shape) == 1 and all(one.ndim == 2 and one.shape[:1] == shape for one in arrays[1:])
        return has_shape and all(one.dtype == np.float32 and bool(np.isfinite(one).all()) for one in arrays)


def fit_sketcher(vectors: np.ndarray, *, size: int = SIZE, principal: int = PRINCIPAL) -> Sketcher:
    """The `principal` directions in which these tasks differ most, and random ones for the rest, `size` in all.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> vectors = np.exp(rng.normal(size=(40, 3)) @ rng.normal(size=(3, 500)))
        >>> sketcher = fit_sketcher(vectors, size=8, principal=4)
        >>> sketches = sketcher.project(vectors)
        >>> sketches.shape, bool(sketcher.explained(sketches).min() > 0.8)
        ((40, 10), True)
    """
    logs = np.concatenate([_centre(vectors[at : at + _BLOCK])[0] for at in range(0, len(vectors), _BLOCK)])
    is_alive = vectors > 0
    mean = (np.where(is_alive, logs, 0).sum(0, dtype=np.float64) / np.maximum(is_alive.sum(0), 1)).astype(np.float32)
    parts = _clip(logs, vectors, mean)
    values, directions = np.linalg.eigh((parts @ parts.T).astype(np.float64))
    most = min(principal, size)
    values, directions = values[::-1][:most], directions[:, ::-1][:, :most]
    is_real = values > 1e-6 * max(values[0], np.finfo(np.float32).tiny)  # the rest is rounding
    best = parts.T @ (directions[:, is_real] / np.sqrt(values[is_real])).astype(np.float32)
    return Sketcher(mean, best, _draw_directions(best, size - best.shape[1]))


def _draw_directions(principal: np.ndarray, count: int) -> np.ndarray:
    """Random directions, orthogonal to the principal ones and to each other.

    They are so long that the squares along them add up, on average, to what a vector has outside of the principal
    directions, but for the share that is not left to chance.
    """
    filters, taken = principal.shape
    count = min(count, filters - taken)
    drawn = np.random.default_rng(_SEED).standard_normal((filters, count))
    drawn -= principal @ (principal.T @ drawn)
    length = np.sqrt((1 - LEFT_WEIGHT) * (filters - taken) / max(count, 1))
    return np.ascontiguousarray(length * np.linalg.qr(drawn)[0], dtype=np.float32)


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
