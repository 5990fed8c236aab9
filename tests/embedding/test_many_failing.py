"""Many tasks of which some fail: each with its own reason, and the others as if it had not been there."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from task2vec.embedding import embed, embed_many
from task2vec.embedding.batching import Passes
from task2vec.errors import DataChangedError, DataError, NotFiniteError, ResourceError, Task2VecError
from task2vec.fisher import PerSampleFisher
from task2vec.tasks import from_dataset, read_folder
from task2vec.tasks.torch_dataset import digest_pixels
from tests.embedding.conftest import make_task, pictures
from tests.embedding.families import FINE, ask, ask_binary, is_close
from tests.embedding.test_methods import make_tiny

TINY = make_tiny()
BLACK = Image.new("RGB", (40, 40))


def run(tasks, **options):
    """The results by the number of their task, each told once."""
    results = list(embed_many(tasks, TINY, **{"settings": FINE, **options}))
    assert sorted(result.number for result in results) == list(range(len(tasks)))
    for result in results:
        assert (result.embedding is None) != (result.error is None)
        assert result.error is None or isinstance(result.error, Task2VecError)
    return {result.number: result for result in results}


def assert_others_are_well(results, tasks, failed, *, settings=FINE):
    assert {number for number, result in results.items() if result.error is not None} == set(failed)
    for number, result in results.items():
        if number not in failed:
            assert is_close(result.embedding, embed(tasks[number], TINY, settings=settings), error=1e-9)


def write_folder(root, pool, labels):
    for number, (image, label) in enumerate(zip(pool, labels, strict=True)):
        place = root / f"class {label}" / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        image.save(place)
    return read_folder(root)


@pytest.fixture
def folders(tmp_path):
    """Tasks on pictures 0-7, 4-11 and 8-15, each from a folder of its own, so that common ones lie in two places."""
    pool, _ = pictures((16,), seed=1)
    return [
        write_folder(tmp_path / f"from {a}", pool[a : a + 8], [i % 2 for i in range(8)]) for a in (0, 4, 8)
    ], tmp_path


# --- images that are gone, or others ---


@pytest.mark.parametrize("harm", ["deleted", "changed"])
def test_a_file_that_is_no_longer_what_it_was_fails_its_own_task(folders, harm):
    tasks, root = folders
    victim = root / "from 0" / "class 1" / "7.png"  # the first place of a picture that the second task has as well
    if harm == "deleted":
        victim.unlink()
    else:
        BLACK.save(victim)
    results = run(tasks)
    assert isinstance(results[0].error, DataChangedError) and "7.png" in str(results[0].error)
    assert_others_are_well(results, tasks, {0})


def test_every_task_that_has_the_file_names_it(folders):
    tasks, root = folders
    again = [*tasks, tasks[1].select(["class 0", "class 1"], name="the same files")]
    (root / "from 4" / "class 0" / "4.png").unlink()
    results = run(again)
    assert all("class 0/4.png" in str(results[number].error) for number in (1, 3))
    assert_others_are_well(results, again, {1, 3})


@pytest.mark.parametrize("others", [{}, {"precision": 0.01}, {"halves": True}])
def test_a_file_that_goes_away_between_the_passes(folders, monkeypatch, others):
    tasks, root = folders
    settings = replace(FINE, seeds="all", **others)
    wanted = [embed(task, TINY, settings=settings) for task in tasks]
    monkeypatch.setattr("task2vec.embedding.batching.CACHE_BYTES", {"cpu": 0, "cuda": 0})
    features = Passes.features

    def then_delete(passes, pixels, report):
        found = features(passes, pixels, report)
        (root / "from 4" / "class 1" / "5.png").unlink(missing_ok=True)
        return found

    monkeypatch.setattr(Passes, "features", then_delete)
    results = run(tasks, settings=settings)
    assert "5.png" in str(results[1].error)
    for number in (0, 2):
        assert is_close(results[number].embedding, wanted[number], error=1e-9)


def test_a_file_that_goes_away_while_results_are_told_fails_what_is_left(folders, monkeypatch):
    (task, *_), root = folders
    tasks = [replace(task, name=f"the same {number}") for number in range(3)]
    monkeypatch.setattr("task2vec.embedding.batching.CACHE_BYTES", {"cpu": 0, "cuda": 0})
    monkeypatch.setattr("task2vec.embedding.many._TOGETHER", 1)
    results = embed_many(tasks, TINY, settings=replace(FINE, seeds="all"))
    told = [next(results)]
    (root / "from 0" / "class 1" / "7.png").unlink()
    told += results
    assert [result.number for result in told] == [0, 1, 2]
    assert [result.error is None for result in told] == [True, False, False]


def test_an_item_of_a_dataset_that_is_another_one():
    pool, _ = pictures((12,), seed=2)
    rows = [[(image, i % c) for i, image in enumerate(pool)] for c in (2, 3)]
    tasks = [from_dataset(own, name=f"{c} classes") for c, own in enumerate(rows)]
    rows[1][5] = (BLACK, 2)
    results = run(tasks)
    # The picture is taken from the first task, which still has it; the second has it no more, but nobody looks.
    assert results[0].error is None
    results = run(tasks[::-1])
    assert isinstance(results[0].error, DataError) and "item 5" in str(results[0].error)
    assert_others_are_well(results, tasks[::-1], {0})


class Flaky:
    """Images of which one cannot be read at first."""

    is_threadsafe = False

    def __init__(self, images, *, times, error=None):
        self.images, self.times, self.error = images, times, error or DataChangedError("the drive was away")

    def __len__(self):
        return len(self.images)

    def load(self, index):
        if index == 2 and self.times:
            self.times -= 1
            raise self.error
        return self.images.load(index)

    def name(self, index):
        return self.images.name(index)


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_drive_that_comes_back_costs_nothing_but_time(times):
    tasks = ask_binary(4)
    ill = [replace(task, images=Flaky(task.images, times=times * (number == 1))) for number, task in enumerate(tasks)]
    results = run(ill)
    failed = {number for number, result in results.items() if result.error is not None}
    assert failed <= {1}
    assert_others_are_well(results, tasks, failed)


def test_a_single_task_whose_image_is_there_only_on_the_second_look_fails_with_what_was_said():
    task = ask_binary(1)[0]
    result = run([replace(task, images=Flaky(task.images, times=1))])[0]
    assert "the drive was away" in str(result.error)


def test_one_poisoned_task_among_fifty(tmp_path):
    """R3."""
    pool, _ = pictures((12,), seed=3)
    tasks = [ask(pool, np.random.default_rng(i).permutation(12) % 2, f"task-{i}") for i in range(50)]
    rows = [(BLACK if i == 4 else image, i % 2) for i, image in enumerate(pool)]
    tasks[23] = from_dataset(rows, name="poisoned")
    rows[4] = (Image.new("RGB", (40, 40), (1, 2, 3)), 0)
    results = run(tasks, folder=tmp_path)
    failed = [result for result in results.values() if result.error is not None]
    assert [(result.number, result.task) for result in failed] == [(23, "poisoned")]
    assert "item 4" in str(failed[0].error)
    assert len(list(tmp_path.iterdir())) == 49
    for number in (0, 22, 24, 49):
        assert is_close(results[number].embedding, embed(tasks[number], TINY, settings=FINE), error=1e-9)


# --- numbers that are not finite ---


def with_black(count=4):
    """Tasks on common pictures; the second and the last have a black one too."""
    pool, _ = pictures((10,), seed=4)
    own = [[*pool, BLACK] if number in (1, count - 1) else pool for number in range(count)]
    return [ask(images, [i % 2 for i in range(len(images))], f"t{n}") for n, images in enumerate(own)]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_image_without_finite_features_is_named_and_fails_its_tasks(monkeypatch, value):
    features, seen = Passes._features, []

    def spoilt(passes, pixels):
        seen.append(len(pixels))
        found = features(passes, pixels).clone()
        found[pixels.flatten(1).amax(1) == 0] = value
        return found

    tasks = with_black()
    with monkeypatch.context() as patch:
        patch.setattr(Passes, "_features", spoilt)
        results = run(tasks)
    assert sum(seen) == 11  # the others need no second look
    for number in (1, 3):
        assert isinstance(results[number].error, NotFiniteError) and "'item 10'" in str(results[number].error)
    assert_others_are_well(results, tasks, {1, 3})


def test_an_image_is_called_as_its_own_task_calls_it(monkeypatch):
    features = Passes._features

    def spoilt(passes, pixels):
        found = features(passes, pixels).clone()
        found[pixels.flatten(1).amax(1) == 0] = float("nan")
        return found

    monkeypatch.setattr(Passes, "_features", spoilt)
    pool, _ = pictures((24,), seed=4)
    later = [image for image in pool if digest_pixels(image) > digest_pixels(BLACK)]
    assert 2 < len(later) < len(pool)  # in the canonical order, the black one is another for a task of these alone
    sets = {"last": [*pool, BLACK], "first": [BLACK, *pool], "fewer": [later[0], BLACK, *later[1:]]}
    results = run([ask(images, [i % 2 for i in range(len(images))], name) for name, images in sets.items()])
    assert [str(results[number].error).split("'")[2] for number in range(3)] == ["item 24", "item 0", "item 1"]


def test_rows_that_are_not_finite_fail_the_tasks_that_drew_them(monkeypatch):
    rows = PerSampleFisher.rows_by_seed

    def spoilt(engine, images, seeds, keys=None):
        darkest = images.flatten(1).amax(1).argmin()
        is_black = images.flatten(1).std(1)[darkest] < 1.2 and images[darkest].amax() < 0
        for found in rows(engine, images, seeds, keys):
            if is_black:
                found = found.clone()
                found[darkest, 8:] = float("nan")
            yield found

    tasks, settings = with_black(), replace(FINE, seeds="all")
    with monkeypatch.context() as patch:
        patch.setattr(PerSampleFisher, "rows_by_seed", spoilt)
        results = run(tasks, settings=settings)
    for number in (1, 3):
        assert isinstance(results[number].error, NotFiniteError) and "layer 'second'" in str(results[number].error)
    assert_others_are_well(results, tasks, {1, 3}, settings=settings)


# --- tasks that cannot be halved ---


@pytest.mark.parametrize("others", [{}, {"precision": 0.5}])
@pytest.mark.parametrize("count", [1, 3])
def test_a_task_that_cannot_be_halved_fails_alone(count, others):
    settings = replace(FINE, halves=True, **others)
    tasks = [make_task((1, 1), name="one each"), *ask_binary(count - 1)]
    results = run(tasks, settings=settings)
    assert "cannot be split into halves" in str(results[0].error)
    assert_others_are_well(results, tasks, {0}, settings=settings)


def test_a_task_that_cannot_be_halved_among_those_on_its_images():
    pool, _ = pictures((8,), seed=5)
    tasks = [ask(pool, [int(i == k) for i in range(8)], f"only {k}") for k in range(2)]
    tasks.append(ask(pool, [i % 2 for i in range(8)], "even"))
    results = run(tasks, settings=replace(FINE, halves=True))
    assert_others_are_well(results, tasks, {0, 1}, settings=replace(FINE, halves=True))


# --- what is not a failure of a task ---


@pytest.mark.parametrize("error", [MemoryError("no memory"), KeyboardInterrupt(), RuntimeError("a bug")])
def test_what_nobody_expects_is_not_swallowed(error):
    tasks = ask_binary(2)
    ill = replace(tasks[1], images=Flaky(tasks[1].images, times=1, error=error))
    threads = threading.active_count()
    with pytest.raises(type(error)):
        list(embed_many([make_task(), ill], TINY, settings=FINE))
    assert threading.active_count() == threads


def test_a_full_disk_ends_the_run_and_what_was_told_is_kept(tmp_path, monkeypatch):
    from task2vec import storage

    calls, replace_file = [], storage.os.replace

    def full(source, target):
        calls.append(target)
        if len(calls) > 2:
            raise OSError(28, "No space left on device")
        replace_file(source, target)

    monkeypatch.setattr(storage.os, "replace", full)
    results = embed_many(ask_binary(4), TINY, settings=FINE, folder=tmp_path)
    assert [next(results).number, next(results).number] == [0, 1]
    with pytest.raises(ResourceError, match="No space left"):
        next(results)
    assert sorted(place.name for place in tmp_path.iterdir()) == [
        "question-0.t2v.safetensors",
        "question-1.t2v.safetensors",
    ]


def test_an_error_that_is_kept_keeps_no_images(folders):
    tasks, root = folders
    (root / "from 0" / "class 1" / "7.png").unlink()
    errors = [result.error for result in run(tasks).values() if result.error is not None]
    assert errors and all(error.__traceback__ is None for error in errors)
    with pytest.raises(DataChangedError):
        raise errors[0]


def test_a_gpu_too_small_for_one_image_is_no_failure_of_a_task(monkeypatch):
    def full(engine, images, seeds, keys=None):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory (pretended)")

    monkeypatch.setattr(PerSampleFisher, "rows_by_seed", full)
    with pytest.raises(ResourceError, match="single image"):
        list(embed_many(ask_binary(2), TINY, settings=FINE, batch_size=1))
