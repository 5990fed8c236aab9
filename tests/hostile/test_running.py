"""R2, R6 and R7: killed and run again, no terminal, no colours, 40 columns, a missing extra, a reader that leaves."""

import os
import random
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from typer.testing import CliRunner

from task2vec.cli.app import app
from task2vec.embedding import EmbedSettings, embed_many, load_embedding
from tests.command import START, run_command
from tests.embedding.families import ask_binary
from tests.library.making import ENVIRONMENT
from tests.tiny_probe import make_tiny

ESCAPE = "\x1b"


def test_help_without_a_terminal_fits_forty_columns():
    result = run_command("--help", COLUMNS="40", NO_COLOR="1", TERM="dumb", PYTHONIOENCODING="ascii")
    assert result.returncode == 0 and "embed" in result.stdout
    assert ESCAPE not in result.stdout + result.stderr and result.stderr == ""
    assert max(map(len, result.stdout.splitlines())) <= 40


def test_a_table_without_a_terminal_in_forty_columns_and_ascii():
    result = CliRunner(charset="ascii").invoke(app, ["probes"], env={"COLUMNS": "40", "NO_COLOR": "1"})
    assert result.exit_code == 0, result.stderr
    assert "efficientnet" in result.stdout
    assert result.stdout.isascii() and ESCAPE not in result.stdout
    table = result.stdout.split("Any timm")[0]
    assert max(map(len, table.splitlines())) <= 40


def stage(code, name):
    """Python that adds a command to ours, and starts it."""
    return (
        "import sys, signal, time\n"
        # A background job of a shell passes on that interrupts are ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import types\n"
        f"def {name}():\n{code}\n"
        f"module = types.ModuleType('task2vec.cli.staged'); module.{name} = {name}\n"
        "sys.modules['task2vec.cli.staged'] = module\n"
        f"from task2vec.cli.app import COMMANDS\nCOMMANDS['{name}'] = ('staged', '{name}', 'A test.')\n" + START
    )


def test_a_reader_that_goes_away_is_no_error():
    code = stage("    for line in range(100_000): print(line)", "chatter")
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code, "chatter"], **pipes) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 0


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for one process")
def test_an_interrupt_ends_with_130_and_no_traceback():
    code = stage("    print('ready', flush=True)\n    time.sleep(60)", "wait")
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code, "wait"], text=True, **pipes) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert "Traceback" not in process.stderr.read()


def test_a_missing_extra_is_one_line_with_the_command(tmp_path):
    code = (
        "    sys.modules['matplotlib'] = None\n"
        "    import numpy as np\n"
        "    from task2vec.plots import draw_matrix\n"
        "    draw_matrix(np.zeros((2, 2)), ['a', 'b'], out='x.png')"
    )
    result = run_command("draw", python=stage(code, "draw"), cwd=tmp_path)
    assert result.returncode == 5, result.stderr
    assert result.stderr.count("\n") == 1
    assert "pip install 'task2vec[plot]'" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_parquet_without_pyarrow_is_one_line_with_the_command(tmp_path, monkeypatch):
    (tmp_path / "table.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = CliRunner().invoke(app, ["embed", str(tmp_path / "table.parquet")])
    assert result.exit_code == 5, result.output
    assert "pip install 'task2vec[table]'" in " ".join(result.stderr.split())


# --- R2: a run that is killed, and the same again ---

EMBED = """
import sys
from tests.hostile.test_running import embed_in
for line in embed_in(sys.argv[1]):
    print(*line, flush=True)
"""


def embed_in(folder):
    """Embeds ten tasks, each kept in the folder; yields the name of each and whether it was found or made."""
    settings = EmbedSettings(max_samples=8, l2=0.1)
    for result in embed_many(ask_binary(10), make_tiny(), settings=settings, folder=folder, gigabytes=1e-9):
        yield result.task, "found" if result.is_found else "made"
        time.sleep(0.02)  # so that a signal comes while there is still something to do


@pytest.mark.skipif(os.name == "nt", reason="Windows has no signals to end a process by")
def test_a_run_that_is_killed_keeps_what_it_reported_and_the_next_makes_the_rest(tmp_path):
    command, env, told = [sys.executable, "-c", EMBED, str(tmp_path)], {**os.environ, **ENVIRONMENT}, []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        for line in process.stdout:
            told.append(tuple(line.split()))
            if len(told) == 4:
                time.sleep(random.random() * 0.05)
                process.kill()
    assert process.returncode == -signal.SIGKILL and {how for _, how in told} == {"made"}
    kept = {place.name.split(".")[0] for place in tmp_path.glob("question*")}
    assert {task for task, _ in told} <= kept and 4 <= len(kept) < 10
    for place in tmp_path.glob("question*"):
        load_embedding(place)  # whole, or absent
    again = dict(embed_in(tmp_path))
    assert len(again) == 10 and {task for task, how in again.items() if how == "found"} == kept
