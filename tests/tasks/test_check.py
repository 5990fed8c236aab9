"""What a task must satisfy, and what it is warned of."""

import numpy as np
import pytest

from task2vec.errors import DataError
from task2vec.tasks.task import check_labels, check_targets, find_warnings


def name_of(row: int) -> str:
    return f"image {row}"


@pytest.mark.parametrize(
    "labels",
    [
        [0, 1, -1],
        [0, 1, 2],
        np.array([0, 1, 2**63], dtype=np.uint64),
        [[0, 1], [1, 0], [0, 2]],
        [[0, 1], [1, 0], [0.5, 1]],
        [[0, 1], [1, 0], [np.nan, 1]],
        [[0, 1], [1, 0], [-1, 1]],
    ],
)
def test_a_wrong_label_is_named_by_its_row(labels):
    with pytest.raises(DataError, match=r"image 2 \(row 2\)"):
        check_labels(np.asarray(labels), 2, name_of)


@pytest.mark.parametrize("labels", [[0.0, 1.0], [np.nan, 1], ["a", "b"], [None, 1], [True, False]])
def test_labels_that_are_no_whole_numbers_are_refused(labels):
    with pytest.raises(DataError, match=r"image 0 \(row 0\)"):
        check_labels(np.asarray(labels), 2, name_of)


@pytest.mark.parametrize("shape", [(), (3, 3), (3, 2, 2)])
def test_labels_of_another_shape_are_refused(shape):
    with pytest.raises(DataError, match="shape"):
        check_labels(np.zeros(shape, dtype=int), 2, name_of)


def test_right_labels_pass_unchanged():
    assert check_labels(np.array([1, 0], dtype=np.uint8), 2, name_of).tolist() == [1, 0]
    assert check_labels(np.array([[True, False], [False, False]]), 2, name_of).tolist() == [[1, 0], [0, 0]]
    assert check_labels(np.array([[1.0, 0.0]]), 2, name_of).dtype == np.uint8


@pytest.mark.parametrize(
    ("targets", "classes", "message"),
    [
        ([0, 0], ["only"], "only one class .'only'"),
        ([0, 0, 2], ["a", "b\n", "c"], r"1 of 3 classes .*'b\\n'"),
        ([[0, 1], [1, 1]], ["a", "always"], "'always'"),
        ([[0, 0], [1, 0]], ["a", "never"], "'never'"),
        (np.zeros(0, int), ["a", "b"], "no images"),
        (np.zeros((3, 0), int), [], "label columns"),
    ],
)
def test_what_cannot_be_learned_is_refused_by_name(targets, classes, message):
    with pytest.raises(DataError, match=message):
        check_targets(np.asarray(targets), classes, name_of)


def test_two_classes_or_one_attribute_are_enough():
    assert check_targets(np.array([0, 1]), "ab", name_of).tolist() == [0, 1]
    assert check_targets(np.array([[0], [1]]), "a", name_of).tolist() == [[0], [1]]


def test_a_clean_task_has_no_warnings():
    assert find_warnings(np.array([0, 0, 1, 1]), "ab", ["w", "x", "y", "z"], name_of) == ()


def test_copies_lonely_classes_and_one_hot_rows_are_remarked():
    lonely, copies, torn = find_warnings(np.array([0, 0, 1]), "ab", ["x", "x", "x"], name_of)
    assert "'b'" in lonely
    assert "2, such as 'image 0', 'image 1'" in copies
    assert "different labels: 1 groups" in torn
    within = find_warnings(np.array([0, 0, 1, 1]), "ab", ["x", "x", "y", "z"], name_of)
    assert [text[:6] for text in within] == ["images"]
    rows = np.array([[0, 1], [0, 1], [1, 0], [1, 0]])
    assert "exactly one positive" in find_warnings(rows, "ab", "wxyz", name_of)[0]
