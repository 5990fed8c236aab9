"""Tables of classes and attributes: what was packed comes back, and what does not fit is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from task2vec.errors import DataError
from task2vec.tasks.label_tables import AttributeTable, ClassTable


@pytest.mark.parametrize("numbers", [[0, 2], [-1, 0], [0.0, 1.0], [[0, 1]]])
def test_class_numbers_without_a_name_are_refused(numbers):
    with pytest.raises(DataError, match="class numbers"):
        ClassTable(np.array(numbers), ("a", "b"))


def test_attributes_that_do_not_fit_are_refused():
    yes = np.array([[True, False, True]])
    with pytest.raises(DataError, match=r"need uint8 of shape \(1, 1\)"):
        AttributeTable(yes.astype(np.uint8), None, ("a", "b", "c"))
    with pytest.raises(DataError, match="positive values that are unknown"):
        AttributeTable.pack(yes, ("a", "b", "c"), known=~yes)
    with pytest.raises(DataError, match="two columns or classes are called 'a'"):
        AttributeTable.pack(yes, ("a", "b", "a"))
    with pytest.raises(DataError, match="2 groups"):
        AttributeTable.pack(yes, ("a", "b", "c"), groups=("x", "y"))


@given(st.integers(0, 40), st.integers(1, 30), st.integers(0, 99))
def test_bits_hold_what_was_packed(images, attributes, seed):
    rng = np.random.default_rng(seed)
    yes, known = rng.random((2, images, attributes)) < 0.5
    yes &= known
    table = AttributeTable.pack(yes, [str(n) for n in range(attributes)], known=known)
    for number in range(attributes):
        assert table.column(number).tolist() == np.where(known, yes, -1)[:, number].tolist()
    rows = rng.permutation(np.flatnonzero(rng.random(images) < 0.5))
    column = table.columns(rows)
    for number in range(attributes):
        expected = np.where(known, yes, -1)[rows, number].tolist()
        assert column(number).tolist() == table.column(number, rows).tolist() == expected
    positive, total = table.count(rows)
    assert (positive.tolist(), total.tolist()) == (yes[rows].sum(axis=0).tolist(), known[rows].sum(axis=0).tolist())
    members = rng.permutation(attributes)[:3].tolist()
    full, values = table.select(members)
    assert full.tolist() == np.flatnonzero(known[:, members].all(axis=1)).tolist()
    assert values.tolist() == yes[full][:, members].astype(int).tolist()
    some, few = table.select(members, rows)
    assert some.tolist() == [row for row in rows if known[row, members].all()]
    assert few.tolist() == yes[some][:, members].astype(int).tolist()
    assert table.has_any(members, rows).tolist() == yes[rows][:, members].any(axis=1).tolist()


def test_classes_among_some_rows():
    table = ClassTable(np.array([2, 0, 1, 0, 2]), ("a", "b", "c"))
    rows, labels = table.select((2, 0), np.array([1, 2, 4]))
    assert (rows.tolist(), labels.tolist()) == ([1, 4], [1, 0])
