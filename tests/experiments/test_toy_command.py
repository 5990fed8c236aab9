"""`python -m experiments. toy`, with fewer tasks so that the suite stays quick."""

import csv
import json
from functools import partial

import pytest
from PIL import Image

from experiments import toy

FILES = ["toy.png", "toy.pdf", "toy_neighbours.png", "toy_neighbours.pdf"]
FILES += ["toy_tasks.csv", "toy_neighbours.csv", "toy_embeddings.csv"]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(toy, "run_toy", partial(toy.run_toy, count=8, side=8))


def test_the_table_the_sentence_and_the_files(call, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    result = call("--out", tmp_path / "made" / "here", "--seeds", 2)
    assert result.exit_code == 0, result.stderr
    for words in ("ReLU", "polynomial", "nearest in task space", "±", "of the way from chance"):
        assert words in " ".join(result.stdout.split())
    assert "seed 1: embedding 8 tasks by polynomial features" in result.stderr
    lines = result.stdout.splitlines()
    assert max(len(line) for line in lines if "here" not in line) <= 80
    for name in FILES:
        assert (tmp_path / "made" / "here" / name).stat().st_size > 0
        assert any(line.endswith(name) for line in lines)


def test_json_with_one_seed_has_no_standard_errors(call, tmp_path):
    result = call("--out", tmp_path, "--seeds", 1, "--seed", 5, "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert [row["seed"] for row in report["rows"]] == [5, 5]
    assert report["means"]["ReLU"]["nearest"]["stderr"] is None
    assert report["means"]["polynomial"]["domain"]["mean"] == pytest.approx(report["rows"][1]["random"])
    assert "Over 1 seed," in report["statement"]
    assert [path.rpartition("/")[2] for path in report["files"]] == FILES
    with Image.open(tmp_path / "toy.png") as picture:
        assert picture.width > 1000
    assert len(list(csv.DictReader((tmp_path / "toy_tasks.csv").read_text().splitlines()))) == 8


@pytest.mark.parametrize("options", [("--seeds", 0), ("--seeds", -3), ("--seed", -1), ("--seed", 1 << 63)])
def test_bad_settings_end_at_once(call, tmp_path, options):
    result = call("--out", tmp_path / "out", *options)
    assert result.exit_code == 2
    assert options[0] in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_place_that_cannot_be_is_an_environment_error(call, tmp_path):
    (tmp_path / "file").write_text("")
    result = call("--out", tmp_path / "file" / "folder")
    assert result.exit_code == 5
    assert "--out" in result.stderr
