"""Our meta-task: who has seen what, statistics of pixels, and what it is worth; each number against a plain one."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import task2vec as t2v
from experiments.collection import Dataset
from experiments.metatask import plan
from experiments.metatask.quality import judge, write_results
from experiments.report import load_bundle
from task2vec.metatask import ModelInfo, TaskInfo
from tests.experiments.material import ROOT
from tests.select.material import HALF

COMMITTED = ROOT / "docs" / "results" / "metatask"
NOISE = np.random.default_rng(0).integers(60, 190, (64, 64, 3)).astype(float)
WHOLE = replace(t2v.sample_tasks(images_per_task=100)[0].select(["0", "1", "2", "3", "4"]), classes=tuple("abcde"))


def define(label_set, classes, *, family="labels", dataset="birds"):
    return plan.PlannedTask(family, dataset, replace(WHOLE.select(classes), name=label_set), label_set)


def test_labels_in_common():
    for one, other, wanted in (
        ("hue", "hue", True),  # the same label set of other pictures
        ("hue", "grain", False),
        ("species", "family", True),  # nested: who knows one knows the other
        ("hue", "species", False),
    ):
        assert plan.share_labels(define(one, ["a", "b"]), define(other, ["c", "d"])) is wanted
    task = define("x", ["a", "b"], family="taxa")
    for classes, dataset, wanted in ((["b", "c"], "birds", True), (["c", "d"], "birds", False), (["b"], "dogs", False)):
        source = define("y", [*classes, "e"], family="taxa", dataset=dataset)
        assert plan.share_labels(task, source) is wanted


def test_no_task_has_classes_in_both_halves():
    tasks = [define(names, list(names), family="taxa") for names in ("ab", "cd")]
    whole = Dataset(replace(WHOLE, name="birds"), (), Path())
    halves = [set(half.task.classes) for half in plan._halve(whole, tasks)]
    assert halves[0] | halves[1] == set("abcde") and not halves[0] & halves[1]
    assert all(any(set(one.task.classes) <= half for half in halves) for one in tasks)


def stripes(angle, period=8, side=64):
    """Parallel stripes whose direction of change is `angle` degrees from the horizontal."""
    rows, columns = np.mgrid[:side, :side]
    wave = np.cos(2 * np.pi * (columns * np.cos(np.deg2rad(angle)) + rows * np.sin(np.deg2rad(angle))) / period)
    return np.repeat((127 + 100 * wave)[..., None], 3, axis=2)


def plain(red, green, blue, side=64):
    return np.ones((side, side, 3)) * [red, green, blue]


@pytest.mark.parametrize(
    ("statistic", "less", "more"),
    [
        ("brightness", NOISE, NOISE + 30),
        ("contrast", NOISE * 0.5 + 60, NOISE),
        ("saturation", plain(100, 100, 100), plain(200, 100, 20)),
        ("warmth", plain(20, 100, 200), plain(200, 100, 20)),
        ("sharpness", NOISE * 0.3 + 80, NOISE),
        ("grain", stripes(0, period=32), stripes(0, period=6)),
        ("parallelism", NOISE, stripes(30)),
        ("symmetry", np.linspace(0, 255, 64)[None, :, None] * np.ones((64, 1, 3)), plain(9, 9, 9)),
    ],
)
def test_a_statistic_moves_with_its_name(statistic, less, more):
    assert plan.describe_picture(less)[statistic] < plan.describe_picture(more)[statistic]
    assert tuple(plan.describe_picture(less)) == plan.STATISTICS


def test_directions_hues_and_positions_have_their_names():
    for angle in (0, 45, 90, 135):
        found = plan.describe_picture(stripes(angle))["direction"]
        assert min(abs(found - angle), 180 - abs(found - angle)) < 3
        assert plan.label_statistic({"direction": np.array([found])}, "direction")[0][0] == angle // 45
    colours = [(200, 30, 30), (200, 120, 20), (200, 190, 20), (30, 180, 40), (30, 60, 200), (180, 30, 200)]
    hues = np.array([plan.describe_picture(plain(*colour))["hue"] for colour in colours])
    labels, names = plan.label_statistic({"hue": hues}, "hue")
    told = ["red or violet", "orange", "yellow", "green", "blue", "red or violet"]
    assert [names[label] for label in labels] == told
    picture = plain(100, 100, 100)
    picture[8:20, 40:60] = NOISE[8:20, 40:60]
    found = plan.describe_picture(picture)
    assert found["left to right"] > 0.6 and found["top to bottom"] < 0.4


def make_metatask(means, noise):
    """Errors around given means; the first expert is the generic one."""
    models = (ModelInfo("r", "generic"), *(ModelInfo(f"e{number}") for number in range(1, means.shape[1])))
    halves = means[:, :, None, None] + 2**0.5 * noise * np.random.default_rng(0).normal(size=(*means.shape, 5, 2))
    tasks = tuple(TaskInfo(f"task {number}", "taxa", "set", f"task {number}", 100) for number in range(len(means)))
    seen = np.zeros(means.shape)
    errors = halves.mean(3)[:, :, None]
    more = {"shares_images": seen, "shares_labels": seen > 0, "halves": halves[:, :, None]}
    return t2v.MetaTask("small", tasks, models, (HALF,), tuple(range(5)), *[errors] * 3, **more)


def test_the_optimum_of_noisy_cells_is_biased_and_the_other_is_not_and_a_better_expert_is_found():
    row = judge(make_metatask(np.full((200, 20), 0.5), 0.05), "taxa", 0)
    assert abs(row["optimum"] - 50) < 0.5 and row["biased_optimum"] < 47  # nothing is better than anything else
    assert abs(row["noise"] - 5) < 0.2 and abs(row["chance"] - 50) < 0.5 and row["beaten"] <= 0.05 * 200

    means = np.full((40, 4), 0.5)
    means[:10, 2] = 0.3
    row = judge(make_metatask(means, 0.01), "taxa", 0)
    assert 10 <= row["beaten"] <= 12 and row["optimum"] == pytest.approx(45, abs=0.5)
    means = np.array([[0.5, 0.4, 0.1], [0.5, 0.4, 0.6], [0.5, 0.4, 0.6], [0.5, 0.4, 0.6]])
    centred = means - means.mean(1, keepdims=True)
    best = [means[row, np.delete(centred, row, 0).mean(0).argmin()] for row in range(4)]
    assert judge(make_metatask(means, 0.0), "taxa", 0)["average_best"] == pytest.approx(100 * np.mean(best))
    seen = replace(make_metatask(np.array([[0.5, 0.1]] * 2), 0.0), shares_images=np.array([[0.0, 1.0], [0.0, 0.0]]))
    assert judge(seen, "taxa", 0)["optimum"] == pytest.approx(30) and judge(seen, "taxa", 0)["experts"] == 1.5


def test_the_committed_tables_come_out_again(tmp_path):
    write_results(load_bundle(None).subset(family="taxa", repeats=True), tmp_path)
    for name in ("experts", "quality", "winners", "halves"):
        lines, committed = ((folder / f"{name}.csv").read_text().splitlines() for folder in (tmp_path, COMMITTED))
        assert lines[0] == committed[0] and len(lines) > 2 and set(lines) <= set(committed)
    # The next matrix has experts by one recipe alone.
    write_results(load_bundle(None).subset(family="taxa"), tmp_path)
    assert (tmp_path / "halves.csv").read_text().splitlines() == lines[:5]
