"""Workers for the tests of this room."""

import pytest

from task2vec.parallel import open_backend


@pytest.fixture(scope="package")
def pool():
    """Two processes for all tests: each takes longer to import torch than for all that it is asked to do."""
    with open_backend("processes", jobs=2, threads=1) as engine:
        yield engine
