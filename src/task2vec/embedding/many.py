"""Many tasks at once: which of them belong together, what is done already, and what fails."""

import math
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from task2vec.embedding.kept import Shelf, find_kept, find_place, name_file, open_folder
from task2vec.embedding.passes import Passes, infinite_features
from task2vec.embedding.pixels import Pixels
from task2vec.embedding.progress import Report, watch
from task2vec.embedding.run import as_targets, prepare_passes, tensor_cores
from task2vec.embedding.settings import EmbedSettings
from task2vec.embedding.steps import Steps
from task2vec.embedding.together import Group, Job, Outcome, can_share
from task2vec.embedding.union import CommonImages, gather_images, group_tasks
from task2vec.embedding.value import Embedding
from task2vec.errors import DataError, Task2VecError, UsageError
from task2vec.probe import Probe, load_probe
from task2vec.tasks import Task

_GIGABYTE = 1 << 30


@dataclass(frozen=True)
class TaskResult:
    """How one of many tasks came out.

    Attributes:
        number: the place of the task among those given.
        task: its name.
        embedding: what came out, if all went well.
        error: why there is none, if not.
        is_found: whether it was taken from the folder or the shelf instead of being computed.
    """

    number: int
    task: str
    embedding: Embedding | None = None
    error: Task2VecError | None = None
    is_found: bool = False


def embed_many(
    tasks: Sequence[Task],
    probe: Probe | None = None,
    *,
    settings: EmbedSettings = EmbedSettings(),
    folder: str | Path | None = None,
    shelf: Shelf | None = None,
    gigabytes: float = 2.0,
    device: str | None = None,
    workers: int | None = None,
    batch_size: int | None = None,
    progress: bool = False,
) -> Iterator[TaskResult]:
    """The embeddings of many tasks as they are finished; those on the same images cost little more than one.

    A task that fails is told with its error, and the others go on. With a `folder` each embedding is written there at
    once, and one that lies there from an earlier run with the same data, probe and settings is not computed again.
    Whatever else is there stays as it is: an embedding whose name is taken gets a longer one.

    Args:
        tasks: in any order; results come as they are finished, with the number of their task.
        probe: what `load_probe` gives.
        settings: see `EmbedSettings`. With `precision` or the variational method tasks share their features only.
        folder: where to keep the embeddings, one file each; None keeps none.
        shelf: where else to ask for them and to keep them. What one of the two has, the other gets.
        gigabytes: about how much memory features and sums may take. It does not change the numbers, nor does any of
            the arguments below.
        device: "cpu", "cuda"; None takes a GPU if there is one.
        workers: threads that decode images; None takes one per core.
        batch_size: images per step; None chooses one. Halved by itself when GPU memory runs out.
        progress: show progress bars on standard error.

    Example:
        >>> from task2vec import sample_tasks
        >>> digits = sample_tasks(images_per_task=30)[0]
        >>> questions = digits.one_vs_rest()[:3]  # is it a 0? a 1? a 2?
        >>> for result in embed_many(questions, load_probe(size=64), settings=EmbedSettings(images=8)):
        ...     print(result.number, result.embedding)
        0 Embedding(digits: 0, probe=tf_efficientnet_lite0, 21008 filters, 30 images)
        1 Embedding(digits: 1, probe=tf_efficientnet_lite0, 21008 filters, 30 images)
        2 Embedding(digits: 2, probe=tf_efficientnet_lite0, 21008 filters, 30 images)
    """
    if not 0 < gigabytes < math.inf:
        raise UsageError(f"gigabytes={gigabytes} (--gigabytes) must be positive: nothing fits into less. Try 2.")
    tasks, probe = _check_tasks(tasks), probe or load_probe()
    prepare = partial(
        prepare_passes, probe=probe, settings=settings, device=device, workers=workers, batch_size=batch_size
    )
    prepare(CommonImages((), ()))  # what cannot work is refused now, and not when the first result is asked for
    if folder is not None:
        _check_names(tasks)
        folder = open_folder(Path(folder))
    return _Many(tasks, probe, settings, folder, shelf, gigabytes * _GIGABYTE, prepare).run(progress=progress)


def _check_tasks(tasks: Iterable[Task]) -> tuple[Task, ...]:
    """The tasks, if each of them is one."""
    found = (tasks,) if isinstance(tasks, Task) else tuple(tasks)
    for number, task in enumerate(found):
        if not isinstance(task, Task):
            raise UsageError(
                f"number {number} of the tasks is a {type(task).__name__}, which has no images to embed. Make a task "
                "of it first: read_folder, read_table, from_dataset."
            )
    return found


def _check_names(tasks: Sequence[Task]) -> None:
    """Refuses two tasks that would be kept in one file, unless they are the same."""
    for name, count in Counter(name for name, _ in {(name_file(task), task.fingerprint) for task in tasks}).items():
        if count > 1:
            raise UsageError(
                f"{count} tasks would be kept in one file, {name!r}, and all but one be lost. Give each a name of its "
                "own: dataclasses.replace(task, name=...)."
            )


