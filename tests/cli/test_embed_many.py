"""`task2vec embed` of several tasks, resumed after failures and interrupts, and `task2vec tasks`, which lists them."""

import os
import shutil
from pathlib import Path

import pytest

import task2vec
from task2vec.cli import inputs
from tests.cli.material import SMALL, call, paint, read, refuse
from tests.failures import fail
from tests.tasks.published import make_cub, make_imaterialist

ATTRIBUTES = ("--path-column", "file", "--label-columns", "is_dark", "--label-columns", "is_even")
pytestmark = pytest.mark.usefixtures("tiny")


@pytest.fixture(scope="module")
def data(tmp_path_factory, published):
    """Two folders, a table of attributes of the images of one of them, and two published datasets."""
    root = tmp_path_factory.mktemp("data")
    paint(root / "shades", {"dark": 60, "grey": 120, "bright": 190})
    paint(root / "pair", {"dark": 60, "bright": 190}, seed=1)
    images = sorted((root / "shades").rglob("*.png"))
    rows = [f"{one.relative_to(root)},{int(one.parent.name == 'dark')},{int(one.stem) % 2}\n" for one in images]
    (root / "table.csv").write_text("".join(["file,is_dark,is_even\n", *rows]))
    for name in ("cub", "deepfashion"):
        (root / name).symlink_to(published / name)
    return root


def read_rows(text):
    """The rows of the table as words by the name of their task, and the lines after it."""
    head, *lines = text.splitlines()
    assert head.split() == ["task", "images", "classes", "error", "norm"]
    end = next(number for number, line in enumerate(lines) if " embedded, " in line)
    start = head.index("images") - 1
    return {line[:start].strip(): line[start:].split() for line in lines[:end]}, lines[end:]


def test_folders_tables_and_published_datasets_in_one_run(data, tmp_path, own_library):
    paint(tmp_path / "lonely" / "train", {"dark": 60}, seed=3)
    paths = [tmp_path / "lonely", data / "table.csv", data / "cub"]
    options = ("--kind", "family", "--split", "train", *ATTRIBUTES, "--root", data, "--out", tmp_path / "out", *SMALL)
    result = call("embed", *paths, *options)
    assert result.exit_code == 3
    assert f"failed: {tmp_path / 'lonely'}: " in result.stderr and "class" in result.stderr
    rows, (summary,) = read_rows(result.stdout)
    assert list(rows) == ["table", "cub200: Cuculidae (train)", "cub200: Corvidae (train)"]
    assert summary.startswith(f"3 embedded, 0 found, 1 failed; in {own_library} and {tmp_path / 'out'} (")
    assert rows["table"][:2] == ["18", "2"] and rows["cub200: Cuculidae (train)"][:2] == ["6", "3"]
    kept = {one.task: one for one in map(task2vec.load_embedding, (tmp_path / "out").iterdir())}
    assert set(kept) == set(rows)
    for name, one in kept.items():
        head = one.provenance["head"]
        assert rows[name][2:4] == [f"{100 * head['cv_error']:.1f}%", f"{one.norm():.3g}"]


def test_the_same_command_again_finds_all_and_one_task_finds_that_of_several(data, opened):
    args = ("embed", data / "pair", data / "shades", "--tag", "mine", *SMALL)
    first, _ = read_rows(call(*args).stdout)
    again, (summary,) = read_rows(call(*args).stdout)
    assert again == {name: [*words, "found"] for name, words in first.items()}
    assert summary.startswith("0 embedded, 2 found, 0 failed")
    assert read("embed", data / "pair", *SMALL)["is_found"]
    report = read("embed", data / "shades", data / "pair", "--out", "files", *SMALL)
    assert report["found"] == 2 and report["library"] == str(opened.folder) and report["folder"] == "files"
    assert all(task2vec.load_embedding(row["written"]).task == row["task"] for row in report["tasks"])
    other = read("embed", data / "pair", data / "shades", "--no-library", "--out", "files", *SMALL)
    assert other["found"] == 2 and other["library"] is None
    assert {task.name: task.tags for task in opened.tasks()} == dict.fromkeys(first, ("mine",))


def test_one_task_for_each_class(data, opened):
    args = (data / "shades", data / "pair", data / "table.csv", *ATTRIBUTES, "--root", data, "--one-vs-rest")
    report = read("embed", *args, *SMALL)
    assert {row["task"]: row["counts"]["per_class"] for row in report["tasks"]} == {
        "shades: bright": [12, 6],
        "shades: dark": [12, 6],
        "shades: grey": [12, 6],
        "pair": [6, 6],
        "table: is_dark": [12, 6],
        "table: is_even": [9, 9],
    }
    # The same labels of the same images are the same task, wherever they were read.
    named = {row["task"]: row["known_as"] for row in report["tasks"] if row["known_as"]}
    assert named in ({"table: is_dark": "shades: dark"}, {"shades: dark": "table: is_dark"})
    assert len(opened) == 5 and opened.verify().is_sound


