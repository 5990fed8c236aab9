"""Embedding from the page: progress, results, failures, cancelling, and how many may wait."""

import json
import sys
import threading
import time

import numpy as np
import pytest
from PIL import Image
from starlette.requests import ClientDisconnect, Request

from task2vec.web.job_routes import follow_job
from task2vec.web.jobs import Job, Jobs
from task2vec.web.problems import NotServedError
from task2vec.web.settings import Limits
from tests.web.serving import API, OWN, ask, serving, wait_for

# Stand in for the process that embeds: each reads its wish and tells something.
READ = (
    "import json, sys, time; wish = json.loads(sys.stdin.readline()); say = lambda **w: print(json.dumps(w), flush=1)"
)
GOOD = f"{READ}; [say(stage='features', done=n, total=3) for n in range(4)]; print('noise'); say(key='ab' * 32)"
BAD = f"{READ}; say(error=repr(wish['folder'])[1:-1] + ' has one class. It takes two. Add one: mkdir', code=3)"
SLOW = f"{READ}; say(stage='features', done=1, total=9); time.sleep(60)"
DEAD = "import sys; sys.exit('out of luck')"


def command(script):
    return (sys.executable, "-c", script)


@pytest.fixture
def make_jobs(tmp_path):
    """Jobs whose process is a script."""
    made = []

    def make(script, **limits):
        names = {str(tmp_path): "photos"}
        made.append(Jobs(tmp_path / "library", limits=Limits(**limits), names=names, command=command(script)))
        return made[-1]

    yield make
    for jobs in made:
        jobs.close()


def wait(job, *states):
    for _ in range(1200):
        if job.state in states:
            return job
        time.sleep(0.05)
    raise AssertionError(job)


def test_a_job_tells_its_stages_and_what_came_of_it(make_jobs, tmp_path):
    job = wait(make_jobs(GOOD).add(tmp_path / "cats", name="my cats"), "done", "failed")
    assert job.state == "done" and job.name == "my cats" and job.task.startswith("l-") and job.error is None
    assert job.version >= 5


def test_a_failure_has_three_parts_and_no_path(make_jobs, tmp_path):
    job = wait(make_jobs(BAD).add(tmp_path), "failed")
    told = job.tell().error
    assert (told.what, told.why, told.mend) == ("photos has one class.", "It takes two.", "Add one: mkdir")


def test_a_process_that_dies_is_a_failure(make_jobs, tmp_path):
    job = wait(make_jobs(DEAD).add(tmp_path), "failed")
    assert "out of luck" in str(job.tell()) and "code 1" in job.error.what


def test_a_running_job_is_cancelled_and_the_next_one_runs(make_jobs, tmp_path):
    jobs = make_jobs(SLOW)
    first, second, third = (jobs.add(tmp_path) for _ in range(3))
    wait(first, "running")
    assert (second.state, third.state) == ("waiting", "waiting")
    assert jobs.cancel(second.id).state == "cancelled"
    jobs.cancel(first.id)
    wait(first, "cancelled")
    wait(third, "running")
    assert second.state == "cancelled" and jobs.cancel(first.id).state == "cancelled"


def test_no_more_than_a_few_wait_and_old_ones_are_forgotten(make_jobs, tmp_path):
    jobs = make_jobs(SLOW, jobs=2, kept_jobs=3)
    first, _ = jobs.add(tmp_path), jobs.add(tmp_path)
    with pytest.raises(NotServedError) as refused:
        jobs.add(tmp_path)
    assert refused.value.status == 409
    for one in jobs.tell():
        jobs.cancel(one.id)
    wait(first, "cancelled")
    jobs.command = command(GOOD)
    for _ in range(6):
        wait(jobs.add(tmp_path), "done")
    assert len(jobs.tell()) == 4
    with pytest.raises(NotServedError):
        jobs.find(first.id)


def test_the_end_of_the_server_ends_what_runs(make_jobs, tmp_path):
    jobs = make_jobs(SLOW)
    job = wait(jobs.add(tmp_path), "running")
    while job.process is None:
        time.sleep(0.01)
    process = job.process
    jobs.close()
    assert process.wait(10) != 0 and job.state == "cancelled"
    with pytest.raises(NotServedError):
        jobs.add(tmp_path)


