"""The model of published errors as one dense Gaussian: every pair of values has its covariance written out."""

import numpy as np

from task2vec.select.zoo import WAYS, Zoo, find_way


def _covary(zoo: Zoo, one: tuple, other: tuple) -> float:
    """Covariance of the qualities of (model number, way, table or None) and another."""
    variances, x = zoo.variances, zoo.covariates
    is_same_way, is_same_model = one[1] == other[1], one[0] == other[0]
    found = float(x[one[0]] @ x[other[0]]) * (variances.slope + variances.way_slope * is_same_way)
    found += is_same_model * (variances.model + variances.way * is_same_way)
    return found + is_same_model * variances.table * (one[2] is not None and one[2] == other[2])


def dense_cells(zoo: Zoo) -> tuple[np.ndarray, np.ndarray, list[tuple]]:
    """Values of all cells, their covariance, and (model number, way, table) of each."""
    keys = [(zoo.numbers[cell.model], find_way(cell.protocol), cell.table) for cell in zoo.cells]
    usual = float(np.median([*zoo.variances.noise.values()]))
    covariance = np.array([[_covary(zoo, one, other) for other in keys] for one in keys])
    for row, one in enumerate(zoo.cells):
        covariance[row, row] += zoo.variances.noise.get(one.table, usual)
        for column, other in enumerate(zoo.cells):
            covariance[row, column] += 4.0 * ((one.table, one.dataset) == (other.table, other.dataset))
    return np.log([(cell.error + 0.03) / (1.03 - cell.error) for cell in zoo.cells]), covariance, keys


def predict_densely(zoo: Zoo, names: list[str], way: str, table: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the qualities of models for a way, or in a table."""
    assert way in WAYS
    values, covariance, keys = dense_cells(zoo)
    wanted = [(zoo.numbers[name], way, table) for name in names]
    cross = np.array([[_covary(zoo, one, other) for other in keys] for one in wanted])
    own = np.array([[_covary(zoo, one, other) for other in wanted] for one in wanted])
    gain = np.linalg.solve(covariance, cross.T).T
    return gain @ values, own - gain @ cross.T


def weigh_densely(zoo: Zoo) -> float:
    """Minus the log likelihood of the cells, without the constant."""
    values, covariance, _ = dense_cells(zoo)
    return 0.5 * float(values @ np.linalg.solve(covariance, values) + np.linalg.slogdet(covariance)[1])
