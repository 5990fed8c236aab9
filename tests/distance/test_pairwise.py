"""All pairs at once give what each pair gives by itself, whatever the tasks are like."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from task2vec.distance import KINDS, asymmetric, blocks, cdist, pairwise, pairwise_from_logs, sums, symmetric
from task2vec.errors import DataError, ProbeMismatchError, SettingsMismatchError, UsageError
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
    monkeypatch.setattr(sums, "CHUNK", 16)
    for name, sizes in (("BLOCK", {"cpu": 48, "cuda": 200}), ("_KERNEL_BLOCK", {"cpu": 150, "cuda": 150})):
        monkeypatch.setattr(blocks, name, sizes)
    monkeypatch.setattr(blocks, "ROWS", {"cpu": 1, "cuda": 3})
    monkeypatch.setattr(blocks, "_GROUP", 4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("name", "crowd"),
    [("symmetric", crowd) for crowd in CROWDS]
    + [(name, crowd) for name in NAMES if name != "symmetric" for crowd in ("plain", "some dead", "wild and dead")],
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


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("crowd", ["of different sizes", "some dead, different priors"])
@pytest.mark.parametrize("name", NAMES)
def test_rows_against_columns(name, crowd, device, small_blocks):
    tasks = make_many(12, 50, **CROWDS[crowd])
    rows, columns = tasks[:5], tasks[5:]
    found = cdist(rows, columns, name, device=device)
    assert found.rows == tuple(e.task for e in rows) and found.columns == tuple(e.task for e in columns)
    assert found.values == pytest.approx(one_by_one(rows, columns, KINDS[name]), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("rows", [1, 3])
def test_any_number_of_rows_at_a_time(rows, small_blocks, monkeypatch):
    monkeypatch.setattr(blocks, "ROWS", {"cpu": rows})
    tasks = make_many(11, 50, scales=3.0, dead=0.1, priors=1.0)
    assert pairwise(tasks, device="cpu").values == pytest.approx(one_by_one(tasks, tasks, symmetric), abs=1e-6)
    both = cdist(tasks[:7], tasks[7:], device="cpu").values
    assert both == pytest.approx(one_by_one(tasks[:7], tasks[7:], symmetric), abs=1e-6)


@pytest.mark.parametrize("crowd", ["plain", "of different sizes", "mostly dead, different priors"])
def test_single_precision_suffices_for_long_vectors(crowd):
    tasks = make_many(12, 8512, **CROWDS[crowd])
    error = np.abs(pairwise(tasks, device="cpu").values - one_by_one(tasks, tasks, symmetric)).max()
    assert error < 1e-6


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("crowd", CROWDS)
def test_rounding_stays_small_in_any_crowd(crowd, rows, monkeypatch):
    monkeypatch.setattr(blocks, "ROWS", {"cpu": rows})
    tasks = make_many(30, 300, **CROWDS[crowd])
    expected = one_by_one(tasks, tasks, symmetric)
    assert np.abs(pairwise(tasks, device="cpu").values - expected).max() < 1e-6
    assert np.abs(cdist(tasks[:13], tasks[13:], device="cpu").values - expected[:13, 13:]).max() < 1e-6


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


def test_every_pair_is_reported_once():
    seen = []

    def report(stage, total):
        seen.append((stage, total))
        return seen.append

    pairwise(make_many(70, 5), device="cpu", report=report)
    pairwise(make_many(70, 5), "cosine", device="cpu", report=report)
    assert seen[0] == ("distances", 70)
    assert sum(step for step in seen[1:] if isinstance(step, int)) == 140


def test_threads_are_given_back():
    before = torch.get_num_threads()
    pairwise(make_many(5, 5), device="cpu")
    assert torch.get_num_threads() == before


def test_what_does_not_belong_together_is_refused():
    a, b = make([1.0, 2.0], task="birds"), make([1.0, 2.0], fingerprint="q")
    with pytest.raises(ProbeMismatchError, match="task2vec embed --probe net"):
        pairwise([a, a, b], device="cpu")
    with pytest.raises(SettingsMismatchError, match="beta"):
        cdist([a], [make([1.0, 2.0], beta=1.0)], device="cpu")
    with pytest.raises(UsageError, match=r"no distance called 'cosin'.*cosine"):
        pairwise([a], "cosin")
    with pytest.raises(UsageError, match="empty"):
        pairwise([])
    with pytest.raises(UsageError, match="empty"):
        cdist([a], [])
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
