"""The server follows the library without a restart, reading creates nothing, damage stays local; maps grow in place."""

import sys

import numpy as np
import pytest
from starlette.testclient import TestClient

from task2vec import Library, MeasuredError
from task2vec.errors import LibraryError
from task2vec.library import Expert
from task2vec.select.history import PROTOCOL, RUN, pack
from task2vec.web import state
from tests.cli.material import make
from tests.select.material import TASKS
from tests.web.serving import HOME, ask, find_id, serving, wait_for


@pytest.fixture
def client(library):
    """A client of a server of a library that tests change."""
    with serving(library) as client:
        yield client


def positions(answer):
    return {point["id"]: (point["x"], point["y"]) for point in answer["points"]}


def add(folder, *things):
    with Library.open(folder) as library:
        library.add(*things)


def test_what_others_add_rename_and_remove_is_seen_at_once(client, library, monkeypatch):
    with Library.open(library) as other:
        before = ask(client, "/status")
        other.add(make("newcomer", 500, kind=1))
        after = ask(client, "/status")
        assert after["tasks"] == before["tasks"] + 1 and after["revision"] != before["revision"]
        text = find_id(client, "newcomer")
        other.rename("newcomer", "old hand")
        assert ask(client, f"/tasks/{text}")["name"] == "old hand"
        other.remove("old hand")
        assert ask(client, f"/tasks/{text}", 404)
        assert ask(client, "/status")["revision"] == before["revision"]
        monkeypatch.setattr(Library, "tasks", None)  # an unchanged library is not read again
        assert ask(client, "/tasks", q="own")["total"] == 5


def test_reading_creates_no_library(tmp_path):
    with serving(tmp_path / "none") as client:
        found = ask(client, "/status")
        assert found["tasks"] == TASKS and found["library"] == "none" and not (tmp_path / "none").exists()
        add(tmp_path / "none", make("first", 1000))
        assert ask(client, "/status")["tasks"] == TASKS + 1


def test_a_bundled_task_that_is_in_the_library_is_shown_once(client, library):
    add(library, make("my own name for it", 3, kind=1))
    names = [one["name"] for one in ask(client, "/tasks", limit=200)["tasks"]]
    assert "my own name for it" in names and "task 3" not in names and len(names) == TASKS + 6


def test_the_newest_embedding_of_a_space_is_shown_and_older_ones_displace_no_neighbour(client, library):
    newest = make("own 1", 101, kind=1, noise=0.2)
    for seed in range(1, 5):
        one = newest if seed == 4 else make("own 1", 101, kind=1, noise=0.3)
        one.provenance["settings"]["seed"] = seed
        add(library, one)
    (line,) = ask(client, "/tasks", q="own 1")["tasks"]
    assert line["norm"] == pytest.approx(newest.norm())
    other = find_id(client, "own 3")
    near = ask(client, f"/tasks/{other}/nearest", limit=100)["neighbours"]
    assert len({one["id"] for one in near}) == len(near) == TASKS + 5
    for limit in (1, 4, 7):
        assert ask(client, f"/tasks/{other}/nearest", limit=limit)["neighbours"] == near[:limit]


def test_a_damaged_embedding_is_named_and_the_others_still_work(client, library, monkeypatch):
    def get(library, what, get=Library.get):
        found = get(library, what)
        if found.task == "own 2":
            raise LibraryError(f"the embedding of 'own 2' in '{library.folder}' is damaged. Restore a copy.")
        return found

    monkeypatch.setattr(Library, "get", get)
    problem = ask(client, f"/tasks/{find_id(client, 'own 2')}", 500)["error"]
    assert "own 2" in problem["what"] and str(library) not in str(problem)
    assert ask(client, f"/tasks/{find_id(client, 'own 1')}/nearest")["neighbours"]
    assert len(wait_for(client, "/map").json()["points"]) == TASKS + 6


def test_errors_of_the_library_count_and_a_model_measured_on_few_tasks_comes_last(client, library):
    with Library.open(library) as opened:
        task = opened.task("own 1").fingerprint
        opened.add(Expert("mine", "timm", "resnet18", parameters=11_000_000, input_size=112))
        protocol = "linear-2, train half, logistic, usual"
        opened.add(*(MeasuredError(task, "mine", error, protocol, seed) for seed, error in enumerate((0.001, 0.003))))
    text = find_id(client, "own 1")
    assert ask(client, f"/tasks/{text}")["best_error"] == pytest.approx(0.002)
    *others, mine = ask(client, "/models")["models"]
    found = [mine[name] for name in ("name", "mean_error", "tasks", "origin", "is_few")]
    assert found == ["mine", pytest.approx(0.002), 1, "library", True]
    assert not any(one["is_few"] for one in others)
    advice = ask(client, f"/tasks/{text}/recommendation")
    assert not advice["is_measured"] and all(row["error"] is None and row["reason"] for row in advice["rows"])
    assert advice["command"] == "task2vec recommend 'own 1'"


