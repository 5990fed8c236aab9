"""R5: importing the package, `--help` and `--version` import nothing heavy and answer at once."""

import importlib
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import task2vec
from task2vec.cli.app import COMMANDS

HEAVY = ("torch", "torchvision", "timm", "sklearn", "scipy", "matplotlib", "numpy", "PIL", "rich")

# Prints, as its last line, what was imported and how much CPU time the whole process has used.
REPORT = f"""
import atexit, json, resource, sys
def report():
    used = resource.getrusage(resource.RUSAGE_SELF)
    heavy = [name for name in {HEAVY!r} if name in sys.modules]
    print(json.dumps({{"heavy": heavy, "seconds": used.ru_utime + used.ru_stime}}))
atexit.register(report)
"""

# The promise is 0.3 s. A test on a busy machine only asks that nobody has imported torch by another name.
GENEROUS_SECONDS = 1.5


@pytest.mark.parametrize(
    ("python", "args"),
    [
        ("import task2vec; dir(task2vec); task2vec.__version__", []),
        ("from task2vec.cli import main; main()", ["--help"]),
        ("from task2vec.cli import main; main()", ["--version"]),
    ],
    ids=["import", "help", "version"],
)
def test_nothing_heavy_is_imported(python, args):
    result = subprocess.run([sys.executable, "-c", REPORT + python, *args], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout.splitlines()[-1])
    print(f"{args or 'import task2vec'}: {report['seconds']:.2f} s of CPU")
    assert report["heavy"] == []
    assert report["seconds"] < GENEROUS_SECONDS


def test_every_public_name_is_there():
    for name in task2vec.__all__:
        assert getattr(task2vec, name) is not None
    assert set(task2vec.__all__) <= set(dir(task2vec))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'embedd'"):
        _ = task2vec.embedd


def test_embed_stays_the_function_after_its_room_was_imported():
    room = importlib.import_module("task2vec.embedding")
    assert task2vec.embed is room.embed
    assert callable(task2vec.embed)


def test_the_version_is_the_one_of_the_package():
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert task2vec.__version__ == project["version"]


def test_the_package_is_a_command_and_runs_no_code_of_the_folder_that_one_stands_in(tmp_path):
    (tmp_path / "typer.py").write_text("raise SystemExit('code of a stranger')")
    command = [sys.executable, "-m", "task2vec", "--version"]
    source = str(Path(task2vec.__file__).parents[1])
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=60, cwd=tmp_path, env={**os.environ, "PYTHONPATH": source}
    )
    assert (result.stdout, result.stderr) == (f"task2vec {task2vec.__version__}\n", "")


def test_commands_keep_their_names():
    first = ["demo", "embed", "show", "nearest", "distance", "diversity", "map", "recommend", "evaluate"]
    assert list(COMMANDS) == [*first, "train-expert", "error-matrix", "library", "serve", "tasks", "probes", "doctor"]


def test_a_name_is_looked_up_once_unless_a_module_has_it():
    import task2vec.select

    assert task2vec.recommend is vars(task2vec)["recommend"]
    module = importlib.import_module("task2vec.select.recommend")
    assert module.recommend is task2vec.recommend and task2vec.select.recommend is module
