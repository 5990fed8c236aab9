"""The static prior, corrected by the distance from the lesson: error_ij = task_i + expert_j + weight * d_ij.

The asymmetric distance takes from the distance an amount that belongs to the expert alone, alpha times the complexity
of its lesson. So does this, with an amount that was measured (the expert's own effect) in the place of one that is
guessed. Beside it one sees what the asymmetric distance adds.
"""

from dataclasses import dataclass

import numpy as np

from task2vec.select.evidence import SYMMETRIC, Answer, Evidence, Question
from task2vec.select.strategies.effects import Effects, find_errors, take_apart
from task2vec.select.strategies.nearest import check_distances


@dataclass(frozen=True, eq=False)
class Adjusted:
    """Effects of experts, and what a unit of distance costs beyond them."""

    kind: str
    effects: Effects
    centres: np.ndarray
    weight: float

    def rank(self, question: Question) -> Answer:
        """Static, better where the lesson is nearer than it is from other tasks."""
        distances = question.to_lessons.get(self.kind)
        gaps = np.full(len(self.centres), np.nan) if distances is None else distances - self.centres
        counted = np.isfinite(gaps) & question.is_candidate
        gaps = np.nan_to_num(gaps - gaps[counted].mean()) if counted.any() else np.zeros(len(gaps))
        badness = self.effects.experts + self.weight * gaps
        return Answer(badness, errors=np.clip(self.effects.level + badness, 0, 1))


@dataclass(frozen=True)
class StaticWithDistance:
    """The static prior plus a distance from the lesson, weighed by least squares on the known tasks.

    Distances count as far as they differ from what task and expert have anyway, so an expert of unknown lesson keeps
    its static place. A weight below zero, nearer is worse, is taken for noise: it is set to zero.

    Attributes:
        kind: of the distance.
    """

    kind: str = SYMMETRIC
    looks_at_images: bool = False

    @property
    def name(self) -> str:
        """As tables show it."""
        return f"static + {self.kind}"

    def fit(self, evidence: Evidence) -> Adjusted:
        """Learns effects and weight together: distances are freed of both effects first (Frisch and Waugh)."""
        check_distances(evidence, self.kind)
        errors = find_errors(evidence)
        effects = take_apart(errors)
        distances = np.where(np.isfinite(errors), evidence.to_lessons[self.kind], np.nan)
        if not np.isfinite(distances).any():
            return Adjusted(self.kind, effects, np.full(len(evidence.experts), np.nan), 0.0)
        shape = take_apart(distances)
        both = np.isfinite(shape.rest)
        size = float(np.square(shape.rest[both]).sum())
        weight = max(0.0, float((shape.rest[both] * effects.rest[both]).sum()) / size) if size > 1e-12 else 0.0
        return Adjusted(self.kind, effects, shape.experts, weight)
