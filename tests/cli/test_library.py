"""`task2vec library`: what it lists, takes, gives away and refuses."""

import io
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import task2vec
from task2vec import Expert, Library, MeasuredError
from task2vec.cli.listing import Column, print_columns
from task2vec.errors import ResourceError
from task2vec.library import writes
from tests.cli.material import make
from tests.command import START, run_command
from tests.library.making import spoil


@pytest.fixture
def library(own_library):
    """Six tasks of two kinds in the library of this test."""
    with Library.open(own_library) as opened:
        for number in range(6):
            opened.add(make(f"task {number}", number, kind=number % 2), tags=["even"] if number % 2 == 0 else [])
    return Path(own_library)


def read(result, code=0):
    assert result.exit_code == code, result.stderr
    return json.loads(result.stdout)


def damage(folder, name):
    """Flips a bit in a task's embedding."""
    with Library.open(folder) as opened:
        spoil(opened, name)


# --- an empty library -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["ls", "stats"])
def test_an_empty_library_is_no_mistake_and_none_is_made(call, own_library, command):
    result = call("library", command)
    assert result.exit_code == 0 and result.stderr == ""
    assert f"'{own_library}' is empty" in result.stdout and "task2vec embed FOLDER" in result.stdout
    assert not os.path.exists(own_library)
    Library.open(own_library).close()
    assert call("library", command).stdout == result.stdout


def test_an_empty_library_as_json(call, own_library, tmp_path):
    assert read(call("library", "ls", "--json")) == {"library": own_library, "count": 0, "tasks": []}
    report = read(call("library", "stats", "--json", "--library", tmp_path / "mine"))
    assert report["library"] == str(tmp_path / "mine") and report["tasks"] == 0 and report["spaces"] == []


def test_the_command_for_the_first_task_names_the_library_that_was_named(call, tmp_path):
    result = call("library", "ls", "--library", tmp_path / "mine")
    assert f"task2vec embed FOLDER --library {tmp_path / 'mine'}" in result.stdout


@pytest.mark.parametrize(
    "args",
    ["show x", "rm x", "tag x y", "rename x y", "verify", "repair", "compact", "check-search", "export x.t2vlib"],
)
def test_nothing_can_be_done_to_a_library_that_is_not_there(call, own_library, args):
    result = call("library", *args.split())
    assert result.exit_code == 2 and own_library in result.stderr and "--library DIR" in result.stderr
    assert not os.path.exists(own_library)


def test_a_file_is_no_library(call, tmp_path):
    (tmp_path / "file").write_text("hello")
    result = call("library", "ls", "--library", tmp_path / "file")
    assert result.exit_code == 2 and "is a file" in result.stderr
    assert (tmp_path / "file").read_text() == "hello"


# --- looking --------------------------------------------------------------------------------------------------------


def test_ls_lists_all_that_is_known(call, library):
    lines = call("library", "ls").stdout.splitlines()
    assert lines[0].split() == ["task", "images", "classes", "error", "norm", "probe", "added", "tags", "task", "id"]
    embedding = make("task 2", 2)
    (row,) = (line.split() for line in lines if line.startswith("task 2"))
    with Library.open(library) as opened:
        task = opened.task("task 2")
    expected = ["task", "2", "102", "2", "25.0", "%", f"{embedding.norm():.3g}", "net", task.added[:10], "even"]
    assert row == [*expected, task.fingerprint[:8]]
    assert len(lines) == 7


def test_a_pipe_has_room_for_every_column(call, own_library, monkeypatch):
    with Library.open(own_library) as opened:
        opened.add(make("a task of a long name, longer than a page would be wide " * 2, 1, probe="efficientnet"))
    monkeypatch.delenv("COLUMNS")
    told = call("library", "ls").stdout
    assert len(told.splitlines()) == 2 and " efficientnet " in told
    monkeypatch.setenv("COLUMNS", "60")
    assert "no room for probe" in call("library", "ls").stdout
    monkeypatch.delenv("COLUMNS")
    page = Terminal()
    monkeypatch.setattr("sys.stdout", page)
    print_columns([Column("a", ("a word " * 30,), "a"), Column("b", ("b",), "probe")])
    assert max(map(len, page.getvalue().splitlines())) <= 80


