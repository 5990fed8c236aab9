"""Choosing without a look at the task: anybody, the generic expert, the best on average, the largest."""

from dataclasses import dataclass

import numpy as np

from task2vec.errors import UndefinedScoreError
from task2vec.select.evidence import Answer, Evidence, Question
from task2vec.select.strategies.effects import find_comparable, find_errors, take_apart


@dataclass(frozen=True, eq=False)
class Unmoved:
    """A ranking that is the same for all tasks."""

    answer: Answer

    def rank(self, question: Question) -> Answer:
        """The ranking."""
        del question
        return self.answer


@dataclass(frozen=True)
class Chance:
    """Any candidate: all are equal, so that what is measured is the expectation and not a draw."""

    name: str = "chance"
    looks_at_images: bool = False

    def fit(self, evidence: Evidence) -> Unmoved:
        """Learns nothing."""
        return Unmoved(Answer(np.zeros(len(evidence.experts))))


@dataclass(frozen=True)
class Generic:
    """The generic expert; the others in the order of their mean errors, where it may not be chosen."""

    name: str = "generic"
    looks_at_images: bool = False

    def fit(self, evidence: Evidence) -> Unmoved:
        """Learns who is generic."""
        if evidence.generic is None:
            raise UndefinedScoreError(
                f"none of the {len(evidence.experts)} experts is the generic one, so it cannot be chosen. Name it in "
                "the evidence, or leave this strategy out."
            )
        badness = np.ones(len(evidence.experts))
        badness[evidence.generic] = 0
        return Unmoved(Answer(badness, fallback=fit_static(evidence)))


@dataclass(frozen=True)
class Static:
    """The expert that is best on average over the known tasks: the prior that everything else has to beat.

    Errors are compared with how hard each task is (see `effects`), so that missing cells favour nobody, and cells whose
    expert has seen the task do not count. Of experts that nothing links with the others nothing is said.
    """

    name: str = "static"
    looks_at_images: bool = False

    def fit(self, evidence: Evidence) -> Unmoved:
        """Learns how good each expert is."""
        effects = take_apart(errors := find_errors(evidence))
        experts = np.where(find_comparable(np.isfinite(errors)), effects.experts, np.nan)
        return Unmoved(Answer(experts, errors=np.clip(effects.level + experts, 0, 1)))


@dataclass(frozen=True)
class Size:
    """The expert with the most weights; equals in the order of their mean errors."""

    name: str = "size"
    looks_at_images: bool = False

    def fit(self, evidence: Evidence) -> Unmoved:
        """Learns how large each expert is."""
        if evidence.parameters is None or not np.isfinite(evidence.parameters).any():
            raise UndefinedScoreError(
                "nothing says how many weights the experts have, so the largest is not known. Give `parameters`, or "
                "leave this strategy out."
            )
        return Unmoved(Answer(-evidence.parameters, fallback=fit_static(evidence)))


def fit_static(evidence: Evidence) -> np.ndarray:
    """(E) effects of the experts, to order those that a strategy cannot tell apart; all equal if no error is known."""
    try:
        return Static().fit(evidence).answer.badness
    except UndefinedScoreError:
        return np.zeros(len(evidence.experts))
