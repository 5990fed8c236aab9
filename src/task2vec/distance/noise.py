"""How much of a distance is noise, and what remains without it.

An embedding is an estimate, and noise moves two estimates apart, never together: the symmetric distance depends on the
spread of u = log a - log b over the filters, and the noise of both adds its own. So two estimates of one task are not
at distance zero, and tasks with few images look farther from everything than they are.

Let e_a be a noise sample: a vector as large as the error of log a. Then

* the noise floor is the distance that noise alone produces between two embeddings of one task;
* the correction subtracts the noise as a variance, which is how it was added. If u is normal with mean zero and
  variance v, the distance is g(v) = 2 t / (1 + t) with t = E[tanh^2(u / 2)]: half of v for near tasks, saturating at
  one. Hence corrected = g(g^-1(distance) - g^-1(floor)). It is negative below the floor.
  Where one task has many times the Fisher of the other, the mean of u is large and the correction is too small;
* the standard error is the change of the distance with a noise sample of either sign. It comes from one split of each
  task, so it is right in the mean square over many pairs, and rough for a single one.

Where the noise sample comes from:

* "halves": e = (log a_1 - log a_2) / 2, from two halves of the task that were embedded separately
  (`EmbedSettings(split_half=True)`), each with the prior of the whole. The logarithm of a half has twice the variance
  of the whole, so half of the difference has that of the whole. Halves include all that other images would change: the
  images themselves and the head.
* "stderr": e = stderr / vector, filter by filter, with independent signs. The head is held fixed, so this is only a
  part of the noise (for the variational method, only that of the optimisation): real floors are higher. The correlation
  between filters is not known, and hence no standard error: it is NaN.
* "unknown": no standard errors are stored, as of the bundled tasks. Then all is NaN but the distance itself.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from task2vec.distance.distances import find_counted, symmetric, symmetric_from_logs
from task2vec.embedding import Embedding

# The basis where there is none, and what helps.
UNKNOWN = "unknown"
EMBED_AGAIN = "to know it, embed both tasks from their images: task2vec embed FOLDER"
# Quantiles at which a normal distribution is evaluated.
_QUANTILES = 2000


@dataclass(frozen=True)
class NoisyDistance:
    """A symmetric distance and how reliable it is.

    Attributes:
        value: the distance itself.
        stderr: its standard error; NaN unless the basis is "halves".
        floor: the distance that noise alone would produce between two such embeddings of one task; NaN if unknown.
        corrected: the distance without the part that is due to noise; about zero, or below, for the same task; NaN if
            unknown.
        basis: "halves" if all of the noise is known, "stderr" if only that of the images with a fixed head is known,
            "unknown" if none is, of one embedding at least.
    """

    value: float
    stderr: float
    floor: float
    corrected: float
    basis: str

    def __str__(self) -> str:
        """The distance in one line."""
        if self.basis == UNKNOWN:
            return f"{self.value:.3f} (noise floor unknown; {EMBED_AGAIN})"
        is_known = self.basis == "halves"
        error, more = (f" ± {self.stderr:.3f}", "") if is_known else ("", " or more")
        return f"{self.value:.3f}{error} (noise floor {self.floor:.3f}{more}; corrected {self.corrected:.3f})"


def with_error(a: Embedding, b: Embedding) -> NoisyDistance:
    """The symmetric distance of two tasks with its standard error, noise floor and corrected value.

    The noise is that of the halves if both embeddings have them, else that of the standard errors, and unknown if one
    has neither, as bundled tasks. The noise of the two is assumed independent: for tasks that share images the floor is
    too high.

    Example:
        >>> from task2vec.probe import FilterLayer
        >>> layers, provenance = (FilterLayer("conv", "convolution", 2, 9, 0.1),), {"probe_fingerprint": "p"}
        >>> prior = np.full(2, 1e-9)
        >>> values = np.array([1.0, 2.0]), np.array([2.0, 1.0])
        >>> a, b = (Embedding("task", "net", x, x / 5, prior, layers, provenance) for x in values)
        >>> print(with_error(a, b))
        0.200 (noise floor 0.038 or more; corrected 0.178)
    """
    counted = find_counted(a, b)
    bases = {find_basis(a), find_basis(b)}
    if UNKNOWN in bases:
        return NoisyDistance(symmetric(a, b), math.nan, math.nan, math.nan, UNKNOWN)
    if not counted.any():
        return NoisyDistance(0.0, 0.0, 0.0, 0.0, "stderr")
    u = np.log(a.vector[counted]) - np.log(b.vector[counted])
    if "stderr" in bases:
        noise = np.hypot(*((embedding.stderr / embedding.vector)[counted] for embedding in (a, b)))
        basis = "stderr"
        floor = _distance(_expand_normal(noise))
        stderr = math.nan
    else:
        e_a, e_b = (find_noise(embedding)[counted] for embedding in (a, b))
        basis = "halves"
        floor = (_distance(e_a + e_b) + _distance(e_a - e_b)) / 2
        stderr = math.hypot(*((_distance(u + e) - _distance(u - e)) / 2 for e in (e_a, e_b)))
    value = _distance(u)
    corrected = float(subtract_floor(np.array(value), np.array(floor))) if u.any() else 0.0
    return NoisyDistance(value, stderr, floor, corrected, basis)


def find_floor(embedding: Embedding) -> float:
    """The noise floor of one task: the symmetric distance of two such embeddings of it, from its own noise.

    There is one noise sample and not two, so it is counted with both variances at once: u = sqrt(2) e. The floor is NaN
    where the noise is unknown, as of bundled tasks; for one's own, embed them from their images.

    Example:
        >>> from task2vec.probe import FilterLayer
        >>> layers, prior = (FilterLayer("conv", "convolution", 2, 9, 0.1),), np.full(2, 1e-9)
        >>> halves = np.array([[1.2, 1.8], [0.8, 2.2]])
        >>> one = Embedding("task", "net", np.array([1.0, 2.0]), np.array([0.1, 0.1]), prior, layers, halves=halves)
        >>> round(find_floor(one), 3)
        0.023
    """
    if find_basis(embedding) == UNKNOWN:
        return math.nan
    counted = embedding.fisher > 0
    if not counted.any():
        return 0.0
    if embedding.halves is not None:
        return _distance(math.sqrt(2) * find_noise(embedding)[counted])
    return _distance(math.sqrt(2) * _expand_normal((embedding.stderr / embedding.vector)[counted]))


def find_basis(embedding: Embedding) -> str:
    """What the noise of an embedding is known from: "halves", or else "stderr"; "unknown" if it has neither."""
    return "halves" if embedding.halves is not None else "stderr" if embedding.has_stderr else UNKNOWN


def find_noise(embedding: Embedding) -> np.ndarray:
    """(filters,) a noise sample of the logarithm of the vector, from the halves of the task."""
    assert embedding.halves is not None
    first, second = np.log(embedding.halves + embedding.prior)
    return (first - second) / 2


def _expand_normal(e: np.ndarray) -> np.ndarray:
    """Normal noise of size `e` in every filter, by three points (0, ±sqrt 3 e): its sums are exact to fifth order."""
    return np.concatenate([np.zeros(4 * len(e)), math.sqrt(3) * e, -math.sqrt(3) * e])


def subtract_floor(values: np.ndarray, floors: np.ndarray) -> np.ndarray:
    """The distances that are left when the variances behind `floors` are subtracted from those behind `values`.

    Example:
        >>> subtract_floor(np.array([0.02, 0.3, 0.3, 0.01]), np.array([0.01, 0.3, 0.0, 0.02])).round(3)
        array([ 0.01,  0.  ,  0.3 , -0.01])
    """
    variances, distances = _variance_curve()
    left = np.interp(values, distances, variances) - np.interp(floors, distances, variances)
    return np.sign(left) * np.interp(np.abs(left), variances, distances)


@lru_cache(maxsize=1)
def _variance_curve() -> tuple[np.ndarray, np.ndarray]:
    """Variances of u and the distances g(v), from zero to nearly one."""
    from scipy.special import erfinv  # takes as long to import as all else that a found embedding needs

    quantiles = np.sqrt(2) * erfinv(np.linspace(-1, 1, 2 * _QUANTILES + 1)[1::2])  # the middle of every equal part
    variances = np.concatenate([[0.0], np.geomspace(1e-9, 1e9, 1801)])
    t = np.array([np.square(np.tanh(np.sqrt(v) / 2 * quantiles)).mean() for v in variances])
    return variances, 2 * t / (1 + t)


def _distance(u: np.ndarray) -> float:
    return float(symmetric_from_logs(u, np.zeros_like(u)))
