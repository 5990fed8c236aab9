"""Workers for the tests of this room."""

import pytest

from task2vec.engine import open_engine


@pytest.fixture(scope="package")
def pool():
    """Two processes for all tests: each takes longer to import torch than for all that it is asked to do."""
    with open_engine("pool", workers=2, threads=1) as engine:
        yield engine
