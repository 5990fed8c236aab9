"""R5: importing the package, `--help` and `--version` import nothing heavy and answer at once."""

import importlib
import json
import os
import subprocess
import sys

import pytest

import task2vec
from tests.cli.material import call, paint
from tests.command import ENVIRONMENT, START, TEXT, run_command, run_python
from tests.failures import refuse

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


@pytest.mark.parametrize("python", ["import task2vec; dir(task2vec)", f"{START} --help", f"{START} --version"])
def test_nothing_heavy_is_imported(python):
    python, *args = python.split(" --")
    result = run_command(*(f"--{word}" for word in args), python=REPORT + python)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout.splitlines()[-1])
    assert report["heavy"] == [] and report["seconds"] < GENEROUS_SECONDS


# Reports on standard error when torch is imported, and ends there.
NO_TORCH = f"""
import sys
class Watch:
    def find_spec(self, name, *_):
        if name == "torch._C":  # others only ask whether torch is installed
            raise SystemExit("torch is imported")
sys.meta_path.insert(0, Watch())
{REPORT}
{START}
"""


def test_what_is_in_the_library_is_found_without_torch(own_library, tmp_path):
    words = ("embed", paint(tmp_path / "photos", {"dark": 60, "bright": 190}), "--size", "32", "--max-samples", "6")
    made = call(*words)
    assert made.exit_code == 0, made.stderr
    again = run_command(*words, python=NO_TORCH)
    *shown, report = again.stdout.splitlines()
    assert again.returncode == 0 and "found in the library, not computed" in "".join(shown), again.stderr
    assert json.loads(report)["seconds"] < 2 * GENEROUS_SECONDS  # 1.2 s on an idle machine
    shown = run_command("models", "resnet50", "-k", "2", python=NO_TORCH)
    assert shown.returncode == 0 and "resnet50" in shown.stdout, shown.stderr
    assert not {"torch", "torchvision", "timm", "scipy"} & set(json.loads(shown.stdout.splitlines()[-1])["heavy"])


def test_public_names_are_there_and_no_others_and_are_looked_up_once_unless_a_module_has_them():
    assert all(getattr(task2vec, name) is not None for name in task2vec.__all__)
    assert set(task2vec.__all__) <= set(dir(task2vec))
    refuse(AttributeError, "no attribute 'embedd'", getattr, task2vec, "embedd")
    assert task2vec.embed is importlib.import_module("task2vec.embedding").embed
    module = importlib.import_module("task2vec.select.evaluate")
    assert task2vec.evaluate is vars(task2vec)["evaluate"] is module.evaluate
    assert importlib.import_module("task2vec.select").evaluate is module


def test_the_package_is_a_command_and_runs_no_code_of_the_folder_that_one_stands_in(tmp_path):
    (tmp_path / "typer.py").write_text("raise SystemExit('code of a stranger')")
    command, env = [sys.executable, "-m", "task2vec", "--version"], {**os.environ, **ENVIRONMENT}
    result = subprocess.run(command, cwd=tmp_path, env=env, timeout=60, **TEXT)
    assert (result.stdout, result.stderr) == (f"task2vec {task2vec.__version__}\n", "")


def test_an_embedding_names_the_version_of_the_code_and_not_of_an_installation():
    script = """
import importlib.metadata as metadata

def find(name, known=metadata.version):
    if name == "task2vec":
        raise metadata.PackageNotFoundError(name)
    return known(name)

metadata.version = find
import task2vec as t2v
from tests.tiny_probe import make_tiny

embedding = t2v.embed(t2v.sample_tasks(images_per_task=20)[0], make_tiny(), settings=t2v.EmbedSettings(max_samples=4))
print(embedding.provenance["versions"]["task2vec"])
"""
    assert run_python(script) == f"{task2vec.__version__}\n"
