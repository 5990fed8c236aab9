"""Errors of tasks on models: of linear classifiers on the models' features, for one task or for many by many.

A cell is a task on a model by a protocol with a seed. All classifiers of a task on a model are fitted together; the
error matrix measures every cell once, in parallel, and resumes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import product
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from task2vec.embedding.batching import Passes, refuse_infinite
from task2vec.embedding.embedding import EmbedSettings
from task2vec.embedding.many import gather_images, group_tasks
from task2vec.errors import ConflictError, Task2VecError, UsageError
from task2vec.experts.checkpoint import ExpertProbe, TrainedExpert, describe_network, load_expert
from task2vec.experts.protocol import (
    ADAM,
    DRAWS,
    EPOCHS,
    ErrorProtocol,
    MatchedTest,
    Score,
    Shots,
    check_protocols,
    choose_test_half,
    choose_training,
    match_test,
    score_balanced,
    score_precision,
    wilson_interval,
)
from task2vec.experts.train import draw_epoch
from task2vec.head import TrainingSplits, fit_split_heads, make_training_splits, train_split_heads
from task2vec.library import Expert, Library, MeasuredError
from task2vec.metatask import CellFailure, MetaTask, ModelInfo, TaskInfo, build_metatask, hide_test
from task2vec.metatask.info import deduplicate_names
from task2vec.metatask.metatask import OWN_TEST, RUN, SEEN
from task2vec.parallel import Backend, Failure, SerialBackend, Unit, borrow_backend
from task2vec.probe import Probe
from task2vec.progress import Report, show_progress, silent
from task2vec.tasks import Images, Task, to_task, to_tasks

# What errors are measured on: a pretrained network, an expert trained here, or an entry of a library.
Model = Probe | TrainedExpert | Expert
# Pairs of tasks and models in one record of a library, whose length is limited.
_PAIRS_PER_RECORD = 100
# Images whose features are held at a time; a task that has more is a group of its own.
_MAX_IMAGES = 100_000
# Keys of protocols, and seeds.
Wanted = tuple[tuple[str, int], ...]
# A model and its tasks by their numbers, each task with its missing cells.
Job = tuple[int, dict[int, Wanted]]
# Of one task by its number: the errors on one model, or why there are none.
Outcome = tuple[int, tuple[MeasuredError, ...] | Failure]


def linear_error(
    model: Model,
    task: Any,
    protocol: ErrorProtocol | None = None,
    *,
    test: Any = None,
    seeds: Sequence[int] = (0,),
    device: str | None = None,
    num_workers: int | None = None,
    batch_size: int | None = None,
    download: bool = False,
    progress: bool = False,
) -> tuple[MeasuredError, ...]:
    """The test error of a linear classifier for `task` on the features of `model`, one for each seed.

    The order of the images and the names of classes change nothing. Features are computed once for all seeds; for
    several protocols too, call `error_matrix`.

    Args:
        model: what `load_probe`, `train_expert` or `library.experts()` return.
        task: a task, or anything that `to_task` accepts: a folder, a table, a frame, a dataset, (paths, labels).
        protocol: how it is measured; see `ErrorProtocol`. None trains on half of the images, or on all with a `test`.
        test: the test images of the task, if it comes with some; see `tests` of `error_matrix`.
        seeds: of splits and all other randomness.
        device: "cpu", "cuda"; None takes a GPU if there is one.
        num_workers: threads that decode images; None takes one per core.
        batch_size: images per step; None chooses one. Halved automatically when GPU memory runs out.
        download: download weights that are not on this machine.
        progress: show a progress bar on standard error.

    Example:
        >>> import task2vec as t2v
        >>> shapes = t2v.sample_tasks(images_per_task=40)[2]
        >>> errors = linear_error(t2v.load_probe(size=32), shapes, seeds=(0, 1))
        >>> [(error.expert, error.seed, error.low <= error.error <= error.high) for error in errors]
        [('tf_efficientnet_lite0', 0, True), ('tf_efficientnet_lite0', 1, True)]
    """
    reading: Any = {"num_workers": num_workers, "progress": progress}
    task = to_task(task, **reading)
    test = None if test is None else [to_task(test, **reading)]
    cells: list[tuple[MeasuredError, ...] | CellFailure] = []
    protocols = None if protocol is None else [protocol]
    compute: Any = {"device": device, "batch_size": batch_size, "download": download, **reading}
    error_matrix([task], [model], tests=test, protocols=protocols, seeds=seeds, on_cell=cells.append, **compute)
    (cell,) = cells
    if isinstance(cell, CellFailure):
        raise Failure(cell.kind, cell.message, cell.exit_code).error()
    return cell


def error_matrix(
    tasks: Iterable[Any],
    models: Iterable[Model],
    *,
    tests: Iterable[Any] | None = None,
    protocols: Sequence[ErrorProtocol] | None = None,
    seeds: Sequence[int] = (0,),
    library: Library | None = None,
    backend: str | Backend | None = None,
    trained_on: Mapping[str, Any] | None = None,
    device: str | None = None,
    num_workers: int | None = None,
    batch_size: int | None = None,
    download: bool = False,
    progress: bool = False,
    on_cell: Callable[[tuple[MeasuredError, ...] | CellFailure], None] | None = None,
    on_features: Callable[[str, Task, Tensor], None] | None = None,
    on_images: Callable[[int], None] | None = None,
) -> MetaTask:
    """The test error of a linear classifier for every task on every model.

    A model sees each image once, no matter how many tasks share it. With a `library`, every finished cell is stored at
    once, and stored cells are not computed again: a run that was killed resumes. A cell that fails is reported in
    `failures` and recorded in the library, and the others continue.

    Args:
        tasks: tasks, or anything that `to_task` accepts.
        models: what `load_probe`, `train_expert` or `library.experts()` return, each with a unique name.
        tests: for each task the task of its test images, such as the test split of a published dataset; None tests on
            half of the images of the task. Classes are matched by their names. Test images of a class that the task
            lacks are refused; classes without test images, and test images that are training images, too, are accepted:
            `info["tests"]` of the result has such warnings by the fingerprint of the task. In the library, errors are
            those of the training task, by a protocol that identifies the test images.
        protocols: how errors are measured; None is `ErrorProtocol()`, or with `tests` `ErrorProtocol("all")`, whose
            logistic classifier is the same for every seed.
        seeds: of splits and all other randomness.
        library: where errors, tasks and models are stored.
        backend: "serial" (None), "ray", or what `open_backend` returns. Like all arguments below, it changes no error.
        trained_on: the tasks that models were trained on, by model name. Cells of tasks that share an image with them
            are marked in `has_seen`, as are those of the source task that is recorded in an expert.
        device: "cpu", "cuda"; None takes a GPU if there is one.
        num_workers: threads that decode images; None takes one per core.
        batch_size: images per step; None chooses one. Halved automatically when GPU memory runs out.
        download: download weights that are not on this machine.
        progress: show on standard error how many cells are done, and how long the rest will take.
        on_cell: called with the errors of each task and model as they are finished, or with the failure.
        on_features: called with the name of a model, a task in canonical order, and its (n, d) features, where these
            are computed; only with the backend "serial".
        on_images: called with the number of images of every batch that a model has seen; only with the backend
            "serial". A `KeyboardInterrupt` in it stops the run.

    Raises:
        UsageError: Nothing can be measured with these arguments.
        DataError: The test images of a task are not its own; see `match_test`.

    Example:
        >>> import task2vec as t2v
        >>> tasks = t2v.sample_tasks(images_per_task=20)[:2]
        >>> errors = error_matrix(tasks, [t2v.load_probe(size=32)], seeds=(0, 1))
        >>> errors
        MetaTask(error matrix, 2 tasks, 1 models, 1 protocols, 2 seeds)
        >>> errors.mean_errors().shape
        (2, 1, 1)
    """
    why = "are the same images in the same classes, so they are one task. Pass it once."
    known = _refuse_twice((task.canonical() for task in to_tasks(tasks)), attrgetter("fingerprint"), why)
    matched = None if tests is None else _match_tests(known, to_tasks(tests))
    usual = ErrorProtocol() if tests is None else ErrorProtocol("all")
    protocols = check_protocols((usual,) if protocols is None else protocols, has_tests=tests is not None)
    run = _Run(known, check_models(models), protocols, tuple(seeds), library, on_cell or (lambda _: None), matched)
    run.find_seen(trained_on or {})
    options = {"device": device, "num_workers": num_workers, "batch_size": batch_size}
    watch: Report = silent if on_images is None else lambda *_: on_images
    work = CellWork(run.tasks, run.models, protocols, run.seeds, options, download, on_features, watch, matched)
    with run.record(), show_progress(progress) as report, borrow_backend(backend or "serial") as opened:
        if (on_features or on_images) and not isinstance(opened, SerialBackend):
            raise UsageError(
                f"on_features and on_images are called in this process, and a {type(opened).__name__} computes "
                "features in others. Leave them out, or use backend='serial'."
            )
        units = run.list_units()
        count = len(run.tasks) * len(run.models)
        step = report("cells", count)
        step(count - len(run.waiting))
        for result in opened.run(work, units.values()):
            column, wanted = units[result.key].payload
            if result.value is not None:
                step(run.take(column, *result.value))
            if result.failure is not None:
                for row in wanted:
                    step(run.take(column, row, result.failure))
    return run.result()


# --- models ----------------------------------------------------------------------------------------------------------


def check_models(models: Iterable[Model] | Model) -> tuple[Model, ...]:
    """The models, if each is one, and no two have one name."""
    models = (models,) if isinstance(models, Model) else tuple(models)
    for model in models:
        if not isinstance(model, Model):
            raise UsageError(
                f"a {type(model).__name__} gives no features, so it is not a model. Pass what load_probe, train_expert "
                "or library.experts() return."
            )
    why = "have the same name, so errors would be ambiguous. Rename one: dataclasses.replace(model, name=...)."
    return _refuse_twice(models, attrgetter("name"), why)


def _refuse_twice(values: Iterable[Any], identity: Callable[[Any], str], why: str) -> tuple[Any, ...]:
    """The values, if no two are the same."""
    first: dict[str, Any] = {}
    for value in values:
        if identity(value) in first:
            raise UsageError(f"'{first[identity(value)].name}' and '{value.name}' {why}")
        first[identity(value)] = value
    return tuple(first.values())


def _match_tests(tasks: tuple[Task, ...], tests: Sequence[Task]) -> tuple[MatchedTest, ...]:
    """The test images of each task, in the order that their content decides."""
    if len(tests) != len(tasks):
        raise UsageError(
            f"tests has {len(tests)} test sets for {len(tasks)} tasks, so it is unclear which belong together. Pass "
            "one for each task, in the same order."
        )
    return tuple(match_test(task, test.canonical()) for task, test in zip(tasks, tests, strict=True))


def list_wholes(tasks: Sequence[Task], tests: Sequence[MatchedTest] | None) -> list[Task]:
    """For each task all images that its cells need: its training images, then its own test images."""
    return list(tasks) if tests is None else [matched.join() for matched in tests]


def open_model(model: Model, *, download: bool = False) -> Probe:
    """The network of a model."""
    if isinstance(model, TrainedExpert):
        return model.probe
    return model if isinstance(model, Probe) else load_expert(model, download=download)


def compute_features(
    probe: Probe, images: Images, report: Report = silent, *, decoded: dict[int, Tensor] | None = None, **options: Any
) -> Tensor:
    """(n, d) pooled features of all images; options are device, num_workers and batch_size.

    Images that are `decoded`, by their numbers, are not decoded again, and those that fit into memory are added.
    """
    passes = Passes(images, probe, settings=EmbedSettings(), **options)
    passes.pixels.kept = {} if decoded is None else decoded
    return passes.features(report)


def features_of_tasks(probe: Probe, tasks: Sequence[Task], report: Report = silent, **options: Any) -> list[Tensor]:
    """The features of the images of each task; the network sees each image once, however many tasks share it."""
    images, _, places = gather_images(tasks)
    features = compute_features(probe, images, report, **options)
    return [features[torch.from_numpy(rows).to(features.device)] for rows in places]


def describe_model(model: Model) -> Expert:
    """The model as a library keeps it."""
    if isinstance(model, Expert):
        return model
    if isinstance(model, ExpertProbe) and model.entry is not None:
        return replace(model.entry, name=model.name)
    return model.entry() if isinstance(model, TrainedExpert) and model.path else describe_network(model)


# --- the matrix ------------------------------------------------------------------------------------------------------


@dataclass
class _Run:
    """The cells of a run: known, waiting to be computed, or failed."""

    tasks: tuple[Task, ...]
    models: tuple[Model, ...]
    protocols: tuple[ErrorProtocol, ...]
    seeds: tuple[int, ...]
    library: Library | None
    on_cell: Callable[[tuple[MeasuredError, ...] | CellFailure], None]
    tests: tuple[MatchedTest, ...] | None
    known: dict[tuple[str, str, str, int], MeasuredError] = field(default_factory=dict)
    seen: set[tuple[str, str]] = field(default_factory=set)
    waiting: set[tuple[int, int]] = field(default_factory=set)  # numbers of models and tasks without outcome
    failures: list[CellFailure] = field(default_factory=list)

    def __post_init__(self):
        """Refuse seeds and protocols that measure nothing."""
        for name, values in (("seeds", self.seeds), ("protocols", self.protocols)):
            if not values or len(set(values)) < len(values):
                raise UsageError(
                    f"there are no {name}, or one occurs twice and would be measured only once. Pass each of them once."
                )

    def list_keys(self, row: int) -> list[str]:
        """The keys of the protocols for a task, with its own test images if it has any."""
        test = None if self.tests is None else self.tests[row]
        return [protocol.key + describe_images(self.tasks[row], test) for protocol in self.protocols]

    def find_seen(self, trained_on: Mapping[str, Any]) -> None:
        """Finds which models were trained on images of which tasks."""
        unknown = set(trained_on) - {model.name for model in self.models}
        if unknown:
            raise UsageError(
                f"trained_on names '{min(unknown)}', but no model has that name, so no cell would be marked. The "
                f"models are: {', '.join(model.name for model in self.models)}"
            )
        wholes = list_wholes(self.tasks, self.tests)
        for model in self.models:
            source = getattr(model, "task", None)
            given = trained_on.get(model.name, ())
            images = {digest for task in to_tasks(given) for digest in task.digests}
            for task, whole in zip(self.tasks, wholes, strict=True):
                if task.fingerprint == source or not images.isdisjoint(whole.digests):
                    self.seen.add((task.fingerprint, model.name))

    @contextmanager
    def record(self) -> Iterator[None]:
        """Records the run, its tasks and models in the library, and reads the errors that it has of them.

        What models have seen is in records of its own, of limited length.
        """
        if self.library is None:
            yield
            return
        pairs = sorted(self.seen)
        for start in range(0, len(pairs), _PAIRS_PER_RECORD):
            with self.library.record(RUN, {SEEN: pairs[start : start + _PAIRS_PER_RECORD]}):
                pass
        names = ("tasks", "models", "protocols", "seeds")
        with self.library.record(RUN, {name: len(getattr(self, name)) for name in names}):
            self.library.add(*self.tasks, *map(describe_model, self.models))
            self._read(self.library)
            yield

    def _read(self, library: Library) -> None:
        names = {model.name for model in self.models}
        wanted = {(task.fingerprint, key) for row, task in enumerate(self.tasks) for key in self.list_keys(row)}
        for error in library.errors():
            if (error.task, error.protocol) in wanted and error.expert in names and error.seed in self.seeds:
                self.known[_key(error)] = error

    def list_units(self) -> dict[str, Unit]:
        """The work: for each model, groups of tasks on common images with their missing cells.

        It is the same for all backends, so that all compute the same sums.
        """
        units: dict[str, Unit] = {}
        pairs = [list(product(self.list_keys(row), self.seeds)) for row in range(len(self.tasks))]
        wholes = list_wholes(self.tasks, self.tests)
        for column, model in enumerate(self.models):
            missing: dict[int, Wanted] = {}
            for row, task in enumerate(self.tasks):
                lacking = [pair for pair in pairs[row] if (task.fingerprint, model.name, *pair) not in self.known]
                missing |= {row: tuple(lacking)} if lacking else {}
            self.waiting |= {(column, row) for row in missing}
            rows = list(missing)
            for group in group_tasks([wholes[row] for row in rows], most=_MAX_IMAGES):
                cells = {rows[number]: missing[rows[number]] for number in group}
                more = f" and {len(cells) - 1} more" if len(cells) > 1 else ""
                key = f"{len(units)}: {model.name} on {self.tasks[next(iter(cells))].name}{more}"
                units[key] = Unit(key, (column, cells))
        return units

    def take(self, column: int, row: int, outcome: tuple[MeasuredError, ...] | Failure) -> int:
        """Stores the outcome of a task on a model; 1 if it is new, 0 if a restarted unit repeats it."""
        if (column, row) not in self.waiting:
            return 0
        self.waiting.remove((column, row))
        task = self.tasks[row]
        model = self.models[column].name
        if isinstance(outcome, Failure):
            self._fail(task, model, outcome)
            return 1
        self.known |= {_key(error): error for error in outcome}
        if self.library is not None:
            try:
                self.library.add(*outcome)
            except ConflictError:  # another run measured some of them meanwhile; stored errors do not change
                for error in outcome:
                    with suppress(ConflictError):
                        self.library.add(error)
                self._read(self.library)
        self.on_cell(tuple(self.known[_key(error)] for error in outcome))
        return 1

    def _fail(self, task: Task, model: str, failure: Failure) -> None:
        cell = CellFailure(task.name, task.fingerprint, model, failure.kind, failure.message, failure.exit_code)
        self.failures.append(cell)
        if self.library is not None:
            details = {"task": task.fingerprint, "name": task.name, "expert": model}
            with suppress(Task2VecError), self.library.record("error-matrix cell", details):
                raise failure.error()
        self.on_cell(cell)

    def result(self) -> MetaTask:
        """The matrix of all outcomes."""
        names = deduplicate_names(task.name for task in self.tasks)
        tasks = [
            TaskInfo(name, fingerprint=task.fingerprint, images=len(task), classes=len(task.classes))
            for task, name in zip(self.tasks, names, strict=True)
        ]
        models = [
            # The side of the input images; None for an entry of a library that has the network's own.
            ModelInfo(
                model.name,
                source_fingerprint=getattr(model, "task", None),
                size=model.input_size if isinstance(model, Expert) else open_model(model).size[0],
            )
            for model in self.models
        ]
        keys = {
            key: hide_test(key.partition(", groups ")[0]) for key in {error.protocol for error in self.known.values()}
        }
        errors = [replace(error, protocol=keys[error.protocol]) for error in self.known.values()]
        protocols = [protocol.key for protocol in self.protocols]
        info: dict[str, Any] = {}
        if self.tests is not None:
            protocols = [f"{key}, {OWN_TEST}" for key in protocols]
            info = {"tests": {matched.task.fingerprint: matched.describe() for matched in self.tests}}
        kept: Any = {"errors": errors, "has_seen": self.seen, "failures": tuple(self.failures), "info": info}
        return build_metatask("error matrix", tasks, models, protocols, self.seeds, **kept)


def _key(error: MeasuredError) -> tuple[str, str, str, int]:
    return error.task, error.expert, error.protocol, error.seed


# --- what a worker does ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CellWork:
    """Everything that workers need: see `task2vec.parallel.Work`."""

    tasks: tuple[Task, ...]
    models: tuple[Model, ...]
    protocols: tuple[ErrorProtocol, ...]
    seeds: tuple[int, ...]
    options: Mapping[str, Any]
    download: bool
    on_features: Callable[[str, Task, Tensor], None] | None = None
    report: Report = silent
    tests: tuple[MatchedTest, ...] | None = None

    def open(self) -> Callable[[Job], Iterator[Outcome]]:
        """A function from a model and tasks to outcomes; it keeps the last model, and the splits of all tasks."""
        loaded: dict[int, Probe] = {}
        plans: dict[int, CellPlan] = {}
        wholes = list_wholes(self.tasks, self.tests)

        def measure(job: Job) -> Iterator[Outcome]:
            column, wanted = job
            if column not in loaded:
                loaded.clear()  # two networks need not fit into memory
                loaded[column] = open_model(self.models[column], download=self.download)
            group = [wholes[number] for number in wanted]
            try:
                features = features_of_tasks(loaded[column], group, self.report, **self.options)
            except Exception as error:
                rows = list(wanted)
                half = len(wanted) // 2
                if not half:
                    yield rows[0], Failure.of(error)
                # Any of the tasks may have failed: each half is tried without the other.
                for half_rows in (rows[:half], rows[half:]) if half else ():
                    yield from measure((column, {row: wanted[row] for row in half_rows}))
                return
            for number, task_features in zip(wanted, features, strict=True):
                task = self.tasks[number]
                name = self.models[column].name
                try:
                    if self.on_features is not None:
                        self.on_features(name, task, task_features[: len(task)])
                    if number not in plans:
                        test = None if self.tests is None else self.tests[number].test
                        plans[number] = plan_cells(task, self.protocols, self.seeds, test=test).to(task_features.device)
                    yield number, tuple(measure_cells(task_features, plans[number], model=name, only=wanted[number]))
                except Exception as error:
                    yield number, Failure.of(error)

        return measure


# --- cells -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CellPlan:
    """The splits of a task: everything that its cells need besides features, for all models.

    Attributes:
        task: as it was given.
        order: canonical order of the images, followed by the task's own test images, if any.
        targets: in that order.
        protocols: how errors are measured.
        seeds: of splits and all other randomness.
        tests: (seeds, n) the test images of each seed.
        pairs: shots and seeds, one pair for each part.
        parts: the training images of each pair.
        test: the task's own test images; None tests on half of its images.
    """

    task: Task
    order: np.ndarray
    targets: np.ndarray
    protocols: tuple[ErrorProtocol, ...]
    seeds: tuple[int, ...]
    tests: np.ndarray
    pairs: tuple[tuple[Shots, int], ...]
    parts: TrainingSplits
    test: MatchedTest | None = None

    def name(self, row: int) -> str:
        """The name of an image, for messages, by its row in the order as given."""
        if self.test is None or row < len(self.task):
            return self.task.images.name(row)
        return self.test.test.images.name(row - len(self.task))

    def key(self, protocol: ErrorProtocol) -> str:
        """The key of errors by the protocol, which includes the task's own test images or groups, if any."""
        return protocol.key + describe_images(self.task, self.test)

    def to(self, device: torch.device | str) -> "CellPlan":
        """The same, on the device of the features."""
        return replace(self, parts=self.parts.to(device))

    def draw(self, split: int) -> Tensor:
        """(epochs, draws) numbers of training images of a split, uniformly over classes."""
        mask = self.parts.train[split]
        seed = self.pairs[split][1]
        rows = torch.from_numpy(np.flatnonzero(mask))
        targets = self.targets[mask]
        draws = [draw_epoch(targets, draws=DRAWS, seed=seed, epoch=epoch).images for epoch in range(EPOCHS)]
        return rows[torch.stack(draws)]


