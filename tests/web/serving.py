"""A small server: bundled tasks of two kinds, and a library with some more, one of them with a hostile name."""

import threading
import time
from contextlib import contextmanager

from starlette.testclient import TestClient

from task2vec import Library
from task2vec.storage import write_file
from task2vec.web import Limits, ServeSettings, make_app, take_port
from task2vec.web.server import make_server
from tests.cli.material import make
from tests.select.material import make_world

HOME = "http://127.0.0.1:8765"
OWN = {"Origin": HOME}
TOKEN = "correct-horse-battery"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
WICKED = "<img src=x onerror=alert(1)>"
API = "/api/v1"
DEFAULT_LIMITS = Limits()
# Of every response, reports among them.
SHARED_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


def fill(folder, count=6):
    """Adds tasks to a library: even ones of one kind, odd ones of the other, the last with a hostile name."""
    with Library.open(folder) as library:
        for number in range(count):
            name = WICKED if number == count - 1 else f"own {number}"
            tags = ["mine"] if number % 2 == 0 else []
            library.add(make(name, 100 + number, kind=number % 2, has_halves=number == 0), tags=tags)


@contextmanager
def serving(folder, **settings):
    """A client of a server of its own, which sees everything as a browser on this machine would."""
    app = make_app(ServeSettings(library=folder, **settings), metatask=make_world())
    with TestClient(app, base_url=HOME) as client:
        client.state = app.state
        client.secure = app
        yield client


@contextmanager
def listening(app, limits=DEFAULT_LIMITS):
    """Runs an application on a port of this machine, as `task2vec serve` does; yields the server and its address."""
    socket, _ = take_port("127.0.0.1", 0)
    server = make_server(app, limits)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]})
    thread.start()
    try:
        yield server, socket.getsockname()
    finally:
        server.should_exit = True
        thread.join()


def keep_report(folder, name, page):
    """Puts a page where the report on a task of a library is, and returns its path."""
    with Library.open(folder) as library:
        return write_file(library.report_file(library.task(name).fingerprint), page.encode(), makes_folder=True)


def ask(client, path, status=200, **params):
    """The JSON of a response."""
    answer = client.get(API + path, params=params or None)
    assert answer.status_code == status, answer.text
    return answer.json()


def find_id(client, name):
    return next(one["id"] for one in ask(client, "/tasks", limit=200)["tasks"] if one["name"] == name)


def wait_for(client, path, is_there=lambda answer: answer.status_code == 200):
    """The first response that is as wanted; a busy machine may take minutes."""
    for _ in range(12000):
        answer = client.get(API + path)
        if is_there(answer):
            return answer
        time.sleep(0.05)
    raise AssertionError(f"never: {answer.status_code} {answer.text}")


def ask_raw(client, path, *, raw=None, method="GET", query=b"", headers=(), body=()):
    """The response to a request that no client would send; `body` gives parts, and counts how many are taken."""
    parts, taken, sent = iter(body), [], []

    async def receive():
        part = next(parts, None)
        taken.append(part)
        return {"type": "http.request", "body": part or b"", "more_body": part is not None}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http", "http_version": "1.1", "method": method, "path": path, "raw_path": (raw or path).encode(),
        "query_string": query, "root_path": "", "scheme": "http", "server": ("127.0.0.1", 8765),
        "client": ("127.0.0.1", 1), "headers": [(b"host", b"127.0.0.1:8765"), *headers],
    }  # fmt: skip
    client.portal.call(client.secure, scope, receive, send)
    content = b"".join(message.get("body", b"") for message in sent)
    start = sent[0]
    return {"status": start["status"], "body": content, "taken": len(taken), "headers": dict(start["headers"])}
