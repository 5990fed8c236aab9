"""Sketches keep the distances between tasks, as far as their basis goes, and say what they leave out."""

from dataclasses import replace

import numpy as np
import pytest

from task2vec.errors import LibraryError
from task2vec.library.rows import make_row
from task2vec.library.sketch import Sketcher, fit_sketcher
from tests.library.shelf import load_real


def make_vectors(tasks, *, rank=5, filters=300, seed=0, directions=0, noise=0.0, size=0.5):
    rng = np.random.default_rng(seed)
    basis = np.random.default_rng(directions).normal(size=(rank, filters))
    logs = size * rng.normal(size=(tasks, rank)) @ basis + noise * rng.normal(size=(tasks, filters))
    return np.exp(logs).astype(np.float32)


def centred(vectors):
    logs = np.log(np.abs(vectors.astype(np.float64)))
    return logs - logs.mean(1, keepdims=True)


def test_squared_distances_are_mean_squares_of_centred_logs():
    vectors = make_vectors(80, size=0.2)
    sketches = fit_sketcher(vectors, size=8, principal=8).project(vectors)
    expected = np.square(centred(vectors)[3] - centred(vectors)[9]).mean()
    assert np.square(sketches[3, :-2] - sketches[9, :-2]).sum() == pytest.approx(expected, rel=1e-4)


def test_random_directions_stand_for_what_the_principal_ones_leave_out():
    vectors = make_vectors(60, rank=40, size=0.1, filters=2000)
    sketcher = fit_sketcher(vectors, size=400, principal=3)
    assert sketcher.principal.shape == (2000, 3) and sketcher.random.shape == (2000, 397)
    sketches, logs = sketcher.project(vectors), centred(vectors)
    for one, other in ((3, 9), (10, 50), (0, 1)):
        apart = logs[one] - logs[other]
        held = np.square(sketches[one, :3] - sketches[other, :3]).sum()
        rest = np.square(sketches[one, 3:-2] - sketches[other, 3:-2]).sum()
        assert rest == pytest.approx(0.7 * (np.square(apart).mean() - held), rel=0.2)


def test_the_directions_are_orthogonal():
    sketcher = fit_sketcher(make_vectors(100, rank=20, size=0.1), size=30, principal=6)
    every = np.concatenate([sketcher.principal, sketcher.random], axis=1).astype(float)
    gram = every.T @ every
    assert gram == pytest.approx(np.diag(np.diag(gram)), abs=1e-3)
    assert np.diag(gram)[:6] == pytest.approx(np.ones(6), abs=1e-4)
    assert np.diag(gram)[6:] == pytest.approx(np.full(24, 0.7 * 294 / 24), rel=1e-4)


def test_a_common_factor_changes_the_level_alone():
    vectors = make_vectors(60)
    sketcher = fit_sketcher(vectors, size=6)
    one, larger = sketcher.project(vectors), sketcher.project(vectors * np.float32(1e6))
    assert larger[:, :-1] == pytest.approx(one[:, :-1], abs=1e-4)
    assert larger[:, -1] - one[:, -1] == pytest.approx(np.full(60, np.log(1e6)), abs=1e-4)


def test_the_prior_of_a_dead_filter_says_nothing():
    vectors = make_vectors(60)
    vectors[:, :50] *= np.where(np.random.default_rng(0).random((60, 50)) < 0.5, -1, 1).astype(np.float32)
    sketcher = fit_sketcher(vectors, size=6)
    other = np.where(vectors < 0, np.float32(1e-9) * vectors, vectors)
    assert np.array_equal(sketcher.project(other), sketcher.project(vectors))
    assert np.array_equal(fit_sketcher(other, size=6).mean, sketcher.mean)
    alive = np.abs(vectors)
    assert np.abs(sketcher.project(alive) - sketcher.project(vectors)).max() > 0.05  # that it is dead says something


def test_a_task_without_anything_alive_has_a_sketch():
    vectors = make_vectors(60)
    sketch = fit_sketcher(vectors, size=6).project(-vectors[:1] / vectors[:1] * np.float32(1e-5))
    assert np.isfinite(sketch).all()
    assert sketch[0, -1] == pytest.approx(np.log(1e-5), rel=1e-5)


