"""Many tasks at once: which of them belong together, what is done already, and what fails."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from task2vec.embedding.common import gather_images, group_tasks
from task2vec.embedding.device import choose_device
from task2vec.embedding.kept import find_kept, name_file
from task2vec.embedding.passes import Passes, infinite_features
from task2vec.embedding.pixels import Pixels
from task2vec.embedding.progress import Report, watch
from task2vec.embedding.run import as_targets, prepare_passes, tensor_cores
from task2vec.embedding.settings import EmbedSettings
from task2vec.embedding.steps import Steps
from task2vec.embedding.together import Group, Job
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
        is_found: whether it was taken from the folder instead of being computed.
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
    gigabytes: float = 2.0,
    device: str | None = None,
    workers: int | None = None,
    batch_size: int | None = None,
    progress: bool = False,
) -> Iterator[TaskResult]:
    """The embeddings of many tasks as they are finished; those on the same images cost little more than one.

    A task that fails is told with its error, and the others go on. With a `folder` each embedding is written there at
    once, and one that lies there from an earlier run with the same data, probe and settings is not computed again.

    Args:
        tasks: in any order; results come as they are finished, with the number of their task.
        probe: what `load_probe` gives.
        settings: see `EmbedSettings`. With `precision` or the variational method tasks share their features only.
        folder: where to keep the embeddings, one file each; None keeps none.
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
    if not gigabytes > 0:
        raise UsageError(f"gigabytes={gigabytes} must be a positive number: nothing fits into less. Try 2.")
    choose_device(device)  # refused now, and not when the first result is asked for
    place = None if folder is None else Path(folder)
    if place is not None:
        _check_names(tasks)
    probe = probe or load_probe()
    prepare = partial(
        prepare_passes, probe=probe, settings=settings, device=device, workers=workers, batch_size=batch_size
    )
    many = _Many(tuple(tasks), probe, settings, place, gigabytes * _GIGABYTE, prepare)
    return many.run(progress=progress)


def _check_names(tasks: Sequence[Task]) -> None:
    """Refuses two tasks that would be kept in one file."""
    names = [name_file(task) for task in tasks]
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise UsageError(
            f"two tasks would be kept in one file, {twice[0]!r}, and one of them be lost. Give each a name of its own."
        )


@dataclass(frozen=True)
class _Many:
    """The tasks, and all that is the same for them."""

    tasks: tuple[Task, ...]
    probe: Probe
    settings: EmbedSettings
    folder: Path | None
    room: float
    prepare: Callable[..., tuple[Passes, Pixels]]

    def run(self, *, progress: bool) -> Iterator[TaskResult]:
        """What was found, then what is computed, group by group."""
        with watch(progress) as report:
            step = report("tasks", len(self.tasks))
            waiting = []
            for number, task in enumerate(self.tasks):
                known = None
                if self.folder is not None:
                    known = find_kept(self.folder, task, self.probe, settings=self.settings)
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
            return TaskResult(number, task.name, error=outcome)
        if self.folder is not None:
            outcome.save(self.folder / name_file(task))
        return TaskResult(number, task.name, outcome)

    def _embed_group(self, numbers: list[int], report: Report) -> Iterator[tuple[int, Embedding | Task2VecError]]:
        """Tasks that share images; those that have an image which cannot be used fail, and the rest goes on."""
        canonical = [self.tasks[number].canonical() for number in numbers]
        images, places = gather_images(canonical)
        passes, pixels = self.prepare(images)
        try:
            with tensor_cores(pixels.device):
                features = passes.features(pixels, report)
            unusable = _find_infinite(features, pixels)
        except DataError:
            features, unusable = torch.empty(0), _find_unreadable(pixels)
            if not unusable:
                raise
        if unusable:
            causes = [next((unusable[place] for place in own.tolist() if place in unusable), None) for own in places]
            yield from ((number, cause) for number, cause in zip(numbers, causes, strict=True) if cause)
            rest = [number for number, cause in zip(numbers, causes, strict=True) if not cause]
            yield from self._embed_group(rest, report) if rest else ()
            return
        group = Group(self.settings, passes, pixels, features, images.digests)
        jobs = []
        for number, task, own in zip(numbers, canonical, places, strict=True):
            part = pixels.part(own.tolist(), task.images)
            steps = Steps(task, self.settings, passes, part, as_targets(task, pixels.device))
            jobs.append(Job(number, self.tasks[number], steps, torch.from_numpy(own)))
        yield from group.embed(jobs, report, room=self.room / 2)


def _find_infinite(features: torch.Tensor, pixels: Pixels) -> dict[int, Task2VecError]:
    """An error for every image whose features are not finite."""
    bad = torch.nonzero(~torch.isfinite(features).all(1)).flatten().tolist()
    return {number: infinite_features(pixels.images.name(number)) for number in bad}


def _find_unreadable(pixels: Pixels) -> dict[int, Task2VecError]:
    """An error for every image that does not load."""
    found: dict[int, Task2VecError] = {}
    for number in range(len(pixels)):
        try:
            pixels.load(number)
        except DataError as error:
            found[number] = error
    return found
