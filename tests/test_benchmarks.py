"""The benchmarks are no part of the package, but must not rot: each imports with what the tests install."""

import importlib
import importlib.util
from pathlib import Path

import pytest

FILES = sorted(path.stem for path in Path(__file__).parents[1].joinpath("benchmarks").glob("*.py"))
NEEDS = {"other_libraries": "backpack"}


@pytest.mark.parametrize("name", FILES)
def test_benchmark_imports(name):
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed: it belongs to `make bench`")
    importlib.import_module(f"benchmarks.{name}")
