"""The benchmark that compares versions: what it draws and what it reports, on small tasks of the package."""

import json
from argparse import Namespace
from dataclasses import replace

import numpy as np
import pytest

import task2vec as t2v
from benchmarks import steadiness
from experiments.collection import Member
from tests.tiny_probe import make_tiny

IMAGES = 20


@pytest.fixture(scope="module")
def parts():
    tasks = t2v.sample_tasks(images_per_task=60)[:3]
    members = [Member(task.name, task) for task in tasks] + [
        Member(task.name, replace(task.subset(range(30)), name=f"part of {task.name}")) for task in tasks
    ]
    return steadiness.list_parts(members, tasks[:2], images=IMAGES)


def test_draws_have_no_image_in_common_and_halves_are_half_of_the_same_images(parts):
    tasks = dict(parts)
    draws = {place[2:]: task for place, task in parts if place.startswith("A/")}
    assert draws
    for place, one in draws.items():
        other = tasks[f"B/{place}"]
        assert not set(one.digests) & set(other.digests)
        assert one.classes == other.classes == tasks[f"whole/{place}"].classes
    halves = [task for place, task in parts if place.startswith("halves/digits/")]
    assert {len(task) for task in halves} == {IMAGES}
    assert len(halves) == steadiness.HALVES == len({task.fingerprint for task in halves})
    assert len(set().union(*(task.digests for task in halves))) == 2 * IMAGES


def test_binary_tasks_are_disjoint_pairs_of_classes_with_enough_images(parts):
    own = [task for place, task in parts if place.startswith("binary/digits/")]
    classes = [name for task in own for name in task.classes]
    assert len(own) == 5
    assert len(classes) == len(set(classes)) == 10
    assert steadiness.list_parts([], [dict(parts)["whole/digits/digits.safetensors"]], images=1000) == []


@pytest.fixture(scope="module")
def gathered(parts, tmp_path_factory):
    out = tmp_path_factory.mktemp("steadiness")
    few = [(place, task) for place, task in parts if not place.startswith("halves/") or place[-6:-4] < "03"]
    for place, task in few:
        steadiness.embed_part(out / "tiny-24" / place, task, make_tiny(), split_half=True, device="cpu")
    (out / "tiny-24" / "parts.json").write_text(json.dumps([place for place, _ in few]))
    return out


def test_report_computes_what_slow_loops_compute_and_shows_before_and_after(gathered, tmp_path, capsys):
    folder, file = gathered / "tiny-24", tmp_path / "figures.json"
    assert steadiness.report(Namespace(out=gathered, before=None, json=None)) == 0
    assert steadiness.report(Namespace(out=gathered, before=gathered, json=file)) == 0
    story = json.loads(file.read_text())["tiny-24"]
    assert story["before"] == story["after"] == steadiness.compute_figures(folder)
    assert "Spearman of norm and error" in capsys.readouterr().out
    found = story["after"]
    whole = steadiness.read_embeddings(folder / "whole")
    same = 0
    for key, one in whole.items():
        others = {other: t2v.distance.symmetric(one, whole[other]) for other in whole if other != key}
        same += min(others, key=others.__getitem__)[0] == key[0]
    assert (found["tasks"], found["nearest task of the same dataset"]) == (len(whole), same)
    draws = [steadiness.read_embeddings(folder / draw) for draw in steadiness.DRAWS]
    near = np.median([t2v.distance.symmetric(one, draws[1][key]) for key, one in draws[0].items()])
    assert found["distance of two draws"] == pytest.approx(near, rel=1e-5)  # pairwise computes in float32
    assert all(one.halves is not None for draw in draws for one in draw.values())
    assert all(one.halves is None for one in whole.values())
    assert found["noise floor of two draws, from halves"] != found["noise floor of two draws, from stderr"]
    logs = [[np.log(float(file.read_text())) for file in task.iterdir()] for task in (folder / "halves").iterdir()]
    assert found["sd of log norm, random halves"] == pytest.approx(np.median([np.std(x, ddof=1) for x in logs]))
    default = story["prior"][0]
    assert (default["beta"], default["nearest of the same dataset"]) == (t2v.EmbedSettings().beta, same)


def test_what_is_there_is_not_embedded_again_and_what_lacks_is_named(gathered, parts):
    folder = gathered / "tiny-24"
    place, task = next(part for part in parts if part[0].startswith("whole/"))
    steadiness.embed_part(folder / place, task, None, device="no device")
    places = json.loads((folder / "parts.json").read_text())
    (folder / "parts.json").write_text(json.dumps([*places, "whole/birds/lost.safetensors"]))
    with pytest.raises(SystemExit, match=r"lacks 1 of .*lost.safetensors.*gather"):
        steadiness.compute_figures(folder)
    (folder / "parts.json").write_text(json.dumps(places))
    with pytest.raises(SystemExit, match="version that embedded"):
        steadiness.report(Namespace(out=gathered, before=folder, json=None))


def test_neighbours_in_the_same_order_correlate_fully():
    apart = np.array([[0, 1, 2, 3], [1, 0, 5, 4], [2, 5, 0, 6], [3, 4, 6, 0]], float)
    assert steadiness.correlate(apart, apart**2) == pytest.approx(1)
    assert steadiness.correlate(apart, -apart) == pytest.approx(-1)
