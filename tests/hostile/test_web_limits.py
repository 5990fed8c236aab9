"""Requests that are too large, too deep or never end (S8), and what answers tell a browser about names (S9)."""

import asyncio
import itertools
import threading

import pytest

from task2vec import Library
from task2vec.web.security import CSP
from tests.cli.material import make
from tests.web.serving import API, HOME, OWN, WICKED, ask, ask_raw, fill, serving

JSON = [(b"origin", HOME.encode()), (b"content-type", b"application/json")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a library."""
    place = tmp_path_factory.mktemp("limits")
    fill(place / "tasks")
    return place


@pytest.fixture(scope="module")
def client(folder):
    with serving(folder / "tasks", roots=[folder / "tasks"]) as client:
        yield client


def pour(client, *headers):
    """The answer to a body of a gigabyte, 64 KB at a time."""
    body = itertools.repeat(65536 * b" ", 1 << 14)
    told = ask_raw(client, f"{API}/jobs", method="POST", headers=[*JSON, *headers], body=body)
    assert told["status"] == 413 and told["headers"][b"connection"] == b"close"
    return told


def test_s8_a_gigabyte_is_refused_by_its_header(client):
    for length in (b"1073741824", b"-1", b"1e9", b"99999999999999999999", b"\xc2\xb2"):
        assert pour(client, (b"content-length", length))["taken"] == 0


def test_s8_a_gigabyte_without_a_header_is_not_read(client):
    assert pour(client)["taken"] <= 2 and pour(client, (b"content-length", b"7"))["taken"] <= 2


def test_s8_json_that_is_deep_long_or_none(client):
    deep = (b"[" * 60_000, b'{"a":' * 10_000 + b"1" + b"}" * 10_000, b'{"folder": ' + b"[" * 17 + b"]" * 17 + b"}")
    long = (b"9" * 60_000, b'{"folder": "' + b"a" * 60_000 + b'"}')
    for body in (*deep, *long, b'{"folder": "\\ud800"}', b"\xff\xfe\x00", b"NaN", b"{", b""):
        answer = client.post(f"{API}/jobs", content=body, headers={**OWN, "Content-Type": "application/json"})
        assert answer.status_code in (400, 404, 422), answer.text
        assert set(answer.json()["error"]) == {"what", "why", "fix"} and len(answer.text) < 2000


def test_s8_queries_that_are_too_long(client):
    for query in (b"&".join(b"a%d=1" % number for number in range(100_000)), b"q=" + 9000 * b"a", 40 * b"&"):
        for method, path in (("GET", "/status"), ("GET", "/tasks"), ("GET", "/matrix"), ("POST", "/jobs")):
            told = ask_raw(client, API + path, method=method, query=query, headers=JSON)
            assert told["status"] == 414, (method, path)
    assert ask_raw(client, "/" + 2000 * "a")["status"] == 414


def test_s9_every_answer_carries_the_headers(client):
    answers = [client.get(path) for path in ("/", f"{API}/status", f"{API}/openapi.json", f"{API}/none", "/none")]
    answers += [client.post(f"{API}/jobs"), client.get("/", headers={"Host": "evil.example"})]
    for answer in answers:
        assert answer.headers["content-security-policy"] == CSP and "'unsafe" not in CSP
        assert answer.headers["x-content-type-options"] == "nosniff" and answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in answer.headers
        is_api = answer.request.url.path.startswith("/api/")
        assert answer.headers["cache-control"] == ("no-store" if is_api else "no-cache")


def test_s9_wicked_names_are_json_and_nothing_else(client):
    (line,) = ask(client, "/tasks", q="onerror")["tasks"]
    assert line["name"] == WICKED
    for path in (f"/tasks/{line['id']}", f"/tasks/{line['id']}/nearest", "/matrix", "/tasks"):
        answer = client.get(API + path)
        assert answer.headers["content-type"] == "application/json"
    for path in (f"{API}/tasks/<script>alert(1)</script>", "/<script>alert(1)</script>", f"{API}/map?space=<b>"):
        answer = client.get(path)
        assert answer.status_code == 404 and answer.headers["content-type"] == "application/json"


def test_s9_any_name_comes_back_as_it_is(tmp_path):
    names = ["\u202egnp.exe", "a\nb", "\x1b[31m", "=cmd()", "'; DROP TABLE tasks", "😀" * 50]
    with Library.open(tmp_path / "tasks") as library:
        for number, name in enumerate(names):
            library.add(make(name, 900 + number))
    with serving(tmp_path / "tasks") as client:
        assert set(names) <= {one["name"] for one in ask(client, "/tasks", limit=200)["tasks"]}


def test_s8_no_more_work_than_some_waits(client, monkeypatch):
    monkeypatch.setattr("task2vec.web.state.MOST_WAITING", {True: 1, False: 256})
    gate = threading.Event()

    async def crowd():
        work = [asyncio.create_task(client.state.run(gate.wait, is_slow=True)) for _ in range(3)]
        await asyncio.sleep(0.2)
        return work

    async def leave():
        await asyncio.gather(*work)

    task = ask(client, "/tasks", limit=1)["tasks"][0]["id"]
    work = client.portal.call(crowd)
    try:
        for path in ("/folders", f"/matrix?ids={task}"):
            answer = client.get(API + path)
            assert answer.status_code == 503 and "again" in answer.json()["error"]["fix"]
        assert client.get(f"{API}/tasks").status_code == 200  # quick requests are answered meanwhile
    finally:
        gate.set()
        client.portal.call(leave)
    assert client.get(f"{API}/folders").status_code == client.get(f"{API}/matrix?ids={task}").status_code == 200
