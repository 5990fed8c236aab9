"""`task2vec library embedding`, `nearest`, `distance`, `diversity` and `map`."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import task2vec
from task2vec import EmbedSettings, distance, embed_batches, load_embedding, plots, read_folder
from tests.cli.material import call, make, make_known, paint, read, read_csv, refuse
from tests.failures import flip
from tests.tiny_probe import make_tiny


@pytest.fixture
def saved(tmp_path):
    return make("mine", 30, kind=1).save(tmp_path / "mine.t2v.safetensors")


# --- show ------------------------------------------------------------------------------------------------------------


def test_show_prints_facts_and_stages_that_add_up(saved):
    shown = call("library", "embedding", saved).stdout
    assert "mine: 130 images, 2 classes" in shown and "share of norm" in shown and "at least" in shown
    report = read("library", "embedding", saved)
    assert sum(stage["share"] for stage in report["stages"]) == pytest.approx(1)
    assert sum(stage["filters"] for stage in report["stages"]) == report["filters"] == 30


def test_show_finds_names_and_keys_of_the_library_and_refuses_the_rest(library, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read("library", "embedding", "task 3")["task"] == "task 3"
    library.add(make("task 1", 1, method="direct"))
    keys = [one.key for one in library.task("task 1").embeddings]
    for key in keys:
        refuse(key[:8], "library", "embedding", "task 1")
    assert read("library", "embedding", keys[1][:8])["settings"]["method"] == "direct"
    (tmp_path / "folder").mkdir()
    refuse("task2vec embed folder", "library", "embedding", "folder")
    refuse("no folder or file", "library", "embedding", "x.safetensors")


def test_show_refuses_damaged_files_and_prints_strange_ones_as_text(saved, tmp_path):
    flip(saved, -3)
    refuse("mine.t2v", "library", "embedding", saved, code=4)
    strange = make("a\x1b[31m", 1)
    strange.provenance["warnings"] = ["\x1b[2J odd"]
    shown = call("library", "embedding", strange.save(tmp_path / "strange.safetensors"))
    assert "a\\x1b[31m" in shown.stdout and "\\x1b[2J odd" in shown.stdout and "\x1b" not in shown.output
    for number, head in enumerate(({"l2": "x", "cv_error": 0.1}, {}, 7)):
        strange.provenance["head"] = head
        refuse("lacks a valid record", "library", "embedding", strange.save(tmp_path / f"{number}.safetensors"), code=4)


# --- nearest and distance --------------------------------------------------------------------------------------------


def test_nearest_lists_the_neighbours_of_a_name_with_their_noise(library):
    report = read("nearest", "task 0", "-k", 4)
    found = library.nearest("task 0", 4)
    assert [row["task"] for row in report["neighbours"]] == [one.task.name for one in found]
    assert [row["distance"] for row in report["neighbours"]] == [one.distance for one in found]
    assert report["query"]["from"] == "library" and report["neighbours"][0]["tags"] == ["even"]
    has_noise = {row["task"]: row["noise"] is not None for row in report["neighbours"]}
    assert has_noise == {name: int(name[-1]) < 4 for name in has_noise}
    _, head, *lines = call("nearest", "task 0").stdout.splitlines()
    assert head.split() == ["rank", "task", "from", "distance", "noise", "images", "classes", "tags"]
    assert len(lines) == 5
    report = read("nearest", "task 0", "--kind", "cosine", "-k", 4)
    one, *others = (library.get(f"task {number}") for number in range(6))
    every = sorted((distance.cosine(one, other), other.task) for other in others)
    assert [(row["distance"], row["task"]) for row in report["neighbours"]] == every[:4]
    assert not any(row["noise"] for row in report["neighbours"])  # which is known of the symmetric distance only
    assert "by the distance 'cosine'" in call("nearest", "task 0", "--kind", "cosine").stdout
    refuse("no distance called 'cosin'", "nearest", "task 0", "--kind", "cosin")
    refuse("no task 'nothing'", "nearest", "nothing")


def test_nearest_embeds_a_folder_once_and_names_come_first(opened, tmp_path, tiny):
    paint(tmp_path / "photos", {"dark": 60, "bright": 190}, count=2)
    first, again = read("nearest", "photos"), read("nearest", "./photos")
    assert first["query"]["from"] == "path" and first["query"]["is_alone"] and first["neighbours"] == []
    assert "embedded now" in first["query"]["description"] and "found" in again["query"]["description"]
    assert [task.name for task in opened.tasks()] == ["photos"]
    named = read("nearest", "photos")["query"]
    assert named["from"] == "library" and "./photos" in named["description"]


def test_nearest_explains_where_nothing_can_be_compared(library, tmp_path):
    other = make("other", 40, probe="resnet", weights="cd").save(tmp_path / "other.t2v.safetensors")
    report = read("nearest", other)
    assert report["neighbours"] == [] and report["spaces"][0]["probe"] == "net"
    shown = call("nearest", other).stdout
    assert "No embedding in the library can be compared" in shown and "task2vec embed PATH --probe" in shown
    assert call("distance", "task 0", other).exit_code == 2


def test_nearest_and_map_include_the_bundled_tasks_of_the_same_space(opened, tmp_path, no_figures):
    opened.add(mine := make_known("mine"))
    bundle = task2vec.bundled_metatask()
    rows = read("nearest", "mine", "-k", 3)["neighbours"]
    assert [row["rank"] for row in rows] == [1, 2, 3] and {row["from"] for row in rows} == {"bundled"}
    assert rows[0]["task"] == bundle.tasks[0].name and rows[0]["images"] == bundle.tasks[0].images
    one = bundle.embeddings["tf_efficientnet_lite0 robust"][0]
    assert rows[0]["distance"] == pytest.approx(distance.symmetric(mine, one), abs=1e-6)
    (other,) = read("nearest", "mine", "--kind", "jensen_shannon", "-k", 1)["neighbours"]
    assert other["task"] == one.task and other["distance"] == distance.jensen_shannon(mine, one)
    assert "bundled" in call("nearest", "mine").stdout
    report = read("map", "--out", tmp_path / "a")
    assert report["tasks"] == 104 and report["bundled"] == 103
    page = read_page(tmp_path / "a" / "map.html")
    assert page["groups"] == ["library", "bundled"] and page["tasks"][0]["name"] == "mine"
    assert len(opened.tasks()) == 1


def test_distance_of_every_kind_with_its_noise(library, saved):
    a, b = library.get("task 0"), library.get("task 1")
    for kind in distance.KINDS:
        report = read("distance", "task 0", "task 1", "--kind", kind)
        assert report["distance"] == float(distance.KINDS[kind](a, b)) and report["kind"] == kind
        assert (report["noise"] is not None) == (kind == "symmetric")
    noisy = distance.with_error(a, b)
    facts = {name: getattr(noisy, name) for name in ("floor", "stderr", "corrected", "basis")}
    assert read("distance", "task 0", "task 1")["noise"] == facts
    mixed = read("distance", "task 0", saved)
    assert (mixed["second"]["task"], mixed["second"]["from"]) == ("mine", "file") and mixed["noise"]["stderr"] is None
    shown = call("distance", "task 0", "task 1").stdout
    assert f"{noisy.value:.4f} (symmetric)" in shown and f"{noisy.corrected:.4f} ±" in shown
    refuse("symmetric", "distance", "task 0", "task 1", "--kind", "manhattan")


def test_a_noise_floor_that_is_unknown_is_said_to_be_so(library, tmp_path):
    blank = replace(library.get("task 1"), halves=None, stderr=np.full(len(library.get("task 1")), np.nan))
    file = blank.save(tmp_path / "blank.t2v.safetensors")
    nothing = dict.fromkeys(("floor", "stderr", "corrected"))
    assert read("distance", "task 0", file)["noise"] == nothing | {"basis": "unknown"}
    shown = " ".join(call("distance", "task 0", file).stdout.split())
    assert "unknown; to know it, embed both tasks from their images: task2vec embed FOLDER" in shown
    assert "corrected" not in shown


# --- diversity -------------------------------------------------------------------------------------------------------

SMALL = ("--classes", "2", "--shots", "2", "--max-samples", "6", "--l2", "0.01", "--device", "cpu")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place, levels = tmp_path_factory.mktemp("collections"), {"a": 60, "b": 120, "c": 180}
    return paint(place / "one", levels, count=12), paint(place / "other", levels, seed=1, count=12)


def test_diversity_is_what_python_computes(folders, tiny):
    report = read("diversity", folders[0], "--seed", 3, *SMALL)
    settings = EmbedSettings(max_samples=6, l2=0.01, seed=3)
    drawn = {"classes": 2, "images": 2, "seed": 3, "settings": settings, "device": "cpu"}
    found = distance.diversity(*embed_batches(read_folder(folders[0]), make_tiny(), **drawn))
    (row,) = report["collections"]
    assert row["coefficient"]["value"] == pytest.approx(found.coefficient.value, rel=1e-5)
    assert row["batches"] == found.batches and report["batch"] == {"classes": 2, "images_of_each": 2}


def test_two_datasets_are_compared_and_too_few_images_refused_before_the_work(folders, tiny, monkeypatch):
    sides = [[make(f"{side}{number}", number, kind=side) for number in range(4)] for side in range(4)]
    batches = iter([(sides[0], sides[1]), (sides[2], sides[3])] * 2)
    monkeypatch.setattr(task2vec, "embed_batches", lambda *args, **how: next(batches))
    found = distance.cross_diversity(sides[0], sides[2], twins=(sides[1], sides[3]))
    assert read("diversity", *folders, *SMALL)["cross"]["coefficient"]["value"] == found.coefficient.value
    result = call("diversity", *folders, *SMALL)
    assert f"{found.coefficient}" in result.stdout and "between the two" in result.stdout, result.stderr
    refuse("same images", "diversity", folders[0], folders[0], *SMALL)
    refuse("--shots", "diversity", folders[0], "--classes", 2, "--shots", 5)


# --- map -------------------------------------------------------------------------------------------------------------

FILES = ["map.html", "map.png", "map.pdf", "map.csv", "matrix.png", "matrix.pdf", "matrix.csv"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Five embeddings of two kinds, in the folder that one stands in."""
    for number in range(5):
        make(f"task {number}", number, kind=number % 2).save(tmp_path / "in" / f"task {number}.t2v.safetensors")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "in"


