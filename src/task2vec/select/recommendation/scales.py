"""What a recommendation is weighed on: what is known of a case, and what follows from it in numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from task2vec.embedding import Embedding
from task2vec.select.evidence import Answer, Question
from task2vec.select.knowledge import Knowledge
from task2vec.select.recommendation.confirming import Measured


@dataclass(frozen=True, eq=False)
class Weighed:
    """What a recommendation is made of; see `Case`."""

    embedding: Embedding
    knowledge: Knowledge
    is_allowed: np.ndarray
    measured: Mapping[str, Measured] = field(default_factory=dict)
    seconds: Mapping[str, float | None] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Scales:
    """What both sides weigh: predictions and the static choice, moved by what was measured.

    Attributes:
        question: what is known of the task.
        answer: of the strategy.
        static: number of the static choice among those that can be loaded, None if no error of any is known.
        is_sure: whether the evidence beats that; where it does not, the static choice comes first.
        errors: (E) predicted errors, NaN where there are none.
        low: lower ends of their intervals.
        high: upper ends.
        shift: by which all were moved.
        knows_measured: whether errors, intervals and chances follow from what was measured and its noise, or were only
            moved by it.
        order: numbers of those that can be loaded, the best first.
    """

    question: Question
    answer: Answer
    static: int | None
    is_sure: bool
    errors: np.ndarray
    low: np.ndarray
    high: np.ndarray
    shift: float
    knows_measured: bool
    order: np.ndarray