def test_models_that_were_measured_on_a_task_are_shown_with_their_errors(client, library):
    with Library.open(library) as opened:
        task = opened.task("own 1")
        images = np.arange(task.images)
        losses = {"tf_efficientnet_lite0.in1k": images % 20 == 0, "resnet50.tv_in1k": images % 4 != 0}
        errors = [float(values.mean()) for values in losses.values()]
        for (name, values), error in zip(losses.items(), errors, strict=True):
            opened.add(Expert(name, "hub", f"timm:{name}"), MeasuredError(task.fingerprint, name, error, PROTOCOL))
            about = {"task": task.fingerprint, "expert": name, "protocol": PROTOCOL, "groups": pack(images, "<i4")}
            with opened.record(RUN, about | {"losses": pack(values, "<f4")}):
                pass
    advice = ask(client, f"/tasks/{find_id(client, 'own 1')}/recommendation")
    assert advice["is_measured"] and advice["choice"] == "tf_efficientnet_lite0.in1k"
    assert [row["error"] for row in advice["rows"]] == pytest.approx(errors)
    assert [row["is_tied"] for row in advice["rows"]] == [True, False]
    assert not ask(client, f"/tasks/{find_id(client, 'own 2')}/recommendation")["is_measured"]


def test_the_space_of_the_library_is_the_default_if_it_is_elsewhere(tmp_path):
    add(tmp_path / "tasks", make("a", 1, weights="cd"), make("b", 2, weights="cd"), make("c", 3, weights="ef"))
    with serving(tmp_path / "tasks") as client:
        spaces = ask(client, "/status")["spaces"]
        assert [(space["tasks"], space["is_default"]) for space in spaces] == [(2, True), (TASKS, False), (1, False)]
        for space in spaces[::2]:  # few tasks make a map, too
            assert len(wait_for(client, f"/map?space={space['id']}").json()["points"]) == space["tasks"]


def test_a_map_is_made_in_the_background_and_grows_in_place(client, library):
    progress = ask(client, "/map", 202)
    assert progress["stage"] and 0 <= progress["done"] <= 1
    whole = wait_for(client, "/map").json()
    assert len(whole["points"]) == TASKS + 6 and whole["method"].startswith("t-SNE")
    before = positions(whole)
    assert np.isfinite(list(before.values())).all() and ask(client, "/map", space=whole["space"]) == whole
    add(library, make("newcomer", 500, kind=1))
    grown = wait_for(client, "/map").json()
    after = positions(grown)
    assert {one: after[one] for one in before} == before and len(after) == len(before) + 1
    assert "1 added later" in grown["method"]
    with Library.open(library) as opened:
        opened.remove("newcomer")
    assert positions(wait_for(client, "/map").json()) == before


def test_kinds_are_apart_on_a_large_map_too(client, library, monkeypatch):
    monkeypatch.setattr(state, "MAX_EXACT", 20)
    monkeypatch.setattr(state, "LANDMARKS", 30)
    add(library, *(make(f"more {number}", 600 + number, kind=number % 2) for number in range(40)))
    steps = []
    view = client.state.read_view()
    members = view.members[view.find_space(None).id]
    chart = client.state.make_chart(members, note := lambda stage, done: steps.append((stage, done)))
    client.state.place(chart, members, note)
    assert len(chart.base) == 30 and len(chart.positions) == TASKS + 46
    named = {entry.name: np.array(chart.positions[entry.id]) for entry in members}
    kinds = [np.array([named[f"more {number}"] for number in range(kind, 40, 2)]) for kind in (0, 1)]
    spread = max(np.linalg.norm(kind - kind.mean(0), axis=1).mean() for kind in kinds)
    assert np.linalg.norm(kinds[0].mean(0) - kinds[1].mean(0)) > 1.5 * spread
    done = [part for _, part in steps]
    assert done == sorted(done) and {stage for stage, _ in steps} >= {"reading", "laying out", "placing"}


def test_without_opentsne_maps_use_classical_scaling_and_the_status_says_so(client, library, monkeypatch):
    monkeypatch.setitem(sys.modules, "openTSNE", None)
    assert wait_for(client, "/map").json()["method"] == "classical scaling"
    assert "pip install 'task2vec[map]'" in ask(client, "/status")["layout"]


def test_a_failure_in_the_background_is_reported_and_its_traceback_does_not_grow(client, library, monkeypatch):
    monkeypatch.setattr(state.State, "make_chart", lambda *args: 1 / 0)
    quiet = TestClient(client.secure, base_url=HOME, raise_server_exceptions=False)
    answer = wait_for(quiet, "/map", lambda answer: answer.status_code != 202)
    assert answer.status_code == 500 and "bug" in answer.json()["error"]["why"]
    assert answer.headers["x-frame-options"] == "DENY"
    view, depths = client.state.read_view(), []
    for _ in range(3):
        with pytest.raises(ZeroDivisionError) as caught:
            client.state.find_chart(view, view.find_space(None))
        depths.append(len(caught.traceback))
    assert len(set(depths)) == 1
