"""`task2vec nearest`: who is near a name, a file or a folder, and what is said where nobody is."""

import json
import os
import shutil
from pathlib import Path

import pytest

import task2vec
from task2vec import Library
from task2vec.distance import symmetric, with_error
from tests.cli.material import make
from tests.command import START, run_command
from tests.tiny_probe import make_tiny

SMALL = ("--images", "6", "--l2", "0.01", "--device", "cpu")


@pytest.fixture(autouse=True)
def tiny(monkeypatch, tmp_path):
    monkeypatch.setattr(task2vec, "load_probe", lambda *args, **options: make_tiny())
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def library(own_library):
    """Eight tasks of two kinds in the library of this test."""
    with Library.open(own_library) as opened:
        for number in range(8):
            opened.add(make(f"task {number}", number, kind=number % 2), tags=["even"] if number % 2 == 0 else [])
    return Path(own_library)


def read(result, code=0):
    assert result.exit_code == code, result.stderr
    return json.loads(result.stdout)


def test_the_neighbours_of_a_name(call, library):
    own = make("task 3", 3, kind=1)
    far = {f"task {n}": symmetric(own, make("", n, kind=n % 2)) for n in range(8) if n != 3}
    expected = sorted(far, key=lambda name: far[name])
    report = read(call("nearest", "task 3", "--json"))
    assert [row["task"] for row in report["neighbours"]] == expected
    assert [row["rank"] for row in report["neighbours"]] == list(range(1, 8))
    for row in report["neighbours"]:
        assert row["distance"] == pytest.approx(far[row["task"]], abs=1e-6)
    assert report["query"]["task"] == "task 3" and report["query"]["from"] == "library"
    assert set(expected[:3]) == {"task 1", "task 5", "task 7"}
    few = read(call("nearest", "task 3", "-k", 2, "--exact", "--json"))
    assert [row["task"] for row in few["neighbours"]] == expected[:2]


def test_it_prints_a_table(call, library):
    result = call("nearest", "task 2", "-k", 3)
    assert result.exit_code == 0, result.stderr
    title, head, *rows = result.stdout.splitlines()
    assert title.startswith("nearest to task 2 (embedding ") and title.endswith("a task of the library")
    assert head.split() == ["rank", "task", "distance", "noise", "images", "classes", "tags"]
    assert len(rows) == 3
    (name, distance, noise) = rows[0].split()[2:5]
    assert rows[0].split()[:2] == ["1", "task"] and rows[0].split()[-1] == "even" and noise == "-"
    own, near = make("", 2), make("", int(name))
    assert distance == f"{symmetric(own, near):.3f}"


def test_noise_is_told_where_both_know_theirs(call, own_library):
    with Library.open(own_library) as opened:
        for number in range(3):
            opened.add(make(f"task {number}", number, has_halves=number < 2))
    rows = {row["task"]: row for row in read(call("nearest", "task 0", "--json"))["neighbours"]}
    told = with_error(make("", 0, has_halves=True), make("", 1, has_halves=True))
    assert rows["task 1"]["noise"] == pytest.approx(
        {"floor": told.floor, "stderr": told.stderr, "corrected": told.corrected}
    )
    assert rows["task 2"]["noise"] is None
    lines = call("nearest", "task 0").stdout.splitlines()
    assert f"{told.floor:.3f}" in next(line for line in lines if "task 1" in line)
    assert read(call("nearest", "task 2", "--json"))["neighbours"][0]["noise"] is None


def test_a_name_needs_no_torch(library):
    watch = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); "
    result = run_command("nearest", "task 3", python=watch + START, TASK2VEC_LIBRARY=str(library))
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "False" and "task 7" in result.stdout


@pytest.mark.parametrize("columns", [80, 40])
def test_the_table_fits_the_page(library, columns):
    with Library.open(library) as opened:
        opened.tag("task 4", "a tag of some length", "another one", "\x1b[2J")
        opened.rename("task 2", "[red]\x1b[31m" + "long" * 30)
    args = ("nearest", "task 6")
    result = run_command(*args, COLUMNS=str(columns), NO_COLOR="1", TASK2VEC_LIBRARY=str(library))
    assert result.returncode == 0, result.stderr
    assert "\x1b" not in result.stdout
    assert max(map(len, result.stdout.splitlines()[1:])) <= columns