class Terminal(io.StringIO):
    """Somebody's, of 80 columns."""

    def isatty(self):
        return True


def test_ls_chooses_by_tag_and_probe(call, library):
    with Library.open(library) as opened:
        opened.add(make("task 1", 1, probe="other", weights="cd"))
    assert [task["name"] for task in read(call("library", "ls", "--tag", "even", "--json"))["tasks"]] == [
        "task 0",
        "task 2",
        "task 4",
    ]
    assert [task["name"] for task in read(call("library", "ls", "--probe", "other", "--json"))["tasks"]] == ["task 1"]
    shown = call("library", "ls", "--probe", "other").stdout
    assert "other" in shown and "1 task with several embeddings" in shown
    older = call("library", "ls", "--probe", "net").stdout
    assert " other " not in older and " net " in next(line for line in older.splitlines() if line.startswith("task 1"))
    none = call("library", "ls", "--tag", "odd", "--probe", "net")
    assert none.exit_code == 0 and "--tag odd and --probe net" in none.stdout


def test_ls_counts_embeddings_where_a_task_has_several(call, library):
    assert "embeddings" not in call("library", "ls").stdout
    newer = make("task 1", 1, method="direct", kind=5)
    with Library.open(library) as opened:
        opened.add(newer)
    head, *rows = call("library", "ls").stdout.splitlines()
    head = head.replace("task id", "id")
    place = head.split().index("embeddings") - len(head.split())
    told = {row.split()[1]: row.replace("  even  ", "    ").split() for row in rows if row.startswith("task ")}
    assert told["1"][place + 1] == "2" and told["2"][place + 1] == "1"
    assert f"{newer.norm():.3g}" in told["1"]


def test_long_names_take_two_lines(library):
    name = "".join(f"{number:03}-" for number in range(75))
    with Library.open(library) as opened:
        opened.add(make(name, 9))
    for encoding, dots in (("utf-8", "…"), ("ascii", "...")):
        how = {"COLUMNS": "80", "PYTHONIOENCODING": encoding, "TASK2VEC_LIBRARY": str(library)}
        lines = run_command("library", "ls", **how).stdout.splitlines()
        place = next(place for place, line in enumerate(lines) if line.startswith("000-001-"))
        assert lines[place].split()[0].endswith(dots) and lines[place + 1].endswith("-073-074-")
        assert lines[place + 2].startswith("task 0") and max(map(len, lines)) <= 80


def test_ls_can_be_cut(call, library):
    shown = call("library", "ls", "--limit", 2).stdout
    assert "task 1" in shown and "task 2" not in shown and "and 4 more" in shown
    assert call("library", "ls", "--limit", 0).exit_code == 2


@pytest.mark.parametrize("columns", [80, 40])
def test_tables_fit_the_page(library, columns):
    strange = "[red]evil\x1b[31m " + "averyveryveryveryverylongword" * 3 + " 日本語" * 20
    with Library.open(library) as opened:
        opened.add(make(strange, 9), tags=["a tag of some length", "an\x1b[2Jother"])
        opened.add(Expert("generic expert", "timm", "resnet34"))
        opened.add(MeasuredError(opened.task(strange).fingerprint, "generic expert", 0.2, "a long protocol", 3))
        digits = opened.task(strange).fingerprint[:12]
    for args in (["ls"], ["show", digits], ["stats"]):
        result = run_command("library", *args, COLUMNS=str(columns), NO_COLOR="1", TASK2VEC_LIBRARY=str(library))
        assert result.returncode == 0, result.stderr
        assert "\x1b" not in result.stdout
        from rich.cells import cell_len

        if args != ["stats"]:
            assert max(map(cell_len, result.stdout.splitlines())) <= columns


def test_ls_needs_no_torch(library):
    watch = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); "
    result = run_command("library", "ls", python=watch + START, TASK2VEC_LIBRARY=str(library))
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "False" and "task 3" in result.stdout


