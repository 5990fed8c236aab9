"""Requests made up from the description of the API: no answer is a failure, and each is as described."""

import warnings

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from task2vec.web import schemas
from tests.web.serving import GOOD, OWN, ask, fill, serving

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis makes up the requests")
OPERATIONS = 15
# A map that is laid out in the background draws random numbers while Hypothesis draws its own.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("schema") / "tasks"
    fill(folder)
    with serving(folder, roots=[folder], jobs=GOOD) as client:
        client.ids = {
            "task": [one["id"] for one in ask(client, "/tasks")["tasks"]],
            "space": [one["id"] for one in ask(client, "/status")["spaces"]],
            "folder": [one["id"] for one in ask(client, "/status")["roots"]],
        }
        yield client


def open_schema(client):
    """All operations, by what they are called."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        schema = schemathesis.openapi.from_dict(client.secure.api.openapi())
        return [found.ok() for found in schema.get_all_operations()]


def put_ids(case, draw, ids):
    """Every other request names things that are there: otherwise hardly one would."""
    if not draw(st.booleans()):
        return
    kinds = {"task": "task", "first": "task", "second": "task", "ids": "task", "space": "space", "root": "folder"}
    for values in (case.path_parameters, case.query):
        for name in values or {}:
            if name in kinds:
                values[name] = draw(st.sampled_from(ids[kinds[name]]))
    if isinstance(case.body, dict) and "folder" in case.body:
        case.body["folder"] = draw(st.sampled_from(ids["folder"]))


def send(client, case):
    """The answer to a case that was made up."""
    content = {}
    if isinstance(case.body, bytes):
        content = {"content": case.body}
    elif not isinstance(case.body, schemathesis.core.NotSet):
        content = {"json": case.body}
    query = {name: value if isinstance(value, str | list) else str(value) for name, value in (case.query or {}).items()}
    headers = {**OWN, "Content-Type": "application/json"} if content else OWN
    return client.request(case.method, case.formatted_path, params=query or None, headers=headers, **content)


def check(operation, answer):
    """No failure, a described status, and content that is what the description says."""
    what = f"{operation.label} {answer.request.url}: {answer.status_code} {answer.text[:300]}"
    assert answer.status_code < 500, what
    if answer.status_code in (414, 405, 307):  # a path that was made up is another route, or none
        return
    told = operation.definition.raw["responses"]
    if answer.status_code >= 400:
        assert set(answer.json()["error"]) == {"what", "why", "fix"}, what
        return
    if answer.headers["content-type"].startswith("application/json") and str(answer.status_code) in told:
        name = told[str(answer.status_code)]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        if answer.request.url.path.count("/") == operation.path.count("/"):
            getattr(schemas, name).model_validate_json(answer.content)


def attack(client, requests):
    """Makes up so many requests, the same number for every operation; returns how many were answered, by status."""
    operations, counts = open_schema(client), {}
    assert len(operations) == OPERATIONS
    each = -(-requests // len(operations))
    how = {"max_examples": each, "database": None, "deadline": None, "suppress_health_check": list(HealthCheck)}
    for operation in operations:
        made_up = st.one_of(*(operation.as_strategy(mode) for mode in schemathesis.GenerationMode))
        seed(9)(settings(**how)(given(made_up, st.data())(_make_run(client, operation, counts))))()
    return counts


def _make_run(client, operation, counts):
    def run(case, data):
        put_ids(case, data.draw, client.ids)
        answer = send(client, case)
        counts[answer.status_code] = counts.get(answer.status_code, 0) + 1
        check(operation, answer)

    return run


def test_no_made_up_request_makes_the_server_fail(client):
    counts = attack(client, 45)
    assert counts[200] > 5 and counts[404] > 5


@pytest.mark.long
def test_no_made_up_request_of_2000_makes_the_server_fail(client):
    counts = attack(client, 2600)
    assert sum(counts.values()) >= 2000 and min(counts[200], counts[404], counts[422]) > 100
