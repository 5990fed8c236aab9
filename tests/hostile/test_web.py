"""Attacks on the server, on every route that it has.

Foreign hosts (S4), foreign pages and other methods (S5), paths (S6), tokens (S7), sizes (S8), names (S9).
"""

import asyncio
import itertools
import random
import threading
import time
from collections import Counter
from types import SimpleNamespace
from urllib.parse import quote

import pytest

from task2vec import Library
from task2vec.cli.serve import serve
from task2vec.errors import UsageError
from task2vec.web import ServeSettings
from task2vec.web.routes import router
from task2vec.web.security import CSP
from tests.cli.material import make
from tests.failures import refuse
from tests.library.material import read_bytes
from tests.web.serving import API, BEARER, HOME, OWN, SHARED_HEADERS, TOKEN, WICKED, ask, ask_raw, fill, serving

ROUTES = [(method, route.path) for route in router.routes for method in route.methods]
OTHER_ROUTES = {"/api/v1/openapi.json", ""}  # the description, and the files of the page
OTHER_METHODS = ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PROPFIND")

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
    with serving(folder / "tasks") as client:
        yield client


def address(client, path):
    """A route with ids that are there."""
    task = ask(client, "/tasks", limit=1)["tasks"][0]["id"]
    return API + path.format(task=task)


def test_no_route_is_forgotten_and_none_changes_anything(client):
    direct = {getattr(route, "path", None) for route in client.secure.api.routes}
    assert direct - {None} == OTHER_ROUTES and len(ROUTES) == 10 and {method for method, _ in ROUTES} == {"GET"}


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


def test_s5_every_method_but_reading_is_refused_whoever_asks(client, folder):
    before = read_bytes(folder)
    origins = ({}, OWN, *({"Origin": origin} for origin in FOREIGN_ORIGINS))
    for headers in origins:
        for method, (_, path) in itertools.product(OTHER_METHODS, ROUTES if headers == OWN else ROUTES[:1]):
            answer = client.request(method, address(client, path), headers=headers)
            assert answer.status_code == 405 and answer.headers["allow"] == "GET, HEAD", (headers, method, path)
        check_error(client.request("POST", "/", json={"folder": "/"}, headers=headers))
    endless = ask_raw(client, f"{API}/tasks", method="POST", body=itertools.repeat(65536 * b" ", 1 << 14))
    assert endless["status"] == 405 and endless["taken"] == 0, "a gigabyte is refused before it is read"
    assert read_bytes(folder) == before


