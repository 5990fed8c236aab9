"""The JSON API: what each route answers, against the functions of the library that it speaks for."""

import numpy as np
import pytest
from scipy.cluster.hierarchy import leaves_list

import task2vec
from task2vec.distance import asymmetric, find_floor, symmetric, with_error
from tests.cli.material import FILTERS, make
from tests.select.recommend_world import EXPERTS, TASKS, make_metatask
from tests.web.serving import WICKED, ask


def embedding_of(name):
    """The embedding that was made for a name."""
    number = 5 if name == WICKED else int(name.split()[1])
    if name.startswith("task"):
        return make(name, number, kind=number % 2)
    return make(name, 100 + number, kind=number % 2, has_halves=number == 0)


def find_id(client, name):
    return next(one["id"] for one in ask(client, "/tasks", limit=200)["tasks"] if one["name"] == name)


def test_status_tells_what_is_served(client):
    told = ask(client, "/status")
    assert told["version"] == task2vec.__version__ and told["tasks"] == TASKS + 6
    assert [(space["tasks"], space["is_default"]) for space in told["spaces"]] == [(TASKS + 6, True)]
    assert told["spaces"][0]["name"] == "net at 64 pixels (robust)"
    assert told["library"] == "tasks" and told["roots"] == [] and told["can_embed"] is False
    assert told["layout"] == "t-SNE"


def test_tasks_are_listed_by_name_in_pages(client):
    whole = ask(client, "/tasks", limit=200)
    names = [one["name"] for one in whole["tasks"]]
    assert whole["total"] == TASKS + 6 == len(names) and names == sorted(names)
    page = ask(client, "/tasks", limit=3, offset=2)
    assert page["total"] == TASKS + 6 and page["tasks"] == whole["tasks"][2:5]
    one = next(line for line in whole["tasks"] if line["name"] == "own 2")
    assert (one["dataset"], one["origin"], one["images"], one["classes"]) == ("mine", "library", 202, 2)
    assert one["norm"] == pytest.approx(embedding_of("own 2").norm()) and one["head_error"] == 0.25
    assert {line["origin"] for line in whole["tasks"] if line["name"].startswith("task")} == {"measured by us"}


