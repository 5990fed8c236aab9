"""The benchmarks are no part of the package, but must not rot: each imports with what the tests install."""

import importlib
import importlib.util
from pathlib import Path

import numpy as np
import pytest

from benchmarks import recommend
from task2vec import bundled_metatask, evaluate
from task2vec.select.combined import binomial_noise, read_head, scale_errors

FILES = sorted(path.stem for path in Path(__file__).parents[1].joinpath("benchmarks").glob("*.py"))
NEEDS = {"other_libraries": "backpack"}


@pytest.mark.parametrize("name", FILES)
def test_a_benchmark_imports_and_nothing_in_it_looks_like_a_test(name):
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed: it belongs to `make bench`")
    found = vars(importlib.import_module(f"benchmarks.{name}"))
    assert not [one for one in found if one.startswith("test")]


def test_signs_are_flipped_one_sided():
    assert recommend.flip_signs(np.full(10, -1.0)) == pytest.approx(2**-10, abs=0.001)
    assert recommend.flip_signs(np.full(10, 1.0)) == 1
    assert recommend.flip_signs(np.array([1.0, -1.0, 2.0, -2.0])) == pytest.approx(0.625, abs=0.02)  # 10 of 16


def test_recommend_is_compared_on_a_part_of_the_bundle(monkeypatch):
    whole = bundled_metatask()
    rows = [row for row, task in enumerate(whole.tasks) if task.family == "sources"][:6]
    part = whole.only(rows)
    monkeypatch.setattr(recommend.t2v, "bundled_metatask", lambda: part)
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
    assert all(row["over the best"] >= -1e-9 and 0 < row["p average-best"] <= 1 for row in table)
    # `evaluate` has the same figures if it is asked for the same tasks and models.
    found = evaluate(part.only(range(6), candidates), ["measured"], shots="half", leave="dataset", resamples=2)
    assert found.datasets == tuple(datasets)
    gaps = found.outcomes["measured"].errors - part.select("half").halves[:, best, 0].mean((1, 2))
    wanted = 100 * np.mean([gaps[datasets == one].mean() for one in dict.fromkeys(datasets)])
    assert lines["smallest measured error"]["over average-best"] == pytest.approx(wanted)


def test_intervals_are_judged_on_the_same_images_and_on_new_ones(monkeypatch):
    whole, asked = bundled_metatask(), []
    part = whole.only([row for row, task in enumerate(whole.tasks) if task.family == "sources"][:6])
    monkeypatch.setattr(recommend.t2v, "bundled_metatask", lambda: part)

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
