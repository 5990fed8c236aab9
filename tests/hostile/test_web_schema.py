"""Requests made up from the description of the API: no answer is a failure, and each is as described."""

import random
from collections import Counter
from urllib.parse import quote

import pytest
from pydantic import TypeAdapter

from task2vec.web.routes import router
from tests.web.serving import API, GOOD, OWN, ask, fill, serving

OPERATIONS = 15
NASTY = ["", "0", "-1", "1e9", "null", "true", "[]", "{}", "\x00", "'", "%", "%00", "../..", "a,b", "é", "😀", "\u202e"]


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("schema") / "tasks"
    fill(folder)
    with serving(folder, roots=[folder], jobs=GOOD) as client:
        status = ask(client, "/status")
        tasks, spaces, roots = ask(client, "/tasks")["tasks"], status["spaces"], status["roots"]
        kinds = {"task": tasks, "first": tasks, "second": tasks, "ids": tasks, "space": spaces, "root": roots}
        client.ids = {kind: [one["id"] for one in known] for kind, known in (kinds | {"folder": roots}).items()}
        yield client


def make_up(chance, known):
    """A value: often one that is there, sometimes a nasty one, a number, any text, or a long one."""
    letters = "".join(chr(chance.choice((chance.randrange(1, 0xD800), chance.randrange(32, 127)))) for _ in range(9))
    kinds = (known, known, NASTY, range(-2, 300), [10**30], [letters, chance.randrange(1, 30) * letters])
    return chance.choice(chance.choice(kinds) or NASTY)


def send(client, chance, path, method, operation):
    """The answer to a request with made-up values for some of the parameters that are described."""
    query, body = {}, {"headers": OWN}
    for parameter in operation.get("parameters", ()):
        value = make_up(chance, client.ids.get(parameter["name"]))
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", quote(str(value), safe=""))
        elif parameter["required"] or chance.random() < 0.5:
            query[parameter["name"]] = chance.choice((value, [value, value]))
    if "requestBody" in operation:
        names = ("folder", "name", "library")
        content = {name: make_up(chance, client.ids.get(name)) for name in names if chance.random() < 0.6}
        body["json"] = chance.choice((content, content, [content], content.get("folder")))
    return client.request(method, path, params=query or None, **body)


def check(operation, answer, kind):
    """No failure, a described status, and content that is what the description says."""
    what = f"{operation['operationId']} {answer.request.url}: {answer.status_code} {answer.text[:300]}"
    assert answer.status_code < 500, what
    if answer.status_code in (405, 414):  # a path that was made up is another route, or none
        return
    assert str(answer.status_code) in operation["responses"], what
    if answer.status_code >= 400:
        assert set(answer.json()["error"]) == {"what", "why", "fix"}, what
    elif answer.status_code == 200 and kind is not None:
        TypeAdapter(kind).validate_json(answer.content)


def attack(client, requests):
    """Makes up so many requests, the same number for every operation; returns how many were answered, by status."""
    chance, counts = random.Random(9), Counter()
    kinds = {(API + route.path, min(route.methods).lower()): route.response_model for route in router.routes}
    paths = client.secure.api.openapi()["paths"]
    operations = [(path, method, paths[path][method]) for path in paths for method in paths[path]]
    assert len(operations) == OPERATIONS
    for path, method, operation in operations * -(-requests // OPERATIONS):
        answer = send(client, chance, path, method, operation)
        counts[answer.status_code] += 1
        is_same = answer.request.url.path.count("/") == path.count("/") and not answer.request.url.path.endswith("/")
        check(operation, answer, kinds[path, method] if is_same else None)
    return counts


def test_no_made_up_request_makes_the_server_fail(client):
    counts = attack(client, 150)
    assert counts[200] > 20 and counts[404] > 5 and counts[422] > 5


@pytest.mark.long
def test_no_made_up_request_of_2000_makes_the_server_fail(client):
    counts = attack(client, 2600)
    assert sum(counts.values()) >= 2000 and min(counts[200], counts[404], counts[422]) > 100
