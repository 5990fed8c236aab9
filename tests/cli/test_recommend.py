"""`task2vec recommend` and `task2vec evaluate`."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import task2vec
from task2vec import Library
from tests.cli.material import make


@pytest.fixture(scope="module")
def known():
    """An embedding in a space that the bundled errors are known for."""
    return task2vec.bundled_metatask().embeddings["tf_efficientnet_lite0 robust"][0]


@pytest.fixture
def saved(known, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return known.save(tmp_path / "known.t2v.safetensors")


def test_a_saved_embedding_gets_a_recommendation(call, read, saved, own_library):
    report = read("recommend", saved, "--no-library")
    assert report["choice"] in {row["model"] for row in report["rows"]} and report["library"] is None
    assert all(0 <= row["low"] <= row["error"] <= row["high"] <= 1 for row in report["rows"])
    shown = call("recommend", saved, "--no-library", "-k", 2)
    assert shown.exit_code == 0 and report["choice"] in shown.stdout
    assert not Path(own_library).exists()


def test_a_name_of_the_library_and_few_models(call, read, saved, known, own_library):
    own = ("probe_fingerprint", "settings", "image_size")
    story = make("mine", 1).provenance | {name: known.provenance[name] for name in own if name in known.provenance}
    known = replace(known, task="mine", provenance=story)
    with Library.open(own_library) as opened:
        opened.add(known)
    few = read("recommend", known.task, "--model", "resnet18,resnet34")
    assert {row["model"] for row in few["rows"]} <= {"resnet18", "resnet34"} and few["library"] == own_library
    small = read("recommend", known.task, "--max-params", "10M")
    assert all(row["params"] <= 10_000_000 for row in small["rows"])
    missing = call("recommend", "nothing")
    assert missing.exit_code == 2 and "no folder or file 'nothing'" in missing.stderr


def test_the_table_is_written_to_a_file_that_is_not_overwritten(call, saved, tmp_path):
    args = ("recommend", saved, "--no-library", "--out", tmp_path / "rows.csv")
    assert call(*args).exit_code == 0
    with (tmp_path / "rows.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) > 3
    refused = call(*args)
    assert refused.exit_code == 2 and "--force" in refused.stderr
    assert call(*args, "--force").exit_code == 0


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--strategy", "astrology"], "astrology"),
        (["--model", "resnet_thirty_four"], "resnet_thirty_four"),
        (["--shots", "most"], "most"),
        (["--max-params", "many"], "many"),
        (["--measure-top", "2"], "--measure-top needs images"),
        (["-k", "0"], "-k"),
    ],
)
def test_mistakes_are_reported(call, saved, args, words):
    result = call("recommend", saved, "--no-library", *args)
    assert result.exit_code == 2 and words in result.stderr and result.stdout == "", result.stderr


def test_an_embedding_by_another_probe_is_refused(call, tmp_path):
    other = make("other", 1).save(tmp_path / "other.t2v.safetensors")
    result = call("recommend", other, "--no-library")
    assert result.exit_code == 2 and "net" in result.stderr


def test_an_interrupt_prints_what_is_known(call, read, photos, known, monkeypatch):
    done = task2vec.recommend(known)
    monkeypatch.setattr(task2vec, "recommend", lambda *args, **how: replace(done, is_interrupted=True))
    result = call("recommend", photos, "--measure-top", 1)
    assert result.exit_code == 130 and "Run the same command again" in result.stderr and done.choice in result.stdout


@pytest.fixture
def errors(tmp_path):
    """Six tasks of two datasets with four models, and distances."""
    rng = np.random.default_rng(0)
    rows = ["task,dataset,generic,a,b,c"]
    rows += [f"t{i},d{i % 2}," + ",".join(f"{e:.3f}" for e in rng.uniform(0.1, 0.6, 4)) for i in range(6)]
    path = tmp_path / "errors.csv"
    path.write_text("\n".join(rows))
    apart = np.abs(np.subtract.outer(np.arange(6), np.arange(6))) / 10
    lines = ["task,t0,t1,t2,t3,t4,t5"] + [f"t{i}," + ",".join(map(str, row)) for i, row in enumerate(apart)]
    (tmp_path / "distances.csv").write_text("\n".join(lines))
    return path


def test_tables_of_your_own_are_evaluated(call, read, errors, tmp_path, monkeypatch):
    out = tmp_path / "rows.csv"
    result = call("evaluate", "--evidence", errors, "--distances", tmp_path / "distances.csv", "--out", out)
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith("strategy") and any(line.startswith("average_best") for line in lines)
    assert any(line.startswith("kernel symmetric") for line in lines) and "6 tasks" in result.stdout
    with out.open(newline="") as file:
        assert "average_best" in [row["strategy"] for row in csv.DictReader(file)]
    report = read("evaluate", "--evidence", errors, "--strategy", "chance", "--leave", "dataset")
    assert report["leave"] == "dataset" and [row["strategy"] for row in report["rows"]] == ["average_best", "chance"]
    assert len(report["choices"]["average_best"]) == 6
    monkeypatch.setenv("COLUMNS", "40")
    narrow = call("evaluate", "--evidence", errors, "--strategy", "chance").stdout
    assert max(map(len, narrow.splitlines())) <= 40


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--distances", "distances.csv"], "--evidence FILE.csv"),
        (["--evidence", "errors.csv", "--kind", "taxa"], "--kind"),
        (["--evidence", "errors.csv", "--strategy", "astrology"], "astrology"),
        (["--evidence", "errors.csv", "--out", "errors.csv"], "--force"),
    ],
)
def test_mistakes_in_evaluating_are_reported(call, errors, tmp_path, monkeypatch, args, words):
    monkeypatch.chdir(tmp_path)
    result = call("evaluate", *args)
    assert result.exit_code == 2 and words in result.stderr, result.stderr


def test_json_of_the_bundled_errors_is_plain(call):
    result = call("evaluate", "--strategy", "chance", "--kind", "taxa", "--json")
    assert result.exit_code == 0 and "NaN" not in result.stdout and json.loads(result.stdout)["tasks"]
