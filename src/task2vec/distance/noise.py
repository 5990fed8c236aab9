"""How much of a distance is noise, and what is left without it.

An embedding is an estimate, and noise moves two estimates apart, never together: the symmetric distance depends on the
spread of u = log a - log b over the filters, and the noise of both adds its own. So two estimates of one task are not
at distance zero, and tasks of few images look farther from everything than they are.

Let e_a be one dose of noise: a vector as large as the error of log a. Then

* the floor is the distance that the doses alone make, between two embeddings of one task;
* the correction takes the noise off where it was added, as a variance. If u is normal with mean zero and variance v,
  the distance is g(v) = 2 t / (1 + t) with t = E[tanh^2(u / 2)]: half of v for near tasks, and saturating at one. Hence
  corrected = g(g^-1(distance) - g^-1(floor)). Below the floor it is negative: that is what no difference looks like.
  Where one task has many times the Fisher of the other, the mean of u is large and too little is taken off;
* the standard error is how far the distance moves with a dose of either sign. It comes from one split of each task, so
  it is right in the mean square over many pairs, and rough for a single one.

Where the dose comes from:

* "halves": e = (log a_1 - log a_2) / 2, from two halves of the task that were embedded by themselves
  (`EmbedSettings(halves=True)`), each beside the prior of the whole. The logarithm of a half has twice the variance of
  the whole, so half of the difference has that of the whole. Halves know all that other images would change: the images
  themselves, the head, its penalty. (The latter grows as images get fewer and keeps halves together, so that floors
  are still a little low: see docs/distances.md.)
* "stderr": e = stderr / vector, filter by filter, with signs of their own. It holds the head fixed, so it knows a part
  of the noise only (and of the variational method, only that of the optimisation): real floors are higher. How the
  filters move together is not known, and so no standard error is either: it is NaN.
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
        stderr: its standard error; NaN if the basis is "stderr".
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
        is_known = self.basis == "halves"
        error, more = (f" ± {self.stderr:.3f}", "") if is_known else ("", " or more")
        return f"{self.value:.3f}{error} (noise floor {self.floor:.3f}{more}; corrected {self.corrected:.3f})"


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
        0.200 (noise floor 0.038 or more; corrected 0.178)
    """
    check_comparable(a, b)
    counted = ~(find_dead(a) & find_dead(b))
    if not counted.any():
        return NoisyDistance(0.0, 0.0, 0.0, 0.0, "stderr")
    u = np.log(a.vector[counted]) - np.log(b.vector[counted])
    if "stderr" in (find_basis(a), find_basis(b)):
        return _from_stderr(u, (a.stderr / a.vector)[counted], (b.stderr / b.vector)[counted])
    return _from_halves(u, find_dose(a)[counted], find_dose(b)[counted])


def find_floor(embedding: Embedding) -> float:
    """The noise floor of one task: the symmetric distance of two such embeddings of it, by what its own noise is.

    There is one dose of noise and not two, so it is counted with both variances at once: u = sqrt(2) e.

    Example:
        >>> from task2vec.probe import FilterLayer
        >>> layers, prior = (FilterLayer("conv", "convolution", 2, 9, 0.1),), np.full(2, 1e-9)
        >>> halves = np.array([[1.2, 1.8], [0.8, 2.2]])
        >>> one = Embedding("task", "net", np.array([1.0, 2.0]), np.array([0.1, 0.1]), prior, layers, halves=halves)
        >>> round(find_floor(one), 3)
        0.023
    """
    counted = ~find_dead(embedding)
    if not counted.any():
        return 0.0
    if embedding.halves is None:
        e = _spread_out((embedding.stderr / embedding.vector)[counted])
    else:
        e = find_dose(embedding)[counted]
    return _distance(math.sqrt(2) * e)


def find_basis(embedding: Embedding) -> str:
    """What tells the noise of an embedding: "halves", or for want of them "stderr"."""
    return "stderr" if embedding.halves is None else "halves"


def find_dose(embedding: Embedding) -> np.ndarray:
    """(filters,) one dose of noise in the logarithm of the vector, from the halves of the task."""
    assert embedding.halves is not None
    one, other = np.log(embedding.halves + embedding.prior)
    return (one - other) / 2


def _from_halves(u: np.ndarray, e_a: np.ndarray, e_b: np.ndarray) -> NoisyDistance:
    floor = (_distance(e_a + e_b) + _distance(e_a - e_b)) / 2
    steps = [(_distance(u + e) - _distance(u - e)) / 2 for e in (e_a, e_b)]
    return _judge(u, floor, math.hypot(*steps), "halves")


def _from_stderr(u: np.ndarray, e_a: np.ndarray, e_b: np.ndarray) -> NoisyDistance:
    return _judge(u, _distance(_spread_out(np.hypot(e_a, e_b))), math.nan, "stderr")


def _spread_out(e: np.ndarray) -> np.ndarray:
    """Normal noise of the size `e` in every filter, by three places side by side: its sums are exact to fifth order."""
    return np.concatenate([np.zeros(4 * len(e)), math.sqrt(3) * e, -math.sqrt(3) * e])


def _judge(u: np.ndarray, floor: float, stderr: float, basis: str) -> NoisyDistance:
    value = _distance(u)
    corrected = float(take_off(np.array(value), np.array(floor))) if u.any() else 0.0
    return NoisyDistance(value, stderr, floor, corrected, basis)


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
