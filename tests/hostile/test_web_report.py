"""The report on a task, as the server sends it: who gets it, what it may do, and that no other file is sent."""

import os
import sqlite3

import pytest

from task2vec import Library
from task2vec.web.security import CSP
from tests.failures import refuse
from tests.web.serving import API, BEARER, HOME, SHARED_HEADERS, TOKEN, ask, fill, find_id, keep_report, serving

PAGE = "<h1>own 0</h1><script>alert(1)</script>"
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'; sandbox"
)
needs_links = pytest.mark.skipif(os.name == "nt", reason="links and pipes of POSIX")


@pytest.fixture
def library(tmp_path):
    """The folder of a library with a report on its first task, beside a file that nobody may read."""
    (tmp_path / "secret.html").write_text("a secret")
    fill(tmp_path / "tasks")
    keep_report(tmp_path / "tasks", "own 0", PAGE)
    return tmp_path / "tasks"


def test_s9_a_report_alone_may_be_framed_and_runs_nothing(library):
    with serving(library) as client:
        path = f"{API}/tasks/{find_id(client, 'own 0')}/report"
        answer = client.get(path)
        assert (answer.status_code, answer.text) == (200, PAGE)
        # The HTML standard refuses a window to a page with a sandbox and another value (Firefox does, Chromium not).
        wanted = {"cross-origin-opener-policy": "unsafe-none", "cache-control": "no-store", **SHARED_HEADERS}
        wanted |= {"content-security-policy": POLICY, "x-frame-options": "SAMEORIGIN"}
        assert wanted.items() <= dict(answer.headers).items()
        others = [client.get(f"{API}/tasks/{find_id(client, name)}/report") for name in ("own 1", "task 1")]
        others += [client.get(one) for one in ("/", f"{API}/status", path.removesuffix("/report"), f"{path}/x")]
        for other in [*others, client.head(path), client.get(path, headers={"Host": "evil.example"})]:
            assert other.headers["x-frame-options"] == "DENY" and other.headers["content-security-policy"] == CSP
            assert other.headers["cross-origin-opener-policy"] == "same-origin"


def test_s7_a_report_needs_the_token_and_s5_a_page_of_this_server(library):
    with serving(library, token=TOKEN) as client:
        tasks = client.get(f"{API}/tasks", headers=BEARER).json()["tasks"]
        path = f"{API}/tasks/{next(one['id'] for one in tasks if one['name'] == 'own 0')}/report"
        for refused in (client.get(path), client.get(f"{path}?token={TOKEN}")):
            assert refused.status_code == 401 and "own 0" not in refused.text
        assert client.get(path, headers=BEARER).text == PAGE
        client.get(f"/?token={TOKEN}")  # the cookie, which a frame sends as the page does
        framed = {"Sec-Fetch-Dest": "iframe", "Sec-Fetch-Mode": "navigate"}
        assert client.get(path, headers={**framed, "Sec-Fetch-Site": "same-origin"}).text == PAGE
        for site in ("cross-site", "same-site"):
            foreign = client.get(path, headers={**framed, "Sec-Fetch-Site": site, "Referer": HOME})
            assert foreign.status_code == 403 and "own 0" not in foreign.text


@needs_links
def test_s6_a_link_a_folder_or_a_pipe_in_the_place_of_a_report_is_refused(library):
    file = keep_report(library, "own 0", PAGE)
    with serving(library) as client:
        task = find_id(client, "own 0")
        old = client.portal.call(client.state.look).find_entry(task)
        for make in (file.mkdir, lambda: os.mkfifo(file), lambda: file.symlink_to(library.parent / "secret.html")):
            file.unlink() if not file.is_dir() else file.rmdir()
            make()
            assert ask(client, f"/tasks/{task}")["has_report"] is False
            assert "no report" in ask(client, f"/tasks/{task}/report", 404)["error"]["what"]
        assert old.has_report  # before it was replaced by the link
        refuse(ValueError, "no report", client.state.open_report, old)


def test_s6_no_fingerprint_of_a_forged_library_leads_out_of_the_reports(library):
    with Library.open(library) as opened:
        own = opened.task("own 0").fingerprint
    names = ["../../secret", str(library.parent / "secret"), "../reports/" + own, ".", "", "..\\..\\secret", "\0"]
    for name in names:
        with sqlite3.connect(library / "library.sqlite") as connection:
            connection.execute("UPDATE tasks SET fingerprint = ? WHERE name = 'own 0'", (name,))
        connection.close()
        with serving(library) as client:
            task = find_id(client, "own 0")
            assert ask(client, f"/tasks/{task}")["has_report"] is False, name
            assert "secret" not in str(ask(client, f"/tasks/{task}/report", 404)), name
    with serving(library) as client:
        for text in ("..", "%2e%2e", own, f"{own}.html", "..%2freports%2f" + own, "l-" + 20 * "0"):
            answer = client.get(f"{API}/tasks/{text}/report")
            assert answer.status_code == 404 and PAGE not in answer.text, text
