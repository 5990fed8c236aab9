"""The notebook runs: its cells, in order, as a script in another process that has no network and an empty folder."""

import json
from pathlib import Path

import pytest

from tests.command import run_command

NOTEBOOK = Path(__file__).resolve().parents[1] / "docs" / "start" / "notebook.ipynb"
# Nothing of it may reach the network.
OFFLINE = """
import socket
def refuse(*_, **__):
    raise OSError("the notebook reaches for the network")
socket.socket.connect = socket.getaddrinfo = refuse
"""


@pytest.mark.long
def test_the_cells_run(tmp_path):
    cells = [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    script = "\n".join([OFFLINE, *("".join(cell["source"]) for cell in cells)])
    done = run_command(python=script, cwd=tmp_path, PYTHONWARNINGS="error::DeprecationWarning:__main__")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Start from" in done.stdout and "Library(5 tasks, 5 embeddings" in done.stdout
    assert not list(tmp_path.iterdir())


def test_it_shows_what_comes_out_and_is_small():
    text = NOTEBOOK.read_text(encoding="utf-8")
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert sum(not cell["outputs"] for cell in cells) == 0
    assert len(text) < 60_000 and any("image/png" in output.get("data", {}) for c in cells for output in c["outputs"])
