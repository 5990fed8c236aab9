"""The error matrix: every cell once, kept at once, whoever does the work and whatever fails."""

import csv
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from task2vec.errors import DataError, UsageError
from task2vec.experts import ErrorProtocol, linear_error
from task2vec.experts import error_matrix as work
from task2vec.experts.error_matrix import error_matrix
from task2vec.library import Library, MeasuredError
from task2vec.parallel import Failure, Result, open_backend
from task2vec.select import metatask_from_library
from tests.experts.material import Packed, make_model, make_task, make_tasks

PROTOCOLS, SEEDS = (ErrorProtocol(), ErrorProtocol(shots=2)), (0, 1)
HOW = {"protocols": PROTOCOLS, "seeds": SEEDS, "device": "cpu", "num_workers": 1}


@pytest.fixture(scope="module")
def tasks():
    return make_tasks()


@pytest.fixture(scope="module")
def experts():
    return [make_model("one"), make_model("two", seed=1)]


@pytest.fixture(scope="module")
def whole(tasks, experts):
    return error_matrix(tasks, experts, **HOW)


@pytest.fixture
def library(tmp_path):
    with Library.open(tmp_path / "library") as opened:
        yield opened


def watch_cells(monkeypatch):
    """Notes which cells are computed."""
    seen, measure = [], work.measure_cells

    def watched(features, plan, *, model, only):
        seen.append((plan.task.name, model, tuple(only)))
        return measure(features, plan, model=model, only=only)

    monkeypatch.setattr(work, "measure_cells", watched)
    return seen


def names_of(metatask):
    return [task.name for task in metatask.tasks]


def same(one, two):
    return all(
        np.array_equal(getattr(one, name), getattr(two, name), equal_nan=True) for name in ("errors", "low", "high")
    )


def test_cells_are_those_that_are_measured_one_by_one(tasks, experts, whole):
    assert whole.errors.shape == (4, 2, 2, 2) and not whole.failures
    assert repr(whole) == "MetaTask(error matrix, 4 tasks, 2 models, 2 protocols, 2 seeds)"
    for i, task in enumerate(tasks):
        for j, expert in enumerate(experts):
            for k, protocol in enumerate(PROTOCOLS):
                found = linear_error(expert, task, protocol, seeds=SEEDS, device="cpu")
                assert [error.error for error in found] == whole.errors[i, j, k].tolist()
                assert [error.high for error in found] == whole.high[i, j, k].tolist()
    assert np.allclose(whole.mean_errors(), whole.errors.mean(3))
    assert len(np.unique(whole.errors)) > 5


def test_an_expert_sees_each_image_once(tasks, experts, monkeypatch):
    passes, compute = [], work.compute_features
    monkeypatch.setattr(work, "compute_features", lambda *a, **how: (passes.append(len(a[1])), compute(*a, **how))[1])
    error_matrix(tasks, experts, **HOW)
    assert passes == [24, 17, 24] * 2  # two label sets share their pictures


def test_what_the_library_has_is_not_computed_again(tasks, experts, whole, library, monkeypatch):
    seen = watch_cells(monkeypatch)
    first = error_matrix(tasks[:3], experts[:1], **(HOW | {"seeds": (1,)}), library=library)
    assert len(seen) == 3 and len(library.errors()) == 6
    seen.clear()
    found = error_matrix(tasks, experts, **HOW, library=library)
    assert same(found, whole)
    assert np.array_equal(found.errors[:3, :1, :, 1:], first.errors)
    wanted = {(name, expert): {seed for _, seed in only} for name, expert, only in seen}
    assert wanted == {
        (t.name, e.name): {0} if e is experts[0] and t is not tasks[3] else {0, 1} for t in tasks for e in experts
    }
    seen.clear()
    assert same(error_matrix(tasks, experts, **HOW, library=library), whole) and not seen
    kept = metatask_from_library(library)
    order = [names_of(kept).index(task.name) for task in tasks]
    keys = [kept.protocols.index(protocol.key) for protocol in PROTOCOLS]
    assert np.array_equal(kept.errors[np.ix_(order, [0, 1], keys, [0, 1])], whole.errors)
    assert [run.outcome for run in library.runs()] == ["done"] * 3


def test_every_cell_is_kept_when_it_is_reported_and_the_next_run_computes_the_rest(
    tasks, experts, whole, library, monkeypatch
):
    told = []

    def stop(cell):
        told.append(cell)
        kept = {(error.task, error.expert, error.protocol, error.seed) for error in library.errors()}
        assert {(error.task, error.expert, error.protocol, error.seed) for error in cell} <= kept
        if len(told) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        error_matrix(tasks, experts, **HOW, library=library, on_cell=stop)
    assert len(library.errors()) == 3 * 4
    assert library.runs()[0].outcome == "KeyboardInterrupt: "
    seen = watch_cells(monkeypatch)
    assert same(error_matrix(tasks, experts, **HOW, library=library), whole) and len(seen) == 5


