"""What a served folder could do to the process that embeds it: code in it (S6), links that come late (S6)."""

import json
import os
import subprocess

import pytest

from task2vec.errors import DataError
from task2vec.web.jobs import EMBEDDER, embed_folder


def test_s6_code_in_the_folder_of_the_server_is_not_run(tmp_path):
    for name in ("PIL", "numpy", "safetensors"):
        (tmp_path / f"{name}.py").write_text("open('run', 'w').close()")
    request = {"folder": str(tmp_path / "none"), "name": None, "library": str(tmp_path / "library")}
    told = subprocess.run(
        EMBEDDER, input=json.dumps(request), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert not (tmp_path / "run").exists()
    assert "none" in json.loads(told.stdout.splitlines()[-1])["error"], told.stderr


@pytest.mark.skipif(os.name == "nt", reason="links of POSIX")
def test_s6_a_link_in_the_place_of_a_folder_is_not_followed(tmp_path, monkeypatch):
    real = tmp_path.resolve() / "real"
    (real / "inner").mkdir(parents=True)
    link = tmp_path.resolve() / "link"
    link.symlink_to(real)
    read = []
    monkeypatch.setattr("task2vec.tasks.read_folder", lambda folder, name: read.append(folder))
    for folder in (link, link / "inner"):
        with pytest.raises(DataError, match="link"):
            embed_folder({"folder": str(folder), "name": None, "library": "x"}, lambda words: None)
    assert read == []


@pytest.mark.skipif(os.name == "nt", reason="links of POSIX")
def test_s6_a_link_that_comes_while_images_are_read_is_seen(tmp_path, monkeypatch):
    real, folder = tmp_path.resolve() / "real", tmp_path.resolve() / "folder"
    real.mkdir()
    folder.mkdir()

    def swap(place, name):
        folder.rmdir()
        folder.symlink_to(real)

    monkeypatch.setattr("task2vec.tasks.read_folder", swap)
    with pytest.raises(DataError, match="link"):
        embed_folder({"folder": str(folder), "name": None, "library": "x"}, lambda words: None)
