"""`task2vec recommend`: a folder, a name or a file in, a recommendation out, and what is said where there is none."""

import csv
import json
import shutil
from pathlib import Path

import pytest

import task2vec
from task2vec import Library
from tests.cli.material import make
from tests.experts.making import make_expert
from tests.select.recommend_world import fill_library, make_metatask, make_seen_world
from tests.tiny_probe import make_tiny

DEVICE = ("--device", "cpu")


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    """A world of made-up embeddings, and one of pictures."""
    folder = tmp_path_factory.mktemp("worlds")
    return make_metatask().save(folder / "made.safetensors"), make_seen_world(make_tiny()).save(
        folder / "seen.safetensors"
    )


@pytest.fixture(autouse=True)
def tiny(monkeypatch, tmp_path):
    monkeypatch.setattr(task2vec, "load_probe", lambda *args, **options: make_tiny())
    monkeypatch.setattr("task2vec.experts.checkpoint.load_probe", lambda name, **_: make_expert(name, seed=len(name)))
    monkeypatch.setattr("task2vec.select.knowledge.offers._has_weights", lambda location: "lite" in location)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def library(own_library):
    with Library.open(own_library) as opened:
        opened.add(make("task of mine", 30))
        opened.add(make("by another probe", 31, weights="cd", probe="other"))
    return Path(own_library)


def read(result, code=0):
    assert result.exit_code == code, result.stderr
    return json.loads(result.stdout)


def test_a_name_of_the_library(call, library, worlds):
    report = read(call("recommend", "task of mine", "--evidence", worlds[0], "--json"))
    assert report["choice"] == "tf_efficientnet_lite0" and report["task"] == "task of mine" and report["is_sure"]
    assert len(report["rows"]) == 4 and report["is_interrupted"] is False and report["library"] == str(library)
    text = call("recommend", "task of mine", "--evidence", worlds[0]).stdout
    assert text.startswith("task of mine: 130 images, 2 classes") and "Start from tf_efficientnet_lite0" in text


def test_a_saved_embedding_and_the_library_beside_it(call, worlds, own_library, tmp_path):
    make("mine", 30).save(tmp_path / "x.t2v.safetensors")
    alone = read(call("recommend", "x.t2v.safetensors", "--evidence", worlds[0], "--json"))
    assert not Path(own_library).exists()
    with Library.open(own_library) as opened:
        fill_library(opened)
    joined = read(call("recommend", "x.t2v.safetensors", "--evidence", worlds[0], "--json"))
    assert {row["expert"] for row in joined["rows"]} - {row["expert"] for row in alone["rows"]} == {"mine"}
    without = read(call("recommend", "x.t2v.safetensors", "--evidence", worlds[0], "--no-library", "--json"))
    assert without["rows"] == alone["rows"] and without["library"] is None
    own = read(call("recommend", "x.t2v.safetensors", "--evidence", "library", "--json"))
    assert [row["expert"] for row in own["rows"]] == ["mine", "small"]


def test_a_folder_is_embedded_kept_and_measured(call, photos, worlds, own_library):
    args = ("recommend", photos, "--evidence", worlds[1], *DEVICE)
    first = read(call(*args, "--json"))
    assert first["task"] == "photos" and first["regime"] == "5" and first["images"] == 16
    with Library.open(own_library) as opened:
        assert [task.name for task in opened.tasks()] == ["photos"] and not opened.errors()
    told = read(call(*args, "--confirm", 2, "--seeds", 2, "--json"))
    measured = {row["expert"] for row in told["rows"] if row["measured"] is not None}
    assert measured == {"tf_efficientnet_lite0", "tf_efficientnet_lite1"}
    with Library.open(own_library) as opened:
        assert len(opened.errors()) == 4
    # What was measured is known from now on, and its name is enough.
    again = call("recommend", "photos", "--evidence", worlds[1])
    assert (
        again.exit_code == 0 and "measured" in again.stdout.splitlines()[again.stdout.splitlines().index("") + 1 :][0]
    )