def test_tasks_of_a_published_dataset_by_name_split_and_number(data):
    chosen = ("--task", "linen", "--task", "floral", "--task", "linen", "--max-images", 10, "--seed", 2)
    report = read("embed", data / "deepfashion", *chosen, *SMALL)
    assert [row["task"] for row in report["tasks"]] == ["deepfashion: linen", "deepfashion: floral"]
    wanted = task2vec.read_deepfashion(data / "deepfashion").tasks(["linen", "floral"], images=10, seed=2)
    assert [row["fingerprints"]["task"] for row in report["tasks"]] == [task.fingerprint for task in wanted]
    one = read("embed", data / "cub", "--task", "Corvidae", "--split", "test", *SMALL)
    assert one["task"] == "cub200: Corvidae (test)"
    assert read("embed", data / "cub", "--task", "Corvidae", "--name", "crows", *SMALL)["task"] == "crows"


def test_tasks_without_two_classes_leave_the_others_be(data):
    report = read("embed", data / "deepfashion", "--kind", "attribute", "--split", "val", *SMALL, code=3)
    failed = [f"deepfashion: {name} (val)" for name in ("a-line", "abstract chevron print")]
    assert [one["name"] for one in report["failed"]] == failed and report["embedded"] == 7


def test_unreadable_images_are_named_with_their_folders_and_fail_their_tasks(data, tmp_path):
    for name in ("a", "b"):
        shutil.copytree(data / "pair", tmp_path / name)
        for torn in ("also.png", "torn\x1b.png"):  # a single one would be left out
            (tmp_path / name / "dark" / torn).write_bytes(b"\x89PNG\r\n\x1a\n torn")
    make_cub(tmp_path / "cub")
    for bird in sorted((tmp_path / "cub" / "images").glob("*Crow/*"))[:2]:
        bird.write_bytes(b"")
    result = call("embed", "a", "b", *SMALL)
    lines = [line.split(": ")[1] for line in result.stderr.splitlines() if line.startswith("unreadable: ")]
    assert result.exit_code == 3 and lines[1::2] == ["a/dark/torn\\x1b.png", "b/dark/torn\\x1b.png"]
    assert "--allow-bad" in result.stderr and "\x1b" not in result.output
    report = read("embed", "a", "b", "--allow-bad", *SMALL)
    assert [row["counts"]["images"] for row in report["tasks"]] == [12, 12]
    assert [Path(bad["path"]).name for row in report["tasks"] for bad in row["bad"]] == 2 * ["also.png", "torn\x1b.png"]
    result = call("embed", "cub", "--kind", "family", *SMALL)
    assert result.exit_code == 3 and bird.name in result.stderr and "('Corvidae')" in result.stderr
    assert list(read_rows(result.stdout)[0]) == ["cub200: Cuculidae"]


def test_folders_of_one_name_are_named_by_their_paths(tmp_path):
    for seed, place in enumerate(("a/pair", "b/pair", "pair")):
        paint(tmp_path / place, {"dark": 60, "bright": 190}, seed=seed, count=2)
    rows, _ = read_rows(call("embed", "a/pair", "b/pair", "pair", *SMALL).stdout)
    assert sorted(rows) == ["a/pair", "b/pair", "pair"]


def test_a_task_that_fails_is_reported_and_the_rest_goes_on(data, tmp_path, monkeypatch):
    read_paths, lost = inputs.read_paths, tmp_path / "pair" / "dark" / "3.png"
    shutil.copytree(data / "pair", tmp_path / "pair")
    monkeypatch.setattr(inputs, "read_paths", lambda *args: (read_paths(*args), lost.unlink())[0])
    result = call("embed", "pair", data / "shades", "--one-vs-rest", *SMALL)
    rows, (summary,) = read_rows(result.stdout)
    assert result.exit_code == 3 and rows.pop("pair") == ["failed"] and len(rows) == 3
    assert summary.startswith("3 embedded, 0 found, 1 failed")
    assert "3.png" in next(line for line in result.stderr.splitlines() if line.startswith("failed: pair: "))


def test_an_interrupt_keeps_what_is_finished(data, monkeypatch):
    def interrupt(*given, embed_many=task2vec.embed_many, **options):
        yield next(embed_many(*given, **options))
        raise KeyboardInterrupt

    args = ("embed", data / "shades", "--one-vs-rest", *SMALL)
    with monkeypatch.context() as patch:
        patch.setattr(task2vec, "embed_many", interrupt)
        result = call(*args)
    assert result.exit_code == 130 and "1 of 3 tasks are finished" in result.stderr
    assert "Run the same command again to continue" in result.stderr
    report = read(*args)
    assert (report["found"], report["embedded"]) == (1, 2)


