"""What is served follows the library: nothing is restarted, nothing is made by looking, damage stays where it is."""

import os
import time

import pytest

from task2vec import Library, MeasuredError
from task2vec.library import Expert
from task2vec.web.world import World
from tests.cli.material import make
from tests.select.recommend_world import TASKS, make_metatask
from tests.web.serving import ask, serving


@pytest.fixture
def world(library):
    world = World(library, measured=make_metatask())
    yield world
    world.close()


def test_what_others_add_rename_and_remove_is_seen_at_the_next_look(library):
    with serving(library) as client, Library.open(library) as other:
        before = ask(client, "/status")
        assert ask(client, "/tasks", q="newcomer")["total"] == 0
        other.add(make("newcomer", 500, kind=1))
        after = ask(client, "/status")
        assert after["tasks"] == before["tasks"] + 1 and after["revision"] != before["revision"]
        (one,) = ask(client, "/tasks", q="newcomer")["tasks"]
        other.rename("newcomer", "old hand")
        assert ask(client, f"/tasks/{one['id']}")["name"] == "old hand"
        other.remove("old hand")
        assert ask(client, f"/tasks/{one['id']}", 404)
        assert ask(client, "/status")["revision"] == before["revision"]


def test_a_look_at_what_has_not_changed_reads_nothing(world, monkeypatch):
    view = world.look()
    monkeypatch.setattr(Library, "tasks", None)
    assert world.look() is view and world.peek() is view
    os.utime(world.folder / "library.sqlite", ns=(time.time_ns(), time.time_ns()))
    assert world.peek() is None


def test_looking_makes_no_library(tmp_path):
    with serving(tmp_path / "none") as client:
        told = ask(client, "/status")
        assert told["tasks"] == TASKS and told["library"] == "none" and not (tmp_path / "none").exists()
        with Library.open(tmp_path / "none") as library:
            library.add(make("first", 1000))
        assert ask(client, "/status")["tasks"] == TASKS + 1


def test_a_task_that_ships_and_is_in_the_library_is_shown_once(world):
    with Library.open(world.folder) as library:
        library.add(make("my own name for it", 3, kind=1))
    view = world.look()
    twins = [one for one in view.entries.values() if one.fingerprint == make("", 3).provenance["task_fingerprint"]]
    assert [(one.name, one.origin) for one in twins] == [("my own name for it", "library")]


def test_of_several_embeddings_in_one_space_the_newest_is_shown(library):
    newer = make("own 1", 101, kind=1, noise=0.2)
    newer.provenance["settings"]["seed"] = 7
    with Library.open(library) as opened:
        opened.add(newer)
    with serving(library) as client:
        (line,) = ask(client, "/tasks", q="own 1")["tasks"]
        assert line["norm"] == pytest.approx(newer.norm())
        near = ask(client, f"/tasks/{line['id']}/nearest", limit=100)["neighbours"]
        assert len(near) == TASKS + 5 and len({one["id"] for one in near}) == len(near)


def test_older_embeddings_take_nobody_s_place_among_the_nearest(library):
    with Library.open(library) as opened:
        for seed in range(1, 5):
            older = make("own 1", 101, kind=1, noise=0.3)
            older.provenance["settings"]["seed"] = seed
            opened.add(older)
    with serving(library) as client:
        (line,) = ask(client, "/tasks", q="own 3")["tasks"]
        all_near = ask(client, f"/tasks/{line['id']}/nearest", limit=100)["neighbours"]
        own = [one for one in all_near if one["origin"] == "library"]
        for limit in range(1, len(all_near)):
            few = ask(client, f"/tasks/{line['id']}/nearest", limit=limit)["neighbours"]
            assert few == all_near[:limit]
        assert len(own) == 5


def test_a_damaged_embedding_is_named_and_the_others_still_work(library):
    with Library.open(library) as opened:
        entry = opened.task("own 2").embeddings[0]
    blob = next(library.rglob(f"{entry.sha256}*"))
    content = bytearray(blob.read_bytes())
    content[-3] ^= 1
    blob.write_bytes(content)
    with serving(library) as client:
        ids = {one["name"]: one["id"] for one in ask(client, "/tasks", limit=200)["tasks"]}
        problem = ask(client, f"/tasks/{ids['own 2']}", 500)["error"]
        assert "own 2" in problem["what"] and str(library) not in str(problem)
        assert ask(client, f"/tasks/{ids['own 1']}/nearest")["neighbours"]


def test_errors_of_the_library_count(library):
    with Library.open(library) as opened:
        task = opened.task("own 1").fingerprint
        opened.add(Expert("mine", "timm", "resnet18", parameters=11_000_000))
        protocol = "linear-2, train half, logistic, usual"
        opened.add(*(MeasuredError(task, "mine", error, protocol, seed) for seed, error in enumerate((0.1, 0.2))))
    with serving(library) as client:
        (line,) = ask(client, "/tasks", q="own 1")["tasks"]
        assert ask(client, f"/tasks/{line['id']}")["best_error"] == pytest.approx(0.15)
        mine = next(one for one in ask(client, "/experts")["experts"] if one["name"] == "mine")
        assert (mine["mean_error"], mine["tasks"], mine["origin"]) == (pytest.approx(0.15), 1, "library")
        advice = ask(client, f"/tasks/{line['id']}/recommendation", train="half")
        measured = {one["name"]: one["measured"] for one in advice["experts"]}
        assert measured["mine"] == pytest.approx(0.15)


def test_the_space_of_the_library_is_the_default_where_all_lies_elsewhere(tmp_path):
    with Library.open(tmp_path / "tasks") as opened:
        opened.add(make("a", 1, weights="cd"), make("b", 2, weights="cd"), make("c", 3, weights="ef"))
    with serving(tmp_path / "tasks") as client:
        spaces = ask(client, "/status")["spaces"]
    assert [(space["tasks"], space["is_default"]) for space in spaces] == [(2, True), (TASKS, False), (1, False)]
