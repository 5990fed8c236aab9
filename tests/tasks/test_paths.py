"""Paths of a dataset: packed without a loss, and never out of the root."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from task2vec.errors import DataError
from task2vec.tasks.paths import Paths, check_path


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1)))
def test_packed_paths_are_the_paths(texts):
    paths = Paths.pack(texts)
    assert list(paths) == [paths[row] for row in range(len(texts))] == texts
    assert paths[:3] == texts[:3]
    repeated = paths.find_repeated()
    if len(set(texts)) == len(texts):
        assert repeated is None
    else:
        first, second = repeated
        assert first < second
        assert texts[first] == texts[second]
    if texts:
        assert paths[-1] == texts[-1]
    with pytest.raises(IndexError):
        _ = paths[len(texts)]


def test_torn_paths_are_refused():
    content = np.frombuffer(b"abc", np.uint8)
    for ends in ([2], [3, 2], [1, 4], []):
        with pytest.raises(DataError, match="torn"):
            Paths(content, np.array(ends, np.int64))


@pytest.mark.parametrize("path", ["", "  ", None, 3, "/a", "\\a", "C:/a", "..", "a/..", "..\\a", "a\nb", "\0"])
def test_paths_that_leave_the_root_are_refused(path):
    with pytest.raises(DataError, match=r"images\.txt, line 3: "):
        check_path(path, "images.txt, line 3")


@pytest.mark.parametrize("path", ["a", "a b/ü.jpg", "a..b/c...jpg", "深/鳥.jpg", "a\xa0b"])
def test_odd_paths_that_stay_below_the_root_are_taken(path):
    assert check_path(path, "x") == path
