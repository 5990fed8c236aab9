"""A task is checked when it is made, and its identity is its content."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from task2vec.errors import DataError, UsageError
from task2vec.tasks import BadImage
from tests.tasks.shades import contents, make_task


def test_a_task_says_what_it_is():
    task = make_task([1, 2, 3], [0, 1, 1], ["a", "b"], bad=(BadImage("x.png", "empty"),))
    assert repr(task) == "Task(shades, 3 images, 2 classes)"
    assert (len(task), task.is_multilabel, task.counts.tolist()) == (3, False, [1, 2])
    assert task.targets.dtype == np.int64
    many = make_task([1, 2, 3], [[0, 1], [1, 1], [1, 0]], ["a", "b"])
    assert (many.is_multilabel, many.counts.tolist(), many.targets.dtype) == (True, [2, 2], np.uint8)


def test_a_task_cannot_be_altered():
    task = make_task([1, 2], [0, 1], ["a", "b"])
    with pytest.raises(FrozenInstanceError):
        task.name = "other"
    with pytest.raises(ValueError, match="read-only"):
        task.targets[0] = 1


def test_the_labels_of_the_caller_are_copied():
    labels = np.array([0, 1, 1])
    task = make_task([1, 2, 3], labels, ["a", "b"])
    labels[0] = 1
    assert task.targets.tolist() == [0, 1, 1]


@st.composite
def shuffled_tasks(draw):
    """The same content twice: once as drawn, once with images, classes and names in another order."""
    n_classes = draw(st.integers(2, 4))
    n_images = draw(st.integers(n_classes, 12))
    rest = draw(st.lists(st.integers(0, n_classes - 1), min_size=n_images - n_classes, max_size=n_images - n_classes))
    labels = np.array([*range(n_classes), *rest])
    shades = np.array(draw(st.lists(st.integers(0, 9), min_size=n_images, max_size=n_images)))  # with repeats
    images = np.array(draw(st.permutations(range(n_images))))
    numbers = np.array(draw(st.permutations(range(n_classes))))
    one = make_task(shades.tolist(), labels, [f"class {number}" for number in range(n_classes)])
    other = make_task(shades[images].tolist(), numbers[labels[images]], ["x"] * n_classes)
    return one, other


@given(shuffled_tasks())
def test_order_names_and_numbers_change_nothing_in_the_canonical_task(tasks):
    one, other = tasks
    assert one.fingerprint == other.fingerprint
    assert contents(one.canonical()) == contents(other.canonical())
    assert one.canonical().fingerprint == one.fingerprint
    assert contents(one.canonical().canonical()) == contents(one.canonical())


@given(st.permutations(range(6)), st.permutations(range(3)))
def test_the_same_holds_for_several_labels(images, columns):
    rows = np.array([[0, 1, 0], [1, 1, 0], [1, 0, 1], [0, 0, 0], [1, 1, 0], [0, 1, 1]])
    one = make_task(range(6), rows, "abc")
    other = make_task(images, rows[images][:, columns], [f"{column}" for column in columns])
    assert one.fingerprint == other.fingerprint
    assert contents(one.canonical()) == contents(other.canonical())


def test_canonical_keeps_each_name_with_its_images():
    task = make_task([5, 6, 7, 8], [0, 1, 2, 1], ["five", "six and eight", "seven"])
    canonical = task.canonical()
    found = {
        canonical.images.name(index): canonical.classes[label] for index, label in enumerate(canonical.targets.tolist())
    }
    assert found == {"shade 5": "five", "shade 6": "six and eight", "shade 7": "seven", "shade 8": "six and eight"}


def test_other_content_has_another_fingerprint():
    base = make_task([1, 2, 3, 4], [0, 0, 1, 1], "ab")
    others = [
        make_task([1, 2, 3, 5], [0, 0, 1, 1], "ab"),
        make_task([1, 2, 3, 4], [0, 1, 0, 1], "ab"),
        make_task([1, 2, 3, 4, 4], [0, 0, 1, 1, 1], "ab"),
        make_task([1, 2, 3, 4], [[1, 0], [1, 0], [0, 1], [0, 1]], "ab"),
    ]
    assert len({task.fingerprint for task in [base, *others]}) == 5


def test_a_subset_keeps_the_classes_that_still_have_images():
    task = make_task([1, 2, 3, 4], [0, 1, 2, 2], ["a", "b", "c"], source="here")
    part = task.subset([3, 0])
    assert (part.classes, part.targets.tolist(), part.source) == (("a", "c"), [1, 0], "here")
    assert [part.images.name(index) for index in range(2)] == ["shade 4", "shade 1"]
    assert part.digests == (task.digests[3], task.digests[0])
    assert "'a', 'c'" in part.warnings[0]
    with pytest.raises(DataError, match="only one class"):
        task.subset([2, 3])
    many = make_task([1, 2, 3], [[0, 1, 0], [1, 0, 0], [1, 0, 1]], "abc")
    assert many.subset(np.array([0, 1])).classes == ("a", "b")


@pytest.mark.parametrize("indices", [[0, 4], [-1, 1], [0, 0, 1], [0.0, 1.0], [True, False, True, True], [[0], [1]]])
def test_a_subset_of_images_that_are_not_there_is_refused(indices):
    with pytest.raises(UsageError, match="number"):
        make_task([1, 2, 3, 4], [0, 1, 0, 1], "ab").subset(indices)


def test_lengths_must_agree():
    with pytest.raises(DataError, match="2 images, 3 labels and 2 digests"):
        make_task([1, 2], [0, 1, 1], "ab")
