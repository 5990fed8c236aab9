"""`task2vec embed` of one task: what it prints, saves, finds and refuses."""

import csv
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import task2vec
from task2vec import Library
from task2vec.errors import ConflictError, ResourceError
from tests.tiny_probe import make_tiny

SMALL = ("--max-samples", "6", "--l2", "0.01", "--device", "cpu")
pytestmark = pytest.mark.usefixtures("tiny")


@pytest.fixture
def computed(monkeypatch):
    """The names of tasks that were really embedded."""
    names, embed = [], task2vec.embed

    def count(task, *args, **options):
        names.append(task.name)
        return embed(task, *args, **options)

    monkeypatch.setattr(task2vec, "embed", count)
    return names


def test_it_is_saved_to_the_library_with_its_facts(call, photos, own_library, tmp_path):
    result = call("embed", photos, "--tag", "mine", *SMALL)
    assert result.exit_code == 0, result.stderr
    assert list(tmp_path.iterdir()) == []
    with Library.open(own_library) as opened:
        task, embedding, (run,) = opened.task("photos"), opened.get("photos"), opened.runs()
    shown = " ".join(result.stdout.split())
    assert f"{own_library} (embedding {task.embeddings[0].key[:8]})" in shown
    for words in ("16 images, 2 classes (8 images each)", "cross-validated error", "norm", "at least", "--split-half"):
        assert words in shown
    assert task.tags == ("mine",) and task.source == str(photos) and task.images == 16
    settings = task2vec.EmbedSettings(max_samples=6, l2=0.01)
    alone = task2vec.embed(task2vec.read_folder(photos), make_tiny(), settings=settings, device="cpu")
    assert embedding.fisher.tolist() == alone.fisher.tolist()
    assert run.what == "embed" and run.outcome == "done"


def test_the_same_again_is_found_and_not_computed(call, read, photos, computed, tmp_path):
    first = read("embed", photos, *SMALL)
    again = read("embed", photos, "--tag", "late", *SMALL)
    assert computed == ["photos"] and not first["is_found"] and again["is_found"]
    for report in (first, again):
        report.pop("seconds"), report.pop("is_found")
    assert again == first and first["bad"] == [] and first["norm"] > 0 and 0 < first["noise"]["floor"] < 1
    shown = call("embed", photos, "--out", "files", *SMALL)
    assert "found in the library" in shown.stdout and "photos.t2v.safetensors" in shown.stdout
    assert task2vec.load_embedding(Path("files/photos.t2v.safetensors")).norm() == first["norm"]
    with Library.open() as opened:
        assert opened.task("photos").tags == ("late",)
    assert not read("embed", photos, "--seed", "5", *SMALL)["is_found"] and computed == ["photos"] * 2


def test_force_computes_again_and_replaces(read, photos, computed, monkeypatch):
    first = read("embed", photos, "--out", "files", *SMALL)
    embed = task2vec.embed
    monkeypatch.setattr(task2vec, "embed", lambda *args, **options: double(embed(*args, **options)))
    second = read("embed", photos, "--force", "--out", "files", *SMALL)
    assert computed == ["photos"] * 2 and second["norm"] == pytest.approx(2 * first["norm"])
    assert second["key"] == first["key"] and second["written"] == first["written"]
    assert task2vec.load_embedding(second["written"]).norm() == second["norm"]
    with Library.open() as opened:
        assert opened.get("photos").norm() == second["norm"] and len(opened.task("photos").embeddings) == 1


def double(embedding):
    return replace(embedding, fisher=2 * embedding.fisher)


def test_files_of_other_settings_are_never_overwritten(read, photos):
    places = {read("embed", photos, "--no-library", "--out", "x", "--seed", seed, *SMALL)["written"] for seed in (1, 2)}
    assert len(places) == 2 == len(os.listdir("x"))


def test_a_task_that_is_known_by_another_name(call, read, photos, computed, tmp_path):
    read("embed", photos, *SMALL)
    shutil.copytree(photos, tmp_path / "copied")
    shown = " ".join(call("embed", "copied", *SMALL).stdout.split())
    assert "known there as 'photos'" in shown and "task2vec library rename photos copied" in shown
    assert computed == ["photos"]
    assert read("embed", "copied", "--seed", 3, *SMALL)["known_as"] == "photos"
    assert read("embed", photos, "--name", "other", "--seed", 4, *SMALL)["task"] == "other"


def test_unreadable_images_are_named(call, read, photos, tmp_path):
    shutil.copytree(photos, tmp_path / "mixed")
    (tmp_path / "mixed" / "dark" / "torn\x1b.png").write_bytes(b"\x89PNG\r\n\x1a\n torn")
    stopped = call("embed", "mixed", *SMALL)
    assert stopped.exit_code == 3 and "torn\\x1b.png" in stopped.stderr and "--allow-bad" in stopped.stderr
    report = read("embed", "mixed", "--allow-bad", *SMALL)
    assert [Path(bad["path"]).name for bad in report["bad"]] == ["torn\x1b.png"]
    assert report["counts"]["images"] == 16 and report["counts"]["bad"] == 1
    assert "\x1b" not in call("embed", "mixed", "--allow-bad", *SMALL).output


