"""The experiments use what a user would: the public names, and those of a few packages and files."""

import ast

import pytest

import task2vec
from tests.experiments.material import ROOT

DOORS = {"distance", "errors", "experts", "metatask", "plots", "probe", "select"}
DOORS |= {"select.evaluate", "select.strategies", "tasks", "text"}


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").rglob("*.py")), ids=lambda path: path.stem)
def test_only_public_names_and_doors_are_imported(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            assert all(name.name == "task2vec" for name in node.names if name.name.startswith("task2vec"))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "task2vec":
            assert node.module == "task2vec" or node.module.removeprefix("task2vec.") in DOORS, node.module
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "t2v":
            assert node.attr in task2vec.__all__, node.attr
