"""Which tasks belong together, and the images that they share: against the obvious way."""

from dataclasses import replace

import numpy as np
import pytest

from task2vec.embedding.many import gather_images, group_tasks
from task2vec.tasks import Task
from tests.embedding.families import FAMILIES, mixed_family


class Named:
    """Images without pixels: they load as what they are called."""

    def __init__(self, names, *, is_threadsafe=True):
        self.names, self.is_threadsafe = names, is_threadsafe

    def __len__(self):
        return len(self.names)

    def load(self, index):
        return f"pixels of {self.names[index]}"

    def name(self, index):
        return self.names[index]


def make(name, digests, **options) -> Task:
    names = [f"{name}/{digest}/{number}" for number, digest in enumerate(digests)]
    return Task(name, Named(names, **options), np.arange(len(digests)) % 2, ("a", "b"), tuple(digests))


def random_tasks(seed):
    rng = np.random.default_rng(seed)
    return [make(f"t{i}", [f"{d:02x}" for d in rng.integers(40, size=rng.integers(2, 6))]) for i in range(9)]


def components(tasks):
    """Tasks joined to whatever shares an image with any of them, until nothing changes."""
    groups = [{i} for i in range(len(tasks))]
    images = [set(task.digests) for task in tasks]
    while True:
        pairs = [(a, b) for a in groups for b in groups if a is not b]
        joined = next(((a, b) for a, b in pairs if any(images[i] & images[j] for i in a for j in b)), None)
        if joined is None:
            return sorted(sorted(group) for group in groups)
        groups = [group for group in groups if group not in joined] + [joined[0] | joined[1]]


@pytest.mark.parametrize("seed", range(30))
def test_groups_are_what_is_joined_by_common_images(seed):
    tasks = random_tasks(seed)
    assert group_tasks(tasks, most=10**9) == components(tasks)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("most", [1, 6, 12])
def test_no_group_has_more_images_than_allowed(seed, most):
    tasks = random_tasks(seed)
    groups = group_tasks(tasks, most=most)
    assert sorted(number for group in groups for number in group) == list(range(len(tasks)))
    together = next(iter(g for g in components(tasks) if 0 in g))
    for group in groups:
        assert len(group) == 1 or len({d for i in group for d in tasks[i].digests}) <= most
        assert set(group) <= set(together) or not set(group) & set(together)
    assert [group[0] for group in groups] == sorted(group[0] for group in groups)


def test_groups_are_filled_before_another_is_begun():
    tasks = [make(str(i), [f"{i:02x}", f"{i + 1:02x}"]) for i in range(6)]
    assert group_tasks(tasks, most=3) == [[0, 1], [2, 3], [4, 5]]
    assert group_tasks(tasks, most=7) == [[0, 1, 2, 3, 4, 5]]
    assert group_tasks([], most=7) == []


@pytest.mark.parametrize("family", [*FAMILIES, "mixed"])
def test_every_task_finds_its_own_images_among_the_common_ones(family):
    tasks = [task.canonical() for task in (FAMILIES | {"mixed": mixed_family})[family]()]
    common, places = gather_images(tasks)
    for task, own in zip(tasks, places, strict=True):
        assert [common.digests[place] for place in own] == list(task.digests)
        assert len(set(own.tolist())) == len(task)  # copies within a task are images of their own
        assert own.tolist() == sorted(own.tolist())  # in the order that the task has alone
        for place, number in zip(own.tolist(), range(len(task)), strict=True):
            assert common.load(place).tobytes() == task.images.load(number).tobytes()
    copies = {d: max(task.digests.count(d) for task in tasks) for task in tasks for d in task.digests}
    assert len(common) == sum(copies.values())
    assert list(common.digests) == sorted(common.digests)


def test_images_come_from_the_first_task_that_has_them_and_are_named_by_it():
    common, places = gather_images([make("one", ["aa", "bb"]), make("two", ["bb", "bb", "cc"])])
    assert [common.name(i) for i in range(4)] == ["one/aa/0", "one/bb/1", "two/bb/1", "two/cc/2"]
    assert common.load(3) == "pixels of two/cc/2"
    assert [own.tolist() for own in places] == [[0, 1], [1, 2, 3]]


def test_one_source_that_is_not_threadsafe_is_enough():
    tasks = [make("one", ["aa", "bb"]), make("two", ["bb", "cc"], is_threadsafe=False)]
    assert gather_images(tasks[:1])[0].is_threadsafe
    assert not gather_images(tasks)[0].is_threadsafe
    # All of its images are taken from the other one: it is not asked for any.
    within = replace(tasks[1], digests=("aa", "bb"), images=Named(["x", "y"], is_threadsafe=False))
    assert gather_images([tasks[0], within])[0].is_threadsafe