def describe_images(task: Task, test: MatchedTest | None) -> str:
    """What the key of a protocol ends with if a task is not split into halves image by image."""
    if test is not None:
        return f", {test.key}"
    return f", groups {task.groups_key}" if task.groups_key else ""


def plan_cells(
    task: Task, protocols: Sequence[ErrorProtocol], seeds: Sequence[int] = (0,), *, test: Task | None = None
) -> CellPlan:
    """The splits of `task` for all protocols and seeds; its test images are half of them, or those of `test`.

    Raises:
        DataError: It cannot be split, or these are not its test images.
    """
    check_protocols(protocols, has_tests=test is not None)
    if not task.is_multilabel and any(protocol.measure == "precision" for protocol in protocols):
        raise UsageError(
            f"measure='precision' is for attributes, and '{task.name}' has one class per image. Choose 'usual' or "
            "'balanced'."
        )
    order = np.array(task.canonical_order[0])
    task_in_order = task.canonical()
    targets = task_in_order.targets
    matched = None
    if test is None:
        tests = np.stack([choose_test_half(task_in_order, seed) for seed in seeds])
    else:
        matched = match_test(task_in_order, test)
        test_order = np.array(test.canonical_order[0])
        order = np.concatenate([order, len(task) + test_order])
        targets = np.concatenate([targets, matched.targets[test_order]])
        tests = np.tile(np.arange(len(order)) >= len(task), (len(seeds), 1))
    sizes: list[Shots] = list(dict.fromkeys(protocol.shots for protocol in protocols))
    pairs: tuple[tuple[Shots, int], ...] = tuple((shots, seed) for shots in sizes for seed in seeds)
    by_seed = dict(zip(seeds, tests, strict=True))
    train = np.zeros((len(pairs), len(order)), dtype=bool)
    for mask, (shots, seed) in zip(train, pairs, strict=True):
        mask[: len(task)] = choose_training(task_in_order, by_seed[seed][: len(task)], shots=shots, seed=seed)
    groups = task_in_order.fold_groups if test is None and task.groups_key else None
    parts = make_training_splits(
        torch.from_numpy(targets.astype(np.int64)), train, classes=len(task.classes), groups=groups
    )
    return CellPlan(task, order, targets, tuple(protocols), tuple(seeds), tests, pairs, parts, matched)


