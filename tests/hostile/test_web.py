"""Attacks on the server, on every route that it has.

Foreign hosts (S4), foreign pages (S5), paths, links and code in folders (S6), tokens (S7), sizes (S8), names (S9).
"""

import asyncio
import itertools
import json
import os
import random
import subprocess
import threading
import time
from collections import Counter
from types import SimpleNamespace
from urllib.parse import quote

import pytest

from task2vec import Library
from task2vec.cli.serve import serve
from task2vec.errors import DataError, UsageError
from task2vec.web import ServeSettings
from task2vec.web.jobs import EMBEDDER, embed_folder
from task2vec.web.routes import router
from task2vec.web.security import CSP, SAFE_METHODS
from tests.cli.material import make
from tests.command import TEXT
from tests.failures import refuse
from tests.web.serving import API, BEARER, GOOD, HOME, OWN, SHARED_HEADERS, TOKEN, WICKED, ask, ask_raw, fill, serving

JSON = [(b"origin", HOME.encode()), (b"content-type", b"application/json")]

ROUTES = [(method, route.path) for route in router.routes for method in route.methods]
OTHER_ROUTES = {"/api/v1/openapi.json", ""}  # the description, and the files of the page
CHANGING = [route for route in ROUTES if route[0] not in SAFE_METHODS]

FOREIGN_HOSTS = (
    "evil.example", "evil.example:8765", "127.0.0.1.evil.example", "localhost.evil.example:8765", "127.0.0.1:8765@evil",
    "evil.example#127.0.0.1", "10.0.0.7", "192.168.1.5:8765", "[fe80::1]", "0.0.0.0", "127.0.0.1:80:80", "", " ",
    "[::1", "::1", "localhost:port", "2130706433", "0x7f.1",
)  # fmt: skip
FOREIGN_ORIGINS = (
    "http://evil.example", "null", "", "http://127.0.0.1:8766", "http://localhost:8765", "http://127.0.0.1",
    "http://127.0.0.1:8765.evil.example", "http://127.0.0.1:8765@evil.example", "file://", "http://127.0.0.1:8765/",
    "chrome-extension://abc",
)  # fmt: skip
TRAVERSALS = (
    "../../../../etc/passwd", "..%2f..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/etc/passwd", "..%252f..%252fetc%252fpasswd",
    "..\\..\\etc\\passwd", "%5c..%5c..%5cetc", "/etc/passwd", "%2fetc%2fpasswd", "//etc/passwd",
    "....//....//etc/passwd", "..;/..;/etc/passwd", "%c0%ae%c0%ae/etc/passwd", "%00/etc/passwd", "l-%00",
    "library.sqlite", "../library.sqlite", "file:///etc/passwd", "~/.ssh/id_rsa", "C:\\Windows\\win.ini",
    "\\\\host\\share", ".", "..", "%2e%2e", "l-*", "l-%25", "' OR 1=1 --", "l-" + 20 * "0", 500 * "../",
)  # fmt: skip

