"""Folders are offered by id and never through a link; jobs report progress and results, and can be cancelled."""

import json
import os
import shutil
import time
from pathlib import Path

import pytest
from starlette.requests import ClientDisconnect, Request

from task2vec.web import Limits
from task2vec.web.jobs import Folders, Jobs
from task2vec.web.routes import follow_job
from task2vec.web.security import RequestError, hide_file, hide_paths
from tests.web.serving import API, BAD, DEAD, GOOD, OWN, SLOW, ask, command, fill, serving


@pytest.fixture
def root(tmp_path):
    """Two tasks below a root, one of them deeper, and things that must not be offered."""
    outside = tmp_path / "outside"
    for place in (tmp_path / "root" / "pets", tmp_path / "root" / "more" / "cars", outside):
        for name in ("one", "two"):
            (place / name).mkdir(parents=True)
            (place / name / "1.png").write_bytes(b"")
            (place / name / "note.txt").write_bytes(b"")
    (tmp_path / "root" / ".hidden" / "one").mkdir(parents=True)
    os.symlink(outside, tmp_path / "root" / "link")
    os.symlink(outside / "one" / "1.png", tmp_path / "root" / "pets" / "one" / "linked.png")
    os.symlink(tmp_path / "root", tmp_path / "root" / "more" / "loop")
    return tmp_path / "root"


def by_name(folders):
    return {folder.name: folder for folder in folders.list_folders(None).folders}


def test_real_folders_are_listed_with_their_images(root):
    found = by_name(Folders([root]))
    assert set(found) == {"root", "pets", "more", "cars", "one", "two"}
    assert (found["root"].images, found["root"].classes, found["root"].parent) == (4, 2, None)
    assert (found["pets"].images, found["pets"].classes) == (2, 2)
    assert found["pets"].parent == found["root"].id and found["cars"].parent == found["more"].id


def test_ids_reveal_nothing_and_are_valid_for_one_server(root):
    one, other = Folders([root]), Folders([root])
    assert all(len(text) == 22 and text.startswith("f-") for text in one.roots)
    with pytest.raises(RequestError):
        one.find(by_name(other)["pets"].id)
    assert one.find(by_name(one)["cars"].id) == root.resolve() / "more" / "cars"
    for text in ("", ".", "..", "/etc", "pets", "../outside", "%2e%2e", "f-" + 20 * "0", "\0"):
        with pytest.raises(RequestError):
            one.find(text)
        with pytest.raises(RequestError):
            one.list_folders(text)


def test_a_folder_that_was_replaced_by_a_link_is_refused(root, tmp_path):
    folders = Folders([root])
    text = by_name(folders)["cars"].id
    assert folders.find(text).name == "cars"
    shutil.rmtree(root / "more" / "cars")
    with pytest.raises(RequestError):
        folders.find(text)
    os.symlink(tmp_path / "outside", root / "more" / "cars")
    with pytest.raises(RequestError, match="link"):
        folders.find(text)
    shutil.move(root / "more", root / "moved")
    os.symlink(root / "moved", root / "more")  # a folder on the way is a link now
    os.unlink(root / "moved" / "cars")
    shutil.copytree(tmp_path / "outside", root / "moved" / "cars")
    with pytest.raises(RequestError, match="link"):
        folders.find(text)


def test_depth_and_number_are_limited(tmp_path, monkeypatch):
    (tmp_path / "root" / "a" / "b" / "c" / "d" / "e" / "f").mkdir(parents=True)
    assert "e" not in by_name(Folders([tmp_path / "root"]))
    monkeypatch.setattr("task2vec.web.jobs.MOST_FOLDERS", 3)
    found = Folders([tmp_path / "root"]).list_folders(None)
    assert len(found.folders) == 3 and not found.is_complete


@pytest.mark.skipif(os.name == "nt", reason="names are bytes on POSIX only")
def test_names_that_are_not_utf8_are_escaped_and_found(tmp_path):
    os.makedirs(os.fsencode(tmp_path) + b"/root/caf\xe9")
    folders = Folders([tmp_path / "root"])
    (one,) = [folder for folder in folders.list_folders(None).folders if folder.parent is not None]
    assert one.name == "caf\\xe9" and os.fsencode(folders.find(one.id)).endswith(b"caf\xe9")


def test_no_path_of_this_machine_is_revealed(root, library, tmp_path):
    with serving(library, roots=[root]) as client:
        status = ask(client, "/status")
        assert status["can_embed"] is True and [one["name"] for one in status["roots"]] == ["root"]
        folders = ask(client, "/folders", root=status["roots"][0]["id"])
        texts = [str(status), str(folders), str(ask(client, "/tasks")), str(ask(client, "/openapi.json"))]
        asked = client.post("/api/v1/jobs", json={"folder": "/etc"}, headers=OWN)
        assert asked.status_code == 404
        assert not any(str(tmp_path) in text for text in [*texts, asked.text])


def test_folders_named_by_a_dot_garble_no_message(tmp_path, monkeypatch):
    fill(tmp_path / "tasks", 2)
    monkeypatch.chdir(tmp_path / "tasks")
    with serving(Path(), roots=[Path()]) as client:
        assert ask(client, "/status")["library"] == "tasks" and ask(client, "/status")["roots"][0]["name"] == "tasks"
        names, place = client.state.names, (tmp_path / "tasks").resolve() / "cats"
        assert client.state.jobs.library.is_absolute()
        assert hide_paths(f"'{place}' is empty. Add 1.5 images.", names) == "'tasks/cats' is empty. Add 1.5 images."


