"""A server that listens on a port of this machine.

Ports that are in use (R1), a clean end, and connections that keep a place and do nothing with it (S8).
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress

import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from task2vec.cli.serve import serve
from task2vec.errors import ResourceError, UsageError
from task2vec.web import Limits, server
from tests.command import START
from tests.failures import refuse
from tests.parallel_work import wait_until
from tests.web.serving import BEARER, TOKEN, fill, listening

# The one place where the suite opens sockets: on this machine alone.
pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])


@pytest.fixture
def taken():
    """A port that somebody else listens on."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def test_r1_the_next_port_is_taken_and_it_is_said(taken, monkeypatch):
    def take(usual):
        monkeypatch.setattr(server, "DEFAULT_PORT", usual)
        listening, is_another = server.take_port("127.0.0.1", None)
        with listening:
            return listening.getsockname()[1], is_another

    free, is_another = take(taken)
    assert free != taken and is_another and take(free) == (free, False)
    monkeypatch.setattr(server, "FURTHER_PORTS", 1)
    chosen, is_another = take(taken)  # none is free: the machine chooses
    assert chosen not in (0, taken) and is_another


def test_r1_an_asked_port_in_use_ends_with_5_and_so_do_foreign_hosts(taken, tmp_path):
    (tmp_path / "file").write_text("hello")
    for options, error, code, words in (
        ({"port": taken}, ResourceError, 5, f"{taken}.*--port"),
        ({"host": "192.0.2.7"}, ResourceError, 5, "192.0.2.7"),
        ({"host": 70 * "a"}, ResourceError, 5, 70 * "a"),
        ({"host": "a..b"}, ResourceError, 5, "a..b"),
        ({"library": tmp_path / "file"}, UsageError, 2, "is a file"),
    ):
        given = {"library": tmp_path / "x", "host": "127.0.0.1", "token": TOKEN, **options}
        assert refuse(error, words, serve, **given).exit_code == code


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_it_serves_and_ends_cleanly(tmp_path):
    fill(tmp_path / "tasks", 2)
    env = {**os.environ, "TASK2VEC_TOKEN": TOKEN, "TASK2VEC_LIBRARY": str(tmp_path / "tasks")}
    command = [sys.executable, "-c", START, "serve", "--no-open"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            assert line.startswith("serving 'tasks' on http://127.0.0.1:") and TOKEN not in line, process.stderr.read()
            status = f"{line.split()[-1]}api/v1/status"
            with urllib.request.urlopen(urllib.request.Request(status, headers=BEARER)) as answer:
                told = json.load(answer)
                assert "server" not in answer.headers and answer.headers["x-frame-options"] == "DENY"
            assert told["library"] == "tasks" and told["tasks"] > 2
            with refuse(urllib.error.HTTPError, None, urllib.request.urlopen, status) as refused:
                assert refused.code == 401
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode in (0, 130) and "Traceback" not in said and TOKEN not in said


# --- S8: a head that never ends, an answer that nobody reads ----------------------------------------------------------


MUCH = 24 << 20  # more than the machine keeps between two sockets
PATIENCE = 0.4
ASKED = b"GET /%s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


async def answer(request):
    """After a while to /late, with 24 MB to /much, and at once to everything else."""
    path = request.path_params["path"]
    await asyncio.sleep(2 * PATIENCE if path == "late" else 0)
    return Response((MUCH if path == "much" else 2) * b"x")


@pytest.fixture(scope="module")
def place():
    """A server as `task2vec serve` configures it, and where it listens."""
    app = Starlette(routes=[Route("/{path}", answer)])
    with listening(app, Limits(seconds=PATIENCE, reading=PATIENCE)) as found:
        yield found


def connect(place):
    return socket.create_connection(place[1], timeout=60)


@pytest.mark.parametrize("head", [b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: ", ASKED[:-2] % b"at-once"])
def test_s8_a_head_that_never_ends_is_given_up(place, head):
    with connect(place) as line:
        line.sendall(head)
        assert line.recv(100) == b""


def test_s8_a_letter_now_and_then_wins_no_time(place):
    with connect(place) as line, suppress(ConnectionError):
        line.settimeout(PATIENCE / 8)
        for letter in (ASKED % (1000 * b"a")).decode():
            line.sendall(letter.encode())
            with suppress(TimeoutError):
                if line.recv(1) == b"":
                    return
        pytest.fail("a thousand letters were waited for")


@pytest.mark.parametrize("length", [b"Content-Length: 100000", b"Transfer-Encoding: chunked"])
@pytest.mark.parametrize("method", [b"GET", b"POST"])
def test_s8_a_body_that_never_ends_is_given_up(place, method, length):
    with connect(place) as line, suppress(ConnectionError):
        line.settimeout(PATIENCE / 8)
        line.sendall(method + b" /at-once HTTP/1.1\r\nHost: 127.0.0.1\r\n" + length + b"\r\n\r\n")
        for _ in range(200):  # the answer is there at once, but as long as bytes come uvicorn keeps the connection
            line.sendall(b"a" if length.endswith(b"0") else b"1\r\na\r\n")
            with suppress(TimeoutError):
                if line.recv(1000) == b"":
                    return
        pytest.fail("two hundred bytes were waited for")


def test_s8_an_answer_that_nobody_reads_is_given_up(place):
    with connect(place) as line:
        line.sendall(ASKED % b"much")
        line.recv(1)
        assert wait_until(lambda: not place[0].server_state.connections)  # it is the server that ends it
        assert 0 < read(line, MUCH) < MUCH


def test_a_late_answer_and_a_slowly_read_one_arrive(place):
    with connect(place) as line:
        for _ in range(2):  # waiting for an answer is nobody's fault
            line.sendall(ASKED % b"late")
            while not (told := line.recv(4000)).endswith(b"xx"):
                assert told
        line.sendall(ASKED % b"much")
        taken = 0
        for _ in range(6):
            taken += read(line, MUCH // 8)
            time.sleep(PATIENCE / 3)
        assert taken + read(line, MUCH - taken) >= MUCH


def read(line, most):
    taken = 0
    while taken < most and (more := len(line.recv(1 << 18))):
        taken += more
    return taken


def is_answered(place):
    with connect(place) as line:
        line.sendall(ASKED % b"at-once")
        return line.recv(1000).startswith(b"HTTP/1.1 200")


def test_s8_they_do_not_lock_others_out(place):
    with ExitStack() as stack:
        for _ in range(server.MAX_CONNECTIONS + 5):
            stack.enter_context(connect(place)).sendall(ASKED[:9])
        assert wait_until(lambda: is_answered(place))