NAMES = ["\u202egnp.exe", "a\nb", "\x1b[31m", "=cmd()", "'; DROP TABLE tasks", "😀" * 50]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a library, beside a file that nobody may read."""
    place = tmp_path_factory.mktemp("hostile")
    fill(place / "tasks")
    with Library.open(place / "tasks") as library:
        library.add(*(make(name, 900 + number) for number, name in enumerate(NAMES)))
    (place / "secret.txt").write_text("root:x:0:0 a secret")
    return place


@pytest.fixture(scope="module")
def client(folder):
    with serving(folder / "tasks", roots=[folder / "tasks"], jobs=GOOD) as client:
        yield client


def address(client, path):
    """A route with ids that are there."""
    task = ask(client, "/tasks", limit=1)["tasks"][0]["id"]
    return API + path.format(task=task, job="j-00000000000000000000")


def test_no_route_is_forgotten(client):
    direct = {getattr(route, "path", None) for route in client.secure.api.routes}
    assert direct - {None} == OTHER_ROUTES and len(ROUTES) == 15 and len(CHANGING) == 2


def test_s4_a_foreign_host_gets_nothing(client):
    paths = [(method, address(client, path)) for method, path in ROUTES]
    paths += [("GET", path) for path in ("/", "/main.js", "/map.js", f"{API}/openapi.json")]
    for host, asked in [(FOREIGN_HOSTS[0], [*paths, ("OPTIONS", "/")]), *((host, paths[:1]) for host in FOREIGN_HOSTS)]:
        for method, path in asked:
            answer = client.request(method, path, headers={"Host": host, "Origin": f"http://{host}"})
            assert answer.status_code == 421, (host, method, path, answer.text)
            assert "task2vec serve" in answer.json()["error"]["fix"]
    two = [("Host", "127.0.0.1"), ("Host", "evil.example")]
    assert client.get(f"{API}/status", headers=two).status_code == 421
    for host in ("localhost:8765", "127.0.0.1", "[::1]:8765", "LOCALHOST", "127.0.0.9:1"):
        assert client.get(f"{API}/status", headers={"Host": host}).status_code == 200, host


def test_s5_a_foreign_origin_changes_nothing(client):
    before, content = ask(client, "/jobs"), {"folder": ask(client, "/status")["roots"][0]["id"]}
    sites = [{**OWN, "Sec-Fetch-Site": site} for site in ("cross-site", "same-site")]
    for headers in ({}, *({"Origin": origin} for origin in FOREIGN_ORIGINS), *sites):
        reading = ("/status", "/matrix", "/folders") if headers in sites else ()
        for method, path in (*CHANGING, *(("GET", path) for path in reading)):
            given = {"json": content} if method == "POST" else {}
            answer = client.request(method, address(client, path), headers=headers, **given)
            assert answer.status_code == 403, (headers, method, path, answer.text)
        assert client.get("/", headers=headers).status_code == 200  # a link to the page may be anywhere
    assert client.get(f"{API}/status", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):  # as a form sends it
        headers = {**OWN, "Content-Type": kind}
        assert client.post(f"{API}/jobs", content=json.dumps(content), headers=headers).status_code == 415
    assert client.put(f"{API}/jobs", json={}, headers=OWN).status_code == 405
    assert ask(client, "/jobs") == before


@pytest.mark.parametrize("text", TRAVERSALS)
def test_s6_no_spelling_of_a_path_is_an_id(client, folder, text):
    inner = ("/tasks/", "/tasks/{}/nearest", "/jobs/")
    paths = [API + (path.format(text) if "{}" in path else path + text) for path in inner]
    asked = [("GET", path, None) for path in [*paths, f"/{text}", f"/static/{text}", f"{API}/{text}"]]
    asked.append(("DELETE", f"{API}/jobs/{text}", None))
    queries = (("/map", "space"), ("/tasks", "space"), ("/matrix", "ids"), ("/folders", "root"))
    asked += [("GET", f"{API}{path}", {name: text}) for path, name in queries]
    asked.append(("GET", f"{API}/compare", {"first": text, "second": text}))
    for method, path, params in asked:
        answer = client.request(method, path, params=params, headers=OWN)
        assert answer.status_code in (200, 404, 405, 414), (method, path, answer.text)
        if answer.status_code == 200:  # it was normalised to the page or to a list before it was sent
            assert not params and ".." not in answer.url.path, (method, path)
        assert "root:" not in answer.text and "SQLite" not in answer.text and str(folder) not in answer.text
    assert client.post(f"{API}/jobs", json={"folder": text[:64]}, headers=OWN).status_code == 404


def test_s6_raw_paths_reach_no_file(client):
    for path in ("/../secret.txt", "/%2e%2e/secret.txt", "/..%2fsecret.txt", "/__init__.py", "/.env"):
        answer = ask_raw(client, path.replace("%2e", ".").replace("%2f", "/"), raw=path)
        assert answer["status"] == 404 and b"root:x" not in answer["body"], path


def test_s4_the_name_of_the_machine_is_ours_beyond_loopback_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "Workstation")
    host = {"Host": "workstation:8765", "Authorization": f"Bearer {20 * 'a'}"}
    for where, status in (("127.0.0.1", 421), ("0.0.0.0", 200)):
        with serving(tmp_path / "tasks", host=where, token=20 * "a") as client:
            assert client.get(f"{API}/status", headers=host).status_code == status


# --- sizes (S8) and names (S9) ---


def test_s8_a_gigabyte_is_refused_by_its_header_or_after_the_first_bytes(client):
    lengths = (b"1073741824", b"-1", b"1e9", b"99999999999999999999", b"\xc2\xb2")
    for length, most in (*((length, 0) for length in lengths), (b"7", 2), (None, 2)):
        headers = JSON if length is None else [*JSON, (b"content-length", length)]
        endless = itertools.repeat(65536 * b" ", 1 << 14)
        told = ask_raw(client, f"{API}/jobs", method="POST", headers=headers, body=endless)
        assert told["status"] == 413 and told["headers"][b"connection"] == b"close"
        assert told["taken"] <= most, length


def test_s8_json_that_is_deep_long_or_none(client):
    deep = (b"[" * 60_000, b'{"a":' * 10_000 + b"1" + b"}" * 10_000, b'{"folder": ' + b"[" * 17 + b"]" * 17 + b"}")
    long = (b"9" * 60_000, b'{"folder": "' + b"a" * 60_000 + b'"}')
    for body in (*deep, *long, b'{"folder": "\\ud800"}', b"\xff\xfe\x00", b"NaN", b"{", b""):
        answer = client.post(f"{API}/jobs", content=body, headers={**OWN, "Content-Type": "application/json"})
        assert answer.status_code in (400, 404, 422), answer.text
        check_error(answer)
        assert len(answer.text) < 2000


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
        is_api = answer.request.url.path.startswith("/api/")
        wanted = {"content-security-policy": CSP, "x-frame-options": "DENY", **SHARED_HEADERS}
        wanted["cache-control"] = "no-store" if is_api else "no-cache"
        assert wanted.items() <= dict(answer.headers).items() and "'unsafe" not in CSP
        assert "access-control-allow-origin" not in answer.headers


def test_s9_wicked_names_are_json_and_nothing_else(client):
    assert set(NAMES) <= {one["name"] for one in ask(client, "/tasks", limit=200)["tasks"]}
    (line,) = ask(client, "/tasks", q="onerror")["tasks"]
    assert line["name"] == WICKED
    missing = [f"{API}/tasks/<script>alert(1)</script>", "/<script>alert(1)</script>", f"{API}/map?space=<b>"]
    for path in [*missing, f"{API}/tasks/{line['id']}", f"{API}/tasks/{line['id']}/nearest", f"{API}/matrix"]:
        answer = client.get(path)
        assert answer.headers["content-type"] == "application/json"
        assert answer.status_code == (404 if path in missing else 200)
        if path in missing:
            check_error(answer)


def test_s8_no_more_work_than_some_waits(client, monkeypatch):
    monkeypatch.setattr("task2vec.web.state.MOST_WAITING", {True: 1, False: 256})
    gate = threading.Event()

    async def crowd():
        await asyncio.gather(*(client.state.run(gate.wait, is_slow=True) for _ in range(3)))

    task = ask(client, "/tasks", limit=1)["tasks"][0]["id"]
    work = client.portal.start_task_soon(crowd)
    while not client.state._limiters[True].statistics().tasks_waiting:
        time.sleep(0.01)
    try:
        for path in ("/folders", f"/matrix?ids={task}"):
            answer = client.get(API + path)
            assert answer.status_code == 503 and "again" in answer.json()["error"]["fix"]
        assert client.get(f"{API}/tasks").status_code == 200  # quick requests are answered meanwhile
    finally:
        gate.set()
        work.result()
    assert client.get(f"{API}/folders").status_code == client.get(f"{API}/matrix?ids={task}").status_code == 200


# --- the process that embeds (S6) ---


def test_s6_code_in_the_folder_of_the_server_is_not_run(tmp_path):
    for name in ("PIL", "numpy", "safetensors"):
        (tmp_path / f"{name}.py").write_text("open('run', 'w').close()")
    request = json.dumps({"folder": str(tmp_path / "none"), "name": None, "library": str(tmp_path / "library")})
    told = subprocess.run(EMBEDDER, input=request, cwd=tmp_path, **TEXT)
    assert not (tmp_path / "run").exists()
    assert "none" in json.loads(told.stdout.splitlines()[-1])["error"], told.stderr


@pytest.mark.skipif(os.name == "nt", reason="links of POSIX")
def test_s6_a_link_in_the_place_of_a_folder_is_not_followed(tmp_path, monkeypatch):
    (tmp_path / "real" / "inner").mkdir(parents=True)
    folder, link = tmp_path.resolve() / "folder", tmp_path.resolve() / "link"
    folder.mkdir()
    link.symlink_to(tmp_path / "real")

    def swap(place, name):
        assert place == str(folder), "it was read"
        folder.rmdir()
        folder.symlink_to(tmp_path)

    monkeypatch.setattr("task2vec.tasks.read_folder", swap)
    for place in (link, link / "inner", folder):  # on the way to the folder, too, and while images are read
        refuse(DataError, "link", embed_folder, {"folder": str(place), "name": None, "library": "x"}, print)
    assert folder.is_symlink()


# --- S7: who is let in where a token is needed ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("token") / "tasks"
    fill(folder, 2)
    with serving(folder, token=TOKEN, host="0.0.0.0") as guarded:
        yield guarded


def test_s7_beyond_loopback_a_token_is_needed_that_cannot_be_guessed():
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.org", "127.0.0.1.example.org", ""):
        refuse(UsageError, "TASK2VEC_TOKEN", ServeSettings, host=host)
        assert ServeSettings(host=host, token=TOKEN).token == TOKEN
    for token in ("", "short", 15 * "a", 20 * " ", "a" * 20 + "\n", "ä" * 20, "a" * 20 + "&x=1"):
        refuse(UsageError, "token", ServeSettings, token=token)


def test_s7_the_command_refuses_with_2_and_tells_no_token(tmp_path, monkeypatch):
    error = refuse(UsageError, "TASK2VEC_TOKEN", serve, library=tmp_path / "x", host="0.0.0.0")
    assert error.exit_code == 2 and not (tmp_path / "x").exists()
    monkeypatch.setenv("TASK2VEC_TOKEN", "short-secret")
    error = refuse(UsageError, "token", serve, library=tmp_path / "x", host="127.0.0.1")
    assert "short-secret" not in str(error) and TOKEN not in repr(ServeSettings(token=TOKEN))


def test_without_the_token_nothing_is_told(guarded):
    sent = ("Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", TOKEN)
    cookies = (f"task2vec={TOKEN}", "task2vec=", "task2vec=\x01")
    for headers in ({}, *({"Authorization": one} for one in sent), *({"Cookie": one} for one in cookies)):
        for path in ("/", f"{API}/status", f"{API}/openapi.json", f"{API}/none", "/main.js", "/?token=no", "/?token="):
            answer = guarded.get(path, headers=headers)
            assert answer.status_code == 401 and "Bearer" in answer.json()["error"]["fix"], (headers, path)


def test_a_bearer_is_let_in_and_needs_no_origin(guarded):
    assert guarded.get(f"{API}/status", headers=BEARER).status_code == 200
    # A server that listens everywhere knows numbers and no names.
    for host, status in (("192.168.1.5:8765", 200), ("[fd00::1]:8765", 200), ("evil.example", 421)):
        assert guarded.get(f"{HOME}{API}/status", headers={**BEARER, "Host": host}).status_code == status
    assert guarded.delete(f"{API}/jobs/j-0", headers=BEARER).status_code == 404
    assert guarded.delete(f"{API}/jobs/j-0", headers={**BEARER, "Origin": "http://evil.example"}).status_code == 403
    assert guarded.delete(f"{API}/jobs/j-0").status_code == 403


def test_the_link_gives_a_cookie_that_is_not_the_token_and_that_others_do_not_hide(guarded):
    answer = guarded.get(f"/?token={TOKEN}", follow_redirects=False)
    assert answer.status_code == 303 and answer.headers["location"] == "/"
    told = answer.headers["set-cookie"]
    assert TOKEN not in told and "httponly" in told.lower() and "samesite=strict" in told.lower()
    try:
        assert guarded.get(f"{API}/status").status_code == 200  # the client keeps the cookie
        assert guarded.delete(f"{API}/jobs/j-0", headers=OWN).status_code == 404
        assert guarded.delete(f"{API}/jobs/j-0").status_code == 403  # a cookie alone changes nothing
    finally:
        guarded.cookies.clear()
    assert guarded.get(f"{API}/status").status_code == 401
    cookie = told.partition(";")[0]
    assert cookie.startswith("task2vec-8765=")  # another server on this machine has one of its own
    sent = {cookie: 200, f'a[b]="odd; {cookie}': 200, f"x@y=1; {cookie}; {{}}=2": 200, f"{cookie}x": 401}
    for cookies, status in sent.items():
        assert guarded.get(f"{API}/status", headers={"Cookie": cookies}).status_code == status, cookies


def test_the_browser_is_not_told_the_token(tmp_path, monkeypatch):
    opened, listening = [], SimpleNamespace(getsockname=lambda: ("127.0.0.1", 8765))
    monkeypatch.setattr("task2vec.cli.serve.webbrowser.open", opened.append)
    monkeypatch.setattr("task2vec.cli.serve._has_screen", lambda: True)
    monkeypatch.setattr("task2vec.web.take_port", lambda host, port: (listening, False))
    monkeypatch.setattr("task2vec.web.run", lambda app, listening: None)
    for token in (TOKEN, None):
        serve(library=tmp_path / "tasks", host="127.0.0.1", token=token)
    assert opened == ["http://127.0.0.1:8765/"]


# --- S8: requests made up from the description of the API -------------------------------------------------------------


NASTY = ["", "0", "-1", "1e9", "null", "true", "[]", "{}", "\x00", "'", "%", "%00", "../..", "a,b", "é", "😀", "\u202e"]


def make_up(chance, known):
    """A value: often one that is there, sometimes a nasty one, a number, any text, or a long one."""
    letters = "".join(chr(chance.choice((chance.randrange(1, 0xD800), chance.randrange(32, 127)))) for _ in range(9))
    kinds = (known, known, NASTY, range(-2, 300), [10**30], [letters, chance.randrange(1, 30) * letters])
    return chance.choice(chance.choice(kinds) or NASTY)


def send(client, ids, chance, path, method, operation):
    """The answer to a request with made-up values for some of the parameters that are described."""
    query, body = {}, {"headers": OWN}
    for parameter in operation.get("parameters", ()):
        value = make_up(chance, ids.get(parameter["name"]))
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", quote(str(value), safe=""))
        elif parameter["required"] or chance.random() < 0.5:
            query[parameter["name"]] = chance.choice((value, [value, value]))
    if "requestBody" in operation:
        names = ("folder", "name", "library")
        content = {name: make_up(chance, ids.get(name)) for name in names if chance.random() < 0.6}
        body["json"] = chance.choice((content, content, [content], content.get("folder")))
    return client.request(method, path, params=query or None, **body)


def check_error(answer):
    """It has three parts, and none is empty."""
    error = answer.json()["error"]
    assert set(error) == {"what", "why", "fix"} and all(error.values()), f"{answer.request.url}: {error}"


def check(operation, answer):
    """No failure, and a described status; that content is what the description says is checked by FastAPI."""
    what = f"{operation['operationId']} {answer.request.url}: {answer.status_code} {answer.text[:300]}"
    assert answer.status_code < 500, what
    if answer.status_code in (405, 414):  # a path that was made up is another route, or none
        return
    assert str(answer.status_code) in operation["responses"], what
    if answer.status_code >= 400:
        check_error(answer)


@pytest.mark.parametrize(("requests", "least"), [(150, 5), pytest.param(2600, 100, marks=pytest.mark.long)])
def test_no_made_up_request_makes_the_server_fail(client, requests, least):
    """The same number of requests for every operation."""
    chance, counts, status = random.Random(9), Counter(), ask(client, "/status")
    known = {"space": status["spaces"], "root": status["roots"], "folder": status["roots"]}
    known |= dict.fromkeys(("task", "first", "second", "ids"), ask(client, "/tasks")["tasks"])
    ids = {kind: [one["id"] for one in some] for kind, some in known.items()}
    paths = client.secure.api.openapi()["paths"]
    operations = [(path, method, paths[path][method]) for path in paths for method in paths[path]]
    assert len(operations) == len(ROUTES)
    for path, method, operation in operations * (requests // len(operations)):
        answer = send(client, ids, chance, path, method, operation)
        counts[answer.status_code] += 1
        check(operation, answer)
    assert min(counts[200], counts[404], counts[422]) > least
