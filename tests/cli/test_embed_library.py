"""`task2vec embed` and the library: kept, found, replaced, and never lost where there can be none."""

import json
import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import task2vec
from task2vec import Library
from task2vec.errors import ConflictError, LibraryError, ResourceError
from tests.command import START, run_command
from tests.library.making import spoil
from tests.tiny_probe import make_tiny

SMALL = ("--images", "6", "--l2", "0.01", "--device", "cpu")
FILE = "photos.t2v.safetensors"


@pytest.fixture(autouse=True)
def tiny(monkeypatch, tmp_path):
    monkeypatch.setattr(task2vec, "load_probe", lambda *args, **options: make_tiny())
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def computed(monkeypatch):
    """The names of tasks that were really embedded."""
    names, embed = [], task2vec.embed

    def count(task, *args, **options):
        names.append(task.name)
        return embed(task, *args, **options)

    monkeypatch.setattr(task2vec, "embed", count)
    return names


def read(result, code=0):
    assert result.exit_code == code, result.stderr
    return json.loads(result.stdout)


def test_it_goes_into_the_library_and_no_file_is_left(call, photos, own_library, tmp_path):
    result = call("embed", photos, "--tag", "mine", *SMALL)
    assert result.exit_code == 0, result.stderr
    assert list(tmp_path.iterdir()) == []
    with Library.open(own_library) as opened:
        task, embedding, (run,) = opened.task("photos"), opened.get("photos"), opened.runs()
    assert f"{own_library} (embedding {task.embeddings[0].key[:8]})" in " ".join(result.stdout.split())
    assert task.tags == ("mine",) and task.source == str(photos) and task.images == 16
    alone = task2vec.embed(
        task2vec.read_folder(photos), make_tiny(), settings=task2vec.EmbedSettings(max_samples=6, l2=0.01), device="cpu"
    )
    assert embedding.fisher.tolist() == alone.fisher.tolist()
    assert run.what == "embed" and run.outcome == "done" and run.story["task"] == "photos"
    assert run.story["settings"]["images"] == 6


def test_the_same_again_is_found_and_not_computed(call, photos, computed, tmp_path):
    first = read(call("embed", photos, "--json", *SMALL))
    again = read(call("embed", photos, "--json", "--tag", "late", *SMALL))
    assert computed == ["photos"]
    assert not first["is_found"] and again["is_found"]
    for report in (first, again):
        report.pop("seconds"), report.pop("is_found")
    assert again == first
    words = call("embed", photos, "--out", FILE, *SMALL)
    assert "it was there already, so nothing was computed (--force" in " ".join(words.stdout.split())
    assert "16 images" in words.stdout and FILE in words.stdout
    assert task2vec.load_embedding(FILE).norm() == first["norm"]
    assert computed == ["photos"]
    with Library.open() as opened:
        assert opened.task("photos").tags == ("late",) and len(opened.runs()) == 1


@pytest.mark.parametrize("options", [("--seed", "5"), ("--halves",), ("--method", "direct")])
def test_other_settings_are_another_embedding(call, photos, computed, options):
    read(call("embed", photos, "--json", *SMALL))
    assert not read(call("embed", photos, "--json", *options, *SMALL))["is_found"]
    assert computed == ["photos"] * 2
    with Library.open() as opened:
        assert len(opened.task("photos").embeddings) == 2


def test_other_images_or_labels_are_another_task(call, photos, computed, tmp_path):
    shutil.copytree(photos, tmp_path / "photos")
    Image.fromarray(np.full((32, 32, 3), 99, np.uint8)).save(tmp_path / "photos" / "dark" / "0.png")
    assert not read(call("embed", photos, "--json", *SMALL))["is_found"]
    assert not read(call("embed", "photos", "--json", *SMALL))["is_found"]
    with Library.open() as opened:
        assert [task.name for task in opened.tasks()] == ["photos", "photos"]


def test_force_computes_again_and_replaces(call, photos, computed, monkeypatch):
    first = read(call("embed", photos, "--json", *SMALL))
    embed = task2vec.embed
    monkeypatch.setattr(task2vec, "embed", lambda *args, **options: double(embed(*args, **options)))
    second = read(call("embed", photos, "--force", "--json", *SMALL))
    assert computed == ["photos"] * 2 and second["norm"] == pytest.approx(2 * first["norm"])
    assert second["key"] == first["key"] and not second["is_found"]
    with Library.open() as opened:
        assert opened.get("photos").norm() == second["norm"] and len(opened.task("photos").embeddings) == 1


def double(embedding):
    from dataclasses import replace

    return replace(embedding, fisher=2 * embedding.fisher)


def test_a_task_that_is_known_by_another_name(call, photos, computed, tmp_path):
    read(call("embed", photos, "--json", *SMALL))
    shutil.copytree(photos, tmp_path / "copied")
    found = call("embed", "copied", *SMALL)
    told = " ".join(found.stdout.split())
    assert "already known as 'photos': ask by that name, or change it: task2vec library rename photos copied" in told
    assert computed == ["photos"]
    assert found.stdout.startswith("task         copied: 16 images")
    made = read(call("embed", "copied", "--seed", 3, "--json", *SMALL))
    assert made["known_as"] == "photos" and made["task"] == "copied" and not made["is_found"]
    with Library.open() as opened:
        assert [task.name for task in opened.tasks()] == ["photos"]
    assert read(call("embed", photos, "--json", *SMALL))["known_as"] is None


