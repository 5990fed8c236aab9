"""Pooled features become a linear classifier."""

from task2vec.head import TrainingSplits, fit_split_heads, make_training_splits
from task2vec.head.fit import Head, fit_head, fit_heads, image_weights
from task2vec.head.parts import PartHeads

__all__ = ["Head", "PartHeads", "Parts", "divide", "fit_head", "fit_heads", "fit_parts", "image_weights"]
