"""Held-out losses against plain loops with scikit-learn, budgets by a clock, and whatever models do wrong."""

import threading
import time
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression

from task2vec import read_folder, sample_tasks
from task2vec.errors import DataChangedError, DataError, ResourceError, WeightsNotFoundError
from task2vec.head.fit import MAX_REPEATED, REPETITIONS, assign_folds, to_onehot
from task2vec.probe import Preprocess
from task2vec.select import measure
from task2vec.select.measure import PENALTY, DecodedImages, Folds, measure_models, weigh_attributes
from task2vec.tasks import from_dataset
from task2vec.tasks.copies import Copies
from tests.tiny_probe import make_tiny


def name_models(*names, gmacs=1.0):
    return [SimpleNamespace(name=name, gmacs=gmacs) for name in names]


def load_tiny(candidate):
    return make_tiny(sum(map(ord, candidate.name)))


@pytest.fixture(scope="module")
def task():
    """Three digits, 45 images."""
    return sample_tasks(images_per_task=150)[0].select(["0", "1", "7"])


@pytest.fixture(scope="module")
def usual(task):
    """What is measured on the task, and how often progress was reported."""
    done = []
    measured = measure_models(task, name_models("a", "b"), load=load_tiny, progress=lambda stage, total: done.append)
    assert sum(done) == 90
    return measured


@pytest.fixture(scope="module")
def many():
    """150 images of two classes, one of which is a little brighter; a sample has 50."""
    return draw_task(150, contrast=20)


def draw_task(count, *, classes=2, seed=0, copies=0, contrast=0):
    """Noise, brighter from class to class by the contrast; each picture also mirrored `copies` times."""
    random = np.random.default_rng(seed)
    shades = np.arange(count) % classes * contrast
    noise = [random.integers(shade, 200 + shade, (32, 32, 3), dtype=np.uint8) for shade in shades.tolist()]
    pictures = [Image.fromarray(pixels) for pixels in noise]
    pictures = [image for image in pictures for image in (image, *[image.transpose(0)] * copies)]
    labels = np.repeat(np.arange(count) % classes, copies + 1)
    return from_dataset([*zip(pictures, labels.tolist(), strict=True)])


# --- losses ----------------------------------------------------------------------------------------------------------


