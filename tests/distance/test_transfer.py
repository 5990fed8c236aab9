"""The transfer distance from measured errors: the formula cell by cell, gaps, and what no ratio can be taken of."""

import math

import numpy as np
import pytest

from task2vec.distance import transfer
from task2vec.errors import DataError, UsageError


def test_the_formula_cell_by_cell():
    errors = np.random.default_rng(0).uniform(0.05, 0.9, size=(4, 4))
    found = transfer(errors)
    for task in range(4):
        for expert in range(4):
            own, transferred = errors[task, task], errors[task, expert]
            assert found[task, expert] == pytest.approx((transferred - own) / own)
    assert (np.diagonal(found) == 0).all()
    assert not np.allclose(found, found.T)


def test_own_errors_may_come_from_elsewhere():
    found = transfer([[0.2, 0.1, 0.4], [0.3, 0.6, 0.3]], own=[0.2, 0.6])
    assert np.allclose(found, [[0.0, -0.5, 1.0], [-0.5, 0.0, -0.5]])
    # Rows are tasks: with own errors by column the numbers would be others.
    assert transfer([[0.2, 0.2], [0.2, 0.2]], own=[0.1, 0.2]).tolist() == [[1.0, 1.0], [0.0, 0.0]]


def test_percentages_are_as_good_as_shares():
    errors = np.array([[0.2, 0.3], [0.5, 0.4]])
    assert np.allclose(transfer(100 * errors), transfer(errors))


def test_what_was_not_measured_stays_unknown():
    nan = math.nan
    found = transfer([[0.2, nan, 0.1], [0.3, nan, 0.3], [0.0, 0.8, 0.4]])
    assert np.array_equal(np.isnan(found), [[False, True, False], [True, True, True], [False, False, False]])
    assert found[2].tolist() == [-1.0, 1.0, 0.0]


def test_what_cannot_be_meant():
    with pytest.raises(UsageError, match=r"shape \(1, 2\).*Pass own="):
        transfer([[0.2, 0.3]])
    with pytest.raises(UsageError, match=r"own has 2 errors and errors has 1 rows.*transpose"):
        transfer([[0.2, 0.3]], own=[0.2, 0.3])
    with pytest.raises(DataError, match=r"task 1 is 0 \(1 of 2 tasks"):
        transfer([[0.2, 0.3], [0.5, 0.0]])
    with pytest.raises(DataError, match=r"errors\[0, 1\] is -0.3"):
        transfer([[0.2, -0.3], [0.5, 0.1]])
    with pytest.raises(DataError, match=r"own\[0\] is inf"):
        transfer([[0.2]], own=[math.inf])
    with pytest.raises(UsageError, match=r"errors has shape \(2,\)"):
        transfer([0.2, 0.3])
    with pytest.raises(UsageError, match="errors has shape"):
        transfer(np.empty((0, 0)))
    with pytest.raises(UsageError, match="no array of numbers"):
        transfer([["low", "high"]])


def test_the_errors_are_left_as_they_were():
    errors = np.array([[0.2, 0.3], [0.5, 0.4]])
    transfer(errors)[0, 0] = 7
    assert errors[0, 0] == 0.2
