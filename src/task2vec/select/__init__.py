"""Model selection: which network suits a task.

Names are imported on first use: strategies need no torch, scores of features do. The functions `recommend`, `evaluate`
and `propose` have the names of their files: import them from there, the first two also from `task2vec`.
"""
# ruff: noqa: F401

from typing import TYPE_CHECKING

from task2vec.lazy import lazy_names

if TYPE_CHECKING:
    from task2vec.select.candidates import Candidate, read_models
    from task2vec.select.evaluate import STRATEGIES, Evaluation, ProposalEvaluation
    from task2vec.select.model_space import fit_model_space
    from task2vec.select.recommendation import Recommendation
    from task2vec.select.scores import SCORES, SOURCE_SCORES, score_features
    from task2vec.select.strategies import Prediction, Strategy

__getattr__ = lazy_names(__name__)
