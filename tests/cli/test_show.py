"""`task2vec show`: a saved embedding in words, and a damaged one refused."""

import json
from dataclasses import replace

import numpy as np
import pytest

from task2vec import Library
from task2vec.distance.noise import find_floor
from task2vec.embedding import load_embedding
from tests.cli.material import make
from tests.command import START, run_command


def test_it_shows_what_matters(call, embedded):
    result = call("show", embedded)
    assert result.exit_code == 0, result.stderr
    for words in ("photos", "tf_efficientnet_lite0", "16 images", "norm", "blocks.3", "fingerprint", "engine"):
        assert words in result.stdout


def test_json_has_stages_that_add_up(call, embedded):
    result = call("show", embedded, "--json")
    assert result.exit_code == 0, result.stderr
    facts = json.loads(result.stdout)
    assert sum(stage["filters"] for stage in facts["stages"]) == facts["filters"]
    assert sum(stage["share"] for stage in facts["stages"]) == pytest.approx(1)


@pytest.mark.parametrize("has_halves", [False, True])
def test_the_noise_is_one_line(call, embedded, tmp_path, has_halves):
    embedding = load_embedding(embedded)
    if has_halves:
        embedding = replace(embedding, halves=np.outer([1.5, 0.5], embedding.fisher) ** [[1.1], [0.9]])
    place = embedding.save(tmp_path / "x.t2v.safetensors")
    result = call("show", place)
    assert result.exit_code == 0, result.stderr
    (line,) = (line for line in result.stdout.splitlines() if line.startswith("noise floor"))
    number = f"{find_floor(embedding):.3f}"
    words = "the distance of two such embeddings of this task"
    mend = "" if has_halves else "; --halves tells all of it"
    assert " ".join(line.split()) == f"noise floor {number}{'' if has_halves else ' or more'}, {words}{mend}"
    facts = json.loads(call("show", place, "--json").stdout)
    assert facts["noise"] == {"floor": find_floor(embedding), "basis": "halves" if has_halves else "stderr"}


def test_warnings_are_shown_as_text(call, embedded, tmp_path):
    embedding = load_embedding(embedded)
    story = embedding.provenance | {"warnings": ["classes with a single image: 'a\x1b[31m'", "few images"]}
    story["counts"] = story["counts"] | {"per_class": [1, 1], "bad": 1}
    place = replace(embedding, provenance=story).save(tmp_path / "x.t2v.safetensors")
    result = call("show", place)
    assert result.exit_code == 0, result.stderr
    lines = [" ".join(line.split()) for line in result.stdout.splitlines() if line.startswith("warning")]
    assert lines == [r"warning classes with a single image: 'a\x1b[31m'", "warning few images"]
    assert "(1 image each)" in result.stdout and "1 unreadable image " in result.stdout
    assert json.loads(call("show", place, "--json").stdout)["warnings"] == story["warnings"]


def test_torch_is_not_needed(embedded):
    watch = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); "
    result = run_command("show", embedded, python=watch + START)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "False"


def test_it_fits_where_it_is_shown(embedded):
    result = run_command("show", embedded, COLUMNS="40", NO_COLOR="1", PYTHONIOENCODING="ascii")
    assert result.returncode == 0, result.stderr
    assert result.stdout.isascii() and "\x1b" not in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 40


@pytest.mark.parametrize("damage", ["flipped", "truncated", "text", "empty"])
def test_a_damaged_file_ends_with_4(call, embedded, tmp_path, damage):
    content = bytearray(embedded.read_bytes())
    content[-100] ^= 0xFF
    contents = {"flipped": bytes(content), "truncated": embedded.read_bytes()[:-50], "text": b"hello", "empty": b""}
    place = tmp_path / "damaged.t2v.safetensors"
    place.write_bytes(contents[damage])
    result = call("show", place)
    assert result.exit_code == 4, result.stderr
    assert "damaged.t2v.safetensors" in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_a_missing_file_is_named(call, tmp_path):
    result = call("show", tmp_path / "gone.t2v.safetensors")
    assert result.exit_code == 2
    assert "gone.t2v.safetensors' is not there" in result.stderr


def test_a_name_of_the_library_will_do(call, embedded, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Library.open() as opened:
        opened.add(load_embedding(embedded))
        opened.rename("photos", "birds")
    shown = call("show", "birds").stdout.split()
    assert shown == call("show", embedded).stdout.replace("photos", "birds").split()
    (tmp_path / "birds").mkdir()
    assert call("show", "birds").exit_code == 0  # the name comes first
    folder = call("show", "./birds")
    assert folder.exit_code == 2 and "task2vec embed ./birds" in folder.stderr
    missing = call("show", "brids")
    assert missing.exit_code == 2 and "Did you mean 'birds'" in missing.stderr
    assert call("show", "birds", "--probe", "resnet34").exit_code == 2
    refused = call("show", embedded, "--method", "robust")
    assert refused.exit_code == 2 and "--method cannot be meant" in refused.stderr


def test_one_of_several_embeddings_is_chosen(call):
    with Library.open() as opened:
        opened.add(make("birds", 1), make("birds", 1, method="direct"))
    assert call("show", "birds").exit_code == 2
    facts = json.loads(call("show", "birds", "--method", "direct", "--json").stdout)
    assert facts["settings"]["method"] == "direct"
    with Library.open() as opened:
        opened.add(make("birds", 1, weights="cd", size=96))
    facts = json.loads(call("show", "birds", "--size", 96, "--json").stdout)
    assert facts["fingerprints"]["probe"] == "cd" * 32