def test_a_saved_embedding_need_not_be_in_the_library(call, library, tmp_path):
    place = make("stranger", 50, kind=1).save(tmp_path / "x.t2v.safetensors")
    report = read(call("nearest", place, "--json"))
    assert report["query"]["task"] == "stranger" and report["query"]["from"] == "file"
    assert len(report["neighbours"]) == 8 and int(report["neighbours"][0]["task"].split()[1]) % 2 == 1
    assert "the file 'x.t2v.safetensors'" in call("nearest", "x.t2v.safetensors").stdout
    with Library.open(library) as opened:
        assert len(opened) == 8


def test_a_damaged_file_ends_with_4(call, library, tmp_path):
    (tmp_path / "x.t2v.safetensors").write_bytes(b"hello")
    result = call("nearest", "x.t2v.safetensors")
    assert result.exit_code == 4 and "x.t2v.safetensors" in result.stderr


def test_a_folder_is_embedded_kept_and_found_the_next_time(call, photos, tmp_path, monkeypatch):
    shutil.copytree(photos, tmp_path / "others")
    os.rename(tmp_path / "others" / "dark", tmp_path / "others" / "night")
    (tmp_path / "others" / "night" / "7.png").unlink()
    first = call("nearest", photos, *SMALL)
    assert first.exit_code == 0, first.stderr
    assert "embedded now" in first.stdout and "There is no other task in the library" in first.stdout
    second = read(call("nearest", tmp_path / "others", "--tag", "x", "--json", *SMALL))
    assert [row["task"] for row in second["neighbours"]] == ["photos"] and second["query"]["from"] == "path"
    with Library.open() as opened:
        assert [(task.name, task.tags) for task in opened.tasks()] == [("others", ("x",)), ("photos", ())]
    monkeypatch.setattr(task2vec, "embed", None)  # nothing is computed
    again = call("nearest", photos, *SMALL)
    assert again.exit_code == 0, again.stderr
    assert "found in the library" in again.stdout and "others" in again.stdout
    assert not list(tmp_path.glob("*.safetensors"))


def test_names_come_first_unless_a_path_is_written(call, photos, tmp_path, own_library):
    shutil.copytree(photos, tmp_path / "birds")
    shutil.copytree(photos, tmp_path / "cafe")
    with Library.open(own_library) as opened:
        opened.add(make("birds", 1), make("a/b", 2))
    named = call("nearest", "birds", "--json")
    assert read(named)["query"]["from"] == "library"
    assert os.path.join(os.curdir, "birds") in call("nearest", "birds").stdout  # says that there is also a folder
    for query in (os.path.join(os.curdir, "birds"), "birds" + os.sep, str(tmp_path / "birds")):
        assert read(call("nearest", query, "--json", *SMALL))["query"]["from"] == "path"
    assert read(call("nearest", "a/b", "--json"))["query"]["from"] == "library"  # there is no such path
    shutil.copytree(photos, tmp_path / "a" / "b")
    assert read(call("nearest", "a/b", "--json", *SMALL))["query"]["from"] == "path"  # now there is
    assert read(call("nearest", "cafe", "--json", *SMALL))["query"]["from"] == "path"  # no task is called so


def test_digits_of_a_fingerprint_or_a_key_will_do(call, library):
    with Library.open(library) as opened:
        task = opened.task("task 5")
    for digits in (task.fingerprint[:10], task.embeddings[0].key[:10]):
        assert read(call("nearest", digits, "--json"))["query"]["task"] == "task 5"


def test_probe_and_method_choose_among_embeddings(call, library):
    with Library.open(library) as opened:
        opened.add(*(make(f"task {n}", n, probe="other", weights="cd", method="direct") for n in (1, 2)))
    unclear = call("nearest", "task 1")
    assert unclear.exit_code == 2 and "--probe" in unclear.stderr
    for options in (("--probe", "other"), ("--method", "direct")):
        report = read(call("nearest", "task 1", *options, "--json"))
        assert [row["task"] for row in report["neighbours"]] == ["task 2"]
    assert len(read(call("nearest", "task 1", "--probe", "net", "--json"))["neighbours"]) == 7


