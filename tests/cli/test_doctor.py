"""`task2vec doctor`, `task2vec models` and `task2vec demo`."""

import os
import re
import socket
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import task2vec
from task2vec import Library
from task2vec.cli import doctor
from task2vec.embedding import load_embedding
from tests.cli.material import call, damage, read, refuse
from tests.documents import PROJECT
from tests.failures import fail
from tests.tiny_probe import make_tiny


@pytest.fixture
def no_probe(monkeypatch):
    """Loading the probe takes a second: tests of other things do without."""
    monkeypatch.setattr(doctor, "check_probe", lambda: iter([doctor.Finding("probe", "not checked")]))


def find_problems(*args, code=0):
    report = read("doctor", *args, code=code)
    problems = [one for part in report.values() if isinstance(part, list) for one in part if one["problem"]]
    assert report["is_well"] == (not problems) and report["problems"] == len(problems)
    return problems


def test_the_network_is_never_used(own_library, monkeypatch):
    """A sound installation has no problems, and nothing is fetched or created to find that out."""
    monkeypatch.setattr(socket.socket, "connect", fail(AssertionError("the network was used")))
    monkeypatch.setattr(socket, "getaddrinfo", fail(AssertionError("the network was used")))
    result = call("doctor")
    assert result.exit_code == 0 and result.stderr == "", result.stderr
    for words in ("No problems found.", "tf_efficientnet_lite0", "models on", own_library, "not", "torch"):
        assert words in result.stdout
    assert not os.path.exists(own_library)


def test_all_dependencies_and_extras_are_checked(no_probe):
    report = read("doctor")
    needed = {re.match(r"[\w-]+", line)[0].replace("_", "-") for line in PROJECT["dependencies"]}
    assert {one["what"].replace("_", "-") for one in report["versions"]} == needed | {"task2vec", "python"}
    extras = set(PROJECT["optional-dependencies"]) - {"all", "dev", "docs", "bench", "test"}
    assert {one["what"] for one in report["extras"]} == {f"[{extra}]" for extra in extras}


def test_versions_extras_and_folders_that_are_wrong(no_probe, monkeypatch, tmp_path):
    find, versions = doctor._find_version, {"timm": "0.1", "rich": None}
    monkeypatch.setattr(doctor, "_find_version", lambda name: versions[name] if name in versions else find(name))
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    problems = find_problems(code=5)
    assert {one["what"] for one in problems} == {"timm", "rich", "library", "temporary files"}
    assert all(one["fix"] for one in problems)


def test_a_damaged_library_ends_with_4_and_a_file_with_5(no_probe, own_library, tmp_path):
    Library.open(own_library).close()
    assert find_problems() == []
    damage(own_library)
    assert "task2vec library repair" in str(find_problems(code=4))
    (tmp_path / "file").write_text("")
    assert find_problems("--library", tmp_path / "file", code=5)


def test_a_check_that_fails_is_reported_and_the_others_are_made(no_probe, monkeypatch):
    monkeypatch.setattr(doctor, "_list_requirements", lambda extra="": fail(RuntimeError("odd"))() if extra else [])
    (problem,) = find_problems(code=5)
    assert "RuntimeError: odd" in problem["problem"] and problem["what"] == "extras"


def test_models_lists_what_is_available_offline(monkeypatch):
    rows = {row["name"]: row for row in read("models", "--offline")["models"]}
    lite = rows["tf_efficientnet_lite0"]
    assert lite["is_local"] and lite["source"].startswith("offline")
    assert lite["imagenet"] == pytest.approx(0.7483, abs=1e-3)  # of the table, where the name has a tag
    shown = call("models", "--offline").stdout
    assert "tf_efficientnet_lite0" in shown and "--download" in shown
    own = {"name": "own", "source": "hub cache x/own", "is_local": True}
    monkeypatch.setattr(task2vec, "list_probes", lambda: [own, {"name": "x", "source": "", "is_local": False}])
    assert [row["name"] for row in read("models", "--offline")["models"]] == ["own"]
    assert read("models", "--offline", "resnet")["models"] == []


def test_models_lists_the_facts_of_the_table():
    found = read("models", "-k", "3")
    accuracies = [row["imagenet"] for row in found["models"]]
    assert found["count"] > 1300 and accuracies == sorted(accuracies, reverse=True) and accuracies[0] > 0.9
    found = read("models", "*siglip_224.webli", "--max-params", "100M")
    (row,) = found["models"]
    assert row["name"] == "vit_base_patch16_siglip_224.webli" and not row["is_local"]
    assert (row["license"], row["pretraining"], row["megabytes"] > 300) == ("apache-2.0", "image-text", True)
    shown = call("models", "convnext_base.fb", "-k", "2").stdout
    for words in ("87.6 M", "2 of 4 models", "ImageNet", "GMACs", "no"):
        assert words in shown, words
    assert "yes" in call("models", "lite0.in1k").stdout.splitlines()[1].split()  # of the package


def test_models_of_some_licenses_and_none_of_names_that_are_wrong():
    both = read("models", "-k", 2000, "--license", "mit", "--license", "cc-by-4.0")
    assert {row["license"] for row in both["models"]} == {"mit", "cc-by-4.0"}
    assert read("models", "--offline", "--license", "apache-2.0")["models"][0]["license"] == "apache-2.0"
    refuse("'gpl' (--license) is not a licence of any model", "models", "--license", "gpl")
    refuse("Did you mean resnet50.a1_in1k", "models", "resnet5O.a1_in1k")
    refuse("not a number of parameters", "models", "--max-params", "few")


@pytest.fixture
def small(monkeypatch):
    """Few images and a tiny probe; what a model is recommended for has a bundled embedding, of images of 224 pixels."""
    embed, known = task2vec.embed, task2vec.bundled_metatask().embeddings["tf_efficientnet_lite0 robust"][0]
    probes = {24: make_tiny(), 224: known}

    def embed_quickly(task, probe, **how):
        return replace(known, task=task.name) if probe is known else embed(task, probe, **how)

    for name, value in (("SIZE", 24), ("IMAGES", 20), ("SAMPLES", 2), ("NETWORKS", doctor.NETWORKS[:1])):
        monkeypatch.setattr(doctor, name, value)
    monkeypatch.setattr(task2vec, "load_probe", lambda size: probes[size])
    monkeypatch.setattr(task2vec, "embed", embed_quickly)


def test_demo_writes_embeddings_and_a_figure(small, tmp_path, own_library):
    report = read("demo", "--out", tmp_path / "new" / "out")
    assert len(report["distances"]) == len(report["names"]) == len(report["tasks"]) >= 7
    files = sorted((tmp_path / "new" / "out").glob("*.t2v.safetensors"))
    assert len(files) == len(report["tasks"]) and load_embedding(files[0]).provenance["counts"]["images"] == 20
    assert Path(report["picture"]).read_bytes().startswith(b"\x89PNG")
    advice = report["recommendation"]
    assert advice["task"] == "photos" and advice["choice"] in {row["model"] for row in advice["rows"]}
    assert not os.path.exists(own_library)


def test_demo_prints_its_table_before_the_rest_even_without_matplotlib(small, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr(doctor, "_recommend", fail(RuntimeError("the rest")))
    result = call("demo", "--out", tmp_path)
    assert result.exit_code == 1 and "the rest" in result.stderr
    assert "digit parity" in result.stdout and "nearest (distance)" in result.stdout
    assert "pip install 'task2vec[plot]'" in result.stderr and not (tmp_path / "distances.png").exists()
    (tmp_path / "file").write_text("")
    refuse("--out", "demo", "--out", tmp_path / "file" / "folder", code=5)
