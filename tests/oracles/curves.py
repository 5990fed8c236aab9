"""Learning curves the slow way: joint Gaussians of everything, written down as a whole, and conditioned."""

import numpy as np


def condition(mean, covariance, known, values):
    """Mean and covariance of the other coordinates of a Gaussian, given some of them."""
    others = [place for place in range(len(mean)) if place not in known]
    gain = covariance[np.ix_(others, known)] @ np.linalg.inv(covariance[np.ix_(known, known)])
    left = np.asarray(values) - mean[known]
    return mean[others] + gain @ left, covariance[np.ix_(others, others)] - gain @ covariance[np.ix_(known, others)]


def predict_curve(mean, spread, rest, given, values, noise, wanted):
    """Means and variances at the sizes `wanted` of a line with residuals, given noisy values at other sizes."""
    steps = np.log(np.array([*given, *wanted]) / 5)
    basis = np.stack([np.ones(len(steps)), steps], axis=1)
    covariance = basis @ spread @ basis.T + np.diag(rest + np.append(noise, np.zeros(len(wanted))))
    found, left = condition(basis @ mean, covariance, list(range(len(given))), values)
    return found, np.diag(left)


def predict_shift(points, values, distances, width, variances, network):
    """Mean and variance of the shift of a new task, number -1, given those of (task, network) points."""
    constant, by_network, near, own, rest = variances
    tasks, networks = map(np.array, zip(*points, (-1, network), strict=True))
    covariance = constant + near * np.exp(-distances[np.ix_(tasks, tasks)] / width) + rest * np.eye(len(tasks))
    covariance += by_network * np.equal.outer(networks, networks) + own * np.equal.outer(tasks, tasks)
    found, left = condition(np.zeros(len(tasks)), covariance, list(range(len(points))), values)
    return float(found[0]), float(left[0, 0])
