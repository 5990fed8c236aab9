"""`task2vec train-expert`: experts in files and in the library, found again, and clear words where it cannot be."""

import json
import shutil
from pathlib import Path

import pytest

from task2vec.experts.loading import load_trained
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
    table = result.stdout.split("experts")[0]
    assert max(len(line) for line in table.splitlines()) <= 80


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
