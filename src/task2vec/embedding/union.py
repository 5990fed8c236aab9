"""Images that several tasks share, each of them once."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from task2vec.tasks import Images, Task

# An image by its content; copies of it within one task are images of their own, by their number.
Key = tuple[str, int]


@dataclass(frozen=True)
class CommonImages:
    """The images of some tasks in canonical order, each taken from one task that has it."""

    sources: tuple[tuple[Images, int], ...]
    digests: tuple[str, ...]

    @property
    def is_threadsafe(self) -> bool:
        """Whether all sources are."""
        return all(images.is_threadsafe for images in {id(images): images for images, _ in self.sources}.values())

    def __len__(self) -> int:
        """The number of different images."""
        return len(self.sources)

    def load(self, index: int) -> Image.Image:
        """One image, as its task loads it."""
        images, number = self.sources[index]
        return images.load(number)

    def name(self, index: int) -> str:
        """The name that its task gives to it."""
        images, number = self.sources[index]
        return images.name(number)


def gather_images(tasks: Sequence[Task]) -> tuple[CommonImages, list[np.ndarray]]:
    """The common images of canonical tasks, and for each task the numbers of its own among them.

    The order is that of the content, which is also the canonical order of every single task.
    """
    sources: dict[Key, tuple[Images, int]] = {}
    keys = [list(_name_images(task)) for task in tasks]
    for task, own in zip(tasks, keys, strict=True):
        for number, key in enumerate(own):
            sources.setdefault(key, (task.images, number))
    order = sorted(sources)
    places = {key: place for place, key in enumerate(order)}
    common = CommonImages(tuple(sources[key] for key in order), tuple(digest for digest, _ in order))
    return common, [np.array([places[key] for key in own]) for own in keys]


def group_tasks(tasks: Sequence[Task], *, most: int) -> list[list[int]]:
    """The numbers of tasks that share images, directly or through others, together; at most `most` images in a group.

    A task that has more than that is a group of its own. Groups are in the order of their first tasks.

    Example:
        >>> from task2vec import sample_tasks
        >>> group_tasks(sample_tasks(images_per_task=20), most=1000)  # digits and their parity; photos and coin flips
        [[0, 1], [2], [3], [4], [5], [6, 7]]
    """
    leader = list(range(len(tasks)))

    def lead(number: int) -> int:
        while leader[number] != number:
            leader[number] = leader[leader[number]]
            number = leader[number]
        return number

    first: dict[str, int] = {}
    for number, task in enumerate(tasks):
        for digest in task.digests:
            a, b = sorted((lead(first.setdefault(digest, number)), lead(number)))
            leader[b] = a
    kin: dict[int, list[int]] = defaultdict(list)
    for number in range(len(tasks)):
        kin[lead(number)].append(number)
    return sorted(part for numbers in kin.values() for part in _split(tasks, numbers, most))


def _split(tasks: Sequence[Task], numbers: list[int], most: int) -> Iterator[list[int]]:
    """The tasks in their order, a new group begun where the images of one would be too many."""
    part: list[int] = []
    held: set[str] = set()
    for number in numbers:
        own = set(tasks[number].digests)
        if part and len(held) + len(own - held) > most:
            yield part
            part, held = [], set()
        part.append(number)
        held |= own
    yield part


def _name_images(task: Task) -> Iterator[Key]:
    """A key for every image of a task: its digest, and how many copies of it came before."""
    seen: dict[str, int] = defaultdict(int)
    for digest in task.digests:
        yield digest, seen[digest]
        seen[digest] += 1
