"""A small folder of images, a library, and a tiny probe that keeps tests quick."""

import pytest

import task2vec
from task2vec import Library
from tests.cli.material import make, paint
from tests.tasks.published import make_cub, make_deepfashion
from tests.tiny_probe import make_tiny


@pytest.fixture(autouse=True)
def wide_page(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """Every probe is a tiny one, and the current folder is empty."""
    monkeypatch.setattr(task2vec, "load_probe", lambda *args, **options: make_tiny())
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """Two classes of eight noisy images, one dark and one bright."""
    return paint(tmp_path_factory.mktemp("data") / "photos", {"dark": 60, "bright": 190}, count=8)


@pytest.fixture(scope="session")
def published(tmp_path_factory):
    """Two published datasets, `cub` and `deepfashion`."""
    root = tmp_path_factory.mktemp("published")
    make_cub(root / "cub" / "CUB_200_2011")
    make_deepfashion(root / "deepfashion")
    return root


@pytest.fixture
def opened(own_library):
    """The default library, open beside the commands; it is created for this."""
    with Library.open(own_library) as library:
        yield library


@pytest.fixture
def library(opened):
    """The same with six tasks of two kinds; four of them have halves."""
    for number in range(6):
        one = make(f"task {number}", number, kind=number % 2, has_halves=number < 4)
        opened.add(one, tags=["even"] if number % 2 == 0 else [])
    return opened
