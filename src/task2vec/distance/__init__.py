"""Pairs of embeddings become numbers."""

from task2vec.distance.symmetric import check_comparable, symmetric

__all__ = ["check_comparable", "symmetric"]