def test_one_outlying_filter_does_not_carry_a_task_away():
    vectors = make_vectors(60, size=0.2)
    sketcher = fit_sketcher(vectors, size=6)
    far, farther = vectors[:1].copy(), vectors[:1].copy()
    far[0, 7] *= 1e6
    farther[0, 7] *= 1e12
    moved = np.abs(sketcher.project(far) - sketcher.project(vectors[:1])).max()
    assert np.abs(sketcher.project(farther) - sketcher.project(far)).max() < 0.2
    assert moved < 0.3


def test_what_the_principal_directions_leave_out_is_kept():
    vectors = make_vectors(200, noise=0.1)
    sketcher = fit_sketcher(vectors, size=9, principal=5)
    parts, basis = np.clip(centred(vectors) - sketcher.mean, -2.5, 2.5), sketcher.principal.astype(float)
    left = parts - parts @ basis @ basis.T
    sketches = sketcher.project(vectors)
    assert sketches[:, -2] == pytest.approx(np.sqrt(np.square(left).mean(1)), rel=1e-3)
    expected = 1 - np.square(left).sum(1) / np.square(parts).sum(1)
    assert sketcher.explained(sketches) == pytest.approx(expected, abs=1e-3)


def test_strangers_are_badly_explained():
    sketcher = fit_sketcher(make_vectors(200, size=0.2), size=16, principal=10)
    tasks = [make_vectors(50, seed=1, size=0.2, directions=directions) for directions in (0, 1)]
    old, new = (sketcher.explained(sketcher.project(some)) for some in tasks)
    assert old.min() > 0.99
    assert new.max() < 0.3


def test_directions_that_the_sample_does_not_have_are_drawn():
    sketcher = fit_sketcher(make_vectors(100, size=0.1), size=24, principal=20)
    assert 5 <= sketcher.principal.shape[1] < 12  # the rank, and what clipping adds
    assert sketcher.width == 26
    few = fit_sketcher(make_vectors(100, filters=10), size=24, principal=6)
    assert few.width == 12  # no more directions than filters


def test_equal_tasks_have_equal_sketches_of_nothing():
    vectors = np.repeat(make_vectors(1), 5, axis=0)
    sketches = fit_sketcher(vectors, size=4).project(vectors)
    assert np.isfinite(sketches).all()
    assert np.abs(sketches[:, :-1]).max() < 1e-5


def test_vectors_of_any_size_can_be_sketched():
    vectors = make_vectors(50).astype(np.float64)
    sketcher = fit_sketcher(vectors.astype(np.float32), size=6)
    vast, plain = sketcher.project(vectors * 1e200), sketcher.project(vectors)
    assert vast[:, :-1] == pytest.approx(plain[:, :-1], abs=1e-4)


def test_projecting_many_is_projecting_each():
    vectors = make_vectors(150)
    sketcher = fit_sketcher(vectors, size=6)
    alone = np.concatenate([sketcher.project(one[None]) for one in vectors])
    assert sketcher.project(vectors) == pytest.approx(alone, abs=1e-5)


def test_real_tasks_are_explained_by_each_other():
    held = np.stack([make_row(one) for one in load_real()])
    sketcher = fit_sketcher(held, principal=len(held))
    assert sketcher.explained(sketcher.project(held)).min() > 0.999
    few = fit_sketcher(held)
    assert 0.8 < few.explained(few.project(held)).min() < 0.999


def test_a_basis_comes_back():
    sketcher = fit_sketcher(make_vectors(40), size=4)
    again = Sketcher.from_bytes(sketcher.to_bytes())
    for name in ("mean", "principal", "random"):
        assert np.array_equal(getattr(again, name), getattr(sketcher, name))


def spoil(sketcher, way):
    content, mean = sketcher.to_bytes(), sketcher.mean
    spoiled = {
        "empty": b"",
        "garbage": b"\x80\x04}." * 20,
        "cut": content[:-5],
        "header": content[:9] + b"\xff" + content[10:],
        "other": replace(sketcher, mean=mean.astype(np.float64)).to_bytes(),
        "shape": replace(sketcher, mean=mean[:-1]).to_bytes(),
        "nan": replace(sketcher, principal=sketcher.principal * np.float32("nan")).to_bytes(),
    }
    return spoiled[way]


@pytest.mark.parametrize("way", ["empty", "garbage", "cut", "header", "other", "shape", "nan"])
def test_a_damaged_basis_is_refused(way):
    with pytest.raises(LibraryError, match=r"basis of the sketches is damaged.*task2vec library check-search --refit"):
        Sketcher.from_bytes(spoil(fit_sketcher(make_vectors(40), size=4), way))
