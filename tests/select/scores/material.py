"""Small tasks that every score is tried on."""

import numpy as np
import torch


def draw(images=40, width=6, classes=3, *, apart=1.0, seed=0):
    """Normal features whose classes have means `apart` from each other, and the labels; shifted, unlike columns."""
    rng = np.random.default_rng(seed)
    y = np.arange(images) % classes
    means = rng.normal(size=(classes, width)) * apart / np.sqrt(2)
    x = (means[y] + rng.normal(size=(images, width))) * np.exp(rng.normal(size=width) / 4) + 0.5
    return x, y


def uneven():
    """Classes of 1, 3, 9 and 20 images."""
    x, _ = draw(33, 7, 4, seed=5)
    return x, np.repeat([2, 0, 3, 1], [1, 3, 9, 20])


def with_dead_columns():
    """Two features that never vary, one of them large."""
    x, y = draw(40, 6, 3, seed=2)
    x[:, 1], x[:, 4] = 0, 1e3 / 3
    return x, y


def with_duplicates():
    """Every image twice, and one of them under two labels."""
    x, y = draw(20, 6, 3, seed=3)
    x, y = np.concatenate([x, x]), np.concatenate([y, y])
    y[3], y[23] = 0, 1
    return x, y


CASES = {
    "tall": lambda: draw(40, 6, 3),
    "wide": lambda: draw(24, 60, 4, seed=1),
    "two classes": lambda: draw(30, 4, 2, seed=4),
    "uneven": uneven,
    "dead columns": with_dead_columns,
    "duplicates": with_duplicates,
    "a class missing": lambda: (draw()[0], draw()[1] * 2 + 1),
}


def tensors(x, y):
    return torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(np.ascontiguousarray(y))


def draw_probabilities(images=40, classes=3, sources=7, *, sure=2.0, seed=0):
    """Softmax outputs that know something about the labels, and the labels."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, images)
    y[:classes] = np.arange(classes)
    logits = rng.normal(size=(images, sources)) + sure * rng.normal(size=(classes, sources))[y]
    theta = np.exp(logits)
    return theta / theta.sum(1, keepdims=True), y
