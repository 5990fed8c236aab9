"""The benchmarks are no part of the package, but must not rot: each imports with what the tests install."""

import importlib
from pathlib import Path

import pytest

from benchmarks.run import LONG_PARTS, PARTS

FILES = sorted(path.stem for path in Path(__file__).parents[1].joinpath("benchmarks").glob("*.py"))


@pytest.mark.parametrize("name", FILES)
def test_a_benchmark_imports_and_nothing_in_it_looks_like_a_test(name):
    names = vars(importlib.import_module(f"benchmarks.{name}"))
    assert not [name for name in names if name.startswith("test")]


def test_every_part_of_the_run_can_be_measured():
    for name in (*PARTS, *LONG_PARTS):
        assert callable(importlib.import_module(f"benchmarks.{name}").measure)