def test_show_tells_a_task(call, library):
    with Library.open(library) as opened:
        opened.add(make("task 1", 1, method="direct"), Expert("resnet", "timm", "resnet34"))
        opened.add(MeasuredError(opened.task("task 1").fingerprint, "resnet", 0.125, "linear", 7, measured_by="me"))
    result = call("library", "show", "task 1")
    assert result.exit_code == 0, result.stderr
    for words in ("101 images", "no (60), yes (41)", "robust", "direct", "resnet", "12.5 %", "linear", "me"):
        assert words in result.stdout
    report = read(call("library", "show", "task 1", "--json"))
    assert [one["settings"]["method"] for one in report["embeddings"]] == ["robust", "direct"]
    assert all(one["noise_floor"] > 0 and one["bytes"] > 500 for one in report["embeddings"])
    assert [(error["expert"], error["error"], error["seed"]) for error in report["errors"]] == [("resnet", 0.125, 7)]
    assert read(call("library", "show", report["fingerprint"][:20], "--json")) == report


def test_an_unknown_name_gets_a_hint(call, library):
    result = call("library", "show", "tsk 1")
    assert result.exit_code == 2 and "Did you mean" in result.stderr and "task 1" in result.stderr


def test_show_names_a_damaged_embedding(call, library):
    damage(library, "task 1")
    result = call("library", "show", "task 1")
    assert result.exit_code == 4 and "SHA-256" in result.stderr and "101 images" in result.stdout


def test_stats_count(call, library):
    with Library.open(library) as opened:
        opened.add(make("task 1", 1, probe="other", weights="cd", method="direct"))
    report = read(call("library", "stats", "--json"))
    assert (report["tasks"], report["embeddings"], report["experts"]) == (6, 7, 0)
    assert [(space["probe"], space["embeddings"]) for space in report["spaces"]] == [("net", 6), ("other", 1)]
    shown = call("library", "stats").stdout
    assert "6 embeddings by net (abababab), robust" in shown and "1 embedding by other (cdcdcdcd), direct" in shown


# --- changing -------------------------------------------------------------------------------------------------------


def test_files_and_folders_are_added(call, own_library, tmp_path):
    for number in range(3):
        make(f"task {number}", number).save(tmp_path / "in" / f"{number}.t2v.safetensors")
    lone = make("lone", 7).save(tmp_path / "lone.t2v.safetensors")
    result = call("library", "add", tmp_path / "in", lone, "--tag", "new", "--tag", "mine")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[-1] == f"4 added, 0 known; in {own_library}"
    with Library.open() as opened:
        assert [(task.name, task.tags) for task in opened.tasks()] == [
            (name, ("mine", "new")) for name in ("lone", "task 0", "task 1", "task 2")
        ]
        assert opened.get("lone").fisher.tolist() == make("lone", 7).fisher.tolist()
    again = read(call("library", "add", lone, "--json"))
    assert [row["is_new"] for row in again["added"]] == [False] and again["failed"] == []


def test_what_cannot_be_added_is_named_and_the_rest_is_added(call, library, tmp_path):
    good = make("new", 20).save(tmp_path / "good.t2v.safetensors")
    other = make("task 1", 1, kind=1, noise=0.4).save(tmp_path / "other.t2v.safetensors")
    result = call("library", "add", other, good)
    assert result.exit_code == 3 and "task 1" in result.stderr and "other.t2v" in result.stderr
    assert "--force" in result.stderr and "added: new" in result.stdout
    torn = tmp_path / "torn.t2v.safetensors"
    torn.write_bytes(good.read_bytes()[:-9])
    make("newer", 21).save(good)
    report = read(call("library", "add", torn, other, good, "--json"), code=4)
    assert [row["task"] for row in report["added"]] == ["newer"]
    assert [Path(row["file"]).name for row in report["failed"]] == ["torn.t2v.safetensors", "other.t2v.safetensors"]
    with Library.open(library) as opened:
        assert opened.get("task 1").fisher.tolist() == make("task 1", 1, kind=1).fisher.tolist()
    assert call("library", "add", other, "--force").exit_code == 0
    with Library.open(library) as opened:
        assert opened.get("task 1").fisher.tolist() == make("task 1", 1, kind=1, noise=0.4).fisher.tolist()


