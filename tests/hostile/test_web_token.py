"""Who is let in where a token is needed, and that no server is seen by others without one (S7)."""

from types import SimpleNamespace

import pytest

from task2vec.cli.serve import serve
from task2vec.errors import UsageError
from task2vec.web import ServeSettings
from tests.web.serving import API, HOME, OWN, fill, serving

TOKEN = "correct-horse-battery"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("token") / "tasks"
    fill(folder, 2)
    with serving(folder, token=TOKEN, host="0.0.0.0") as client:
        yield client


def test_s7_beyond_loopback_a_token_is_needed():
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.org", "127.0.0.1.example.org", ""):
        with pytest.raises(UsageError, match="TASK2VEC_TOKEN"):
            ServeSettings(host=host)
        assert ServeSettings(host=host, token=TOKEN).token == TOKEN


def test_s7_tokens_that_can_be_guessed_or_not_be_sent():
    for token in ("", "short", 15 * "a", 20 * " ", "a" * 20 + "\n", "ä" * 20, "a" * 20 + "&x=1"):
        with pytest.raises(UsageError, match="token"):
            ServeSettings(token=token)


def test_s7_the_command_refuses_with_2_and_tells_no_token(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="TASK2VEC_TOKEN") as refused:
        serve(library=tmp_path / "x", host="0.0.0.0")
    assert refused.value.exit_code == 2 and not (tmp_path / "x").exists()
    monkeypatch.setenv("TASK2VEC_TOKEN", "short-secret")
    with pytest.raises(UsageError) as refused:
        serve(library=tmp_path / "x", host="127.0.0.1")
    assert "short-secret" not in str(refused.value) and TOKEN not in repr(ServeSettings(token=TOKEN))


def test_without_the_token_nothing_is_told(client):
    sent = ("Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", TOKEN)
    cookies = (f"task2vec={TOKEN}", "task2vec=", "task2vec=\x01")
    for headers in ({}, *({"Authorization": one} for one in sent), *({"Cookie": one} for one in cookies)):
        for path in ("/", f"{API}/status", f"{API}/openapi.json", f"{API}/none", "/main.js", "/?token=no", "/?token="):
            answer = client.get(path, headers=headers)
            assert answer.status_code == 401 and "Bearer" in answer.json()["error"]["fix"], (headers, path)


def test_a_bearer_is_let_in_and_needs_no_origin(client):
    assert client.get(f"{API}/status", headers=BEARER).status_code == 200
    assert client.delete(f"{API}/jobs/j-0", headers=BEARER).status_code == 404
    assert client.delete(f"{API}/jobs/j-0", headers={**BEARER, "Origin": "http://evil.example"}).status_code == 403
    assert client.delete(f"{API}/jobs/j-0").status_code == 403


def test_the_link_gives_a_cookie_that_is_not_the_token(client):
    answer = client.get(f"/?token={TOKEN}", follow_redirects=False)
    assert answer.status_code == 303 and answer.headers["location"] == "/"
    told = answer.headers["set-cookie"]
    assert TOKEN not in told and "httponly" in told.lower() and "samesite=strict" in told.lower()
    try:
        assert client.get(f"{API}/status").status_code == 200  # the client keeps the cookie
        assert client.delete(f"{API}/jobs/j-0", headers=OWN).status_code == 404
        assert client.delete(f"{API}/jobs/j-0").status_code == 403  # a cookie alone changes nothing
    finally:
        client.cookies.clear()
    assert client.get(f"{API}/status").status_code == 401


def test_a_server_that_listens_everywhere_knows_numbers_and_no_names(client):
    for host, status in (("192.168.1.5:8765", 200), ("[fd00::1]:8765", 200), ("evil.example", 421)):
        assert client.get(f"{HOME}{API}/status", headers={**BEARER, "Host": host}).status_code == status


def test_the_browser_is_not_told_the_token(tmp_path, monkeypatch):
    opened, listening = [], SimpleNamespace(getsockname=lambda: ("127.0.0.1", 8765))
    monkeypatch.setattr("task2vec.cli.serve.webbrowser.open", opened.append)
    monkeypatch.setattr("task2vec.cli.serve._has_screen", lambda: True)
    monkeypatch.setattr("task2vec.web.take_port", lambda host, port: (listening, False))
    monkeypatch.setattr("task2vec.web.run", lambda app, listening: None)
    for token in (TOKEN, None):
        serve(library=tmp_path / "tasks", host="127.0.0.1", token=token)
    assert opened == ["http://127.0.0.1:8765/"]


def test_a_cookie_of_somebody_else_does_not_hide_ours(client):
    told = client.get(f"/?token={TOKEN}", follow_redirects=False).headers["set-cookie"].partition(";")[0]
    client.cookies.clear()
    assert told.startswith("task2vec-8765=")  # another server on this machine has one of its own
    for cookie in (told, f'a[b]="odd; {told}', f"x@y=1; {told}; {{}}=2"):
        assert client.get(f"{API}/status", headers={"Cookie": cookie}).status_code == 200, cookie
    assert client.get(f"{API}/status", headers={"Cookie": f"{told}x"}).status_code == 401
