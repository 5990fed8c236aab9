"""`task2vec map`: a folder of embeddings becomes a map, and too few or strange ones a sentence."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from task2vec import Library
from task2vec.cli.groups import choose_groups
from task2vec.distance import symmetric
from task2vec.embedding import Embedding, load_embedding
from task2vec.probe import FilterLayer
from tests.cli.material import make
from tests.library.making import spoil

FILES = ["map.html", "map.png", "map.pdf", "map.csv", "matrix.png", "matrix.pdf", "matrix.csv"]


def save(folder, name, *, seed=0, probe="p", kind=0):
    """The file of a made-up embedding; those of one kind are alike."""
    fisher = np.exp(
        np.random.default_rng(kind).normal(size=30) + 0.3 * np.random.default_rng([seed, 1]).normal(size=30)
    )
    story = {
        "probe_fingerprint": probe,
        "settings": {},
        "is_multilabel": bool(kind),
        "counts": {"images": 100 + seed, "classes": 4},
        "head": {"cv_error": 0.25},
    }
    layers = (FilterLayer("conv", "convolution", 30, 9, 0.1),)
    embedding = Embedding(name, "net", fisher, np.zeros(30), np.full(30, 1e-6), layers, story)
    return embedding.save(folder / f"{name.replace('/', '_')}.t2v.safetensors")


@pytest.fixture
def folder(tmp_path):
    """Ten embeddings of two kinds."""
    for number in range(10):
        save(tmp_path / "in", f"task {number}", seed=number, kind=number % 2)
    return tmp_path / "in"


def read(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def read_page(path):
    return json.loads(path.read_text(encoding="utf-8").split('id="data">')[1].split("</script>")[0])


def test_it_writes_all_and_says_where(call, folder, tmp_path):
    result = call("map", folder, "--out", tmp_path / "new" / "out")
    assert result.exit_code == 0, result.stderr
    for name in FILES:
        assert str(tmp_path / "new" / "out" / name) in result.stdout
        assert (tmp_path / "new" / "out" / name).stat().st_size > 100
    assert "10 tasks by symmetric distance (t-SNE, perplexity" in result.stdout
    task = read_page(tmp_path / "new" / "out" / "map.html")["tasks"][3]
    assert [task[key] for key in ("name", "images", "classes", "error")] == ["task 3", 103, 4, 0.25]


def test_the_matrix_holds_the_distances(call, folder, tmp_path):
    result = call("map", folder, "--out", tmp_path, "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["tasks"] == 10
    a, b = (load_embedding(folder / f"task {number}.t2v.safetensors") for number in (2, 7))
    row = next(row for row in read(tmp_path / "matrix.csv") if row["task"] == "task 2")
    assert float(row["task 7"]) == pytest.approx(symmetric(a, b), rel=1e-5)


def test_a_new_task_is_placed_and_the_old_ones_stay(call, folder, tmp_path):
    new = save(folder, "new", seed=99, kind=1)
    result = call("map", folder, "--out", tmp_path / "with", "--place", new, "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["tasks"] == 10
    assert report["placed"][0]["task"] == "new"
    assert int(report["placed"][0]["nearest"].split()[1]) % 2 == 1
    rows = read(tmp_path / "with" / "map.csv")
    assert [row["placed"] for row in rows] == ["0"] * 10 + ["1"]
    new.unlink()
    call("map", folder, "--out", tmp_path / "without")
    places = [[(row["task"], row["x"], row["y"]) for row in table]
              for table in (rows[:10], read(tmp_path / "without" / "map.csv"))]  # fmt: skip
    assert places[0] == places[1]


@pytest.mark.parametrize(
    ("text", "wish"),
    [("task,group\n{rows}", "{file}"), ("kind,task\n{swapped}", "{file}"), ("task,a,b\n{double}", "{file}:b")],
)
def test_groups_from_a_table(folder, tmp_path, text, wish):
    names = [(f"task {number}", "odd" if number % 2 else "even") for number in range(9)]
    table = tmp_path / "groups.csv"
    table.write_text(text.format(
        rows="\n".join(f"{name},{group}" for name, group in names),
        swapped="\n".join(f"{group},{name}" for name, group in names),
        double="\n".join(f"{name},x,{group}" for name, group in names),
    ))  # fmt: skip
    files = sorted(folder.iterdir())
    groups = choose_groups(wish.format(file=table), files, [load_embedding(file) for file in files])
    assert groups == ["even", "odd"] * 4 + ["even", "(no group)"]


def test_groups_from_the_embeddings_and_their_folders(call, folder, tmp_path):
    save(tmp_path / "more", "other")
    files = [*sorted(folder.iterdir()), *(tmp_path / "more").iterdir()]
    embeddings = [load_embedding(file) for file in files]
    assert choose_groups("is_multilabel", files, embeddings) == ["False", "True"] * 5 + ["False"]
    assert choose_groups("folder", files[:2], embeddings[:2]) == ["in", "in"]
    assert choose_groups(None, files[:2], embeddings[:2]) is None
    result = call("map", folder, tmp_path / "more", folder / "task 1.t2v.safetensors", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    assert [row["group"] for row in read(tmp_path / "out" / "map.csv")] == ["in"] * 10 + ["more"]


def test_two_tasks_are_enough_and_one_or_none_are_told(call, tmp_path):
    (tmp_path / "in").mkdir()
    result = call("map", tmp_path / "in", "--out", tmp_path / "out")
    assert result.exit_code == 3
    assert "no embedding" in result.stderr and "task2vec embed FOLDER" in result.stderr
    save(tmp_path / "in", "a")
    result = call("map", tmp_path / "in", "--out", tmp_path / "out")
    assert result.exit_code == 3
    assert "one embedding" in result.stderr and "'a'" in result.stderr
    assert not (tmp_path / "out").exists()
    save(tmp_path / "in", "b", seed=1)
    result = call("map", tmp_path / "in", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    assert "classical scaling" in result.stdout


def test_different_probes_are_not_drawn_together(call, folder, tmp_path):
    save(folder, "stranger", probe="another")
    result = call("map", folder, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "'stranger'" in result.stderr and "different probes" in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_damaged_file_is_left_out_of_a_folder_and_refused_by_name(call, folder, tmp_path):
    (folder / "weights.safetensors").write_bytes(b"something else")
    result = call("map", folder, "--out", tmp_path / "out", "--json")
    assert result.exit_code == 0, result.stderr
    assert "left out" in result.stderr and "weights.safetensors" in result.stderr
    assert json.loads(result.stdout)["left_out"] == [str(folder / "weights.safetensors")]
    result = call("map", folder, folder / "weights.safetensors", "--out", tmp_path / "no")
    assert result.exit_code == 4
    assert "weights.safetensors" in result.stderr


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--kind", "magic"), 2, "magic"),
        (("--kind", "kl"), 2, "--kind symmetric"),
        (("--group", "colour"), 2, "--group colour"),
        (("--group", "nowhere.csv"), 5, "nowhere.csv"),
        (("--place", "nowhere.safetensors"), 2, "nowhere.safetensors"),
        (("nowhere",), 2, "'nowhere' is not there"),
    ],
)
def test_bad_arguments_are_told_and_nothing_is_written(call, folder, tmp_path, options, code, words):
    result = call("map", folder, "--out", tmp_path / "out", *options)
    assert result.exit_code == code, result.stderr
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["", "a,b,c\n1,2,3", "task\nx", "task,a,b\nx,y,z"])
def test_a_table_without_groups_is_told(call, folder, tmp_path, text):
    (tmp_path / "groups.csv").write_text(text)
    result = call("map", folder, "--out", tmp_path / "out", "--group", tmp_path / "groups.csv")
    assert result.exit_code == 3, result.stderr
    assert "columns" in result.stderr


def test_hostile_names_reach_page_and_terminal_as_text(call, tmp_path):
    for number, name in enumerate(("</script><script>alert(1)", "\x1b[31mred", "=1+1")):
        save(tmp_path / "in", name, seed=number)
    result = call("map", tmp_path / "in", "--out", tmp_path / "out", "--place", next((tmp_path / "in").glob("*red*")))
    assert result.exit_code == 0, result.stderr
    assert "\x1b" not in result.stdout
    assert (tmp_path / "out" / "map.html").read_text(encoding="utf-8").count("<script") == 2
    assert {row["task"][:2] for row in read(tmp_path / "out" / "map.csv")} == {"</", "\x1b[", "'="}


def test_without_matplotlib_the_command_to_install_it(call, folder, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    result = call("map", folder, "--out", tmp_path / "out")
    assert result.exit_code == 5
    assert "pip install 'task2vec[plot]'" in result.stderr


# --- the library ----------------------------------------------------------------------------------------------------


@pytest.fixture
def library(own_library):
    """Five tasks by one probe, of which two by another one, too, and one by that alone; four have a tag."""
    with Library.open(own_library) as opened:
        for number in range(5):
            opened.add(make(f"task {number}", number, kind=number % 2), tags=[f"kind {number % 2}"] if number else [])
        opened.add(*(make("", number, probe="other", weights="cd") for number in (1, 2, 9)))
    return Path(own_library)


def test_without_files_it_draws_the_library(call, library, tmp_path):
    result = call("map", "--out", tmp_path, "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["tasks"] == 5 and report["left_out"] == [
        "1 task, embedded by other probes, weights, sizes or methods, or not at all"
    ]
    assert "left out: 1 task" in result.stderr
    rows = {row["task"]: row for row in read(tmp_path / "map.csv")}
    assert sorted(rows) == [f"task {number}" for number in range(5)]
    assert [rows[f"task {number}"]["group"] for number in range(3)] == ["(no group)", "kind 1", "kind 0"]
    (row,) = (row for row in read(tmp_path / "matrix.csv") if row["task"] == "task 2")
    assert float(row["task 3"]) == pytest.approx(symmetric(make("", 2), make("", 3, kind=1)), rel=1e-5)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (("--probe", "other"), ["", "task 1", "task 2"]),
        (("--probe", "cdcd"), ["", "task 1", "task 2"]),
        (("--tag", "kind 0"), ["task 2", "task 4"]),
    ],
)
def test_tasks_of_the_library_are_chosen(call, library, tmp_path, options, names):
    result = call("map", "--out", tmp_path, "--group", "tag", *options)
    assert result.exit_code == 0, result.stderr
    assert sorted(row["task"] for row in read(tmp_path / "map.csv")) == names


def test_a_task_is_placed_on_the_map_of_the_others(call, library, tmp_path):
    place = make("task 3", 3, kind=1).save(tmp_path / "new.t2v.safetensors")
    report = json.loads(call("map", "--out", tmp_path / "out", "--place", place, "--json").stdout)
    assert report["tasks"] == 4 and report["placed"][0]["task"] == "task 3"
    assert report["placed"][0]["nearest"] == "task 1"


def test_a_damaged_embedding_is_left_out_and_named(call, library, tmp_path):
    with Library.open(library) as opened:
        spoil(opened, "task 4")
    result = call("map", "--out", tmp_path / "out", "--json")
    assert result.exit_code == 0 and "task 4" in result.stderr
    assert json.loads(result.stdout)["tasks"] == 4


def test_an_empty_library_is_told(call, own_library, tmp_path):
    result = call("map", "--out", tmp_path / "out")
    assert result.exit_code == 2 and own_library in result.stderr and "task2vec embed FOLDER" in result.stderr
    assert "task2vec map DIR" in result.stderr and not (tmp_path / "out").exists()


def test_a_library_without_tasks_is_like_none(call, own_library, tmp_path):
    before = call("map", "--out", tmp_path / "out")
    Library.open(own_library).close()
    after = call("map", "--out", tmp_path / "out")
    assert after.exit_code == before.exit_code == 2 and after.stderr == before.stderr


def test_files_are_not_chosen_by_tag(call, folder, tmp_path):
    result = call("map", folder, "--out", tmp_path / "out", "--tag", "x")
    assert result.exit_code == 2 and "--tag cannot be meant" in result.stderr