@dataclass(frozen=True)
class _Family:
    """Some of the tasks by their numbers, in canonical order, with the images that they share and where theirs are."""

    numbers: list[int]
    tasks: list[Task]
    images: CommonImages
    places: list[np.ndarray]

    def members(self) -> Iterator[tuple[int, Task, np.ndarray]]:
        """Number, task and places of each."""
        return zip(self.numbers, self.tasks, self.places, strict=True)


@dataclass(frozen=True)
class _Many:
    """The tasks, and all that is the same for them."""

    tasks: tuple[Task, ...]
    probe: Probe
    settings: EmbedSettings
    folder: Path | None
    shelf: Shelf | None
    room: float
    prepare: Callable[..., tuple[Passes, Pixels]]
    shelved: set[str] = field(default_factory=set)

    def run(self, *, progress: bool) -> Iterator[TaskResult]:
        """What was found, then what is computed, group by group."""
        with watch(progress) as report:
            step = report("tasks", len(self.tasks))
            waiting = []
            for number, task in enumerate(self.tasks):
                known = self._find(task)
                if known is None:
                    waiting.append(number)
                    continue
                step(1)
                yield TaskResult(number, task.name, replace(known, task=task.name), is_found=True)
            most = max(1, int(self.room / 2 / (4 * self.probe.feature_dim)))
            for group in group_tasks([self.tasks[number] for number in waiting], most=most):
                for number, outcome in self._embed_group([waiting[own] for own in group], report):
                    step(1)
                    yield self._tell(number, outcome)

    def _tell(self, number: int, outcome: Embedding | Task2VecError) -> TaskResult:
        """The result of one task, kept if it is an embedding."""
        task = self.tasks[number]
        if isinstance(outcome, Task2VecError):
            # The frames of a traceback would keep images and features of the whole group, as long as the result lives.
            return TaskResult(number, task.name, error=outcome.with_traceback(None))
        self._save(outcome, task)
        self._shelve(outcome, task)
        return TaskResult(number, task.name, outcome)

    def _find(self, task: Task) -> Embedding | None:
        """What is kept of a task from an earlier run, by now in both places."""
        there, shelved = None, None
        if self.folder is not None:
            there = find_kept(self.folder, task, self.probe, settings=self.settings)
        if self.shelf is not None:
            shelved = self.shelf.find(task, self.probe, settings=self.settings)
        if there is None and shelved is not None:
            self._save(replace(shelved, task=task.name), task)
        elif there is not None and shelved is None:
            self._shelve(there, task)
        return shelved if there is None else there

    def _save(self, embedding: Embedding, task: Task) -> None:
        if self.folder is not None:
            embedding.save(find_place(self.folder, task, self.probe, settings=self.settings))

    def _shelve(self, embedding: Embedding, task: Task) -> None:
        """Puts an embedding on the shelf, once: a task that is given twice may differ from itself by rounding."""
        if self.shelf is not None and task.fingerprint not in self.shelved:
            self.shelf.keep(embedding, source=task.source)
            self.shelved.add(task.fingerprint)

    def _embed_group(self, numbers: list[int], report: Report) -> Iterator[Outcome]:
        """Tasks that share images; those that have an image which cannot be used fail, and the rest goes on."""
        waiting = [numbers]
        while waiting:
            waiting = (yield from self._try_group(waiting[0], report)) + waiting[1:]

    def _try_group(self, numbers: list[int], report: Report) -> Generator[Outcome, None, list[list[int]]]:
        """Tells what comes out as long as images can be read; what is left then is to be tried again, in groups."""
        tasks = [self.tasks[number].canonical() for number in numbers]
        family = _Family(numbers, tasks, *gather_images(tasks))
        passes, pixels = self.prepare(family.images)
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
        rest = [number for number in numbers if number not in told]
        if len(rest) < len(numbers):
            return [rest] if rest else []
        if len(rest) == 1:
            yield rest[0], cause
            return []
        return [rest[: len(rest) // 2], rest[len(rest) // 2 :]]  # it can be read again, whatever it was

    def _share(self, family: _Family, passes: Passes, pixels: Pixels, report: Report) -> Iterator[Outcome]:
        """What tasks on common images come to; those that have one without finite features fail."""
        with tensor_cores(pixels.device):
            features = passes.features(pixels, report)
        is_bad = ~torch.isfinite(features).all(1).cpu().numpy()
        has_own = self.settings.halves or not can_share(self.settings)  # passes over images of its own
        jobs = []
        for number, task, place in family.members():
            if is_bad[place].any():
                yield number, infinite_features(task.images.name(int(is_bad[place].argmax())))
                continue
            part = pixels.part(place.tolist(), task.images) if has_own else pixels
            steps = Steps(task, self.settings, passes, part, as_targets(task, pixels.device))
            jobs.append(Job(number, self.tasks[number], steps, torch.from_numpy(place)))
        group = Group(self.settings, passes, pixels, features, family.images.digests)
        yield from group.embed(jobs, report, room=self.room / 2)


def _find_unreadable(pixels: Pixels, numbers: Iterable[int]) -> dict[int, DataError]:
    """An error for each of the images that does not load."""
    found: dict[int, DataError] = {}
    for number in numbers:
        try:
            pixels.load(number)
        except DataError as error:
            found[number] = error
    return found
