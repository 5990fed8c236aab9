"""How much of a distance is noise, and what is left without it.

An embedding is an estimate, and noise moves two estimates apart, never together: for near tasks the symmetric distance
is half the variance of u = log a - log b, to which the noise of both adds its own. So two estimates of one task are not
at distance zero, and tasks of few images look farther from everything than they are.

Let e_a be one dose of noise: a vector as large as the error of log a. Then

* the floor is the distance that the doses alone make, between two embeddings of one task;
* the correction takes off what one dose *more* would add: corrected = 2 d(u) - mean of d(u + e_a + e_b) over the signs
  of the doses. What the noise has added already is the same, to second order (it is extrapolated from two doses over
  one to none). The result may be slightly negative: that is what no difference looks like;
* the standard error is how far the distance moves with a dose of either sign.

Where the dose comes from:

* "halves": e = (log a_1 - log a_2) / 2, from two halves of the task that were embedded by themselves
  (`EmbedSettings(halves=True)`). The logarithm of a half has twice the variance of the whole, so e has that of the
  whole. It knows all that other images would change: the images themselves, the head, its penalty.
* "stderr": e = stderr / vector, filter by filter; with signs of their own for the floor and the correction, with a
  common sign for the standard error, since filters do move together. It holds the head fixed, so it knows a part of the
  noise only: real floors are higher.
"""

import math
from dataclasses import dataclass

import numpy as np

from task2vec.distance.kind import check_comparable, find_dead
from task2vec.distance.symmetric import symmetric_from_logs
from task2vec.embedding import Embedding


@dataclass(frozen=True)
class NoisyDistance:
    """A symmetric distance and how far to believe it.

    Attributes:
        value: the distance as it is.
        stderr: its standard error.
        floor: the distance that noise alone would make between two such embeddings of one task.
        corrected: the distance without the part that the noise has added; near zero, also below, for the same task.
        basis: "halves" if all of the noise is known, "stderr" if only that of the images under a fixed head is.
    """

    value: float
    stderr: float
    floor: float
    corrected: float
    basis: str

    def __str__(self) -> str:
        """The distance in one line."""
        more = "" if self.basis == "halves" else " or more"
        return (
            f"{self.value:.3f} ± {self.stderr:.3f} (noise floor {self.floor:.3f}{more}; corrected {self.corrected:.3f})"
        )


def with_error(a: Embedding, b: Embedding) -> NoisyDistance:
    """The symmetric distance of two tasks with its standard error, noise floor and corrected value.

    If both embeddings have halves these tell the noise, else their standard errors do.

    Example:
        >>> from task2vec.probe import FilterLayer
        >>> layers, story = (FilterLayer("conv", "convolution", 2, 9, 0.1),), {"probe_fingerprint": "p"}
        >>> prior = np.full(2, 1e-9)
        >>> values = np.array([1.0, 2.0]), np.array([2.0, 1.0])
        >>> a, b = (Embedding("task", "net", x, x / 5, prior, layers, story) for x in values)
        >>> print(with_error(a, b))
        0.200 ± 0.000 (noise floor 0.039 or more; corrected 0.181)
    """
    check_comparable(a, b)
    counted = ~(find_dead(a) & find_dead(b))
    if not counted.any():
        return NoisyDistance(0.0, 0.0, 0.0, 0.0, "stderr")
    u = np.log(a.vector[counted]) - np.log(b.vector[counted])
    if a.halves is None or b.halves is None:
        return _from_stderr(u, (a.stderr / a.vector)[counted], (b.stderr / b.vector)[counted])
    return _from_halves(u, *(np.log(halves[0] / halves[1])[counted] / 2 for halves in (a.halves, b.halves)))


def _from_halves(u: np.ndarray, e_a: np.ndarray, e_b: np.ndarray) -> NoisyDistance:
    value = _distance(u)
    moved = np.mean([_distance(u + sign * e_a + other * e_b) for sign in (1, -1) for other in (1, -1)])
    floor = (_distance(e_a + e_b) + _distance(e_a - e_b)) / 2
    steps = [(_distance(u + e) - _distance(u - e)) / 2 for e in (e_a, e_b)]
    return NoisyDistance(value, math.hypot(*steps), floor, float(2 * value - moved), "halves")


def _from_stderr(u: np.ndarray, e_a: np.ndarray, e_b: np.ndarray) -> NoisyDistance:
    value, e = _distance(u), np.hypot(e_a, e_b)
    # Every filter with either sign: the sums over filters are those of a vector that has both side by side.
    moved, floor = _distance(np.concatenate([u + e, u - e])), _distance(np.concatenate([e, -e]))
    steps = [(_distance(u + e) - _distance(u - e)) / 2 for e in (e_a, e_b)]
    return NoisyDistance(value, math.hypot(*steps), floor, 2 * value - moved, "stderr")


def _distance(u: np.ndarray) -> float:
    return symmetric_from_logs(u, np.zeros_like(u))