def read_events(client, job):
    """Names and contents of the events of a job."""
    with client.stream("GET", f"{API}/jobs/{job}/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line and not line.startswith(":")]
    names = [line.removeprefix("event: ") for line in lines[::2]]
    return list(zip(names, [json.loads(line.removeprefix("data: ")) for line in lines[1::2]], strict=True))


def test_events_follow_a_job_to_its_end(library, tmp_path):
    with serving(library, roots=[tmp_path], jobs=command(GOOD)) as client:
        (root,) = ask(client, "/status")["roots"]
        asked = client.post(f"{API}/jobs", json={"folder": root["id"]}, headers=OWN)
        assert asked.status_code == 202 and asked.json()["state"] == "waiting"
        job = asked.json()["id"]
        events = read_events(client, job)
        assert [name for name, _ in events][-2:] == ["progress", "end"]
        assert events[-1][1]["state"] == "done" and events[-1][1] == ask(client, f"/jobs/{job}")
        assert ask(client, "/jobs")["jobs"] == [events[-1][1]]
        assert client.app_state.listeners == 0
        assert client.delete(f"{API}/jobs/{job}", headers=OWN).json()["state"] == "done"


def test_listeners_are_limited_and_cancelling_ends_their_events(library, tmp_path):
    with serving(library, roots=[tmp_path], jobs=command(SLOW), limits=Limits(listeners=0)) as client:
        (root,) = ask(client, "/status")["roots"]
        job = client.post(f"{API}/jobs", json={"folder": root["id"], "name": "x"}, headers=OWN).json()["id"]
        assert client.get(f"{API}/jobs/{job}/events").status_code == 429
        assert client.delete(f"{API}/jobs/{job}", headers=OWN).status_code == 200
        wait_for(client, f"/jobs/{job}", lambda answer: answer.json()["state"] == "cancelled")


@pytest.mark.parametrize(
    ("wish", "status"),
    [
        ({}, 422),
        ({"folder": "f-0"}, 404),
        ({"folder": 7}, 422),
        ({"folder": "f-0", "library": "/etc"}, 422),
        ({"folder": "f-0", "name": ""}, 422),
        ([], 422),
        ("f-0", 422),
    ],
)
def test_wishes_that_cannot_be_meant(client, wish, status):
    assert client.post(f"{API}/jobs", json=wish, headers=OWN).status_code == status


@pytest.mark.long  # test_browser.py does it, too, through the page
def test_a_folder_is_embedded_for_real_and_appears(library, tmp_path):
    rng = np.random.default_rng(0)
    for name, level in (("dark", 60), ("bright", 190)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for index in range(3):
            pixels = rng.normal(level, 30, (32, 32, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{index}.png")
    with serving(library, roots=[tmp_path / "photos"]) as client:
        before = ask(client, "/status")
        job = client.app_state.jobs.add(tmp_path / "photos", more={"size": 32, "images": 4})
        end = read_events(client, job.id)[-1][1]
        assert end["state"] == "done", end
        after = ask(client, "/status")
        assert after["tasks"] == before["tasks"] + 1
        told = ask(client, f"/tasks/{end['task']}")
        assert told["name"] == "photos" and [one["count"] for one in told["classes"]] == [3, 3]
        (tmp_path / "photos" / "dark").rename(tmp_path / "elsewhere")
        again = client.app_state.jobs.add(tmp_path / "photos", more={"size": 32, "images": 4})
        failed = read_events(client, again.id)[-1][1]
        assert failed["state"] == "failed" and "photos" in failed["error"]["what"]
        assert str(tmp_path) not in str(failed)


def test_a_listener_counts_from_the_moment_it_is_let_in(library, tmp_path):
    with serving(library, roots=[tmp_path], jobs=command(GOOD), limits=Limits(listeners=1)) as client:
        served = client.app_state
        job = wait(served.jobs.add(tmp_path), "done")
        request = Request({"type": "http", "app": client.guards.api, "headers": []})
        events = client.portal.call(follow_job, request, job.id)
        assert served.listeners == 1 and client.get(f"{API}/jobs/{job.id}/events").status_code == 429

        async def leave(*_):
            raise OSError("gone")

        with pytest.raises((OSError, ClientDisconnect)):
            client.portal.call(events, {"type": "http", "asgi": {"spec_version": "2.4"}}, leave, leave)
        assert served.listeners == 0 and read_events(client, job.id)[-1][0] == "end"


def test_who_cancels_at_the_last_moment_is_told_how_it_ended(make_jobs):
    jobs = make_jobs(DEAD)
    seen = []

    class Lock:
        """Cancels right after the process has been forgotten: what was told then must stay."""

        def __init__(self):
            self.lock = threading.Lock()

        def __enter__(self):
            self.lock.acquire()

        def __exit__(self, *_):
            self.lock.release()
            if seen == ["process"] and job.process is None:
                seen.append("cancel")
                seen.append(jobs.cancel(job.id).state)
            elif not seen and job.process is not None:
                seen.append("process")

    job = Job("j-1", "x", {})
    jobs._jobs[job.id], jobs._lock = job, Lock()
    jobs._run(job)
    assert seen == ["process", "cancel", "failed"] and job.state == "failed"