def hold_out_slowly(features, targets, groups, classes):
    """(n, c) votes: scikit-learn's heads in float64, fold by fold."""
    onehot = to_onehot(torch.from_numpy(targets), classes, is_multilabel=False)[None]
    repetitions = max(1, min(REPETITIONS, MAX_REPEATED // (groups.max() + 1)))
    how = {"is_multilabel": False, "groups": torch.from_numpy(groups), "repetitions": repetitions}
    folds = assign_folds(onehot, **how)[0][0].numpy()
    x = features.double().numpy()
    x = (x - x.mean(0)) / np.sqrt(np.square(x - x.mean(0)).sum(1).mean())
    votes = np.zeros((len(targets), classes))
    for fold in folds:
        for number in np.unique(fold):
            train, held = fold != number, fold == number
            head = LogisticRegression(C=1 / (PENALTY * train.sum()), tol=1e-8, max_iter=20000).fit(
                x[train], targets[train]
            )
            votes[held] += np.eye(classes)[head.predict(x[held])] / repetitions
    return votes


def test_losses_are_those_of_heads_fitted_one_by_one():
    random = np.random.default_rng(0)
    targets = random.permutation(np.arange(120) % 3)
    features = torch.from_numpy(random.normal(size=(120, 12)) + 0.8 * np.eye(3, 12)[targets]).float()
    groups = np.unique(np.minimum(np.arange(120), 110), return_inverse=True)[1]
    groups[targets != targets[110]] = np.arange(200, 200 + (targets != targets[110]).sum())
    groups = np.unique(groups, return_inverse=True)[1]
    losses = Folds(targets, groups, classes=3).judge(features)
    votes = hold_out_slowly(features, targets, groups, 3)
    assert np.abs(losses - (1 - votes[np.arange(120), targets])).mean() < 0.02
    assert 0.1 < np.nanmean(losses) < 0.6


def test_the_error_of_attributes_is_balanced_over_both_values():
    random = np.random.default_rng(1)
    targets = (random.random((60, 3)) < (0.5, 0.2, 0.1)).astype(np.uint8)
    wrong = random.random((60, 3)) < 0.3
    expected = np.mean([[wrong[targets[:, k] == v, k].mean() for v in (0, 1)] for k in range(3)])
    losses = (weigh_attributes(targets, np.arange(60)) * wrong).sum(1)
    assert losses.mean() == pytest.approx(expected, abs=1e-12)


def test_an_attribute_with_a_single_positive_image_does_not_count():
    targets = np.array([[1, 1], [1, 0], [0, 0], [0, 0]], dtype=np.uint8)
    weights = weigh_attributes(targets, np.arange(4))
    assert weights[:, 0].tolist() == [1, 1, 1, 1] and not weights[:, 1].any()
    assert not weigh_attributes(targets, np.array([0, 0, 1, 2])).any()  # the two positives are copies


def test_multilabel_tasks_are_measured(task):
    targets = np.stack([task.targets == 0, task.targets != 1], axis=1).astype(np.uint8)
    attributes = replace(task, targets=targets, classes=("round", "not straight"))
    measured = measure_models(attributes, name_models("a"), load=load_tiny)
    assert np.isfinite(measured.losses).all() and 0 < measured.errors["a"] < 0.7


def test_results_are_the_same_in_any_order_and_from_a_folder(task, usual, tmp_path):
    for row in range(len(task)):
        place = tmp_path / task.classes[task.targets[row]]
        place.mkdir(exist_ok=True)
        task.images.load(row).save(place / f"{row}.png")
    folder = read_folder(tmp_path)
    shuffled = task.subset(np.random.default_rng(0).permutation(len(task)))
    for same in (folder, shuffled):
        measured = measure_models(same, name_models("a", "b"), load=load_tiny)
        for name in ("images", "groups", "losses"):
            np.testing.assert_array_equal(getattr(usual, name), getattr(measured, name))


def test_copies_are_in_one_fold(monkeypatch):
    copied = draw_task(30, copies=1)
    measured = measure_models(copied, name_models("a"), load=load_tiny)
    assert len(np.unique(measured.groups)) == 30 and measured.errors["a"] > 0.3  # nothing can be learned
    monkeypatch.setattr(measure, "find_copies", lambda pictures, digests: Copies(()))
    assert len(np.unique(measure_models(copied, name_models("a"), load=load_tiny).groups)) == 60


@pytest.mark.parametrize(("count", "classes", "copies"), [(3, 3, 0), (2, 2, 0), (2, 2, 3)])
def test_a_task_that_cannot_be_judged_is_refused(count, classes, copies):
    with pytest.raises(DataError, match="no model can be measured"):
        measure_models(draw_task(count, classes=classes, copies=copies), name_models("a"), load=load_tiny)


def test_the_image_of_a_class_of_one_is_not_judged(task):
    rows = np.concatenate([np.flatnonzero(task.targets < 2), np.flatnonzero(task.targets == 2)[:1]])
    measured = measure_models(task.subset(rows), name_models("a"), load=load_tiny)
    targets = task.subset(rows).canonical().targets
    assert (~measured.is_judged).tolist() == (np.bincount(targets)[targets] == 1).tolist()
    assert np.isfinite(measured.errors["a"])


# --- failures --------------------------------------------------------------------------------------------------------


def spoil(probe):
    """The probe with features that are not numbers."""
    network = probe.network
    with torch.no_grad():
        next(network.parameters()).fill_(torch.nan)
    return replace(probe, network=network, _prepared={})


FAILURES = {
    "broken": (RuntimeError("broken"), "RuntimeError: broken"),
    "memory": (MemoryError(), "Memory ran out: MemoryError"),
    "allocator": (RuntimeError("[enforce fail] can't allocate memory: you tried"), "Memory ran out: "),
    "GPU": (ResourceError("the GPU does not have enough"), "Memory ran out: the GPU"),
    "gated": (WeightsNotFoundError("a gated repository. Ask"), "a gated repository. Ask"),
    "spoilt": (None, "not finite"),
}


def test_a_model_that_fails_is_a_row_and_not_the_end(task, usual):
    def load(candidate):
        if candidate.name not in FAILURES:
            return load_tiny(candidate)
        if (error := FAILURES[candidate.name][0]) is not None:
            raise error
        return spoil(load_tiny(candidate))

    measured = measure_models(task, name_models("a", *FAILURES, "b"), load=load)
    assert measured.models == ("a", "b") and not measured.is_interrupted
    for failure, (name, (_, message)) in zip(measured.failures, FAILURES.items(), strict=True):
        assert (failure.model, failure.was_tried) == (name, True) and message in failure.message
    np.testing.assert_array_equal(usual.losses, measured.losses)


def test_images_that_change_end_the_run(task):
    def load(candidate):
        raise DataChangedError("x.png changed")

    with pytest.raises(DataChangedError):
        measure_models(task, name_models("a"), load=load)


@pytest.mark.parametrize("end", ["load", "pass"])
def test_an_interruption_keeps_what_was_measured(task, end):
    def load(candidate):
        if candidate.name == "second" and end == "load":
            raise KeyboardInterrupt
        probe = load_tiny(candidate)
        if candidate.name == "second":
            return replace(probe, preprocess=Interrupting(size=(24, 24), resize=24))
        return probe

    before = set(threading.enumerate())  # other tests may have left some
    measured = measure_models(task, name_models("first", "second", "third"), load=load)
    assert measured.is_interrupted and measured.models == ("first",)
    assert [(failure.model, failure.was_tried) for failure in measured.failures] == [
        ("second", False),
        ("third", False),
    ]
    assert torch.get_num_threads() == 1
    assert not [thread for thread in set(threading.enumerate()) - before if not thread.daemon]


@dataclass(frozen=True)
class Interrupting(Preprocess):
    """Ctrl-C while images are read."""

    def __call__(self, image):
        raise KeyboardInterrupt


# --- budgets, by a clock that only images advance --------------------------------------------------------------------


class Clock:
    """Seconds that pass when a model looks at an image."""

    def __init__(self):
        self.now, self.looks, self.lock = 0.0, {}, threading.Lock()

    def __call__(self):
        return self.now

    def look(self, name, seconds):
        with self.lock:
            self.now += seconds
            self.looks[name] = self.looks.get(name, 0) + 1


@dataclass(frozen=True)
class Slow(Preprocess):
    """A look at an image that takes some seconds of a clock."""

    name: str = ""
    seconds: float = 0.0
    clock: Clock | None = None

    def __call__(self, image):
        self.clock.look(self.name, self.seconds)
        return super().__call__(image)


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(measure, "clock", made)
    monkeypatch.setattr(measure, "MIN_IMAGES", 50)
    return made


def measure_slowly(task, clock, speeds, budget):
    """Models by name with their seconds per image, which are their multiply-adds, too."""
    candidates = [SimpleNamespace(name=name, gmacs=seconds) for name, seconds in speeds.items()]

    def load(candidate):
        slow = Slow((24, 24), 24, name=candidate.name, seconds=candidate.gmacs, clock=clock)
        return replace(load_tiny(candidate), preprocess=slow)

    return measure_models(task, candidates, load=load, budget=budget)


def test_all_images_are_seen_if_there_is_time(many, clock):
    measured = measure_slowly(many, clock, {"a": 0.1, "b": 0.1}, 50)
    assert len(measured.images) == 150 and measured.models == ("a", "b") and measured.earlier is None
    assert clock.looks == {"a": 150, "b": 150} and clock.now <= 50


def test_a_sample_lets_all_models_be_measured(many, clock):
    measured = measure_slowly(many, clock, {"a": 0.1, "b": 0.1, "c": 0.1}, 35)
    first = measured.earlier or measured
    assert len(first.images) == 50 and first.models == ("a", "b", "c") and first.total_images == 150
    assert np.bincount(many.canonical().targets[first.images]).min() >= 24
    assert clock.now <= 35 and not first.failures


def test_a_model_that_is_too_slow_is_left_out_and_a_later_one_is_not(many, clock):
    measured = measure_slowly(many, clock, {"a": 0.1, "giant": 5.0, "b": 0.1}, 35)
    assert measured.models == ("a", "b") and [failure.was_tried for failure in measured.failures] == [False]
    assert "giant" not in clock.looks and "--budget" in measured.failures[0].message


def test_a_first_model_that_is_too_slow_gives_up_early(many, clock):
    measured = measure_slowly(many, clock, {"giant": 2.0, "b": 0.1}, 75)
    assert measured.models == ("b",) and clock.looks["giant"] < 30


def test_the_better_half_goes_on_with_more_images(many, clock):
    speeds = {f"model {number}": 0.1 for number in range(6)}
    measured = measure_slowly(many, clock, speeds, 60)
    assert measured.earlier is not None and clock.now <= 60
    assert len(measured.earlier.models) == 6 and len(measured.earlier.images) == 50
    assert set(measured.models) < set(measured.earlier.models) and len(measured.images) == 100
    assert np.isin(measured.earlier.images, measured.images).mean() > 0.95
    # No image is looked at twice by a model, but for those that the larger sample leaves out.
    assert max(clock.looks.values()) <= 105
    worst = max(measured.earlier.errors, key=measured.earlier.errors.get)
    assert worst not in measured.models and clock.looks[worst] == 50


def test_of_a_large_pool_the_first_round_takes_half_of_the_time(many, clock):
    speeds = {f"model {number}": 0.1 for number in range(20)}
    measured = measure_slowly(many, clock, speeds, 75)
    first = measured.earlier
    while first.earlier is not None:
        first = first.earlier
    assert 5 <= len(first.models) <= 8 and clock.now <= 75
    assert {failure.was_tried for failure in measured.failures} == {False}
    assert len(measured.failures) + len(first.models) == 20


def test_a_second_that_is_not_enough_ends_without_a_model_or_with_one(many):
    measured = measure_models(many, name_models("a", "b", "c"), load=load_tiny, budget=1e-3)
    assert measured.losses.shape[1] == len(measured.models) == len(measured.errors) == 3 - len(measured.failures)
    assert not any(failure.was_tried for failure in measured.failures)


# --- images and progress ---------------------------------------------------------------------------------------------


class Counting:
    """Images that count how often they are decoded."""

    is_threadsafe = False

    def __init__(self, images):
        self.images, self.count = images, 0

    def __len__(self):
        return len(self.images)

    def name(self, index):
        return self.images.name(index)

    def load(self, index):
        self.count += 1
        return self.images.load(index)


@pytest.mark.parametrize(("room", "expected"), [(1 << 30, 45), (0, 90)])
def test_images_are_decoded_once_where_memory_allows(task, usual, monkeypatch, room, expected):
    counting = Counting(task.images)
    monkeypatch.setattr(measure, "DecodedImages", lambda images, **_: DecodedImages(images, room=room))
    measured = measure_models(replace(task, images=counting), name_models("a", "b"), load=load_tiny)
    assert counting.count == expected
    np.testing.assert_array_equal(measured.losses, usual.losses)


def test_lines_of_progress_come_every_ten_seconds_without_a_terminal(task, monkeypatch, capfd):
    assert measure.PROGRESS_PAUSE == 10
    monkeypatch.setattr(measure, "PROGRESS_PAUSE", 0.01)

    def load_slowly(candidate):
        time.sleep(0.2)
        return load_tiny(candidate)

    measure_models(task, name_models("a", "b"), load=load_slowly, progress=True)
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) >= 3 and all(" s: " in line for line in lines)
    assert any("measuring" in line and "of 90" in line for line in lines)


def test_threads_of_torch_are_given_back(task, usual):
    torch.set_num_threads(2)
    try:
        measured = measure_models(task, name_models("a"), load=load_tiny)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    np.testing.assert_array_equal(measured.losses[:, 0], usual.losses[:, 0])
