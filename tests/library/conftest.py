"""An open library with a few tasks."""

import pytest

from task2vec.library import Library
from tests.library.making import make


@pytest.fixture
def library(tmp_path):
    with Library.open(tmp_path / "library") as library:
        yield library


@pytest.fixture
def filled(library):
    """Six tasks, "task 0" to "task 5"."""
    library.add(*(make(f"task {seed}", seed) for seed in range(6)), tags=["small"])
    return library
