"""Sample tasks and toy tasks: different, balanced, exact, and the same for the same seed."""

import numpy as np
import pytest

from task2vec.errors import UsageError
from task2vec.tasks import sample_tasks, toy_tasks
from task2vec.tasks.synthetic import MAX_CLUSTERS, MIN_CLUSTERS, draw_partitions
from tests.failures import refuse

SIDE = 12


@pytest.fixture(scope="module")
def tasks():
    return {task.name: task for task in sample_tasks(images_per_task=20)}


def test_there_are_eight_balanced_and_spotless_ones_and_pairs_share_their_pixels(tasks):
    assert len({task.fingerprint for task in tasks.values()}) == len(tasks) == 8
    for task in tasks.values():
        assert len(task) == len(set(task.digests)) == 20, task.name
        assert task.counts.max() - task.counts.min() <= 1, task.name
        assert task.bad == () and task.warnings == ()
        assert task.images.load(0).mode == "RGB" and task.images.load(0).size == (96, 96)
    assert tasks["digits"].digests == tasks["digit parity"].digests
    assert tasks["photos"].digests == tasks["coin flips"].digests
    assert 0.2 < np.mean(tasks["photos"].targets == tasks["coin flips"].targets) < 0.8


def make_toys(seed):
    return toy_tasks(count=24, side=SIDE, seed=seed)


@pytest.fixture(scope="module")
def toys():
    return make_toys(0)


def test_the_grid_covers_the_square_and_pixels_hold_exact_coordinates(toys):
    points = [toys[0].images.load(index).getpixel((0, 0)) for index in range(len(toys[0]))]
    assert points == [(column, row, 255) for row in range(SIDE) for column in range(SIDE)]
    assert toys[0].images.load(0).size == (1, 1)
    assert len({task.fingerprint for task in toys}) == len({task.name for task in toys}) == len(toys)


def test_regions_are_connected_areas_of_many_numbers_of_clusters(toys):
    partitions = draw_partitions(count=24, side=SIDE, seed=0)
    assert all((task.targets == cut.is_positive).all() for task, cut in zip(toys, partitions, strict=True))
    squares = [cut.is_positive.reshape(SIDE, SIDE) for cut in partitions]
    changes = [np.mean(s[1:] != s[:-1]) + np.mean(s[:, 1:] != s[:, :-1]) for s in squares]
    assert max(changes) < 0.7  # coin flips would give 1
    assert np.corrcoef(changes, [cut.clusters for cut in partitions])[0, 1] > 0.5
    clusters = [partition.clusters for partition in draw_partitions(count=80, side=8, seed=3)]
    assert set(clusters) == set(range(MIN_CLUSTERS, MAX_CLUSTERS + 1))
    assert np.bincount(clusters).max() < 3 * 80 / 14  # uniform: none is drawn three times as often as it should be


def test_the_same_seed_gives_the_same_tasks_and_another_gives_others(tasks, toys):
    for known, make in ((tasks.values(), lambda seed: sample_tasks(images_per_task=20, seed=seed)), (toys, make_toys)):
        first, again, different = ([task.fingerprint for task in drawn] for drawn in (known, make(0), make(1)))
        assert again == first and len(set(first) & set(different)) < 4


def test_impossible_numbers_are_refused_with_their_value(monkeypatch):
    for count in (19, 1741):
        refuse(UsageError, f"images_per_task={count}", sample_tasks, images_per_task=count)
    for name, value in (("count", 0), ("side", 7), ("side", 257), ("seed", -1)):
        refuse(UsageError, f"{name}={value}", toy_tasks, **{name: value})
    monkeypatch.setattr("task2vec.tasks.synthetic._MAX_REPEATED_CLUSTERINGS", 1)
    refuse(UsageError, "larger side", toy_tasks, count=2000, side=8)