@pytest.mark.parametrize("backend", ["packed", pytest.param("processes", marks=pytest.mark.long)])
def test_other_processes_find_the_same(tasks, experts, whole, library, backend):
    with nullcontext(Packed()) if backend == "packed" else open_backend(backend, jobs=2, threads=1) as opened:
        found = error_matrix(tasks, experts, **HOW, backend=opened, library=library)
    assert same(found, whole) and len(library.errors()) == whole.errors.size


def test_records_of_a_thousand_tasks_fit_into_a_library(experts, library):
    base = make_task((6, 6))
    labels = [np.array([number >> bit & 1 for bit in range(12)]) for number in range(1, 1001)]
    tasks = [replace(base, name=f"labels-{number}", targets=each) for number, each in enumerate(labels)]
    error_matrix(tasks, experts[:1], library=library, backend=Unreliable(lambda _: []), trained_on={"one": base})
    library.add(*(MeasuredError(task.fingerprint, "one", 0.25, "by hand") for task in tasks))
    assert metatask_from_library(library).has_seen.all()


class Broken:
    """Images of which one cannot be read."""

    def __init__(self, images, error):
        self.images, self.error, self.is_threadsafe = images, error, True

    def __len__(self):
        return len(self.images)

    def name(self, index):
        return self.images.name(index)

    def load(self, index):
        if index == 3:
            raise self.error
        return self.images.load(index)


@pytest.mark.parametrize("error", [DataError("it is torn"), ZeroDivisionError("their bug")], ids=["ours", "theirs"])
def test_a_task_that_cannot_be_read_fails_alone(tasks, experts, whole, library, error):
    poisoned = replace(tasks[0], images=Broken(tasks[0].images, error))  # which shares its pictures with another
    told = []
    found = error_matrix([poisoned, *tasks[1:]], experts, **HOW, library=library, on_cell=told.append)
    assert [(failure.task, failure.model) for failure in found.failures] == [
        (poisoned.name, "one"),
        (poisoned.name, "two"),
    ]
    assert all(str(error) in failure.message for failure in found.failures)
    assert {failure.exit_code for failure in found.failures} == {getattr(error, "exit_code", 1)}
    assert np.isnan(found.errors[0]).all() and np.array_equal(found.errors[1:], whole.errors[1:])
    assert repr(found).endswith("8 missing)") and np.isnan(found.mean_errors()[0]).all()
    assert len(told) == 8 and sum(cell in found.failures for cell in told) == 2
    noted = [run for run in library.runs() if run.what == "error-matrix cell"]
    assert [run.details["expert"] for run in noted] == ["one", "two"] and all(
        str(error) in run.outcome for run in noted
    )
    mended = error_matrix(tasks, experts, **HOW, library=library)
    assert same(mended, whole) and not mended.failures


def test_a_task_that_cannot_be_split_fails_alone(tasks, experts):
    lone = tasks[2].subset(np.unique(tasks[2].targets, return_index=True)[1])
    found = error_matrix([lone, tasks[2]], experts[:1], **HOW)
    assert "two different images" in found.failures[0].message and not np.isnan(found.errors[1]).any()


def test_an_expert_that_cannot_be_loaded_fails_alone(tasks, experts, whole, monkeypatch):
    opened = work.open_model

    def open_some(expert, **options):
        if expert.name == "two":
            raise DataError("its file is torn")
        return opened(expert, **options)

    monkeypatch.setattr(work, "open_model", open_some)
    found = error_matrix(tasks, experts, **HOW)
    assert len(found.failures) == 4 and {failure.model for failure in found.failures} == {"two"}
    assert np.array_equal(found.errors[:, 0], whole.errors[:, 0]) and np.isnan(found.errors[:, 1]).all()


class Unreliable:
    """A backend that passes each result through a function, which returns those that arrive."""

    def __init__(self, change):
        self.change = change

    def run(self, work, units):
        for unit in units:
            yield from self.change(open_backend("serial").run(work, [unit]))


def test_values_that_come_again_are_taken_once(tasks, experts, library):
    def repeat(results):
        for result in results:
            yield result
            if result.value is not None:
                number, errors = result.value  # from another process, and rounded otherwise
                others = tuple(replace(error, error=0.123, low=0, high=1) for error in errors)
                yield replace(result, value=(number, others))

    told, how = [], HOW | {"backend": Unreliable(repeat), "library": library}
    found = error_matrix(tasks[:2], experts[:1], **how, on_cell=told.append)
    assert len(told) == 2 and 0.123 not in found.errors


