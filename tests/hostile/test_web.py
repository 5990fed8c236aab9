"""Attacks on the server, on every route that it has: foreign hosts (S4), foreign pages (S5), paths (S6)."""

import json

import pytest

from task2vec.web.routes import router
from task2vec.web.security import SAFE_METHODS
from tests.web.serving import API, OWN, ask, ask_raw, fill, serving

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


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_s5_what_a_form_can_send_is_refused(client, kind):
    root = ask(client, "/status")["roots"][0]["id"]
    content = json.dumps({"folder": root}).encode()
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
