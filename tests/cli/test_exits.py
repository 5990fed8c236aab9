"""How commands end: codes, words, and a traceback only where it was asked for."""

import pytest
import typer
from typer.testing import CliRunner

from task2vec import errors
from task2vec.cli import exits
from task2vec.cli.app import app, start


def run(raising, *args):
    """The result of a command that raises, run by an app like ours."""
    stage = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    stage.callback()(start)

    def stumble():
        raise raising

    stage.command()(exits.guarded(stumble))
    return CliRunner().invoke(stage, [*args, "stumble"])


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UsageError("x"), 2),
        (errors.ProbeMismatchError("x"), 2),
        (errors.DataError("x"), 3),
        (errors.BadImagesError("x"), 3),
        (errors.EmbeddingFileError("x"), 4),
        (errors.ResourceError("x"), 5),
        (errors.MissingExtraError("x"), 5),
        (MemoryError(), 5),
        (KeyboardInterrupt(), 130),
        (RuntimeError("x"), 1),
        (KeyError("x"), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_every_error_has_its_code_and_no_traceback(error, code):
    result = run(error)
    assert result.exit_code == code
    assert "Traceback" not in result.stderr
    assert result.stderr.strip()
    assert result.stdout == ""


@pytest.mark.parametrize("error", [errors.DataError("bad data"), RuntimeError("a bug")])
def test_debug_shows_the_traceback_and_keeps_the_code(error):
    result = run(error, "--debug")
    assert result.exit_code == getattr(error, "exit_code", 1)
    assert "Traceback" in result.stderr and str(error) in result.stderr


def test_a_bug_of_ours_points_to_debug():
    assert "--debug" in run(RuntimeError("oops")).stderr


def test_errors_show_control_characters():
    result = run(errors.DataError("folder 'a\x1b[31m' is\nempty"))
    assert "\x1b" not in result.stderr
    assert "a\\x1b[31m' is\nempty" in result.stderr


def test_version_and_help():
    version = CliRunner().invoke(app, ["--version"])
    assert version.exit_code == 0 and version.stdout.startswith("task2vec 0.")
    assert CliRunner().invoke(app, ["--help"]).exit_code == 0
    assert CliRunner().invoke(app, ["no-such-command"]).exit_code == 2