@pytest.mark.parametrize("as_json", [False, True])
def test_what_was_added_before_the_disk_was_full_is_told(call, library, tmp_path, monkeypatch, as_json):
    places = [make(f"new {number}", 20 + number).save(tmp_path / f"{number}.t2v.safetensors") for number in range(3)]
    write = writes.write_embedding

    def fill(connection, search, embedding, *rest, **options):
        if embedding.task == "new 1":
            raise ResourceError("No space left on device. Nothing was added. Free space.")
        return write(connection, search, embedding, *rest, **options)

    monkeypatch.setattr(writes, "write_embedding", fill)
    result = call("library", "add", *places, *(["--json"] if as_json else []))
    assert result.exit_code == 5 and f"stopped at '{places[1]}': 1 of 3 files" in result.stderr
    assert "No space left" in result.stderr and "Nothing was added" not in result.stderr
    if as_json:
        report = json.loads(result.stdout)
        assert [row["task"] for row in report["added"]] == ["new 0"] and "No space left" in report["error"]
    else:
        assert "added: new 0" in result.stdout and "1 added, 0 known" in result.stdout
    with Library.open(library) as opened:
        assert [task.name for task in opened.tasks() if "new" in task.name] == ["new 0"]
    alone = call("library", "add", places[1])
    assert alone.exit_code == 5 and "Nothing was added" in alone.stderr and "stopped" not in alone.stderr


def test_a_task_that_has_another_name_here_is_told(call, library, tmp_path):
    place = replace(make("task 1", 1, kind=1), task="birds").save(tmp_path / "x.t2v.safetensors")
    result = call("library", "add", place)
    assert result.exit_code == 0 and "known: birds" in result.stdout and "known as 'task 1'" in result.stdout


@pytest.mark.parametrize("place", ["missing", "empty"])
def test_nothing_to_add_is_a_mistake(call, own_library, tmp_path, place):
    (tmp_path / "empty").mkdir()
    result = call("library", "add", tmp_path / place)
    assert result.exit_code == 2 and place in result.stderr
    assert not os.path.exists(own_library)


def test_rm_says_what_was_removed(call, library):
    with Library.open(library) as opened:
        opened.add(make("task 1", 1, method="direct"))
        first, second = opened.task("task 1").embeddings
    one = call("library", "rm", second.key[:10])
    assert one.exit_code == 0 and f"removed: embedding {second.key[:8]} by net" in one.stdout
    assert "removed: task 1" not in one.stdout
    result = call("library", "rm", "task 1")
    assert result.exit_code == 0 and "removed: task 1" in result.stdout and first.key[:8] in result.stdout
    assert "task 1" in call("library", "rm", "task 1").stderr
    with Library.open(library) as opened:
        assert [task.name for task in opened.tasks()] == ["task 0", "task 2", "task 3", "task 4", "task 5"]


def test_measured_errors_are_not_lost_by_accident(call, library):
    with Library.open(library) as opened:
        opened.add(Expert("resnet", "timm", "resnet34"))
        opened.add(MeasuredError(opened.task("task 1").fingerprint, "resnet", 0.1, "linear"))
    refused = call("library", "rm", "task 1")
    assert refused.exit_code == 2 and "--with-errors" in refused.stderr
    report = read(call("library", "rm", "task 1", "--with-errors", "--json"))
    assert report["task"]["name"] == "task 1" and len(report["embeddings"]) == 1
    with Library.open(library) as opened:
        assert opened.errors() == [] and len(opened) == 5


def test_tags_and_names_change(call, library):
    assert call("library", "tag", "task 0", "b", "a").stdout == "task 0: a, b, even\n"
    assert call("library", "tag", "task 0", "even", "a", "--remove").stdout == "task 0: b\n"
    assert read(call("library", "tag", "task 0", "b", "--remove", "--json"))["tags"] == []
    assert call("library", "rename", "task 0", "first").stdout == "task 0 is called first now\n"
    assert call("library", "show", "task 0").exit_code == 2
    assert read(call("library", "rename", "first", "again", "--json"))["name"] == "again"
    assert call("library", "rename", "again", " ").exit_code == 2


