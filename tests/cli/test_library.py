"""`task2vec library`: list, show, edit, verify, share."""

import os
from itertools import count

import pytest

from task2vec import Expert, Library, MeasuredError
from task2vec.errors import ResourceError
from tests.cli.material import call, damage, make, read, refuse
from tests.command import START, run_command
from tests.failures import fail


@pytest.fixture
def measured(library):
    """The library with an expert and errors of two splits."""
    library.add(Expert("resnet34", "timm", "resnet34", parameters=21_000_000, input_size=112))
    for seed, error in enumerate((0.2, 0.4)):
        fingerprint, protocol = library.task("task 1").fingerprint, "linear-2, train half, logistic, usual"
        library.add(MeasuredError(fingerprint, "resnet34", error, protocol, seed))
    return library


def test_an_empty_library_is_no_mistake_and_none_is_created(own_library):
    result = call("library", "ls")
    assert result.exit_code == 0 and "is empty" in result.stdout and "task2vec embed FOLDER" in result.stdout
    assert read("library", "ls")["library"] == own_library and not os.path.exists(own_library)


def test_a_library_that_does_not_exist_is_refused_and_a_file_is_none(own_library, photos, tmp_path):
    for args in ("show x", "rm x", "tag x y", "rename x y", "verify", "export x.t2vlib", "errors"):
        refuse(own_library, "library", *args.split())
    assert not os.path.exists(own_library)
    (tmp_path / "file").write_text("hello")
    for command in (("library", "ls"), ("report", photos)):  # before an image is read
        refuse("is a file", *command, "--library", tmp_path / "file")
    assert (tmp_path / "file").read_text() == "hello"


def test_ls_lists_tasks_by_tag_and_probe(library):
    lines = call("library", "ls").stdout.splitlines()
    assert lines[0].split() == [
        "task",
        "images",
        "classes",
        "head",
        "error",
        "norm",
        "probe",
        "added",
        "tags",
        "task",
        "id",
    ]
    assert len(lines) == 10 and lines[8].startswith("6 embeddings, 0 experts, 0 errors;")
    assert lines[3].split()[:5] == ["task", "2", "102", "2", "25.0%"]
    library.add(make("task 1", 1, probe="other", weights="cd"))
    names = [task["name"] for task in read("library", "ls", "--tag", "even")["tasks"]]
    assert names == ["task 0", "task 2", "task 4"]
    shown = call("library", "ls", "--probe", "other").stdout
    assert "1 task with several embeddings" in shown and len(shown.splitlines()) == 3
    assert "No task of the library matches --tag" in call("library", "ls", "--tag", "none").stdout


def test_ls_needs_no_torch(library):
    check = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules))\n"
    result = run_command("library", "ls", python=check + START)
    assert result.returncode == 0 and result.stdout.splitlines()[-1] == "False", result.stderr


def test_show_and_stats(measured):
    shown = call("library", "show", "task 1").stdout
    for words in ("task 1: 101 images", "2: no (60), yes (41)", "errors   ", "net", "25.0%"):
        assert words in shown
    report = read("library", "show", "task 1")
    (embedding,) = report["embeddings"]
    assert len(report["errors"]) == 2 and embedding["probe"] == "net" and "id" not in embedding
    refuse("Did you mean", "library", "show", "task l")
    stats = read("library", "ls")["stats"]
    assert (stats["tasks"], stats["embeddings"], stats["experts"], stats["errors"]) == (6, 6, 1, 2)
    assert "comparable: 6 embeddings by net" in call("library", "ls").stdout


def test_files_are_added_and_what_cannot_be_is_named(library, tmp_path, monkeypatch):
    for number in (7, 8):
        make(f"new {number}", number).save(tmp_path / "in" / f"{number}.t2v.safetensors")
    conflicting = make("task 0", 0, noise=0.9).save(tmp_path / "in" / "x.t2v.safetensors")
    (tmp_path / "in" / "bad.safetensors").write_bytes(b"x" * 40)
    result = call("library", "add", tmp_path / "in", "--tag", "late")
    assert result.exit_code == 4 and "2 added, 0 known" in result.stdout
    assert "bad.safetensors" in result.stderr and "task 0" in result.stderr
    known = read("library", "add", tmp_path / "in" / "7.t2v.safetensors")
    assert not known["added"][0]["is_new"]
    assert read("library", "add", conflicting, "--force")["added"][0]["is_new"]
    refuse(f"task2vec embed {tmp_path}", "library", "add", tmp_path)
    add, full, calls = Library.add, fail(ResourceError("the disk is full")), count()
    monkeypatch.setattr(Library, "add", lambda *args, **how: (full if next(calls) else add)(*args, **how))
    report = read("library", "add", tmp_path / "in", code=5)
    assert len(report["added"]) == 1 and "after 1 of 4 files: the disk is full" in report["error"]


