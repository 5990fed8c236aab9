"""W1 and W2: a library whose users are killed at any moment, and one that ten processes use at once."""

import os
import random
import time

import pytest

from task2vec.library import Library
from tests.hostile import workers as jobs
from tests.hostile.workers import Worker
from tests.library.material import fingerprint_of, make

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are made by fork")

# --- W1: killed at any moment ----------------------------------------------------------------------------------------


def check_whole(library):
    """Nothing is damaged, and nothing is left over."""
    assert library.verify().problems == ()
    for task in library.tasks():
        for entry in task.embeddings:
            library.get(entry.key)
        if len(library) > 1 and task.embeddings:
            assert library.nearest(task.fingerprint, 2)


def replay(said):
    """The numbers of the embeddings that are there after these changes."""
    seeds = {}
    for _, what, seed in said:
        name, too = f"task {seed}", f"task {seed} too"
        if what == "add":
            seeds |= {name: seed, too: 1000 + seed}
        elif what == "replace":
            seeds[name] = 5000 + seed
        elif what == "remove":
            del seeds[too]
    return {name: make("", 0, numbers=seed).fisher.tobytes() for name, seed in seeds.items()}


def kill_churning(aside, rng, kills):
    """Kills a process that does everything; returns what it was doing each time."""
    folder, struck = aside / "library", []
    with Library.open(aside / "giver") as giver:
        giver.add(*(make(f"gift {seed}", 7000 + seed) for seed in range(3)))
        giver.export(aside / "gift.t2vlib")
    held = {}
    for turn in range(kills):
        worker = Worker(jobs.churn, folder=folder, first=10 * turn, count=1000)
        worker.hear(rng.randrange(36))  # none: while it opens the library
        time.sleep(rng.random() * 0.03)
        assert worker.kill() == -9, worker.said
        struck += [what for kind, what, _ in worker.said[-1:] if kind == "begin"]
        done, begun = (held | replay(line for line in worker.said if line[0] == kind) for kind in ("done", "begin"))
        with Library.open(folder) as library:
            held = {task.name: library.get(task.name).fisher.tobytes() for task in library.tasks()}
            held = {name: numbers for name, numbers in held.items() if not name.startswith("gift")}
            assert held in (done, begun), worker.said
            check_whole(library)
        if (aside / "export.t2vlib").exists():  # whole, or of an earlier moment, or not there
            with Library.open(aside / f"copy {turn}") as copy:
                assert copy.merge(aside / "export.t2vlib").conflicts == []
    return struck


@pytest.mark.parametrize(("parts", "kills"), [(1, 6), pytest.param(8, 25, marks=pytest.mark.long)])
def test_kills_while_everything_is_done(tmp_path, parts, kills):
    struck = []
    for part in range(parts):
        aside = tmp_path / str(part)
        aside.mkdir()
        struck += kill_churning(aside, random.Random(3 + part), kills)
    assert len(set(struck)) >= min(parts, 6), struck  # it was struck while it did many different things


# --- W2: many at once ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [5, pytest.param(50, marks=pytest.mark.long)])
def test_eight_writers_and_two_readers(tmp_path, count):
    """They open a library that is not there yet, all at once; one more replaces and removes what is being read."""
    folder, start, stop = tmp_path / "library", tmp_path / "start", tmp_path / "stop"
    adding = [Worker(jobs.add, folder=folder, first=1000 * one, count=count, start=start) for one in range(8)]
    start.touch()
    while not (folder / "library.sqlite").exists():
        time.sleep(0.005)
    others = [Worker(job, folder=folder, until=stop) for job in (jobs.read, jobs.change, jobs.read)]
    assert [worker.wait() for worker in adding] == [0] * 8, [worker.said[-1] for worker in adding]
    stop.touch()
    assert [worker.wait() for worker in others] == [0] * 3, [worker.said for worker in others]
    with Library.open(folder) as library:
        check_whole(library)
        found = {int(task.fingerprint, 16) for task in library.tasks()}
        assert library.task(fingerprint_of(9000)).name == "restless"
    assert found == {9000, *(1000 * one + seed for one in range(8) for seed in range(count))}
