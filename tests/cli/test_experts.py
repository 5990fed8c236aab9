"""`task2vec metatask train` and `task2vec metatask measure`."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

import task2vec
from task2vec import ErrorProtocol, Library, linear_error, load_probe, read_folder
from task2vec.experts import load_trained
from task2vec.library import Expert, MeasuredError
from tests.cli.material import call, read, read_csv, refuse
from tests.tasks.published import make_cub, make_imaterialist

BRIEF = ("--epochs", 1, "--max-samples", 4, "--size", 32, "--device", "cpu")
LITE = ("--expert", "tf_efficientnet_lite0", "--size", "32", "--device", "cpu")


@pytest.fixture(scope="module")
def trained(tmp_path_factory, photos):
    """The options of a folder with an expert and a library, and the report."""
    folder = tmp_path_factory.mktemp("trained")
    where = ("--out", folder / "experts", "--library", folder / "library")
    return where, read("metatask", "train", photos, *BRIEF, *where)


def test_an_expert_is_written_added_and_found_again(trained, photos):
    where, report = trained
    (one,) = report["experts"]
    expert = load_trained(one["file"])
    assert expert.metadata["recipe"]["epochs"] == 1 and expert.metadata["recipe"]["draws"] == 4
    with Library.open(where[-1]) as library:
        (entry,) = library.experts()
        assert entry.location == one["file"] and entry.task == read_folder(photos).fingerprint
    result = call("metatask", "train", photos, *BRIEF, *where)
    head, row = result.stdout.splitlines()[:2]
    assert result.exit_code == 0 and "found" in row
    assert head.split() == ["expert", "train", "error", "state", "loss", "classes", "images"]
    assert "photos (16 images)" in result.stderr and "1 epoch of 4 images at 32 x 32 pixels" in result.stderr


def test_what_cannot_be_trained_is_named_and_the_others_are(trained, photos, tmp_path):
    where, _ = trained
    refused = call("metatask", "train", photos, *BRIEF, "--seed", 1, *where)
    assert refused.exit_code == 3 and "failed: photos" in refused.stderr and "1 expert failed" in refused.stdout
    (tmp_path / "empty").mkdir()
    report = read("metatask", "train", tmp_path / "empty", photos, *BRIEF, *where, code=3)
    assert [one["name"] for one in report["failed"]] == [str(tmp_path / "empty")]
    assert [one["is_found"] for one in report["experts"]] == [True]
    other = read("metatask", "train", photos, *BRIEF, "--seed", 1, "--name", "second", *where)
    assert [one["name"] for one in other["experts"]] == ["second"]


def test_mistakes_in_training_are_reported_first(photos, tmp_path):
    (tmp_path / "file").write_text("")
    refuse("is a file", "metatask", "train", photos, "--out", tmp_path / "file")
    refuse("slow", "metatask", "train", photos, "--recipe", "slow")
    (tmp_path / "other").mkdir()
    refuse("--name", "metatask", "train", photos, tmp_path / "other", "--name", "a")


def test_more_shots_than_there_are_images_are_warned_of(photos, tmp_path):
    train = int(np.ceil(np.median(read_folder(photos).counts) / 2))
    for shots in (train, train + 1):
        result = call("metatask", "measure", photos, *LITE, "--shots", shots, "--library", tmp_path)
        is_warned = f"fewer than {shots} images (--shots), so all are used for training" in result.stderr
        assert result.exit_code == 0 and is_warned == (shots > train)


@pytest.fixture(scope="module")
def measured(tmp_path_factory, photos):
    """The errors of two folders with one model, and what was printed."""
    folder = tmp_path_factory.mktemp("measured")
    shutil.copytree(photos, folder / "other")
    Image.fromarray(np.zeros((32, 32, 3), dtype=np.uint8)).save(folder / "other" / "dark" / "extra.png")
    where = ("--library", folder / "library", "--out", folder / "errors.csv")
    shots = ("--shots", "half", "--shots", 2, "--seeds", 2)
    result = call("metatask", "measure", photos, folder / "other", *LITE, *shots, *where)
    assert result.exit_code == 0, result.stderr
    return folder, result


def test_errors_are_saved_printed_and_written(measured, photos):
    folder, result = measured
    task = read_folder(photos)
    with Library.open(folder / "library") as library:
        kept = {(one.protocol, one.seed): one.error for one in library.errors() if one.task == task.fingerprint}
        assert len(library.errors()) == 8
    for protocol in (ErrorProtocol(shots=2), ErrorProtocol()):
        for error in linear_error(load_probe(size=32), task, protocol, seeds=(0, 1)):
            assert kept[error.protocol, error.seed] == error.error
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["task", "shots", "best", "pixels", "error", "median"]
    rows = [[name, shots, "tf_efficientnet_lite0", "32"] for name in ("photos", "other") for shots in ("half", "2")]
    assert [line.split()[:4] for line in lines[1:5]] == rows
    assert lines[5].startswith("2 cells computed, 0 failed; in ")
    assert [row["size"] for row in read_csv(folder / "errors.csv")] == ["32"] * 8


def test_the_same_again_computes_nothing(measured, photos):
    folder, _ = measured
    report = read("metatask", "measure", photos, *LITE, "--shots", "2", "--seeds", 2, "--library", folder / "library")
    assert report["computed"] == 0 and len(report["errors"]) == 2 and report["models"] == ["tf_efficientnet_lite0"]
    assert report["protocols"] == [ErrorProtocol(shots=2).key] and report["seeds"] == [0, 1]
    assert all(error["measured"].endswith("Z") and not error["has_seen"] for error in report["errors"])


def test_a_model_at_another_size_is_another_model(photos, tmp_path):
    """What `recommend` measured at 112 pixels is not printed for the model at its own size."""
    lite, task, library = "tf_efficientnet_lite0", read_folder(photos), tmp_path / "library"
    with Library.open(library) as opened:
        entry = Expert(lite, "hub", f"timm:{lite}", input_size=112)
        opened.add(task, entry, Expert("small", "hub", f"timm:{lite}", input_size=48))
        opened.add(MeasuredError(task.fingerprint, lite, 0.875, ErrorProtocol().key, 0))
    args = ("metatask", "measure", photos, "--device", "cpu", "--library", library)
    own = read(*args, "--expert", lite)
    assert own["computed"] == 1 and own["models"] == [f"{lite} (224 px)"] and own["sizes"] == [224]
    again = read(*args, "--expert", lite)
    assert again["computed"] == 0 and again["errors"] == own["errors"] != []
    for words in (("--expert", lite, "--size", "112"), ("--expert", f"timm:{lite}", "--size", 112)):
        found = read(*args, *words)
        assert found["computed"] == 0 and found["sizes"] == [112] and found["errors"][0]["error"] == 0.875
    assert read(*args, "--expert", "small")["sizes"] == [48]
    refuse("--size 64", *args, "--expert", "small", "--size", "64")
    with Library.open(library) as opened:  # the same name and size, but other weights
        opened.add(replace(entry, recipe={"network": "other"}), replace=True)
        opened.add(MeasuredError(task.fingerprint, lite, 0.875, ErrorProtocol().key, 0))
    assert read(*args, "--expert", lite, "--size", "112")["models"] == [f"{lite} (112 px)"]


def test_what_fails_is_reported_and_the_rest_goes_on(measured, photos, tmp_path):
    folder, _ = measured
    for name in ("a", "b"):
        (tmp_path / "lone" / name).mkdir(parents=True)
        Image.new("RGB", (32, 32), (len(name), ord(name), 0)).save(tmp_path / "lone" / name / "only.png")
    result = call("metatask", "measure", tmp_path / "lone", photos, *LITE, "--library", folder / "library")
    assert result.exit_code == 3 and "failed: lone with tf_efficientnet_lite0: " in result.stderr
    assert "1 failed" in result.stdout


def test_mistakes_in_measuring_are_reported_first(measured, photos, monkeypatch):
    folder, _ = measured
    monkeypatch.chdir(folder)
    args = ("metatask", "measure", photos, "--library", folder / "library")
    refuse("resnet_thirty_four", *args, "--expert", "resnet_thirty_four")
    refuse("--seeds", *args, *LITE, "--seeds", 0)
    refuse("most", *args, *LITE, "--shots", "most")
    refuse("--force", *args, *LITE, "--out", "errors.csv")


# --- published datasets -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def datasets(tmp_path_factory, published):
    """The folders of three published datasets, each in its own layout."""
    root = tmp_path_factory.mktemp("datasets")
    make_imaterialist(root / "imaterialist")
    return {"imaterialist": root / "imaterialist"} | {name: published / name for name in ("cub", "deepfashion")}


def test_experts_of_the_tasks_of_a_published_dataset(datasets, tmp_path):
    where = ("--out", tmp_path / "experts", "--library", tmp_path / "library")
    report = read("metatask", "train", datasets["cub"], "--kind", "family", "--split", "train", *BRIEF, *where)
    wanted = task2vec.read_catalog(datasets["cub"]).tasks(kind="family", split="train")
    names = ["cub200: Cuculidae (train)", "cub200: Corvidae (train)"]
    assert [one["name"] for one in report["experts"]] == names == [task.name for task in wanted]
    sources = [load_trained(one["file"]).metadata["task_fingerprint"] for one in report["experts"]]
    assert sources == [task.fingerprint for task in wanted]
    chosen = (datasets["cub"], "--task", "Corvidae", *BRIEF, *where, "--name", "crows")
    told = call("metatask", "train", *chosen)
    assert told.exit_code == 0 and "those for testing included; usual is --split train" in told.stderr
    again = call("metatask", "train", *chosen, "--split", "train", "--force")
    assert again.exit_code == 0 and "included" not in again.stderr
    refuse("--name", "metatask", "train", datasets["cub"], "--kind", "family", "--name", "crows")
    refuse("--kind 'family'", "metatask", "train", datasets["cub"])
    measure = ("metatask", "measure", datasets["cub"], "--task", "Corvidae", "--test-split", "test", "--device", "cpu")
    matrix = read(*measure, "--library", tmp_path / "library", "--expert", names[0], "--expert", names[1])
    assert [one["has_seen"] for one in matrix["errors"]] == [False, True]


@pytest.mark.parametrize(
    ("name", "options", "test_split"),
    [
        ("cub", ("--kind", "family"), "test"),
        ("imaterialist", ("--kind", "attribute", "--task", "Black", "--task", "Blue"), "val"),
    ],
)
def test_errors_on_the_test_split_of_a_published_dataset(datasets, tmp_path, name, options, test_split):
    catalog = task2vec.read_catalog(datasets[name])
    kind = {"kind": options[1]} if options[0] == "--kind" else {}
    names = [word for at, word in enumerate(options) if options[at - 1] == "--task"]
    chosen = [catalog.find(one, **kind) for one in names] or catalog.of_kind(**kind)
    pairs = [[catalog.task(one, split=split) for split in ("train", test_split)] for one in chosen]
    args = ("metatask", "measure", datasets[name], *options, "--test-split", test_split, *LITE, "--library", tmp_path)
    report = read(*args)
    assert report["tasks"] == [task.name for task, _ in pairs] and not report["failed"]
    assert report["protocols"] == ["linear-2, train all, logistic, usual, own test set"]
    for row, (task, test) in zip(report["errors"], pairs, strict=True):
        (error,) = linear_error(load_probe(size=32), task, test=test)
        assert (row["task"], row["protocol"], row["error"]) == (task.fingerprint, error.protocol, error.error)
        assert row["measured"].endswith("Z") and report["tests"][task.fingerprint]["name"] == test.name
    again = read(*args, "--split", "train", "--shots", "all")
    assert again["computed"] == 0 and again["errors"] == report["errors"]


def test_test_splits_by_shots_and_recipe_and_tasks_that_lack_one(datasets, tmp_path, monkeypatch):
    monkeypatch.setattr(task2vec.experts.error_matrix, "EPOCHS", 1)
    measure = ("metatask", "measure", *LITE, "--library", tmp_path)
    args = (*measure, datasets["cub"], "--kind", "order", "--test-split", "test")
    shown = call(*args, "--shots", "all", "--shots", 1, "--shots", 3)
    assert shown.exit_code == 0 and [line.split()[3] for line in shown.stdout.splitlines()[1:4]] == ["all", "1", "3"]
    why = "the median class has fewer than 3 images (--shots), so all are used for training"
    assert f"warning: 'cub200: Cuculiformes (train)': {why}" in shown.stderr
    paper = read(*args, "--recipe", "achille2019", "--seeds", 2, "--max-images", 4)
    assert paper["protocols"] == ["linear-2, train all, achille2019, usual, own test set"] and paper["seeds"] == [0, 1]
    args = (*measure, datasets["deepfashion"], "--kind", "attribute")
    report = read(*args, "--test-split", "val", code=3)
    failed = [f"deepfashion: {name} (val)" for name in ("a-line", "abstract chevron print")]
    assert [one["name"] if "name" in one else one["task"] for one in report["failed"]] == failed
    assert len(report["tasks"]) == 7


def test_unreadable_test_images_are_named(tmp_path):
    make_cub(tmp_path / "cub")
    for bird in (tmp_path / "cub" / "images").glob("*Crow/*0000*"):
        bird.write_bytes(b"")
    args = ("metatask", "measure", tmp_path / "cub", "--task", "Passeriformes", "--test-split", "test", *LITE)
    told = call(*args, "--library", tmp_path / "library")
    assert told.exit_code == 0 and f"unreadable: {bird}" in told.stderr
    assert "classes without test images: '029.American_Crow'" in told.stderr


def test_test_splits_that_cannot_be_meant_are_refused(datasets, photos, tmp_path):
    args = ("metatask", "measure", datasets["cub"], "--task", "Corvidae", *LITE, "--library", tmp_path)
    refuse("shots='half'", *args, "--test-split", "test", "--shots", "half")
    refuse("shots='all'", *args, "--shots", "all")
    refuse("['train', 'test']", *args, "--test-split", "val")
    refuse("--test-split train is the split that is trained on", *args, "--test-split", "train")
    refuse("--one-vs-rest", *args, "--test-split", "test", "--one-vs-rest")
    refuse("--seeds 3", *args, "--test-split", "test", "--seeds", 3)
    words = (photos, datasets["cub"], *LITE, "--test-split", "test")
    refuse("--test-split only applies to published datasets", "metatask", "measure", *words)


def test_missing_weights_are_reported_without_options_that_the_command_lacks(photos, own_library, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", own_library)
    told = call("metatask", "measure", photos, "--expert", "torchvision:resnet18")
    assert told.exit_code == 5 and "--download" in told.stderr and f"to {own_library}" in told.stderr
    assert "task2vec embed --weights FILE" in told.stderr and told.stderr.count("--weights") == 1
