"""Ways of choosing models, and scores of features, written down as plainly as possible."""

import itertools
import math
from collections import Counter

import numpy as np
import scipy.optimize
import scipy.stats
from sklearn.covariance import LedoitWolf

from tests.oracles.distances import symmetric as slow_symmetric

# Ways of choosing experts, written down as slowly and plainly as possible.


def least_squares(errors, *further):
    """Task, expert and further columns of a dense design over the known cells, by least squares."""
    cells = [(i, j) for i in range(errors.shape[0]) for j in range(errors.shape[1]) if not math.isnan(errors[i, j])]
    design = np.zeros((len(cells), sum(errors.shape) + len(further)))
    for place, (i, j) in enumerate(cells):
        design[place, i] = design[place, errors.shape[0] + j] = 1
        design[place, sum(errors.shape) :] = [column[i, j] for column in further]
    found = np.linalg.lstsq(design, np.array([errors[cell] for cell in cells]), rcond=None)[0]
    return np.split(found, np.cumsum(errors.shape))


def slow_effects(errors):
    """Least squares of error = task + expert; experts sum to zero."""
    tasks, experts, _ = least_squares(errors)
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


def slow_adjusted(errors, distances):
    """Weight of the distance in error = task + expert + weight distance, and the experts; all lessons known."""
    _, experts, (weight,) = least_squares(errors, distances)
    return weight, experts


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


# Every transferability score by its definition in float64 numpy, one image, class or pair at a time.


def knn(x, y, k=1):
    credit = []
    for i in range(len(x)):
        others = [j for j in range(len(x)) if j != i]
        far = {j: math.dist(x[i], x[j]) for j in others}
        limit = sorted(far.values())[min(k, len(others)) - 1]
        votes = Counter(y[j] for j in others if far[j] <= limit + 1e-9)
        winners = [label for label, count in votes.items() if count == max(votes.values())]
        credit.append((y[i] in winners) / len(winners))
    return np.mean(credit)


def logme(x, y):
    """The marginal density of y itself, N(0, I / beta + F F^T / alpha), climbed from the best of many places."""
    n = len(x)

    def loss(logs, column):
        alpha, beta = np.exp(logs)
        covariance = np.eye(n) / beta + gram / alpha
        _, volume = np.linalg.slogdet(covariance)
        return (n * math.log(2 * math.pi) + volume + column @ np.linalg.solve(covariance, column)) / 2

    gram, found = x @ x.T, []
    for label in np.unique(y):
        column = (y == label).astype(float)
        start = min(itertools.product(range(-6, 13, 2), range(-2, 9, 2)), key=lambda logs: loss(logs, column))
        options = {"xatol": 1e-7, "fatol": 1e-11, "maxiter": 2000}
        climbed = scipy.optimize.minimize(
            loss, start, args=(column,), method="Nelder-Mead", bounds=[(-25, 25)] * 2, options=options
        )
        found.append(-climbed.fun / n)
    return np.mean(found)


def leep(theta, y):
    n, s = theta.shape
    joint = {label: [sum(theta[i, z] for i in range(n) if y[i] == label) / n for z in range(s)] for label in set(y)}
    marginal = [sum(theta[i, z] for i in range(n)) / n for z in range(s)]
    logs = [
        math.log(sum(joint[y[i]][z] / marginal[z] * theta[i, z] for z in range(s) if marginal[z])) for i in range(n)
    ]
    return np.mean(logs)


def between_covariance(x, y):
    means = {label: x[y == label].mean(0) for label in np.unique(y)}
    return np.cov(np.stack([means[label] for label in y]), rowvar=False, ddof=0).reshape(x.shape[1], -1)


def h_score_shrunk(x, y):
    fitted = LedoitWolf().fit(x)
    return np.trace(np.linalg.inv(fitted.covariance_) @ ((1 - fitted.shrinkage_) * between_covariance(x, y)))
