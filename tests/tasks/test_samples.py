"""The sample tasks: enough of them, different, balanced, and the same for the same seed."""

import numpy as np
import pytest

from task2vec.errors import UsageError
from task2vec.tasks import sample_tasks


@pytest.fixture(scope="module")
def tasks():
    return sample_tasks(images_per_task=60)


def test_there_are_eight_with_different_names(tasks):
    assert len({task.name for task in tasks}) == len(tasks) == 8
    assert len({task.fingerprint for task in tasks}) == 8


def test_they_are_balanced_and_spotless(tasks):
    for task in tasks:
        assert len(task) == 60
        assert task.counts.max() - task.counts.min() <= 1, task.name
        assert len(set(task.digests)) == 60, task.name
        assert task.bad == () and task.warnings == ()


def test_images_are_rgb_and_cannot_be_changed_from_outside(tasks):
    for task in tasks:
        first = task.images.load(0)
        assert first.mode == "RGB" and first.size == (96, 96)
        before = first.tobytes()
        first.paste((1, 2, 3), (0, 0, 96, 96))
        assert task.images.load(0).tobytes() == before


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
