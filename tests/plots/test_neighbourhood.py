"""Neighbourhood curves against a slow one that tries every order, and their area."""

import csv

import numpy as np
import pytest

from task2vec.atlas import curve_area, draw_neighbourhoods, neighbourhood_curve
from task2vec.errors import UsageError
from tests.atlas.spaces import make_space, measure
from tests.oracles.slow_neighbourhood import slow_curve


def make_taxonomy(count=12):
    """Tasks in threes (distance 2), threes in sixes (4), everything else 8."""
    number = np.arange(count)
    taxa = np.where(
        np.equal.outer(number // 3, number // 3), 2.0, np.where(np.equal.outer(number // 6, number // 6), 4, 8)
    )
    return taxa * (1 - np.eye(count))


@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_slow_curve_with_ties_and_without_symmetry(seed):
    rng = np.random.default_rng(seed)
    distances = rng.integers(0, 3, (6, 6)).astype(float)
    taxa = rng.random((6, 6))
    np.testing.assert_allclose(neighbourhood_curve(distances, taxa), slow_curve(distances, taxa), atol=1e-12)


def test_the_own_task_is_no_neighbour():
    distances = np.array([[5.0, 1, 2], [1, 5, 2], [2, 1, 5]])
    taxa = np.array([[99.0, 1, 2], [1, 99, 2], [2, 1, 99]])
    np.testing.assert_allclose(neighbourhood_curve(distances, taxa), [1, 1.5])


def test_nothing_lies_below_the_best_curve_and_all_meet_at_the_end():
    taxa = make_taxonomy()
    best = neighbourhood_curve(taxa, taxa)
    for seed in range(5):
        curve = neighbourhood_curve(measure(np.random.default_rng(seed).random((12, 3))), taxa)
        assert (curve >= best - 1e-12).all()
        assert curve[-1] == pytest.approx(taxa[~np.eye(12, dtype=bool)].mean())


def test_the_area_is_one_at_best_zero_at_random_and_below_at_worst():
    taxa = make_taxonomy()
    assert curve_area(taxa, taxa) == pytest.approx(1)
    assert curve_area(np.ones((12, 12)), taxa) == pytest.approx(0, abs=1e-12)
    assert curve_area(-taxa, taxa) < -0.1
    chance = [curve_area(np.random.default_rng(seed).random((12, 12)), taxa) for seed in range(200)]
    assert abs(np.mean(chance)) < 0.05


def test_the_area_by_hand():
    # Two tasks of one taxon and one of another: the best curve is (2 + 2 + 8) / 3 = 4, then 6; this one goes 6, 6 (for
    # the pair the stranger comes first: 8, 5; for the stranger 8, 8: 8, 6). So -2 of a possible 2.
    taxa = np.array([[0, 2, 8], [2, 0, 8], [8, 8, 0.0]])
    worst = np.array([[0, 9, 1], [9, 0, 1], [1, 1, 0.0]])
    np.testing.assert_allclose(neighbourhood_curve(worst, taxa), [8, 6])
    assert curve_area(worst, taxa) == pytest.approx(-1)


def test_the_picture_and_its_numbers(tmp_path, coarse):
    taxa = make_taxonomy()
    space, _ = make_space(12)
    files = draw_neighbourhoods({"task2vec": space, "$cosine_": taxa}, taxa, out=tmp_path / "curve.v1", most=5)
    assert [file.name for file in files] == ["curve.v1.png", "curve.v1.pdf", "curve.v1.csv"]
    assert [file.read_bytes()[:4] for file in files[:2]] == [b"\x89PNG", b"%PDF"]
    with files[2].open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["k"] for row in rows] == [str(k) for k in range(1, 12)]
    np.testing.assert_allclose([float(row["task2vec"]) for row in rows], neighbourhood_curve(space, taxa), rtol=1e-5)
    assert [row["$cosine_"] for row in rows] == [row["best possible"] for row in rows]
    assert len({row["random"] for row in rows}) == 1


def test_what_has_no_neighbourhoods_is_refused():
    with pytest.raises(UsageError, match="equally far"):
        curve_area(make_space(4)[0], np.ones((4, 4)))
    for distances, taxa in (
        (np.zeros((3, 3)), np.zeros((4, 4))),
        (np.zeros((1, 1)),) * 2,
        (np.full((2, 2), np.nan),) * 2,
    ):
        with pytest.raises(UsageError):
            neighbourhood_curve(distances, taxa)
