"""Norm against error, and neighbourhood curves: the numbers in their tables, and the area by its definition."""

import numpy as np
import pytest

from experiments.figures import curve_area, draw_neighbourhoods, draw_norms, neighbourhood_curve
from tests.experiments.material import read_csv
from tests.oracles.distances import slow_curve
from tests.plots.spaces import make_space


def test_the_curve_is_the_slow_one_and_its_area_one_at_best_zero_at_random_and_below_at_worst(tmp_path):
    rng = np.random.default_rng(0)
    distances, taxa = rng.integers(0, 3, (6, 6)).astype(float), rng.random((6, 6))  # ties, and no symmetry
    np.testing.assert_allclose(neighbourhood_curve(distances, taxa), slow_curve(distances, taxa), atol=1e-12)
    taxa = np.array([[0, 2, 8], [2, 0, 8], [8, 8, 0.0]])
    assert curve_area(np.ones((3, 3)), taxa) == pytest.approx(0, abs=1e-12)
    # By hand: the best curve is (2 + 2 + 8) / 3 = 4, then 6; this one is 8, 6. So -2 of a possible 2.
    worst = np.array([[0, 9, 1], [9, 0, 1], [1, 1, 0.0]])
    np.testing.assert_allclose(neighbourhood_curve(worst, taxa), [8, 6])
    assert curve_area(worst, taxa) == pytest.approx(-1)
    taxa, (space, _) = make_space(12, seed=5)[0], make_space(12)
    files = draw_neighbourhoods({"task2vec": space, "$cosine_": taxa}, taxa, out=tmp_path / "curve.v1")
    assert [file.name for file in files] == ["curve.v1.png", "curve.v1.pdf", "curve.v1.csv"]
    rows = read_csv(files[2])
    np.testing.assert_allclose([row["task2vec"] for row in rows], neighbourhood_curve(space, taxa), rtol=1e-5)
    assert [row["$cosine_"] for row in rows] == [row["best possible"] for row in rows]


def test_a_norm_far_below_the_others_is_at_the_edge_with_its_number():
    rows = [{"family": "f", "dataset": f"d{n}", "norm": n + 1.0, "error": n / 10} for n in range(10)]
    rows[4]["norm"] = 1e-9
    (axes,) = draw_norms(rows, ["norm"], error="error", what="error").axes
    np.testing.assert_allclose([dots.get_offsets()[0, 1] for dots in axes.collections], range(0, 100, 10))
    assert axes.get_xlim()[0] > 1e-3 and [text.get_text() for text in axes.texts] == ["‹ 1e-09"]
