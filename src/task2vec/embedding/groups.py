"""Tasks that share images become embeddings, wherever that is done: in this process or in another one."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from task2vec.embedding.passes import Passes, infinite_features
from task2vec.embedding.pixels import Pixels
from task2vec.embedding.run import as_targets, prepare_passes, tensor_cores
from task2vec.embedding.settings import EmbedSettings
from task2vec.embedding.steps import Steps
from task2vec.embedding.together import Group, Job, Outcome, can_share
from task2vec.embedding.union import CommonImages, gather_images
from task2vec.errors import DataError
from task2vec.probe import Probe
from task2vec.progress import Report, silent
from task2vec.tasks import Images, Task

# A task with its number among all that were given.
Member = tuple[int, Task]


@dataclass(frozen=True)
class GroupWork:
    """How groups are embedded: all that is the same for them, and that a worker needs to know.

    Attributes:
        probe: what sees the images.
        settings: what changes the numbers.
        room: about how many bytes features and sums may take.
        device: where to compute; None takes a GPU if there is one.
        workers: threads that decode images; None takes one per core, or, in a worker, as many as it computes with.
        batch_size: images per step; None chooses one.
    """

    probe: Probe
    settings: EmbedSettings
    room: float
    device: str | None = None
    workers: int | None = None
    batch_size: int | None = None

    def open(self) -> Callable[[Sequence[Member]], Iterator[Outcome]]:
        """A function from a group to what becomes of its tasks, one by one; see `task2vec.engine.Work`."""
        here = replace(self, workers=self.workers or torch.get_num_threads())
        here.check()
        return partial(here.embed, report=silent)

    def check(self) -> None:
        """Refuses what cannot work, and makes the network ready."""
        self._prepare(CommonImages((), ()))

    def embed(self, group: Sequence[Member], report: Report) -> Iterator[Outcome]:
        """Tasks that share images; those that have an image which cannot be used fail, and the rest goes on."""
        waiting = [list(group)]
        while waiting:
            waiting = (yield from self._try_group(waiting[0], report)) + waiting[1:]

    def _prepare(self, images: Images) -> tuple[Passes, Pixels]:
        how = {"device": self.device, "workers": self.workers, "batch_size": self.batch_size}
        return prepare_passes(images, self.probe, settings=self.settings, **how)

    def _try_group(self, group: list[Member], report: Report) -> Generator[Outcome, None, list[list[Member]]]:
        """Tells what comes out as long as images can be read; what is left then is to be tried again, in groups."""
        family = _Family.of(group)
        passes, pixels = self._prepare(family.images)
        told: set[int] = set()
        try:
            for number, outcome in self._share(family, passes, pixels, report):
                told.add(number)
                yield number, outcome
            return []
        except DataError as error:
            cause = error
        unreadable = list(_find_unreadable(pixels, range(len(pixels))))
        for number, task, place in family.members():
            # Another task that has the same image may have it from another file, which is well.
            own = np.flatnonzero(np.isin(place, unreadable)).tolist() if number not in told else []
            for error in _find_unreadable(pixels.part(place.tolist(), task.images), own).values():
                told.add(number)
                yield number, error
                break
        rest = [member for member in group if member[0] not in told]
        if len(rest) < len(group):
            return [rest] if rest else []
        if len(rest) == 1:
            yield rest[0][0], cause
            return []
        return [rest[: len(rest) // 2], rest[len(rest) // 2 :]]  # it can be read again, whatever it was

    def _share(self, family: "_Family", passes: Passes, pixels: Pixels, report: Report) -> Iterator[Outcome]:
        """What tasks on common images come to; those that have one without finite features fail."""
        with tensor_cores(pixels.device):
            features = passes.features(pixels, report)
        is_bad = ~torch.isfinite(features).all(1).cpu().numpy()
        has_own = self.settings.halves or not can_share(self.settings)  # passes over images of its own
        jobs = []
        for (number, given), (_, task, place) in zip(family.given, family.members(), strict=True):
            if is_bad[place].any():
                yield number, infinite_features(task.images.name(int(is_bad[place].argmax())))
                continue
            part = pixels.part(place.tolist(), task.images) if has_own else pixels
            steps = Steps(task, self.settings, passes, part, as_targets(task, pixels.device))
            jobs.append(Job(number, given, steps, torch.from_numpy(place)))
        group = Group(self.settings, passes, pixels, features, family.images.digests)
        yield from group.embed(jobs, report, room=self.room / 2)


@dataclass(frozen=True)
class _Family:
    """Some tasks as given and in canonical order, the images that they share, and where theirs are among them."""

    given: list[Member]
    tasks: list[Task]
    images: CommonImages
    places: list[np.ndarray]

    @classmethod
    def of(cls, given: list[Member]) -> "_Family":
        """A group with its images."""
        tasks = [task.canonical() for _, task in given]
        return cls(given, tasks, *gather_images(tasks))

    def members(self) -> Iterator[tuple[int, Task, np.ndarray]]:
        """Number, canonical task and places of each."""
        return zip([number for number, _ in self.given], self.tasks, self.places, strict=True)


def _find_unreadable(pixels: Pixels, numbers: Iterable[int]) -> dict[int, DataError]:
    """An error for each of the images that does not load."""
    found: dict[int, DataError] = {}
    for number in numbers:
        try:
            pixels.load(number)
        except DataError as error:
            found[number] = error
    return found
