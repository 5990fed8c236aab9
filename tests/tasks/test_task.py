"""A task is checked when it is made, and its identity is its content."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from task2vec.errors import DataError, UsageError
from task2vec.tasks.task import check_labels, find_warnings
from tests.tasks.shades import contents, make_task


def name_of(row: int) -> str:
    return f"image {row}"


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1, -1], r"image 2 \(row 2\)"),
        ([0, 1, 2], r"image 2 \(row 2\)"),
        ([[0, 1], [1, 0], [np.nan, 1]], r"image 2 \(row 2\)"),
        ([0.0, 1.0], r"image 0 \(row 0\)"),
        ([True, False], r"image 0 \(row 0\)"),
        ([[[0, 1]]], "shape"),
        (np.zeros((3, 3), int), "shape"),
    ],
)
def test_a_wrong_label_is_named_by_its_row(labels, message):
    with pytest.raises(DataError, match=message):
        check_labels(np.asarray(labels), 2, name_of)


def test_right_labels_pass_unchanged():
    assert check_labels(np.array([1, 0], dtype=np.uint8), 2, name_of).tolist() == [1, 0]
    assert check_labels(np.array([[1.0, 0.0]]), 2, name_of).dtype == np.uint8


@pytest.mark.parametrize(
    ("targets", "classes", "message"),
    [
        ([0, 0], ["only"], "only one class .'only'"),
        ([0, 0, 2], ["a", "b\n", "c"], r"1 of 3 classes .*'b\\n'"),
        ([[0, 1], [1, 1]], ["a", "always"], "'always'"),
        ([[0, 0], [1, 0]], ["a", "never"], "'never'"),
        (np.zeros(0, int), ["a", "b"], "no images"),
        ([0, 1, 1], "ab", "2 images, 3 labels and 2 digests"),
    ],
)
def test_what_cannot_be_learned_is_refused_by_name(targets, classes, message):
    with pytest.raises(DataError, match=message):
        make_task(range(2 if message.startswith("2") else len(targets)), targets, classes)


def test_copies_single_images_and_one_hot_rows_are_warned_of():
    assert find_warnings(np.array([0, 0, 1, 1]), "ab", ["w", "x", "y", "z"], name_of) == ()
    single, copies, conflict = find_warnings(np.array([0, 0, 1]), "ab", ["x", "x", "x"], name_of)
    assert "'b'" in single and "2, such as 'image 0', 'image 1'" in copies and "different labels: 1 groups" in conflict
    rows = np.array([[0, 1], [0, 1], [1, 0], [1, 0]])
    assert "exactly one positive" in find_warnings(rows, "ab", "wxyz", name_of)[0]


def test_a_task_cannot_be_altered():
    labels = np.array([0, 1])
    task = make_task([1, 2], labels, ["a", "b"])
    labels[0] = 1
    assert (task.targets.tolist(), task.targets.dtype, task.counts.tolist()) == ([0, 1], np.int64, [1, 1])
    with pytest.raises(FrozenInstanceError):
        task.name = "other"
    with pytest.raises(ValueError, match="read-only"):
        task.targets[0] = 1


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
    return one, make_task(shades[images].tolist(), numbers[labels[images]], ["x"] * n_classes)


@given(shuffled_tasks())
def test_order_names_and_numbers_change_nothing_in_the_canonical_task(tasks):
    one, other = tasks
    assert one.fingerprint == other.fingerprint == one.canonical().fingerprint
    assert contents(one.canonical()) == contents(other.canonical()) == contents(one.canonical().canonical())


@given(st.permutations(range(6)), st.permutations(range(3)))
def test_the_same_holds_for_several_labels(images, columns):
    rows = np.array([[0, 1, 0], [1, 1, 0], [1, 0, 1], [0, 0, 0], [1, 1, 0], [0, 1, 1]])
    one = make_task(range(6), rows, "abc")
    other = make_task(images, rows[images][:, columns], [f"{column}" for column in columns])
    assert one.fingerprint == other.fingerprint
    assert contents(one.canonical()) == contents(other.canonical())


def test_canonical_keeps_each_name_with_its_images():
    task = make_task([5, 6, 7, 8], [0, 1, 2, 1], ["five", "six and eight", "seven"]).canonical()
    found = {task.images.name(index): task.classes[label] for index, label in enumerate(task.targets.tolist())}
    assert found == {"shade 5": "five", "shade 6": "six and eight", "shade 7": "seven", "shade 8": "six and eight"}


def test_other_content_has_another_fingerprint():
    tasks = [
        make_task([1, 2, 3, 4], [0, 0, 1, 1], "ab"),
        make_task([1, 2, 3, 5], [0, 0, 1, 1], "ab"),
        make_task([1, 2, 3, 4], [0, 1, 0, 1], "ab"),
        make_task([1, 2, 3, 4, 4], [0, 0, 1, 1, 1], "ab"),
        make_task([1, 2, 3, 4], [[1, 0], [1, 0], [0, 1], [0, 1]], "ab"),
    ]
    assert len({task.fingerprint for task in tasks}) == 5


def test_a_subset_keeps_the_classes_that_still_have_images():
    task = make_task([1, 2, 3, 4], [0, 1, 2, 2], ["a", "b", "c"], source="here")
    part = task.subset([3, 0])
    assert (part.classes, part.targets.tolist(), part.source) == (("a", "c"), [1, 0], "here")
    assert [part.images.name(index) for index in range(2)] == ["shade 4", "shade 1"]
    assert part.digests == (task.digests[3], task.digests[0])
    with pytest.raises(DataError, match="only one class"):
        task.subset([2, 3])
    many = make_task([1, 2, 3], [[0, 1, 0], [1, 0, 0], [1, 0, 1]], "abc")
    assert many.subset(np.array([0, 1])).classes == ("a", "b")
    for indices in ([0, 4], [-1, 1], [0, 0, 1], [0.0, 1.0], [True, False, True, True], [[0], [1]]):
        with pytest.raises(UsageError, match="number"):
            task.subset(indices)
