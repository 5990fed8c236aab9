"""`task2vec embed-many`: what it reads, writes, tells and refuses; with a tiny network, so that it stays quick."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import task2vec
from task2vec.cli import many
from task2vec.errors import DataError
from tests.command import START
from tests.tasks.birds import make_cub
from tests.tasks.dresses import make_deepfashion
from tests.tasks.published import write_imaterialist
from tests.tiny_probe import make_tiny

SMALL = ("--images", "6", "--l2", "0.01", "--device", "cpu")
ROOT = Path(__file__).resolve().parents[2]
TINY = (
    "import task2vec\n"
    "from tests.tiny_probe import make_tiny\n"
    "task2vec.load_probe = lambda *args, **options: make_tiny()\n"
)


@pytest.fixture(autouse=True)
def tiny(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(task2vec, "load_probe", lambda *args, **options: make_tiny())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def paint(folder, levels, *, seed, count=6):
    """A class folder of noisy pictures for every level of brightness."""
    rng = np.random.default_rng(seed)
    for name, level in levels.items():
        (folder / name).mkdir(parents=True)
        for index in range(count):
            pixels = rng.normal(level, 30, (24, 24, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{index}.png")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Two folders, a table of attributes about the images of one of them, and three published datasets."""
    root = tmp_path_factory.mktemp("data")
    paint(root / "shades", {"dark": 60, "grey": 120, "bright": 190}, seed=0)
    paint(root / "pair", {"dark": 60, "bright": 190}, seed=1)
    with open(root / "table.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "is_dark", "is_even", "is_first"])
        for image in sorted((root / "shades").rglob("*.png")):
            number = int(image.stem)
            answers = [image.parent.name == "dark", number % 2, number == 0]
            writer.writerow([image.relative_to(root), *map(int, answers)])
    make_cub(root / "cub" / "CUB_200_2011")
    make_deepfashion(root / "deepfashion")
    write_imaterialist(root / "imaterialist")
    return root


ATTRIBUTES = ("--path-column", "file", "--label-column", "is_dark", "--label-column", "is_even")


def read_rows(text):
    """The rows of the table as words by the name of their task, without the head, and the lines after it."""
    head, *lines = text.splitlines()
    assert head.split() == ["task", "images", "classes", "error", "norm"]
    end = next(number for number, line in enumerate(lines) if " embedded, " in line)
    start = head.index("images") - 1
    return {line[:start].strip(): line[start:].split() for line in lines[:end]}, lines[end:]


def read_json(result, code=0):
    assert result.exit_code == code, result.stderr
    return json.loads(result.stdout)


def test_an_unreadable_image_fails_the_tasks_of_a_dataset_that_have_it(call, tmp_path):
    root = tmp_path / "cub" / "CUB_200_2011"
    make_cub(root)
    bird = next(
        path for path in sorted((root / "images").rglob("*.jpg")) if "Crow" in path.name or "Raven" in path.name
    )
    bird.write_bytes(b"no bird")
    result = call("embed-many", tmp_path / "cub", "--kind", "family", "--out", tmp_path / "out", *SMALL)
    assert result.exit_code == 3 and bird.name in result.stderr and "cub200: Corvidae" in result.stderr
    rows, (summary, *_) = read_rows(result.stdout)
    assert list(rows) == ["cub200: Cuculidae"] and summary.startswith("1 embedded, 0 found, 1 failed")


def test_folders_tables_and_published_datasets_in_one_run(call, data, tmp_path, own_library):
    paint(tmp_path / "lonely" / "train", {"dark": 60}, seed=3)
    paths = [tmp_path / "lonely", *(data / name for name in ("table.csv", "cub"))]
    options = ("--kind", "family", "--split", "train", *ATTRIBUTES, "--root", data, "--out", tmp_path / "out", *SMALL)
    result = call("embed-many", *paths, *options)
    assert result.exit_code == 3
    assert f"failed: {tmp_path / 'lonely'}: " in result.stderr and "only one class" in result.stderr
    rows, (summary,) = read_rows(result.stdout)
    assert list(rows) == ["table", "cub200: Cuculidae (train)", "cub200: Corvidae (train)"]
    assert summary.startswith(f"3 embedded, 0 found, 1 failed; in {own_library} and {tmp_path / 'out'} (")
    assert rows["table"][:2] == ["18", "2"] and rows["cub200: Cuculidae (train)"][:2] == ["6", "3"]
    kept = {one.task: one for one in map(task2vec.load_embedding, (tmp_path / "out").iterdir())}
    assert set(kept) == set(rows)
    for name, one in kept.items():
        head = one.provenance["head"]
        assert rows[name][2:] == [f"{100 * head['cv_error']:.1f}", "%", f"{one.norm():.3g}", *rows[name][5:]]
    settings = task2vec.EmbedSettings(max_samples=6, l2=0.01)
    birds = task2vec.read_cub200(data / "cub").task("Cuculidae", split="train")
    alone = task2vec.embed(birds, make_tiny(), settings=settings, device="cpu")
    np.testing.assert_allclose(kept["cub200: Cuculidae (train)"].fisher, alone.fisher, rtol=1e-4, atol=1e-12)
    assert kept["cub200: Cuculidae (train)"].provenance["settings"] == alone.provenance["settings"]


def test_the_same_command_again_finds_all_and_writes_nothing(call, data, tmp_path):
    args = ("embed-many", data / "pair", data / "shades", "--out", tmp_path, *SMALL)
    first, _ = read_rows(call(*args).stdout)
    before = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in tmp_path.iterdir()}
    result = call(*args)
    assert result.exit_code == 0, result.stderr
    again, (summary,) = read_rows(result.stdout)
    assert again == {name: [*words, "found"] for name, words in first.items()} and len(again) == 2
    assert summary.startswith("0 embedded, 2 found, 0 failed")
    assert {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in tmp_path.iterdir()} == before
    other, (summary,) = read_rows(call(*args, "--seed", 5).stdout)
    assert summary.startswith("2 embedded, 0 found") and list(other) == list(first)
    assert all((tmp_path / name).read_bytes() == content for name, (_, content) in before.items())


