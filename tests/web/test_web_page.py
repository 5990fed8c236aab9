"""docs/web.md: every route is in its table, and every line of its example is answered."""

import re
import shlex
from pathlib import Path
from urllib.parse import urlsplit

from task2vec.web.app import BASE
from task2vec.web.settings import Limits
from tests.web.serving import HOME, ask, serving
from tests.web.test_jobs import GOOD, command

PAGE = (Path(__file__).parents[2] / "docs" / "web.md").read_text(encoding="utf-8")


def test_the_table_has_every_route(client):
    told = set(re.findall(r"^\| `(GET|POST|DELETE) ([^?`]+)", PAGE, re.MULTILINE))
    paths = client.guards.api.openapi()["paths"]
    assert told == {(method.upper(), path) for path, operations in paths.items() for method in operations}
    assert f'print(len(app.api.openapi()["paths"]))  # {len(paths)}' in PAGE


def test_the_limits_are_those_that_are_kept():
    limits = Limits()
    told = f"bodies up to {limits.body // 1024} KB that arrive within {limits.seconds:.0f} s, queries up to "
    told += f"{limits.query // 1024} KB and {limits.parameters} parameters, JSON {limits.depth} levels deep"
    assert told in PAGE and f"{limits.listeners} listeners" in PAGE and limits.jobs == 4


def test_every_line_of_the_example_is_answered(library, tmp_path):
    lines = re.findall(r"^    (curl .*)$", PAGE, re.MULTILINE)
    assert len(lines) == 9
    with serving(library, roots=[tmp_path], jobs=command(GOOD)) as client:
        tasks = [one["id"] for one in ask(client, "/tasks")["tasks"]]
        known = {"TASK": tasks[0], "OTHER": tasks[1], "FOLDER": ask(client, "/status")["roots"][0]["id"]}
        known["TASK2VEC_TOKEN"] = "unused-here"
        for line in lines:
            for name in sorted(known, key=len, reverse=True):
                line = line.replace(f"${name}", known[name])
            answer = send(client, shlex.split(line)[1:])
            assert answer.status_code in (200, 202), (line, answer.text)
            if answer.status_code == 202:
                known["JOB"] = answer.json()["id"]


def send(client, words):
    """The answer to a command line of curl."""
    method, headers, content, address = "GET", {}, None, None
    words = iter(words)
    for word in words:
        if word == "-H":
            name, _, value = next(words).partition(": ")
            headers[name] = value
        elif word == "-d":
            method, content = "POST", next(words)
        elif word == "-X":
            method = next(words)
        elif word != "-N":
            address = urlsplit(word)
    assert address is not None and f"http://{address.netloc}" == HOME and address.path.startswith(BASE)
    return client.request(method, f"{address.path}?{address.query}", headers=headers, content=content)
