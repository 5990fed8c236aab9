"""Linear classifiers on pooled features: the head of a task, and the heads of many training splits at once."""

from task2vec.head.fit import (
    Head,
    TrainingSplits,
    fit_head,
    fit_heads,
    fit_split_heads,
    image_weights,
    make_training_splits,
    to_onehot,
    train_split_heads,
)

__all__ = [
    "Head",
    "TrainingSplits",
    "fit_head",
    "fit_heads",
    "fit_split_heads",
    "image_weights",
    "make_training_splits",
    "to_onehot",
    "train_split_heads",
]