def measure_cells(
    features: Tensor, plan: CellPlan, *, model: str, only: Iterable[tuple[str, int]] | None = None
) -> list[MeasuredError]:
    """The errors of a task on (n, d) `features` of its images, given in the order of the task.

    If the plan has the task's own test images, their features follow, in their order. All classifiers are fitted
    together, on the device of the features.

    Args:
        features: pooled features by the model; their precision is that of the arithmetic. Single precision moves an
            error by an image now and then.
        plan: what `plan_cells` returns, on the same device.
        model: name of the model.
        only: keys of protocols and seeds, where not all of the plan's are wanted.

    Example:
        >>> from task2vec import sample_tasks
        >>> colours = next(task for task in sample_tasks(images_per_task=40) if task.name == "colours")
        >>> pictures = [torch.tensor(np.array(colours.images.load(number))).float() for number in range(40)]
        >>> means = torch.stack([picture.mean((0, 1)) for picture in pictures])
        >>> plan = plan_cells(colours, [ErrorProtocol()])
        >>> measure_cells(means, plan, model="mean colour")[0].error < 0.2
        True
    """
    errors = []
    for protocol, seed, predicted in predict_cells(features, plan, only=only):
        score = score_cell(predicted, plan, protocol, seed)
        ends = (score.error, plan.key(protocol), seed, score.low, score.high)
        errors.append(MeasuredError(plan.task.fingerprint, model, *ends))
    return errors


