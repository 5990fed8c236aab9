"""Evidence with all that a recommendation needs beside it: embeddings, and how to get the experts."""

from task2vec.select.knowledge.known import Knowledge, pick

__all__ = ["Knowledge", "pick"]
