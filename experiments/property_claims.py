"""Rows of the properties -> claims, each with what was measured and a verdict that can be against it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from experiments.properties import ALL_BUT_ONE, SHUFFLED, TRUE

HOLDS, PARTLY, FAILS, UNCLEAR = "holds", "partly", "fails", "unclear"
# An embedding has landed on the trivial one when it went at least this part of the way there.
LANDED = 0.9
# A difference counts when it is more than so many of its standard errors.
STANDARD_ERRORS = 2.0
RESAMPLES = 2000
# A rank correlation of fewer tasks says nothing.
FEWEST_TASKS = 5

Row = dict[str, Any]


@dataclass(frozen=True)
class Claim:
    """One sentence about the embedding, the numbers that speak to it, and whether they bear it out."""

    property: str
    claim: str
    measured: str
    verdict: str


@dataclass(frozen=True)
class Correlation:
    """Spearman's rank correlation with a bootstrap interval of 95 %; None where there is too little to rank."""

    count: int
    rho: float | None = None
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        """The number and its interval."""
        if self.rho is None:
            return "-"
        return f"{self.rho:.2f} [{self.low:.2f}, {self.high:.2f}]"

    @property
    def verdict(self) -> str:
        """Whether it is surely positive, surely not, or neither."""
        if self.rho is None or self.low is None or self.high is None:
            return UNCLEAR
        return HOLDS if self.low > 0 else FAILS if self.high <= 0 else UNCLEAR


def correlate(x: Sequence[float], y: Sequence[float]) -> Correlation:
    """Spearman's correlation of two columns, with the interval that resampling the rows gives.

    Example:
        >>> correlate([1, 2, 3, 4, 5, 6], [1, 3, 2, 4, 6, 5]).verdict
        'holds'
    """
    pairs, count = np.array([x, y], dtype=np.float64), len(x)
    rho = _spearman(pairs[None])[0] if count >= FEWEST_TASKS else math.nan
    if math.isnan(rho):
        return Correlation(count)
    draws = np.random.default_rng(0).integers(count, size=(RESAMPLES, count))
    resampled = _spearman(pairs[:, draws].swapaxes(0, 1))
    low, high = np.nanquantile(resampled, [0.025, 0.975])
    return Correlation(count, float(rho), float(low), float(high))


def _spearman(pairs: np.ndarray) -> np.ndarray:
    """(n,) rank correlations of (n, 2, m) pairs; NaN where a column has one value only."""
    from scipy.stats import rankdata

    ranks = rankdata(pairs, axis=2)
    ranks -= ranks.mean(2, keepdims=True)
    scale = np.sqrt(np.square(ranks).sum(2).prod(1))
    return np.divide((ranks[:, 0] * ranks[:, 1]).sum(1), scale, out=np.full(len(ranks), np.nan), where=scale > 0)


def is_learnable(row: Row) -> bool:
    """Whether the error is surely below that of guessing: by two standard errors of guessing on so many images."""
    chance = row["chance"]
    return row["error"] + STANDARD_ERRORS * math.sqrt(chance * (1 - chance) / row["images"]) < chance


def correlate_by_dataset(rows: Sequence[Row]) -> list[Row]:
    """The correlation of norm and error over all tasks, those better than chance, and the tasks of each dataset."""
    groups = {"all tasks": list(rows), "better than chance": [row for row in rows if is_learnable(row)]}
    for name in dict.fromkeys(row["dataset"] for row in rows):
        groups[name] = [row for row in rows if row["dataset"] == name]
    found = []
    for name, group in groups.items():
        c = correlate([row["norm"] for row in group], [row["error"] for row in group])
        found.append({"tasks_of": name, "tasks": c.count, "spearman": c.rho, "low": c.low, "high": c.high})
    return found


@dataclass(frozen=True)
class Point:
    """Mean of a number over the repeats of one kind of case, its standard error, and the numbers themselves."""

    at: float
    mean: float
    stderr: float
    values: tuple[float, ...]


def summarise(rows: Sequence[Row], by: str, value: str, *, is_logarithmic: bool = False) -> list[Point]:
    """One point per distinct `by`, in its order; a logarithmic mean is the logarithm of the geometric one.

    Example:
        >>> [point.mean for point in summarise([{"n": 1, "d": 2.0}, {"n": 1, "d": 4.0}], "n", "d")]
        [3.0]
    """
    points = []
    for at in sorted({row[by] for row in rows}):
        values = np.array([row[value] for row in rows if row[by] == at])
        values = np.log(np.maximum(values, np.finfo(float).tiny)) if is_logarithmic else values
        stderr = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0
        points.append(Point(at, float(values.mean()), stderr, tuple(values.tolist())))
    return points


def find_falls(points: Sequence[Point]) -> list[tuple[float, float]]:
    """The steps from one point to the next on which the mean falls by more than the error bars allow.

    Points with the same repeats are compared repeat by repeat: their subsets are nested.
    """
    return [(a.at, b.at) for a, b in pairwise(points) if _rise(a, b) < 0]


def _rise(a: Point, b: Point) -> float:
    """How much the mean rises beyond its error; 0 where it is within it."""
    difference = b.mean - a.mean
    if len(a.values) == len(b.values) > 1:
        steps = np.subtract(b.values, a.values)
        error = float(steps.std(ddof=1) / math.sqrt(len(steps)))
    else:
        error = math.hypot(a.stderr, b.stderr)
    return difference if abs(difference) > STANDARD_ERRORS * error else 0.0


