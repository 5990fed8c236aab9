"""Pooled features become a linear classifier."""

from task2vec.head.linear import Head, fit_head, fit_heads, image_weights

__all__ = ["Head", "fit_head", "fit_heads", "image_weights"]
