"""What a worker does for an error matrix: the features of an expert on common images, then cell after cell."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from task2vec.embedding.batching import Pixels
from task2vec.embedding.many import gather_images
from task2vec.errors import DataError
from task2vec.experts.cells import CellPlan, measure_cells, plan_cells
from task2vec.experts.extractors import Extractor, compute_features, open_extractor, prepare_features
from task2vec.experts.protocols import ErrorProtocol
from task2vec.library import MeasuredError
from task2vec.parallel import Failure
from task2vec.probe import Probe
from task2vec.progress import silent
from task2vec.tasks import Task

# Keys of protocols, and seeds.
Wanted = tuple[tuple[str, int], ...]
# Of one task by its number: the errors on top of one expert, or why there are none.
Outcome = tuple[int, tuple[MeasuredError, ...] | Failure]


@dataclass(frozen=True)
class Job:
    """A unit of work: an expert, and tasks that share images, by their numbers, each with what is wanted of it."""

    expert: int
    tasks: tuple[tuple[int, Wanted], ...]


@dataclass(frozen=True)
class CellWork:
    """All that workers need: see `task2vec.parallel.Work`."""

    tasks: tuple[Task, ...]
    experts: tuple[Extractor, ...]
    protocols: tuple[ErrorProtocol, ...]
    seeds: tuple[int, ...]
    device: str | None = None
    num_workers: int | None = None
    batch_size: int | None = None
    download: bool = False

    def open(self) -> Callable[[Job], Iterator[Outcome]]:
        """A function from jobs to outcomes; it keeps the last expert, and the splits of all tasks."""
        return _Bench(self).do


class _Bench:
    """Where one worker works."""

    def __init__(self, work: CellWork):
        self.work = work
        self.loaded: tuple[int, Probe] | None = None
        self.plans: dict[int, CellPlan] = {}

    def do(self, job: Job) -> Iterator[Outcome]:
        """The outcome of each task; one that fails leaves the others be."""
        if self.loaded is None or self.loaded[0] != job.expert:
            self.loaded = None  # two networks need not fit beside each other
            expert = self.work.experts[job.expert]
            self.loaded = (job.expert, open_extractor(expert, download=self.work.download))
        wanted = dict(job.tasks)
        waiting = [list(wanted)]
        while waiting:
            waiting = (yield from self._try(waiting[0], wanted)) + waiting[1:]

    def _try(self, numbers: list[int], wanted: dict[int, Wanted]):
        """Tells what comes of tasks on common images; what is to be tried again without the others is returned."""
        assert self.loaded is not None
        expert, probe = self.work.experts[self.loaded[0]].name, self.loaded[1]
        tasks = [self.work.tasks[number] for number in numbers]
        images, places = gather_images(tasks)
        how = {"device": self.work.device, "num_workers": self.work.num_workers, "batch_size": self.work.batch_size}
        passes, pixels = prepare_features(probe, images, **how)
        try:
            features = compute_features(passes, pixels, silent)
        except Exception as error:
            if len(numbers) == 1:
                yield numbers[0], Failure.of(error)
                return []
            failed = _find_unreadable(pixels, tasks, places) if isinstance(error, DataError) else {}
            for place, failure in failed.items():
                yield numbers[place], failure
            rest = [number for place, number in enumerate(numbers) if place not in failed]
            # It is not known whose fault it is: then each is tried by itself.
            return [rest] * bool(rest) if failed else [[number] for number in rest]
        for number, place in zip(numbers, places, strict=True):
            yield number, self._measure(features[torch.from_numpy(place).to(features.device)], number, expert, wanted)
        return []

    def _measure(
        self, features: Tensor, number: int, expert: str, wanted: dict[int, Wanted]
    ) -> tuple[MeasuredError, ...] | Failure:
        try:
            if number not in self.plans:
                plan = plan_cells(self.work.tasks[number], self.work.protocols, self.work.seeds)
                self.plans[number] = plan.to(features.device)
            return tuple(measure_cells(features, self.plans[number], expert=expert, only=wanted[number]))
        except Exception as error:
            return Failure.of(error)


def _find_unreadable(pixels: Pixels, tasks: Sequence[Task], places: Sequence[np.ndarray]) -> dict[int, Failure]:
    """Why tasks cannot be read, by their places; a common image that is bad for one may be well for another."""
    bad = [number for number in range(len(pixels)) if _try_loading(pixels, number) is not None]
    failed: dict[int, Failure] = {}
    for place, (task, numbers) in enumerate(zip(tasks, places, strict=True)):
        own = pixels.part(numbers.tolist(), task.images)
        for number in np.flatnonzero(np.isin(numbers, bad)).tolist():
            error = _try_loading(own, number)
            if error is not None:
                failed[place] = Failure.of(error)
                break
    return failed


def _try_loading(pixels: Pixels, number: int) -> DataError | None:
    try:
        pixels.load(number)
    except DataError as error:
        return error
    return None
