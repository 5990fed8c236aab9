"""How diverse a collection is: the expected distance between the embeddings of two of its batches.

The diversity coefficient of Miranda et al. (2022) and Lee et al. (2023), with two additions:

* the **error**. Pairs share batches, so n (n - 1) / 2 distances are far from independent, and the usual standard error
  of their mean would be much too small. The mean over pairs is a U-statistic; the jackknife over batches (leave out one
  with all its pairs) estimates its error, too large rather than too small on average (Efron and Stein, 1981).
* the **noise floor**. Two batches of the same classes are not at distance zero, because their images differ. A twin has
  the same classes as its batch and other images: the mean distance of twins is what a uniform collection shows. Only
  what exceeds it is diversity.

For two collections the reference is their own diversity: batches of two identical collections are as far apart as
batches of one. The excess is half of an energy distance (Szekely and Rizzo, 2013), about zero for identical ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from task2vec.distance.distances import Distance, find_kind
from task2vec.distance.pairwise import pairwise
from task2vec.embedding import Embedding
from task2vec.errors import UsageError

FEWEST_BATCHES = 3


@dataclass(frozen=True)
class Spread:
    """A number with its standard error by the jackknife over batches."""

    value: float
    stderr: float

    def __str__(self) -> str:
        """The number and its error."""
        return f"{self.value:.3f} ± {self.stderr:.3f}"


@dataclass(frozen=True)
class Diversity:
    """The distances between the batches of one collection.

    Attributes:
        coefficient: the mean distance of two batches.
        floor: the mean distance of a batch from its twin: what noise alone produces. None without twins.
        excess: the coefficient minus the floor, with its own error; about zero for a uniform collection.
        batches: their number.
        kind: name of the distance.
    """

    coefficient: Spread
    floor: Spread | None
    excess: Spread | None
    batches: int
    kind: str

    def __str__(self) -> str:
        """The coefficient in one line."""
        beyond = f"; noise floor {self.floor}; excess {self.excess}" if self.floor else ""
        return f"{self.coefficient} ({self.batches} batches{beyond})"


@dataclass(frozen=True)
class CrossDiversity:
    """The distances between the batches of two collections.

    Attributes:
        coefficient: the mean distance between a batch of one and a batch of the other.
        alignment: 1 minus the coefficient: 1 if all batches are the same. None for distances without a maximum of 1.
        own: the mean of the two collections' own coefficients: what two identical collections would show.
        excess: the coefficient minus that; about zero for identical collections.
        batches: their numbers.
        kind: name of the distance.
    """

    coefficient: Spread
    alignment: Spread | None
    own: Spread
    excess: Spread
    batches: tuple[int, int]
    kind: str

    def __str__(self) -> str:
        """The coefficient in one line."""
        counts = "{} and {} batches".format(*self.batches)
        return f"{self.coefficient} ({counts}; own {self.own}; excess {self.excess})"


def diversity(
    batches: Sequence[Embedding],
    twins: Sequence[Embedding] | None = None,
    *,
    kind: str | Distance = "symmetric",
    device: str | None = None,
) -> Diversity:
    """The mean distance between the batches of a collection, its error, and how much of it is noise.

    It depends on the size of the batches: fewer images mean more noise. Compare collections with batches of one size.

    Args:
        batches: embeddings of batches that share no images; at least three.
        twins: for each batch one with the same classes and other images (`embed_batches` makes both). They give the
            noise floor, and count as batches, too.
        kind: a symmetric distance, by its name in `KINDS`.
        device: "cpu", "cuda"; None uses a GPU if there is one.

    Example:
        >>> from task2vec.probe import FilterLayer
        >>> layers, prior = (FilterLayer("conv", "convolution", 2, 9, 0.1),), np.full(2, 1e-9)
        >>> fishers = [[1.0, 2.0], [1.0, 2.5], [2.0, 1.0], [2.0, 1.5]]
        >>> provenance = {"probe_fingerprint": "p"}
        >>> batches = [Embedding(f"{f}", "net", np.array(f), prior, prior, layers, provenance) for f in fishers]
        >>> print(diversity(batches, device="cpu"))
        0.125 ± 0.044 (4 batches)
    """
    kind = _check_kind(kind)
    side = _check_side("batches", batches, twins)
    pairs, pairs_without = _mean_of_pairs(_measure(side, side, kind, device))
    coefficient = _spread(pairs, pairs_without)
    if twins is None:
        return Diversity(coefficient, None, None, len(batches), kind.name)
    near = np.diagonal(pairwise(batches, kind, others=twins, device=device).values)
    floor = near.mean()
    floor_without = (near.sum() - near) / (len(near) - 1)
    excess = _spread(pairs - floor, pairs_without - floor_without)
    return Diversity(coefficient, _spread(floor, floor_without), excess, len(batches), kind.name)


def cross_diversity(
    batches: Sequence[Embedding],
    others: Sequence[Embedding],
    *,
    twins: tuple[Sequence[Embedding], Sequence[Embedding]] | None = None,
    kind: str | Distance = "symmetric",
    device: str | None = None,
) -> CrossDiversity:
    """The mean distance between the batches of two collections, its error, and what two identical ones would show.

    Args:
        batches: embeddings of batches of one collection; at least three.
        others: those of the other, of the same size.
        twins: of the batches and of the others; they count as batches, too.
        kind: a symmetric distance, by its name in `KINDS`.
        device: "cpu", "cuda"; None uses a GPU if there is one.

    Example:
        >>> from task2vec.probe import FilterLayer
        >>> layers, prior = (FilterLayer("conv", "convolution", 2, 9, 0.1),), np.full(2, 1e-9)
        >>> fishers, provenance = [[1.0, 2.0], [1.0, 2.5], [1.0, 1.8]], {"probe_fingerprint": "p"}
        >>> ones = [Embedding(f"{f}", "net", np.array(f), prior, prior, layers, provenance) for f in fishers]
        >>> others = [Embedding(f"{f}", "net", np.array(f[::-1]), prior, prior, layers, provenance) for f in fishers]
        >>> print(cross_diversity(ones, others, device="cpu"))
        0.220 ± 0.033 (3 and 3 batches; own 0.007 ± 0.005; excess 0.213 ± 0.031)
    """
    kind = _check_kind(kind)
    twin, other_twin = (None, None) if twins is None else twins
    sides = [_check_side("batches", batches, twin), _check_side("others", others, other_twin)]
    (first, first_without), (second, second_without) = (
        _mean_of_pairs(_measure(side, side, kind, device)) for side in sides
    )
    across = _measure(sides[0], sides[1], kind, device)
    cross = across.mean()
    cross_without = [(across.sum() - across.sum(1 - axis)) / (across.size - across.shape[1 - axis]) for axis in (0, 1)]
    expected = (first + second) / 2
    expected_without = [(first_without + second) / 2, (first + second_without) / 2]
    coefficient = _spread(cross, *cross_without)
    excess = _spread(cross - expected, *(a - b for a, b in zip(cross_without, expected_without, strict=True)))
    alignment = Spread(1 - coefficient.value, coefficient.stderr) if kind.highest == 1 else None
    counts = len(batches), len(others)
    return CrossDiversity(coefficient, alignment, _spread(expected, *expected_without), excess, counts, kind.name)


def _spread(value: float, *without: np.ndarray) -> Spread:
    """The number with its error, from what it is without each batch; variances of independent collections add up."""
    variances = [(len(values) - 1) / len(values) * np.square(values - values.mean()).sum() for values in without]
    return Spread(float(value), float(np.sqrt(sum(variances))))


Side = list[Sequence[Embedding]]


def _measure(rows: Side, columns: Side, kind: Distance, device: str | None) -> np.ndarray:
    """(batches, batches) distances, each the mean over both twins of both; nothing but pairs of different ones counts.

    A batch and its twin are one draw, and left out together.
    """
    return np.mean([pairwise(a, kind, others=b, device=device).values for a in rows for b in columns], axis=0)


def _mean_of_pairs(apart: np.ndarray) -> tuple[float, np.ndarray]:
    """The mean over all pairs of different batches, and the same without each of the batches."""
    count = len(apart)
    apart = apart - np.diag(np.diagonal(apart))
    total = apart.sum()
    return total / (count * (count - 1)), (total - apart.sum(0) - apart.sum(1)) / ((count - 1) * (count - 2))


def _check_kind(kind: str | Distance) -> Distance:
    distance = find_kind(kind)
    if not distance.is_symmetric:
        why = "so the result would depend on the order of the batches"
        raise UsageError(f"'{distance.name}' has a direction, {why}. Use a symmetric distance: symmetric, cosine.")
    return distance


def _check_side(name: str, batches: Sequence[Embedding], twins: Sequence[Embedding] | None) -> Side:
    """The batches of a collection, and their twins if there are any."""
    if len(batches) < FEWEST_BATCHES:
        fix = f"Embed at least {FEWEST_BATCHES}; ten or more are better."
        raise UsageError(f"{len(batches)} {name} are too few to estimate diversity and its error. {fix}")
    if twins is not None and len(twins) != len(batches):
        problem = f"there are {len(twins)} twins for {len(batches)} {name}, but each batch needs its own"
        raise UsageError(f"{problem}. Pass what embed_batches returns, in its order.")
    return [batches] if twins is None else [batches, twins]
