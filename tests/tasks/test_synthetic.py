"""Sample tasks and toy tasks: different, balanced, exact, and the same for the same seed."""

import numpy as np
import pytest

from task2vec.errors import UsageError
from task2vec.tasks import sample_tasks, toy_tasks
from task2vec.tasks.synthetic import MAX_CLUSTERS, MIN_CLUSTERS, draw_partitions, read_point


@pytest.fixture(scope="module")
def tasks():
    return sample_tasks(images_per_task=60)


def test_there_are_eight_balanced_and_spotless_ones(tasks):
    assert len({task.name for task in tasks}) == len(tasks) == 8
    assert len({task.fingerprint for task in tasks}) == 8
    for task in tasks:
        assert len(task) == 60
        assert task.counts.max() - task.counts.min() <= 1, task.name
        assert len(set(task.digests)) == 60, task.name
        assert task.bad == () and task.warnings == ()
        first = task.images.load(0)
        assert first.mode == "RGB" and first.size == (96, 96)
        before = first.tobytes()
        first.paste((1, 2, 3), (0, 0, 96, 96))
        assert task.images.load(0).tobytes() == before  # cannot be changed from outside


def test_the_same_seed_gives_the_same_tasks_and_another_gives_others(tasks):
    again, other = sample_tasks(images_per_task=60), sample_tasks(images_per_task=60, seed=1)
    assert [task.fingerprint for task in again] == [task.fingerprint for task in tasks]
    assert not {task.fingerprint for task in other} & {task.fingerprint for task in tasks}


def test_pairs_share_their_pixels(tasks):
    by_name = {task.name: task for task in tasks}
    assert by_name["digits"].digests == by_name["digit parity"].digests
    assert by_name["photos"].digests == by_name["coin flips"].digests
    assert np.mean(by_name["photos"].targets == by_name["coin flips"].targets) == pytest.approx(0.5, abs=0.2)


@pytest.mark.parametrize("count", [0, 19, 1741])
def test_impossible_numbers_are_refused(count):
    with pytest.raises(UsageError, match=str(count)):
        sample_tasks(images_per_task=count)


SIDE = 12


@pytest.fixture(scope="module")
def toys():
    return toy_tasks(count=24, side=SIDE)


def test_the_grid_covers_the_square_and_coordinates_are_recovered_to_the_last_bit(toys):
    points = [read_point(toys[0].images.load(index), side=SIDE) for index in range(len(toys[0]))]
    assert points == [(column / (SIDE - 1), row / (SIDE - 1), 1.0) for row in range(SIDE) for column in range(SIDE)]
    assert toys[0].images.load(0).size == (1, 1)

    assert len({task.fingerprint for task in toys}) == len({task.name for task in toys}) == len(toys)


def test_the_number_of_clusters_spans_its_range():
    clusters = [partition.clusters for partition in draw_partitions(count=150, side=SIDE, seed=3)]
    assert set(clusters) == set(range(MIN_CLUSTERS, MAX_CLUSTERS + 1))
    # Uniform: no number is drawn three times as often as it should be.
    assert np.bincount(clusters).max() < 3 * 150 / 14


def test_regions_are_connected_areas_not_noise(toys):
    partitions = draw_partitions(count=24, side=SIDE, seed=0)
    assert all((task.targets == cut.is_positive).all() for task, cut in zip(toys, partitions, strict=True))
    squares = [cut.is_positive.reshape(SIDE, SIDE) for cut in partitions]
    changes = [np.mean(s[1:] != s[:-1]) + np.mean(s[:, 1:] != s[:, :-1]) for s in squares]
    assert max(changes) < 0.7  # coin flips would give 1
    assert np.corrcoef(changes, [cut.clusters for cut in partitions])[0, 1] > 0.5


def test_the_same_seed_gives_the_same_toy_tasks(toys):
    again, other = toy_tasks(count=24, side=SIDE), toy_tasks(count=24, side=SIDE, seed=1)
    assert [task.fingerprint for task in again] == [task.fingerprint for task in toys]
    assert len({task.fingerprint for task in other} & {task.fingerprint for task in toys}) < 4


@pytest.mark.parametrize("arguments", [{"count": 0}, {"count": -1}, {"side": 7}, {"side": 257}, {"seed": -1}])
def test_impossible_toys_are_refused_with_their_value(arguments):
    ((name, value),) = arguments.items()
    with pytest.raises(UsageError, match=f"{name}={value}"):
        toy_tasks(**arguments)


def test_more_tasks_than_a_grid_holds_are_refused(monkeypatch):
    monkeypatch.setattr("task2vec.tasks.synthetic._PATIENCE", 3)
    with pytest.raises(UsageError, match="larger side"):
        toy_tasks(count=2000, side=8)
