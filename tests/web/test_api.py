"""The JSON API: what each route returns, against the functions of the package; and docs/how-to/web.md."""

import argparse
import re
import shlex
from pathlib import Path
from string import Template

import numpy as np
import pytest
from scipy.cluster.hierarchy import leaves_list

import task2vec
from task2vec import Library
from task2vec.distance import asymmetric, find_floor, symmetric, with_error
from task2vec.web import Limits
from tests.cli.material import FILTERS, make
from tests.select.material import MODELS, TASKS, make_world
from tests.web.serving import API, HOME, WICKED, ask, find_id, keep_report, serving

DOCS = (Path(__file__).parents[2] / "docs" / "how-to" / "web.md").read_text(encoding="utf-8")


def embedding_of(name):
    """The embedding that was made for a name."""
    number = 5 if name == WICKED else int(name.split()[1])
    if name.startswith("task"):
        return make(name, number, kind=number % 2)
    return make(name, 100 + number, kind=number % 2, has_halves=number == 0)


def test_status_describes_what_is_served(client):
    found = ask(client, "/status")
    assert found["version"] == task2vec.__version__ and found["tasks"] == TASKS + 6
    assert [(space["tasks"], space["is_default"]) for space in found["spaces"]] == [(TASKS + 6, True)]
    assert found["spaces"][0]["name"] == "net at 64 pixels (robust)"
    assert found["library"] == "tasks"
    assert found["layout"] == "t-SNE"


def test_tasks_are_listed_in_pages_those_of_the_library_first(client):
    whole = ask(client, "/tasks", limit=200)
    names = [task["name"] for task in whole["tasks"]]
    assert whole["total"] == TASKS + 6 == len(names)
    assert names == sorted(names[:6]) + sorted(names[6:])
    assert [name.startswith("task") for name in names] == 6 * [False] + TASKS * [True]
    page = ask(client, "/tasks", limit=3, offset=2)
    assert page["total"] == TASKS + 6 and page["tasks"] == whole["tasks"][2:5]
    for refused in ({"limit": 201}, {"q": 201 * "a"}):
        ask(client, "/tasks", 422, **refused)
    task = next(task for task in whole["tasks"] if task["name"] == "own 2")
    assert (task["dataset"], task["origin"], task["images"], task["classes"]) == ("mine", "library", 202, 2)
    assert task["norm"] == pytest.approx(embedding_of("own 2").norm()) and task["head_error"] == 0.25
    assert {task["origin"] for task in whole["tasks"] if task["name"].startswith("task")} == {"bundled"}


