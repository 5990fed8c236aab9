"""Learning curves the slow way: joint Gaussians of everything, written cell by cell, and conditioned."""

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
    covariance = np.empty((len(steps), len(steps)))
    for i, one in enumerate(steps):
        for j, other in enumerate(steps):
            covariance[i, j] = spread[0, 0] + spread[0, 1] * (one + other) + spread[1, 1] * one * other
            covariance[i, j] += (rest + (noise[i] if i < len(given) else 0)) * (i == j)
    found, left = condition(mean[0] + mean[1] * steps, covariance, list(range(len(given))), values)
    return found, np.diag(left)


def predict_shift(points, values, distances, width, variances, network):
    """Mean and variance of the shift of a new task, number -1, given those of (task, network) points."""
    constant, by_network, near, own, rest = variances
    everything = [*points, (-1, network)]
    covariance = np.empty((len(everything), len(everything)))
    for i, (task, net) in enumerate(everything):
        for j, (other, other_net) in enumerate(everything):
            covariance[i, j] = constant + near * np.exp(-distances[task, other] / width)
            covariance[i, j] += by_network * (net == other_net) + own * (task == other) + rest * (i == j)
    found, left = condition(np.zeros(len(everything)), covariance, list(range(len(points))), values)
    return float(found[0]), float(left[0, 0])
