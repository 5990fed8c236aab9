"""The combined strategy the slow way: one covariance over all cells of all tasks and models, and one dense solve."""

import numpy as np
from scipy.linalg import block_diag

LEVEL, CLASSES, SLOPES = 4.0, 0.1, 1.0


def cover(cells, scales, new):
    """Covariance of the true errors of all pairs, tasks by models; `new` is a further task, the last row."""
    distances = np.block([[cells.distances, new["distances"][:, None]], [new["distances"][None], np.zeros((1, 1))]])
    classes = np.append(cells.classes, new["classes"])
    same = np.block([[cells.is_same, new["is_same"][:, None]], [new["is_same"][None], np.ones((1, 1))]])
    drifts = np.concatenate([cells.drifts, new["drifts"][:, None]], axis=1)
    models, tasks, _ = drifts.shape
    near = np.exp(-distances / scales.width) + new.get("lift", 0) * np.eye(tasks)
    hard = LEVEL + CLASSES * np.outer(classes, classes) + scales.near * near
    hard += scales.own * np.eye(tasks) + scales.dataset * same
    rows = drifts.swapaxes(0, 1).reshape(tasks * models, -1)
    whole = np.kron(hard, np.ones((models, models))) + SLOPES * rows @ rows.T
    whole += np.kron(scales.good + scales.suit * near, np.eye(models))
    return [(task, model) for task in range(tasks) for model in range(models)], whole


def solve(cells, scales, new, told=None):
    """Known pairs with their values and noise, and the mean and covariance of the new task's errors: one solve.

    `told` has models, their values on the new task and the covariance of these around the true ones. The rest of a pair
    belongs to its true error, so it is the same in what was measured and in what is asked.
    """
    told = told or {"models": [], "values": [], "noise": np.zeros((0, 0))}
    pairs, whole = cover(cells, scales, new)
    last = len(cells.noise)
    whole = whole + scales.rest * np.eye(len(pairs))
    known = [i for i, (task, model) in enumerate(pairs) if task < last and cells.known[task, model]]
    noise = [cells.noise[t] + scales.seen * cells.seen[t, e] for t, e in (pairs[i] for i in known)]
    values = np.append([cells.values[pairs[i]] for i in known], told["values"])
    known += [pairs.index((last, model)) for model in told["models"]]
    inner = whole[np.ix_(known, known)] + block_diag(np.diag(noise), told["noise"])
    asked = [i for i, (task, _) in enumerate(pairs) if task == last]
    crossed = whole[np.ix_(asked, known)]
    mean = crossed @ np.linalg.solve(inner, values)
    return mean, whole[np.ix_(asked, asked)] - crossed @ np.linalg.solve(inner, crossed.T), inner, values


def predict(cells, scales, new):
    """Mean and covariance of the new task's errors, and minus the log likelihood without its constant."""
    mean, spread, inner, values = solve(cells, scales, new)
    return mean, spread, 0.5 * (np.linalg.slogdet(inner)[1] + values @ np.linalg.solve(inner, values))


def miss(cells, scales, prior):
    """Excess of the last model's squared leave-one-out residuals over what the model grants them, in the mean over
    datasets, of which `prior` more have none."""
    tasks = len(cells.noise)
    new = {"distances": np.ones(tasks), "is_same": np.zeros(tasks), "classes": 0.0}
    new["drifts"] = np.zeros_like(cells.drifts[:, 0])
    _, _, inner, values = solve(cells, scales, new)
    inverse = np.linalg.inv(inner)
    rows, columns = np.nonzero(cells.known)  # pairs go task by task
    own = columns == cells.known.shape[1] - 1
    granted = 1 / np.diag(inverse)[own]
    excess = ((inverse @ values)[own] * granted) ** 2 - granted
    groups = [tuple(cells.is_same[row]) for row in rows[own]]
    means = [
        np.mean([one for one, other in zip(excess, groups, strict=True) if other == group]) for group in set(groups)
    ]
    return sum(means) / (len(means) + prior)