@pytest.mark.parametrize(("words", "count"), [("OWN 3", 1), ("mine", 3), ("yes", 6), ("one", TASKS // 2 + 1), ("z", 0)])
def test_search_covers_names_datasets_tags_and_classes(client, words, count):
    assert ask(client, "/tasks", q=words)["total"] == count


def test_a_task_with_its_classes_counts_and_noise(client):
    found = ask(client, f"/tasks/{find_id(client, 'own 0')}")
    assert found["class_counts"] == [{"name": "no", "count": 60}, {"name": "yes", "count": 140}]
    assert found["classes"] == 2 and found["images"] == 200 and found["tags"] == ["mine"]
    assert found["noise"] == pytest.approx(find_floor(embedding_of("own 0")))
    low, high = found["head_error_interval"]
    assert 0.18 < low < found["head_error"] < high < 0.33
    assert found["settings"]["probe"] == "net" and found["settings"]["image_size"] == 64
    assert len(found["added"]) == 10 and found["best_error"] is None
    bundled = ask(client, f"/tasks/{find_id(client, 'task 4')}")
    best = make_world().errors[4, :6, 1].mean(axis=1).min()
    assert bundled["best_error"] == pytest.approx(best) and bundled["added"] is None
    assert [one["count"] for one in bundled["class_counts"]] == [60, 44] and bundled["dataset"] == "other"


def test_a_report_is_found_as_soon_as_it_is_written_and_never_cached(library):
    with serving(library) as client:
        own, bundled = find_id(client, "own 0"), find_id(client, "task 4")
        for task in (own, bundled):
            assert ask(client, f"/tasks/{task}")["has_report"] is False
            assert "task2vec report FOLDER" in ask(client, f"/tasks/{task}/report", 404)["error"]["fix"]
        before = ask(client, "/status")["revision"]
        large = "<h1>first</h1>" + (1 << 20) * "é"
        for page in (large, "<h1>second</h1>"):
            file = keep_report(library, "own 0", page)
            answer = client.get(f"{API}/tasks/{own}/report")
            assert answer.status_code == 200 and answer.text == page
            assert answer.headers["content-type"] == "text/html; charset=utf-8"
            assert ask(client, f"/tasks/{own}")["has_report"] is True
        assert ask(client, "/status")["revision"] != before and client.state._responses.currsize < len(large)
        file.unlink()
        assert ask(client, f"/tasks/{own}")["has_report"] is False
        assert ask(client, f"/tasks/{own}/report", 404)["error"]["what"]


def test_the_nearest_are_those_of_the_symmetric_distance(client):
    own = embedding_of("own 1")
    others = [f"own {number}" for number in (0, 2, 3, 4)] + [WICKED] + [f"task {number}" for number in range(TASKS)]
    apart = {name: symmetric(own, embedding_of(name)) for name in others}
    found = ask(client, f"/tasks/{find_id(client, 'own 1')}/nearest", limit=7)
    assert [one["name"] for one in found["neighbours"]] == sorted(apart, key=lambda name: apart[name])[:7]
    for one in found["neighbours"]:
        assert one["distance"] == pytest.approx(apart[one["name"]], abs=1e-6)
        assert one["is_within_noise"] == (one["distance"] <= found["noise"])
    for name in ("own 1", "task 1"):
        text = find_id(client, name)
        near = [one["id"] for one in ask(client, f"/tasks/{text}/nearest", limit=100)["neighbours"]]
        assert len(near) == TASKS + 5 and text not in near


def test_two_tasks_side_by_side(client):
    first, second = find_id(client, "own 0"), find_id(client, "task 3")
    a, b = embedding_of("own 0"), embedding_of("task 3")
    found = ask(client, "/compare", first=first, second=second)
    assert found["distance"] == pytest.approx(symmetric(a, b))
    directed = found["first_to_second"], found["second_to_first"]
    assert directed == pytest.approx((asymmetric(a, b), asymmetric(b, a)))
    assert found["noise"] == pytest.approx(with_error(a, b).floor)
    assert [(layer["name"], layer["filters"]) for layer in found["layers"]] == [("conv", FILTERS)]
    assert sum(layer["share"] for layer in found["layers"]) == pytest.approx(1)
    shares = [one["share"] for one in found["filters"]]
    assert len(shares) == 20 and shares == sorted(shares, reverse=True)
    top = found["filters"][0]
    assert top["first"] == pytest.approx(a.fisher[top["number"]])
    same = ask(client, "/compare", first=first, second=first)
    assert same["distance"] == 0 and all(one["share"] == 0 for one in same["filters"])


def test_a_matrix_with_its_tree(client):
    names = ["own 0", "own 1", "own 2", "task 1"]
    ids = [find_id(client, name) for name in names]
    found = ask(client, "/matrix", ids=",".join([*ids, ids[0]]))
    assert found["ids"] == ids and found["names"] == names
    expected = [[symmetric(embedding_of(one), embedding_of(other)) for other in names] for one in names]
    np.testing.assert_allclose(found["values"], expected, atol=1e-6)
    merges = np.array(found["merges"])
    assert merges.shape == (3, 4) and merges[-1, 3] == 4 and found["order"] == leaves_list(merges).tolist()
    usual = ask(client, "/matrix")
    assert len(usual["ids"]) == TASKS + 6 and sorted(usual["order"]) == list(range(TASKS + 6))
    alone = ask(client, "/matrix", ids=ids[0])
    assert (alone["order"], alone["merges"], alone["values"]) == ([0], [], [[0.0]])


def test_models_with_their_mean_errors(client):
    found = ask(client, "/models", shots="half")
    assert found["shots"] == "half" and len(found["models"]) == sum(not one.is_repeat for one in MODELS)
    means = [one["mean_error"] for one in found["models"]]
    assert means == sorted(means)
    generic = next(one for one in found["models"] if one["name"] == "generic resnet34")
    assert generic["mean_error"] == pytest.approx(make_world().errors[:, 0, 1].mean()) and generic["tasks"] == TASKS
    few = ask(client, "/models", shots="5")["models"]
    assert np.mean([one["mean_error"] for one in few]) > np.mean(means) + 0.05
    for refused in ("7", "many"):
        ask(client, "/models", 422, shots=refused)


def test_tasks_of_different_spaces_are_never_compared(library):
    with Library.open(library) as opened:
        opened.add(make("own 0", 100, weights="cd", size=96), make("stranger", 300, weights="cd", size=96))
    with serving(library) as client:
        status = ask(client, "/status")
        assert [(space["tasks"], space["is_default"]) for space in status["spaces"]] == [(18, True), (2, False)]
        other = status["spaces"][1]["id"]
        lines = ask(client, "/tasks", space=other)["tasks"]
        assert [line["name"] for line in lines] == ["own 0", "stranger"] and lines[0]["space"] == other
        here, there = find_id(client, "own 1"), lines[0]["id"]
        problem = ask(client, "/compare", 422, first=here, second=there)["error"]
        assert "different probes" in problem["what"] and "Embed one again" in problem["fix"]
        assert there in ask(client, "/matrix", 422, ids=f"{here},{there}")["error"]["what"]
        near = ask(client, f"/tasks/{there}/nearest")["neighbours"]
        assert [one["name"] for one in near] == ["stranger"]
        advice = ask(client, f"/tasks/{there}/recommendation")
        assert "All known tasks count alike" in advice["notes"][0] and len(advice["rows"]) > 10


def test_the_description_and_the_page_about_the_server_have_every_route_and_the_limits(client):
    schema = ask(client, "/openapi.json")
    operations = {(method.upper(), path): one for path, each in schema["paths"].items() for method, one in each.items()}
    assert all(operation["summary"] and operation["description"] for operation in operations.values())
    assert schema["components"]["schemas"]["Point"]["properties"]["norm"]["description"]
    assert set(re.findall(r"^\| `(GET) ([^?`]+)", DOCS, re.MULTILINE)) == set(operations)
    assert f'print(len(app.api.openapi()["paths"]))  # {len(schema["paths"])}' in DOCS
    limits = Limits()
    assert f"queries up to {limits.query // 1024} KB and {limits.parameters} parameters" in DOCS
    assert f"closed after {limits.seconds:.0f} s" in DOCS and f"or {limits.reading:.0f} s with" in DOCS


def test_every_line_of_its_example_works(client):
    curl = argparse.ArgumentParser()
    curl.add_argument("-H", action="append", default=[])
    curl.add_argument("address")
    lines = re.findall(r"^curl (.*)$", DOCS, re.MULTILINE)
    assert len(lines) == 6
    tasks = [task["id"] for task in ask(client, "/tasks")["tasks"]]
    known = {"TASK": tasks[0], "OTHER": tasks[1], "TASK2VEC_TOKEN": "unused-here"}
    for line in lines:
        asked = curl.parse_args(shlex.split(Template(line).substitute(known)))
        assert asked.address.startswith(HOME + API)
        answer = client.get(asked.address, headers=dict(header.split(": ") for header in asked.H))
        assert answer.status_code == 200, (line, answer.text)
