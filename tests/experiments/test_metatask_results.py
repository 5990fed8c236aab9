"""What a meta-task is worth: each number against a loop, and luck is not taken for gain."""

import csv
from dataclasses import replace

import numpy as np
import pytest

from experiments.metatask_plan import GENERIC
from experiments.metatask_quality import compare_halves, compare_recipes, compare_ways, count_winners, judge
from experiments.metatask_results import write_errors
from task2vec.experts.metatask import MetaTask, ModelInfo, TaskInfo


def make_metatask(means, noise, *, seeds=5, seed=0, repeats=0):
    """Errors around given means; the first expert is the generic one, the last ones repeat those after it."""
    rng = np.random.default_rng(seed)
    tasks, experts = means.shape
    errors = means[:, :, None, None] + noise * rng.normal(size=(tasks, experts, 1, seeds))
    names = [GENERIC, *(f"e{n}" for n in range(1, experts - repeats))]
    told = [ModelInfo(name, "taxon", "net") for name in names]
    told += [ModelInfo(f"e{n + 1} (second seed)", "taxon", "net", is_repeat=True) for n in range(repeats)]
    nothing = np.zeros((tasks, experts))
    return MetaTask(
        "m",
        tuple(TaskInfo(f"t{n}", "taxa", "d", str(n), 9, 3) for n in range(tasks)),
        tuple(told),
        ("linear-1, train half, logistic, usual",),
        tuple(range(seeds)),
        errors,
        errors,
        errors,
        nothing,
        nothing.astype(bool),
    )


def test_the_optimum_over_noisy_cells_is_biased_and_the_honest_one_is_not():
    metatask = make_metatask(np.full((200, 20), 0.5), 0.05)
    quality = judge(metatask, "taxa", 0)
    assert abs(quality.optimum - 50) < 0.5  # nothing is better than anything else
    assert quality.biased_optimum < 47
    assert abs(quality.noise - 5) < 0.2 and abs(quality.generic - 50) < 1 and abs(quality.chance - 50) < 0.5
    assert quality.beaten <= 0.05 * 200


def test_luck_with_an_image_is_not_taken_for_skill_where_halves_are_known():
    rng = np.random.default_rng(1)
    tasks, experts, seeds = 100, 20, 5
    luck = 0.05 * rng.normal(size=(tasks, experts, 2))  # with the images of each half, whatever the split
    halves = 0.5 + luck[:, :, None, None] + 0.01 * rng.normal(size=(tasks, experts, 1, seeds, 2))
    metatask = replace(make_metatask(np.full((tasks, experts), 0.5), 0.0), errors=halves.mean(4), halves=halves)
    quality = judge(metatask, "taxa", 0)
    assert abs(quality.optimum - 50) < 0.6
    assert quality.by_seeds < 46


def test_a_better_expert_is_found_where_there_is_one():
    means = np.full((40, 4), 0.5)
    means[:10, 2] = 0.3
    quality = judge(make_metatask(means, 0.01), "taxa", 0)
    assert 10 <= quality.beaten <= 12
    assert quality.optimum == pytest.approx(45, abs=0.5)


def test_the_static_choice_ignores_the_task_at_hand():
    means = np.array([[0.5, 0.4, 0.1], [0.5, 0.4, 0.6], [0.5, 0.4, 0.6], [0.5, 0.4, 0.6]])
    metatask = make_metatask(means, 0.0)
    # For the first task the others speak for the second expert; for the others the first one speaks for the third.
    centred = means - means.mean(1, keepdims=True)
    wanted = [means[row, np.delete(centred, row, 0).mean(0).argmin()] for row in range(4)]
    assert wanted[0] == 0.4
    assert judge(metatask, "taxa", 0).static == pytest.approx(100 * np.mean(wanted))


def test_experts_that_saw_a_task_are_no_candidates():
    means = np.array([[0.5, 0.1], [0.5, 0.1]])
    metatask = make_metatask(means, 0.0)
    seen = np.array([[0.0, 1.0], [0.0, 0.0]])
    quality = judge(replace(metatask, shares_images=seen), "taxa", 0)
    assert quality.optimum == pytest.approx(100 * (0.5 + 0.1) / 2) and quality.experts == 1.5


def test_trainings_are_compared_with_their_repeats():
    means = np.full((300, 5), 0.5)
    rng = np.random.default_rng(1)
    means[:, 1:] += 0.03 * rng.normal(size=(300, 4))
    quality = judge(make_metatask(means, 0.0, repeats=2), "taxa", 0)
    assert quality.retraining == pytest.approx(3, rel=0.1)


