"""Attacks on the server, on every route that it has.

Foreign hosts (S4), foreign pages (S5), paths, links and code in folders (S6), sizes (S8), names (S9).
"""

import asyncio
import itertools
import json
import os
import subprocess
import threading
import time

import pytest

from task2vec import Library
from task2vec.errors import DataError
from task2vec.web.jobs import EMBEDDER, embed_folder
from task2vec.web.routes import router
from task2vec.web.security import CSP, SAFE_METHODS
from tests.cli.material import make
from tests.web.serving import API, HOME, OWN, WICKED, ask, ask_raw, fill, serving

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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a library, beside a file that nobody may read."""
    place = tmp_path_factory.mktemp("hostile")
    fill(place / "tasks")
    (place / "secret.txt").write_text("root:x:0:0 a secret")
    return place


@pytest.fixture(scope="module")
def client(folder):
    with serving(folder / "tasks", roots=[folder / "tasks"]) as client:
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


def test_s4_our_own_names_are_let_in(client):
    for host in ("localhost:8765", "127.0.0.1", "[::1]:8765", "LOCALHOST", "127.0.0.9:1"):
        assert client.get(f"{API}/status", headers={"Host": host}).status_code == 200, host


def test_s4_two_hosts_are_none(client):
    answer = client.get(f"{API}/status", headers=[("Host", "127.0.0.1"), ("Host", "evil.example")])
    assert answer.status_code == 421


def test_s5_a_foreign_origin_changes_nothing(client):
    before = ask(client, "/jobs")
    root = ask(client, "/status")["roots"][0]["id"]
    for origin in FOREIGN_ORIGINS:
        for method, path in CHANGING:
            content = {"json": {"folder": root}} if method == "POST" else {}
            answer = client.request(method, address(client, path), headers={"Origin": origin}, **content)
            assert answer.status_code == 403, (origin, method, path, answer.text)
    assert ask(client, "/jobs") == before


def test_s5_no_origin_at_all_is_foreign_without_a_token(client):
    for method, path in CHANGING:
        assert client.request(method, address(client, path), json={}).status_code == 403


def test_s5_what_a_form_can_send_is_refused(client):
    content = json.dumps({"folder": ask(client, "/status")["roots"][0]["id"]}).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        answer = client.post(f"{API}/jobs", content=content, headers={**OWN, "Content-Type": kind})
        assert answer.status_code == 415
    assert client.put(f"{API}/jobs", json={}, headers=OWN).status_code == 405


@pytest.mark.parametrize("text", TRAVERSALS)
def test_s6_no_spelling_of_a_path_is_an_id(client, folder, text):
    inner = ("/tasks/", "/tasks/{}/nearest", "/jobs/", "/jobs/{}/events")
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
    answer = client.post(f"{API}/jobs", json={"folder": text[:64]}, headers=OWN)
    assert answer.status_code == 404


@pytest.mark.parametrize("path", ["/../secret.txt", "/%2e%2e/secret.txt", "/..%2fsecret.txt", "/__init__.py", "/.env"])
def test_s6_raw_paths_reach_no_file(client, path):
    scope_path = path.replace("%2e", ".").replace("%2f", "/")
    answer = ask_raw(client, scope_path, raw=path)
    assert answer["status"] == 404 and b"root:x" not in answer["body"]


def test_s5_a_foreign_page_cannot_make_us_work(client):
    for site in ("cross-site", "same-site"):
        headers = {**OWN, "Sec-Fetch-Site": site}
        for method, path in (("GET", "/status"), ("GET", "/matrix"), ("GET", "/folders"), *CHANGING):
            assert client.request(method, address(client, path), headers=headers).status_code == 403
        assert client.get("/", headers=headers).status_code == 200  # a link to the page may be anywhere
    assert client.get(f"{API}/status", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200


def test_s4_the_name_of_the_machine_is_ours_beyond_loopback_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "Workstation")
    host = {"Host": "workstation:8765", "Authorization": f"Bearer {20 * 'a'}"}
    for where, status in (("127.0.0.1", 421), ("0.0.0.0", 200)):
        with serving(tmp_path / "tasks", host=where, token=20 * "a") as client:
            assert client.get(f"{API}/status", headers=host).status_code == status


# --- sizes (S8) and names (S9) ---


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
    missing = [f"{API}/tasks/<script>alert(1)</script>", "/<script>alert(1)</script>", f"{API}/map?space=<b>"]
    for path in [*missing, f"{API}/tasks/{line['id']}", f"{API}/tasks/{line['id']}/nearest", f"{API}/matrix"]:
        answer = client.get(path)
        assert answer.headers["content-type"] == "application/json"
        assert answer.status_code == (404 if path in missing else 200)


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
    request = {"folder": str(tmp_path / "none"), "name": None, "library": str(tmp_path / "library")}
    told = subprocess.run(
        EMBEDDER, input=json.dumps(request), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert not (tmp_path / "run").exists()
    assert "none" in json.loads(told.stdout.splitlines()[-1])["error"], told.stderr


@pytest.fixture
def folders(tmp_path):
    """A real folder with one inside, and the place of another one."""
    (tmp_path.resolve() / "real" / "inner").mkdir(parents=True)
    return tmp_path.resolve() / "real", tmp_path.resolve() / "folder"


@pytest.mark.skipif(os.name == "nt", reason="links of POSIX")
def test_s6_a_link_in_the_place_of_a_folder_is_not_followed(folders, monkeypatch):
    real, link = folders
    link.symlink_to(real)
    monkeypatch.setattr("task2vec.tasks.read_folder", lambda folder, name: pytest.fail("it was read"))
    for folder in (link, link / "inner"):  # a folder on the way may be a link, too
        with pytest.raises(DataError, match="link"):
            embed_folder({"folder": str(folder), "name": None, "library": "x"}, lambda words: None)


@pytest.mark.skipif(os.name == "nt", reason="links of POSIX")
def test_s6_a_link_that_comes_while_images_are_read_is_seen(folders, monkeypatch):
    real, folder = folders
    folder.mkdir()

    def swap(place, name):
        folder.rmdir()
        folder.symlink_to(real)

    monkeypatch.setattr("task2vec.tasks.read_folder", swap)
    with pytest.raises(DataError, match="link"):
        embed_folder({"folder": str(folder), "name": None, "library": "x"}, lambda words: None)
