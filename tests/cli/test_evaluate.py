"""`task2vec metatask evaluate`."""

import json

import pytest

import task2vec
from task2vec.select import STRATEGIES
from tests.cli.material import call, read, read_csv, refuse
from tests.select.material import make_world


@pytest.fixture
def errors(tmp_path):
    """The file of twelve tasks of two datasets with six models."""
    return make_world().save(tmp_path / "world.safetensors")


def test_a_meta_task_of_your_own_is_evaluated(errors, tmp_path):
    out = tmp_path / "rows.csv"
    result = call("metatask", "evaluate", "--evidence", errors, "--out", out)
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith("strategy") and any(line.startswith("average_best") for line in lines)
    assert any(line.startswith("generic") for line in lines) and "12 tasks" in result.stdout
    assert "average_best" in [row["strategy"] for row in read_csv(out)]
    report = read("metatask", "evaluate", "--evidence", errors, "--strategy", "chance", "--leave", "dataset")
    assert report["leave"] == "dataset" and [row["strategy"] for row in report["rows"]] == ["average_best", "chance"]
    assert len(report["choices"]["average_best"]) == 12


def test_slow_strategies_run_if_asked_for_or_with_few_tasks(errors, monkeypatch):
    found, chosen = task2vec.evaluate(make_world(), ["chance"]), []
    monkeypatch.setattr(task2vec, "evaluate", lambda metatask, names, **how: chosen.append(names) or found)
    quick = call("metatask", "evaluate")
    assert "model space" not in chosen[0] and {"average_best", "domain"} <= set(chosen[0])
    assert "without 'model space published', 'model space'" in quick.stderr and "--strategy all" in quick.stderr
    assert read("metatask", "evaluate")["slow"] == ["model space published", "model space"]
    for words in (("--strategy", "all"), ("--evidence", errors)):
        assert read("metatask", "evaluate", *words)["slow"] == [] and chosen[-1] == list(STRATEGIES)


def test_mistakes_in_evaluating_are_reported(errors):
    refuse("there is no file 'nothing'", "metatask", "evaluate", "--evidence", "nothing")
    refuse("--kind", "metatask", "evaluate", "--evidence", "library", "--kind", "taxa")
    refuse("astrology", "metatask", "evaluate", "--evidence", errors, "--strategy", "astrology")
    refuse("--force", "metatask", "evaluate", "--evidence", errors, "--out", errors)


def test_json_of_the_bundled_errors_is_plain():
    result = call("metatask", "evaluate", "--strategy", "chance", "--kind", "taxa", "--json")
    assert result.exit_code == 0 and "NaN" not in result.stdout and json.loads(result.stdout)["tasks"]


def test_proposals_are_evaluated_from_the_command_line(errors, tmp_path):
    out = tmp_path / "rows.csv"
    words = ("metatask", "evaluate", "--strategy", "proposals", "--kind", "labels", "--leave", "dataset")
    result = call(*words, "--out", out)
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].split()[:3] == ["order", "1", "2"] and any(line.split()[:1] == ["rule"] for line in lines)
    assert "22 tasks, each dataset left out in turn" in result.stdout
    rows = {(row["order"], row["measured"]): row for row in read_csv(out)}
    assert rows["all", "all"]["gap"] == "" and float(rows["rule", "4"]["error"]) > 0
    report = read(*words)
    assert report["leave"] == "dataset" and set(report["errors"]) == {
        "average-best",
        "nearest",
        "domain",
        "rule",
        "all",
    }
    refuse("Remove the others", "metatask", "evaluate", "--strategy", "proposals", "--strategy", "chance")
    refuse("two halves", "metatask", "evaluate", "--strategy", "proposals", "--evidence", errors, code=3)