def test_the_matrix_as_csv(tmp_path):
    metatask = make_metatask(np.array([[0.5, 0.1], [0.25, 0.75]]), 0.02)
    with write_errors(metatask, tmp_path / "errors.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["task"], row["expert"]) for row in rows] == [(f"t{t}", e) for t in (0, 1) for e in (GENERIC, "e1")]
    for row, errors in zip(rows, metatask.errors[:, :, 0].reshape(4, 5), strict=True):
        assert float(row["mean"]) == pytest.approx(errors.mean(), abs=1e-4)
        assert float(row["low"]) < errors.mean() < float(row["high"])
        assert float(row["seed_3"]) == pytest.approx(errors[3], abs=1e-4)


def make_halves():
    """Two datasets of three tasks; each half knows the domain of its own dataset."""
    rng = np.random.default_rng(0)
    means = np.full((6, 5), 0.5)
    means[:3, 1], means[3:, 3] = 0.4, 0.45
    metatask = make_metatask(means, 0.0)
    few = np.concatenate([metatask.errors + 0.1 * (means[:, :, None, None] == 0.5), metatask.errors], axis=2)
    tasks = [replace(task, dataset="ab"[n // 3]) for n, task in enumerate(metatask.tasks)]
    names = [GENERIC, "a half A", "a half B", "b half A", "b half B"]
    kinds = ["generic", "half", "half", "half", "half"]
    experts = [replace(e, name=n, kind=k) for e, n, k in zip(metatask.experts, names, kinds, strict=True)]
    seen = np.zeros((6, 5))
    seen[:3, 2] = seen[3:, 4] = 1.0  # the other half has the task's own classes
    keys = ("linear-1, train 5, logistic, usual", "linear-1, train half, logistic, usual")
    arrays = {"errors": few, "low": few, "high": few, "shares_images": seen}
    few += 1e-6 * rng.random(few.shape)  # no two differences are the same
    return replace(metatask, tasks=tuple(tasks), experts=tuple(experts), protocols=keys, **arrays)


def test_halves_are_those_that_never_saw_the_classes():
    found = compare_halves(make_halves(), ["a"])
    assert (found.tasks, found.datasets) == (3, "a")
    assert found.gain_few == pytest.approx(20, abs=0.01) and found.gain_half == pytest.approx(10, abs=0.01)
    assert found.generic_few == pytest.approx(60, abs=0.01) and found.generic_half == pytest.approx(50, abs=0.01)
    both = compare_halves(make_halves(), ["a", "b"])
    assert both.tasks == 6 and both.gain_half == pytest.approx(7.5, abs=0.01)


def test_winners_are_counted_by_kind():
    generic, half = count_winners(make_halves(), "taxa", 1)
    assert (generic["kind"], generic["best"], half["best"], half["best alone"]) == ("generic", 0, 6, 6)
    assert generic["mean error"] == pytest.approx(50, abs=0.01)


def test_a_dataset_can_be_left_out():
    metatask = make_halves()
    assert judge(metatask, "taxa", 1, without="b").optimum == pytest.approx(40, abs=0.01)
    assert [task.dataset for task in metatask.only(without="b").tasks] == ["a"] * 3


def test_recipes_are_compared_on_tasks_that_nobody_has_seen():
    rng = np.random.default_rng(3)
    fast = rng.random((12, 4)) / 2
    means = np.concatenate([np.full((12, 1), 0.5), fast, rng.random((12, 4)) / 2, fast + 0.1], axis=1)
    metatask = make_metatask(means, 0.0)
    names = [GENERIC, *"abcd", *(f"{n} (second seed)" for n in "abcd"), *(f"{n} (achille2019)" for n in "abcd")]
    metatask = replace(
        metatask,
        experts=tuple(ModelInfo(name, "half", "net", is_repeat="(" in name) for name in names),
        shares_images=np.where(np.arange(12)[:, None] == 0, 1.0, np.zeros((12, 13))),  # the first task was seen by all
    )
    found = compare_recipes(metatask, "taxa", 0)
    assert found.experts == 4 and found.fast == pytest.approx(100 * fast[1:].mean())
    assert found.paper == pytest.approx(found.fast + 10) and found.p < 0.01
    assert found.alike == pytest.approx(1) and abs(found.by_seed) < 0.6


def test_frozen_and_tuned_are_compared_for_experts_that_have_not_seen_the_task():
    metatask = make_metatask(np.full((2, 3), 0.5), 0.0)
    metatask = replace(metatask, shares_images=np.array([[0, 0, 0.5], [0, 0, 0.0]]))  # the third saw the first task
    errors = {GENERIC: (0.3, 0.2), "e1": (0.1, 0.4), "e2": (0.1, 0.9)}
    curves = [
        {"task": "t0", "expert": name, "way": way, "train": "5", "images": 9, "seed": seed, "error": error + seed / 100}
        for name, both in errors.items()
        for way, error in zip(("linear", "tuned"), both, strict=True)
        for seed in (0, 1)
    ]
    (row,) = compare_ways(metatask, curves)
    assert (row["experts"], row["frozen"], row["tuned"]) == (2, 1, 1)
    assert row["generic, frozen"] == pytest.approx(30.5) and row["generic, tuned"] == pytest.approx(20.5)
