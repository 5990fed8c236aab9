"""`task2vec serve` as a process of its own: ports that are in use (R1), an address that answers, a clean end."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from task2vec.cli.serve import serve
from task2vec.errors import MissingExtraError, ResourceError, UsageError
from task2vec.web import server
from tests.command import START
from tests.web.serving import fill

# The one place where the suite opens sockets: on this machine alone.
pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])
TOKEN = "correct-horse-battery"


@pytest.fixture
def taken():
    """A port that somebody else listens on."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def test_r1_the_next_port_is_taken_and_it_is_said(taken, monkeypatch):
    def take(usual):
        monkeypatch.setattr(server, "USUAL_PORT", usual)
        listening, is_another = server.take_port("127.0.0.1", None)
        with listening:
            return listening.getsockname()[1], is_another

    free, is_another = take(taken)
    assert free != taken and is_another and take(free) == (free, False)
    monkeypatch.setattr(server, "MORE_PORTS", 1)
    chosen, is_another = take(taken)  # none is free: the machine chooses
    assert chosen not in (0, taken) and is_another


def test_r1_an_asked_port_in_use_ends_with_5(taken, tmp_path):
    with pytest.raises(ResourceError, match=str(taken)) as refused:
        serve(library=tmp_path / "x", port=taken, host="127.0.0.1")
    assert refused.value.exit_code == 5 and "--port" in str(refused.value)


def test_a_host_that_is_none_of_this_machine_ends_with_5():
    for host in ("192.0.2.7", 70 * "a", "a..b"):
        with pytest.raises(ResourceError, match=host):
            server.take_port(host, None)


def test_mistakes_end_with_2(tmp_path):
    (tmp_path / "file").write_text("hello")
    for options, words in (({"roots": [tmp_path / "none"]}, "none"), ({"library": tmp_path / "file"}, "is a file")):
        with pytest.raises(UsageError, match=words) as refused:
            serve(host="127.0.0.1", **options)
        assert refused.value.exit_code == 2


def test_without_the_extra_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "fastapi", None)
    with pytest.raises(MissingExtraError, match=re.escape("pip install 'task2vec[web]'")) as refused:
        serve()
    assert refused.value.exit_code == 5 and "\n" not in str(refused.value)


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_it_serves_and_ends_cleanly(tmp_path):
    fill(tmp_path / "tasks", 2)
    env = {**os.environ, "TASK2VEC_TOKEN": TOKEN, "TASK2VEC_LIBRARY": str(tmp_path / "tasks")}
    command = [sys.executable, "-c", START, "serve", "--no-open", "--root", str(tmp_path)]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            assert line.startswith("serving 'tasks' on http://127.0.0.1:") and TOKEN not in line, process.stderr.read()
            home = line.split()[-1]
            bearer = {"Authorization": f"Bearer {TOKEN}"}
            with urllib.request.urlopen(urllib.request.Request(f"{home}api/v1/status", headers=bearer)) as answer:
                status = json.load(answer)
                assert "server" not in answer.headers and answer.headers["x-frame-options"] == "DENY"
            assert status["library"] == "tasks" and status["can_embed"]
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(f"{home}api/v1/status")
            assert refused.value.code == 401
            refused.value.close()
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode in (0, 130) and "Traceback" not in said and TOKEN not in said
