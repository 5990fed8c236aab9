"""The error matrix: every cell once, kept at once, whoever does the work and whatever fails."""

import csv
from dataclasses import dataclass, replace
from itertools import count, product
from operator import attrgetter

import numpy as np
import pytest
import torch

from task2vec.errors import DataError, UsageError
from task2vec.experts import ErrorProtocol, linear_error
from task2vec.experts import error_matrix as work
from task2vec.experts.error_matrix import compute_features, error_matrix
from task2vec.library import Expert, MeasuredError, tables
from task2vec.metatask import metatask_from_library
from task2vec.parallel import Failure, Result
from task2vec.tasks import join_tasks
from task2vec.tasks.torch_dataset import DatasetImages
from tests.experts.material import Packed, make_model, make_task, make_tasks
from tests.failures import refuse

PROTOCOLS, SEEDS = (ErrorProtocol(), ErrorProtocol(shots=2)), (0, 1)
HOW = {"protocols": PROTOCOLS, "seeds": SEEDS, "device": "cpu", "num_workers": 1}


@pytest.fixture(scope="module")
def tasks():
    return make_tasks()


@pytest.fixture(scope="module")
def experts():
    return [make_model("one"), make_model("two", seed=1)]


@pytest.fixture(scope="module", autouse=True)
def quick_heads():
    """Classifiers by the sums of classes: these tests are about which cells are computed, and by whom."""

    def classify(features, splits):
        centred = (features - features.mean(0)).double()
        return torch.stack([centred @ centred.T @ (splits.onehot * own[:, None]) for own in splits.weights])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work, "fit_split_heads", classify)
        yield


@pytest.fixture(scope="module")
def whole(tasks, experts, quick_heads):
    return error_matrix(tasks, experts, **HOW)


def watch_cells(monkeypatch):
    """Notes which cells are computed."""
    seen, measure = [], work.measure_cells

    def watched(features, plan, *, model, only):
        seen.append((plan.task.name, model, tuple(only)))
        return measure(features, plan, model=model, only=only)

    monkeypatch.setattr(work, "measure_cells", watched)
    return seen


def same(one, two):
    """Whether two matrices are equal, as far as the tasks of the first go."""
    rows, names = len(one.tasks), ("errors", "low", "high")
    return all(np.array_equal(getattr(one, name), getattr(two, name)[:rows], equal_nan=True) for name in names)


def test_cells_are_those_that_are_measured_one_by_one(tasks, experts, whole):
    assert repr(whole) == "MetaTask(error matrix, 4 tasks, 2 models, 2 protocols, 2 seeds)" and not whole.failures
    for i, task in enumerate(tasks):
        for k, protocol in enumerate(PROTOCOLS):
            found = linear_error(experts[i % 2], task, protocol, seeds=SEEDS, device="cpu")
            assert [error.error for error in found] == whole.errors[i, i % 2, k].tolist()
            assert [error.high for error in found] == whole.high[i, i % 2, k].tolist()
    assert np.allclose(whole.mean_errors(), whole.errors.mean(3)) and len(np.unique(whole.errors)) > 5
    errors = whole.errors.copy()
    errors[0, 0, :, 0] = np.nan
    assert np.array_equal(replace(whole, errors=errors).mean_errors()[0, 0], errors[0, 0, :, 1])


