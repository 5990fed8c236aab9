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

from task2vec.distance import KINDS, DistanceMatrix, asymmetric, pairwise, pairwise_from_logs, symmetric
from task2vec.errors import (
    DataError,
    ProbeMismatchError,
    ResourceError,
    SettingsMismatchError,
    UsageError,
)
from tests.distance.material import make, make_many

NAMES = sorted(KINDS)
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]

CROWDS = {
    "plain": {},
    "of different sizes": {"scales": 4.0},
    "some dead": {"dead": 0.05},
    "some dead, different priors": {"dead": 0.05, "priors": 2.0},
    "mostly dead": {"dead": 0.9},
    "mostly dead, different priors": {"dead": 0.9, "priors": 2.0},
    "wild": {"spread": 25.0, "scales": 20.0},
    "wild and dead": {"spread": 25.0, "dead": 0.3, "priors": 3.0},
    "beyond float32": {"spread": 100.0, "scales": 100.0},
}


def one_by_one(rows, columns, kind):
    return np.array([[kind(a, b) for b in columns] for a in rows])


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks so small that few tasks need many."""
    module = importlib.import_module("task2vec.distance.pairwise")
    for name, sizes in (("SUM_BLOCK", {"cpu": 48, "cuda": 200}), ("FORMULA_BLOCK", {"cpu": 150, "cuda": 150})):
        monkeypatch.setattr(module, name, sizes)
    monkeypatch.setattr(module, "ROWS", {"cpu": 3, "cuda": 3})
    monkeypatch.setattr(module, "CHUNK", 16)
    monkeypatch.setattr(module, "GROUP", 4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("name", "crowd"),
    [("symmetric", crowd) for crowd in CROWDS]
    + [(name, crowd) for name in NAMES if name != "symmetric" for crowd in ("plain", "wild and dead")],
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
        assert (np.diag(found.values) == 0).all()
        assert (found.values >= 0).all() and (found.values <= kind.highest).all()


@pytest.mark.parametrize("name", NAMES)
def test_rows_against_columns(name, small_blocks):
    tasks = make_many(12, 50, **CROWDS["some dead, different priors"])
    rows, columns = tasks[:5], tasks[5:]
    found = pairwise(rows, name, others=columns, device="cpu")
    assert found.rows == tuple(e.task for e in rows) and found.columns == tuple(e.task for e in columns)
    assert found.values == pytest.approx(one_by_one(rows, columns, KINDS[name]), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("crowd", ["of different sizes", "mostly dead, different priors", "wild and dead"])
def test_single_precision_suffices_for_long_vectors(crowd):
    tasks = make_many(12, 8512, **CROWDS[crowd])
    expected = one_by_one(tasks, tasks, symmetric)
    assert np.abs(pairwise(tasks, device="cpu").values - expected).max() < 1e-6
    assert np.abs(pairwise(tasks[:5], others=tasks[5:], device="cpu").values - expected[:5, 5:]).max() < 1e-6


def test_the_quick_way_is_taken_where_it_can_be(monkeypatch):
    def refuse(*args):
        raise AssertionError("a pair was computed by itself")

    tasks = make_many(10, 200, scales=4.0, dead=0.2, priors=2.0)
    pairwise(tasks, replace(symmetric, from_logs=refuse), device="cpu")
    with pytest.raises(AssertionError, match="by itself"):
        pairwise(make_many(10, 200, scales=300.0), replace(symmetric, from_logs=refuse), device="cpu")


anything = st.one_of(st.just(0.0), st.floats(1e-300, 1e300), st.floats(1e-3, 1e3))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=10, deadline=None)
@given(st.data())
def test_extreme_tasks_too(name, data):
    shape = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 6)))
    fishers = data.draw(arrays.arrays(float, shape, elements=anything))
    levels = data.draw(arrays.arrays(float, shape[0], elements=st.sampled_from([1e-300, 1e-9, 1.0, 1e300])))
    tasks = [make(fisher, prior=level) for fisher, level in zip(fishers, levels, strict=True)]
    found = pairwise(tasks, name, device="cpu").values
    assert np.isfinite(found).all()
    assert found == pytest.approx(one_by_one(tasks, tasks, KINDS[name]), rel=1e-6, abs=1e-6)


@settings(max_examples=10, deadline=None)
@given(arrays.arrays(float, (4, 6), elements=st.floats(-690, 690)))
def test_copies_are_at_zero(logs):
    twice = np.concatenate([logs, logs])
    for name in set(NAMES) - {"asymmetric"}:
        found = pairwise_from_logs(twice, name, device="cpu")
        assert (np.diag(found, 4) == 0).all(), name


def test_asymmetric_rows_are_sources():
    tasks = make_many(6, 40, scales=2.0, dead=0.1)
    found = pairwise(tasks, "asymmetric", device="cpu").values
    assert found[1, 4] == pytest.approx(asymmetric(tasks[1], tasks[4]), abs=1e-6)
    assert abs(found[1, 4] - found[4, 1]) > 1e-4
    mine = replace(asymmetric, alpha=0.7)
    assert pairwise(tasks, mine, device="cpu").values == pytest.approx(one_by_one(tasks, tasks, mine), abs=1e-6)


def test_every_pair_is_reported_once_and_threads_are_as_before():
    seen, threads = [], torch.get_num_threads()

    def report(stage, total):
        seen.append((stage, total))
        return seen.append

    pairwise(make_many(70, 5), device="cpu", report=report)
    pairwise(make_many(70, 5), "cosine", device="cpu", report=report)
    assert seen[0] == ("distances", 70)
    assert sum(step for step in seen[1:] if isinstance(step, int)) == 140
    assert torch.get_num_threads() == threads


def test_what_does_not_belong_together_is_refused():
    a, b = make([1.0, 2.0], task="birds"), make([1.0, 2.0], fingerprint="q")
    with pytest.raises(ProbeMismatchError, match="task2vec embed --probe net"):
        pairwise([a, a, b], device="cpu")
    with pytest.raises(SettingsMismatchError, match="beta"):
        pairwise([a], others=[make([1.0, 2.0], beta=1.0)], device="cpu")
    with pytest.raises(UsageError, match=r"no distance called 'cosin'.*cosine"):
        pairwise([a], "cosin")
    with pytest.raises(UsageError, match="empty"):
        pairwise([])
    with pytest.raises(UsageError, match="empty"):
        pairwise([a], others=[])
    with pytest.raises(UsageError, match="device 'nowhere'"):
        pairwise([a], device="nowhere")


def test_logs_are_checked():
    logs = np.zeros((2, 3))
    with pytest.raises(DataError, match="NaN or infinity"):
        pairwise_from_logs(np.log([[1.0, math.nan]]))
    with pytest.raises(DataError, match=r"shape \(3,\)"):
        pairwise_from_logs(np.zeros(3))
    with pytest.raises(DataError, match="of 3 and of 4 filters"):
        pairwise_from_logs(logs, others=np.zeros((2, 4)))
    with pytest.raises(DataError, match="'dead' has shape"):
        pairwise_from_logs(logs, dead=np.zeros(3, dtype=bool))
    with pytest.raises(UsageError, match="prior of every source"):
        pairwise_from_logs(logs, "asymmetric")


# --- the table ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_families():
    rng = np.random.default_rng(0)
    centres = np.exp(rng.normal(size=(2, 40)))
    fishers = [centres[index % 2] * np.exp(0.1 * rng.normal(size=40)) for index in range(8)]
    return [make(fisher, task=f"t{index}") for index, fisher in enumerate(fishers)]


@pytest.fixture(scope="module")
def table(two_families):
    return pairwise(two_families, device="cpu")


def test_numpy_takes_it_for_an_array(table):
    assert np.array_equal(np.asarray(table), table.values) and table.shape == (8, 8) and len(table) == 8
    assert np.asarray(table, dtype=np.float32).dtype == np.float32
    copy = np.asarray(table)
    copy[0, 1] = 7  # as scikit-learn's t-SNE does with what it is given
    assert table.values[0, 1] != 7 and not table.values.flags.writeable
    assert repr(table) == "DistanceMatrix(symmetric, 8 x 8 tasks)"


def test_scikit_learn_finds_the_families(table, two_families):
    search = NearestNeighbors(n_neighbors=3, metric="precomputed").fit(table)
    _, found = search.kneighbors(pairwise(two_families[:2], others=two_families, device="cpu"))
    assert found[0, 0] == 0 and set(found[0] % 2) == {0} and set(found[1] % 2) == {1}


def test_nearest(table):
    found = table.nearest("t3", 3)
    assert {name for name, _ in found} == {"t1", "t5", "t7"}
    assert [value for _, value in found] == sorted(value for _, value in found)
    assert len(table.nearest("t3", 100)) == 7
    with pytest.raises(UsageError, match=r"no row is called 'x'.*t0, t1"):
        table.nearest("x")
    with pytest.raises(UsageError, match="k=0"):
        table.nearest("t3", 0)
    with pytest.raises(UsageError, match="several rows"):
        DistanceMatrix(np.zeros((2, 2)), ("a", "a"), ("a", "a"), "symmetric").nearest("a")


def test_names_must_match():
    with pytest.raises(DataError, match=r"shape \(2, 3\)"):
        DistanceMatrix(np.zeros((2, 3)), ("a", "b"), ("a", "b"), "symmetric")


def test_csv_keeps_names_and_digits(table, tmp_path):
    odd = DistanceMatrix(table.values[:2, :2], ('cats, "wild"', "собаки"), ("a\nb", "c"), "symmetric")
    file = odd.save_csv(tmp_path / "table.csv")
    with file.open(encoding="utf-8", newline="") as text:
        header, *rows = list(csv.reader(text))
    assert header == ["symmetric", "a\nb", "c"] and [row[0] for row in rows] == ['cats, "wild"', "собаки"]
    assert np.array_equal(np.array([row[1:] for row in rows], dtype=float), odd.values)
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]


def test_csv_is_whole_or_absent(table, tmp_path):
    (tmp_path / "folder.csv").mkdir()
    for place in (tmp_path / "missing" / "x.csv", tmp_path / "folder.csv"):
        with pytest.raises(ResourceError, match="cannot write"):
            table.save_csv(place)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.csv"]