# --- care -----------------------------------------------------------------------------------------------------------


def test_a_sound_library_is_called_sound(call, library):
    result = call("library", "verify")
    assert result.exit_code == 0 and result.stderr == ""
    assert result.stdout == f"sound: 6 embeddings read in {library}\n"
    report = read(call("library", "verify", "--json"))
    assert report["is_sound"] and report["entries"] == 6 and report["problems"] == []


def test_every_damaged_entry_is_named_with_what_mends_it(call, library, tmp_path):
    for name in ("task 1", "task 4"):
        damage(library, name)
    result = call("library", "verify")
    assert result.exit_code == 4 and "sound" not in result.stdout and "6 embeddings read" in result.stdout
    assert "damaged: task 1 (" in result.stderr and "damaged: task 4 (" in result.stderr
    assert "damaged: task 2" not in result.stderr and "task2vec library add FILE" in result.stderr
    report = read(call("library", "verify", "--json"), code=4)
    assert not report["is_sound"] and len(report["problems"]) == 2
    for number in (1, 4):  # the mend that was named
        place = make(f"task {number}", number, kind=number % 2).save(tmp_path / f"{number}.t2v.safetensors")
        assert call("library", "add", place).exit_code == 0
    assert call("library", "verify").exit_code == 0


def test_a_damaged_index_ends_with_4_and_is_repaired(call, library):
    index = library / "library.sqlite"
    index.write_bytes(b"no library at all, and long enough" * 3 + index.read_bytes()[102:])
    for args in (["ls"], ["verify"], ["show", "task 1"], ["stats"]):
        result = call("library", *args)
        assert result.exit_code == 4 and str(index) in result.stderr and "repair" in result.stderr
    result = call("library", "repair")
    assert result.exit_code == 4 and "lost:" in result.stderr  # tags and dates
    assert "6 embeddings in the new file" in result.stdout
    assert read(call("library", "repair", "--json"))["lost"] == []
    assert call("library", "verify").exit_code == 0
    assert read(call("library", "ls", "--json"))["count"] == 6


def test_a_newer_library_ends_with_4(call, library):
    import sqlite3

    connection = sqlite3.connect(library / "library.sqlite")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    result = call("library", "ls")
    assert result.exit_code == 4 and "newer" in result.stderr and "pip install -U task2vec" in result.stderr


def test_compact_tells_the_sizes(call, library):
    for name in ("task 1", "task 2"):
        assert call("library", "rm", name).exit_code == 0
    report = read(call("library", "compact", "--json"))
    assert report["library"] == str(library) and 0 < report["after"] <= report["before"]
    assert "before" in call("library", "compact").stdout
    assert call("library", "verify").exit_code == 0


def test_check_search_tells_its_figures(call, library):
    result = call("library", "check-search", "--refit")
    assert result.exit_code == 0, result.stderr
    assert "net (abababab), robust: 6 embeddings" in result.stdout and "100.0 %" in result.stdout
    (space,) = read(call("library", "check-search", "--queries", 3, "--json"))["spaces"]
    assert space["recall"] == 1 and space["entries"] == 6 and space["queries"] == 3
    assert call("library", "check-search", "--queries", 0).exit_code == 2


# --- sharing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["import", "merge"])
def test_a_library_travels_as_a_file(call, library, tmp_path, command):
    file = tmp_path / "team.t2vlib"
    result = call("library", "export", file)
    assert result.exit_code == 0 and "6 tasks, 6 embeddings" in result.stdout and str(file) in result.stdout
    refused = call("library", "export", file)
    assert refused.exit_code == 2 and "--force" in refused.stderr
    assert read(call("library", "export", file, "--tag", "even", "--force", "--json"))["tasks"] == 3
    here = ("--library", tmp_path / "other")
    taken = call("library", command, file, *here)
    assert taken.exit_code == 0, taken.stderr
    assert taken.stdout == f"3 tasks, 3 embeddings added, 0 known; in {tmp_path / 'other'}\n"
    report = read(call("library", command, file, "--json", *here))
    assert report["known"] == 6 and sum(report["added"].values()) == 0 and report["conflicts"] == []
    whole = read(call("library", command, library, "--json", *here))  # a folder
    assert whole["added"]["embedding"] == 3 and whole["known"] == 6
    assert read(call("library", "ls", "--json", *here))["count"] == 6


