"""Temporary: replaced by task2vec.distance.symmetric_to_rows."""

import numpy as np

from task2vec.distance import symmetric_from_logs
from task2vec.distance.distances import BELOW_ONE

_ROWS, _FILTERS = 8, 2048
_SMALLEST_SQUARES, _SMALLEST_DISTANCE = 1e-25, 1e-4


def symmetric_to_rows(query: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The symmetric distance of `query` from every one of `rows`, within 1e-6; exactly 0 from its equal.

    Example:
        >>> symmetric_to_rows(np.float32([1, 2]), np.float32([[2, 1], [1, 2]])).round(6)
        array([0.2, 0. ])
    """
    sums, counted = _sum_dead(query, rows)
    sizes = np.abs(query)
    # Divided by infinity, a filter that is dead in the query is zero in p and q, and adds nothing here.
    below = np.where(query < 0, np.inf, sizes)
    room = np.empty((3, min(_ROWS, len(rows)), len(query)), dtype=np.float32)
    for at in range(0, len(rows), _ROWS):
        some = rows[at : at + _ROWS]
        p, q, share = room[:, : len(some)]
        np.abs(some, out=q)
        np.add(below, q, out=share)
        np.reciprocal(share, out=share)
        q *= share
        np.multiply(sizes, share, out=p)
        sums[:, at : at + _ROWS] += _sum(p, q)
    return _finish(query, rows, sums, counted)


def _sum_dead(query: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the filters that are dead in the query but not in the row add to the sums, and how many count in all."""
    dead = np.flatnonzero(query < 0)
    others = rows[:, dead]
    is_alive = others > 0
    sizes = np.abs(query[dead])
    share = is_alive / (sizes + np.abs(others))
    return _sum(sizes * share, others * share), len(query) - len(dead) + np.count_nonzero(is_alive, axis=1)


def _sum(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The sums of p^2, q^2 and p q of every row, in float64 over some thousand filters each."""
    sums = np.zeros((3, len(p)))
    for at in range(0, p.shape[1], _FILTERS):
        one, other = p[:, at : at + _FILTERS], q[:, at : at + _FILTERS]
        sums += np.vecdot(one, one), np.vecdot(other, other), np.vecdot(one, other)
    return sums


def _finish(query: np.ndarray, rows: np.ndarray, sums: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """The distances from the sums; where these are not to be trusted, from the logarithms."""
    pp, qq, pq = sums
    with np.errstate(invalid="ignore", divide="ignore"):
        found = 1 - pq / np.sqrt(pp * qq)
    is_plain = (np.minimum(pp, qq) > _SMALLEST_SQUARES * counted) & (found > _SMALLEST_DISTANCE)
    for at in np.flatnonzero(~is_plain):
        found[at] = _measure_by_logs(query, rows[at])
    return np.minimum(found, BELOW_ONE)


def _measure_by_logs(query: np.ndarray, row: np.ndarray) -> float:
    """The same in float64, for vectors that are too far apart or too close for float32."""
    counted = (query > 0) | (row > 0)
    if not counted.any() or np.array_equal(query, row):
        return 0.0
    logs = [np.log(np.abs(one[counted].astype(np.float64))) for one in (query, row)]
    return symmetric_from_logs(logs[0], logs[1])