def test_the_size_of_images_chooses_among_embeddings(call, library):
    with Library.open(library) as opened:
        opened.add(*(make(f"task {n}", n, weights="cd", size=96) for n in (1, 2)))
        opened.add(make("task 1", 1, weights="cd", size=96, method="direct"))
    assert call("nearest", "task 1").exit_code == 2
    report = read(call("nearest", "task 1", "--size", 96, "--method", "robust", "--json"))
    assert [row["task"] for row in report["neighbours"]] == ["task 2"]
    assert len(read(call("nearest", "task 1", "--size", 64, "--json"))["neighbours"]) == 7
    unclear = call("nearest", "task 1", "--size", 96)
    assert unclear.exit_code == 2 and "2 embeddings of images of 96 pixels" in unclear.stderr
    missing = call("nearest", "task 1", "--size", 32)
    assert missing.exit_code == 2 and missing.stderr.rstrip().endswith("--size: 64, 96")


def test_that_nothing_can_be_compared_is_said_before_the_work(call, library, photos, monkeypatch):
    def stop(*args, **options):
        raise KeyboardInterrupt

    embed = task2vec.embed
    monkeypatch.setattr(task2vec, "embed", stop)
    result = call("nearest", photos, *SMALL)
    assert result.exit_code == 130 and "warning: nothing in the library can be compared" in result.stderr
    assert "task2vec nearest PATH --probe net --size 64\n" in result.stderr
    monkeypatch.setattr(task2vec, "embed", embed)
    assert "warning: nothing" in call("nearest", photos, *SMALL).stderr  # and goes on
    more = call("nearest", photos, "--name", "more", "--seed", 1, *SMALL)
    assert more.exit_code == 0 and "warning: nothing" not in more.stderr
    other = call("nearest", photos, "--method", "direct", *SMALL)
    assert other.exit_code == 0 and "warning: nothing" in other.stderr


def test_where_nothing_can_be_compared_the_way_out_is_told(call, library):
    with Library.open(library) as opened:
        opened.add(make("lonely", 70, probe="other", weights="cd"))
    result = call("nearest", "lonely")
    assert result.exit_code == 0, result.stderr
    assert "task2vec nearest PATH --probe net --size 64\n" in result.stdout
    assert "8 embeddings by net (abababab), robust" in result.stdout
    report = read(call("nearest", "lonely", "--json"))
    assert report["neighbours"] == [] and [space["image_size"] for space in report["spaces"]] == [[64, 64]]
    with Library.open(library) as opened:
        opened.add(make("direct", 71, method="direct", size=96, weights="ef"))
    assert "task2vec nearest PATH --probe net --size 96 --method direct\n" in call("nearest", "lonely").stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["task 3", "-k", "0"], "-k 0"),
        (["task 3", "--size", "32"], "no embedding of images of 32 pixels"),
        (["saved.t2v.safetensors", "--size", "64"], "--size cannot be meant"),
        (["task 3", "--tag", "x", "--halves"], "--halves, --tag cannot be meant"),
        (["saved.t2v.safetensors", "--probe", "net"], "--probe cannot be meant"),
        (["tsk 3"], "Did you mean 'task 3'"),
        (["gone.t2v.safetensors"], "gone.t2v.safetensors"),
        (["note.txt"], "neither a folder nor a table"),
        ([], "NAME"),
    ],
)
def test_mistakes_are_told(call, library, tmp_path, args, words):
    make("saved", 9).save(tmp_path / "saved.t2v.safetensors")
    (tmp_path / "note.txt").write_text("hello")
    result = call("nearest", *args)
    assert result.exit_code == 2, result.stderr
    assert words in result.stderr and result.stdout == "" and "Traceback" not in result.stderr


def test_without_a_library_a_name_means_nothing(call, own_library):
    result = call("nearest", "birds")
    assert result.exit_code == 2 and own_library in result.stderr and "'birds'" in result.stderr
    assert not os.path.exists(own_library)
