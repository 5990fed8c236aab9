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
- What random directions say about the rest is noisy. Most tasks are not related there, and for those one knows better:
  their rests add up. So the size of the rest is kept as a number, too, and what is measured is drawn towards that sum
  the more, the closer it comes to it. The size also tells when tasks have come that the basis does not know.

The basis is fitted once, on a sample. A new task is projected on it, and nothing else changes.
"""

import json
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from task2vec.errors import LibraryError

# Directions of a basis, and how many of them are principal ones.
SIZE, PRINCIPAL = 128, 32
# Beyond so many units from a filter's mean a logarithm counts no further, and a dead filter counts so many below it.
CLIP, DEAD = 2.5, 1.25
# How much the size of tasks counts, how much the rest, and how many of all pairs of tasks are not related in the rest.
LEVEL_WEIGHT, REST_WEIGHT, UNRELATED = 0.085, 0.8, 0.9
_BLOCK = 64
_STEPS = 256
_FORMAT, _SEED = "sketcher 1", 20190610


@dataclass(frozen=True, eq=False)
class Sketches:
    """The sketches of many tasks, taken apart.

    Attributes:
        principal: (tasks, directions), along the principal directions.
        random: (tasks, directions), along the random ones.
        squares: (2, tasks), sums of squares of either.
        rest: mean squares of what the principal directions leave out.
        levels: mean logarithms.
    """

    principal: np.ndarray
    random: np.ndarray
    squares: np.ndarray
    rest: np.ndarray
    levels: np.ndarray

    @classmethod
    def make_room(cls, tasks: int, principal: int, random: int) -> "Sketches":
        """Room for so many; what is not filled costs no memory."""
        shapes = (tasks, principal), (tasks, random), (2, tasks), tasks, tasks
        return cls(*(np.empty(shape, dtype=np.float32) for shape in shapes))

    def take(self, which: slice) -> "Sketches":
        """Some of them."""
        return Sketches(
            self.principal[which], self.random[which], self.squares[:, which], self.rest[which], self.levels[which]
        )

    def fill(self, sketches: np.ndarray) -> None:
        """Puts the sketches in; one that holds NaN is infinitely close to everything."""
        is_there = np.logical_and.reduce(np.isfinite(sketches), axis=1)
        sketches, count = np.where(is_there[:, None], sketches, 0), self.principal.shape[1]
        self.principal[:], self.random[:] = sketches[:, :count], sketches[:, count:-2]
        self.rest[:], self.levels[:] = np.square(sketches[:, -2]), sketches[:, -1]
        self.squares[0] = np.where(is_there, np.vecdot(self.principal, self.principal), -np.inf)
        self.squares[1] = np.vecdot(self.random, self.random)


@dataclass(frozen=True, eq=False)
class Sketcher:
    """A basis of the space of tasks.

    Attributes:
        mean: of the centred logarithms of the sample, filter by filter, where it is alive.
        principal: (filters, directions), orthonormal.
        random: (filters, directions), orthogonal to those and to each other, and so long that the squares along them
            add up, on average, to all that the principal ones leave out.
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

    def score(self, sketch: np.ndarray, others: Sketches) -> np.ndarray:
        """How far tasks seem to be from the one with this sketch: smaller is closer."""
        count = self.principal.shape[1]
        apart, rests = (
            squares - 2 * (numbers @ own) + own @ own
            for squares, numbers, own in (
                (others.squares[0], others.principal, sketch[:count]),
                (others.squares[1], others.random, sketch[count:-2]),
            )
        )
        most = np.maximum(others.rest + np.square(sketch[-2]), np.finfo(np.float32).tiny)
        rests /= most
        np.clip(rests, 0, 2, out=rests)
        rests *= np.float32(_STEPS)
        apart += self._expected.take(rests.astype(np.int32)) * most
        apart *= 1 + np.float32(LEVEL_WEIGHT) * np.square(others.levels - sketch[-1])
        return apart

    @cached_property
    def _expected(self) -> np.ndarray:
        """What to expect of the rests' mean square, as a share of their sum, by what random directions say of it.

        The measured share is the true one times a chi-square of as many degrees of freedom as there are directions,
        over their number. Most tasks are not related, and their true share is 1; of the others any share is as likely.
        """
        measured = (np.arange(2 * _STEPS + 1) + 0.5)[:, None] / _STEPS
        true, freedom = np.linspace(0.01, 1, 100), max(self.random.shape[1], 1)
        chances = np.full(100, (1 - UNRELATED) / 100)
        chances[-1] += UNRELATED
        logs = (freedom / 2 - 1) * np.log(measured / true) - freedom / 2 * measured / true - np.log(true)
        chances = chances * np.exp(logs - logs.max(1, keepdims=True))
        return (REST_WEIGHT * (chances @ true) / chances.sum(1)).astype(np.float32)

    def explain(self, sketches: Sketches) -> np.ndarray:
        """The share of each task's deviation from the mean that lies along the principal directions; NaN of none."""
        held = np.where(np.isfinite(sketches.squares[0]), sketches.squares[0], np.nan)
        return held / np.maximum(held + sketches.rest, np.finfo(np.float32).tiny)

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
        >>> fit_sketcher(vectors, size=8, principal=4).project(vectors).shape
        (40, 10)
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
    """Random directions, orthogonal to the principal ones and to each other, as long as `Sketcher` says."""
    filters, taken = principal.shape
    count = min(count, filters - taken)
    drawn = np.random.default_rng(_SEED).standard_normal((filters, count))
    drawn -= principal @ (principal.T @ drawn)
    length = np.sqrt((filters - taken) / max(count, 1))
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