def test_splits_of_one_task_have_names_of_their_own(call, data, tmp_path):
    args = ("embed-many", data / "cub", "--task", "Corvidae", "--out", tmp_path, "--json", *SMALL)
    reports = [read_json(call(*args, *split)) for split in ((), ("--split", "train"), ("--split", "test"))]
    names = [row["task"] for report in reports for row in report["tasks"]]
    assert names == ["cub200: Corvidae", "cub200: Corvidae (train)", "cub200: Corvidae (test)"]
    assert {one.task for one in map(task2vec.load_embedding, tmp_path.iterdir())} == set(names)


def test_questions_about_the_same_images(call, data, tmp_path):
    args = (data / "shades", data / "pair", data / "table.csv", *ATTRIBUTES, "--root", data, "--one-vs-rest")
    report = read_json(call("embed-many", *args, "--out", tmp_path, "--json", *SMALL))
    assert {row["task"]: row["counts"]["per_class"] for row in report["tasks"]} == {
        "shades: bright": [12, 6],
        "shades: dark": [12, 6],
        "shades: grey": [12, 6],
        "pair": [6, 6],
        "table: is_dark": [12, 6],
        "table: is_even": [9, 9],
    }
    # The same question about the same images is the same task, wherever it was read.
    dark = [row for row in report["tasks"] if row["task"].endswith("dark")]
    assert dark[0]["fingerprints"] == dark[1]["fingerprints"] and dark[0]["norm"] == pytest.approx(dark[1]["norm"])