def test_conflicts_are_named_and_nothing_is_overwritten(call, library, tmp_path):
    with Library.open(tmp_path / "other") as other:
        other.add(make("task 1", 1, kind=1, noise=0.4), make("new", 30))
    result = call("library", "import", tmp_path / "other")
    assert result.exit_code == 3
    assert "conflict: " in result.stderr and "'task 1'" in result.stderr
    assert "1 task, 1 embedding added, 1 known" in result.stdout
    assert "What was here stays" in result.stderr and "task2vec library add FILE --force" in result.stderr
    (told,) = read(call("library", "import", tmp_path / "other", "--json"), code=3)["conflicts"]
    assert told in result.stderr and told.endswith("It was not overwritten.")
    with Library.open(library) as opened:
        assert opened.get("task 1").fisher.tolist() == make("task 1", 1, kind=1).fisher.tolist()
        assert opened.task("new").images == 130


def test_conflicts_of_experts_and_errors_advise_no_option_that_is_not_there(call, library, tmp_path):
    for folder, error, source in ((library, 0.1, "timm"), (tmp_path / "other", 0.2, "hub")):
        with Library.open(folder) as opened:
            opened.add(make("task 1", 1, kind=1), Expert("same", "timm", "a"), Expert("odd", source, "b"))
            opened.add(MeasuredError(opened.task("task 1").fingerprint, "same", error, "linear"))
    report = read(call("library", "import", tmp_path / "other", "--json"), code=3)
    assert len(report["conflicts"]) == 2
    assert not any("replace" in told or "--force" in told for told in report["conflicts"])


@pytest.mark.parametrize(("content", "code"), [(b"\x80\x04evil.", 4), (None, 2)])
def test_what_is_no_library_is_refused(call, library, tmp_path, content, code):
    if content is not None:
        (tmp_path / "x.t2vlib").write_bytes(content)
    result = call("library", "import", tmp_path / "x.t2vlib")
    assert result.exit_code == code and "x.t2vlib" in result.stderr and result.stdout == ""
    assert read(call("library", "ls", "--json"))["count"] == 6


def test_exports_that_cannot_be_meant(call, library, tmp_path):
    assert "is a folder" in call("library", "export", tmp_path).stderr
    result = call("library", "export", tmp_path / "x.t2vlib", "--tag", "odd")
    assert result.exit_code == 2 and "'odd'" in result.stderr and not (tmp_path / "x.t2vlib").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_library_can_be_looked_at(call, library, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(library, copy)
    for place in (copy, *copy.rglob("*")):
        place.chmod(0o500 if place.is_dir() else 0o400)
    here = ("--library", copy)
    assert read(call("library", "ls", "--json", *here))["count"] == 6
    assert read(call("library", "stats", "--json", *here))["is_read_only"]
    assert call("library", "tag", "task 1", "x", *here).exit_code == 5


def test_a_library_on_a_read_only_disk_is_looked_at(call, library, monkeypatch):
    """As root no folder is closed, so the question whether it is is answered for it."""
    monkeypatch.setattr("task2vec.library.library.cannot_write", lambda folder: True)
    assert read(call("library", "stats", "--json"))["is_read_only"]
    assert "(read-only)" in call("library", "stats").stdout
    for args in (["tag", "task 1", "x"], ["rm", "task 1"], ["compact"]):
        result = call("library", *args)
        assert result.exit_code == 5 and "--library DIR" in result.stderr
    assert read(call("library", "ls", "--json"))["count"] == 6
    assert task2vec.Library.open(library, read_only=True).stats()["tasks"] == 6