@pytest.fixture
def no_figures(monkeypatch):
    """Drawing and the layout of many tasks take seconds: tests of other things do without."""
    for name in ("draw_map", "draw_matrix"):
        monkeypatch.setattr(plots, name, lambda *args, **how: [])
    line = lambda distances, _: SimpleNamespace(positions=distances[:, :2], describe=lambda: "a line")  # noqa: E731
    monkeypatch.setattr(plots, "lay_out", line)


def read_page(path):
    return json.loads(path.read_text(encoding="utf-8").split('id="data">')[1].split("</script>")[0])


def test_map_writes_all_files_and_the_matrix_holds_the_distances(folder, tmp_path):
    result = call("map", folder, "--out", tmp_path / "new" / "out")
    assert result.exit_code == 0 and "5 tasks by symmetric distance" in result.stdout, result.stderr
    for name in FILES:
        assert str(tmp_path / "new" / "out" / name) in result.stdout
        assert (tmp_path / "new" / "out" / name).stat().st_size > 100
    files = {one.task: one for one in map(load_embedding, folder.iterdir())}
    for row in read_csv(tmp_path / "new" / "out" / "matrix.csv")[:2]:
        assert float(row["task 3"]) == pytest.approx(distance.symmetric(files[row["task"]], files["task 3"]), abs=1e-4)


