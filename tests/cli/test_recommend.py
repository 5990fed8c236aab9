"""`task2vec recommend` and `task2vec evaluate`."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import task2vec
from task2vec.experts.metatask import CellFailure
from task2vec.select import STRATEGIES
from task2vec.select.zoo import PERMISSIVE
from tests.cli.material import call, make, make_known, read, read_csv, refuse


@pytest.fixture(scope="module")
def known():
    """An embedding in a space that the bundled errors are known for."""
    return task2vec.bundled_metatask().embeddings["tf_efficientnet_lite0 robust"][0]


@pytest.fixture
def saved(known, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return known.save(tmp_path / "known.t2v.safetensors")


def test_a_saved_embedding_gets_a_recommendation(saved, own_library, tmp_path):
    report = read("recommend", saved, "--no-library")
    assert report["choice"] in {row["model"] for row in report["rows"]} and report["library"] is None
    assert all(0 <= row["low"] <= row["error"] <= row["high"] <= 1 for row in report["rows"])
    args = ("recommend", saved, "--no-library", "-k", 2, "--out", tmp_path / "rows.csv")
    shown = call(*args)
    assert shown.exit_code == 0 and report["choice"] in shown.stdout
    assert len(read_csv(tmp_path / "rows.csv")) > 3
    refuse("--force", *args)
    assert call(*args, "--force").exit_code == 0
    assert not Path(own_library).exists()


def test_a_name_of_the_library_and_few_models(opened):
    opened.add(make_known("mine"))
    few = read("recommend", "mine", "--model", "resnet18, mobilenet_v2", "--max-params", "10M")
    assert [row["model"] for row in few["rows"]] == ["mobilenet_v2"] and few["library"] == str(opened.folder)


def test_only_weights_of_some_licenses(saved):
    free = read("recommend", saved, "--no-library", "--license", "permissive")
    assert "mobilenet_v2" not in {row["model"] for row in free["rows"]}  # of torchvision, which states no licence
    assert any(note.startswith("Left out: 1 candidate whose weights are not known to have") for note in free["notes"])
    assert free["zoo"] and all(one["license"] in PERMISSIVE for one in free["zoo"])
    for name, words in {"cc-by-nc-4.0": "cc-by-nc-4.0 (--license), so none", "free": "'free' (--lic"}.items():
        refuse(words, "recommend", saved, "--no-library", "--license", name)


@pytest.fixture
def advise(known, monkeypatch):
    """Let `recommend` return this without work; what it is given is collected."""
    given, done = [], task2vec.recommend(known)

    def patch(**changes):
        monkeypatch.setattr(task2vec, "recommend", lambda what, **how: given.append(what) or replace(done, **changes))
        return given

    return patch


def test_measuring_takes_the_folder_that_has_the_name_of_a_task(photos, advise, opened, monkeypatch):
    monkeypatch.chdir(photos.parent)
    given = advise()
    opened.add(make("photos", 1))  # by another probe: the folder is embedded
    assert call("recommend", "photos").exit_code == 0
    opened.remove("photos")
    opened.add(make_known("photos"))
    for options in ((), ("--measure-top", 1), ("--budget", "60s")):
        assert call("recommend", "photos", *options).exit_code == 0
    tasks = [len(one) for one in given if isinstance(one, task2vec.Task) and one.name == "photos"]
    assert tasks == [16, 16, 16] and isinstance(given[1], task2vec.Embedding)


def test_mistakes_are_reported(saved, tmp_path):
    refuse("many", "recommend", saved, "--no-library", "--max-params", "many")
    refuse("most", "recommend", saved, "--no-library", "--shots", "most")
    refuse("(--measure-top) measures errors on images", "recommend", saved, "--no-library", "--measure-top", "2")
    refuse("(--budget) measures errors on images", "recommend", saved, "--no-library", "--budget", "60s")
    refuse("-k", "recommend", saved, "--no-library", "-k", "0")
    refuse("net", "recommend", make("other", 1).save(tmp_path / "other.t2v.safetensors"), "--no-library")
    refuse("no folder or file 'nothing'", "recommend", "nothing", "--no-library")


def test_a_budget_is_spent_on_measuring(photos, own_library):
    args = ("recommend", photos, "--model", "tf_efficientnet_lite0", "--budget")
    report = read(*args, "5m")
    (row,) = report["rows"]
    assert row["model"] == report["choice"] == "tf_efficientnet_lite0" and row["measured"] is not None
    assert report["budget"] == 300 and 0 < report["spent"]["measuring"] < 300 and report["spent"]["embedding"] == 0
    assert report["measured_images"] == 16 and report["is_embedded"] is False and report["library"] == own_library
    shown = call(*args, "90")
    assert shown.exit_code == 0 and "on 16 of 16 images) of 90 s" in shown.stdout
    refuse("is not a time above 0", *args, "soon")


FAILED = [CellFailure("mine", "", name, "ResourceError", "no network", code) for name, code in (("a", 3), ("b", 5))]


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"is_interrupted": True}, 130, "Run the same command again"),
        ({"failures": tuple(FAILED)}, 5, "2 models could not be measured"),
    ],
)
def test_an_interrupt_and_failures_print_what_is_known_and_have_their_codes(photos, advise, changes, code, words):
    advise(**changes)
    report = read("recommend", photos, "--budget", "9s", code=code)
    result = call("recommend", photos, "--measure-top", 3)
    assert result.exit_code == code and words in result.stderr and report["choice"] in result.stdout
    assert [one["model"] for one in report["failures"]] == [one.model for one in changes.get("failures", ())]


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


def test_tables_of_your_own_are_evaluated(errors, tmp_path):
    out = tmp_path / "rows.csv"
    result = call("evaluate", "--evidence", errors, "--distances", tmp_path / "distances.csv", "--out", out)
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith("strategy") and any(line.startswith("average_best") for line in lines)
    assert any(line.startswith("kernel symmetric") for line in lines) and "6 tasks" in result.stdout
    assert "average_best" in [row["strategy"] for row in read_csv(out)]
    report = read("evaluate", "--evidence", errors, "--strategy", "chance", "--leave", "dataset")
    assert report["leave"] == "dataset" and [row["strategy"] for row in report["rows"]] == ["average_best", "chance"]
    assert len(report["choices"]["average_best"]) == 6


def test_slow_strategies_run_if_asked_for_or_with_few_tasks(errors, monkeypatch):
    found, chosen = task2vec.evaluate(task2vec.metatask_from_csv(errors), ["chance"]), []
    monkeypatch.setattr(task2vec, "evaluate", lambda metatask, names, **how: chosen.append(names) or found)
    quick = call("evaluate")
    assert "model space" not in chosen[0] and {"combined", "average_best", "logme"} <= set(chosen[0])
    assert "without 'model space published', 'model space'" in quick.stderr and "--strategy all" in quick.stderr
    slow = ["model space published", "model space", "combined domain", "combined + logme"]
    assert read("evaluate")["slow"] == slow
    for words in (("--strategy", "all"), ("--evidence", errors)):
        assert read("evaluate", *words)["slow"] == [] and chosen[-1] == list(STRATEGIES)


def test_mistakes_in_evaluating_are_reported(errors, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = ("evaluate", "--evidence", "errors.csv")
    refuse("--evidence FILE.csv", "evaluate", "--distances", "distances.csv")
    refuse("--kind", *own, "--kind", "taxa")
    refuse("astrology", *own, "--strategy", "astrology")
    refuse("--force", *own, "--out", "errors.csv")


def test_json_of_the_bundled_errors_is_plain():
    result = call("evaluate", "--strategy", "chance", "--kind", "taxa", "--json")
    assert result.exit_code == 0 and "NaN" not in result.stdout and json.loads(result.stdout)["tasks"]
