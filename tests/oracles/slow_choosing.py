"""Ways of choosing experts, written down as slowly and plainly as possible."""

import math

import numpy as np


def slow_effects(errors):
    """Least squares of error = task + expert over known cells, by the dense design; experts sum to zero."""
    cells = [(i, j) for i in range(errors.shape[0]) for j in range(errors.shape[1]) if not math.isnan(errors[i, j])]
    design = np.zeros((len(cells), sum(errors.shape)))
    for place, (i, j) in enumerate(cells):
        design[place, i] = design[place, errors.shape[0] + j] = 1
    found = np.linalg.lstsq(design, np.array([errors[cell] for cell in cells]), rcond=None)[0]
    tasks, experts = found[: errors.shape[0]], found[errors.shape[0] :]
    return tasks + experts.mean(), experts - experts.mean()


def slow_kernel(errors, distances, width):
    """(E) experts + weighted means of what is left on other tasks, weights exp(-distance / width)."""
    tasks, experts = slow_effects(errors)
    found = []
    for j in range(errors.shape[1]):
        above = below = 0.0
        for k in range(errors.shape[0]):
            if not math.isnan(errors[k, j]):
                weight = math.exp(-distances[k] / width)
                above += weight * (errors[k, j] - tasks[k] - experts[j])
                below += weight
        found.append(experts[j] + above / below)
    return np.array(found)


def slow_symmetric(a, b):
    """Cosine distance of a / (a + b) and b / (a + b)."""
    x, y = a / (a + b), b / (a + b)
    return 1 - (x @ y) / math.sqrt((x @ x) * (y @ y))


def slow_adjusted(errors, distances):
    """Weight of the distance in error = task + expert + weight distance, by the dense design; all lessons known."""
    cells = [(i, j) for i in range(errors.shape[0]) for j in range(errors.shape[1]) if not math.isnan(errors[i, j])]
    design = np.zeros((len(cells), sum(errors.shape) + 1))
    for place, (i, j) in enumerate(cells):
        design[place, i] = design[place, errors.shape[0] + j] = 1
        design[place, -1] = distances[i, j]
    found = np.linalg.lstsq(design, np.array([errors[cell] for cell in cells]), rcond=None)[0]
    return found[-1], found[errors.shape[0] : -1]


def slow_loss(log_tasks, log_models, log_trivials, errors, gamma, *, alpha, sharpness):
    """Cross-entropy of softmax(-gamma d_asym) and softmax(-sharpness (error - mean) / std), task by task."""
    losses = []
    for i, row in enumerate(errors):
        known = [j for j in range(len(row)) if not math.isnan(row[j])]
        values = np.array([row[j] for j in known])
        labels = np.exp(-sharpness * (values - values.mean()) / values.std())
        labels /= labels.sum()
        far = []
        for j in known:
            model = np.exp(log_models[j])
            near = slow_symmetric(model, np.exp(log_tasks[i]))
            far.append(near - alpha * slow_symmetric(model, np.exp(log_trivials[j])))
        shares = np.exp(-gamma * np.array(far))
        losses.append(-(labels * np.log(shares / shares.sum())).sum())
    return float(np.mean(losses))
