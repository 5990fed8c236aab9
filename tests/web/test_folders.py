"""Folders are offered by ids, and none that a link leads to; what has changed since is refused."""

import os
import shutil

import pytest

from task2vec.web.folders import Folders
from task2vec.web.problems import NotServedError
from tests.web.serving import OWN, ask, serving


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
    return {folder.name: folder for folder in folders.tell(None).folders}


def test_real_folders_are_listed_with_their_images(root):
    found = by_name(Folders([root]))
    assert set(found) == {"root", "pets", "more", "cars", "one", "two"}
    assert (found["root"].images, found["root"].classes, found["root"].parent) == (4, 2, None)
    assert (found["pets"].images, found["pets"].classes) == (2, 2)
    assert found["pets"].parent == found["root"].id and found["cars"].parent == found["more"].id


def test_ids_say_nothing_and_are_those_of_one_server(root):
    one, other = Folders([root]), Folders([root])
    assert by_name(one)["pets"].id != by_name(other)["pets"].id
    assert all(len(text) == 22 and text.startswith("f-") for text in one.roots)
    with pytest.raises(NotServedError):
        one.find(by_name(other)["pets"].id)
    assert one.find(by_name(one)["cars"].id) == root.resolve() / "more" / "cars"


@pytest.mark.parametrize("text", ["", ".", "..", "/etc", "pets", "../outside", "%2e%2e", "f-" + 20 * "0", "\0"])
def test_paths_are_no_ids(root, text):
    folders = Folders([root])
    folders.tell(None)
    with pytest.raises(NotServedError):
        folders.find(text)
    with pytest.raises(NotServedError):
        folders.tell(text)


def test_what_has_become_a_link_is_refused(root, tmp_path):
    folders = Folders([root])
    text = by_name(folders)["cars"].id
    assert folders.find(text).name == "cars"
    shutil.rmtree(root / "more" / "cars")
    with pytest.raises(NotServedError):
        folders.find(text)
    os.symlink(tmp_path / "outside", root / "more" / "cars")
    with pytest.raises(NotServedError, match="link"):
        folders.find(text)
    shutil.move(root / "more", root / "moved")
    os.symlink(root / "moved", root / "more")  # a folder on the way is a link now
    os.unlink(root / "moved" / "cars")
    shutil.copytree(tmp_path / "outside", root / "moved" / "cars")
    with pytest.raises(NotServedError, match="link"):
        folders.find(text)


def test_depth_and_number_are_limited_and_it_is_said(tmp_path, monkeypatch):
    deep = tmp_path / "root"
    for name in "abcdefg":
        deep = deep / name
    deep.mkdir(parents=True)
    assert "e" not in by_name(Folders([tmp_path / "root"]))
    monkeypatch.setattr("task2vec.web.folders.MOST_FOLDERS", 3)
    told = Folders([tmp_path / "root"]).tell(None)
    assert len(told.folders) == 3 and not told.is_whole


@pytest.mark.skipif(os.name == "nt", reason="names are bytes on POSIX alone")
def test_names_that_are_no_text_are_shown_and_found(tmp_path):
    os.makedirs(os.fsencode(tmp_path) + b"/root/caf\xe9")
    folders = Folders([tmp_path / "root"])
    (one,) = [folder for folder in folders.tell(None).folders if folder.parent is not None]
    assert one.name == "caf\\xe9" and os.fsencode(folders.find(one.id)).endswith(b"caf\xe9")


def test_no_path_of_this_machine_is_told(root, library, tmp_path):
    with serving(library, roots=[root]) as client:
        status = ask(client, "/status")
        assert status["can_embed"] is True and [one["name"] for one in status["roots"]] == ["root"]
        folders = ask(client, "/folders", root=status["roots"][0]["id"])
        texts = [str(status), str(folders), str(ask(client, "/tasks")), str(ask(client, "/openapi.json"))]
        asked = client.post("/api/v1/jobs", json={"folder": "/etc"}, headers=OWN)
        assert asked.status_code == 404
        assert not any(str(tmp_path) in text for text in [*texts, asked.text])