@pytest.mark.parametrize(
    ("words", "count"), [("OWN", 5), ("own 3", 1), ("mine", 3), ("yes", 6), ("one", TASKS // 2 + 1), ("zzz", 0)]
)
def test_search_looks_at_names_datasets_tags_and_classes(client, words, count):
    assert ask(client, "/tasks", q=words)["total"] == count


def test_a_task_with_its_classes_counts_and_noise(client):
    told = ask(client, f"/tasks/{find_id(client, 'own 0')}")
    assert told["classes"] == [{"name": "no", "count": 60}, {"name": "yes", "count": 140}]
    assert told["class_total"] == 2 and told["images"] == 200 and told["tags"] == ["mine"]
    assert told["noise"] == pytest.approx(find_floor(embedding_of("own 0")))
    low, high = told["head_error_interval"]
    assert 0.18 < low < told["head_error"] < high < 0.33
    assert told["settings"]["probe"] == "net" and told["settings"]["image_size"] == 64
    assert len(told["made"]) == 10 and told["best_error"] is None
    shipped = ask(client, f"/tasks/{find_id(client, 'task 4')}")
    best = make_metatask().errors[4, :6, 1].mean(axis=1).min()
    assert shipped["best_error"] == pytest.approx(best) and shipped["made"] is None
    assert [one["count"] for one in shipped["classes"]] == [60, 44] and shipped["dataset"] == "other"


def test_the_nearest_are_those_of_the_symmetric_distance(client):
    own = embedding_of("own 1")
    others = [f"own {number}" for number in (0, 2, 3, 4)] + [WICKED] + [f"task {number}" for number in range(TASKS)]
    apart = {name: symmetric(own, embedding_of(name)) for name in others}
    told = ask(client, f"/tasks/{find_id(client, 'own 1')}/nearest", limit=7)
    expected = sorted(apart, key=lambda name: apart[name])[:7]
    assert [one["name"] for one in told["neighbours"]] == expected
    for one in told["neighbours"]:
        assert one["distance"] == pytest.approx(apart[one["name"]], abs=1e-6)
        assert one["is_within_noise"] == (one["distance"] <= told["noise"])
    assert {one["origin"] for one in told["neighbours"]} == {"library", "measured by us"}
    for name in ("own 1", "task 1"):
        text = find_id(client, name)
        near = [one["id"] for one in ask(client, f"/tasks/{text}/nearest", limit=100)["neighbours"]]
        assert len(near) == TASKS + 5 and text not in near


@pytest.mark.parametrize("train", ["half", "5"])
def test_a_recommendation_is_that_of_the_library(client, train):
    told = ask(client, f"/tasks/{find_id(client, 'own 3')}/recommendation", train=train)
    advice = task2vec.recommend(embedding_of("own 3"), evidence=make_metatask(), regime=train)
    assert (told["sentence"], told["is_sure"], told["static"]) == (advice.verdict, advice.is_sure, advice.static)
    assert told["train"] == train and advice.known in told["basis"] and told["notes"] == list(advice.notes)
    rows = [one for one in told["experts"] if one["is_loadable"]]
    assert [(one["rank"], one["name"]) for one in rows] == [(row.rank, row.expert) for row in advice.rows]
    for one, row in zip(rows, advice.rows, strict=True):
        assert (one["error"], one["low"], one["high"]) == pytest.approx((row.error, row.low, row.high))
        assert (one["load"], one["nearest"], one["distance"]) == (row.load, row.nearest, row.nearest_distance)
    assert {one["kind"] for one in rows} == {"generic", "network"}
    assert [one["name"] for one in told["experts"] if not one["is_loadable"]] == [row.expert for row in advice.others]


def test_two_tasks_side_by_side(client):
    first, second = find_id(client, "own 0"), find_id(client, "task 3")
    a, b = embedding_of("own 0"), embedding_of("task 3")
    told = ask(client, "/compare", first=first, second=second)
    assert told["distance"] == pytest.approx(symmetric(a, b))
    assert told["asymmetric"] == pytest.approx({"there": asymmetric(a, b), "back": asymmetric(b, a)})
    assert told["noise"] == pytest.approx(with_error(a, b).floor)
    assert [(layer["name"], layer["filters"]) for layer in told["layers"]] == [("conv", FILTERS)]
    assert sum(layer["share"] for layer in told["layers"]) == pytest.approx(1)
    shares = [one["share"] for one in told["filters"]]
    assert len(shares) == 20 and shares == sorted(shares, reverse=True)
    top = told["filters"][0]
    assert top["first"] == pytest.approx(a.fisher[top["number"]])
    assert top["second"] == pytest.approx(b.fisher[top["number"]])
    same = ask(client, "/compare", first=first, second=first)
    assert same["distance"] == 0 and all(one["share"] == 0 for one in same["filters"])


def test_a_matrix_with_its_tree(client):
    names = ["own 0", "own 1", "own 2", "task 1"]
    ids = [find_id(client, name) for name in names]
    told = ask(client, "/matrix", ids=",".join([*ids, ids[0]]))
    assert told["ids"] == ids and told["names"] == names
    for row, one in enumerate(names):
        for column, other in enumerate(names):
            distance = symmetric(embedding_of(one), embedding_of(other))
            assert told["values"][row][column] == pytest.approx(distance, abs=1e-6)
    merges = np.array(told["merges"])
    assert merges.shape == (3, 4) and merges[-1, 3] == 4
    assert told["order"] == leaves_list(merges).tolist()
    usual = ask(client, "/matrix")
    assert len(usual["ids"]) == TASKS + 6 and sorted(usual["order"]) == list(range(TASKS + 6))
    alone = ask(client, "/matrix", ids=ids[0])
    assert (alone["order"], alone["merges"], alone["values"]) == ([0], [], [[0.0]])


def test_experts_with_their_means(client):
    told = ask(client, "/experts", train="half")
    metatask = make_metatask()
    assert told["train"] == "half" and len(told["experts"]) == sum(not one.is_repeat for one in EXPERTS)
    means = [one["mean_error"] for one in told["experts"]]
    assert means == sorted(means)
    generic = next(one for one in told["experts"] if one["name"] == "generic resnet34")
    assert generic["mean_error"] == pytest.approx(metatask.errors[:, 0, 1].mean()) and generic["tasks"] == TASKS
    scarce = ask(client, "/experts", train="5")["experts"]
    assert np.mean([one["mean_error"] for one in scarce]) > np.mean(means) + 0.05


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/tasks/l-00000000000000000000", 404),
        ("/tasks/x/nearest", 404),
        ("/tasks/x/recommendation", 404),
        ("/map?space=s-0", 404),
        ("/tasks?space=s-0", 404),
        ("/compare?first=a&second=b", 404),
        ("/compare", 422),
        ("/matrix?ids=a", 404),
        ("/tasks?limit=0", 422),
        ("/tasks?limit=201", 422),
        ("/tasks?offset=-1", 422),
        ("/tasks?q=" + 201 * "a", 422),
        ("/experts?train=7", 422),
        ("/jobs/j-0", 404),
        ("/jobs/j-0/events", 404),
        ("/folders?root=f-0", 404),
        ("/nothing", 404),
    ],
)
def test_errors_have_three_parts(client, path, status):
    problem = ask(client, path, status)["error"]
    assert set(problem) == {"what", "why", "mend"} and all(problem.values())


def test_tasks_of_different_spaces_are_never_compared(library):
    from task2vec import Library
    from tests.web.serving import serving

    with Library.open(library) as opened:
        opened.add(make("own 0", 100, weights="cd", size=96), make("stranger", 300, weights="cd", size=96))
    with serving(library) as client:
        status = ask(client, "/status")
        assert [(space["tasks"], space["is_default"]) for space in status["spaces"]] == [(18, True), (2, False)]
        other = status["spaces"][1]["id"]
        lines = ask(client, "/tasks", space=other)["tasks"]
        assert [line["name"] for line in lines] == ["own 0", "stranger"] and lines[0]["space"] == other
        here = find_id(client, "own 1")
        problem = ask(client, "/compare", 422, first=here, second=lines[0]["id"])["error"]
        assert "different probes" in problem["what"] and "Embed one again" in problem["mend"]
        problem = ask(client, "/matrix", 422, ids=f"{here},{lines[0]['id']}")["error"]
        assert lines[0]["id"] in problem["what"]
        near = ask(client, f"/tasks/{lines[0]['id']}/nearest")["neighbours"]
        assert [one["name"] for one in near] == ["stranger"]
        refused = ask(client, f"/tasks/{lines[0]['id']}/recommendation", 422)["error"]
        assert "no errors" in refused["what"] or "errors of experts are known for" in refused["what"]


def test_the_description_names_every_field(client):
    schema = ask(client, "/openapi.json")
    for path, operations in schema["paths"].items():
        for method, told in operations.items():
            assert told["summary"] and told["description"], (method, path)
            good = [status for status in told["responses"] if status.startswith("2")]
            assert good, (method, path)
            for status in good:
                for kind, content in told["responses"][status].get("content", {}).items():
                    assert kind == "text/event-stream" or content["schema"], (method, path)
    assert schema["components"]["schemas"]["PointAnswer"]["properties"]["norm"]["description"]