def test_without_the_library_it_is_a_file_as_ever(call, photos, own_library, tmp_path):
    report = read(call("embed", photos, "--no-library", "--json", *SMALL))
    assert report["written"] == FILE and report["library"] is None and task2vec.load_embedding(FILE).task == "photos"
    assert not os.path.exists(own_library)
    refused = call("embed", photos, "--no-library", "--seed", 9, *SMALL)
    assert refused.exit_code == 2 and "--force" in refused.stderr


def test_a_library_can_be_named(call, photos, own_library, tmp_path):
    assert read(call("embed", photos, "--library", "mine", "--json", *SMALL))["library"] == "mine"
    assert not os.path.exists(own_library)
    with Library.open(tmp_path / "mine") as opened:
        assert len(opened) == 1


# --- where there can be no library ----------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", ["file", "closed", "read-only", "full"])
def test_where_nothing_can_be_kept_it_is_a_file_and_a_warning(
    call, photos, own_library, computed, monkeypatch, trouble
):
    if trouble == "file":
        Path(own_library).write_text("hello")
    elif trouble == "closed":

        def refuse(*args, **options):
            raise ResourceError("the folder is closed. --library DIR")

        monkeypatch.setattr("task2vec.library.database._check_place", refuse)
    elif trouble == "read-only":
        Library.open(own_library).close()
        monkeypatch.setattr("task2vec.library.library.cannot_write", lambda folder: True)
    else:

        @contextmanager
        def fill(*args):
            raise ResourceError("the disk is full. --library DIR")
            yield

        monkeypatch.setattr(Library, "record", fill)
    result = call("embed", photos, *SMALL)
    assert result.exit_code == 0, result.stderr
    assert result.stderr.startswith("warning: nothing is kept in the library: ") and "--library" in result.stderr
    assert FILE in result.stdout and task2vec.load_embedding(FILE).task == "photos"
    assert computed == ["photos"]


def test_without_a_home_it_is_a_file_and_a_warning(photos, tmp_path):
    stage = (
        "import os, pathlib, task2vec\n"
        "for name in ('HOME', 'TASK2VEC_LIBRARY', 'XDG_DATA_HOME'): os.environ.pop(name, None)\n"
        "def home(): raise RuntimeError('no home')\n"
        "pathlib.Path.home = home\n"
        "from tests.tiny_probe import make_tiny\n"
        "task2vec.load_probe = lambda *args, **options: make_tiny()\n"
    )
    root = str(Path(__file__).parents[2])
    result = run_command(
        "embed", photos, *SMALL, cwd=tmp_path, python=f"import sys; sys.path.insert(0, {root!r})\n{stage}{START}"
    )
    assert result.returncode == 0, result.stderr
    assert "no home" in result.stderr and "TASK2VEC_LIBRARY" in result.stderr
    assert task2vec.load_embedding(tmp_path / FILE).task == "photos"


@pytest.mark.parametrize(
    ("error", "code"),
    [(ResourceError("the disk is full"), 0), (ConflictError("other numbers"), 3)],
    ids=["full", "race"],
)
def test_what_was_computed_is_not_lost_if_the_library_refuses_it(call, photos, monkeypatch, tmp_path, error, code):
    def refuse(*args, **options):
        raise error

    monkeypatch.setattr(Library, "add", refuse)
    Path(FILE).write_text("something else")
    report = read(call("embed", photos, "--json", *SMALL), code)
    assert report["library"] is None and report["written"] == "photos-2.t2v.safetensors"
    assert task2vec.load_embedding(report["written"]).task == "photos"
    assert Path(FILE).read_text() == "something else"


def test_what_another_process_added_meanwhile_is_not_overwritten(call, photos, own_library, monkeypatch):
    embed = task2vec.embed

    def embed_slowly(*args, **options):
        embedding = embed(*args, **options)
        with Library.open(own_library) as other:
            other.add(double(embedding))
        return embedding

    monkeypatch.setattr(task2vec, "embed", embed_slowly)
    result = call("embed", photos, "--json", *SMALL)
    report = read(result, 3)
    assert "its numbers differ" in result.stderr and report["written"] == FILE
    with Library.open(own_library) as opened:
        assert opened.get("photos").norm() == pytest.approx(2 * report["norm"])


def test_a_damaged_library_stops_it_before_the_work(call, photos, own_library, computed):
    Library.open(own_library).close()
    (Path(own_library) / "library.sqlite").write_bytes(b"garbage, which is no index of any library" * 100)
    result = call("embed", photos, *SMALL)
    assert result.exit_code == 4 and "--no-library" in result.stderr and computed == []
    assert call("embed", photos, "--no-library", *SMALL).exit_code == 0


def test_a_damaged_entry_is_made_anew(call, photos, own_library, computed):
    first = read(call("embed", photos, "--json", *SMALL))
    with Library.open() as opened:
        spoil(opened, "photos")
    result = call("embed", photos, *SMALL)
    assert result.exit_code == 0, result.stderr
    assert computed == ["photos"] * 2
    with Library.open() as opened:
        assert opened.verify().is_sound and opened.get("photos").norm() == first["norm"]


def test_a_run_that_fails_is_noted_as_such(call, photos, monkeypatch):
    def fail(*args, **options):
        raise LibraryError("not this time")

    monkeypatch.setattr(task2vec, "embed", fail)
    assert call("embed", photos, *SMALL).exit_code == 4
    with Library.open() as opened:
        (run,) = opened.runs()
        assert run.outcome == "LibraryError: not this time" and len(opened) == 0


def test_mistakes_make_no_library(call, own_library):
    assert call("embed", "missing").exit_code == 2
    assert not os.path.exists(own_library)