def test_tags_names_and_removal(measured):
    assert "even, mine" in call("library", "tag", "task 0", "mine").stdout
    assert read("library", "rm", "task 0", "--tag", "even")["tags"] == ["mine"]
    assert "task 0 is now zero" in call("library", "rename", "task 0", "zero").stdout
    key = read("library", "show", "zero")["embeddings"][0]["key"]
    assert f"removed: embedding {key[:8]}" in call("library", "rm", key[:8]).stdout
    assert read("library", "show", "zero")["embeddings"] == []
    refuse("--force", "library", "rm", "task 1")
    refuse("--force", "library", "rm", "resnet34", "--expert")
    assert read("library", "rm", "resnet34", "--expert", "--force") == {"expert": "resnet34", "errors": 2}
    assert read("library", "rm", "task 1")["task"]["name"] == "task 1"
    assert [task["name"] for task in read("library", "ls")["tasks"]] == ["task 2", "task 3", "task 4", "task 5", "zero"]


def test_experts_and_errors_are_listed(measured):
    assert read("library", "experts")["experts"][0]["errors"] == 2
    assert "resnet34" in call("library", "experts").stdout
    lines = call("library", "errors").stdout.splitlines()
    assert lines[0].split() == ["task", "expert", "pixels", "error", "splits", "range", "protocol"]
    assert lines[1].split()[:5] == ["task", "1", "resnet34", "112", "30.0%"] and "20.0% to 40.0%" in lines[1]
    for option, value, number in (("--shots", "half", 2), ("--shots", "5", 0), ("--task", "task 2", 0)):
        assert read("library", "errors", option, value)["count"] == number
    assert "No error matches" in call("library", "errors", "--expert", "none").stdout


def test_verify_and_repair(library, tmp_path):
    assert read("library", "verify")["is_sound"]
    library.add(Expert("mine", "file", str(tmp_path / "gone.safetensors"), sha256="0" * 64))
    intact = call("library", "verify")
    assert intact.exit_code == 0 and "intact: 6 embeddings read" in intact.stdout
    assert "without a file" in intact.stdout and "library rm NAME --expert" in intact.stderr
    library.close()
    damage(library.folder)
    damaged = call("library", "verify")
    assert damaged.exit_code == 4 and "Traceback" not in damaged.stderr and "task2vec" in damaged.stderr
    repaired = call("library", "repair")
    assert repaired.exit_code in (0, 4) and "Traceback" not in repaired.stderr
    assert call("library", "verify").exit_code == 0


def test_a_library_is_shared_as_a_file(library, tmp_path):
    file, other = tmp_path / "team.t2vlib", ("--library", tmp_path / "other")
    assert read("library", "export", file)["tasks"] == 6
    refuse("--force", "library", "export", file)
    refuse("'none'", "library", "export", tmp_path / "none.t2vlib", "--tag", "none")
    assert "6 tasks, 6 embeddings added" in call("library", "import", file, *other).stdout
    assert read("library", "import", library.folder, *other)["known"] >= 6
    with Library.open(tmp_path / "third") as opened:
        opened.add(make("task 0", 0, noise=0.9))
    conflict = call("library", "import", file, "--library", tmp_path / "third")
    assert conflict.exit_code == 3 and "conflict: " in conflict.stderr and "library add FILE" in conflict.stderr
    (tmp_path / "bad.t2vlib").write_bytes(b"not a library")
    refuse("bad.t2vlib", "library", "import", tmp_path / "bad.t2vlib", *other, code=4)
    refuse("nowhere", "library", "import", tmp_path / "nowhere", *other)
