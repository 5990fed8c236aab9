"""Choosing the expert whose lesson is nearest to the task.

Experts of unknown lesson have no distance: they come after all others, in the order of their mean errors on other
tasks (static), which also orders those at the same distance. If no lesson is known at all, this is the static choice.
"""

from dataclasses import dataclass

import numpy as np

from task2vec.distance import ALPHA
from task2vec.errors import UndefinedScoreError
from task2vec.select.evidence import DOMAIN, SYMMETRIC, TAXONOMIC, Answer, Evidence, Question
from task2vec.select.strategies.effects import find_errors, take_apart
from task2vec.select.strategies.static import fit_static

ALPHAS = tuple(round(0.05 * step, 2) for step in range(21))


@dataclass(frozen=True, eq=False)
class ByLesson:
    """Ranks by the distance from the lesson, less what is granted to each expert for its lesson's complexity."""

    kind: str
    grants: np.ndarray
    static: np.ndarray

    def rank(self, question: Question) -> Answer:
        """Nearest lesson first."""
        distances = question.to_lessons.get(self.kind)
        if distances is None:
            distances = np.full(len(self.static), np.nan)
        return Answer(distances - self.grants, fallback=self.static)


@dataclass(frozen=True)
class Nearest:
    """The expert whose lesson is nearest by one kind of distance.

    Attributes:
        kind: of the distance: "symmetric", "domain" or "taxonomic".
    """

    kind: str = SYMMETRIC
    looks_at_images: bool = False

    @property
    def name(self) -> str:
        """As tables show it."""
        return self.kind

    def fit(self, evidence: Evidence) -> ByLesson:
        """Learns the order of those that distances do not tell apart."""
        check_distances(evidence, self.kind)
        return ByLesson(self.kind, np.zeros(len(evidence.experts)), fit_static(evidence))


@dataclass(frozen=True)
class NearestAsymmetric:
    """The paper's choice: d_sym(lesson, task) - alpha d_sym(lesson, trivial), so that complex lessons come nearer.

    Attributes:
        alpha: how much complexity counts; None chooses it on the known tasks, among `ALPHAS`: the one whose choices
            have the smallest mean error there, and of equals the nearest to the paper's 0.15.
    """

    alpha: float | None = ALPHA
    looks_at_images: bool = False

    @property
    def name(self) -> str:
        """As tables show it."""
        return "asymmetric" if self.alpha is not None else "asymmetric fitted"

    def fit(self, evidence: Evidence) -> ByLesson:
        """Learns alpha if that is asked for, and the order of those that distances do not tell apart."""
        check_distances(evidence, SYMMETRIC)
        if evidence.simplicity is None:
            raise UndefinedScoreError(
                "nothing says how far lessons are from the trivial task, so they cannot be told simple or complex. Use "
                "embeddings, which know it, or the symmetric distance."
            )
        alpha = self._choose_alpha(evidence) if self.alpha is None else self.alpha
        return ByLesson(SYMMETRIC, alpha * evidence.simplicity, fit_static(evidence))

    def _choose_alpha(self, evidence: Evidence) -> float:
        """The best for the known tasks: distances know nothing of errors, so none has to be left out for that."""
        errors = find_errors(evidence)
        effects = take_apart(errors)
        assert evidence.simplicity is not None
        known = np.isfinite(errors) & np.isfinite(evidence.to_lessons[SYMMETRIC] - evidence.simplicity)
        rows = np.flatnonzero(known.any(1))
        if not len(rows):  # no known task has a candidate of known lesson: nothing speaks against the paper's
            return ALPHA
        losses = []
        for alpha in ALPHAS:
            badness = np.where(known, evidence.to_lessons[SYMMETRIC] - alpha * evidence.simplicity, np.inf)
            losses.append(float(np.mean((errors - effects.tasks[:, None])[rows, badness[rows].argmin(1)])))
        near = np.flatnonzero(np.array(losses) <= min(losses) + 1e-12)
        return min((ALPHAS[place] for place in near), key=lambda alpha: abs(alpha - ALPHA))


def check_distances(evidence: Evidence, kind: str) -> None:
    """Refuses evidence that knows no distance between tasks and lessons."""
    if kind not in evidence.to_lessons or not np.isfinite(evidence.to_lessons[kind]).any():
        known = ", ".join(evidence.to_lessons) or "none"
        told = {DOMAIN: "domain embeddings", TAXONOMIC: "a taxonomy of their classes"}.get(kind, "embeddings")
        raise UndefinedScoreError(
            f"no {kind} distance between a task and what an expert was taught is known (known kinds: {known}), so no "
            f"expert is near. Give the evidence {told} of tasks and lessons, or leave this strategy out."
        )
