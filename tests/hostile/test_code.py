"""S2: safety is an absence of code. No file of src unpickles, evaluates, runs a shell or trusts remote code."""

import ast
from pathlib import Path

SRC = Path(__file__).parents[2] / "src"
FENCE = SRC / "task2vec" / "probe" / "weights.py"

BANNED_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "yaml"}
BANNED_CALLS = {"eval", "exec", "compile", "__import__"}
BANNED_CALLS |= {"os.system", "os.popen", "joblib.load", "numpy.load", "np.load"}
BANNED_ARGUMENTS = {"trust_remote_code", "allow_pickle"}
FENCED_CALLS = {"torch.load", "torch.serialization.load", "torch.hub.load"}


def find_dangers(source: str, *, is_fence: bool = False) -> list[str]:
    """What this source does that it must not, one line each."""
    dangers = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            dangers += [f"line {node.lineno}: import {m}" for m in modules if m.split(".")[0] in BANNED_MODULES]
            if isinstance(node, ast.ImportFrom):
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                dangers += [f"line {node.lineno}: from-import of {n}" for n in names & (BANNED_CALLS | FENCED_CALLS)]
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in BANNED_CALLS or (name in FENCED_CALLS and not (is_fence and _is_weights_only(node))):
                dangers.append(f"line {node.lineno}: {name}")
            for keyword in node.keywords:
                is_shell = keyword.arg == "shell" and not _is_constant(keyword.value, False)
                if keyword.arg in BANNED_ARGUMENTS or is_shell:
                    dangers.append(f"line {node.lineno}: {keyword.arg}=")
    return dangers


def _is_weights_only(call: ast.Call) -> bool:
    return any(keyword.arg == "weights_only" and _is_constant(keyword.value, True) for keyword in call.keywords)


def _is_constant(node: ast.expr, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def test_no_dangerous_code():
    found = {file: find_dangers(file.read_text(encoding="utf-8"), is_fence=file == FENCE) for file in SRC.rglob("*.py")}
    assert FENCE in found and not any(found.values()), {file: lines for file, lines in found.items() if lines}


def test_the_scan_finds_what_it_should():
    sources = """import pickle
from pickle import loads
import os, marshal
torch.load(path)
torch.load(path, weights_only=True)
from torch import load
eval('1')
exec(text)
import yaml
AutoModel.from_pretrained(name, trust_remote_code=True)
subprocess.run(line, shell=flag)
np.load(path)
load(path, allow_pickle=True)"""
    assert [source for source in sources.splitlines() if not find_dangers(source)] == []


def test_the_fence_is_narrow():
    assert find_dangers("torch.load(path, weights_only=True)", is_fence=True) == []
    assert find_dangers("torch.load(path)", is_fence=True)
    assert find_dangers("torch.load(path, weights_only=False)", is_fence=True)
    assert find_dangers("subprocess.run(line, shell=False)") == []
    assert find_dangers("model.eval()") == []
