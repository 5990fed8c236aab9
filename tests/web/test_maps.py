"""Maps: laid out in the background, kept, and grown without moving what is on them."""

import sys

import numpy as np
import pytest

from task2vec import Library
from task2vec.web import maps
from task2vec.web.world import World
from tests.cli.material import make
from tests.select.recommend_world import TASKS, make_metatask
from tests.web.serving import ask, serving, wait_for


def is_there(answer):
    return answer.status_code == 200


def places(answer):
    return {point["id"]: (point["x"], point["y"]) for point in answer["points"]}


def test_a_map_is_laid_out_while_others_are_answered(library):
    with serving(library) as client:
        first = ask(client, "/map", 202)
        assert first["stage"] and 0 <= first["done"] <= 1
        whole = wait_for(client, "/map", is_there).json()
        assert len(whole["points"]) == TASKS + 6 and whole["method"].startswith("t-SNE")
        assert whole["space"] == ask(client, "/status")["spaces"][0]["id"]
        point = next(one for one in whole["points"] if one["name"] == "own 0")
        assert (point["dataset"], point["origin"], point["classes"], point["head_error"]) == (
            "mine",
            "library",
            2,
            0.25,
        )
        assert np.isfinite(list(places(whole).values())).all()
        assert ask(client, "/map", space=whole["space"]) == whole


def test_a_new_task_is_put_on_the_map_and_nothing_moves(library):
    with serving(library) as client:
        before = places(wait_for(client, "/map", is_there).json())
        with Library.open(library) as opened:
            opened.add(make("newcomer", 500, kind=1))
        whole = wait_for(client, "/map", is_there).json()
        after = places(whole)
        assert {one: after[one] for one in before} == before and len(after) == len(before) + 1
        assert "1 more" in whole["method"]
        with Library.open(library) as opened:
            opened.remove("newcomer")
        assert places(ask(client, "/map")) == before


def test_kinds_lie_apart_on_a_large_map_too(library, monkeypatch):
    monkeypatch.setattr(maps, "MOST_EXACT", 20)
    monkeypatch.setattr(maps, "LANDMARKS", 30)
    with Library.open(library) as opened:
        opened.add(*(make(f"more {number}", 600 + number, kind=number % 2) for number in range(40)))
    world = World(library, measured=make_metatask())
    steps = []
    chart = maps.make_chart(world, world.look().default.entries, lambda stage, done: steps.append((stage, done)))
    world.close()
    assert len(chart.landmarks) == 30 and len(chart.places) == TASKS + 46
    named = {entry.name: np.array(chart.places[entry.id]) for entry in world.look().entries.values()}
    kinds = [np.array([named[f"more {number}"] for number in range(kind, 40, 2)]) for kind in (0, 1)]
    spread = max(np.linalg.norm(kind - kind.mean(0), axis=1).mean() for kind in kinds)
    assert np.linalg.norm(kinds[0].mean(0) - kinds[1].mean(0)) > 1.5 * spread
    done = [part for _, part in steps]
    assert done == sorted(done) and {stage for stage, _ in steps} >= {"reading", "laying out", "placing"}
    world.close()


def test_a_map_that_has_grown_by_half_is_made_anew(library, monkeypatch):
    monkeypatch.setattr(maps, "LANDMARKS", 30)
    with serving(library) as client:
        wait_for(client, "/map", is_there)
        with Library.open(library) as opened:
            opened.add(*(make(f"more {number}", 600 + number, kind=number % 2) for number in range(12)))
        assert "more" not in wait_for(client, "/map", is_there).json()["method"]


def test_without_opentsne_maps_are_scaled_and_it_is_said(library, monkeypatch):
    monkeypatch.setitem(sys.modules, "openTSNE", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with serving(library) as client:
        whole = wait_for(client, "/map", is_there).json()
        assert whole["method"] == "classical scaling"
        assert "pip install 'task2vec[map]'" in ask(client, "/status")["layout"]


def test_a_damaged_embedding_does_not_spoil_the_map(library):
    with Library.open(library) as opened:
        entry = opened.task("own 2").embeddings[0]
    next(library.rglob(f"{entry.sha256}*")).write_bytes(b"nothing")
    with serving(library) as client:
        whole = wait_for(client, "/map", is_there).json()
        assert len(whole["points"]) == TASKS + 6


def test_what_fails_in_the_background_is_told(library, monkeypatch):
    monkeypatch.setattr(maps, "make_chart", lambda *args: 1 / 0)
    with serving(library) as client:
        answer = wait_for(client, "/map", lambda answer: answer.status_code != 202)
        assert answer.status_code == 500 and "ZeroDivisionError" in answer.json()["error"]["what"]


@pytest.mark.parametrize("count", [1, 2, 7])
def test_few_tasks_make_a_map(tmp_path, count):
    with Library.open(tmp_path / "tasks") as opened:
        opened.add(*(make(f"task {number}", 100 + number, weights="cd") for number in range(count)))
    with serving(tmp_path / "tasks") as client:
        whole = wait_for(client, "/map", is_there).json()
        assert len(places(whole)) == count and whole["method"] == "classical scaling"


def test_a_map_that_was_let_go_is_made_again(library):
    with serving(library) as client:
        first = wait_for(client, "/map", is_there)
        client.app_state.maps._charts.clear()  # as if eight other spaces had been looked at
        view = client.app_state.world.look()
        assert isinstance(client.app_state.maps.find(view, view.default), maps.answers.LayingOutAnswer)
        assert places(wait_for(client, "/map", is_there).json()).keys() == places(first.json()).keys()


def test_an_error_that_is_told_often_does_not_grow(library, monkeypatch):
    def fail(*args):
        raise maps.NotServedError(maps.split_text("no. Never. Leave it"), status=500)

    monkeypatch.setattr(maps, "make_chart", fail)
    with serving(library) as client:
        view, depths = client.app_state.world.look(), []
        wait_for(client, "/map", lambda answer: answer.status_code == 500)
        for _ in range(3):
            with pytest.raises(maps.NotServedError) as caught:
                client.app_state.maps.find(view, view.default)
            depths.append(len(caught.traceback))
    assert len(set(depths)) == 1
