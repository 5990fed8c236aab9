"""Which expert each strategy takes for each task, when the errors of all other tasks are known."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from task2vec.experts.metatask import MetaTask
from task2vec.select.evaluate import evaluate
from task2vec.select.strategies import STRATEGIES


@dataclass(frozen=True, eq=False)
class Chosen:
    """What is chosen for the tasks of some evidence.

    Attributes:
        means: (tasks, experts) errors of the candidates; NaN for the others.
        optimum: (tasks) number of the best candidate, which is biased low: noise is chosen with it.
        generic: number of the generic expert, if there is one.
        by: (tasks) number of the expert that each strategy takes, by the strategy's name.
    """

    means: np.ndarray
    optimum: np.ndarray
    generic: int | None
    by: dict[str, np.ndarray]


def choose_experts(evidence: MetaTask, names: Sequence[str]) -> Chosen:
    """The first of every strategy's ranking for each task, fitted on the other tasks alone.

    Strategies that the evidence has no means for are left out.
    """
    found = evaluate(evidence, [name for name in names if name in STRATEGIES], resamples=1)
    names = [task.name for task in evidence.tasks]
    rows = [names.index(name) for name in found.tasks]
    assert rows == list(range(len(evidence.tasks))), "a task without two candidates has no place in a figure"
    means = np.where(evidence.is_candidate, evidence.mean, np.nan)
    by = {name: found.outcomes[name].chosen for name in names if name in found.outcomes}
    return Chosen(means, np.nanargmin(means, axis=1), evidence.generic, by)
