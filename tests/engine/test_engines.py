"""Every engine makes the same of the same units; what cannot be meant, or cannot travel, is said."""

import os
import threading

import pytest
import torch

from task2vec.engine import Failure, Result, Unit, borrow_engine, open_engine
from task2vec.engine.messages import pack, unpack
from task2vec.engine.threads import limit_threads
from task2vec.errors import BadImagesError, DataError, UsageError, WorkError
from task2vec.probe.probe import trial_images
from tests.cases import make_case
from tests.engine.cases import (
    CASES,
    Broken,
    Counting,
    Doubling,
    Locking,
    OddDataError,
    Threads,
    Unopened,
    check_case,
    check_laziness,
    check_warmth,
    gather,
)


@pytest.mark.parametrize("case", list(CASES))
def test_the_table(engine, case):
    check_case(engine, CASES[case])


def test_units_are_asked_for_when_somebody_is_free(engine):
    check_laziness(engine, most=4)


def test_units_are_asked_for_one_by_one_in_this_process(serial):
    check_laziness(serial, most=1)


def test_work_stays_open(pool):
    check_warmth(pool, workers=2)


def test_work_that_cannot_be_opened_ends_the_run(engine):
    with pytest.raises(UsageError, match="this work has no handle"):
        list(engine.run(Broken(), [Unit("a", 1)]))
    check_case(engine, CASES["values in their order"])  # the next run is well


def test_an_error_of_the_units_themselves_is_raised(engine):
    def ask():
        yield Unit("a", 1)
        raise KeyError("no more units")

    with pytest.raises(KeyError, match="no more units"):
        list(engine.run(Counting(), ask()))
    check_case(engine, CASES["values in their order"])


def test_two_runs_at_a_time(engine):
    first, second = (engine.run(Counting(), [Unit(f"{name} {n}", 2) for n in range(3)]) for name in "ab")
    told = [next(first) for _ in range(2)] + list(second) + list(first)
    assert sum(result.is_last for result in told) == 6


# --- what cannot travel ---


def test_a_payload_that_cannot_travel_is_a_failure_of_its_unit_alone(pool):
    units = [Unit("a", 1), Unit("locked", threading.Lock()), Unit("odd", Unopened(1)), Unit("b", 2)]
    values, ends = gather(pool, Counting(), units)
    assert values == {"a": [0], "locked": [], "odd": [], "b": [0, 1]}
    assert ends["a"] is ends["b"] is None
    for key, words in (("locked", "cannot be sent to another process"), ("odd", "cannot be opened in another process")):
        failure = ends[key]
        assert failure is not None and (failure.kind, failure.exit_code) == ("UsageError", 2)
        assert words in failure.message and "engine='serial'" in failure.message
    assert "'locked'" in ends["locked"].message


def test_a_value_that_cannot_travel_is_a_failure(pool):
    values, ends = gather(pool, Locking(), [Unit("a", 1)])
    assert values == {"a": [1]} and ends["a"] is not None
    assert ends["a"].kind == "TypeError" and "lock" in ends["a"].message


def test_work_that_cannot_travel_is_refused(pool, serial):
    with pytest.raises(UsageError, match=r"the work cannot be sent to another process .*engine='serial'"):
        list(pool.run(Locking(threading.Lock()), [Unit("a", 1)]))
    assert gather(serial, Locking(threading.Lock()), [Unit("a", 1)])[1] == {"a": None}


def test_what_travels_shares_no_memory_with_what_was_sent():
    tensor = torch.arange(6.0)
    there = unpack(pack({"tensor": tensor, "view": tensor[2:4]}))
    there["tensor"][0] = 99
    assert not tensor.is_shared() and tensor[0] == 0
    assert torch.equal(there["view"], tensor[2:4])


def test_a_probe_travels_without_what_was_made_of_it_here():
    probe = make_case("odd")
    probe.prepare()
    there = unpack(pack(probe))
    assert (there.fingerprint, there._prepared) == (probe.fingerprint, {}) and probe._prepared
    images = trial_images(probe.size)
    assert torch.equal(there.prepare().module(images), probe.prepare().module(images))


# --- threads ---


@pytest.mark.parametrize("name", ["serial", "pool"])
def test_threads_of_a_worker(name, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    before = torch.get_num_threads()
    with open_engine(name, threads=3) as engine:
        values, _ = gather(engine, Threads(), [Unit("a", None)])
    ((threads, told),) = values["a"]
    # MKL, on Intel's processors, takes no more threads than there are cores.
    assert told == "3" and threads in (3, min(3, os.cpu_count() or 1))
    assert (torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]) == (before, "7")


def test_threads_are_set_back(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    with pytest.raises(KeyError), limit_threads(before + 1):
        assert torch.get_num_threads() == before + 1 == int(os.environ["OMP_NUM_THREADS"])
        raise KeyError
    assert torch.get_num_threads() == before and "OMP_NUM_THREADS" not in os.environ


# --- failures ---


def test_a_failure_becomes_the_error_that_it_was():
    kinds = {DataError("a"): DataError, OddDataError("b"): DataError, KeyError("c"): WorkError}
    for error, kind in {**kinds, BadImagesError("d", ("x",)): BadImagesError}.items():
        failure = Failure.of(error)
        again = failure.error()
        assert type(again) is kind and str(error) in str(again)
        assert again.exit_code == failure.exit_code
    assert str(Failure.of(KeyError("c")).error()) == "KeyError: 'c'"


# --- arguments ---


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("spark", {}, "no engine 'spark'.*serial, pool, ray"),
        ("pool", {"workers": 0}, "workers=0"),
        ("serial", {"threads": -1}, "threads=-1"),
        ("serial", {"workers": 2}, "--engine pool"),
        ("pool", {"address": "auto"}, "--engine ray"),
        ("serial", {"gpus": 1}, "gpus=1 is for Ray"),
        ("ray", {"gpus": -1.0}, "gpus=-1.0"),
        ("ray", {"gpus": float("nan")}, "gpus=nan"),
    ],
)
def test_what_cannot_be_meant_is_refused(name, options, words):
    with pytest.raises(UsageError, match=words):
        open_engine(name, **options)


def test_an_engine_is_borrowed_by_name_or_as_it_is(serial):
    with borrow_engine(serial) as same:
        assert same is serial
    with borrow_engine("serial") as other:
        assert list(other.run(Doubling(), [])) == []


def test_a_result_says_what_it_is():
    assert Result("a", 1) == Result(key="a", value=1, failure=None, is_last=False)
