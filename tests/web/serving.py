"""A small world to be served: tasks of two kinds that ship, and some of a library, one of them with a wicked name."""

import time
from contextlib import contextmanager

from starlette.testclient import TestClient

from task2vec import Library
from task2vec.web.app import make_app
from task2vec.web.settings import ServeSettings
from tests.cli.material import make
from tests.select.recommend_world import make_metatask

HOME = "http://127.0.0.1:8765"
OWN = {"Origin": HOME}
WICKED = "<img src=x onerror=alert(1)>"
API = "/api/v1"


def fill(folder, count=6):
    """Puts tasks into a library: even ones of one kind, odd ones of the other, the last with a wicked name."""
    with Library.open(folder) as library:
        for number in range(count):
            name = WICKED if number == count - 1 else f"own {number}"
            tags = ["mine"] if number % 2 == 0 else []
            library.add(make(name, 100 + number, kind=number % 2, has_halves=number == 0), tags=tags)


@contextmanager
def serving(folder, *, roots=(), measured=None, jobs=None, **how):
    """A client of a server of its own, which sees everything as a browser on this machine would."""
    app = make_app(ServeSettings(library=folder, roots=tuple(roots), **how), measured=measured or make_metatask())
    if jobs is not None:
        app.served.jobs.command = jobs
    with TestClient(app, base_url=HOME, raise_server_exceptions=True) as client:
        client.app_state = app.served
        client.guards = app
        yield client


def ask(client, path, status=200, **params):
    """What the API answers."""
    answer = client.get(API + path, params=params or None)
    assert answer.status_code == status, answer.text
    return answer.json()


def wait_for(client, path, is_there, **params):
    """The first answer that is as wanted."""
    for _ in range(600):
        answer = client.get(API + path, params=params or None)
        if is_there(answer):
            return answer
        time.sleep(0.05)
    raise AssertionError(f"never: {answer.status_code} {answer.text}")


def ask_raw(client, path, *, raw=None, method="GET", query=b"", headers=(), body=()):
    """The answer to a request that no client would send; `body` gives parts, and counts how many are taken."""
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
    client.portal.call(client.guards, scope, receive, send)
    content = b"".join(message.get("body", b"") for message in sent)
    start = sent[0]
    return {"status": start["status"], "body": content, "taken": len(taken), "headers": dict(start["headers"])}