def test_json_is_one_document(call, data, tmp_path):
    shutil.copytree(data / "pair", tmp_path / "torn")
    for name in ("x.png", "y.png"):
        (tmp_path / "torn" / "dark" / name).write_bytes(b"")
    args = ("embed-many", data / "pair", tmp_path / "torn", "--out", tmp_path / "out", "--json", "--seed", 3, *SMALL)
    result = call(*args)
    report = read_json(result, code=3)
    assert (report["embedded"], report["found"], len(report["tasks"])) == (1, 0, 1) and not report["is_interrupted"]
    (failure,) = report["failed"]
    assert failure["name"] == str(tmp_path / "torn") and "--allow-bad" in failure["reason"]
    assert [Path(bad["path"]).name for bad in failure["bad"]] == ["x.png", "y.png"]
    assert "unreadable" in result.stderr and "x.png" in result.stderr
    (row,) = report["tasks"]
    assert row["settings"]["seed"] == 3 and row["norm"] > 0 and row["is_found"] is False
    assert 0 < row["noise"]["floor"] < 1
    assert task2vec.load_embedding(row["written"]).task == row["task"] == "pair"
    result = call(*args, "--allow-bad")
    report = read_json(result)
    assert result.stderr.count("unreadable: ") == 2
    assert [(one["task"], one["is_found"], len(one["bad"])) for one in report["tasks"]] == [
        ("pair", True, 0),
        ("torn", True, 2),  # what can be read of it is all of the other
    ]


def test_an_unreadable_image_is_told_with_the_path_it_belongs_to(call, data, tmp_path):
    for name in ("a", "b"):
        shutil.copytree(data / "pair", tmp_path / name)
        (tmp_path / name / "dark" / "0.png").write_bytes(b"")
    paint(tmp_path / "c" / "train", {"dark": 60, "bright": 190}, seed=4)
    (tmp_path / "c" / "train" / "dark" / "0.png").write_bytes(b"")
    table = tmp_path / "t.csv"
    table.write_text("path,label\ndark/0.png,a\ndark/1.png,a\nbright/0.png,b\n")
    make_cub(tmp_path / "cub")
    bird = sorted((tmp_path / "cub" / "images").glob("*Crow/*"))[0]
    bird.write_bytes(b"")
    out = ("--out", tmp_path / "out", *SMALL)
    for allow, code in (((), 3), (("--allow-bad",), 0)):
        result = call("embed-many", tmp_path / "a", tmp_path / "b", table, "--root", tmp_path / "a", *allow, *out)
        lines = [line.split(": ")[1] for line in result.stderr.splitlines() if line.startswith("unreadable: ")]
        assert result.exit_code == code
        assert lines == [str(tmp_path / name / "dark" / "0.png") for name in ("a", "b", "a")]
        result = call("embed-many", tmp_path / "c", tmp_path / "cub", "--task", "Corvidae", "--split", "train", *out)
        assert f"unreadable: {tmp_path / 'c' / 'train' / 'dark' / '0.png'}: " in result.stderr
        result = call("embed-many", tmp_path / "cub", "--task", "Corvidae", *allow, *out)
        assert result.exit_code == code and f"unreadable: {bird}: " in result.stderr


def test_tasks_by_name_split_and_draw(call, data, tmp_path):
    args = ("--task", "linen", "--task", "floral", "--task", "linen", "--draw", 10, "--seed", 2)
    report = read_json(call("embed-many", data / "deepfashion", *args, "--out", tmp_path, "--json", *SMALL))
    assert [row["task"] for row in report["tasks"]] == ["deepfashion: linen", "deepfashion: floral"]
    wanted = task2vec.read_deepfashion(data / "deepfashion").tasks(["linen", "floral"], images=10, seed=2)
    assert [row["fingerprints"]["task"] for row in report["tasks"]] == [task.fingerprint for task in wanted]


def test_labels_are_for_imaterialist_alone(call, data, tmp_path):
    table = next((data / "imaterialist").glob("*.csv"))
    args = (data / "imaterialist", data / "cub", "--out", tmp_path, "--json", *SMALL)
    report = call("embed-many", *args, "--labels", table, "--task", "Black")
    assert report.exit_code == 2 and "cub200 has no task 'Black'" in report.stderr
    report = read_json(call("embed-many", args[0], *args[2:], "--labels", table, "--task", "Black"))
    assert [row["task"] for row in report["tasks"]] == ["imaterialist2018: Black"]


def test_tasks_with_nothing_to_tell_leave_the_others_be(call, data, tmp_path):
    args = ("--kind", "attribute", "--split", "val", "--out", tmp_path, "--json", *SMALL)
    result = call("embed-many", data / "deepfashion", *args)
    report = read_json(result, code=3)
    failed = [f"deepfashion: {name} (val)" for name in ("a-line", "abstract chevron print")]
    assert [one["name"] for one in report["failed"]] == failed
    assert report["embedded"] == 7
    assert "2 of 9 tasks have fewer than two classes with images in split 'val'" in result.stderr


