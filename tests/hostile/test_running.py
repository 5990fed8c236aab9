"""R2, R3, R6 and R7: killed and run again, tasks that kill their process, no terminal, a missing extra."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from task2vec.cli.app import app
from task2vec.cli.serve import serve
from task2vec.embedding import load_embedding
from task2vec.errors import MissingExtraError
from task2vec.library import Library
from task2vec.parallel import open_backend
from task2vec.plots import draw_matrix
from task2vec.tasks import read_table
from task2vec.tasks.huggingface import from_huggingface
from tests.command import ENVIRONMENT, START, run_command
from tests.failures import refuse
from tests.hostile import workers as jobs
from tests.hostile.workers import Worker
from tests.parallel_work import find_session, wait_until
from tests.tasks.pictures import make_folder

PIPES: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


def test_text_without_a_terminal_fits_forty_columns_and_ascii():
    env = {"COLUMNS": "40", "NO_COLOR": "1"}
    printed = run_command("--help", TERM="dumb", PYTHONIOENCODING="ascii", **env)
    table = CliRunner(charset="ascii").invoke(app, ["models", "--offline"], env=env)
    assert (printed.returncode, table.exit_code, printed.stderr) == (0, 0, "")
    for text, known in ((printed.stdout, "embed"), (table.stdout.split("Any timm")[0], "efficientnet")):
        assert known in text and text.isascii() and "\x1b" not in text
        assert max(map(len, text.splitlines())) <= 40


def start_staged(code, **options):
    """Our command line with one more command; a shell may hand on that interrupts are ignored."""
    script = f"""
import signal, sys, time, types
signal.signal(signal.SIGINT, signal.default_int_handler)
def staged():
    {code}
sys.modules['task2vec.cli.staged'] = types.SimpleNamespace(staged=staged)
from task2vec.cli.app import COMMANDS
COMMANDS['staged'] = ('staged', 'staged', 'A test.')
{START}"""
    return subprocess.Popen([sys.executable, "-c", script, "staged"], **PIPES, **options)


def test_a_reader_that_goes_away_is_no_error():
    with start_staged("for line in range(100_000): print(line)") as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 0


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for one process")
def test_an_interrupt_ends_with_130_and_no_traceback():
    with start_staged("print('ready', flush=True); time.sleep(60)", text=True) as process:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize(
    ("module", "extra", "call"),
    [
        ("matplotlib.figure", "plot", lambda folder: draw_matrix(np.zeros((2, 2)), ["a", "b"], out=folder / "x.png")),
        ("pyarrow", "table", lambda folder: read_table(folder / "t.parquet")),
        ("fastapi", "web", lambda folder: serve()),
        ("datasets", "hf", lambda folder: from_huggingface("someone/pets")),
        ("ray", "ray", lambda folder: open_backend("ray")),
    ],
)
def test_a_missing_extra_is_one_line_with_the_command(tmp_path, monkeypatch, module, extra, call):
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    for name in (module.split(".")[0], module):
        monkeypatch.setitem(sys.modules, name, None)
    error = refuse(MissingExtraError, rf"pip install 'task2vec\[{extra}\]'", call, tmp_path)
    assert error.exit_code == 5 and "\n" not in str(error)
    assert os.listdir(tmp_path) == ["t.parquet"]


# --- R2: a run that is killed, and the same again ---


@pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are made by fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_run_that_is_killed_keeps_what_it_reported_and_the_next_makes_the_rest(tmp_path):
    # A fork of this process, which has imported torch; a new one would take seconds.
    worker, again = Worker(jobs.embed, context=multiprocessing.get_context("fork"), folder=tmp_path), []
    worker.hear(4)
    time.sleep(random.random() * 0.05)
    assert worker.kill() == -signal.SIGKILL and {how for _, how in worker.said} == {"made"}
    kept = {load_embedding(place).task: place for place in tmp_path.glob("question*")}  # whole, or absent
    assert {task for task, _ in worker.said} <= kept.keys() and 4 <= len(kept) < 10
    jobs.embed(lambda *words: again.append(words), tmp_path)
    assert len(again) == 10 and {task for task, how in again if how == "found"} == kept.keys()


# --- R2 in a process of its own ---------------------------------------------------------------------------------------


TASKS = 20
SLOWLY = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may hand on that interrupts are ignored
import task2vec
import task2vec.embedding
from tests.tiny_probe import make_tiny
task2vec.load_probe = lambda *args, **options: make_tiny()
embed_many = task2vec.embed_many
def embed_slowly(*args, **options):  # so that a signal comes while there is still something to do
    for result in embed_many(*args, **options):
        time.sleep(0.1)
        yield result
task2vec.embed_many = embed_slowly
"""


def run_until(folders, library, stop):
    """What was printed of each task until the command was stopped, a moment after it had made one."""
    options = ["--max-samples", "6", "--l2", "0.1", "--library", library]
    command = [sys.executable, "-c", SLOWLY + START, "embed", *map(str, [*folders, *options])]
    env, told, waiting = {**os.environ, **ENVIRONMENT, "COLUMNS": "100"}, {}, stop
    with subprocess.Popen(command, env=env, start_new_session=True, text=True, **PIPES) as process:
        for line in process.stdout:
            name, *rest = line.split()
            if name.startswith("task-"):
                told[name] = "found" if rest[-1] == "found" else "made"
            if waiting is not None and "made" in told.values():
                time.sleep(random.random() * 0.05)
                process.send_signal(waiting)
                waiting = None
        errors = process.stderr.read()
    assert process.returncode == {None: 0, signal.SIGINT: 130}.get(stop, -(stop or 0)), errors
    assert "Traceback" not in errors
    assert wait_until(lambda: not find_session(process.pid)), find_session(process.pid)
    return told


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are counted in /proc")
def test_a_command_that_is_stopped_ten_times(tmp_path):
    """At last it may come to its end; what was printed as finished is there each time."""
    folders = [make_folder(tmp_path / f"task-{number}", dark=3, bright=3 + number) for number in range(TASKS)]
    finished: set[str] = set()
    for stop in (*3 * (signal.SIGTERM, signal.SIGINT, signal.SIGKILL), signal.SIGINT, None):
        told = run_until(folders, tmp_path / "library", stop)
        assert finished <= {name for name, how in told.items() if how == "found"}
        finished |= set(told)
        with Library.open(tmp_path / "library") as opened:
            kept = {task.name for task in opened.tasks()}
            assert finished <= kept and len(kept) <= TASKS
            assert opened.verify().is_sound
    assert finished == {f"task-{number}" for number in range(TASKS)}
