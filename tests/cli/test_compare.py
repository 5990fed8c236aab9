"""`task2vec show`, `nearest`, `distance` and `diversity`."""

import numpy as np
import pytest

import task2vec
from task2vec import EmbedSettings, Library, distance, embed_batches, read_folder
from task2vec.cli.compare import group_layers
from tests.cli.conftest import paint
from tests.cli.material import make
from tests.tiny_probe import make_tiny


@pytest.fixture
def saved(tmp_path):
    return make("mine", 30, kind=1).save(tmp_path / "mine.t2v.safetensors")


# --- show ------------------------------------------------------------------------------------------------------------


def test_show_prints_facts_and_stages_that_add_up(call, read, saved):
    shown = call("show", saved).stdout
    assert "mine: 130 images, 2 classes" in shown and "share of norm" in shown and "at least" in shown
    report = read("show", saved)
    assert sum(stage["share"] for stage in report["stages"]) == pytest.approx(1)
    assert sum(stage["filters"] for stage in report["stages"]) == report["filters"] == 30


def test_show_finds_names_and_keys_of_the_library_and_refuses_the_rest(call, read, library, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read("show", "task 3")["task"] == "task 3"
    with Library.open(library) as opened:
        opened.add(make("task 1", 1, method="direct"))
        keys = [one.key for one in opened.task("task 1").embeddings]
    unclear = call("show", "task 1")
    assert unclear.exit_code == 2 and all(key[:8] in unclear.stderr for key in keys)
    assert read("show", keys[1][:8])["settings"]["method"] == "direct"
    (tmp_path / "folder").mkdir()
    refused = call("show", "folder")
    assert refused.exit_code == 2 and "task2vec embed folder" in refused.stderr
    assert call("show", "nothing").exit_code == 2 and call("show", "x.safetensors").exit_code == 2


def test_show_refuses_damaged_files_and_prints_strange_ones_as_text(call, saved, tmp_path):
    content = bytearray(saved.read_bytes())
    content[-3] ^= 0xFF
    (tmp_path / "flipped.safetensors").write_bytes(content)
    assert call("show", tmp_path / "flipped.safetensors").exit_code == 4
    strange = make("a\x1b[31m", 1)
    strange.provenance["warnings"] = ["\x1b[2J odd"]
    shown = call("show", strange.save(tmp_path / "strange.safetensors"))
    assert "a\\x1b[31m" in shown.stdout and "\\x1b[2J odd" in shown.stdout and "\x1b" not in shown.output
    del strange.provenance["head"]
    refused = call("show", strange.save(tmp_path / "headless.safetensors"))
    assert refused.exit_code == 4 and "lacks a valid record" in refused.stderr


# --- nearest and distance --------------------------------------------------------------------------------------------


def test_nearest_lists_the_neighbours_of_a_name_with_their_noise(call, read, library):
    report = read("nearest", "task 0", "-k", 4)
    with Library.open(library) as opened:
        found = opened.nearest("task 0", 4)
    assert [row["task"] for row in report["neighbours"]] == [one.task.name for one in found]
    assert [row["distance"] for row in report["neighbours"]] == [one.distance for one in found]
    assert report["query"]["from"] == "library" and report["neighbours"][0]["tags"] == ["even"]
    has_noise = {row["task"]: row["noise"] is not None for row in report["neighbours"]}
    assert has_noise == {name: int(name[-1]) < 4 for name in has_noise}
    lines = call("nearest", "task 0").stdout.splitlines()
    assert lines[1].split() == ["rank", "task", "distance", "noise", "images", "classes", "tags"] and len(lines) == 7


def test_nearest_embeds_a_folder_once(read, photos, own_library, tiny):
    first, again = read("nearest", photos), read("nearest", photos)
    assert first["query"]["from"] == "path" and first["query"]["is_alone"] and first["neighbours"] == []
    assert "embedded now" in first["query"]["description"] and "found" in again["query"]["description"]
    with Library.open(own_library) as opened:
        assert [task.name for task in opened.tasks()] == ["photos"]


def test_names_come_first_unless_a_path_is_written(read, library, tmp_path, monkeypatch, tiny):
    paint(tmp_path / "task 0", {"dark": 60, "bright": 190}, count=2)
    report = read("nearest", "task 0")
    assert report["query"]["from"] == "library" and "./task 0" in report["query"]["description"]
    assert read("nearest", "./task 0")["query"]["from"] == "path"


def test_stages_are_few_and_lose_no_filter():
    stages = group_layers([(f"blocks.{number}.{part}", 3) for number in range(12) for part in "abc"])
    assert stages == [(f"blocks.{number}", 9) for number in range(12)]


def test_nearest_reports_mistakes(call, library):
    for args, words in ((["nothing"], "no task 'nothing'"), (["task 0", "-k", "0"], "-k 0")):
        result = call("nearest", *args)
        assert result.exit_code == 2 and words in result.stderr


def test_nearest_explains_where_nothing_can_be_compared(call, read, library, saved, tmp_path):
    other = make("other", 40, probe="resnet", weights="cd").save(tmp_path / "other.t2v.safetensors")
    report = read("nearest", other)
    assert report["neighbours"] == [] and report["spaces"][0]["probe"] == "net"
    shown = call("nearest", other).stdout
    assert "No embedding of the library can be compared" in shown and "task2vec embed PATH --probe" in shown


def test_distance_of_every_kind_with_its_noise(call, read, library, saved):
    with Library.open(library) as opened:
        a, b = opened.get("task 0"), opened.get("task 1")
    for kind in distance.KINDS:
        report = read("distance", "task 0", "task 1", "--kind", kind)
        assert report["distance"] == float(distance.KINDS[kind](a, b)) and report["kind"] == kind
        assert (report["noise"] is not None) == (kind == "symmetric")
    noisy = distance.with_error(a, b)
    report = read("distance", "task 0", "task 1")
    assert report["noise"] == {name: getattr(noisy, name) for name in ("floor", "stderr", "corrected", "basis")}
    mixed = read("distance", "task 0", saved)
    assert mixed["second"] == {"task": "mine", "from": "file", "probe": "net"} and mixed["noise"]["stderr"] is None
    shown = call("distance", "task 0", "task 1").stdout
    assert f"{noisy.value:.4f} (symmetric)" in shown and f"{noisy.corrected:.4f} ±" in shown


def test_distance_refuses_unknown_kinds_and_other_probes(call, library, tmp_path):
    other = make("other", 40, probe="resnet", weights="cd").save(tmp_path / "other.t2v.safetensors")
    assert call("distance", "task 0", other).exit_code == 2
    refused = call("distance", "task 0", "task 1", "--kind", "manhattan")
    assert refused.exit_code == 2 and "symmetric" in refused.stderr


# --- diversity -------------------------------------------------------------------------------------------------------

SMALL = ("--classes", "2", "--shots", "2", "--max-samples", "6", "--l2", "0.01", "--device", "cpu")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place, levels = tmp_path_factory.mktemp("collections"), {"a": 60, "b": 120, "c": 180}
    return paint(place / "one", levels, count=12), paint(place / "other", levels, seed=1, count=12)


def test_diversity_is_what_python_computes(call, read, folders, tiny):
    report = read("diversity", folders[0], "--seed", 3, *SMALL)
    settings = EmbedSettings(max_samples=6, l2=0.01, seed=3)
    drawn = {"classes": 2, "images": 2, "seed": 3, "settings": settings, "device": "cpu"}
    found = distance.diversity(*embed_batches(read_folder(folders[0]), make_tiny(), **drawn))
    (row,) = report["collections"]
    assert row["coefficient"]["value"] == pytest.approx(found.coefficient.value, rel=1e-5)
    assert row["batches"] == found.batches and report["batch"] == {"classes": 2, "images_of_each": 2}


def test_two_datasets_are_compared(call, read, folders, tiny):
    assert np.isfinite(read("diversity", *folders, *SMALL)["cross"]["coefficient"]["value"])
    result = call("diversity", *folders, *SMALL)
    assert result.exit_code == 0, result.stderr
    assert "between the two" in result.stdout and "alignment" in result.stdout
    same = call("diversity", folders[0], folders[0], *SMALL)
    assert same.exit_code != 0 and same.stdout == ""


def test_too_few_images_are_refused_before_the_work(call, folders, tiny, monkeypatch):
    monkeypatch.setattr(task2vec, "embed_batches", lambda *args, **how: pytest.fail("embedded"))
    result = call("diversity", folders[0], "--classes", 2, "--shots", 5)
    assert result.exit_code == 2 and "--shots" in result.stderr