def test_folders_of_one_name_are_called_by_their_paths(call, data, tmp_path, monkeypatch):
    for place in ("a/pair", "b/pair", "pair"):
        shutil.copytree(data / "pair", tmp_path / place)
        (tmp_path / place / "dark" / "0.png").unlink()
        Image.new("RGB", (8, 8), (len(place), ord(place[0]), 0)).save(tmp_path / place / "dark" / "0.png")
    (tmp_path / "pair.csv").write_text("path,label\npair/dark/0.png,a\npair/bright/0.png,b\n")
    monkeypatch.chdir(tmp_path)
    result = call("embed-many", "a/pair", "b/pair", "pair", "pair.csv", "--out", "out", *SMALL)
    assert result.exit_code == 0, result.stderr
    rows, _ = read_rows(result.stdout)
    assert sorted(rows) == ["a/pair", "b/pair", "pair", "pair.csv"]
    assert len(list((tmp_path / "out").iterdir())) == 4


def test_a_task_that_fails_is_told_and_the_rest_goes_on(call, data, tmp_path, monkeypatch):
    gather = many.gather_tasks
    shutil.copytree(data / "pair", tmp_path / "pair")

    def lose(sorts, wanted):
        gathered = gather(sorts, wanted)
        (tmp_path / "pair" / "dark" / "3.png").unlink()
        return gathered

    monkeypatch.setattr(many, "gather_tasks", lose)
    result = call("embed-many", tmp_path / "pair", data / "shades", "--one-vs-rest", "--out", tmp_path / "out", *SMALL)
    assert result.exit_code == 3
    rows, (summary,) = read_rows(result.stdout)
    assert rows.pop("pair") == ["failed"] and len(rows) == 3
    assert summary.startswith("3 embedded, 0 found, 1 failed")
    (line,) = (line for line in result.stderr.splitlines() if line.startswith("failed: pair: "))
    assert "3.png" in line
    assert len(list((tmp_path / "out").iterdir())) == 3


def test_many_failures_are_not_all_printed(call, data, tmp_path, monkeypatch):
    def fail(tasks, *args, **options):
        return (task2vec.TaskResult(n, task.name, error=DataError("gone")) for n, task in enumerate(tasks))

    monkeypatch.setattr(task2vec, "embed_many", fail)
    paint(tmp_path / "classes", {str(number): 20 * number for number in range(12)}, seed=2, count=2)
    result = call("embed-many", tmp_path / "classes", "--one-vs-rest", "--out", tmp_path / "out", *SMALL)
    assert result.exit_code == 3
    assert result.stderr.count("gone") == 10 and "and 2 more; --json lists them all" in result.stderr
    assert "0 embedded, 0 found, 12 failed" in result.stdout


def test_an_interrupt_keeps_what_is_finished_and_says_how_to_go_on(call, data, tmp_path, own_library, monkeypatch):
    embed_many = task2vec.embed_many

    def interrupt(tasks, *args, **options):
        results = embed_many(tasks, *args, **options)

        def first():
            yield next(results)
            raise KeyboardInterrupt

        return first() if tasks else results

    args = ("embed-many", data / "shades", "--one-vs-rest", "--out", tmp_path, *SMALL)
    with monkeypatch.context() as patch:
        patch.setattr(task2vec, "embed_many", interrupt)
        result = call(*args)
    assert result.exit_code == 130
    where = f"'{own_library}' and '{tmp_path}'"
    assert f"1 of 3 tasks are finished and lie in {where}. The same command goes on" in result.stderr
    assert len(list(tmp_path.iterdir())) == 1 and "embedded" not in result.stdout
    with monkeypatch.context() as patch:
        patch.setattr(task2vec, "embed_many", interrupt)
        report = read_json(call(*args, "--json"), code=130)
    assert report["is_interrupted"] and [row["is_found"] for row in report["tasks"]] == [True]
    rows, (summary,) = read_rows(call(*args).stdout)
    assert [words[-1] == "found" for words in rows.values()] == [True, False, False]
    assert summary.startswith("2 embedded, 1 found, 0 failed")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for one process")