def test_a_library_that_takes_nothing_is_refused_before_the_work(data, monkeypatch):
    read("embed", data / "pair", *SMALL)
    monkeypatch.setattr("task2vec.library.library.cannot_write", lambda path: True)
    refuse("--out DIR", "embed", data / "pair", data / "shades", *SMALL, code=5)
    assert read("embed", data / "pair", data / "shades", "--out", "out", *SMALL)["found"] == 1  # what it has is found
    assert len(os.listdir("out")) == 2


def test_mistakes_end_before_anything_is_embedded(data, monkeypatch):
    monkeypatch.chdir(data)
    refuse("given twice", "embed", "shades", "shades/../shades")
    refuse("split 'train'", "embed", "cub", "shades", "--split", "train", *SMALL)
    refuse("--kind, --max-images only applies to", "embed", "shades", "--kind", "order", "--max-images", "5")
    refuse("--split only applies to", "embed", "table.csv", "--split", "train")
    refuse("--labels only applies to", "embed", "cub", "--kind", "family", "--labels", "table.csv")
    refuse("--name", "embed", "shades", "pair", "--name", "x")
    refuse("abacus", "embed", "shades", "pair", "--device", "abacus")
    refuse("--kind 'order'", "embed", "cub", *SMALL)
    refuse("Did you mean 'Corvidae'", "embed", "cub", "--task", "Corvidea", *SMALL)


def test_the_chosen_backend_computes(data, monkeypatch):
    opened, serial = [], task2vec.open_backend("serial")
    with monkeypatch.context() as patch:
        patch.setattr(task2vec, "open_backend", lambda *args, **how: opened.append((*args, how["jobs"])) or serial)
        report = read("embed", data / "shades", data / "pair", "--backend", "ray", "--jobs", 1, *SMALL)
    assert opened == [("ray", 1)] and report["embedded"] == 2
    monkeypatch.setattr(task2vec, "load_probe", fail(AssertionError("loaded")))
    monkeypatch.setattr(task2vec, "read_folder", fail(AssertionError("read")))
    for words in (("embed", data / "pair"), ("metatask", "train", data / "pair")):
        refuse("--backend ray", *words, "--backend", "processes")
        refuse("--backend ray", *words, "--jobs", "2")


# --- task2vec tasks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "dataset"), [("cub", "cub200"), ("deepfashion", "deepfashion")])
def test_a_published_dataset_is_recognized_by_its_files(published, name, dataset):
    report = read("tasks", published / name)
    assert report["dataset"] == dataset and len(report["tasks"]) == sum(report["kinds"].values())
    kind = next(iter(report["kinds"]))
    chosen = read("tasks", published / name, "--kind", kind, "--split", "train")
    assert {row["kind"] for row in chosen["tasks"]} == {kind} and list(chosen["images"]) == ["train"]
    shown = call("tasks", published / name).stdout
    assert report["tasks"][0]["name"] in shown and "task2vec embed" in shown and "--kind KIND" in shown


def test_labels_name_the_attributes_of_imaterialist(tmp_path):
    make_imaterialist(tmp_path)
    table = next(tmp_path.glob("*.csv"))
    assert "Black" in [row["name"] for row in read("tasks", tmp_path, "--labels", table)["tasks"]]


def test_a_folder_of_your_own_is_one_task_and_its_unreadable_images_are_named(photos, tmp_path):
    report = read("tasks", photos)
    assert report["kinds"] == {"folder": 1} and report["images"] == {"all": 16}
    (tmp_path / "table.csv").write_text("path,label\n" + "".join(f"{photos}/dark/{n}.png,{n % 2}\n" for n in range(4)))
    assert read("tasks", tmp_path / "table.csv", "--root", "/")["tasks"][0]["kind"] == "table"
    table = f"path,label\n{photos}/dark/0.png,0\n{photos}/bright/0.png,1\nnone.png,1\ngone.png,1\n"
    (tmp_path / "gone.csv").write_text(table)
    refuse("none.png", "tasks", tmp_path / "gone.csv", "--root", "/", code=3)


def test_mistakes_in_listing_have_their_exit_codes(published, monkeypatch):
    monkeypatch.chdir(published)
    refuse("does not exist", "tasks", "nowhere")
    refuse("no tasks of kind 'attribute'", "tasks", "cub", "--kind", "attribute")
    refuse("train", "tasks", "cub", "--as", "inaturalist", code=3)
    refuse("--path-column only applies to", "tasks", "cub", "--path-column", "x")
