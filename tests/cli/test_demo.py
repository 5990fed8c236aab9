"""`task2vec demo`, with smaller images so that the suite stays quick."""

import json
import os
import sys

import pytest

from task2vec.cli import demo
from task2vec.embedding import load_embedding


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(demo, "SIZE", 32)
    monkeypatch.setattr(demo, "IMAGES", 40)
    monkeypatch.setattr(demo, "BACKPROPAGATED", 4)


def test_json_picture_and_embeddings(call, tmp_path, own_library):
    result = call("demo", "--out", tmp_path / "made" / "here", "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert len(report["tasks"]) >= 7
    assert len(report["distances"]) == len(report["names"]) == len(report["tasks"])
    files = sorted((tmp_path / "made" / "here").glob("*.t2v.safetensors"))
    assert len(files) == len(report["tasks"])
    assert load_embedding(files[0]).provenance["counts"]["images"] == 40
    assert (tmp_path / "made" / "here" / "distances.png").read_bytes().startswith(b"\x89PNG")
    advice = report["recommendation"]
    assert advice["task"] == "photos" and advice["choice"] in {row["expert"] for row in advice["rows"]}
    assert not os.path.exists(own_library)  # a look leaves the library alone


def test_the_table_and_how_to_read_it_even_without_matplotlib(call, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = call("demo", "--out", tmp_path)
    assert result.exit_code == 0, result.stderr
    for words in (
        "digit parity",
        "nearest",
        "coin flips",
        "How to read it",
        "task2vec embed FOLDER",
        "Which network suits 'photos'",
    ):
        assert words in result.stdout
    assert "pip install 'task2vec[plot]'" in result.stderr
    assert not (tmp_path / "distances.png").exists()


def test_a_place_that_cannot_be_is_an_environment_error(call, tmp_path):
    (tmp_path / "file").write_text("")
    result = call("demo", "--out", tmp_path / "file" / "folder")
    assert result.exit_code == 5
    assert "--out" in result.stderr
