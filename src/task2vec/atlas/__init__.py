"""Embeddings and distances become pictures."""

from task2vec.atlas.matrix import cluster_order, draw_distance_matrix

__all__ = ["cluster_order", "draw_distance_matrix"]