def make_claims(rows: dict[str, list[Row]]) -> list[Claim]:
    """All claims, in the order of the figures."""
    return [
        *_claim_norm(rows["norm_error"]),
        _claim_relabelling(rows["relabelled"][0]),
        _claim_shuffling(rows["labels"]),
        *_claim_classes(rows["classes"]),
        *_claim_sample_size(rows["sample_size"]),
    ]


def _claim_norm(rows: Sequence[Row]) -> list[Claim]:
    sentences = ("the norm ranks tasks by error", "... those better than chance")
    kinds = (list(rows), [row for row in rows if is_learnable(row)])
    found = [correlate([row["norm"] for row in kind], [row["error"] for row in kind]) for kind in kinds]
    return [
        Claim("norm_error", sentence, f"rho {c}, {_count(c.count, 'task')}", c.verdict)
        for sentence, c in zip(sentences, found, strict=True)
    ]


def _claim_relabelling(row: Row) -> Claim:
    """To the bit is the claim; a GPU, which sums in any order, may fall short of it by rounding."""
    relative = row["largest_relative_difference"]
    measured = f"{row['filters_changed']} of {row['filters']} filters move"
    measured += f", {relative:.0e} at most" if row["filters_changed"] else ""
    verdict = HOLDS if row["filters_changed"] == 0 else PARTLY if relative < 1e-3 else FAILS
    return Claim("labels", "names and order change no bit", measured, verdict)


def _claim_shuffling(rows: Sequence[Row]) -> Claim:
    """Of the way from the true labels to the trivial embedding, how much do shuffled labels go?"""
    ways, is_nearer = [], []
    for group in split(rows, "task"):
        points = summarise(group, "shuffled", "distance")
        ways.append(_way(points[0], points[-1]))
        is_nearer.append(_rise(points[0], points[-1]) < 0)
    measured = f"{100 * np.mean(ways):.0f} % of the way, {_count(len(ways), 'task')}"
    verdict = _judge_ways(ways, is_nearer=all(is_nearer))
    return Claim("labels", "shuffled labels are trivial", measured, verdict)


def _claim_classes(rows: Sequence[Row]) -> list[Claim]:
    classes = [row["classes"] for row in rows]
    found = {name: correlate(classes, [row[name] for row in rows]) for name in ("error", "norm")}
    return [
        Claim("classes", f"more classes, more {name}", f"rho {c}, {_count(c.count, 'subset')}", c.verdict)
        for name, c in found.items()
    ]


def _claim_sample_size(rows: Sequence[Row]) -> list[Claim]:
    """Every step from fewer to more images, the smallest size for itself, and labels that say nothing."""
    curves = [summarise(group, "images_per_class", "distance") for group in split(only(rows, TRUE), "task")]
    steps = sum(len(points) - 1 for points in curves)
    falls = sum(len(find_falls(points)) for points in curves)
    rises = [_rise(points[0], points[-1]) > 0 for points in curves]
    ways = [_way(points[-1], points[0]) for points in curves]
    fewest = f"{_count(int(curves[0][0].at), 'image')} per class is trivial"
    went = f"{100 * np.mean(ways):.0f} % of the way, {_count(len(ways), 'task')}"
    return [
        Claim(
            "sample_size",
            "fewer images, nearer to trivial",
            f"no fall at {steps - falls} of {_count(steps, 'step')}",
            FAILS if falls else HOLDS if all(rises) else UNCLEAR,
        ),
        Claim("sample_size", fewest, went, _judge_ways(ways, is_nearer=all(rises)) if steps else UNCLEAR),
        _claim_nonsense(rows, curves[0][-1]),
    ]


def _claim_nonsense(rows: Sequence[Row], whole: Point) -> Claim:
    """Labels that say nothing should be trivial at every size; `whole` is the same task with its true labels."""
    ends = [p for kind in (SHUFFLED, ALL_BUT_ONE) for p in summarise(only(rows, kind), "images_per_class", "distance")]
    ways = [_way(whole, end) for end in ends]
    went = f"{100 * min(ways):.0f} to {100 * max(ways):.0f} % of the way"
    is_nearer = all(end.mean + STANDARD_ERRORS * end.stderr < whole.mean for end in ends)
    return Claim("sample_size", "few empty labels are trivial", went, _judge_ways(ways, is_nearer=is_nearer))


def _judge_ways(ways: Sequence[float], *, is_nearer: bool) -> str:
    return HOLDS if min(ways) >= LANDED else PARTLY if is_nearer else FAILS


def split(rows: Sequence[Row], by: str) -> list[list[Row]]:
    """The rows of each distinct `by`, in the order of their first."""
    return [[row for row in rows if row[by] == name] for name in dict.fromkeys(row[by] for row in rows)]


def only(rows: Sequence[Row], labels: str) -> list[Row]:
    """The rows with one kind of labels."""
    return [row for row in rows if row["labels"] == labels]


def _way(start: Point, end: Point) -> float:
    """The part of the way from `start` to the trivial embedding, at distance zero, that is gone at `end`."""
    return 1 - end.mean / start.mean if start.mean > 0 else 0.0


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"
