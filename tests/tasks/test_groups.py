"""Images of one patient, scene or object: a number that follows them, and keeps them in one fold."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import task2vec as t2v
from task2vec.errors import DataError
from task2vec.select.history import find_protocol
from task2vec.select.measure import measure_models
from task2vec.tasks.sampling import join_groups
from task2vec.tasks.task import number_groups
from tests.failures import refuse
from tests.tiny_probe import make_tiny


def make_task(images: int = 60, patients: int = 15, seed: int = 0) -> t2v.Task:
    """Digits of patients who have images of several classes each."""
    task = t2v.sample_tasks(images_per_task=images)[0].select(["0", "1", "2"])
    names = np.random.default_rng(seed).integers(0, patients, len(task))
    return replace(task, groups=number_groups(names.tolist()))


def group_slowly(first, second) -> list[int]:
    """The smallest number of any image that can be reached from each."""
    reached = list(range(len(first)))
    for _ in first:
        for row in range(len(first)):
            for near in range(len(first)):
                if first[row] == first[near] or second[row] == second[near]:
                    reached[row] = reached[near] = min(reached[row], reached[near])
    return reached


@pytest.mark.parametrize("seed", range(5))
def test_groups_are_joined_as_a_slow_search_joins_them(seed):
    first, second = np.random.default_rng(seed).integers(0, 12, (2, 20))
    slow = np.unique(group_slowly(first, second), return_inverse=True)[1]
    assert join_groups(first, second).tolist() == slow.tolist()


def test_groups_follow_their_images_and_are_no_part_of_the_fingerprint():
    task = make_task()
    patient_of = dict(zip(task.digests, task.groups.tolist(), strict=True))
    train, test = task.split(seed=3)
    rest = replace(test, groups=None)
    joined = t2v.join_tasks([train, test], merge_classes=True)
    for changed in (task.canonical(), task.sample(9), task.subset([5, 3]), task.select(["0", "2"]), train, joined,
                    task.one_vs_rest()[0]):  # fmt: skip
        assert changed.groups.tolist() == [patient_of[digest] for digest in changed.digests]
    assert joined.groups_key == task.groups_key != ""
    assert task.fingerprint == replace(task, groups=None).fingerprint == joined.fingerprint
    partly = t2v.join_tasks([train, rest], merge_classes=True)
    assert len(set(partly.groups.tolist())) == len(set(train.groups.tolist())) + len(rest)
    refuse(DataError, r"groups of shape \(2,\)", replace, task, groups=[1, 2])
    refuse(DataError, "type float64", replace, task, groups=np.ones(len(task)))


def test_the_key_of_groups_depends_on_what_they_hold_alone():
    task = make_task()
    order = np.random.default_rng(1).permutation(len(task))
    assert task.subset(order).groups_key == task.groups_key == replace(task, groups=-task.groups).groups_key
    assert task.groups_key != make_task(seed=1).groups_key
    for plain in (replace(task, groups=None), replace(task, groups=np.arange(len(task)))):
        assert plain.groups_key == "" and plain.choose_test(0).tolist() == plain.choose_test(0).tolist()
    assert replace(task, groups=np.arange(len(task))).choose_test(0).tolist() == (
        replace(task, groups=None).choose_test(0).tolist()
    )


@pytest.mark.parametrize("share", [None, 0.25])
@pytest.mark.parametrize("seed", range(3))
def test_no_group_is_on_both_sides_and_every_class_is(seed, share):
    task = make_task(images=200, patients=30)
    is_test = task.choose_test(seed, share)
    assert not set(task.groups[is_test]) & set(task.groups[~is_test])
    held_out = Counter(task.targets[is_test].tolist())
    for number, count in enumerate(task.counts):
        assert abs(held_out[number] / count - (share or 0.5)) < 0.12
    order = np.random.default_rng(seed).permutation(len(task))
    assert task.subset(order).choose_test(seed, share).tolist() == is_test[order].tolist()
    attributes = replace(task, targets=np.eye(3, dtype=np.uint8)[task.targets])
    is_test = attributes.choose_test(seed, share)
    assert not set(task.groups[is_test]) & set(task.groups[~is_test])
    assert (attributes.targets[is_test].sum(0) > 0).all() and (attributes.targets[~is_test].sum(0) > 0).all()


# --- where errors are measured and stored -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hard():
    """A task whose labels can be predicted from the patient alone: without groups the error is far too low."""
    rng = np.random.default_rng(0)
    pairs, patients = [], []
    for patient in range(24):
        colour = rng.integers(40, 216, (1, 1, 3))
        for _ in range(4):
            pixels = np.clip(colour + rng.integers(-6, 7, (24, 24, 3)), 0, 255).astype(np.uint8)
            pairs.append((pixels, patient % 2))
            patients.append(f"patient {patient}")
    return t2v.from_dataset(pairs, groups=patients, name="hard")


def test_an_embedding_holds_groups_out_and_is_stored_by_them(hard, tmp_path):
    plain, probe = replace(hard, groups=None), make_tiny()
    settings = t2v.EmbedSettings(max_samples=8)
    with t2v.Library.open(tmp_path / "library") as library:
        tasks = (plain, hard, replace(hard, groups=number_groups(np.arange(len(hard)) // 2)))
        results = sorted(
            t2v.embed_many(tasks, probe, settings=settings, library=library), key=lambda result: result.number
        )
        errors = [result.embedding.provenance["head"]["cv_error"] for result in results]
        assert errors[1] > errors[0] + 0.15
        assert [result.embedding.provenance.get("groups") for result in results] == [
            None, hard.groups_key, tasks[2].groups_key
        ]  # fmt: skip
        alone = t2v.embed(hard, probe, settings=settings)
        assert alone.provenance["head"]["cv_error"] == errors[1]
        assert len(library.task(hard.fingerprint).embeddings) == 3 and library.verify().is_sound
        for task, error in zip(tasks, errors, strict=True):
            assert library.find(task, probe, settings=settings).provenance["head"]["cv_error"] == error
    folder = tmp_path / "files"
    for task, error in [*zip(tasks, errors, strict=True)] * 2:
        (result,) = t2v.embed_many([task], probe, settings=settings, folder=folder)
        assert result.embedding.provenance["head"]["cv_error"] == error
    assert len([*folder.iterdir()]) == 3


def test_errors_of_a_matrix_are_of_groups_held_out_and_kept_apart(hard, tmp_path):
    plain, probe = replace(hard, groups=None), make_tiny()
    with t2v.Library.open(tmp_path / "library") as library:
        errors = {}
        for name, task in (("plain", plain), ("grouped", hard), ("plain again", plain), ("grouped again", hard)):
            matrix = t2v.error_matrix([task], [probe], library=library, seeds=(0, 1, 2))
            assert matrix.protocols == ("linear-2, train half, logistic, usual",) and not matrix.failures
            errors[name] = float(matrix.errors[0, 0, 0].mean())
        assert errors["plain"] == errors["plain again"] and errors["grouped"] == errors["grouped again"]
        assert errors["grouped"] > errors["plain"] + 0.15
        protocols = {error.protocol for error in library.errors()}
    assert protocols == {matrix.protocols[0], f"{matrix.protocols[0]}, groups {hard.groups_key}"}


def test_models_are_measured_with_groups_held_out_and_stored_by_them(hard):
    plain, probe = replace(hard, groups=None), make_tiny()
    errors = {}
    for name, task in (("plain", plain), ("grouped", hard)):
        measured = measure_models(task, [SimpleNamespace(name="tiny", gmacs=None)], load=lambda _: probe)
        errors[name] = measured.errors["tiny"]
    pairs = set(zip(measured.groups.tolist(), hard.canonical().groups.tolist(), strict=True))
    assert len(pairs) == len(set(hard.groups.tolist()))  # each patient is in a single group
    assert errors["grouped"] > errors["plain"] + 0.15
    assert find_protocol(hard) == f"{find_protocol(plain)}, groups {hard.groups_key}"
