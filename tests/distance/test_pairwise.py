"""All pairs at once give what each pair gives by itself; the table works with NumPy, SciPy, scikit-learn, pandas."""

import csv
import importlib
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sklearn.neighbors import NearestNeighbors

from task2vec.distance import KINDS, Distance, DistanceMatrix, asymmetric, pairwise, pairwise_from_logs, symmetric
from task2vec.errors import DataError, ProbeMismatchError, SettingsMismatchError, UsageError
from tests.distance.material import make, make_many
from tests.failures import refuse

NAMES = sorted(KINDS)
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]

CROWDS = {
    "plain": {},
    "of different sizes": {"scales": 4.0},
    "some dead, different priors": {"dead": 0.05, "priors": 2.0},
    "mostly dead, different priors": {"dead": 0.9, "priors": 2.0},
    "wild and dead": {"spread": 25.0, "dead": 0.3, "priors": 3.0},
    "beyond float32": {"spread": 100.0, "scales": 100.0},
}


def one_by_one(rows, columns, kind):
    return np.array([[kind(a, b) for b in columns] for a in rows])


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks so small that few tasks need many."""
    module = importlib.import_module("task2vec.distance.pairwise")  # `task2vec.distance.pairwise` is the function
    for device in DEVICES:
        monkeypatch.setitem(module.NUMBERS_PER_BLOCK, device, 150)
    for name, size in (("FILTERS_PER_SUM", 20), ("ROWS_PER_GROUP", 4)):
        monkeypatch.setattr(module, name, size)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("name", "crowd"),
    [("symmetric", crowd) for crowd in CROWDS] + [(name, "wild and dead") for name in NAMES if name != "symmetric"],
)
def test_pairs_are_what_they_are_alone(name, crowd, device, small_blocks):
    tasks, kind = make_many(9, 50, **CROWDS[crowd]), KINDS[name]
    found = pairwise(tasks, name, device=device)
    expected = one_by_one(tasks, tasks, kind)
    assert found.kind == name and found.rows == found.columns == tuple(f"t{i}" for i in range(9))
    assert found.values == pytest.approx(expected, rel=1e-6, abs=1e-6)
    if kind.is_symmetric:
        assert np.array_equal(found.values, found.values.T)
    if name != "asymmetric":
        assert (np.diag(found.values) == 0).all() and (found.values >= 0).all() and (found.values <= kind.highest).all()
    part = pairwise(tasks[:4], name, others=tasks[4:], device=device)
    assert part.rows == found.rows[:4] and part.columns == found.rows[4:]
    assert part.values == pytest.approx(expected[:4, 4:], rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("crowd", ["of different sizes", "mostly dead, different priors"])
def test_single_precision_suffices_for_long_vectors(crowd):
    tasks = make_many(8, 8512, **CROWDS[crowd])
    assert np.abs(pairwise(tasks, device="cpu").values - one_by_one(tasks, tasks, symmetric)).max() < 1e-6


def test_the_quick_way_is_taken_where_it_can_be(monkeypatch):
    alone = []
    monkeypatch.setattr(Distance, "from_counted", lambda *pair: alone.append(pair) or 0)
    threads = torch.get_num_threads()
    tasks = make_many(10, 200, scales=4.0, dead=0.2, priors=2.0)
    pairwise(tasks, device="cpu")
    pairwise(tasks[:4], others=tasks[4:], device="cpu")
    assert not alone and torch.get_num_threads() == threads
    pairwise(make_many(10, 200, scales=11.0), device="cpu")
    assert alone


anything = st.one_of(st.just(0.0), st.floats(1e-300, 1e300), st.floats(1e-3, 1e3))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=6, deadline=None)
@given(st.data())
def test_extreme_tasks_too(name, data):
    shape = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 6)))
    fishers = data.draw(arrays.arrays(float, shape, elements=anything))
    levels = data.draw(arrays.arrays(float, shape[0], elements=st.sampled_from([1e-300, 1e-9, 1.0, 1e300])))
    tasks = [make(fisher, prior=level) for fisher, level in zip(fishers, levels, strict=True)]
    found = pairwise(tasks, name, device="cpu").values
    assert np.isfinite(found).all()
    assert found == pytest.approx(one_by_one(tasks, tasks, KINDS[name]), rel=1e-6, abs=1e-6)


@settings(max_examples=6, deadline=None)
@given(arrays.arrays(float, (4, 6), elements=st.floats(-690, 690)))
def test_copies_are_at_zero(logs):
    twice = np.concatenate([logs, logs])
    for name in set(NAMES) - {"asymmetric"}:
        found = pairwise_from_logs(twice, name, device="cpu")
        assert (np.diag(found, 4) == 0).all(), name


def test_asymmetric_rows_are_sources():
    tasks, mine = make_many(6, 40, scales=2.0, dead=0.1), replace(asymmetric, alpha=0.7)
    found = pairwise(tasks, mine, device="cpu").values
    assert found == pytest.approx(one_by_one(tasks, tasks, mine), abs=1e-6) and abs(found[1, 4] - found[4, 1]) > 1e-4


def test_what_does_not_belong_together_is_refused():
    a, logs = make([1.0, 2.0], task="birds"), np.zeros((2, 3))
    refuse(ProbeMismatchError, "task2vec embed --probe net", pairwise, [a, make([1.0], fingerprint="q")])
    refuse(SettingsMismatchError, "beta", pairwise, [a], others=[make([1.0, 2.0], beta=1.0)])
    refuse(UsageError, r"no distance called 'cosin'.*cosine", pairwise, [a], "cosin")
    refuse(UsageError, "empty", pairwise, [a], others=[])
    refuse(UsageError, "device 'nowhere'", pairwise, [a], device="nowhere")
    refuse(DataError, "NaN or infinity", pairwise_from_logs, np.log([[1.0, math.nan]]))
    refuse(DataError, r"shape \(3,\)", pairwise_from_logs, np.zeros(3))
    refuse(DataError, "of 3 and of 4 filters", pairwise_from_logs, logs, others=np.zeros((2, 4)))
    refuse(UsageError, "prior of every source", pairwise_from_logs, logs, "asymmetric")
    refuse(DataError, r"shape \(2, 3\)", DistanceMatrix, np.zeros((2, 3)), ("a", "b"), ("a", "b"), "kl")


# --- the table ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table():
    """Distances of two families: the even and the odd tasks."""
    rng = np.random.default_rng(0)
    centres = np.exp(rng.normal(size=(2, 40)))
    fishers = [centres[index % 2] * np.exp(0.1 * rng.normal(size=40)) for index in range(8)]
    return pairwise([make(fisher, task=f"t{index}") for index, fisher in enumerate(fishers)], device="cpu")


def test_numpy_and_scikit_learn_take_it_for_an_array(table):
    assert np.array_equal(np.asarray(table), table.values) and table.shape == (8, 8) and len(table) == 8
    assert np.asarray(table, dtype=np.float32).dtype == np.float32
    copy = np.asarray(table)
    copy[0, 1] = 7  # as scikit-learn's t-SNE does with what it is given
    assert table.values[0, 1] != 7 and not table.values.flags.writeable
    _, found = NearestNeighbors(n_neighbors=3, metric="precomputed").fit(table).kneighbors(table)
    assert found[0, 0] == 0 and set(found[0] % 2) == {0} and set(found[1] % 2) == {1}


def test_nearest(table):
    found = table.nearest("t3", 3)
    assert {name for name, _ in found} == {"t1", "t5", "t7"} and len(table.nearest("t3", 100)) == 7
    assert [value for _, value in found] == sorted(value for _, value in found)
    twice = DistanceMatrix(np.zeros((2, 2)), ("a", "a"), ("a", "a"), "symmetric")
    refuse(UsageError, "'x'.*: 0 rows.*t0, t1", table.nearest, "x", 5)
    refuse(UsageError, "k=0", table.nearest, "t3", 0)
    refuse(UsageError, "'a'.*: 2 rows", twice.nearest, "a", 5)


def test_csv_keeps_names_and_digits(table, tmp_path):
    odd = DistanceMatrix(table.values[:2, :2], ('cats, "wild"', "собаки"), ("a\nb", "c"), "symmetric")
    file = odd.save_csv(tmp_path / "table.csv")
    with file.open(encoding="utf-8", newline="") as text:
        header, *rows = list(csv.reader(text))
    assert header == ["symmetric", "a\nb", "c"] and [row[0] for row in rows] == ['cats, "wild"', "собаки"]
    assert np.array_equal(np.array([row[1:] for row in rows], dtype=float), odd.values)
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]