def test_only_the_last_part_of_a_path_is_shown():
    shown = {
        "cannot read /usr/lib/python3/x.so: no": "cannot read x.so: no",
        "'/home/ada lovelace/cats' is empty": "'cats' is empty",
        '"C:\\Users\\ada\\x.png" is broken': '"x.png" is broken',
        "see https://example.org/a/b and/or 3/4 of a/b": "see https://example.org/a/b and/or 3/4 of a/b",
        "'/data/photos/a b' and /data/photos-2/c": "'my photos/a b' and c",
    }
    names = {"/data/photos": "my photos", "/": "root"}
    assert {text: hide_paths(text, names) for text in shown} == shown
    assert hide_file('t2v.load_expert("C:\\\\ada\\\\a.safetensors")') == 't2v.load_expert("a.safetensors")'
    assert hide_file('t2v.load_expert("/x/\\"); f(\\"")') == 't2v.load_expert("\\"); f(\\"")'


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


def test_a_job_reports_its_result_or_why_it_failed(make_jobs, tmp_path):
    job = wait(make_jobs(GOOD).add(tmp_path / "cats", name="my cats"), "done", "failed")
    assert job.state == "done" and job.name == "my cats" and job.task.startswith("l-") and job.error is None
    assert job.version >= 5
    error = wait(make_jobs(BAD).add(tmp_path), "failed").error
    assert (error.what, error.why, error.fix) == ("photos has one class.", "It takes two.", "Add one: mkdir")
    job = wait(make_jobs(DEAD).add(tmp_path), "failed")
    assert "out of luck" in str(job) and "code 1" in job.error.what


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
    _, process = jobs._running
    jobs.close()
    assert process.wait(10) != 0 and third.state == "cancelled"
    with pytest.raises(RequestError):
        jobs.add(tmp_path)


def test_few_jobs_wait_and_old_ones_are_forgotten(make_jobs, tmp_path):
    jobs = make_jobs(SLOW, jobs=2, kept_jobs=3)
    first, _ = jobs.add(tmp_path), jobs.add(tmp_path)
    with pytest.raises(RequestError) as refused:
        jobs.add(tmp_path)
    assert refused.value.status == 409
    for one in jobs.list_jobs():
        jobs.cancel(one.id)
    wait(first, "cancelled")
    jobs.command = command(GOOD)
    for _ in range(4):
        wait(jobs.add(tmp_path), "done")
    assert len(jobs.list_jobs()) == 4
    with pytest.raises(RequestError):
        jobs.find(first.id)


def test_a_job_that_is_cancelled_at_its_very_end_ends_once(make_jobs, tmp_path):
    jobs, ended = make_jobs(DEAD), []
    job = jobs.add(tmp_path)
    update = type(job).update

    def note(one, **changes):
        update(one, **changes)
        ended.extend([one.state] if one.has_ended else [])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(job), "update", note)
        while not job.has_ended:
            jobs.cancel(job.id)
        jobs.close()
    assert len(ended) == 1 and jobs.cancel(job.id).state == ended[0]


def read_events(client, job):
    """Names and contents of the events of a job."""
    with client.stream("GET", f"{API}/jobs/{job}/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line and not line.startswith(":")]
    names = [line.removeprefix("event: ") for line in lines[::2]]
    return list(zip(names, [json.loads(line.removeprefix("data: ")) for line in lines[1::2]], strict=True))


def test_events_follow_a_job_to_its_end(library, tmp_path):
    with serving(library, roots=[tmp_path], jobs=GOOD) as client:
        (root,) = ask(client, "/status")["roots"]
        asked = client.post(f"{API}/jobs", json={"folder": root["id"]}, headers=OWN)
        assert asked.status_code == 202 and asked.json()["state"] in ("waiting", "running")
        job = asked.json()["id"]
        events = read_events(client, job)
        assert [name for name, _ in events][-2:] == ["progress", "end"]
        assert events[-1][1]["state"] == "done" and events[-1][1] == ask(client, f"/jobs/{job}")
        assert ask(client, "/jobs")["jobs"] == [events[-1][1]]
        assert client.state.listeners == 0
        assert client.delete(f"{API}/jobs/{job}", headers=OWN).json()["state"] == "done"


def test_listeners_are_limited_and_their_slots_released(library, tmp_path):
    with serving(library, roots=[tmp_path], jobs=GOOD, limits=Limits(listeners=1)) as client:
        job = wait(client.state.jobs.add(tmp_path), "done")
        request = Request({"type": "http", "app": client.secure.api, "headers": []})
        events = client.portal.call(follow_job, request, job.id)
        assert client.state.listeners == 1 and client.get(f"{API}/jobs/{job.id}/events").status_code == 429

        async def leave(*_):
            raise OSError("gone")

        with pytest.raises((OSError, ClientDisconnect)):
            client.portal.call(events, {"type": "http", "asgi": {"spec_version": "2.4"}}, leave, leave)
        assert client.state.listeners == 0 and read_events(client, job.id)[-1][0] == "end"


@pytest.mark.parametrize(
    ("body", "status"),
    [({}, 422), ({"folder": "f-0"}, 404), ({"folder": 7}, 422), ({"folder": "f-0", "library": "/etc"}, 422), ([], 422)],
)
def test_requests_that_make_no_sense(client, body, status):
    assert client.post(f"{API}/jobs", json=body, headers=OWN).status_code == status
