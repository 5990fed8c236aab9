"""Which network suits a task: transferability scores of features."""

from task2vec.select.scores.table import SCORES, Score
from task2vec.select.scoring import FeatureScores, score_features

__all__ = ["SCORES", "FeatureScores", "Score", "score_features"]
