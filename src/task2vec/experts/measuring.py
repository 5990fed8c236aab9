"""All cells of an error matrix: what is known already, who computes the rest, and what becomes of each."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field

from task2vec.embedding.many import group_tasks
from task2vec.errors import ConflictError, Task2VecError, UsageError
from task2vec.experts.extractors import (
    Extractor,
    TrainedOn,
    check_extractors,
    describe_extractor,
    judge_trivial,
)
from task2vec.experts.matrix import RUN, TRIVIAL, CellFailure, ErrorMatrix, gather_matrix
from task2vec.experts.protocols import ErrorProtocol
from task2vec.experts.work import CellWork, Job, Outcome, Wanted
from task2vec.library import Library, MeasuredError
from task2vec.parallel import Backend, Failure, Unit, borrow_backend
from task2vec.progress import show_progress
from task2vec.tasks import Task

# Images whose features are held at a time; a task that has more is done by itself.
_MOST_IMAGES = 100_000

Cell = tuple[str, str, str, int]


def error_matrix(
    tasks: Iterable[Task],
    experts: Iterable[Extractor],
    *,
    protocols: Sequence[ErrorProtocol] = (ErrorProtocol(),),
    seeds: Sequence[int] = (0,),
    library: Library | None = None,
    backend: str | Backend | None = None,
    trained_on: TrainedOn | None = None,
    device: str | None = None,
    num_workers: int | None = None,
    batch_size: int | None = None,
    download: bool = False,
    progress: bool = False,
    on_cell: Callable[[tuple[MeasuredError, ...] | CellFailure], None] | None = None,
) -> ErrorMatrix:
    """The test error of a linear classifier for every task on top of every expert.

    An expert sees each image once, however many tasks share it. With a `library` every finished cell is kept at once,
    and what is there already is not computed again: a run that was killed goes on where it was. A cell that fails is
    told in `failures` and noted in the library, and the others go on.

    Args:
        tasks: what `read_folder` and its siblings give.
        experts: what `load_probe`, `train_expert` or `library.experts()` give, each with a name of its own.
        protocols: how errors are measured.
        seeds: of splits and all other randomness.
        library: where errors, tasks and experts are kept.
        backend: "serial" (None), "processes", "ray", or what `open_backend` returns. It changes no error, nor
            does any of the arguments below.
        trained_on: the tasks that experts were trained on, by the experts' names. Cells of tasks that share an image
            with them are marked in `is_trivial`; so are those of the very task that an expert says it was trained on.
        device: "cpu", "cuda"; None takes a GPU if there is one.
        num_workers: threads that decode images; None takes one per core.
        batch_size: images per step; None chooses one. Halved by itself when GPU memory runs out.
        download: fetch weights that are not on this machine.
        progress: show on standard error how many cells are done, and how long the rest will take.
        on_cell: called with the errors of each task and expert as they are finished, or with the reason why not.

    Example:
        >>> import task2vec as t2v
        >>> tasks = t2v.sample_tasks(images_per_task=20)[:2]
        >>> matrix = error_matrix(tasks, [t2v.load_probe(size=32)], seeds=(0, 1))
        >>> matrix
        ErrorMatrix(2 tasks x 1 experts, 1 protocols, 2 seeds)
        >>> matrix.mean().shape
        (2, 1, 1)
    """
    run = _Run(_check_tasks(tasks), check_extractors(experts), tuple(protocols), tuple(seeds), library)
    run.find_trivial(trained_on)
    run.on_cell = on_cell or (lambda _: None)
    how = {"device": device, "num_workers": num_workers, "batch_size": batch_size, "download": download}
    with run.note(), show_progress(progress) as report, borrow_backend(backend or "serial") as opened:
        run.begin()
        step = report("cells", len(run.tasks) * len(run.experts))
        units = run.list_units()
        step(len(run.tasks) * len(run.experts) - sum(len(job.tasks) for job in run.jobs.values()))
        work = CellWork(run.tasks, run.experts, run.protocols, run.seeds, **how)
        for result in opened.run(work, units):
            if result.value is not None:
                step(run.take(result.key, result.value))
            if result.failure is not None:
                step(run.give_up(result.key, result.failure))
    return run.tell()


def _check_tasks(tasks: Iterable[Task]) -> tuple[Task, ...]:
    """The tasks in canonical order, if each is one, and no two are the same."""
    found: dict[str, Task] = {}
    for task in (tasks,) if isinstance(tasks, Task) else tasks:
        if not isinstance(task, Task):
            raise UsageError(
                f"a {type(task).__name__} has no images to classify, so it is no task. Make one of it first: "
                "read_folder, read_table, from_dataset."
            )
        if task.fingerprint in found:
            raise UsageError(
                f"'{task.name}' and '{found[task.fingerprint].name}' are the same images in the same classes, so they "
                "are one task. Pass it once."
            )
        found[task.fingerprint] = task.canonical()
    return tuple(found.values())


@dataclass
class _Run:
    """Cells on their way: those that are known, those that are under way, and those that failed."""

    tasks: tuple[Task, ...]
    experts: tuple[Extractor, ...]
    protocols: tuple[ErrorProtocol, ...]
    seeds: tuple[int, ...]
    library: Library | None
    known: dict[Cell, MeasuredError] = field(default_factory=dict)
    trivial: set[tuple[str, str]] = field(default_factory=set)
    jobs: dict[str, Job] = field(default_factory=dict)
    settled: set[tuple[str, int]] = field(default_factory=set)  # by unit and task
    failures: list[CellFailure] = field(default_factory=list)
    on_cell: Callable[[tuple[MeasuredError, ...] | CellFailure], None] = lambda _: None

    def __post_init__(self):
        """Refuse seeds and protocols that nothing could be done with."""
        if not self.protocols or not self.seeds:
            raise UsageError("an error matrix needs a protocol and a seed, or there is nothing to measure. Give one.")
        for name, values in (("seeds", self.seeds), ("protocols", self.protocols)):
            if len(set(values)) < len(values):
                raise UsageError(f"some of the {name} occur twice, and would be measured once. Give each once.")

    def find_trivial(self, trained_on: TrainedOn | None) -> None:
        """Notes which experts have seen images of which tasks."""
        unknown = set(trained_on or ()) - {expert.name for expert in self.experts}
        if unknown:
            raise UsageError(
                f"trained_on speaks of '{min(unknown)}', and no expert is called so: its cells would not be marked. "
                f"The experts are: {', '.join(expert.name for expert in self.experts)}"
            )
        for expert in self.experts:
            has_seen = judge_trivial(expert, trained_on)
            self.trivial |= {(task.fingerprint, expert.name) for task in self.tasks if has_seen(task)}

    def note(self):
        """The run in the library, from its begin to its end."""
        if self.library is None:
            return nullcontext()
        story = {
            "tasks": [task.fingerprint for task in self.tasks],
            "experts": [expert.name for expert in self.experts],
            "protocols": [protocol.key for protocol in self.protocols],
            "seeds": list(self.seeds),
            TRIVIAL: sorted(self.trivial),
        }
        return self.library.record(RUN, story)

    def begin(self) -> None:
        """Makes tasks and experts known to the library, and reads what it has of their errors."""
        if self.library is None:
            return
        self.library.add(*self.tasks, *map(describe_extractor, self.experts))
        self._read()

    def _read(self) -> None:
        assert self.library is not None
        keys, seeds = {protocol.key for protocol in self.protocols}, set(self.seeds)
        fingerprints, names = {task.fingerprint for task in self.tasks}, {expert.name for expert in self.experts}
        for error in self.library.errors():
            if (
                (error.protocol in keys and error.seed in seeds)
                and error.task in fingerprints
                and error.expert in names
            ):
                self.known[_name(error)] = error

    def list_units(self) -> list[Unit]:
        """What is to be done: for each expert, groups of tasks on common images with their missing cells.

        Who does the work has no say in it, so that all backends do the same sums.
        """
        for number, expert in enumerate(self.experts):
            missing = {place: found for place, task in enumerate(self.tasks) if (found := self._miss(task, expert))}
            places = list(missing)
            for group in group_tasks([self.tasks[place] for place in places], most=_MOST_IMAGES):
                own = [places[place] for place in group]
                key = f"{expert.name} on {self.tasks[own[0]].name}" + (f" and {len(own) - 1} more" * (len(own) > 1))
                self.jobs[f"{number}.{own[0]}: {key}"] = Job(number, tuple((place, missing[place]) for place in own))
        return [Unit(key, job) for key, job in self.jobs.items()]

    def _miss(self, task: Task, expert: Extractor) -> Wanted:
        """What is not known yet of a task on an expert."""
        return tuple(
            (protocol.key, seed)
            for protocol in self.protocols
            for seed in self.seeds
            if (task.fingerprint, expert.name, protocol.key, seed) not in self.known
        )

    def take(self, key: str, outcome: Outcome) -> int:
        """Keeps what came out for a task; 1 if it is news, 0 if a unit was begun again and says it once more."""
        number, found = outcome
        if (key, number) in self.settled:
            return 0
        if isinstance(found, Failure):
            self._fail(key, number, found)
            return 1
        self.settled.add((key, number))
        self.known |= {_name(error): error for error in found}
        if self.library is not None:
            try:
                self.library.add(*found)
            except ConflictError:  # somebody else measured some of them meanwhile, and what is kept is not changed
                for error in found:
                    with suppress(ConflictError):
                        self.library.add(error)
                self._read()
        self.on_cell(tuple(self.known[_name(error)] for error in found))
        return 1

    def give_up(self, key: str, failure: Failure) -> int:
        """Notes that a unit failed: all of its tasks that have no outcome yet, and how many they are."""
        open_still = [number for number, _ in self.jobs[key].tasks if (key, number) not in self.settled]
        for number in open_still:
            self._fail(key, number, failure)
        return len(open_still)

    def _fail(self, key: str, number: int, failure: Failure) -> None:
        self.settled.add((key, number))
        task, expert = self.tasks[number], self.experts[self.jobs[key].expert]
        told = CellFailure(task.name, task.fingerprint, expert.name, failure.kind, failure.message, failure.exit_code)
        self.failures.append(told)
        if self.library is not None:
            story = {"task": task.fingerprint, "name": task.name, "expert": expert.name}
            with suppress(Task2VecError), self.library.record("error-matrix cell", story):
                raise failure.error()
        self.on_cell(told)

    def tell(self) -> ErrorMatrix:
        """The matrix of all that is known."""
        return gather_matrix(
            {task.fingerprint: task.name for task in self.tasks},
            [expert.name for expert in self.experts],
            [protocol.key for protocol in self.protocols],
            self.seeds,
            measured=self.known.values(),
            trivial=self.trivial,
            failures=self.failures,
        )


def _name(error: MeasuredError) -> Cell:
    return error.task, error.expert, error.protocol, error.seed
