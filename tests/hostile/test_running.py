"""R6 and R7: no terminal, no colours, 40 columns, a reader that goes away, an extra that is missing."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.command import START, run_command

ESCAPE = "\x1b"


@pytest.mark.parametrize(
    "env", [{}, {"NO_COLOR": "1"}, {"COLUMNS": "40"}, {"TERM": "dumb"}, {"PYTHONIOENCODING": "ascii"}]
)
def test_help_without_a_terminal(env):
    result = run_command("--help", **env)
    assert result.returncode == 0
    assert "embed" in result.stdout
    assert ESCAPE not in result.stdout + result.stderr
    assert result.stderr == ""


def test_help_fits_forty_columns():
    result = run_command("--help", COLUMNS="40")
    assert max(map(len, result.stdout.splitlines())) <= 40


def test_a_table_without_a_terminal_in_forty_columns_and_ascii():
    result = run_command("probes", COLUMNS="40", NO_COLOR="1", PYTHONIOENCODING="ascii")
    assert result.returncode == 0, result.stderr
    assert "efficientnet" in result.stdout
    assert result.stdout.isascii() and ESCAPE not in result.stdout
    table = result.stdout.split("Any timm")[0]
    assert max(map(len, table.splitlines())) <= 40


def test_a_reader_that_goes_away_is_no_error():
    many_lines = (
        "import typer\n"
        "from task2vec.cli import app, exits\n"
        "def chatter():\n"
        "    for line in range(100_000): print(line)\n"
        "app.app.command()(exits.guarded(chatter))\n" + START
    )
    with subprocess.Popen(
        [sys.executable, "-c", many_lines, "chatter"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 0


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for one process")
def test_an_interrupt_ends_with_130_and_no_traceback():
    waits = (
        "import signal, time\n"
        # A background job of a shell hands on that interrupts are ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from task2vec.cli import app, exits\n"
        "def wait():\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
        "app.app.command()(exits.guarded(wait))\n" + START
    )
    with subprocess.Popen(
        [sys.executable, "-c", waits, "wait"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert "Traceback" not in process.stderr.read()


def test_a_missing_extra_is_one_line_with_the_command(tmp_path):
    blocked = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from task2vec.cli import app, exits\n"
        "import numpy as np\n"
        "from task2vec.atlas import draw_distance_matrix\n"
        "def draw():\n"
        "    draw_distance_matrix(np.zeros((2, 2)), ['a', 'b'], path='x.png')\n"
        "app.app.command()(exits.guarded(draw))\n" + START
    )
    result = run_command("draw", python=blocked, cwd=tmp_path)
    assert result.returncode == 5
    assert result.stderr.count("\n") == 1
    assert "pip install 'task2vec[plot]'" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_parquet_without_pyarrow_is_one_line_with_the_command(tmp_path):
    (tmp_path / "table.parquet").write_bytes(b"PAR1")
    result = run_command(
        "embed", "table.parquet", cwd=tmp_path, python="import sys; sys.modules['pyarrow'] = None\n" + START
    )
    assert result.returncode == 5, result.stderr
    assert result.stderr.count("\n") == 1
    assert "pip install 'task2vec[table]'" in result.stderr