def test_a_real_interrupt_then_the_same_command(data, tmp_path):
    slow = TINY + (
        "import signal, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from task2vec.embedding.embedding import Embedding\n"
        "save = Embedding.save\n"
        "Embedding.save = lambda *args: (time.sleep(0.5), save(*args))[1]\n"
    )
    args = ["embed-many", data / "shades", "--one-vs-rest", "--out", tmp_path, *SMALL]
    command = [sys.executable, "-c", slow + START, *map(str, args)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().startswith("task")
        assert process.stdout.readline().startswith("shades: ")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        message = process.stderr.read()
    assert "The same command goes on with the rest" in message and "Traceback" not in message
    kept = list(tmp_path.glob("*.safetensors"))
    assert 1 <= len(kept) < 3 and all(task2vec.load_embedding(path) for path in kept)


def test_a_reader_that_goes_away_does_not_stop_the_work(data, tmp_path):
    args = ["embed-many", data / "shades", "--one-vs-rest", "--out", tmp_path, *SMALL]
    command = [sys.executable, "-c", TINY + START, *map(str, args)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 0
    assert len(list(tmp_path.iterdir())) == 3


def test_a_bar_does_not_catch_the_rows(call, data, tmp_path, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # to rich, standard error is a terminal then
    monkeypatch.setattr(many, "is_watched", lambda: True)
    result = call("embed-many", data / "pair", "--out", tmp_path, *SMALL)
    assert result.exit_code == 0
    assert "tasks" in result.stderr and "pair" not in result.stderr
    assert list(read_rows(result.stdout)[0]) == ["pair"]


def test_names_from_strangers_are_shown_as_text(call, data, tmp_path):
    folder = tmp_path / "[red]evil\x1b[31m"
    shutil.copytree(data / "pair", folder)
    (tmp_path / "a\x1b[2J").mkdir()
    result = call("embed-many", folder, tmp_path / "a\x1b[2J", "--out", tmp_path / "out", *SMALL)
    assert result.exit_code == 3
    assert "[red]evil\\x1b[31m" in result.stdout and "a\\x1b[2J" in result.stderr
    assert "\x1b" not in result.stdout + result.stderr


def test_memory_does_not_change_the_numbers(call, data, tmp_path):
    norms = []
    for gigabytes in (2, 1e-6):
        args = ("--one-vs-rest", "--gigabytes", gigabytes, "--out", tmp_path / str(gigabytes), "--json", *SMALL)
        norms.append([row["norm"] for row in read_json(call("embed-many", data / "shades", *args))["tasks"]])
    assert norms[0] == pytest.approx(norms[1], rel=1e-6)


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["shades", "--no-library"], 2, "--out"),
        (["--out", "x"], 2, "PATH"),
        (["shades", "shades/../shades", "--out", "x"], 2, "given twice"),
        (["shades", "note.txt", "--out", "x"], 2, "neither a folder nor a table"),
        (["shades", "nowhere", "--out", "x"], 2, "'nowhere' is not there"),
        (["shades", "nowhere.csv", "--out", "x"], 2, "'nowhere.csv' is not there"),
        (["cub", "shades", "--split", "train", "--out", "x"], 2, "shades has no split 'train'"),
        (["shades", "--kind", "order", "--draw", "5", "--out", "x"], 2, "--kind, --draw cannot be meant"),
        (["shades", "--task", "a", "--out", "x"], 2, "--task cannot be meant"),
        (["shades", "--root", ".", "--label-column", "a", "--out", "x"], 2, "--root, --label-column cannot be meant"),
        (["table.csv", "--split", "train", "--out", "x"], 2, "--split cannot be meant"),
        (["table.csv", "--as", "cub200", "--out", "x"], 2, "--as cannot be meant"),
        (["cub", "--labels", "table.csv", "--out", "x"], 2, "--labels cannot be meant"),
        (["shades", "--gigabytes", "0", "--out", "x"], 2, "gigabytes=0.0 (--gigabytes)"),
        (["shades", "--workers", "0", "--out", "x"], 2, "workers=0"),
        (["shades", "--images", "0", "--out", "x"], 2, "images"),
        (["shades", "--epochs", "3", "--out", "x"], 2, "--epochs is for --method variational"),
        (["shades", "--device", "abacus", "--out", "x"], 2, "abacus"),
        (["shades", "--out", "note.txt"], 5, "note.txt"),
    ],
)
def test_mistakes_end_before_anything_is_read(call, data, tmp_path, monkeypatch, args, code, words):
    (tmp_path / "note.txt").write_text("hello")
    for name in ("shades", "table.csv", "cub"):
        (tmp_path / name).symlink_to(data / name)
    monkeypatch.setattr(many, "gather_tasks", lambda *args: pytest.fail("something was read"))
    monkeypatch.chdir(tmp_path)
    result = call("embed-many", *args)
    assert result.exit_code == code, result.stderr
    assert words in result.stderr
    assert "Traceback" not in result.stderr and result.stdout == ""
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["cub"], "--kind 'order', or --task NAME"),
        (["cub", "--kind", "attribute"], "no tasks of kind 'attribute'"),
        (["cub", "--task", "Corvidea"], "Did you mean 'Corvidae'"),
        (["cub", "--kind", "family", "--split", "val"], "no split 'val'"),
        (["cub", "--kind", "family", "--draw", "1"], "images=1 (--max-images) must be an integer"),
        (["both", "--kind", "family"], "files of cub200 and deepfashion"),
    ],
)
def test_wrong_tasks_end_before_anything_is_embedded(call, data, tmp_path, args, words):
    (tmp_path / "cub").symlink_to(data / "cub")
    make_cub(tmp_path / "both")
    make_deepfashion(tmp_path / "both")
    result = call("embed-many", tmp_path / args[0], data / "pair", *args[1:], "--out", tmp_path / "out", *SMALL)
    assert result.exit_code == 2, result.stderr
    assert words in result.stderr
    assert result.stdout == "" and not (tmp_path / "out").exists()


