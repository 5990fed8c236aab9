"""Evidence, questions and answers: arrays that belong together, and rankings that know what is equal."""

from dataclasses import replace

import numpy as np
import pytest

from task2vec.errors import DataError
from task2vec.select.evidence import Answer
from tests.select.evidence_making import make_evidence


def test_arrays_of_another_shape_are_refused():
    evidence = make_evidence()
    with pytest.raises(DataError, match="'norms' of the evidence has the shape \\(3,\\)"):
        replace(evidence, norms=np.ones(3))
    with pytest.raises(DataError, match="'distances'"):
        replace(evidence, distances={"symmetric": np.zeros((9, 8))})


def test_some_tasks_and_experts_keep_what_is_theirs():
    evidence = make_evidence()
    part = evidence.only([4, 2], [3, 0])
    assert part.tasks == ("task 4", "task 2") and part.experts == ("expert 3", "expert 0")
    assert part.generic == 1 and evidence.only([0], [1, 2]).generic is None
    assert part.distances["symmetric"][0, 1] == evidence.distances["symmetric"][4, 2]
    assert part.to_lessons["symmetric"][1, 0] == evidence.to_lessons["symmetric"][2, 3]
    assert np.array_equal(part.vectors, evidence.vectors[[4, 2]])
    assert np.array_equal(part.lesson_trivials, evidence.lesson_trivials[[3, 0]], equal_nan=True)
    assert np.array_equal(part.halves, evidence.halves[[4, 2]][:, [3, 0]])


def test_a_question_has_all_of_the_task_but_its_errors():
    evidence = make_evidence()
    question = evidence.ask(5).among([0, 7])
    assert question.distances["symmetric"].tolist() == evidence.distances["symmetric"][5, [0, 7]].tolist()
    assert question.group == "set 2" and question.images == evidence.images[5]
    own = evidence.errors[5].ravel()
    for value in vars(question).values():
        each = value.values() if hasattr(value, "values") else [value]
        assert not any(np.isin(np.asarray(one, dtype=object), own).any() for one in each if one is not None)


def test_a_mean_is_over_the_seeds_that_are_known():
    evidence = make_evidence(seeds=2)
    errors = evidence.errors.copy()
    errors[0, 0, 1], errors[0, 1] = np.nan, np.nan
    found = replace(evidence, errors=errors)
    assert found.mean[0, 0] == errors[0, 0, 0] and np.isnan(found.mean[0, 1])
    assert "98 % of the errors known" in repr(found)


def test_an_order_puts_the_unknown_last_and_equals_in_the_order_of_the_fallback():
    everybody = np.ones(5, dtype=bool)
    badness = np.array([2.0, np.nan, 1.0, 2.0, np.nan])
    assert Answer(badness).order(everybody).tolist() == [2, 0, 3, 1, 4]
    answer = Answer(badness, fallback=np.array([0.3, 0.9, 0.5, 0.1, np.nan]))
    assert answer.order(everybody).tolist() == [2, 3, 0, 1, 4]
    assert answer.order(np.array([True, True, False, False, True])).tolist() == [0, 1, 4]
    assert Answer(badness).places().tolist() == [1, 2, 0, 1, 2]


def test_names_that_stand_twice_and_infinite_errors_are_refused_by_name():
    evidence = make_evidence(tasks=3, experts=3)
    with pytest.raises(DataError, match=r"the task 'b' stands 2 times .*own name"):
        replace(evidence, tasks=("a", "b", "b"))
    with pytest.raises(DataError, match="the expert 'x' stands 3 times"):
        replace(evidence, experts=("x", "x", "x"))
    for value in (np.inf, -np.inf):
        errors = evidence.errors.copy()
        errors[1, 2, 0] = value
        with pytest.raises(DataError, match="the error of 'task 1' on 'expert 2' is infinite"):
            replace(evidence, errors=errors)
