"""`task2vec map`: the library or files of embeddings become a map."""

import csv
import json

import pytest

from task2vec import Library, plots
from task2vec.distance import symmetric
from task2vec.embedding import load_embedding
from tests.cli.material import make

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
    """Drawing takes a second: tests of other things do without."""
    for name in ("draw_map", "draw_matrix"):
        monkeypatch.setattr(plots, name, lambda *args, **how: [])


def read_page(path):
    return json.loads(path.read_text(encoding="utf-8").split('id="data">')[1].split("</script>")[0])


def test_it_writes_all_files_and_the_matrix_holds_the_distances(call, folder, tmp_path):
    result = call("map", folder, "--out", tmp_path / "new" / "out")
    assert result.exit_code == 0 and "5 tasks by symmetric distance" in result.stdout, result.stderr
    for name in FILES:
        assert str(tmp_path / "new" / "out" / name) in result.stdout
        assert (tmp_path / "new" / "out" / name).stat().st_size > 100
    with (tmp_path / "new" / "out" / "matrix.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    files = {one.task: one for one in map(load_embedding, folder.iterdir())}
    for row in rows[:2]:
        assert float(row["task 3"]) == pytest.approx(symmetric(files[row["task"]], files["task 3"]), abs=1e-4)


def test_the_library_is_drawn_by_tag_and_probe_with_one_task_placed(read, library, tmp_path, no_figures):
    with Library.open(library) as opened:
        opened.add(make("other", 9, probe="resnet", weights="cd"))
    new = make("new", 20, kind=1).save(tmp_path / "new.t2v.safetensors")
    report = read("map", "--out", tmp_path / "a", "--place", new)
    assert report["tasks"] == 6 and "1 task without" in report["left_out"][0]
    (placed,) = report["placed"]
    assert placed["task"] == "new" and placed["distance"] > 0
    assert len(read_page(tmp_path / "a" / "map.html")["tasks"]) == 7
    assert read("map", "--out", tmp_path / "b", "--tag", "even")["tasks"] == 3


def test_groups_come_from_a_table(read, refuse, folder, tmp_path, no_figures):
    table = tmp_path / "groups.csv"
    table.write_text("task,group\n" + "".join(f"task {n},{'ab'[n % 2]}\n" for n in range(5)))
    assert read("map", folder, "--out", tmp_path / "a", "--group", table)["tasks"] == 5
    assert set(read_page(tmp_path / "a" / "map.html")["groups"]) >= {"a", "b"}
    table.write_text("name,kind\nx,y\n")
    refuse("columns task and group", "map", folder, "--out", tmp_path / "b", "--group", table, code=3)


def test_damaged_files_of_a_folder_are_left_out_and_named_ones_refused(refuse, read, folder, tmp_path, no_figures):
    (folder / "bad.safetensors").write_bytes(b"x" * 50)
    report = read("map", folder, "--out", tmp_path / "a")
    assert report["tasks"] == 5 and report["left_out"] == [str(folder / "bad.safetensors")]
    refuse("bad.safetensors", "map", folder / "bad.safetensors", "--out", tmp_path / "b", code=4)


def test_hostile_names_reach_page_and_terminal_as_text(call, tmp_path):
    names = ["<script>alert(1)</script>", "a\x1b[31m", "=cmd()"]
    for number, name in enumerate(names):
        make(name, number).save(tmp_path / "in" / f"{number}.t2v.safetensors")
    new = make("\x1b[2J", 9).save(tmp_path / "new.t2v.safetensors")
    result = call("map", tmp_path / "in", "--out", tmp_path / "out", "--place", new)
    assert result.exit_code == 0, result.stderr
    assert "\x1b" not in result.output and "placed \\x1b[2J" in result.stdout
    assert "<script>alert(1)" not in (tmp_path / "out" / "map.html").read_text(encoding="utf-8")


def test_mistakes_are_reported_and_nothing_is_written(refuse, folder, tmp_path):
    make("other", 9, probe="resnet", weights="cd").save(tmp_path / "mixed" / "other.t2v.safetensors")
    refuse("no embedding", "map", "nowhere", "--out", "out")
    refuse("--tag only applies to the library", "map", "in", "--tag", "x", "--out", "out")
    refuse("--kind symmetric", "map", "in", "--kind", "kl", "--out", "out")
    refuse("only one embedding", "map", "in/task 0.t2v.safetensors", "--out", "out", code=3)
    refuse("resnet", "map", "in", "mixed", "--out", "out")
    refuse("task2vec embed FOLDER", "map", "--out", "out")
    assert not (tmp_path / "out").exists()