def test_folders_stay_that_were_there_or_have_something_in_them(call, data, tmp_path):
    (tmp_path / "mine").mkdir()
    for place in ("mine", "new/deep"):
        result = call("embed-many", data / "cub", "--task", "Nothing", "--out", tmp_path / place, *SMALL)
        assert result.exit_code == 2, result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    result = call("embed-many", data / "pair", "--out", tmp_path / "new" / "deep", *SMALL)
    assert result.exit_code == 0 and len(list((tmp_path / "new" / "deep").iterdir())) == 1


def test_warnings_are_told_once_and_not_all(call, data, tmp_path):
    paint(tmp_path / "many", {str(number): 20 * number for number in range(8)}, seed=5, count=2)
    for number in range(8):
        (tmp_path / "many" / str(number) / "1.png").unlink()
    shutil.copy(tmp_path / "many" / "1" / "0.png", tmp_path / "many" / "1" / "1.png")
    args = ("embed-many", tmp_path / "many", "--one-vs-rest", "--out", tmp_path / "out", *SMALL)
    result = call(*args)
    assert result.exit_code == 0, result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("warning: ")]
    assert lines[0].startswith("warning: many: 0 and 7 more: images that are exact copies of another: 1, such as ")
    assert len(lines) == len(set(lines)) == 5
    rows = read_json(call(*args, "--json"))["tasks"]
    told = {warning for row in rows for warning in row["warnings"]}
    assert f"and {len(told) - 5} more warnings; --json lists them all" in result.stderr and len(told) > 5
    assert any("'3'" in warning for warning in rows[3]["warnings"])


def test_it_fits_where_it_is_shown(call, data, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    args = ("--kind", "attribute", "--split", "train", "--out", tmp_path, *SMALL)
    result = call("embed-many", data / "deepfashion", *args)
    assert result.exit_code == 0, result.stderr
    assert max(map(len, result.stdout.splitlines()[:-1])) <= 80
    assert "deepfashion: abstract chevron print (train)\n" in result.stdout
    monkeypatch.setenv("COLUMNS", "40")
    assert call("embed-many", data / "deepfashion", *args).exit_code == 0
