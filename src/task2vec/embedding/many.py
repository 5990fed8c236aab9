"""Many tasks at once: what is done already, which of the rest belong together, and what fails."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from task2vec.embedding.groups import GroupWork
from task2vec.embedding.kept import Shelf, find_kept, find_place, name_file, open_folder
from task2vec.embedding.settings import EmbedSettings
from task2vec.embedding.together import Outcome
from task2vec.embedding.union import group_tasks
from task2vec.embedding.value import Embedding
from task2vec.engine import Engine, Unit, borrow_engine
from task2vec.errors import Task2VecError, UsageError
from task2vec.probe import Probe, load_probe
from task2vec.progress import Report, show_progress
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
    engine: Engine | str | None = None,
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
        gigabytes: about how much memory features and sums may take in each process. It does not change the numbers,
            nor does any of the arguments below.
        device: "cpu", "cuda"; None takes a GPU if there is one.
        workers: threads that decode images; None takes one per core.
        batch_size: images per step; None chooses one. Halved by itself when GPU memory runs out.
        engine: who computes: "pool" (processes of this machine), "ray", or what `open_engine` gives. Tasks that share
            images go to the same worker. This process alone keeps what comes out. None computes here.
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
    work = GroupWork(probe, settings, gigabytes * _GIGABYTE, device, workers, batch_size)
    # What cannot work is refused now, and not when the first result is asked for; the device may be that of others.
    (work if engine is None else replace(work, device="cpu")).check()
    if folder is not None:
        _check_names(tasks)
        folder = open_folder(Path(folder))
    return _Many(tasks, work, folder, shelf, engine).run(progress=progress)


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
class _Many:
    """The tasks, how they are embedded, by whom, and where that is kept."""

    tasks: tuple[Task, ...]
    work: GroupWork
    folder: Path | None
    shelf: Shelf | None
    engine: Engine | str | None
    shelved: set[str] = field(default_factory=set)

    def run(self, *, progress: bool) -> Iterator[TaskResult]:
        """What was found, then what is computed, group by group."""
        with show_progress(progress) as report:
            step = report("tasks", len(self.tasks))
            waiting = []
            for number, task in enumerate(self.tasks):
                known = self._find(task)
                if known is None:
                    waiting.append(number)
                    continue
                step(1)
                yield TaskResult(number, task.name, replace(known, task=task.name), is_found=True)
            for number, outcome in self._embed(waiting, report):
                step(1)
                yield self._tell(number, outcome)

    def _embed(self, numbers: list[int], report: Report) -> Iterator[Outcome]:
        """What becomes of these tasks. Who computes does not change the groups, and so no byte of what comes out."""
        most = max(1, int(self.work.room / 2 / (4 * self.work.probe.feature_dim)))
        groups = group_tasks([self.tasks[number] for number in numbers], most=most)
        members = [[(numbers[own], self.tasks[numbers[own]]) for own in group] for group in groups]
        if self.engine is None:
            for group in members:
                yield from self.work.embed(group, report)
        elif members:
            units = {f"task {group[0][0]} ({group[0][1].name})": group for group in members}
            with borrow_engine(self.engine) as engine:
                yield from self._embed_elsewhere(engine, [Unit(key, group) for key, group in units.items()])

    def _embed_elsewhere(self, engine: Engine, units: Sequence[Unit]) -> Iterator[Outcome]:
        """What workers make of the groups; a group that fails is a failure of all its tasks that were not told yet."""
        waiting = {unit.key: {number for number, _ in unit.payload} for unit in units}
        for result in engine.run(self.work, units):
            left = waiting[result.key]
            if not result.is_last:
                number, outcome = result.value
                if number in left:  # of a group that was begun again it may have been told before
                    left.remove(number)
                    yield number, outcome
            elif result.failure is not None:
                yield from ((number, result.failure.error()) for number in sorted(left))

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
            there = find_kept(self.folder, task, self.work.probe, settings=self.work.settings)
        if self.shelf is not None:
            shelved = self.shelf.find(task, self.work.probe, settings=self.work.settings)
        if there is None and shelved is not None:
            self._save(replace(shelved, task=task.name), task)
        elif there is not None and shelved is None:
            self._shelve(there, task)
        return shelved if there is None else there

    def _save(self, embedding: Embedding, task: Task) -> None:
        if self.folder is not None:
            embedding.save(find_place(self.folder, task, self.work.probe, settings=self.work.settings))

    def _shelve(self, embedding: Embedding, task: Task) -> None:
        """Puts an embedding on the shelf, once: a task that is given twice may differ from itself by rounding."""
        if self.shelf is not None and task.fingerprint not in self.shelved:
            self.shelf.keep(embedding, source=task.source)
            self.shelved.add(task.fingerprint)
