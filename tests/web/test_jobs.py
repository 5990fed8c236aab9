"""Folders are offered by id and never through a link; jobs report progress and results, and can be cancelled."""

import os
import sys
from pathlib import Path

import pytest

import task2vec
from task2vec import Library
from task2vec.metatask import bundled_metatask, is_comparable
from task2vec.web import Limits
from task2vec.web.jobs import Folders, embed_folder, make_id
from task2vec.web.security import RequestError, hide_paths
from tests.cli.material import paint
from tests.failures import refuse
from tests.web.serving import API, BAD, DEAD, GOOD, OWN, SLOW, ask, fill, serving, wait_for


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
    assert one.find(by_name(one)["cars"].id) == root.resolve() / "more" / "cars"
    for text in (by_name(other)["pets"].id, "", "..", "pets", "../outside", "\0"):
        for ask_for in (one.find, one.list_folders):
            refuse(RequestError, None, ask_for, text)


def test_depth_and_number_are_limited(tmp_path, monkeypatch):
    (tmp_path / "root" / "a" / "b" / "c" / "d" / "e").mkdir(parents=True)
    assert "e" not in by_name(Folders([tmp_path / "root"]))
    monkeypatch.setattr("task2vec.web.jobs.MOST_FOLDERS", 3)
    found = Folders([tmp_path / "root"]).list_folders(None)
    assert len(found.folders) == 3 and not found.is_complete


@pytest.mark.skipif(os.name == "nt", reason="names are bytes on POSIX only")
def test_names_that_are_not_utf8_are_escaped_and_found(tmp_path):
    os.makedirs(os.fsencode(tmp_path) + b"/root/caf\xe9")
    folders = Folders([tmp_path / "root"])
    assert os.fsencode(folders.find(by_name(folders)["caf\\udce9"].id)).endswith(b"caf\xe9")


def test_no_path_of_this_machine_is_revealed_or_taken(root, library, tmp_path):
    with serving(library, roots=[root]) as client:
        status = ask(client, "/status")
        assert status["can_embed"] is True and [one["name"] for one in status["roots"]] == ["root"]
        folders = ask(client, "/folders", root=status["roots"][0]["id"])
        texts = [str(status), str(folders), str(ask(client, "/tasks")), str(ask(client, "/openapi.json"))]
        asked = client.post("/api/v1/jobs", json={"folder": "/etc"}, headers=OWN)
        assert asked.status_code == 404
        for body in ({}, {"folder": 7}, {"folder": "f-0", "library": "/etc"}, []):
            assert client.post(f"{API}/jobs", json=body, headers=OWN).status_code == 422
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
        't2v.load_expert("C:\\\\ada\\\\a.safetensors")': 't2v.load_expert("a.safetensors")',
    }
    names = {"/data/photos": "my photos", "/": "root"}
    assert {text: hide_paths(text, names) for text in shown} == shown
    assert "home" not in hide_paths('t2v.load_expert("/home/ada/\\"); f(\\"")', {})


def start(client, **request):
    """The id of a new job for the first root."""
    (root,) = ask(client, "/status")["roots"]
    asked = client.post(f"{API}/jobs", json={"folder": root["id"], **request}, headers=OWN)
    assert asked.status_code == 202 and asked.json()["state"] in ("waiting", "running")
    return asked.json()["id"]


def wait(client, job, *states):
    return wait_for(client, f"/jobs/{job}", lambda answer: answer.json()["state"] in states).json()


def cancel(client, job):
    return client.delete(f"{API}/jobs/{job}", headers=OWN).json()["state"]


def test_a_job_reports_its_result_or_why_it_failed(library, tmp_path):
    with serving(library, roots=[tmp_path], jobs=GOOD) as client:
        done = wait(client, start(client, name="my cats"), "done", "failed")
        assert done["state"] == "done" and done["name"] == "my cats" and done["error"] is None
        assert (done["task"], done["stage"], done["done"], done["total"]) == (make_id("l", 32 * "ab"), "done", 3, 3)
        client.state.jobs.command = (sys.executable, "-c", BAD)
        error = wait(client, start(client), "failed")["error"]
        assert error == {"what": f"{tmp_path.name} has one class.", "why": "It takes two.", "fix": "Add one: mkdir"}
        for command, words in (((sys.executable, "-c", DEAD), "out of luck"), (("/no",), "No such file")):
            client.state.jobs.command = command
            assert words in str(wait(client, start(client), "failed")["error"])


def test_a_running_job_is_cancelled_and_the_next_one_runs(library, tmp_path):
    with serving(library, roots=[tmp_path], jobs=SLOW, limits=Limits(jobs=3, kept_jobs=1)) as client:
        first, second, third = (start(client) for _ in range(3))
        wait(client, first, "running")
        assert [ask(client, f"/jobs/{job}")["state"] for job in (second, third)] == ["waiting", "waiting"]
        root = ask(client, "/status")["roots"][0]["id"]
        assert client.post(f"{API}/jobs", json={"folder": root}, headers=OWN).status_code == 409
        assert [cancel(client, job) for job in (second, first, first)] == 3 * ["cancelled"]
        wait(client, third, "running")
        fourth = start(client)  # of those that have ended, one is kept
        assert [one["id"] for one in ask(client, "/jobs")["jobs"]] == [fourth, third, second]
        ask(client, f"/jobs/{first}", 404)
        (work, *_) = client.state.jobs._work.values()
    assert work.done() and not client.state.jobs._work
    assert [job.state for job in client.state.jobs.list_jobs()] == 3 * ["cancelled"]


def test_a_folder_is_embedded_in_the_space_of_the_bundled_tasks(tmp_path, monkeypatch):
    paint(tmp_path / "photos", {"red": 60, "green": 190}, count=2)
    request = {"folder": str(tmp_path.resolve() / "photos"), "name": "mine", "library": str(tmp_path / "tasks")}
    messages = []
    monkeypatch.setattr("task2vec.probe.load_probe", task2vec.load_probe)  # which loads it once
    key = embed_folder(request, messages.append)
    stages = list(dict.fromkeys(message["stage"] for message in messages))
    assert stages[:2] == ["reading images", "loading the probe"] and len(stages) > 3
    assert stages[-1] == "writing the report"
    assert all(message["done"] <= message["total"] for message in messages)
    with Library.open(tmp_path / "tasks") as library:
        assert library.task("mine").images == 4
        assert is_comparable(library.get(key), next(iter(bundled_metatask().spaces.values())))
        file = library.report_file(library.task("mine").fingerprint)
        page = file.read_text(encoding="utf-8")
        assert "<h1>mine</h1>" in page and "<pre>task2vec report photos" in page and str(tmp_path) not in page
        file.unlink()
        monkeypatch.setattr("task2vec.embedding.single.Job.embed", None)  # found, and not embedded again
        assert embed_folder(request, messages.append) == key
        assert file.read_text(encoding="utf-8") == page
    monkeypatch.setattr("task2vec.audit.report.report", None)  # nor is its report made again
    assert embed_folder(request, messages.append) == key
