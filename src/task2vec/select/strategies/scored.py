"""Choosing by a transferability score, which every candidate earns by looking at the task's own images."""

from dataclasses import dataclass

import numpy as np

from task2vec.errors import UndefinedScoreError
from task2vec.select.evidence import Answer, Evidence, Question
from task2vec.select.strategies.static import fit_static

# The names of `task2vec.select.SCORES`, which itself imports torch: who only reads scores does without.
SCORED = (
    "knn",
    "knn5",
    "logme",
    "leep",
    "nce",
    "nleep",
    "h_score",
    "h_score_shrunk",
    "transrate",
    "gbc",
    "parc",
)


@dataclass(frozen=True, eq=False)
class ByScore:
    """Ranks by one score."""

    score: str
    static: np.ndarray

    def rank(self, question: Question) -> Answer:
        """The highest score first; experts without one after all others, in the order of their mean errors."""
        scores = question.scores.get(self.score)
        scores = np.full(len(self.static), np.nan) if scores is None else scores
        return Answer(-scores, fallback=self.static)


@dataclass(frozen=True)
class Scored:
    """The expert with the highest transferability score.

    Attributes:
        score: its name in `task2vec.select.SCORES`.
    """

    score: str
    looks_at_images: bool = True

    @property
    def name(self) -> str:
        """As tables show it."""
        return self.score

    def fit(self, evidence: Evidence) -> ByScore:
        """Learns the order of experts without a score."""
        if self.score not in evidence.scores or not np.isfinite(evidence.scores[self.score]).any():
            raise UndefinedScoreError(
                f"the score '{self.score}' of these tasks and experts is not known (known: "
                f"{', '.join(evidence.scores) or 'none'}). Compute it with score_features, or leave this strategy out."
            )
        return ByScore(self.score, fit_static(evidence))
