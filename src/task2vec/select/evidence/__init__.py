"""What is known when an expert is to be chosen, and where it comes from: a meta-task, a library, or tables."""

from task2vec.select.evidence.arrays import DOMAIN, SYMMETRIC, TAXONOMIC, Answer, Evidence, Question, tell_apart

__all__ = ["DOMAIN", "SYMMETRIC", "TAXONOMIC", "Answer", "Evidence", "Question", "tell_apart"]
