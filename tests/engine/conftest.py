"""Engines for the tests of this room."""

import pytest

from task2vec.engine import open_engine


@pytest.fixture(scope="package")
def pool():
    """Two processes for many tests: starting them takes most of the time."""
    with open_engine("pool", workers=2, threads=1) as engine:
        yield engine


@pytest.fixture
def serial():
    """This process."""
    with open_engine("serial") as engine:
        yield engine


@pytest.fixture(params=["serial", "pool"])
def engine(request):
    """Either; Ray is tried in a process of its own."""
    return request.getfixturevalue(request.param)
