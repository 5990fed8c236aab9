"""The benchmarks are no part of the package, but must not rot: each imports with what the tests install."""

import importlib
import importlib.util
import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import task2vec as t2v
from benchmarks import steadiness
from experiments.collection import Member
from tests.failures import refuse
from tests.tiny_probe import make_tiny

FILES = sorted(path.stem for path in Path(__file__).parents[1].joinpath("benchmarks").glob("*.py"))
NEEDS = {"other_libraries": "backpack"}


@pytest.mark.parametrize("name", FILES)
def test_a_benchmark_imports_and_nothing_in_it_looks_like_a_test(name):
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed: it belongs to `make bench`")
    found = vars(importlib.import_module(f"benchmarks.{name}"))
    assert not [one for one in found if one.startswith("test")]


# --- steadiness: versions are compared by what they draw and report ---------------------------------------------------


@pytest.fixture(scope="module")
def drawn():
    """Parts of three tasks and of halves of them, by their places."""
    tasks = t2v.sample_tasks(images_per_task=60)[:3]
    members = [Member(task.name, task) for task in tasks]
    members += [Member(task.name, replace(task.subset(range(30)), name=f"part of {task.name}")) for task in tasks]
    return dict(steadiness.list_parts(members, tasks[:2], images=20))


def test_draws_and_binary_tasks_are_disjoint_and_halves_are_of_the_same_images(drawn):
    draws = {place[2:]: task for place, task in drawn.items() if place.startswith("A/")}
    assert draws and not any(set(one.digests) & set(drawn[f"B/{place}"].digests) for place, one in draws.items())
    halves = [task for place, task in drawn.items() if place.startswith("halves/digits/")]
    assert len(halves) == steadiness.HALVES == len({task.fingerprint for task in halves})
    assert {len(task) for task in halves} == {20} and len(set().union(*(task.digests for task in halves))) == 40
    classes = [name for place, task in drawn.items() if place.startswith("binary/digits/") for name in task.classes]
    assert len(classes) == len(set(classes)) == 10


def test_the_report_computes_what_slow_loops_compute_and_names_what_is_missing(drawn, tmp_path):
    folder, file = tmp_path / "tiny-24", tmp_path / "story.json"
    few = [place for place in drawn if not place.startswith("halves/") or place[-6:-4] < "03"]
    for place in few:
        steadiness.embed_part(folder / place, drawn[place], make_tiny(), split_half=True, device="cpu")
    (folder / "parts.json").write_text(json.dumps(few))
    refuse(SystemExit, "version that embedded", steadiness.report, Namespace(out=tmp_path, before=tmp_path, json=file))
    for before in (None, tmp_path):
        assert steadiness.report(Namespace(out=tmp_path, before=before, json=file)) == 0
    story = json.loads(file.read_text())["tiny-24"]
    found = story["after"]
    assert story["before"] == found
    whole = steadiness.read_embeddings(folder / "whole")
    same = 0
    for key, one in whole.items():
        others = {other: t2v.distance.symmetric(one, whole[other]) for other in whole if other != key}
        same += min(others, key=others.__getitem__)[0] == key[0]
    assert (found["tasks"], found["nearest task of the same dataset"]) == (len(whole), same)
    default = story["prior"][0]
    assert (default["beta"], default["nearest of the same dataset"]) == (t2v.EmbedSettings().beta, same)
    first, second = (steadiness.read_embeddings(folder / draw) for draw in steadiness.DRAWS)
    near = np.median([t2v.distance.symmetric(one, second[key]) for key, one in first.items()])
    assert found["distance of two draws"] == pytest.approx(near, rel=1e-5)  # pairwise computes in float32
    assert found["noise floor of two draws, from halves"] != found["noise floor of two draws, from stderr"]
    logs = [[np.log(float(file.read_text())) for file in task.iterdir()] for task in (folder / "halves").iterdir()]
    assert found["sd of log norm, random halves"] == pytest.approx(np.median([np.std(x, ddof=1) for x in logs]))
    (folder / "parts.json").write_text(json.dumps([*few, "whole/birds/lost.safetensors"]))
    refuse(SystemExit, r"lacks 1 of .*lost.safetensors.*gather", steadiness.compute_figures, folder)
