"""The error matrix: the test error of every task on every model, resumable and in parallel."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from task2vec.embedding.batching import Pixels
from task2vec.embedding.many import gather_images, group_tasks
from task2vec.errors import ConflictError, DataError, Task2VecError, UsageError
from task2vec.experts.checkpoint import (
    ExpertProbe,
    TrainedExpert,
    count_gmacs,
    count_parameters,
    name_architecture,
)
from task2vec.experts.linear_probe import (
    CellPlan,
    Model,
    check_models,
    compute_features,
    measure_cells,
    open_model,
    plan_cells,
    prepare_features,
)
from task2vec.experts.metatask import CellFailure, MetaTask, ModelInfo, TaskInfo, build_metatask, deduplicate_names
from task2vec.experts.protocol import ErrorProtocol
from task2vec.library import Expert, Library, MeasuredError
from task2vec.parallel import Backend, Failure, Unit, borrow_backend
from task2vec.probe import Probe
from task2vec.progress import show_progress, silent
from task2vec.tasks import Task

# The record of a run in a library, and which of its cells are of models that were trained on the task.
RUN, SEEN = "error-matrix", "trivial"
# Images whose features are held at a time; a task that has more is measured by itself.
_MOST_IMAGES = 100_000
# Keys of protocols, and seeds.
Wanted = tuple[tuple[str, int], ...]
# Of one task by its number: the errors on one model, or why there are none.
Outcome = tuple[int, tuple[MeasuredError, ...] | Failure]


def error_matrix(
    tasks: Iterable[Task],
    models: Iterable[Model],
    *,
    protocols: Sequence[ErrorProtocol] = (ErrorProtocol(),),
    seeds: Sequence[int] = (0,),
    library: Library | None = None,
    backend: str | Backend | None = None,
    trained_on: Mapping[str, Task | Iterable[Task]] | None = None,
    device: str | None = None,
    num_workers: int | None = None,
    batch_size: int | None = None,
    download: bool = False,
    progress: bool = False,
    on_cell: Callable[[tuple[MeasuredError, ...] | CellFailure], None] | None = None,
) -> MetaTask:
    """The test error of a linear classifier for every task on every model.

    A model sees each image once, however many tasks share it. With a `library` every finished cell is kept at once, and
    what is there already is not computed again: a run that was killed resumes. A cell that fails is reported in
    `failures` and recorded in the library, and the others go on.

    Args:
        tasks: what `read_folder` and its siblings return.
        models: what `load_probe`, `train_expert` or `library.experts()` return, each with a name of its own.
        protocols: how errors are measured.
        seeds: of splits and all other randomness.
        library: where errors, tasks and models are kept.
        backend: "serial" (None), "processes", "ray", or what `open_backend` returns. Like all arguments below it
            changes no error.
        trained_on: the tasks that models were trained on, by the models' names. Cells of tasks that share an image with
            them are marked in `has_seen`; so are those of the source task that an expert knows of itself.
        device: "cpu", "cuda"; None takes a GPU if there is one.
        num_workers: threads that decode images; None takes one per core.
        batch_size: images per step; None chooses one. Halved automatically when GPU memory runs out.
        download: download weights that are not on this machine.
        progress: show on standard error how many cells are done, and how long the rest will take.
        on_cell: called with the errors of each task and model as they are finished, or with the failure.

    Example:
        >>> import task2vec as t2v
        >>> tasks = t2v.sample_tasks(images_per_task=20)[:2]
        >>> errors = error_matrix(tasks, [t2v.load_probe(size=32)], seeds=(0, 1))
        >>> errors
        MetaTask(error matrix, 2 tasks, 1 models, 1 protocols, 2 seeds)
        >>> errors.mean_errors().shape
        (2, 1, 1)
    """
    run = _Run(_check_tasks(tasks), check_models(models), tuple(protocols), tuple(seeds), library)
    run.find_seen(trained_on)
    run.on_cell = on_cell or (lambda _: None)
    options = {"device": device, "num_workers": num_workers, "batch_size": batch_size}
    with run.record(), show_progress(progress) as report, borrow_backend(backend or "serial") as opened:
        run.begin()
        count = len(run.tasks) * len(run.models)
        step = report("cells", count)
        units = run.list_units()
        step(count - sum(len(job.tasks) for job in run.jobs.values()))
        work = CellWork(run.tasks, run.models, run.protocols, run.seeds, options, download)
        for result in opened.run(work, units):
            if result.value is not None:
                step(run.take(result.key, result.value))
            if result.failure is not None:
                step(run.give_up(result.key, result.failure))
    return run.result()


def _check_tasks(tasks: Iterable[Task]) -> tuple[Task, ...]:
    """The tasks in canonical order, if each is one, and no two are the same."""
    found: dict[str, Task] = {}
    for task in (tasks,) if isinstance(tasks, Task) else tasks:
        if not isinstance(task, Task):
            raise UsageError(
                f"a {type(task).__name__} has no images to classify, so it is no task. Make a task of it first: "
                "read_folder, read_table, from_dataset."
            )
        if task.fingerprint in found:
            raise UsageError(
                f"'{task.name}' and '{found[task.fingerprint].name}' are the same images in the same classes, so they "
                "are one task. Pass it once."
            )
        found[task.fingerprint] = task.canonical()
    return tuple(found.values())


def describe_model(model: Model) -> Expert:
    """The model as a library keeps it; a network that it cannot load again is kept by name, for its errors."""
    if isinstance(model, Expert):
        return model
    if isinstance(model, ExpertProbe) and model.entry is not None:
        return replace(model.entry, name=model.name)
    if isinstance(model, TrainedExpert) and model.path is not None:
        return model.entry()
    probe = open_model(model)
    known = name_architecture(probe)
    source, location = ("file", f"module {type(probe.network).__name__}") if known is None else ("hub", known)
    return Expert(
        model.name,
        source,
        location,
        task=_find_source(model),
        recipe={"network": probe.fingerprint, "weights": probe.source},
        parameters=count_parameters(probe.network),
        input_size=probe.size[0],
        cost=round(count_gmacs(probe.network, probe.size), 6),
    )


def _find_source(model: Model) -> str | None:
    """Fingerprint of the task that a model was fine-tuned on, if it is known."""
    return model.metadata["task_fingerprint"] if isinstance(model, TrainedExpert) else getattr(model, "task", None)


@dataclass(frozen=True)
class Job:
    """A unit of work: a model, and tasks that share images, by their numbers, each with what is wanted of it."""

    model: int
    tasks: tuple[tuple[int, Wanted], ...]


@dataclass
class _Run:
    """Cells under way: those that are known, those to be computed, and those that failed."""

    tasks: tuple[Task, ...]
    models: tuple[Model, ...]
    protocols: tuple[ErrorProtocol, ...]
    seeds: tuple[int, ...]
    library: Library | None
    known: dict[tuple[str, str, str, int], MeasuredError] = field(default_factory=dict)
    seen: set[tuple[str, str]] = field(default_factory=set)
    jobs: dict[str, Job] = field(default_factory=dict)
    settled: set[tuple[str, int]] = field(default_factory=set)  # by unit and task
    failures: list[CellFailure] = field(default_factory=list)
    on_cell: Callable[[tuple[MeasuredError, ...] | CellFailure], None] = lambda _: None

    def __post_init__(self):
        """Refuse seeds and protocols that measure nothing."""
        if not self.protocols or not self.seeds:
            raise UsageError("an error matrix needs a protocol and a seed, or there is nothing to measure. Give one.")
        for name, values in (("seeds", self.seeds), ("protocols", self.protocols)):
            if len(set(values)) < len(values):
                raise UsageError(f"some of the {name} occur twice, and would be measured once. Give each once.")

    def find_seen(self, trained_on: Mapping[str, Task | Iterable[Task]] | None) -> None:
        """Notes which models were trained on images of which tasks."""
        unknown = set(trained_on or ()) - {model.name for model in self.models}
        if unknown:
            raise UsageError(
                f"trained_on names '{min(unknown)}', and no model is called so: its cells would not be marked. The "
                f"models are: {', '.join(model.name for model in self.models)}"
            )
        for model in self.models:
            own, given = _find_source(model), (trained_on or {}).get(model.name, ())
            images = {digest for task in ((given,) if isinstance(given, Task) else given) for digest in task.digests}
            for task in self.tasks:
                if task.fingerprint == own or not images.isdisjoint(task.digests):
                    self.seen.add((task.fingerprint, model.name))

    def record(self):
        """The run in the library, from its begin to its end."""
        if self.library is None:
            return nullcontext()
        details = {
            "tasks": [task.fingerprint for task in self.tasks],
            "experts": [model.name for model in self.models],
            "protocols": [protocol.key for protocol in self.protocols],
            "seeds": list(self.seeds),
            SEEN: sorted(self.seen),
        }
        return self.library.record(RUN, details)

    def begin(self) -> None:
        """Adds tasks and models to the library, and reads the errors that it has of them."""
        if self.library is not None:
            self.library.add(*self.tasks, *map(describe_model, self.models))
            self._read()

    def _read(self) -> None:
        assert self.library is not None
        fingerprints, names = {task.fingerprint for task in self.tasks}, {model.name for model in self.models}
        wanted = {(protocol.key, seed) for protocol in self.protocols for seed in self.seeds}
        for error in self.library.errors():
            if (error.protocol, error.seed) in wanted and error.task in fingerprints and error.expert in names:
                self.known[_key(error)] = error

    def list_units(self) -> list[Unit]:
        """The work: for each model, groups of tasks on common images with their missing cells.

        The same for all backends, so that all compute the same sums.
        """
        for number, model in enumerate(self.models):
            missing = {place: found for place, task in enumerate(self.tasks) if (found := self._missing(task, model))}
            places = list(missing)
            for group in group_tasks([self.tasks[place] for place in places], most=_MOST_IMAGES):
                own = [places[place] for place in group]
                key = f"{model.name} on {self.tasks[own[0]].name}" + (f" and {len(own) - 1} more" * (len(own) > 1))
                self.jobs[f"{number}.{own[0]}: {key}"] = Job(number, tuple((place, missing[place]) for place in own))
        return [Unit(key, job) for key, job in self.jobs.items()]

    def _missing(self, task: Task, model: Model) -> Wanted:
        """Protocols and seeds that a task was not measured by on a model."""
        return tuple(
            (protocol.key, seed)
            for protocol in self.protocols
            for seed in self.seeds
            if (task.fingerprint, model.name, protocol.key, seed) not in self.known
        )

    def take(self, key: str, outcome: Outcome) -> int:
        """Keeps the outcome of a task; 1 if it is new, 0 if a unit was begun again and repeats it."""
        number, found = outcome
        if (key, number) in self.settled:
            return 0
        if isinstance(found, Failure):
            self._fail(key, number, found)
            return 1
        self.settled.add((key, number))
        self.known |= {_key(error): error for error in found}
        if self.library is not None:
            try:
                self.library.add(*found)
            except ConflictError:  # another run measured some of them meanwhile, and what is kept is not changed
                for error in found:
                    with suppress(ConflictError):
                        self.library.add(error)
                self._read()
        self.on_cell(tuple(self.known[_key(error)] for error in found))
        return 1

    def give_up(self, key: str, failure: Failure) -> int:
        """Notes that a unit failed; returns how many of its tasks had no outcome yet."""
        left = [number for number, _ in self.jobs[key].tasks if (key, number) not in self.settled]
        for number in left:
            self._fail(key, number, failure)
        return len(left)

    def _fail(self, key: str, number: int, failure: Failure) -> None:
        self.settled.add((key, number))
        task, model = self.tasks[number], self.models[self.jobs[key].model]
        cell = CellFailure(task.name, task.fingerprint, model.name, failure.kind, failure.message, failure.exit_code)
        self.failures.append(cell)
        if self.library is not None:
            details = {"task": task.fingerprint, "name": task.name, "expert": model.name}
            with suppress(Task2VecError), self.library.record("error-matrix cell", details):
                raise failure.error()
        self.on_cell(cell)

    def result(self) -> MetaTask:
        """All that is known."""
        names = deduplicate_names(task.name for task in self.tasks)
        pairs = list(zip(self.tasks, names, strict=True))
        return build_metatask(
            "error matrix",
            [TaskInfo(name, "", "", task.fingerprint, len(task), len(task.classes)) for task, name in pairs],
            [ModelInfo(model.name, source_fingerprint=_find_source(model)) for model in self.models],
            [protocol.key for protocol in self.protocols],
            self.seeds,
            errors=self.known.values(),
            has_seen=self.seen,
            failures=tuple(self.failures),
        )


def _key(error: MeasuredError) -> tuple[str, str, str, int]:
    return error.task, error.expert, error.protocol, error.seed


# --- what a worker does ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CellWork:
    """All that workers need: see `task2vec.parallel.Work`."""

    tasks: tuple[Task, ...]
    models: tuple[Model, ...]
    protocols: tuple[ErrorProtocol, ...]
    seeds: tuple[int, ...]
    options: Mapping[str, str | int | None] = field(default_factory=dict)
    download: bool = False

    def open(self) -> Callable[[Job], Iterator[Outcome]]:
        """A function from jobs to outcomes; it keeps the last model, and the splits of all tasks."""
        return _Worker(self).run


class _Worker:
    """One worker: the features of a model on common images, then cell after cell."""

    def __init__(self, work: CellWork):
        self.work = work
        self.loaded: tuple[int, Probe] | None = None
        self.plans: dict[int, CellPlan] = {}

    def run(self, job: Job) -> Iterator[Outcome]:
        """The outcome of each task; one that fails does not stop the others."""
        if self.loaded is None or self.loaded[0] != job.model:
            self.loaded = None  # two networks need not fit into memory
            self.loaded = (job.model, open_model(self.work.models[job.model], download=self.work.download))
        wanted = dict(job.tasks)
        waiting = [list(wanted)]
        while waiting:
            waiting = (yield from self._try(waiting[0], wanted)) + waiting[1:]

    def _try(self, numbers: list[int], wanted: dict[int, Wanted]):
        """Yields the outcomes of tasks on common images; returns what is to be tried again without the others."""
        assert self.loaded is not None
        name, probe = self.work.models[self.loaded[0]].name, self.loaded[1]
        tasks = [self.work.tasks[number] for number in numbers]
        images, places = gather_images(tasks)
        passes, pixels = prepare_features(probe, images, **self.work.options)  # type: ignore[arg-type]
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
            # Where it is not known which task fails, each is tried by itself.
            return [rest] * bool(rest) if failed else [[number] for number in rest]
        for number, place in zip(numbers, places, strict=True):
            own = features[torch.from_numpy(place).to(features.device)]
            yield number, self._measure(own, number, name, wanted[number])
        return []

    def _measure(self, features: Tensor, number: int, name: str, wanted: Wanted) -> tuple[MeasuredError, ...] | Failure:
        try:
            if number not in self.plans:
                plan = plan_cells(self.work.tasks[number], self.work.protocols, self.work.seeds)
                self.plans[number] = plan.to(features.device)
            return tuple(measure_cells(features, self.plans[number], model=name, only=wanted))
        except Exception as error:
            return Failure.of(error)


def _find_unreadable(pixels: Pixels, tasks: Sequence[Task], places: Sequence[np.ndarray]) -> dict[int, Failure]:
    """Why tasks cannot be read, by their places; a common image may be bad in one task and good in another."""

    def try_loading(some: Pixels, number: int) -> DataError | None:
        try:
            some.load(number)
        except DataError as error:
            return error
        return None

    bad = [number for number in range(len(pixels)) if try_loading(pixels, number) is not None]
    failed: dict[int, Failure] = {}
    for place, (task, numbers) in enumerate(zip(tasks, places, strict=True)):
        own = pixels.part(numbers.tolist(), task.images)
        for number in np.flatnonzero(np.isin(numbers, bad)).tolist():
            if (error := try_loading(own, number)) is not None:
                failed[place] = Failure.of(error)
                break
    return failed
