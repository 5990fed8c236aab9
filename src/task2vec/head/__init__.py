"""Pooled features become a linear classifier."""

from task2vec.head.linear import Head, fit_head, fit_heads, image_weights
from task2vec.head.parts import PartHeads, Parts, divide, fit_parts

__all__ = ["Head", "PartHeads", "Parts", "divide", "fit_head", "fit_heads", "fit_parts", "image_weights"]
