"""Linear heads by scipy, one after the other."""

import numpy as np
import scipy.optimize
import torch
from torch.nn import functional

# The head by its definition: the stated objective handed to scipy, one problem at a time, no tricks.


def weights_of(onehot: np.ndarray, *, is_multilabel: bool, balance: bool) -> np.ndarray:
    """(n,) image weights: one over the size of the image's class, or all the same; they sum to one."""
    count = len(onehot)
    if is_multilabel or not balance:
        return np.full(count, 1 / count)
    sizes = onehot.sum(0)
    return np.array([1 / sizes[row.argmax()] for row in onehot]) / len(sizes)


def penalty_of(l2: float, onehot: np.ndarray, *, is_multilabel: bool) -> float:
    """The setting divided by the number of classes; half of that of two classes for attributes."""
    return l2 / (4 if is_multilabel else onehot.shape[1])


def spread(x: np.ndarray, omega: np.ndarray) -> float:
    """s^2: the weighted mean squared distance of the features from their weighted mean."""
    mean = omega @ x
    return float(omega @ np.square(x - mean).sum(1))


def losses(weight, bias, x, onehot, *, is_multilabel: bool):
    """(n,) cross-entropy of every image."""
    logits = x @ weight.T + bias
    if is_multilabel:
        return functional.binary_cross_entropy_with_logits(logits, onehot, reduction="none").sum(1)
    return functional.cross_entropy(logits, onehot, reduction="none")


def objective(weight, bias, x, onehot, omega, penalty: float, *, is_multilabel: bool):
    """sum_i omega_i loss_i + penalty / 2 |W|^2."""
    return losses(weight, bias, x, onehot, is_multilabel=is_multilabel) @ omega + penalty / 2 * weight.square().sum()


def fit(x: np.ndarray, onehot: np.ndarray, omega: np.ndarray, penalty: float, *, is_multilabel: bool):
    """Weight (c, d) and bias (c,) of the minimum, as float64 tensors."""
    x, onehot, omega = (torch.from_numpy(np.asarray(a, dtype=np.float64)) for a in (x, onehot, omega))
    classes, features = onehot.shape[1], x.shape[1]

    def value_and_gradient(flat):
        point = torch.from_numpy(flat).requires_grad_()
        weight, bias = point[: classes * features].view(classes, features), point[classes * features :]
        value = objective(weight, bias, x, onehot, omega, penalty, is_multilabel=is_multilabel)
        return value.item(), torch.autograd.grad(value, point)[0].numpy()

    options = {"maxiter": 20000, "maxfun": 50000, "ftol": 1e-15, "gtol": 1e-9, "maxcor": 30}
    found = scipy.optimize.minimize(
        value_and_gradient, np.zeros(classes * (features + 1)), jac=True, method="L-BFGS-B", options=options
    )
    solution = torch.from_numpy(found.x)
    return solution[: classes * features].view(classes, features), solution[classes * features :]


def balanced_error(wrong: np.ndarray, onehot: np.ndarray, *, is_multilabel: bool) -> float:
    """The mean over classes of what is `wrong` of their images; over attributes, and those with and without them."""
    if is_multilabel:
        return float(np.mean([wrong[onehot[:, c] == v, c].mean() for c in range(onehot.shape[1]) for v in (0, 1)]))
    return float(np.mean([wrong[column == 1].mean() for column in onehot.T]))


# Heads on parts of the images by a plain loop: each part cut out and solved as if there were nothing else.


def standardise(x: np.ndarray, onehot: np.ndarray, *, is_multilabel: bool):
    """Balanced weights, and the weighted mean and scale of the features."""
    omega = weights_of(onehot, is_multilabel=is_multilabel, balance=True)
    return omega, omega @ x, spread(x, omega) ** 0.5


def cross_validate(x: np.ndarray, onehot: np.ndarray, grid, *, folds: int, is_multilabel: bool):
    """Held-out loss and logits of every penalty, fold by fold; folds go round-robin in the order of the classes."""
    omega, mean, unit = standardise(x, onehot, is_multilabel=is_multilabel)
    x = (x - mean) / unit
    order = np.arange(len(x)) if is_multilabel else np.argsort(onehot.argmax(1), kind="stable")
    fold = np.empty(len(x), dtype=int)
    fold[order] = np.arange(len(x)) % folds
    found = []
    for l2 in grid:
        loss, logits = 0.0, np.zeros(onehot.shape)
        for k in range(folds):
            train, test = fold != k, fold == k
            own = omega[train] / omega[train].sum()
            weight, bias = fit(x[train], onehot[train], own, l2, is_multilabel=is_multilabel)
            held = torch.from_numpy(x[test]), torch.from_numpy(onehot[test]).double()
            loss += float(losses(weight, bias, *held, is_multilabel=is_multilabel) @ torch.from_numpy(omega[test]))
            logits[test] = (held[0] @ weight.T + bias).numpy()
        found.append((loss, logits))
    return found


def fit_part(x: np.ndarray, onehot: np.ndarray, mask: np.ndarray, grid, *, folds: int, is_multilabel: bool):
    """The penalty that cross-validation within the part prefers, and the logits of all images."""
    own, labels = x[mask], onehot[mask]
    tried = cross_validate(own, labels, grid, folds=folds, is_multilabel=is_multilabel)
    best = grid[int(np.argmin([loss for loss, _ in tried]))]
    omega, mean, unit = standardise(own, labels, is_multilabel=is_multilabel)
    weight, bias = fit((own - mean) / unit, labels, omega, best, is_multilabel=is_multilabel)
    return best, torch.from_numpy((x - mean) / unit) @ weight.T + bias
