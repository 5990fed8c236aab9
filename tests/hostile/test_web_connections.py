"""Connections that keep a place and do nothing with it (S8): a head that never ends, an answer that nobody reads."""

import asyncio
import socket
import threading
import time
from contextlib import contextmanager

import pytest
import uvicorn

from task2vec.web import Limits, server

pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])
MUCH = 24 << 20  # more than the machine keeps between two sockets
PATIENCE = 0.4
ASKED = b"GET /%s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


class _App:
    """Answers after a while to /late, with 24 MB to /much, and at once to everything else."""

    limits = Limits(seconds=PATIENCE, reading=PATIENCE)

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            for name in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{name}.complete"})
            return
        if scope["path"] == "/late":
            await asyncio.sleep(3 * PATIENCE)
        size = MUCH if scope["path"] == "/much" else 2
        headers = [(b"content-length", b"%d" % size)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": size * b"x"})


@pytest.fixture(scope="module")
def place():
    """A server as `task2vec serve` configures it; where it listens, and its connections."""
    listening, _ = server.take_port("127.0.0.1", None)
    serving = uvicorn.Server(server.configure(_App()))
    thread = threading.Thread(target=serving.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        while not serving.started:
            time.sleep(0.01)
        yield listening.getsockname(), serving.server_state.connections
    finally:
        serving.should_exit = True
        thread.join()


@contextmanager
def connect(place):
    with socket.create_connection(place[0]) as line:
        line.settimeout(60)
        yield line


@pytest.mark.parametrize(
    "head", [b"", b"G", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: ", ASKED[:-2] % b"at-once"],
    ids=["nothing", "a letter", "half a header", "no empty line"],
)  # fmt: skip
def test_s8_a_head_that_never_ends_is_given_up(place, head):
    with connect(place) as line:
        line.sendall(head)
        assert line.recv(100) == b""


def test_s8_a_letter_now_and_then_wins_no_time(place):
    with connect(place) as line:
        line.settimeout(PATIENCE / 8)
        for letter in (ASKED % (1000 * b"a")).decode():
            try:
                line.sendall(letter.encode())
                if line.recv(1) == b"":
                    return
            except TimeoutError:
                continue
            except ConnectionError:
                return
    pytest.fail("a thousand letters were waited for")


def test_s8_an_answer_that_nobody_reads_is_given_up(place):
    with connect(place) as line:
        line.sendall(ASKED % b"much")
        line.recv(1)
        for _ in range(6000):  # it is the server that ends it
            if not place[1]:
                break
            time.sleep(0.01)
        assert not place[1]
        assert 0 < _read(line, MUCH) < MUCH


def test_a_late_answer_and_a_large_one_arrive(place):
    with connect(place) as line:
        _ask(line, b"late")
        line.sendall(ASKED % b"much")
        assert _read(line, MUCH) >= MUCH
    with connect(place) as line:
        _ask(line, b"late")
        _ask(line, b"late")  # waiting for an answer is nobody's fault


def _ask(line, what):
    line.sendall(ASKED % what)
    told = b""
    while not told.endswith(b"xx"):
        told += line.recv(1000)


def _read(line, most):
    taken = 0
    while taken < most and (more := len(line.recv(1 << 20))):
        taken += more
    return taken


def test_s8_they_do_not_lock_others_out(place):
    lines = [socket.create_connection(place[0]) for _ in range(server.CONNECTIONS + 5)]
    try:
        for line in lines:
            line.sendall(ASKED[:9])
        for _ in range(600):
            with connect(place) as other:
                other.sendall(ASKED % b"at-once")
                if other.recv(1000).startswith(b"HTTP/1.1 200"):
                    break
            time.sleep(0.1)
        else:
            pytest.fail("the server never answered again")
    finally:
        for line in lines:
            line.close()
