"""Pictures of the experiments are drawn in full, and small: their pixels take most of the time."""

import matplotlib
import pytest


@pytest.fixture(scope="package", autouse=True)
def _small_pictures():
    with matplotlib.rc_context({"savefig.dpi": 50}):
        yield
