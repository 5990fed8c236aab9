"""How much of a distance is noise, and what is left without it.

An embedding is an estimate, and noise moves two estimates apart, never together: the symmetric distance depends on the
spread of u = log a - log b over the filters, and the noise of both adds its own. So two estimates of one task are not
at distance zero, and tasks of few images look farther from everything than they are.

Let e_a be one dose of noise: a vector as large as the error of log a. Then

* the floor is the distance that the doses alone make, between two embeddings of one task;
* the correction takes the noise off where it was added, as a variance. If u is spread normally, with variance v, the
  distance is g(v) = 2 t / (1 + t) with t = E[tanh^2(u / 2)]: half of v for near tasks, and saturating at one. Hence
  corrected = g(g^-1(distance) - g^-1(floor)). Below the floor it is negative: that is what no difference looks like;
* the standard error is how far the distance moves with a dose of either sign.

Where the dose comes from:

* "halves": e = (log a_1 - log a_2) / 2, from two halves of the task that were embedded by themselves
  (`EmbedSettings(halves=True)`), each beside the prior of the whole. The logarithm of a half has twice the variance of
  the whole, so half of the difference has that of the whole. Halves know all that other images would change: the images
  themselves, the head, its penalty. (The latter grows as images get fewer and keeps halves together, so that floors
  are still a little low: see docs/distances.md.)
* "stderr": e = stderr / vector, filter by filter; with signs of their own for the floor, with a common sign for the
  standard error, since filters do move together. It holds the head fixed, so it knows a part of the noise only: real
  floors are higher.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import erfinv

from task2vec.distance.kind import check_comparable, find_dead
from task2vec.distance.symmetric import symmetric_from_logs
from task2vec.embedding import Embedding

# Places at which a normal distribution is looked at.
_PLACES = 2000


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

    If both embeddings have halves these tell the noise, else their standard errors do. The noise of the two is taken
    for independent: of tasks that share images the floor is too high. An embedding and itself share all of it.

    Example:
        >>> from task2vec.probe import FilterLayer
        >>> layers, story = (FilterLayer("conv", "convolution", 2, 9, 0.1),), {"probe_fingerprint": "p"}
        >>> prior = np.full(2, 1e-9)
        >>> values = np.array([1.0, 2.0]), np.array([2.0, 1.0])
        >>> a, b = (Embedding("task", "net", x, x / 5, prior, layers, story) for x in values)
        >>> print(with_error(a, b))
        0.200 ± 0.000 (noise floor 0.039 or more; corrected 0.178)
    """
    check_comparable(a, b)
    counted = ~(find_dead(a) & find_dead(b))
    if not counted.any():
        return NoisyDistance(0.0, 0.0, 0.0, 0.0, "stderr")
    u = np.log(a.vector[counted]) - np.log(b.vector[counted])
    if a.halves is None or b.halves is None:
        return _from_stderr(u, (a.stderr / a.vector)[counted], (b.stderr / b.vector)[counted])
    return _from_halves(u, find_dose(a)[counted], find_dose(b)[counted])


def find_dose(embedding: Embedding) -> np.ndarray:
    """(filters,) one dose of noise in the logarithm of the vector, from the halves of the task."""
    assert embedding.halves is not None
    one, other = np.log(embedding.halves + embedding.prior)
    return (one - other) / 2


def _from_halves(u: np.ndarray, e_a: np.ndarray, e_b: np.ndarray) -> NoisyDistance:
    floor = (_distance(e_a + e_b) + _distance(e_a - e_b)) / 2
    return _judge(u, e_a, e_b, floor, "halves")


def _from_stderr(u: np.ndarray, e_a: np.ndarray, e_b: np.ndarray) -> NoisyDistance:
    e = np.hypot(e_a, e_b)
    # Every filter with either sign: the sums over filters are those of a vector that has both side by side.
    return _judge(u, e_a, e_b, _distance(np.concatenate([e, -e])), "stderr")


def _judge(u: np.ndarray, e_a: np.ndarray, e_b: np.ndarray, floor: float, basis: str) -> NoisyDistance:
    value = _distance(u)
    corrected = float(take_off(np.array(value), np.array(floor))) if u.any() else 0.0
    steps = [(_distance(u + e) - _distance(u - e)) / 2 for e in (e_a, e_b)]
    return NoisyDistance(value, math.hypot(*steps), floor, corrected, basis)


def take_off(values: np.ndarray, floors: np.ndarray) -> np.ndarray:
    """The distances that are left when the variances behind `floors` are taken off those behind `values`.

    Example:
        >>> take_off(np.array([0.02, 0.3, 0.3, 0.01]), np.array([0.01, 0.3, 0.0, 0.02])).round(3)
        array([ 0.01,  0.  ,  0.3 , -0.01])
    """
    variances, distances = _curve()
    left = np.interp(values, distances, variances) - np.interp(floors, distances, variances)
    return np.sign(left) * np.interp(np.abs(left), variances, distances)


@lru_cache(maxsize=1)
def _curve() -> tuple[np.ndarray, np.ndarray]:
    """Variances of u and the distances g that they make, from zero to nearly one."""
    places = np.sqrt(2) * erfinv(np.linspace(-1, 1, 2 * _PLACES + 1)[1::2])  # one in the middle of every equal part
    variances = np.concatenate([[0.0], np.geomspace(1e-9, 1e9, 1801)])
    t = np.array([np.square(np.tanh(np.sqrt(v) / 2 * places)).mean() for v in variances])
    return variances, 2 * t / (1 + t)


def _distance(u: np.ndarray) -> float:
    return symmetric_from_logs(u, np.zeros_like(u))