def test_s5_another_site_reads_nothing(client):
    for site in ("cross-site", "same-site"):
        for path in ("/status", "/matrix", "/tasks"):
            assert client.get(API + path, headers={"Sec-Fetch-Site": site}).status_code == 403
        assert (
            client.get("/", headers={"Sec-Fetch-Site": site}).status_code == 200
        )  # a link to the page may be anywhere
    assert client.get(f"{API}/status", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200


@pytest.mark.parametrize("text", TRAVERSALS)
def test_s6_no_spelling_of_a_path_is_an_id(client, folder, text):
    inner = ("/tasks/", "/tasks/{}/nearest", "/tasks/{}/report")
    paths = [API + (path.format(text) if "{}" in path else path + text) for path in inner]
    asked = [(path, None) for path in [*paths, f"/{text}", f"/static/{text}", f"{API}/{text}"]]
    queries = (("/map", "space"), ("/tasks", "space"), ("/matrix", "ids"))
    asked += [(f"{API}{path}", {name: text}) for path, name in queries]
    asked.append((f"{API}/compare", {"first": text, "second": text}))
    for path, params in asked:
        answer = client.get(path, params=params)
        assert answer.status_code in (200, 404, 414), (path, answer.text)
        if answer.status_code == 200:  # it was normalised to the page or to a list before it was sent
            assert not params and ".." not in answer.url.path, path
        assert "root:" not in answer.text and "SQLite" not in answer.text and str(folder) not in answer.text


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


def test_s8_queries_that_are_too_long(client):
    for query in (b"&".join(b"a%d=1" % number for number in range(100_000)), b"q=" + 9000 * b"a", 40 * b"&"):
        for path in ("/status", "/tasks", "/matrix"):
            assert ask_raw(client, API + path, query=query)["status"] == 414, path
    assert ask_raw(client, "/" + 2000 * "a")["status"] == 414


def test_s9_every_answer_carries_the_headers(client):
    answers = [client.get(path) for path in ("/", f"{API}/status", f"{API}/openapi.json", f"{API}/none", "/none")]
    answers += [client.post(f"{API}/tasks"), client.get("/", headers={"Host": "evil.example"})]
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
    monkeypatch.setattr("task2vec.web.state.MAX_WAITING", {True: 1, False: 256})
    gate = threading.Event()

    async def crowd():
        await asyncio.gather(*(client.state.run(gate.wait, is_slow=True) for _ in range(3)))

    task = ask(client, "/tasks", limit=1)["tasks"][0]["id"]
    work = client.portal.start_task_soon(crowd)
    while not client.state._limiters[True].statistics().tasks_waiting:
        time.sleep(0.01)
    try:
        answer = client.get(f"{API}/matrix?ids={task}")
        assert answer.status_code == 503 and "again" in answer.json()["error"]["fix"]
        assert client.get(f"{API}/tasks").status_code == 200  # quick requests are answered meanwhile
    finally:
        gate.set()
        work.result()
    assert client.get(f"{API}/matrix?ids={task}").status_code == 200


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


def test_a_bearer_is_let_in_and_changes_nothing_either(guarded):
    assert guarded.get(f"{API}/status", headers=BEARER).status_code == 200
    # A server that listens everywhere knows numbers and no names.
    for host, status in (("192.168.1.5:8765", 200), ("[fd00::1]:8765", 200), ("evil.example", 421)):
        assert guarded.get(f"{HOME}{API}/status", headers={**BEARER, "Host": host}).status_code == status
    assert guarded.delete(f"{API}/tasks", headers=BEARER).status_code == 405


def test_the_link_gives_a_cookie_that_is_not_the_token_and_that_others_do_not_hide(guarded):
    answer = guarded.get(f"/?token={TOKEN}", follow_redirects=False)
    assert answer.status_code == 303 and answer.headers["location"] == "/"
    told = answer.headers["set-cookie"]
    assert TOKEN not in told and "httponly" in told.lower() and "samesite=strict" in told.lower()
    try:
        assert guarded.get(f"{API}/status").status_code == 200  # the client keeps the cookie
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


def send(client, ids, chance, path, operation):
    """The answer to a request with made-up values for some of the parameters that are described."""
    query = {}
    for parameter in operation.get("parameters", ()):
        value = make_up(chance, ids.get(parameter["name"]))
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", quote(str(value), safe=""))
        elif parameter["required"] or chance.random() < 0.5:
            query[parameter["name"]] = chance.choice((value, [value, value]))
    return client.get(path, params=query or None)


def check_error(answer):
    """It has three parts, and none is empty."""
    error = answer.json()["error"]
    assert set(error) == {"what", "why", "fix"} and all(error.values()), f"{answer.request.url}: {error}"


def check(operation, answer):
    """No failure, and a described status; that content is what the description says is checked by FastAPI."""
    what = f"{operation['operationId']} {answer.request.url}: {answer.status_code} {answer.text[:300]}"
    assert answer.status_code < 500, what
    if answer.status_code == 414:  # a path that was made up is another route, or none
        return
    assert str(answer.status_code) in operation["responses"], what
    if answer.status_code >= 400:
        check_error(answer)


@pytest.mark.parametrize(("requests", "least"), [(150, 5), pytest.param(2600, 100, marks=pytest.mark.long)])
def test_no_made_up_request_makes_the_server_fail(client, requests, least):
    """The same number of requests for every operation."""
    chance, counts, status = random.Random(9), Counter(), ask(client, "/status")
    known = {"space": status["spaces"]}
    known |= dict.fromkeys(("task", "first", "second", "ids"), ask(client, "/tasks")["tasks"])
    ids = {kind: [one["id"] for one in some] for kind, some in known.items()}
    paths = client.secure.api.openapi()["paths"]
    operations = [(path, paths[path]["get"]) for path in paths]
    assert len(operations) == len(ROUTES)
    for path, operation in operations * (requests // len(operations)):
        answer = send(client, ids, chance, path, operation)
        counts[answer.status_code] += 1
        check(operation, answer)
    assert min(counts[200], counts[404], counts[422]) > least