def test_a_unit_that_fails_in_the_middle_loses_the_rest_alone(tasks, experts, whole):
    def die(results):
        first = next(results)
        return [first, Result(first.key, failure=Failure("WorkError", "its process died"), is_last=True)]

    found = error_matrix(tasks[:2], experts[:1], **HOW, backend=Unreliable(die))  # two label sets in one unit
    assert [(failure.task, failure.message) for failure in found.failures] == [(tasks[1].name, "its process died")]
    assert np.array_equal(found.errors[0, 0], whole.errors[0, 0]) and np.isnan(found.errors[1]).all()


def test_what_somebody_else_measured_meanwhile_stays(tasks, experts, library):
    def meddle(result):
        for error in library.errors():
            library.add(replace(error, task=tasks[1].fingerprint, error=0.5, low=0.25, high=0.75))

    found = error_matrix(tasks[:2], experts[:1], **HOW, library=library, on_cell=meddle)
    assert (found.errors[1] == 0.5).all() and (found.low[1] == 0.25).all()


def test_cells_of_what_an_expert_has_seen_are_marked(tasks, experts, library, tmp_path):
    trained_on = {"one": [tasks[0]], "two": tasks[2].subset(range(12))}
    found = error_matrix(tasks, experts, **HOW, trained_on=trained_on, library=library)
    assert found.has_seen.tolist() == [[True, False], [True, False], [False, True], [False, False]]
    assert not np.isnan(found.errors).any()
    kept = metatask_from_library(library)
    assert {(kept.tasks[i].name, kept.models[j].name) for i, j in np.argwhere(kept.has_seen)} == {
        (tasks[i].name, experts[j].name) for i, j in np.argwhere(found.has_seen)
    }
    with open(found.to_csv(tmp_path / "errors.csv"), newline="") as file:
        rows = list(csv.DictReader(file))
    assert {(row["task"], row["model"]) for row in rows if row["has_seen"] == "1"} == {
        (tasks[i].name, experts[j].name) for i, j in np.argwhere(found.has_seen)
    }
    places = np.argwhere(np.isfinite(found.errors))
    assert len(rows) == len(places)
    for row, (i, j, k, n) in zip(rows, places, strict=True):
        names = (found.tasks[i].name, found.models[j].name, found.protocols[k], str(found.seeds[n]))
        assert (row["task"], row["model"], row["protocol"], row["seed"]) == names
        for name, array in (("error", found.errors), ("low", found.low), ("high", found.high)):
            assert float(row[name]) == array[i, j, k, n]
    with pytest.raises(UsageError, match="'three'"):
        error_matrix(tasks, experts, **HOW, trained_on={"three": tasks[0]})


def test_a_mean_that_lacks_a_seed_is_not_complete(whole):
    errors = whole.errors.copy()
    errors[0, 0, :, 0] = np.nan
    some = replace(whole, errors=errors)
    assert some.count_seeds()[:2, 0].tolist() == [[1, 1], [2, 2]]
    assert np.array_equal(some.mean_errors()[0, 0], errors[0, 0, :, 1])
    means = some.mean_errors(complete=True)
    assert np.isnan(means[0, 0]).all() and np.array_equal(means[1:], whole.mean_errors()[1:])


def test_the_very_task_of_an_expert_is_trivial(tasks, experts, library):
    entry = replace(work.describe_model(experts[0]), task=tasks[2].fingerprint)
    library.add(entry, *tasks)
    for task in tasks:
        library.add(MeasuredError(task.fingerprint, "one", 0.25, "by hand"))
    kept = metatask_from_library(library)
    assert [kept.tasks[i].name for i, _ in np.argwhere(kept.has_seen)] == ["colours"]


def test_what_cannot_be_meant_is_refused(tasks, experts):
    for wrong, word in (
        (([*tasks, tasks[0]], experts), "Pass it once"),
        ((["cats"], experts), "str"),
        ((tasks, [*experts, make_model("one", seed=3)]), "'one'"),
        ((tasks, ["resnet34"]), "str"),
    ):
        with pytest.raises(UsageError, match=word):
            error_matrix(*wrong, **HOW)
    for wrong in ({"seeds": ()}, {"seeds": (1, 1)}, {"protocols": ()}, {"protocols": PROTOCOLS * 2}):
        with pytest.raises(UsageError):
            error_matrix(tasks, experts, **(HOW | wrong))
