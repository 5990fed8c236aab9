"""Features around class centres, with their labels."""

import numpy as np
import torch

KINDS = {"2 classes": (2, False), "4 classes": (4, False), "3 attributes": (3, True)}


def problem(kind, count=60, features=8, *, seed=0, noise=1.0):
    """Features far from the origin and of very different scales, targets, both as tensors, and one-hot targets."""
    classes, is_multilabel = KINDS[kind]
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, features))
    if is_multilabel:
        targets = onehot = (rng.random((count, classes)) < 0.35).astype(np.int64)
    else:  # of unequal size
        targets = rng.permutation(np.arange(count) % (classes * (classes + 1) // 2))
        targets = np.repeat(np.arange(classes), np.arange(1, classes + 1))[targets]
        onehot = np.eye(classes, dtype=np.int64)[targets]
    x = onehot @ centres + noise * rng.normal(size=(count, features))
    return torch.from_numpy(x * np.geomspace(0.3, 3, features) + 5), torch.from_numpy(targets), onehot
