"""S2: safety is an absence of code. No file of src unpickles, evaluates, runs a shell or trusts remote code."""

import ast
import re
from pathlib import Path

SRC = Path(__file__).parents[2] / "src"
FENCE = SRC / "task2vec" / "probe" / "weights.py"

MODULES = ("pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "yaml")
BANNED = {f"import {module}" for module in MODULES} | {"eval", "exec", "compile", "__import__"}
BANNED |= {"os.system", "os.popen", "joblib.load", "numpy.load", "np.load"}
BANNED |= {"torch.load", "torch.serialization.load", "torch.hub.load"}
BANNED |= {"trust_remote_code=", "allow_pickle=", "shell="}


def list_words(node: ast.AST) -> list[str]:
    """What a node imports or calls, and the arguments that it names."""
    if isinstance(node, ast.Import):
        return [f"import {alias.name.split('.')[0]}" for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        module = node.module or ""
        return [f"import {module.split('.')[0]}", *(f"{module}.{alias.name}" for alias in node.names)]
    if isinstance(node, ast.Call):
        given = [f"{one.arg}=" for one in node.keywords if not isinstance(one.value, ast.Constant) or one.value.value]
        return [name_function(node.func), *given]
    return []


def name_function(node: ast.expr) -> str:
    """A dotted name, as it is called."""
    return f"{name_function(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def find_dangers(source: str, *, is_fence: bool = False) -> list[str]:
    """What this source does that it must not, one line each; the fence may load weights and nothing else."""
    found = []
    for node in ast.walk(ast.parse(source)):
        is_allowed = is_fence and isinstance(node, ast.Call) and "weights_only=True" in map(ast.unparse, node.keywords)
        dangers = BANNED.intersection(list_words(node)) - ({"torch.load"} if is_allowed else set())
        found += [f"line {getattr(node, 'lineno', 0)}: {danger}" for danger in dangers]
    return found


def test_no_dangerous_code():
    found = {file: find_dangers(file.read_text(encoding="utf-8"), is_fence=file == FENCE) for file in SRC.rglob("*.py")}
    assert FENCE in found and not any(found.values()), {file: lines for file, lines in found.items() if lines}


def test_no_numbered_placeholder():
    """Of SQL with values in a tuple: Python 3.14 refuses it, and 3.11 does not even warn."""
    assert not [file for file in SRC.rglob("*.py") if re.search(r"[=(<> ,]\?[0-9]", file.read_text(encoding="utf-8"))]


def test_the_scan_finds_what_it_should():
    sources = """import pickle
from pickle import loads
import os, marshal
torch.load(path)
torch.load(path, weights_only=True)
from torch import load
eval('1')
AutoModel.from_pretrained(name, trust_remote_code=True)
subprocess.run(line, shell=flag)
np.load(path)
load(path, allow_pickle=True)"""
    assert [source for source in sources.splitlines() if not find_dangers(source)] == []


def test_the_fence_is_narrow():
    assert find_dangers("torch.load(path, weights_only=True)", is_fence=True) == []
    assert find_dangers("torch.load(path)", is_fence=True)
    assert find_dangers("torch.load(path, weights_only=False)", is_fence=True)
    assert find_dangers("subprocess.run(line, shell=False)") == find_dangers("model.eval()") == []
