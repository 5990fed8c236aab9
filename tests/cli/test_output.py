"""Exit codes, messages, tables and JSON; names of strangers stay text; hints name the library that was named."""

import json
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from task2vec import errors
from task2vec.cli import app
from task2vec.tasks import BadImage
from tests.cli.material import damage, refuse
from tests.failures import fail


def run(raising, *args):
    """The result of a command that raises, in an application like ours."""
    stage = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    stage.callback()(app.start)
    stage.command("stumble")(app.guard(lambda: fail(raising)()))
    return CliRunner().invoke(stage, [*args, "stumble"])


CODES = {1: [RuntimeError("x")], 2: [errors.UsageError("x")], 3: [errors.DataError("x")], 130: [KeyboardInterrupt()]}
CODES[4] = [errors.LibraryError("x"), errors.EmbeddingFileError("x")]
CODES[5] = [errors.ResourceError("x"), errors.MissingExtraError("x"), MemoryError()]
CODES[5].append(RuntimeError("DefaultCPUAllocator: can't allocate memory"))


@pytest.mark.parametrize(("error", "code"), [(error, code) for code, raised in CODES.items() for error in raised])
def test_every_error_has_its_code_and_no_traceback(error, code):
    result = run(error)
    assert result.exit_code == code
    assert "Traceback" not in result.stderr and result.stderr.strip() and result.stdout == ""


def test_debug_shows_the_traceback_and_keeps_the_code():
    for error in (errors.DataError("bad data"), RuntimeError("a bug")):
        result = run(error, "--debug")
        assert result.exit_code == getattr(error, "exit_code", 1)
        assert "Traceback" in result.stderr and str(error) in result.stderr
    assert "--debug" in run(RuntimeError("oops")).stderr


def test_control_characters_are_shown_and_not_all_unreadable_images():
    shown = run(errors.DataError("folder 'a\x1b[31m' is\nempty")).stderr
    assert "\x1b" not in shown and "a\\x1b[31m' is\nempty" in shown
    bad = tuple(BadImage(f"{number}\x1b.png", "torn") for number in range(12))
    shown = run(errors.BadImagesError("too many", bad)).stderr
    assert shown.count("unreadable: ") == 10 and "0\\x1b.png: torn" in shown and "and 2 more; --json" in shown


def test_facts_and_json_are_printed_literally(capsys, monkeypatch):
    monkeypatch.setattr(app, "wants_json", lambda: True)
    app.print_facts([("task", "[red]x[/red] :smile: [link=file:///etc]y[/link]\x1b")])
    assert "[red]x[/red] :smile: [link=file:///etc]y[/link]\\x1b" in capsys.readouterr().out
    document = {"norm": np.float64(0.5), "rows": np.eye(2), "path": Path("a"), "name": "\udc80\x1b"}
    app.print_json(document)
    plain = {"norm": 0.5, "rows": [[1, 0], [0, 1]], "path": "a", "name": "\udc80\x1b"}
    assert json.loads(capsys.readouterr().out) == plain


@pytest.mark.parametrize("columns", [20, 40, 200])
def test_a_table_fits_the_terminal(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    rows = [{"task": f"a long name of a task, {n}\x1b", "n": n, "tags": "one, two", "empty": None} for n in range(3)]
    rows.append({"task": "日本語" * 20, "n": None, "tags": "", "empty": ""})
    app.print_table(rows, "task, n, tags, empty", drop="tags")
    shown = capsys.readouterr().out
    table = shown.split("not shown")[0].splitlines()
    assert all(len(line) <= columns for line in table) and "\x1b" not in shown and "empty" not in shown
    assert ("not shown: tags" in shown) == (columns == 20) and ("one, two" in shown) == (columns > 20)


def test_a_pipe_has_room_for_every_column(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS")
    app.print_table([{"task": "word " * 100, "own": {"other": "x"}}], "task, other=own.other", drop="other")
    _, row = capsys.readouterr().out.splitlines()
    assert row.count("word") == 100 and row.endswith("x")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("task2vec library ls; then: task2vec library rm", "task2vec library ls{}; then: task2vec library rm{}"),
        ("(task2vec embed FOLDER)", "(task2vec embed FOLDER{})"),
        ("task2vec embed PATH --probe net --size 64", "task2vec embed PATH{} --probe net --size 64"),
        ("task2vec embed FOLDER --no-library", "task2vec embed FOLDER --no-library"),
        ("no file of `task2vec library export` at all", "no file of `task2vec library export` at all"),
        ("task2vec map DIR, task2vec map", "task2vec map DIR, task2vec map{}"),
        ("a task2vec library is; install task2vec", "a task2vec library is; install task2vec"),
    ],
)
def test_commands_in_messages_name_the_library_that_was_named(text, expected):
    before = app.named_library.set(Path("a b"))
    try:
        once = app.name_library(text)
        assert once == expected.replace("{}", " --library 'a b'")
        assert app.name_library(once) == once
    finally:
        app.named_library.reset(before)
    assert app.name_library(text) == text


def test_the_advised_command_works_on_the_library_that_was_named(tmp_path):
    folder = tmp_path / "my tasks"
    damage(folder)
    refuse(f"task2vec library repair --library '{folder}'", "library", "ls", "--library", folder, code=4)