def test_what_the_library_has_is_not_computed_again(tasks, experts, whole, library, monkeypatch):
    seen, tasks = watch_cells(monkeypatch), tasks[:3]
    first = error_matrix(tasks[:2], experts[:1], **(HOW | {"seeds": (1,)}), library=library)
    assert len(seen) == 2 and len(library.errors()) == 4
    seen.clear()
    found = error_matrix(tasks, experts, **HOW, library=library)
    assert same(found, whole) and np.array_equal(found.errors[:2, :1, :, 1:], first.errors)
    wanted = {(name, expert): {seed for _, seed in only} for name, expert, only in seen}
    every = {(task.name, expert.name): {0, 1} for task in tasks for expert in experts}
    assert wanted == every | {(task.name, "one"): {0} for task in tasks[:2]}
    seen.clear()
    assert same(error_matrix(tasks, experts, **HOW, library=library), whole) and not seen
    kept = metatask_from_library(library)
    order = [[one.name for one in kept.tasks].index(task.name) for task in tasks]
    keys = [kept.protocols.index(protocol.key) for protocol in PROTOCOLS]
    assert np.array_equal(kept.errors[np.ix_(order, [0, 1], keys, [0, 1])], whole.errors[:3])
    assert [run.outcome for run in library.runs()] == ["done"] * 3


def test_every_cell_is_kept_when_it_is_reported_and_the_next_run_computes_the_rest(
    tasks, experts, whole, library, monkeypatch
):
    told, keys = [], attrgetter("task", "expert", "protocol", "seed")

    def stop(cell):
        told.append(cell)
        assert set(map(keys, cell)) <= set(map(keys, library.errors()))
        if len(told) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        error_matrix(tasks[:3], experts, **HOW, library=library, on_cell=stop)
    assert len(library.errors()) == 3 * 4 and library.runs()[0].outcome == "KeyboardInterrupt: "
    seen = watch_cells(monkeypatch)
    assert same(error_matrix(tasks[:3], experts, **HOW, library=library), whole) and len(seen) == 3


def test_other_processes_find_the_same_and_values_that_come_again_are_taken_once(tasks, experts, whole, library):
    """As far as packing goes; `test_kills` has real processes."""

    def repeat(results):
        for result in results:
            yield result
            if result.value is not None:
                number, errors = result.value  # from another process, and rounded otherwise
                yield replace(result, value=(number, tuple(replace(error, error=0.123, low=0) for error in errors)))

    told = []
    found = error_matrix(tasks, experts, **HOW, backend=Packed(repeat), library=library, on_cell=told.append)
    assert same(found, whole) and len(library.errors()) == found.errors.size and len(told) == 8


def test_a_unit_that_fails_in_the_middle_loses_the_rest_alone(tasks, experts, whole):
    def die(results):
        first = next(results)
        return [first, Result(first.key, failure=Failure("WorkError", "its process died"), is_last=True)]

    found = error_matrix(tasks[:2], experts[:1], **HOW, backend=Packed(die))  # two label sets in one unit
    assert [(failure.task, failure.message) for failure in found.failures] == [(tasks[1].name, "its process died")]
    assert np.array_equal(found.errors[0, 0], whole.errors[0, 0]) and np.isnan(found.errors[1]).all()


def test_records_of_hundreds_of_tasks_fit_into_a_library(experts, library):
    base, expert = make_task((6, 6)), replace(experts[0], name="a name of many words " * 9)
    labels = [np.array([number >> bit & 1 for bit in range(12)]) for number in range(1, 151)]
    tasks = [replace(base, name=f"labels-{number}", targets=each) for number, each in enumerate(labels)]
    error_matrix(tasks, [expert], library=library, backend=Packed(lambda _: []), trained_on={expert.name: base})
    library.add(*(MeasuredError(task.fingerprint, expert.name, 0.25, "by hand") for task in tasks))
    assert metatask_from_library(library).has_seen.all()


@dataclass(frozen=True, kw_only=True)
class Broken(DatasetImages):
    """Images that cannot be read."""

    error: Exception

    def load(self, index):
        raise self.error


