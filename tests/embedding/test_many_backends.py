"""Many tasks by another process: the same bytes (N4); what fails is reported by task, and the rest goes on (R3).

`Packed` pickles as Ray does; tests/test_parallel.py has workers that are real, and die.
"""

from dataclasses import replace

import pytest
import torch

from task2vec.embedding import EmbedSettings
from task2vec.errors import DataError, WorkError
from task2vec.parallel import Failure, Result
from task2vec.tasks import Task
from tests.embedding.conftest import ask, make_tiny, pictures
from tests.embedding.families import Spoiled, ask_binary, make_family, run_many
from tests.experts.material import Packed
from tests.parallel_work import to_bytes

SETTINGS = EmbedSettings(max_samples=20, l2=0.1)
SPOILED = {1: ZeroDivisionError("cannot be divided"), 3: DataError("this picture is damaged")}


def make_task(number: int, error: Exception | None = None) -> Task:
    task = ask(pictures((8,), seed=100 + number)[0], [i % 2 for i in range(8)], f"task {number}")
    return task if error is None else replace(task, images=Spoiled(task.images, error))


TASKS = [*(make_task(number) for number in range(5)), *make_family("copies"), *make_family("attributes")]


def run(tasks, backend, **options):
    return run_many(tasks, make_tiny(), settings=SETTINGS, backend=backend, device="cpu", **options)


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """What another process makes of tasks of which some are spoiled, and the folder."""
    folder = tmp_path_factory.mktemp("saved")
    return run(
        [make_task(number, SPOILED.get(number)) for number in range(5)] + TASKS[5:], Packed(), folder=folder
    ), folder


def test_the_same_bytes_whoever_computes(packed):
    assert torch.get_num_threads() == 1
    results, folder = packed
    wanted = [to_bytes(result.embedding) for result in run(TASKS, None)]
    assert len({*wanted}) == len(TASKS)
    again = run([task for number, task in enumerate(TASKS) if number not in SPOILED], "serial", folder=folder)
    assert all(result.is_found for result in again)
    made = [result for result in results if result.number not in SPOILED]
    for first, second in zip(made, again, strict=True):
        assert to_bytes(first.embedding) == to_bytes(second.embedding) == wanted[first.number] and not first.is_found


def test_failures_are_reported_by_task_and_the_rest_goes_on(packed):
    results, folder = packed
    errors = {result.number: result.error for result in results if result.error is not None}
    assert {number: type(error) for number, error in errors.items()} == {1: WorkError, 3: DataError}
    assert str(errors[1]) == "ZeroDivisionError: cannot be divided" and str(errors[3]) == "this picture is damaged"
    assert len(list(folder.iterdir())) == len(TASKS) - len(SPOILED)


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
