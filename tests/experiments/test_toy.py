"""The toy experiment: closed formulas, a domain embedding that cannot see labels, neighbours that are similar."""

import numpy as np
import pytest
import torch
from PIL import Image

import task2vec as t2v
from experiments import toy
from task2vec.head import fit_head
from task2vec.tasks import draw_partitions
from tests.experiments.material import ROOT, read_csv, run

SIDE, COUNT = 10, 8
PROBES = [toy.make_random_probe(side=SIDE, seed=0), toy.make_polynomial_probe(side=SIDE)]


def compute_features(points, probe):
    """Features and the squared derivative of each with respect to its filter's weights, mean over them, in numpy."""
    if probe is PROBES[0]:
        weights = probe.network.features.weight.double().numpy()[:, :, 0, 0]
        before = points @ weights.T
        return np.maximum(before, 0), (before > 0) * np.square(points).mean(axis=1, keepdims=True)
    x, y = points[:, 0], points[:, 1]
    monomials = np.stack([x, y, x**2, x * y, y**2, x**3, x**2 * y, x * y**2, y**3], axis=1)
    return monomials, np.square(monomials)


@pytest.mark.parametrize("probe", PROBES, ids=["ReLU", "polynomial"])
def test_embed_agrees_with_the_closed_formula(probe):
    task = t2v.toy_tasks(count=2, side=SIDE)[1].canonical()
    pixels = np.array([np.asarray(task.images.load(number))[0, 0] for number in range(len(task))], dtype=float)
    features, squares = compute_features(pixels / (SIDE - 1, SIDE - 1, 255), probe)
    head = fit_head(torch.from_numpy(features), torch.tensor(task.targets), classes=2, l2=toy.L2)
    w = (head.weight[1] - head.weight[0]).numpy()
    p = 1 / (1 + np.exp(-(features @ w + float(head.bias[1] - head.bias[0]))))
    balanced = np.where(task.targets == 1, 0.5 / (task.targets == 1).sum(), 0.5 / (task.targets == 0).sum())
    found = t2v.embed(task, probe, settings=toy.SETTINGS)
    assert np.allclose(found.fisher, w**2 * ((balanced * p * (1 - p)) @ squares), rtol=1e-6, atol=1e-15)
    assert found.fisher.max() > 1e-3 and found.provenance["counts"]["backpropagated"] == len(task)


def test_the_probes_are_those_of_the_paper():
    probes = [toy.make_random_probe(side=SIDE, seed=seed) for seed in range(20)]
    weights = torch.cat([probe.network.features.weight[:, :, 0, 0] for probe in probes])
    for column, bound in zip(weights.T, (0.5, 0.5, 1.0), strict=True):
        assert bound > float(column.abs().max()) > 0.95 * bound
        assert float(column.std()) == pytest.approx(bound / 3**0.5, rel=0.1)
    assert sorted(toy.POWERS) == sorted((i, j) for i in range(4) for j in range(4) if 1 <= i + j <= 3)
    # On a finer grid the same pixel is another point: embeddings must not be compared.
    assert toy.make_random_probe(side=SIDE + 1, seed=0).fingerprint != probes[0].fingerprint


def test_measures_by_hand():
    similarity = np.array([[1.0, 0.8, 0.2], [0.8, 1.0, 0.4], [0.2, 0.4, 1.0]])
    distances = np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 3.0], [2.0, 3.0, 0.0]])
    measures = toy.measure_space(distances, np.zeros((3, 3)), similarity)
    assert measures["random"] == measures["domain"] == pytest.approx(1.4 / 3)
    assert measures["nearest"] == pytest.approx((0.8 + 0.8 + 0.2) / 3)
    assert measures["best"] == pytest.approx((0.8 + 0.8 + 0.4) / 3)


def test_the_command_writes_figure_and_tables(tmp_path, monkeypatch):
    monkeypatch.setattr(toy, "STARTS", 1)
    result = run(toy.app, "--out", tmp_path / "new", "--seeds", 1, "--seed", 3, "--count", COUNT, "--side", SIDE)
    assert "polynomial   nearest   " in result.stdout and "embedding 8 tasks by polynomial features" in result.stderr
    rows = read_csv(tmp_path / "new" / "toy_neighbours.csv")
    assert [(row["seed"], row["probe"]) for row in rows] == [(3, "ReLU"), (3, "polynomial")]
    with Image.open(tmp_path / "new" / "toy.png") as picture:
        assert picture.width > 150


def test_one_seed_of_the_committed_table_comes_out_again():
    wanted = [row for row in read_csv(ROOT / "docs" / "measured" / "toy_neighbours.csv") if row["seed"] == 0]
    regions = np.stack([cut.is_positive for cut in draw_partitions(count=64, side=16, seed=0)])
    blank = np.zeros((64, 64))
    found = toy.measure_space(blank, blank, toy.region_similarity(regions))
    for row in wanted:
        assert all(float(f"{found[key]:.6g}") == row[key] for key in ("random", "best"))
