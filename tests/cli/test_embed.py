"""`task2vec embed` of one task: what it prints, saves, finds and refuses."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import task2vec
from task2vec import Library
from task2vec.errors import ConflictError, ResourceError
from tests.cli.material import SMALL, call, damage, make, read, refuse
from tests.failures import fail
from tests.tiny_probe import make_tiny

pytestmark = pytest.mark.usefixtures("tiny")


@pytest.fixture
def computed(monkeypatch):
    """The names of tasks that were really embedded."""
    names, embed_many = [], task2vec.embed_many

    def watch(*args, **options):
        for result in embed_many(*args, **options):
            names.extend([] if result.is_found else [result.task])
            yield result

    monkeypatch.setattr(task2vec, "embed_many", watch)
    return names


def replace_embed(monkeypatch, embedding):
    """Let this be the embedding of every task; the list of the settings that it was asked for with."""
    asked = []

    def embed_many(tasks, probe, *, settings, **_):
        asked.append(settings)
        return (task2vec.TaskResult(number, task.name, embedding) for number, task in enumerate(tasks))

    monkeypatch.setattr(task2vec, "embed_many", embed_many)
    return asked


def test_it_is_saved_to_the_library_with_its_facts(photos, opened, tmp_path):
    result = call("embed", photos, "--tag", "mine", *SMALL)
    assert result.exit_code == 0 and list(tmp_path.iterdir()) == [], result.stderr
    task, embedding, (run,) = opened.task("photos"), opened.get("photos"), opened.runs()
    shown = " ".join(result.stdout.split())
    assert f"{opened.folder} (embedding {task.embeddings[0].key[:8]})" in shown
    for words in ("16 images, 2 classes (8 images each)", "cross-validated error", "norm", "at least", "--split-half"):
        assert words in shown
    assert task.tags == ("mine",) and task.source == str(photos) and task.images == 16
    settings = task2vec.EmbedSettings(max_samples=6, l2=0.01)
    alone = task2vec.embed(task2vec.read_folder(photos), make_tiny(), settings=settings, device="cpu")
    assert embedding.fisher.tolist() == alone.fisher.tolist()
    assert run.what == "embed" and run.outcome == "done"


def test_the_same_again_is_found_and_not_computed(photos, opened, computed):
    first = read("embed", photos, *SMALL)
    again = read("embed", photos, "--tag", "late", *SMALL)
    assert computed == ["photos"] and not first.pop("is_found") and again.pop("is_found")
    assert again | {"seconds": 0} == first | {"seconds": 0} and first["bad"] == [] and 0 < first["noise"]["floor"] < 1
    shown = call("embed", photos, "--out", "files", *SMALL)
    assert "found in the library" in shown.stdout and "photos.t2v.safetensors" in shown.stdout
    assert task2vec.load_embedding(Path("files/photos.t2v.safetensors")).norm() == first["norm"]
    assert opened.task("photos").tags == ("late",)
    assert not read("embed", photos, "--seed", "5", "--out", "files", *SMALL)["is_found"] and len(computed) == 2
    assert len(os.listdir("files")) == 2  # files of other settings are never overwritten


def test_force_computes_again_and_replaces(photos, opened, monkeypatch):
    first = read("embed", photos, "--out", "files", *SMALL)
    twice = task2vec.load_embedding(first["written"])
    twice = replace(twice, fisher=2 * twice.fisher)
    replace_embed(monkeypatch, twice)
    second = read("embed", photos, "--force", "--out", "files", *SMALL)
    assert second["norm"] == pytest.approx(2 * first["norm"])
    assert second["key"] == first["key"] and second["written"] == first["written"]
    assert opened.get("photos").norm() == second["norm"] and len(opened.task("photos").embeddings) == 1
    assert task2vec.load_embedding(second["written"]).norm() == second["norm"]


def test_a_task_that_is_known_by_another_name(photos, computed, tmp_path):
    read("embed", photos, *SMALL)
    shutil.copytree(photos, tmp_path / "copied")
    shown = " ".join(call("embed", "copied", *SMALL).stdout.split())
    assert "known there as 'photos'" in shown and "task2vec library rename photos copied" in shown
    assert computed == ["photos"]
    other = read("embed", "copied", "--name", "other", "--seed", 3, *SMALL)
    assert other["known_as"] == "photos" and other["task"] == "other"


def test_a_table_with_its_columns_and_two_halves(photos, opened):
    rows = [f"{image.relative_to(photos)},{image.parent.name}\n" for image in photos.rglob("*.png")]
    Path("table.csv").write_text("".join(["file,kind\n", *rows]))
    columns = ("--label-columns", "kind", "--path-column", "file", "--root", photos)
    report = read("embed", "table.csv", *columns, "--split-half", *SMALL)
    assert report["counts"]["classes"] == 2 and not report["is_multilabel"]
    embedding = opened.get("table")
    assert embedding.halves is not None and report["noise"]["basis"] == "halves"
    assert report["noise"]["floor"] == task2vec.distance.find_floor(embedding)
    shown = call("embed", "table.csv", *columns, "--split-half", *SMALL).stdout
    assert "at least" not in shown and "two such embeddings of this task" in shown


def test_mistakes_have_their_exit_codes_and_create_nothing(photos, tmp_path):
    shutil.copytree(photos / "dark", tmp_path / "lonely" / "dark")
    (tmp_path / "note.md").write_text("hello")
    refuse("'missing' does not exist", "embed", "missing")
    refuse("class", "embed", "lonely", code=3)
    refuse("neither a folder nor a table", "embed", "note.md")
    refuse("--separator only applies to a table", "embed", "lonely", "--separator", "tab")
    refuse("--method variational", "embed", "lonely", "--epochs", "3")
    refuse("--out DIR", "embed", "lonely", "--no-library")
    refuse("is a file", "embed", "lonely", "--out", "note.md")
    refuse("PATH", "embed")
    assert sorted(os.listdir(tmp_path)) == ["lonely", "note.md"]


@pytest.mark.parametrize(("error", "code"), [(ResourceError("the disk is full"), 0), (ConflictError("differs"), 3)])
def test_what_was_computed_is_not_lost_if_the_library_refuses_it(photos, monkeypatch, error, code):
    monkeypatch.setattr(Library, "add", fail(error))
    report = read("embed", photos, *SMALL, code=code)
    assert report["library"] is None and task2vec.load_embedding(report["written"]).task == "photos"


def test_without_a_home_nothing_is_computed_before_a_folder_is_named(photos, computed, monkeypatch):
    for name in ("TASK2VEC_LIBRARY", "XDG_DATA_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", fail(RuntimeError("no home")))
    monkeypatch.setattr(Path, "expanduser", fail(RuntimeError("no home")))
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    refuse("--out DIR", "embed", photos, *SMALL, code=5)
    assert computed == []
    made = call("embed", photos, *SMALL, "--out", "x")
    assert made.exit_code == 0 and "warning: nothing will be saved to the library" in made.stderr
    assert task2vec.load_embedding("x/photos.t2v.safetensors").task == "photos"


def test_a_damaged_library_stops_it_before_the_work(photos, own_library, computed):
    damage(own_library)
    refuse("--no-library", "embed", photos, *SMALL, code=4)
    assert computed == [] and call("embed", photos, "--no-library", "--out", "x", *SMALL).exit_code == 0


def test_variational_training_is_reported(photos, monkeypatch):
    trained = make("photos", 1, method="variational")
    trained.provenance["variational"] = {"loss": 0.5, "kl": 2.0, "drift": 0.01}
    asked = replace_embed(monkeypatch, trained)
    result = call("embed", photos, "--method", "variational", "--epochs", "3", "--no-library", "--out", "x")
    assert "loss 0.5, KL 2 nats" in result.stdout, result.stderr
    assert asked[0].method == "variational" and asked[0].variational.epochs == 3


def test_a_probe_is_loaded_only_to_compute_something(photos, monkeypatch, tmp_path):
    loaded, weights = [], tmp_path / "own.safetensors"
    monkeypatch.setattr(task2vec, "load_probe", lambda name, **how: loaded.append(name) or make_tiny())
    words = ("embed", photos, *SMALL)
    for options, is_found, loads in (
        ((), False, 1),
        ((), True, 0),
        (("--size", "64"), True, 1),  # it might have been another probe
        (("--weights", weights), True, 1),
        (("--weights", weights), True, 1),
        (("--seed", "3"), False, 1),
        (("--force",), False, 1),
    ):
        loaded.clear()
        assert (read(*words, *options)["is_found"], len(loaded)) == (is_found, loads), options
    assert read("nearest", photos)["query"] and len(loaded) == 2  # its settings are the default ones
    assert read("nearest", photos)["query"] and len(loaded) == 2


@pytest.mark.parametrize("words", [("--force",), ("--seed", "3")])
def test_replaced_weights_of_one_name_stay_known_once_they_were_loaded(photos, monkeypatch, words):
    weights = [1]
    monkeypatch.setattr(task2vec, "load_probe", lambda name, **_: replace(make_tiny(weights[0]), name=name))
    old = read("embed", photos, *SMALL)
    weights[0] = 2
    assert read("embed", photos, *SMALL)["key"] == old["key"]  # not loaded, so not noticed
    new = read("embed", photos, *SMALL, *words)
    assert new["fingerprints"]["probe"] != old["fingerprints"]["probe"]
    assert read("embed", photos, *SMALL)["fingerprints"] == new["fingerprints"]


def test_a_library_that_takes_nothing_is_not_said_to_have_the_embedding(photos, monkeypatch):
    assert read("embed", photos, *SMALL)["library"] is not None
    monkeypatch.setattr("task2vec.library.library.cannot_write", lambda path: True)
    assert read("embed", photos, *SMALL, "--out", "x")["library"] is not None
    assert read("embed", photos, *SMALL, "--seed", "3", "--out", "x")["library"] is None


def test_a_library_that_cannot_record_the_run_is_only_read(photos, monkeypatch):
    assert read("embed", photos, *SMALL)["library"] is not None
    monkeypatch.setattr(Library, "record", fail(ResourceError("the disk is full")))
    monkeypatch.setattr(Library, "add", fail(AssertionError("added")))
    refuse("--out DIR", "embed", photos, *SMALL, "--seed", "3", code=5)
    made = call("embed", photos, *SMALL, "--seed", "3", "--out", "x")
    assert made.exit_code == 0 and "nothing will be saved to the library: the disk is full" in made.stderr
    assert "found in the library" in call("embed", photos, *SMALL, "--out", "x").stdout
