"""The transfer distance: its formula, who has seen what, correlations within tasks, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import task2vec as t2v
from experiments import transfer
from experiments.report import load_bundle
from tests.experiments.material import read_csv, run

SPACE = "resnet34 robust"
TASKS = ("cub_Icteridae", "flowers_Asterales", "dogs_toy")


@pytest.fixture(autouse=True)
def _few_samples(monkeypatch):
    monkeypatch.setattr(transfer, "RESAMPLES", 50)


@pytest.fixture(scope="module")
def world():
    """Three tasks that the generic network and nine experts were fine-tuned on, with two seeds."""
    whole = load_bundle(None)
    rows = [row for row, task in enumerate(whole.tasks) if task.name in TASKS]
    small = whole.only(rows, [0, 1, *range(6, 12), 40, 56, 61])
    names = ("distances", "trivial_distances", "norms", "embeddings")
    rng = np.random.default_rng(0)
    points = [
        {"expert": model.name, "task": task, "seed": seed, "error": float(rng.uniform(0.1, 0.9))}
        for model in small.models
        for task in TASKS
        for seed in (0, 1)
    ]
    return replace(small, info={"transfers": points}, **{name: {SPACE: getattr(small, name)[SPACE]} for name in names})


def find_error(world, expert, task):
    points = world.info["transfers"]
    return np.mean([point["error"] for point in points if (point["expert"], point["task"]) == (expert, task)])


def test_the_formula_and_the_distances(world, tmp_path):
    result = run(transfer.app, "--bundle", world.save(tmp_path / "small.safetensors"), "--out", tmp_path / "out")
    names = {"transfer.csv", "transfer_rho.csv", "transfer.md", "transfer.png"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names
    assert "| symmetric distance | " in result.stdout
    rows = read_csv(tmp_path / "out" / "transfer.csv")
    assert len(rows) == 9 * 3  # neither the generic network nor another pretrained one has a source task
    embeddings = dict(
        zip((task.name for task in (*world.tasks, *world.source_tasks)), world.embeddings[SPACE], strict=True)
    )
    for row in rows:
        loss, base = (find_error(world, expert, row["b"]) for expert in (row["expert"], "generic resnet34"))
        assert row["d_ft"] == pytest.approx((loss - base) / base, rel=1e-4)
        a, b = embeddings[row["a"]], embeddings[row["b"]]
        assert row["d_sym"] == pytest.approx(t2v.distance.symmetric(a, b), rel=1e-3, abs=1e-6)
        assert row["d_asym"] == pytest.approx(t2v.distance.asymmetric(a, b), rel=1e-3, abs=1e-3)
        others = [each["d_ft"] for each in rows
                  if each["expert"] == row["expert"] and each["b"] != row["b"] and not each["seen"]]  # fmt: skip
        assert row["average"] == pytest.approx(np.mean(others), rel=1e-4, abs=1e-6)
    assert any(row["seen"] for row in rows if row["expert"] == "cub200 half A") != any(
        row["seen"] for row in rows if row["expert"] == "cub200 half B"
    )  # a taxon is in one of the halves


def make_rows(slope, tasks=3, experts=12):
    """D_ft that follows the distance within tasks; across tasks it goes the other way."""
    rng = np.random.default_rng(1)
    rows = []
    for task in range(tasks):
        distances = rng.random(experts)
        for expert, distance in enumerate(distances):
            d_ft = slope * distance - 10 * slope * task + 0.01 * rng.random()
            row = {"expert": f"e{expert}", "b": f"t{task}", "d_ft": d_ft, "d_sym": distance + task, "seen": 0}
            rows.append(row | {"d_asym": rng.random(), "average": 0.5})
    return rows


def test_correlations_are_within_tasks():
    for slope in (1, -1):
        found = transfer.correlate_transfers(make_rows(slope), "d_sym")
        assert found["rho"] * slope > 0.95 and found["p"] == pytest.approx(1 / (1 + transfer.DRAWS), rel=1e-6)
        assert found["low"] <= found["rho"] <= found["high"] and (found["tasks"], found["pairs"]) == (3, 36)
    rows = make_rows(1)
    found = transfer.correlate_transfers(rows, "d_asym")
    for task, rho in found["by_task"].items():
        own = [row for row in rows if row["b"] == task]
        expected = stats.spearmanr([row["d_asym"] for row in own], [row["d_ft"] for row in own])[0]
        assert rho == pytest.approx(expected)
    assert found["rho"] == pytest.approx(np.mean(list(found["by_task"].values()))) and found["p"] > 0.05
    constant = transfer.correlate_transfers(rows, "average")
    assert (constant["rho"], constant["p"]) == (0, 1)


def test_p_is_that_of_all_permutations():
    rows = make_rows(1, tasks=1, experts=5)
    for row, d_ft in zip(sorted(rows, key=lambda row: row["d_sym"]), (1, 2, 4, 3, 5), strict=True):
        row["d_ft"] = d_ft
    found = transfer.correlate_transfers(rows, "d_sym")
    assert found["rho"] == pytest.approx(0.9)
    assert found["p"] == pytest.approx(2 * 5 / 120, abs=0.015)  # five orders have 0.9 or more, five -0.9 or less


def test_p_allows_for_experts_that_are_good_for_all_tasks(monkeypatch):
    """D_ft and the measure are mostly the expert's own, whatever the task, and have nothing to do with each other."""
    monkeypatch.setattr(transfer, "DRAWS", 400)
    monkeypatch.setattr(transfer, "RESAMPLES", 2)
    rng, found = np.random.default_rng(0), []
    for _ in range(120):
        quality, distance = rng.normal(size=(2, 30))
        rows = [
            {"expert": f"e{expert}", "b": f"t{task}", "seen": 0, "average": 0.5}
            | {"d_ft": quality[expert] + 0.2 * rng.normal(), "d_sym": distance[expert] + 0.2 * rng.normal()}
            for task in range(6)
            for expert in rng.choice(30, 25, replace=False)
        ]
        found.append(transfer.correlate_transfers(rows, "d_sym")["p"])
    assert 0.01 <= np.mean(np.array(found) < 0.05) <= 0.11  # 0.6 where each task is permuted by itself


def test_what_an_expert_has_seen_does_not_count():
    rows = make_rows(1)
    for row in rows[:4]:
        row |= {"seen": 1, "d_ft": 1e6}
    found = transfer.correlate_transfers(rows, "d_sym")
    assert found["pairs"] == 32 and found["rho"] > 0.95
    for row in rows:
        row["seen"] = 1
    assert transfer.correlate_transfers(rows, "d_sym")["rho"] is None
    assert "| - | - |" in transfer.format_transfers([transfer.correlate_transfers(rows, "d_sym")])


def test_what_is_missing_is_said(world, tmp_path):
    bare = replace(world, info={}).save(tmp_path / "bare.safetensors")
    result = run(transfer.app, "--bundle", bare, "--out", tmp_path, code=3)
    assert "python -m experiments.metatask.build" in result.stderr
    points = [point for point in world.info["transfers"] if point["expert"] != "generic resnet34"]
    with pytest.raises(t2v.errors.DataError, match="nan: not measured"):
        transfer.list_transfers(world, points, SPACE)
