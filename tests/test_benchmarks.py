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
from benchmarks import recommend, steadiness
from experiments.collection import Member
from task2vec.select.combined import binomial_noise, read_head, scale_errors
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


@pytest.fixture
def part(monkeypatch):
    """Six tasks in the place of the bundled ones."""
    whole = t2v.bundled_metatask()
    found = whole.only([row for row, task in enumerate(whole.tasks) if task.family == "sources"][:6])
    monkeypatch.setattr(recommend.t2v, "bundled_metatask", lambda: found)
    return found


def test_recommend_is_compared_on_a_part_of_the_bundle(part):
    table = recommend.compare("half", is_loadable=True)
    lines = {row["strategy"]: row for row in table}
    assert {"embedding: combined", "all measured, posterior", "the same with LogME (--budget)", "LogME"} <= set(lines)
    datasets = np.array([part.tasks[row].dataset for row in range(6)])
    names = [model.name for model in part.models]
    candidates = [number for number, model in enumerate(part.models) if model.is_named]
    means = part.select("half", probe=recommend.PROBE, method=recommend.METHOD).mean
    by_source = np.array([means[datasets == one].mean(0) for one in dict.fromkeys(datasets)])
    best = min(candidates, key=lambda number: by_source.mean(0)[number])
    top = max(candidates, key=lambda number: recommend.IMAGENET[names[number]])
    always = lines[f"always {names[top]} (ImageNet)"]
    assert always["over average-best"] == pytest.approx(100 * (by_source[:, top] - by_source[:, best]).mean())
    assert always["over ImageNet"] == 0 and {row["candidates"] for row in table} == {len(candidates)}
    assert all(row["over the best"] >= -1e-9 and 0 < row["two-sided p average-best"] <= 1 for row in table)
    # LogME is of the training images of the first split: it is judged, and compared, on that split alone.
    whole = part.select("half")
    scores, first = whole.scores["logme"][:, :, 0], whole.halves[:, :, 0, 0].mean(2)
    by_logme = [candidates[int(scores[row, candidates].argmax())] for row in range(6)]
    gaps = first[range(6), by_logme] - first[:, best]
    wanted = 100 * np.mean([gaps[datasets == one].mean() for one in dict.fromkeys(datasets)])
    assert lines["LogME"]["over average-best"] == pytest.approx(wanted)
    # `evaluate` has the same figures if it is asked for the same tasks and models.
    found = t2v.evaluate(part.only(range(6), candidates), ["measured"], shots="half", leave="dataset", resamples=2)
    assert found.datasets == tuple(datasets)
    gaps = found.outcomes["measured"].errors - part.select("half").halves[:, best, 0].mean((1, 2))
    wanted = 100 * np.mean([gaps[datasets == one].mean() for one in dict.fromkeys(datasets)])
    assert lines["smallest measured error"]["over average-best"] == pytest.approx(wanted)


def test_intervals_are_judged_on_the_same_images_and_on_new_ones(part, monkeypatch):
    asked = []

    def predict(known, embedding, query, measured):  # points without any width, at a fifth
        asked.append((embedding, known))
        point = np.full(len(query.is_candidate), 0.2)
        return recommend.Prediction(point, errors=point, low=point, high=point)

    monkeypatch.setattr(recommend, "predict_conditioned", predict)
    lines = recommend.judge_intervals("half", "resnet34")
    assert [(row["third"], row["tasks"]) for row in lines] == [("all", 6), ("easy", 2), ("middle", 2), ("hard", 2)]
    selected = part.select("half", probe="resnet34", method="robust")
    named = [number for number, model in enumerate(part.models) if model.is_named]
    own = [model.name for model in part.models].index("resnet34")
    covered = []
    for row, task in enumerate(part.tasks):
        whole_one, first, second = (one for one, _ in asked[3 * row : 3 * row + 3])
        assert all(task.dataset not in known.datasets for _, known in asked[3 * row : 3 * row + 3])
        errors = selected.halves[row, :, 0].mean(1)
        for half, one in enumerate((first, second)):
            assert one.provenance["counts"]["images"] == whole_one.provenance["counts"]["images"] / 2
            moved = read_head(one) - read_head(whole_one)
            assert np.sign(round(moved, 9)) == np.sign(round(errors[own, half] - errors[own].mean(), 9))
            for number in named:
                noise = binomial_noise(errors[number].mean(), one.provenance["counts"]["images"])
                away = abs(float(np.diff(scale_errors(np.array([0.2, errors[number, 1 - half]])))[0]))
                covered.append(away <= 1.6448536 * noise**0.5)
    assert lines[0]["new images"] == pytest.approx(100 * np.mean(covered)) and lines[0]["same images"] == 0
    true = selected.mean[:, named]
    assert lines[0]["RMSE"] == pytest.approx(100 * np.sqrt(np.square(true - 0.2).mean())) and 0 < np.mean(covered) < 1


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
