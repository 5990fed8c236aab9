"""The parts of a symmetric distance: they add up, and lie where two tasks differ."""

from dataclasses import replace

import numpy as np
import pytest

from task2vec.distance import split_symmetric, symmetric
from task2vec.errors import ProbeMismatchError
from tests.cli.material import make


def test_parts_add_up_to_the_distance_whatever_the_order():
    a, b = make("a", 1), make("b", 2, kind=1)
    parts = split_symmetric(a, b)
    assert parts.sum() == pytest.approx(symmetric(a, b), rel=1e-12) and (parts >= 0).all()
    np.testing.assert_allclose(split_symmetric(b, a), parts, rtol=1e-12)


def test_the_filter_that_differs_has_the_largest_part():
    a = make("a", 1)
    fisher = a.fisher.copy()
    fisher[7] *= 50
    parts = split_symmetric(a, replace(a, fisher=fisher))
    assert parts.argmax() == 7 and parts[7] > 0.5 * parts.sum()


def test_the_same_task_and_dead_filters_have_no_part():
    a = make("a", 1)
    assert not split_symmetric(a, a).any()
    dead = np.where(np.arange(len(a)) < 5, 0.0, a.fisher)
    one, other = replace(a, fisher=dead), replace(make("b", 2), fisher=np.where(dead == 0, 0.0, make("b", 2).fisher))
    parts = split_symmetric(one, other)
    assert not parts[:5].any() and parts[5:].all()
    assert parts.sum() == pytest.approx(symmetric(one, other), rel=1e-12)
    nothing = replace(a, fisher=np.zeros(len(a)))
    assert not split_symmetric(nothing, nothing).any()


def test_other_probes_are_refused():
    with pytest.raises(ProbeMismatchError):
        split_symmetric(make("a", 1), make("b", 2, weights="cd"))
