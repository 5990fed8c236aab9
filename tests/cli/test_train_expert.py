"""`task2vec train-expert`: experts in files and in the library, found again, and clear words where it cannot be."""

import json
import shutil
from pathlib import Path

import pytest

from task2vec.experts.checkpoint import load_trained
from task2vec.library import Library
from task2vec.tasks import read_folder

BRIEF = ("--epochs", 1, "--draws", 8, "--size", 32, "--device", "cpu")


@pytest.fixture(scope="module")
def trained(tmp_path_factory, photos, call):
    """A folder with an expert and a library, and what the command said."""
    folder = tmp_path_factory.mktemp("trained")
    result = call(
        "train-expert", photos, *BRIEF, "--out", folder / "experts", "--library", folder / "library", "--json"
    )
    assert result.exit_code == 0, result.stderr
    return folder, json.loads(result.stdout)


def test_an_expert_is_written_and_kept(trained, photos):
    folder, told = trained
    (one,) = told["experts"]
    expert = load_trained(one["file"])
    assert expert.recipe.epochs == 1 and expert.recipe.draws == 8 and expert.recipe.name == "fast, 1 epochs, 8 draws"
    assert [metric.loss for metric in expert.metrics] == [metric["loss"] for metric in one["metrics"]]
    with Library.open(folder / "library") as library:
        (entry,) = library.experts()
        assert entry.location == one["file"] and entry.task == read_folder(photos).fingerprint
        assert [task.name for task in library.tasks()] == [one["task"]]
        assert [run.what for run in library.runs()] == ["train-expert"]


def test_the_same_again_is_found(trained, photos, call):
    folder, _ = trained
    where = ("--out", folder / "experts", "--library", folder / "library")
    result = call("train-expert", photos, *BRIEF, *where)
    assert result.exit_code == 0 and "there already" in result.stdout
    head = result.stdout.splitlines()[0]
    assert head.split() == ["expert", "train", "error", "state", "loss", "classes", "images"]


def test_what_will_be_done_is_said_before_it_is(photos, call, tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr("task2vec.cli.train_expert.say", said.append)
    monkeypatch.setattr("task2vec.experts.train.train_experts", lambda *args, **how: iter(()))
    result = call("train-expert", photos, *BRIEF, "--epochs", 3, "--out", tmp_path / "experts", "--no-library")
    assert result.exit_code == 0, result.stderr
    plan = "photos (16 images); for each 3 epochs of 8 images at 32 x 32 pixels"
    assert said == [f"to train, unless it is there already: {plan}"]


def test_a_long_training_says_how_far_it_is(photos, call, tmp_path, monkeypatch):
    monkeypatch.setattr("task2vec.progress.PAUSE", 0.0)
    result = call("train-expert", photos, *BRIEF, "--out", tmp_path / "experts", "--no-library")
    assert result.exit_code == 0 and "epochs 1 of 1" in result.stderr and "experts 1 of 1" in result.stderr


@pytest.mark.parametrize("columns", [40, 80])
def test_a_narrow_page_keeps_the_words_that_matter(trained, photos, call, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    folder, _ = trained
    result = call("train-expert", photos, *BRIEF, "--out", folder / "experts", "--library", folder / "library")
    head, row = result.stdout.splitlines()[:2]
    assert max(len(head), len(row)) <= columns and head.split()[:3] == ["expert", "train", "error"]
    assert row.startswith("photos") and "%" in row and "there" in row and "already" in result.stdout


def test_another_recipe_under_the_same_name_is_refused_until_forced(trained, photos, call, tmp_path):
    _, told = trained
    known = Path(told["experts"][0]["file"])
    file, name = tmp_path, known.name
    shutil.copy(known, file / name)
    where = ("--out", file, "--no-library")
    refused = call("train-expert", photos, *BRIEF, "--seed", 1, *where)
    assert refused.exit_code == 3 and "--force" in refused.stderr
    assert load_trained(file / name).story["seed"] == 0
    forced = call("train-expert", photos, *BRIEF, "--seed", 1, "--force", *where)
    assert forced.exit_code == 0 and load_trained(file / name).story["seed"] == 1


def test_an_unknown_recipe_is_bad_usage(photos, call):
    result = call("train-expert", photos, "--recipe", "best", "--no-library")
    assert result.exit_code == 2 and "achille2019" in result.stderr


def test_two_experts_of_one_folder_have_names_of_their_own(trained, photos, call):
    folder, _ = trained
    where = ("--out", folder / "experts", "--library", folder / "library")
    refused = call("train-expert", photos, *BRIEF, "--seed", 1, *where)
    assert refused.exit_code == 3 and "--name" in refused.stderr
    result = call("train-expert", photos, *BRIEF, "--seed", 1, "--name", "photos again", *where, "--json")
    (one,) = json.loads(result.stdout)["experts"]
    assert result.exit_code == 0 and (one["name"], one["task"]) == ("photos again", "photos")
    assert load_trained(one["file"]).name == "photos again"
    with Library.open(folder / "library") as library:
        assert [expert.name for expert in library.experts()] == ["photos", "photos again"]
        assert len({expert.task for expert in library.experts()}) == 1
    wrong = call("train-expert", photos, *BRIEF, "--name", "one", "--name", "two", *where)
    assert wrong.exit_code == 2 and "2 times for 1 paths" in wrong.stderr


def test_a_bad_folder_is_named_and_the_others_are_trained(photos, call, tmp_path):
    bad = tmp_path / "bad"
    (bad / "only").mkdir(parents=True)
    shutil.copy(next((photos / "dark").iterdir()), bad / "only")
    result = call("train-expert", bad, photos, *BRIEF, "--out", tmp_path / "experts", "--no-library", "--json")
    assert result.exit_code == 3
    told = json.loads(result.stdout)
    assert [one["name"] for one in told["experts"]] == ["photos"] and told["failed"][0]["name"] == str(bad)
    assert result.stderr.splitlines()[-1] == f"1 expert failed: {bad}"
    alone = call("train-expert", bad, *BRIEF, "--out", tmp_path / "experts", "--no-library")
    assert alone.exit_code == 3 and f"failed: {bad}: " in alone.stderr


def test_what_would_go_wrong_at_the_end_is_said_at_the_begin(photos, call, tmp_path):
    (tmp_path / "file").write_text("mine")
    result = call("train-expert", photos, *BRIEF, "--out", tmp_path / "file", "--no-library")
    assert result.exit_code == 2 and "is a file" in result.stderr and (tmp_path / "file").read_text() == "mine"
    lonely = tmp_path / "lonely"
    shutil.copytree(photos, lonely)
    (lonely / "rare").mkdir()
    shutil.copy(next((photos / "dark").iterdir()), lonely / "rare" / "alone.png")
    warned = call("train-expert", lonely, *BRIEF[:4], "--size", 31, "--recipe", "nonsense", "--no-library")
    assert warned.exit_code == 2 and "warning" not in warned.stderr
    warned = call("train-expert", lonely, *BRIEF[:4], "--size", 31, "--probe", "nonsense", "--no-library")
    assert warned.exit_code == 2 and "warning: --size 31" in warned.stderr
    assert "warning: 'lonely': classes with a single image: 'rare'" in warned.stderr