def test_a_table_with_its_columns(read, photos):
    with open("table.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "kind"])
        writer.writerows([image.relative_to(photos), image.parent.name] for image in photos.rglob("*.png"))
    report = read("embed", "table.csv", "--label-column", "kind", "--path-column", "file", "--root", photos, *SMALL)
    assert report["counts"]["classes"] == 2 and not report["is_multilabel"]


def test_two_halves_estimate_the_noise(call, read, photos):
    report = read("embed", photos, "--split-half", *SMALL)
    with Library.open() as opened:
        embedding = opened.get("photos")
    assert embedding.halves is not None and report["noise"]["basis"] == "halves"
    assert report["noise"]["floor"] == task2vec.distance.find_floor(embedding)
    shown = call("embed", photos, "--split-half", *SMALL).stdout
    assert "at least" not in shown and "two such embeddings of this task" in shown


def test_a_split_of_a_folder_is_read(call, read, photos, tmp_path):
    for split in ("train", "val"):
        shutil.copytree(photos, tmp_path / "pets" / split)
    assert read("embed", "pets", "--split", "train", *SMALL)["task"] == "pets (train)"
    unsaid = call("embed", "pets", *SMALL)
    assert unsaid.exit_code == 3 and "train" in unsaid.stderr


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["missing"], 2, "'missing' does not exist"),
        (["lonely"], 3, "class"),
        (["note.txt"], 2, "neither a folder nor a table"),
        (["lonely", "--label-column", "x"], 2, "--label-column only applies to a table"),
        (["lonely", "--epochs", "3"], 2, "--method variational"),
        (["lonely", "--no-library"], 2, "--out DIR"),
        (["lonely", "--out", "note.txt"], 2, "is a file"),
        ([], 2, "PATH"),
    ],
)
def test_mistakes_have_their_exit_codes_and_create_nothing(call, photos, tmp_path, own_library, args, code, words):
    shutil.copytree(photos / "dark", tmp_path / "lonely" / "dark")
    (tmp_path / "note.txt").write_text("hello")
    result = call("embed", *args)
    assert result.exit_code == code, result.stderr
    assert words in result.stderr and "Traceback" not in result.stderr and result.stdout == ""
    assert sorted(os.listdir(tmp_path)) == ["lonely", "note.txt"]


@pytest.mark.parametrize(("error", "code"), [(ResourceError("the disk is full"), 0), (ConflictError("differs"), 3)])
def test_what_was_computed_is_not_lost_if_the_library_refuses_it(read, photos, monkeypatch, error, code):
    def refuse(*args, **options):
        raise error

    monkeypatch.setattr(Library, "add", refuse)
    report = read("embed", photos, *SMALL, code=code)
    assert report["library"] is None and task2vec.load_embedding(report["written"]).task == "photos"


def test_without_a_home_nothing_is_computed_before_a_folder_is_named(call, photos, computed, monkeypatch):
    def fail(*_):
        raise RuntimeError("no home")

    for name in ("TASK2VEC_LIBRARY", "XDG_DATA_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", fail)
    monkeypatch.setattr(Path, "expanduser", fail)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    refused = call("embed", photos, *SMALL)
    assert refused.exit_code == 5 and "--out DIR" in refused.stderr and computed == []
    made = call("embed", photos, *SMALL, "--out", "x")
    assert made.exit_code == 0 and "warning: nothing is saved to the library" in made.stderr
    assert task2vec.load_embedding("x/photos.t2v.safetensors").task == "photos"


def test_a_damaged_library_stops_it_before_the_work(call, photos, own_library, computed):
    Library.open(own_library).close()
    (file,) = Path(own_library).glob("*.sqlite")
    file.write_bytes(b"garbage, which is no database at all" * 100)
    result = call("embed", photos, *SMALL)
    assert result.exit_code == 4 and "--no-library" in result.stderr and computed == []
    assert call("embed", photos, "--no-library", "--out", "x", *SMALL).exit_code == 0


def test_a_run_that_fails_is_recorded(call, photos, monkeypatch):
    def fail(*args, **options):
        raise ConflictError("not this time")

    monkeypatch.setattr(task2vec, "embed", fail)
    assert call("embed", photos, *SMALL).exit_code == 3
    with Library.open() as opened:
        (run,) = opened.runs()
        assert run.outcome == "ConflictError: not this time" and len(opened) == 0


def test_variational_training_is_reported(call, photos):
    result = call("embed", photos, "--method", "variational", "--epochs", "1", "--seed", "1", "--max-samples", "16")
    assert result.exit_code == 0, result.stderr
    assert "KL" in result.stdout and np.isfinite(float(result.stdout.split("loss ")[1].split(",")[0]))
