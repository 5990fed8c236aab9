"""Heads on parts of the images by a plain loop: each part cut out and solved as if there were nothing else."""

import numpy as np
import torch

from tests.oracles import slow_head


def fit_part(x: np.ndarray, onehot: np.ndarray, mask: np.ndarray, grid, *, folds: int, is_multilabel: bool):
    """The penalty that cross-validation within the part prefers, and the logits of all images.

    Folds go round-robin through the images of the part, in the order of their classes.
    """
    own, labels = x[mask], onehot[mask]
    omega = slow_head.weights_of(labels, is_multilabel=is_multilabel, balance=True)
    mean, unit = omega @ own, slow_head.spread(own, omega) ** 0.5
    own, every = (own - mean) / unit, (x - mean) / unit
    order = np.arange(len(own)) if is_multilabel else np.argsort(labels.argmax(1), kind="stable")
    fold = np.empty(len(own), dtype=int)
    fold[order] = np.arange(len(own)) % folds
    losses = []
    for l2 in grid:
        loss = 0.0
        for k in range(folds):
            train, held = fold != k, fold == k
            weights = omega[train] / omega[train].sum()
            weight, bias = slow_head.fit(own[train], labels[train], weights, l2, is_multilabel=is_multilabel)
            images = torch.from_numpy(own[held]), torch.from_numpy(labels[held]).double()
            missed = slow_head.losses(weight, bias, *images, is_multilabel=is_multilabel)
            loss += float(missed @ torch.from_numpy(omega[held]))
        losses.append(loss)
    best = grid[int(np.argmin(losses))]
    weight, bias = slow_head.fit(own, labels, omega, best, is_multilabel=is_multilabel)
    return best, torch.from_numpy(every) @ weight.T + bias
