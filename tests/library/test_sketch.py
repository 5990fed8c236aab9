"""Sketches keep the distances between tasks, as far as their basis goes, and say what they leave out."""

import numpy as np
import pytest

from task2vec.errors import LibraryError
from task2vec.library.rows import make_row
from task2vec.library.sketch import Sketcher, explained, fit_sketcher
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
    sketches = fit_sketcher(vectors, size=8).project(vectors)
    one, other = sketches[3, :-2], sketches[9, :-2]
    expected = np.square(centred(vectors)[3] - centred(vectors)[9]).mean()
    assert np.square(one - other).sum() == pytest.approx(expected, rel=1e-4)


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


def test_what_the_basis_leaves_out_is_kept():
    vectors = make_vectors(200, noise=0.1)
    sketcher = fit_sketcher(vectors, size=5)
    parts = np.clip(centred(vectors) - sketcher.mean, -2.5, 2.5)
    left = parts - parts @ sketcher.basis.astype(float) @ sketcher.basis.T.astype(float)
    assert sketcher.project(vectors)[:, -2] == pytest.approx(np.sqrt(np.square(left).mean(1)), rel=1e-3)


def test_strangers_are_badly_explained():
    sketcher = fit_sketcher(make_vectors(200, size=0.2), size=10)
    old, new = (explained(sketcher.project(make_vectors(50, seed=1, size=0.2, directions=d))) for d in (0, 1))
    assert old.min() > 0.99
    assert new.max() < 0.3


def test_the_basis_is_orthonormal_and_ends_with_zeros():
    basis = fit_sketcher(make_vectors(100, size=0.1), size=12).basis.astype(float)
    gram = basis.T @ basis
    real = int(np.round(np.trace(gram)))
    assert 5 <= real < 12
    assert gram[:real, :real] == pytest.approx(np.eye(real), abs=1e-4)
    assert not basis[:, real:].any()


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
    assert explained(fit_sketcher(held).project(held)).min() > 0.999


def test_a_basis_comes_back():
    sketcher = fit_sketcher(make_vectors(40), size=4)
    again = Sketcher.from_bytes(sketcher.to_bytes())
    assert np.array_equal(again.mean, sketcher.mean) and np.array_equal(again.basis, sketcher.basis)


def spoil(sketcher, way):
    content = sketcher.to_bytes()
    spoiled = {
        "empty": b"",
        "garbage": b"\x80\x04}." * 20,
        "cut": content[:-5],
        "header": content[:9] + b"\xff" + content[10:],
        "other": Sketcher(sketcher.mean.astype(np.float64), sketcher.basis).to_bytes(),
        "shape": Sketcher(sketcher.mean[:-1], sketcher.basis).to_bytes(),
        "nan": Sketcher(sketcher.mean * np.float32("nan"), sketcher.basis).to_bytes(),
    }
    return spoiled[way]


@pytest.mark.parametrize("way", ["empty", "garbage", "cut", "header", "other", "shape", "nan"])
def test_a_damaged_basis_is_refused(way):
    with pytest.raises(LibraryError, match=r"basis of the sketches is damaged.*task2vec library check-search --refit"):
        Sketcher.from_bytes(spoil(fit_sketcher(make_vectors(40), size=4), way))
