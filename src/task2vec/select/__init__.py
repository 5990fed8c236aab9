"""Which network suits a task: what is known of others becomes a ranking, and a recommendation.

Names are resolved on first use: ranking by what is known needs no torch, scores of features do.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from task2vec.select.scores.scoring import FeatureScores, score_features
    from task2vec.select.scores.table import SCORES, Score

__all__ = ["SCORES", "FeatureScores", "Score", "score_features"]

_FILES = {
    "FeatureScores": "scores.scoring",
    "SCORES": "scores.table",
    "Score": "scores.table",
    "score_features": "scores.scoring",
}


def __getattr__(name: str) -> object:
    """The public name, from its file."""
    if name not in _FILES:
        raise AttributeError(f"module 'task2vec.select' has no attribute {name!r}")
    return getattr(import_module(f"task2vec.select.{_FILES[name]}"), name)