def test_an_unreadable_image_is_named(call, photos, worlds, tmp_path):
    shutil.copytree(photos, tmp_path / "some")
    (tmp_path / "some" / "dark" / "torn.png").write_bytes(b"no picture")
    result = call("recommend", "some", "--evidence", worlds[1], *DEVICE, "--allow-bad")
    assert result.exit_code == 0 and "unreadable: " in result.stderr and "torn.png" in result.stderr
    assert result.stdout.startswith("some: 16 images")
    # The second time it is the task of the library that has the name, which is said.
    again = call("recommend", "some", "--evidence", worlds[1], *DEVICE)
    assert "is taken for the task of the library" in again.stderr and "./some" in again.stderr
    assert "is taken for" not in call("recommend", "./some", "--evidence", worlds[1], *DEVICE, "--allow-bad").stderr


def test_without_the_library_nothing_is_left_behind(call, photos, worlds, own_library, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    report = read(call("recommend", photos, "--evidence", worlds[1], *DEVICE, "--no-library", "--json"))
    assert report["task"] == "photos" and report["library"] is None
    assert sorted(tmp_path.rglob("*")) == before and not Path(own_library).exists()


def test_a_name_embedded_in_another_way_is_embedded_again_from_its_folder(call, photos, worlds, own_library, tmp_path):
    with Library.open(own_library) as opened:
        opened.add(make("photos", 3), source=str(photos))
    result = call("recommend", "photos", "--evidence", worlds[1], *DEVICE)
    assert result.exit_code == 0, result.stderr
    assert "is embedded in another way" in result.stderr and "Start from" in result.stdout


def test_a_name_by_another_probe_without_its_folder(call, library, worlds):
    result = call("recommend", "by another probe", "--evidence", worlds[0])
    assert result.exit_code == 2
    assert "embedded by other at 64 pixels" in result.stderr and "net at 64 pixels (robust)" in result.stderr
    assert "task2vec embed FOLDER" in result.stderr and "--probe net --size 64" in result.stderr


def test_confirming_needs_images(call, library, worlds, tmp_path):
    result = call("recommend", "task of mine", "--evidence", worlds[0], "--confirm", 1)
    assert result.exit_code == 2 and "Name the folder instead" in result.stderr
    make("mine", 30).save(tmp_path / "x.t2v.safetensors")
    result = call("recommend", "x.t2v.safetensors", "--evidence", worlds[0], "--confirm", 1)
    assert result.exit_code == 2 and "an embedding, which has none" in result.stderr


def test_an_interrupt_shows_what_was_measured(call, photos, worlds, own_library, monkeypatch):
    loaded = []

    def load(name, **_):
        if loaded:
            raise KeyboardInterrupt
        loaded.append(name)
        return make_expert(name)

    monkeypatch.setattr("task2vec.experts.checkpoint.load_probe", load)
    args = ("recommend", photos, "--evidence", worlds[1], *DEVICE, "--confirm", 2, "--seeds", 1, "--json")
    report = read(call(*args), 130)
    assert report["is_interrupted"] and sum(row["measured"] is not None for row in report["rows"]) == 1
    with Library.open(own_library) as opened:
        assert len(opened.errors()) == 1
    monkeypatch.setattr("task2vec.experts.checkpoint.load_probe", lambda name, **_: make_expert(name))
    report = read(call(*args))
    assert sum(row["measured"] is not None for row in report["rows"]) == 2


def test_options_reach_the_question(call, library, worlds):
    args = ("recommend", "task of mine", "--evidence", worlds[0])
    small = read(call(*args, "--max-params", "4M", "--json"))
    assert {row["expert"] for row in small["rows"]} == {"tf_efficientnet_lite0", "mobilenet_v2"}
    two = read(
        call(*args, "--candidates", "mobilenet_v2,tf_efficientnet_lite0", "--candidate", "generic resnet34", "--json")
    )
    assert {row["expert"] for row in two["rows"]} == {"mobilenet_v2", "tf_efficientnet_lite0", "generic resnet34"}
    assert read(call(*args, "--regime", "few", "--json"))["regime"] == "5"
    assert read(call(*args, "--strategy", "generic", "--json"))["rows"][0]["expert"] == "generic resnet34"
    assert "and 2 more" in call(*args, "--limit", 2).stdout
    for wrong in (("--limit", 0), ("--confirm", -1), ("--seeds", 0), ("--regime", "most"), ("--strategy", "luck")):
        assert call(*args, *wrong).exit_code == 2, wrong


def test_what_cannot_be_meant_is_said_before_anything_is_embedded(call, photos, worlds, own_library):
    for wrong in (
        ("--candidates", "resnet999"),
        ("--max-params", "many"),
        ("--regime", "most"),
        ("--strategy", "luck"),
    ):
        result = call("recommend", photos, "--evidence", worlds[1], *DEVICE, *wrong)
        assert result.exit_code == 2 and wrong[1] in result.stderr, result.stderr
        assert not Path(own_library).exists(), wrong


def test_time_is_measured_on_this_machine(call, library, worlds):
    args = ("recommend", "task of mine", "--evidence", worlds[0], "--candidates", "tf_efficientnet_lite0", *DEVICE)
    (row,) = read(call(*args, "--max-time", 1e6, "--json"))["rows"]
    assert row["seconds"] > 0
    result = call(*args, "--max-time", 1e-9)
    assert result.exit_code == 2 and "The fastest, tf_efficientnet_lite0, takes" in result.stderr
    assert call(*args, "--max-time", 0).exit_code == 2


def test_a_file_is_not_overwritten_unasked(call, library, worlds, tmp_path):
    args = ("recommend", "task of mine", "--evidence", worlds[0], "--csv", "out.csv")
    assert "written: out.csv" in call(*args).stdout
    with open(tmp_path / "out.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["expert"] == "tf_efficientnet_lite0" and rows[0]["rank"] == "1"
    result = call(*args)
    assert result.exit_code == 2 and "--force" in result.stderr
    assert call(*args, "--force").exit_code == 0
    # Said before anything is embedded, and not as our bug after it.
    for place, code, match in (("nowhere/out.csv", 5, "nowhere"), (".", 2, "is a folder")):
        result = call("recommend", "nobody", "--csv", place, "--force")
        assert result.exit_code == code and match in result.stderr, result.stderr


@pytest.mark.parametrize("columns", [80, 40])
def test_the_table_fits_the_page(call, library, worlds, columns, monkeypatch):
    with Library.open(library) as opened:
        opened.rename("task of mine", "[red]\x1b[31m" + "long" * 30)
        name = opened.tasks()[0].name
    monkeypatch.setenv("COLUMNS", str(columns))
    result = call("recommend", name, "--evidence", worlds[0])
    assert result.exit_code == 0, result.stderr
    assert "\x1b" not in result.stdout
    assert max(len(line) for line in result.stdout.splitlines() if not line.startswith("    ")) <= columns


def test_nothing_is_there(call, own_library, worlds):
    result = call("recommend", "nobody")
    assert result.exit_code == 2 and "there is no folder or file 'nobody'" in result.stderr
    assert not Path(own_library).exists()
    with Library.open(own_library) as opened:
        opened.add(make("task of mine", 30))
    result = call("recommend", "nobody")
    assert result.exit_code == 2 and "Nor is there a folder or file 'nobody'" in result.stderr
    result = call("recommend", "task of mine", "--evidence", "library")
    assert result.exit_code == 3 and "no error of any expert is in the library" in result.stderr
    assert call("recommend", "task of mine", "--evidence", "nothing.safetensors").exit_code in (3, 4)


def test_a_probe_is_chosen_of_those_that_errors_are_known_for(call, photos, worlds, tmp_path):
    result = call("recommend", photos, "--evidence", worlds[1], "--probe", "resnet18", *DEVICE)
    assert result.exit_code == 2 and "Choose one of: tiny at 24 pixels (robust)" in result.stderr
    shutil.copytree(photos, tmp_path / "here")
    assert call("recommend", "here", "--evidence", worlds[1], "--probe", "tiny", *DEVICE).exit_code == 0
