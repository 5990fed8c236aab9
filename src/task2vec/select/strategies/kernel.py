"""Errors of similar tasks over the static prior: what experts did better than usual there, they will do better here.

expert_j + sum_k w_k rest_kj / sum_k w_k, over known tasks k, with w_k = exp(-distance_k / width): the simplest way to
learn from similar tasks. Nothing holds it back where none is known: the nearest ones count, however far they are.
"""

from dataclasses import dataclass

import numpy as np

from task2vec.errors import UndefinedScoreError
from task2vec.select.evidence import SYMMETRIC, Answer, Evidence, Question
from task2vec.select.strategies.effects import Effects, find_errors, take_apart

# Widths that are tried, in parts of the median distance.
WIDTHS = tuple(2.0**power for power in range(-6, 3))
DATASET = "dataset"


@dataclass(frozen=True, eq=False)
class Smoothed:
    """Effects, and the weights that a distance gives to tasks; without a width, tasks of the same dataset count."""

    kind: str
    effects: Effects
    groups: tuple[str, ...]
    width: float | None

    def rank(self, question: Question) -> Answer:
        """Static, moved by what experts did on similar tasks."""
        if self.width is None:
            weights = np.array([[float(question.group == group) for group in self.groups]])
        else:
            distances = question.distances.get(self.kind)
            weights = np.zeros((1, len(self.groups))) if distances is None else weigh(distances[None], self.width)
        badness = self.effects.experts + smooth(self.effects.rest, weights)[0]
        return Answer(badness, errors=np.clip(self.effects.level + badness, 0, 1))


@dataclass(frozen=True)
class Kernel:
    """Errors of similar tasks over the static prior.

    Attributes:
        kind: of the distance between tasks: "symmetric", "domain", "taxonomic", or "dataset", where tasks of the same
            dataset count alike and others not at all.
        width: of the kernel, as a distance; None chooses it on the known tasks, each predicted from the others, by the
            mean square of what is left.
    """

    kind: str = SYMMETRIC
    width: float | None = None
    looks_at_images: bool = False

    @property
    def name(self) -> str:
        """As tables show it."""
        return f"kernel {self.kind}"

    def fit(self, evidence: Evidence) -> Smoothed:
        """Learns effects, and how far similarity reaches."""
        effects = take_apart(find_errors(evidence))
        if self.kind == DATASET:
            return Smoothed(self.kind, effects, evidence.groups, None)
        if self.kind not in evidence.distances:
            raise UndefinedScoreError(
                f"no {self.kind} distance between tasks is known (known kinds: "
                f"{', '.join(evidence.distances) or 'none'}), so no task is similar. Give the evidence one, or leave "
                "this strategy out."
            )
        width = choose_width(effects, evidence.distances[self.kind]) if self.width is None else self.width
        return Smoothed(self.kind, effects, evidence.groups, width)


def weigh(distances: np.ndarray, width: float) -> np.ndarray:
    """exp(-distance / width), up to a factor for each row: the nearest has 1. Tasks of unknown distance have 0."""
    distances = np.where(np.isnan(distances), np.inf, distances)
    nearest = distances.min(1, keepdims=True, initial=np.inf)
    return np.exp(-(distances - np.where(np.isfinite(nearest), nearest, 0)) / width)


def smooth(rest: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(rows of weights, E) weighted means of what is known; 0 where nothing is."""
    known = np.isfinite(rest)
    sums, totals = weights @ np.where(known, rest, 0), weights @ known
    return np.divide(sums, totals, out=np.zeros(sums.shape), where=totals > 1e-300)


def choose_width(effects: Effects, distances: np.ndarray) -> float:
    """The width that predicts each known task best from the others; of equals the widest."""
    apart = distances + np.where(np.eye(len(distances), dtype=bool), np.inf, 0)
    finite = apart[np.isfinite(apart)]
    median = float(np.median(finite)) if finite.size and np.median(finite) > 0 else 1.0
    experts = effects.without_own()
    own = effects.rest + effects.experts
    losses = {}
    for width in sorted((part * median for part in WIDTHS), reverse=True):
        weights = weigh(apart, width)
        known = np.isfinite(own)
        sums, totals = weights @ np.where(known, own, 0), weights @ known
        guesses = np.divide(sums, totals, out=experts.copy(), where=totals > 1e-300)
        left = (own - guesses)[np.isfinite(own - guesses)]
        losses[width] = float(np.square(left).mean()) if left.size else 0.0
    return min(losses, key=lambda width: losses[width])
