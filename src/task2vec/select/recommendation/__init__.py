"""Which expert to start from: a task meets what is known of others."""

from task2vec.select.recommendation.result import Recommendation, Recommended

__all__ = ["Recommendation", "Recommended"]
