"""A small library, and a server of one."""

import pytest

from tests.web.serving import fill, serving


@pytest.fixture
def library(tmp_path):
    """The folder of a library of six tasks."""
    fill(tmp_path / "tasks")
    return tmp_path / "tasks"


@pytest.fixture(scope="package")
def client(tmp_path_factory):
    """A client of a server of such a library, for tests that change nothing."""
    folder = tmp_path_factory.mktemp("served") / "tasks"
    fill(folder)
    with serving(folder) as client:
        yield client
