"""Tasks on common images: heads fitted together, and backward passes that share the forward pass of each image."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from task2vec.embedding.backward import Backward, Part, make_keys
from task2vec.embedding.passes import Passes
from task2vec.embedding.pixels import Pixels
from task2vec.embedding.run import describe, judge, measure_with_halves, tensor_cores
from task2vec.embedding.settings import EmbedSettings
from task2vec.embedding.steps import Steps, split_steps
from task2vec.embedding.value import Embedding
from task2vec.errors import DataError, Task2VecError
from task2vec.fisher import Ledger, check_rows
from task2vec.head import Head, fit_head, fit_heads
from task2vec.progress import Report
from task2vec.tasks import Task

# More tasks at a time would save little of the forward passes, and let one wait longer for the first result.
_TOGETHER = 256

Outcome = tuple[int, Embedding | Task2VecError]


def can_share(settings: EmbedSettings) -> bool:
    """Whether tasks share backward passes; otherwise they draw by themselves, until it is enough."""
    return settings.method != "variational" and settings.precision is None


@dataclass(frozen=True)
class Job:
    """One task on its way: as it was given, its steps, and where its images are among the common ones."""

    number: int
    task: Task
    steps: Steps
    places: Tensor


@dataclass(frozen=True)
class Group:
    """What tasks on common images share."""

    settings: EmbedSettings
    passes: Passes
    pixels: Pixels
    features: Tensor
    digests: tuple[str, ...]

    def embed(self, jobs: Sequence[Job], report: Report, *, room: float) -> Iterator[Outcome]:
        """The embedding of every job, or why there is none; `room` bytes are there for sums."""
        if not can_share(self.settings):
            yield from (self._embed_alone(job, report) for job in jobs)
            return
        account = 5 * 8 * self.passes.probe.n_filters * (3 if self.settings.halves else 1)
        size = max(1, min(_TOGETHER, int(room / account)))
        for start in range(0, len(jobs), size):
            yield from self._embed_together(jobs[start : start + size], report)

    def _embed_alone(self, job: Job, report: Report) -> Outcome:
        try:
            return job.number, measure_with_halves(job.task, job.steps, self.features[job.places], report)
        except Task2VecError as error:
            return job.number, error

    def _embed_together(self, jobs: Sequence[Job], report: Report) -> Iterator[Outcome]:
        heads = self._fit(jobs)
        works: list[tuple[Steps, Part]] = []  # of every task, and of its halves if they are wanted
        halved: dict[int, list[int]] = defaultdict(list)
        failed: dict[int, Task2VecError] = {}
        for job, head in zip(jobs, heads, strict=True):
            try:
                own = [(job.places, job.steps, head), *(self._halve(job) if self.settings.halves else ())]
            except DataError as error:
                failed[job.number] = error
                continue
            for places, steps, fitted in own:
                p = steps.probabilities(self.features[places], fitted)
                part = steps.part(p, fitted, steps.draw(p, fitted))
                halved[job.number].append(len(works))
                works.append((steps, replace(part, images=places[part.images])))
        ledger = self._run(works, report)
        for job, head in zip(jobs, heads, strict=True):
            try:
                if job.number in failed:
                    raise failed[job.number]
                numbers = halved[job.number]
                check_rows(ledger.sums[numbers, 1], self.passes.probe.layers)
                whole, *halves = (ledger.estimate(number) for number in numbers)
                found = describe(job.task, job.steps, head, judge(job.steps, whole))
                both = np.stack([half.fisher.numpy() for half in halves]) if halves else None
                yield job.number, replace(found, halves=both)
            except Task2VecError as error:
                yield job.number, error

    def _fit(self, jobs: Sequence[Job]) -> list[Head]:
        """The heads of all jobs; those on the very same images with as many classes are fitted together."""
        alike: dict[tuple, list[int]] = defaultdict(list)
        for position, job in enumerate(jobs):
            kind = (job.places.numpy().tobytes(), len(job.task.classes), job.task.is_multilabel)
            alike[kind].append(position)
        heads: dict[int, Head] = {}
        for (_, classes, _), positions in alike.items():
            features = self.features[jobs[positions[0]].places]
            targets = torch.stack([jobs[position].steps.targets for position in positions])
            heads |= dict(zip(positions, self._fit_alike(features, targets, classes), strict=True))
        return [heads[position] for position in range(len(jobs))]

    def _fit_alike(self, features: Tensor, targets: Tensor, classes: int) -> list[Head]:
        """Heads on the same features; half of them at a time, and so on, if a GPU has not enough memory for all."""
        try:
            return fit_heads(features, targets, classes=classes, l2=self.settings.l2, balance=self.settings.balance)
        except torch.cuda.OutOfMemoryError:
            if len(targets) == 1:
                raise
        self.passes.memory.on_shortage()
        torch.cuda.empty_cache()
        return [head for half in targets.chunk(2) for head in self._fit_alike(features, half, classes)]

    def _halve(self, job: Job) -> Iterator[tuple[Tensor, Steps, Head]]:
        """The two halves of a task: where their images are, their steps and heads."""
        for own, steps in split_steps(job.steps):
            places, classes = job.places[own], len(steps.task.classes)
            settings = self.settings
            head = fit_head(
                self.features[places], steps.targets, classes=classes, l2=settings.l2, balance=settings.balance
            )
            yield places, steps, head

    def _run(self, works: Sequence[tuple[Steps, Part]], report: Report) -> Ledger:
        """What the backward passes of all works bring."""
        accounts = [steps.account(part) for steps, part in works]
        ledger = Ledger(accounts, filters=self.passes.probe.n_filters, device=self.pixels.device)
        if not works:  # no task could be halved
            return ledger
        engine, parts = works[0][0].engine(), [part for _, part in works]
        keys = make_keys(self.digests, seed=self.settings.seed)
        backward = Backward(self.passes, engine, self.pixels, parts=parts, keys=keys, ledger=ledger)
        with tensor_cores(self.pixels.device):
            drawn = torch.nonzero(backward.counts).flatten().tolist()
            backward.run(drawn, report("fisher", sum(len(part.images) for part in parts)))
        return ledger
