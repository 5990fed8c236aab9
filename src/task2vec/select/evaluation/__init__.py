"""How well strategies choose: tasks are asked about as if their errors were not known."""

from task2vec.select.evaluation.evaluating import Evaluation, Leave, Outcome, evaluate

__all__ = ["Evaluation", "Leave", "Outcome", "evaluate"]
