"""Tests never touch the home of who runs them, and run on one thread.

Grouped convolutions in float64 and small matrices spend more time handing work over between threads than doing it.
"""

import os
import tempfile
from functools import cache, wraps
from itertools import count

import pytest
import torch
from threadpoolctl import threadpool_limits

import task2vec
from task2vec.embedding import many, single
from task2vec.library import Expert, MeasuredError
from tests.library.material import DIRECT, fingerprint_of, make

torch.set_num_threads(1)

load_really = task2vec.load_probe
load_default = cache(lambda size: load_really(size=size))


@wraps(load_really)
def load_probe(name="tf_efficientnet_lite0", **options):
    """The default probe of a size is loaded once: it takes a second. tests/probe tests the real function."""
    given = {option: value for option, value in options.items() if value}
    is_default = name == "tf_efficientnet_lite0" and given.keys() <= {"size"}
    return load_default(given.get("size")) if is_default else load_really(name, **options)


for module in (task2vec, many, single):
    module.load_probe = load_probe

# A public name is looked up once: before a test replaces it in its module, so that the replacement does not stay.
for name in task2vec.__all__:
    getattr(task2vec, name)
threadpool_limits(1, user_api="blas")  # of NumPy and SciPy, which are loaded now
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # of commands that tests run

# Until a test has a library of its own: fixtures of a session come before that.
_HOME = tempfile.TemporaryDirectory(prefix="task2vec-tests-")
os.environ["TASK2VEC_LIBRARY"] = os.path.join(_HOME.name, "library")
os.environ["XDG_DATA_HOME"] = _HOME.name
_NUMBERS = count()


@pytest.fixture
def library(tmp_path):
    """An empty library of its own; some folders have one with content."""
    with task2vec.Library.open(tmp_path / "library") as opened:
        yield opened


@pytest.fixture
def filled(library):
    """A library with six tasks, "task 0" to "task 5"."""
    library.add(*(make(f"task {seed}", seed) for seed in range(6)), tags=["small"])
    return library


@pytest.fixture
def full(filled):
    """The same with something of every other kind, and a second embedding of "task 5"."""
    filled.add(make("task 5", 5, settings=DIRECT), source="/home/ada/photos")
    filled.add(Expert("e", "timm", "net", recipe={"epochs": 3}, cost=2.5), Expert("f", "file", "x.pt"))
    filled.add(MeasuredError(fingerprint_of(1), "e", 0.25, "p", low=0.2, high=0.3, measured_by="me"))
    filled.tag("task 2", "rare")
    filled.rename("task 4", "other name")
    with filled.record("embed", {"folder": "x"}):
        pass
    return filled


@pytest.fixture(autouse=True)
def own_library(monkeypatch):
    """The path of the default library of a test, which does not exist yet."""
    path = os.path.join(_HOME.name, f"library-{next(_NUMBERS)}")
    monkeypatch.setenv("TASK2VEC_LIBRARY", path)
    return path
