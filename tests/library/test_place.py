"""Where the library lies."""

from pathlib import Path

import pytest

from task2vec.errors import ResourceError
from task2vec.library import Library, find_library


def test_the_order_of_places(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    monkeypatch.setenv("TASK2VEC_LIBRARY", "/team")
    assert find_library("mine") == Path("mine")
    assert find_library("~/mine") == Path("/home/ada/mine")
    assert find_library() == Path("/team")
    monkeypatch.setenv("TASK2VEC_LIBRARY", "~/team")
    assert find_library() == Path("/home/ada/team")
    monkeypatch.setenv("TASK2VEC_LIBRARY", "")
    assert find_library() == Path("/data/task2vec")
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert find_library() == Path("/home/ada/.local/share/task2vec")


@pytest.mark.parametrize("given", [None, "~nobody-of-that-name/library"])
def test_no_home(monkeypatch, given):
    def fail(*_):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("TASK2VEC_LIBRARY")
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setattr(Path, "home", fail)
    with pytest.raises(ResourceError, match="--library DIR") as caught:
        find_library(given)
    assert caught.value.exit_code == 5


def test_a_home_that_cannot_be_written_to(monkeypatch, tmp_path):
    (tmp_path / "home").write_text("a file: not even root can make a folder in it")
    monkeypatch.delenv("TASK2VEC_LIBRARY")
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.raises(ResourceError, match="cannot be made") as caught:
        Library.open()
    assert caught.value.exit_code == 5


def test_a_library_below_folders_that_are_not_there(tmp_path):
    with Library.open(tmp_path / "a" / "b" / "ü %3F?#") as library:
        assert len(library) == 0
    assert (tmp_path / "a" / "b" / "ü %3F?#" / "index.sqlite").is_file()
