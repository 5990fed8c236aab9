"""Many tasks by every backend: the same bytes (N4); what fails or dies is reported by task, the rest goes on (R3)."""

import threading
from dataclasses import replace

import pytest
import torch

from task2vec.embedding import EmbedSettings
from task2vec.errors import DataError, UsageError, WorkError
from task2vec.parallel import Failure, Result, open_backend
from task2vec.tasks import Task
from tests.embedding.conftest import ask, make_tiny, pictures
from tests.embedding.families import Spoiled, ask_binary, make_family, run_many
from tests.parallel_work import to_bytes

SETTINGS = EmbedSettings(max_samples=20, l2=0.1)


def make_task(number: int, how: str = "") -> Task:
    task = ask(pictures((8,), seed=100 + number)[0], [i % 2 for i in range(8)], f"task {number}")
    error = DataError("this picture is damaged") if how == "damage" else ZeroDivisionError("cannot be divided")
    spoiled = Spoiled(task.images, error, lock=threading.Lock() if how == "lock" else None)
    return replace(task, images=spoiled) if how else task


def run(tasks, backend, **options):
    return run_many(tasks, make_tiny(), settings=SETTINGS, backend=backend, device="cpu", **options)


SPOILED = {1: "raise", 2: "lock", 3: "damage"}
TASKS = [*(make_task(number) for number in range(5)), *make_family("copies"), *make_family("attributes")]


@pytest.fixture(scope="module")
def by_processes(tmp_path_factory):
    """What another process makes of tasks of which some are spoiled, and the folder: a worker takes 10 s to start."""
    folder = tmp_path_factory.mktemp("saved")
    tasks = [make_task(number, SPOILED.get(number, "")) for number in range(5)] + TASKS[5:]
    with open_backend("processes", jobs=1, threads=1) as backend:
        return run(tasks, backend, folder=folder), folder


def test_the_same_bytes_whoever_computes(by_processes):
    assert torch.get_num_threads() == 1
    found, folder = by_processes
    wanted = [to_bytes(result.embedding) for result in run(TASKS, None)]
    assert len({*wanted}) == len(TASKS)
    again = run([task for n, task in enumerate(TASKS) if n not in SPOILED], "processes", folder=folder)
    assert all(result.is_found for result in again)
    made = [result for result in found if result.number not in SPOILED]
    for one, other in zip(made, again, strict=True):
        assert to_bytes(one.embedding) == to_bytes(other.embedding) == wanted[one.number] and not one.is_found


def test_failures_are_reported_by_task_and_the_rest_goes_on(by_processes):
    found, folder = by_processes
    errors = {result.number: result.error for result in found if result.error is not None}
    assert {number: type(error) for number, error in errors.items()} == {1: WorkError, 2: UsageError, 3: DataError}
    assert str(errors[1]) == "ZeroDivisionError: cannot be divided"
    assert "cannot be sent to another process" in str(errors[2]) and "--backend serial" in str(errors[2])
    assert str(errors[3]) == "this picture is damaged"
    assert len(list(folder.iterdir())) == len(TASKS) - len(SPOILED)


@pytest.mark.long
def test_one_poisoned_task_among_fifty():
    tasks = [make_task(number, "raise" if number == 17 else "") for number in range(50)]
    with open_backend("processes", jobs=2, threads=1) as backend:
        found = run(tasks, backend)
    assert [result.number for result in found if result.embedding is None] == [17]
    assert found[17].task == "task 17" and isinstance(found[17].error, WorkError)


def test_tasks_of_a_group_that_were_finished_before_it_failed_stay_finished():
    class Failing:
        def run(self, work, units):
            (unit,) = units
            values = list(work.open()(unit.payload))
            yield from (Result(unit.key, value) for value in values[:3])
            yield Result(unit.key, failure=Failure("ResourceError", "it stumbled", 5), is_last=True)

    found = run(ask_binary(4), Failing())
    assert [result.embedding is None for result in found] == [False, False, False, True]
    assert str(found[3].error) == "it stumbled"