def test_the_library_is_drawn_by_tag_and_space(library, tmp_path, no_figures):
    library.add(make("other", 9, probe="resnet", weights="cd"))
    report = read("map", "--out", tmp_path / "a")
    assert report["tasks"] == 6 and "1 task without" in report["left_out"][0]
    page = read_page(tmp_path / "a" / "map.html")
    assert len(page["tasks"]) == 6 and page["groups"] == ["even", "library"]
    assert read("map", "--out", tmp_path / "b", "--tag", "even")["tasks"] == 3


def test_hostile_names_reach_page_and_terminal_as_text(tmp_path):
    names = ["<script>alert(1)</script>", "a\x1b[31m", "=cmd()"]
    for number, name in enumerate(names):
        make(name, number).save(tmp_path / "in" / f"{number}.t2v.safetensors")
    bad = tmp_path / "in" / "bad\x1b.safetensors"
    bad.write_bytes(b"x" * 50)
    refuse("bad", "map", bad, "--out", tmp_path / "none", code=4)  # of a folder it is left out
    result = call("map", tmp_path / "in", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    assert "\x1b" not in result.output and "bad\\x1b.safetensors" in result.stderr
    assert "<script>alert(1)" not in (tmp_path / "out" / "map.html").read_text(encoding="utf-8")


def test_mistakes_in_drawing_are_reported_and_nothing_is_written(folder, tmp_path):
    make("other", 9, probe="resnet", weights="cd").save(tmp_path / "mixed" / "other.t2v.safetensors")
    refuse("no embedding", "map", "nowhere", "--out", "out")
    refuse("--tag only applies to the library", "map", "in", "--tag", "x", "--out", "out")
    refuse("--kind symmetric", "map", "in", "--kind", "kl", "--out", "out")
    refuse("only one embedding", "map", "in/task 0.t2v.safetensors", "--out", "out", code=3)
    refuse("resnet", "map", "in", "mixed", "--out", "out")
    refuse("task2vec embed FOLDER", "map", "--out", "out")
    assert not (tmp_path / "out").exists()