def predict_cells(
    features: Tensor, plan: CellPlan, *, only: Iterable[tuple[str, int]] | None = None
) -> list[tuple[ErrorProtocol, int, np.ndarray]]:
    """What the classifier of every protocol and seed predicts for all images, in the order of the plan's targets.

    (n,) class numbers, or (n, c) logits of attributes. The arguments are those of `measure_cells`.
    """
    if features.ndim != 2 or len(features) != len(plan.order):
        raise UsageError(
            f"features of shape {tuple(features.shape)} are not those of '{plan.task.name}', which has "
            f"{len(plan.order)} images: some would get the label of another one. Pass one row per image, in its order."
        )
    refuse_infinite(features, plan.name)
    kept = None if only is None else set(only)
    every = product(plan.protocols, plan.seeds)
    wanted = [(protocol, seed) for protocol, seed in every if kept is None or (plan.key(protocol), seed) in kept]
    features = features[torch.from_numpy(plan.order).to(features.device)]
    predictions: dict[tuple[str, int], np.ndarray] = {}
    for classifier in {protocol.classifier for protocol, _ in wanted}:
        rows = sorted({plan.pairs.index((p.shots, seed)) for p, seed in wanted if p.classifier == classifier})
        parts = plan.parts.only(rows)
        if classifier == "logistic":
            logits = fit_split_heads(features, parts)
        else:
            draws = torch.stack([plan.draw(row) for row in rows])
            logits = train_split_heads(features, parts.onehot, draws, is_multilabel=parts.is_multilabel, **ADAM)
        predicted = (logits if parts.is_multilabel else logits.argmax(2)).cpu().numpy()
        predictions |= {(classifier, row): values for row, values in zip(rows, predicted, strict=True)}
    return [(p, seed, predictions[p.classifier, plan.pairs.index((p.shots, seed))]) for p, seed in wanted]


def score_cell(
    predicted: np.ndarray, plan: CellPlan, protocol: ErrorProtocol, seed: int, *, among: np.ndarray | None = None
) -> Score:
    """The error of one classifier on the test images of its seed, or on those of them that are `among` some (n,)."""
    is_test = plan.tests[plan.seeds.index(seed)]
    is_test = is_test if among is None else is_test & among
    predicted = predicted[is_test]
    targets = plan.targets[is_test]
    if plan.test is not None and plan.parts.is_multilabel:
        predicted, targets = predicted[:, plan.test.tested], targets[:, plan.test.tested]
    if protocol.measure == "precision":
        return score_precision(predicted, targets)
    mistakes = (predicted > 0) != targets.astype(bool) if plan.parts.is_multilabel else predicted != targets
    if protocol.measure == "balanced" or plan.parts.is_multilabel:
        return score_balanced(mistakes, targets)
    return wilson_interval(int(mistakes.sum()), len(mistakes))