def test_a_task_that_cannot_be_read_fails_alone(tasks, experts, whole, library):
    errors = [DataError("it is torn"), ZeroDivisionError("their bug")]  # the first shares its pictures with tasks[1]
    broken = [replace(tasks[i], images=Broken(**vars(tasks[i].images), error=errors[i // 2])) for i in (0, 2)]
    told = []
    found = error_matrix([broken[0], tasks[1], broken[1]], experts, **HOW, library=library, on_cell=told.append)
    pairs = list(zip(broken, errors, strict=True))
    wanted = [(task.name, expert.name, str(error)) for expert in experts for task, error in pairs]
    failed = [(failure.task, failure.model, failure.message) for failure in found.failures]
    assert failed == wanted and [failure.exit_code for failure in found.failures] == [3, 1] * 2
    assert np.isnan(found.errors[[0, 2]]).all() and np.array_equal(found.errors[1], whole.errors[1])
    assert repr(found).endswith("16 missing)") and np.isnan(found.mean_errors()[0]).all()
    assert len(told) == 6 and sum(cell in found.failures for cell in told) == 4
    noted = [run for run in library.runs() if run.what == "error-matrix cell"]
    assert [run.details["expert"] for run in noted] == ["one", "one", "two", "two"]
    assert all(any(str(error) in run.outcome for error in errors) for run in noted)
    mended = error_matrix(tasks[:3], experts, **HOW, library=library)
    assert same(mended, whole) and not mended.failures


def test_a_task_that_cannot_be_split_and_an_expert_that_cannot_be_loaded_fail_alone(tasks, experts, whole):
    lone = take_each(tasks[2])
    gone = Expert("two", "file", "gone.expert.safetensors")
    found = error_matrix([*tasks[:2], lone], [experts[0], gone], **HOW)
    first = found.failures[0]
    assert [failure.model for failure in found.failures] == ["one", "two", "two", "two"]
    assert first.task == lone.name and "two different images" in first.message
    assert np.array_equal(found.errors[:2, 0], whole.errors[:2, 0]) and np.isnan(found.errors[:, 1]).all()


def test_what_somebody_else_measured_meanwhile_stays(tasks, experts, library):
    def meddle(result):
        for error in library.errors():
            library.add(replace(error, task=tasks[1].fingerprint, error=0.5, low=0.25, high=0.75))

    found = error_matrix(tasks[:2], experts[:1], **HOW, library=library, on_cell=meddle)
    assert (found.errors[1] == 0.5).all() and (found.low[1] == 0.25).all()


def test_cells_of_what_an_expert_has_seen_are_marked(tasks, experts, library, tmp_path):
    trained_on, tasks = {"one": [tasks[0]], "two": tasks[2].subset(range(12))}, tasks[:3]
    found = error_matrix(tasks, experts, **(HOW | {"protocols": PROTOCOLS[:1]}), trained_on=trained_on, library=library)
    assert found.has_seen.tolist() == [[True, False], [True, False], [False, True]]
    seen = {(tasks[i].name, experts[j].name) for i, j in np.argwhere(found.has_seen)}
    kept = metatask_from_library(library)
    assert {(kept.tasks[i].name, kept.models[j].name) for i, j in np.argwhere(kept.has_seen)} == seen
    with open(found.to_csv(tmp_path / "errors.csv"), newline="") as file:
        rows = list(csv.DictReader(file))
    assert {(row["task"], row["model"]) for row in rows if row["has_seen"] == "1"} == seen
    names = [[one.name for one in side] for side in (found.tasks, found.models)]
    told = [tuple(row[name] for name in ("task", "model", "protocol", "seed")) for row in rows]
    assert told == list(product(*names, found.protocols, map(str, found.seeds)))
    for name, values in (("error", found.errors), ("low", found.low), ("high", found.high)):
        assert [float(row[name]) for row in rows] == values.ravel().tolist()


def test_what_cannot_be_meant_is_refused(tasks, experts):
    right = {"tasks": tasks, "models": experts, **HOW}
    for wrong, words in (
        ({"tasks": [*tasks, tasks[0]]}, "Pass it once"),
        ({"tasks": [3]}, "a int holds no labelled images"),
        ({"models": [*experts, make_model("one", seed=3)]}, "'one'"),
        ({"models": ["resnet34"]}, "str"),
        ({"seeds": ()}, "no seeds"),
        ({"seeds": (1, 1)}, "occurs twice"),
        ({"protocols": ()}, "no protocols"),
        ({"protocols": PROTOCOLS * 2}, "occurs twice"),
        ({"trained_on": {"three": tasks[0]}}, "'three'"),
    ):
        refuse(UsageError, words, error_matrix, **right | wrong)


# --- test images that tasks come with ---------------------------------------------------------------------------------

ALL = ErrorProtocol("all"), ErrorProtocol(2)
OWN = {**HOW, "protocols": ALL}


@pytest.fixture(scope="module")
def halves(tasks):
    """Training and test parts; the first two tasks label the same pictures, and some train on what others test."""
    pairs = [task.split(1, test=0.4) for task in tasks]
    return [train for train, _ in pairs], [test for _, test in pairs]


def take_each(task):
    """One image of each class."""
    return task.subset(np.unique(task.targets, return_index=True)[1])


def list_errors(library, task):
    return {(one.expert, one.protocol, one.seed): one.error for one in library.errors() if one.task == task.fingerprint}


def test_cells_with_their_own_test_images(halves, experts, library):
    train, test = halves
    told = []
    found = error_matrix(train, experts, tests=test, **OWN, library=library, on_cell=told.append)
    assert repr(found) == "MetaTask(error matrix, 4 tasks, 2 models, 2 protocols, 2 seeds)" and len(told) == 8
    assert found.protocols == tuple(f"linear-2, train {shots}, logistic, usual, own test set" for shots in ("all", 2))
    assert [found.select(shots).protocol for shots in ("all", 2)] == list(found.protocols)
    for i, task in enumerate(train):
        kept, key = list_errors(library, task), found.info["tests"][task.fingerprint]["key"]
        for (j, expert), (k, protocol) in product(enumerate(experts), enumerate(ALL)):
            one_by_one = linear_error(expert, task, protocol, test=test[i], seeds=SEEDS, device="cpu")
            assert [error.error for error in one_by_one] == found.errors[i, j, k].tolist()
            assert [error.high for error in one_by_one] == found.high[i, j, k].tolist()
            for error in one_by_one:
                assert error.task == task.fingerprint and error.protocol == f"{protocol.key}, {key}"
                assert kept[expert.name, error.protocol, error.seed] == error.error
        assert found.info["tests"][task.fingerprint]["images"] == len(test[i])
    usual = error_matrix(train[2:], experts, tests=test[2:], seeds=SEEDS, device="cpu")
    assert usual.protocols == found.protocols[:1] and np.array_equal(usual.errors, found.errors[2:, :, :1])
    again = error_matrix(train, experts, tests=test, **OWN, backend=Packed(), library=library)
    assert same(again, found) and same(error_matrix(train, experts, tests=test, **OWN, backend=Packed()), found)
    joined = metatask_from_library(library)
    order = [[one.name for one in joined.tasks].index(task.name) for task in train]
    keys = [joined.protocols.index(key) for key in found.protocols]
    assert np.array_equal(joined.errors[np.ix_(order, [0, 1], keys, [0, 1])], found.errors)


def test_errors_on_other_test_images_are_not_taken_for_these(halves, experts, library, monkeypatch):
    clock = count()  # the last measured counts, and a second is as fine as a library tells
    monkeypatch.setattr(tables, "now", lambda: f"2026-11-19T00:{next(clock):04}Z")
    train, test = ([each[2]] for each in halves)
    seen = watch_cells(monkeypatch)
    first = error_matrix(train, experts, tests=test, **(OWN | {"seeds": (1,)}), library=library)
    assert {seed for *_, only in seen for _, seed in only} == {1} and len(seen) == 2
    seen.clear()
    found = error_matrix(train, experts, tests=test, **OWN, library=library)
    assert {seed for *_, only in seen for _, seed in only} == {0} and len(seen) == 2
    assert np.array_equal(found.errors[..., 1:], first.errors) and len(list_errors(library, train[0])) == 8
    seen.clear()
    assert same(error_matrix(train, experts, tests=test, **OWN, library=library), found) and not seen
    other = [test[0].subset(range(2, len(test[0])))]
    swapped = [replace(test[0], classes=test[0].classes[::-1])]
    for errors, tests in ((16, other), (24, swapped)):
        seen.clear()
        fresh = error_matrix(train, experts, tests=tests, **OWN)
        assert same(error_matrix(train, experts, tests=tests, **OWN, library=library), fresh) and len(seen) == 4
        assert not same(fresh, found) and len(list_errors(library, train[0])) == errors
    seen.clear()
    error_matrix(train, experts, **HOW, library=library)  # nor are those on half of the training images
    assert len(seen) == 2 and len(list_errors(library, train[0])) == 32
    joined = metatask_from_library(library)
    latest = [joined.protocols.index(key) for key in found.protocols]
    assert np.array_equal(joined.errors[0][:, latest], fresh.errors[0]) and len(joined.protocols) == 4


def test_each_image_is_seen_once_and_test_images_count_as_seen(halves, experts):
    train, test = halves
    counts, features = [], {}
    how = {"on_images": counts.append, "on_features": lambda model, task, each: features.setdefault(task.name, each)}
    trained_on = {"one": take_each(test[2])}
    found = error_matrix(train, experts, tests=test, **OWN, trained_on=trained_on, **how)
    assert sum(counts) == 2 * len({digest for task in (*train, *test) for digest in task.digests})
    assert found.has_seen.tolist() == [[False, False], [False, False], [True, False], [False, False]]
    for task in train:
        wanted = compute_features(experts[0], task.canonical().images, device="cpu")
        torch.testing.assert_close(features[task.name], wanted)


def test_test_images_that_cannot_be_meant_are_refused_before_anything_is_computed(halves, experts, library):
    train, test = halves
    right = {"tasks": train, "models": experts, **OWN, "library": library}
    for error, wrong, words in (
        (UsageError, {"tests": test[:3]}, "tests has 3 test sets for 4 tasks"),
        (UsageError, {"tests": test, "protocols": PROTOCOLS}, "shots='half'"),
        (UsageError, {}, "shots='all'"),
        (DataError, {"tests": test[::-1]}, "have any number of attributes per image"),
        (DataError, {"tests": train}, "are all training images"),
    ):
        refuse(error, words, error_matrix, **right | wrong)
    assert not library.errors()
    mixed = join_tasks([take_each(train[2]), test[2]], merge_classes=True)
    odd = error_matrix([train[2]], experts[:1], tests=[mixed], device="cpu")
    (told,) = odd.info["tests"][train[2].fingerprint]["warnings"]
    assert f"exact copies of training images: 2 of {len(test[2]) + 2}, " in told


def test_features_and_images_are_handed_out_in_this_process_alone(tasks, experts, library):
    found, counts = {}, []

    def keep(model, task, features):
        found[model, task.name] = features
        probe = experts[0 if model == "one" else 1]
        torch.testing.assert_close(features, compute_features(probe, task.images, device="cpu"))

    error_matrix(tasks, experts, **HOW, on_features=keep, on_images=counts.append)
    assert set(found) == {(model.name, task.name) for model in experts for task in tasks}
    distinct = {digest for task in tasks for digest in task.digests}
    assert sum(counts) == len(experts) * len(distinct)  # two label sets share their pictures, and each is seen once
    for callback in ({"on_features": keep}, {"on_images": counts.append}):
        with pytest.raises(UsageError, match=r"called in this process, and a Packed computes .* use backend='serial'"):
            error_matrix(tasks, experts, **HOW, backend=Packed(), **callback)

    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        error_matrix(tasks, experts, **HOW, library=library, on_images=stop)
    assert not library.errors()
