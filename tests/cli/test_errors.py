"""`task2vec error-matrix` and what the library says of experts and errors."""

import csv
import json
import shutil

import numpy as np
import pytest
from PIL import Image

from task2vec.experts import error_matrix, linear_error
from task2vec.experts.protocol import ErrorProtocol
from task2vec.library import Library
from task2vec.probe import load_probe
from task2vec.tasks import read_folder
from tests.experts.making import make_expert, make_tasks

LITE = ("--expert", "tf_efficientnet_lite0", "--size", "32")


@pytest.fixture(scope="module")
def measured(tmp_path_factory, photos, call):
    """A library with the errors of two folders on one model, and what the command said."""
    folder = tmp_path_factory.mktemp("measured")
    other = folder / "other"
    shutil.copytree(photos, other)
    Image.fromarray(np.zeros((32, 32, 3), dtype=np.uint8)).save(other / "dark" / "extra.png")
    where = ("--library", folder / "library", "--csv", folder / "errors.csv")
    result = call("error-matrix", photos, other, *LITE, "--train", "half", "--train", 2, "--seeds", 2, *where)
    assert result.exit_code == 0, result.stderr
    return folder, result


def test_errors_are_kept_told_and_written(measured, photos):
    folder, result = measured
    task = read_folder(photos)
    with Library.open(folder / "library") as library:
        kept = [error for error in library.errors() if error.task == task.fingerprint]
        assert len(library.errors()) == 8 and [expert.name for expert in library.experts()] == ["tf_efficientnet_lite0"]
    wanted = [
        error.error
        for protocol in (ErrorProtocol(train=2), ErrorProtocol())
        for error in linear_error(load_probe(size=32), task, protocol, seeds=(0, 1))
    ]
    assert [error.error for error in kept] == wanted
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["task", "train", "best", "expert", "error", "median"]
    assert [line.split()[:3] for line in lines[1:5]] == [
        [task, train, "tf_efficientnet_lite0"] for task in ("photos", "other") for train in ("half", "2")
    ]
    assert lines[5].startswith("2 cells computed, 0 failed; in ")
    with open(folder / "errors.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == 8


def test_the_same_again_computes_nothing(measured, photos, call):
    folder, _ = measured
    result = call(
        "error-matrix", photos, *LITE, "--train", "2", "--seeds", 2, "--library", folder / "library", "--json"
    )
    report = json.loads(result.stdout)
    assert result.exit_code == 0 and report["computed"] == 0 and len(report["errors"]) == 2
    assert report["protocols"] == [ErrorProtocol(train=2).key] and report["seeds"] == [0, 1]
    assert {error["is_trivial"] for error in report["errors"]} == {False}
    assert {error["name"] for error in report["errors"]} == {"photos"} == set(report["tasks"])
    assert {error["task"] for error in report["errors"]} == set(report["fingerprints"])
    assert all(error["measured"].endswith("Z") for error in report["errors"])


def test_what_fails_is_told_and_the_rest_goes_on(measured, photos, call, tmp_path):
    folder, _ = measured
    lone = tmp_path / "lone"
    for name in ("a", "b"):
        (lone / name).mkdir(parents=True)
        Image.new("RGB", (32, 32), (len(name), ord(name), 0)).save(lone / name / "only.png")
    result = call("error-matrix", lone, photos, *LITE, "--library", folder / "library")
    assert result.exit_code == 3
    assert "failed: lone on tf_efficientnet_lite0: 'lone' has no class with two different images" in result.stderr
    assert "0 cells computed, 1 failed" in result.stdout


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (("--seeds", "0"), "--seeds 0"),
        (("--train", "most"), "train='most'"),
        (("--expert", "nonsense"), "'nonsense' is no expert of the library"),
        (("--jobs", "2"), "--engine pool"),
    ],
)
def test_what_cannot_be_meant_is_refused(measured, photos, call, wrong, word):
    folder, _ = measured
    result = call("error-matrix", photos, *LITE, *wrong, "--library", folder / "library")
    assert result.exit_code == 2 and word in result.stderr, result.stderr


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_experts_are_listed(measured, call, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    folder, _ = measured
    result = call("library", "experts", "--library", folder / "library")
    assert result.exit_code == 0 and all(len(line) <= int(columns) for line in result.stdout.splitlines())
    head, row = result.stdout.splitlines()[:2]
    assert head.split()[:3] == ["expert", "trained", "on"] and "8" in row.split()
    assert "".join(line.split()[0] for line in result.stdout.splitlines()[1 : 3 - (columns != "40")]).startswith(
        "tf_eff"
    )
    told = json.loads(call("library", "experts", "--library", folder / "library", "--json").stdout)
    assert told["count"] == 1 and told["experts"][0]["errors"] == 8 and told["experts"][0]["input_size"] == 32


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_errors_are_listed(measured, call, columns, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", columns)
    folder, _ = measured
    where = ("--library", folder / "library")
    result = call("library", "errors", *where)
    lines = result.stdout.splitlines()
    assert result.exit_code == 0 and all(len(line) <= int(columns) for line in lines[:5])
    assert lines[0].split()[:4] == ["task", "expert", "train", "error"]
    # A task has an error of each training size: without that word nobody could tell which is which.
    assert ["half" in line.split() for line in lines if line.startswith("photos")] == [False, True]
    assert f"half: {ErrorProtocol().key}" in lines
    assert "and 3 more; --limit 4 shows all" in call("library", "errors", *where, "--limit", 1).stdout


def test_errors_are_chosen_and_written(measured, call, tmp_path):
    folder, _ = measured
    where = ("--library", folder / "library")
    told = json.loads(call("library", "errors", *where, "--task", "photos", "--json").stdout)
    assert told["count"] == 4 and {error["name"] for error in told["errors"]} == {"photos"}
    key, file = ErrorProtocol(train=2).key, tmp_path / "some.csv"
    for part in (key, "2", "train 2"):
        told = json.loads(call("library", "errors", *where, "--protocol", part, "--json").stdout)
        assert {error["protocol"] for error in told["errors"]} == {key}
    assert call("library", "errors", *where, "--protocol", "half", "--csv", file).exit_code == 0
    with open(file, newline="") as rows:
        assert {row["protocol"] for row in csv.DictReader(rows)} == {ErrorProtocol().key}
    refused = call("library", "errors", *where, "--csv", file)
    assert refused.exit_code == 2 and "would be lost" in refused.stderr and "--force" in refused.stderr
    assert call("library", "errors", *where, "--csv", file, "--force").exit_code == 0
    for part, word in (("logistic", "2 protocols have"), ("adam", "no protocol has")):
        refused = call("library", "errors", *where, "--protocol", part)
        assert refused.exit_code == 2 and word in refused.stderr and key in refused.stderr
    assert "No error fits" in call("library", "errors", *where, "--expert", "nobody").stdout
    assert call("library", "errors", *where, "--limit", 0).exit_code == 2
    assert call("library", "errors", "--library", tmp_path / "none").exit_code == 2


def test_a_mean_over_some_seeds_says_so(call, photos, tmp_path):
    task, tasks = read_folder(photos), make_tasks()[:1]
    with Library.open(tmp_path) as library:
        error_matrix([task], [make_expert("mine")], library=library, seeds=(0, 1, 2), device="cpu")
        error_matrix(tasks, [make_expert("mine")], library=library, seeds=(2,), device="cpu")
    told = call("library", "errors", "--library", tmp_path).stdout
    assert "(1 of 3 seeds)" in told and "(3 of 3 seeds)" not in told


def test_a_file_that_is_there_is_not_lost_and_said_before_the_work(measured, photos, call, tmp_path):
    folder, _ = measured
    where = ("--library", tmp_path / "library", "--csv", folder / "errors.csv")
    before = (folder / "errors.csv").read_bytes()
    result = call("error-matrix", photos, *LITE, *where)
    assert result.exit_code == 2 and "errors.csv' is there already" in result.stderr and "--force" in result.stderr
    assert (folder / "errors.csv").read_bytes() == before and not (tmp_path / "library").exists()
    nowhere = call("error-matrix", photos, *LITE, "--csv", tmp_path / "no" / "errors.csv")
    assert nowhere.exit_code == 5 and "not a folder of this machine" in nowhere.stderr


def test_an_empty_library_has_no_experts(call, tmp_path):
    result = call("library", "experts", "--library", tmp_path / "none")
    assert result.exit_code == 0 and "There is no expert" in result.stdout and "task2vec error-matrix" in result.stdout


def test_an_expert_is_removed_with_its_errors(call, photos, tmp_path):
    with Library.open(tmp_path) as library:
        task = read_folder(photos)
        error_matrix([task], [make_expert("mine")], library=library, seeds=(0, 1), device="cpu")
    refused = call("library", "rm-expert", "mine", "--library", tmp_path)
    assert refused.exit_code == 2 and "--with-errors" in refused.stderr
    result = call("library", "rm-expert", "mine", "--with-errors", "--library", tmp_path)
    assert result.exit_code == 0 and result.stdout == "removed: expert mine, 2 errors\n"
    with Library.open(tmp_path) as library:
        assert not library.experts() and not library.errors() and len(library) == 1
    assert call("library", "rm-expert", "mine", "--library", tmp_path).exit_code == 2


def test_a_known_model_at_another_size_is_refused(measured, photos, call):
    folder, _ = measured
    result = call(
        "error-matrix", photos, "--expert", "tf_efficientnet_lite0", "--size", 40, "--library", folder / "library"
    )
    assert result.exit_code == 2 and "32 pixels" in result.stderr and "--size 40" in result.stderr
