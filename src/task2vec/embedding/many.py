"""Many tasks at once: those on common images share decoding, forward passes and the fitting of heads."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from task2vec.embedding.batching import Part, Passes, Pixels, infinite_features, prepare_passes
from task2vec.embedding.embedding import Embedding, EmbedSettings, Store, find_saved, name_file, open_folder
from task2vec.embedding.single import Job, as_targets, start_backward
from task2vec.errors import DataError, Task2VecError, UsageError
from task2vec.fisher import check_rows
from task2vec.head import Head, fit_heads
from task2vec.parallel import Backend, Unit, borrow_backend
from task2vec.probe import Probe, load_probe
from task2vec.progress import Report, show_progress, silent
from task2vec.tasks import Images, Task, draw_batches

# More tasks at a time would save little of the forward passes, and delay the first result.
_TOGETHER = 256
_GIGABYTE = 1 << 30

# A task with its number among all that were given, and what becomes of it.
Member = tuple[int, Task]
Outcome = tuple[int, Embedding | Task2VecError]


@dataclass(frozen=True)
class TaskResult:
    """The result of one of many tasks.

    Attributes:
        number: the position of the task among those given.
        task: its name.
        embedding: its embedding, unless it failed.
        error: why it failed, if it did.
        is_found: whether it was taken from the folder or the library instead of being computed.
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
    library: Store | None = None,
    gigabytes: float = 2.0,
    device: str | None = None,
    num_workers: int | None = None,
    batch_size: int | None = None,
    backend: Backend | str | None = None,
    progress: bool | Report = False,
) -> Iterator[TaskResult]:
    """The embeddings of many tasks as they are finished; those on the same images cost little more than one.

    A task that fails is returned with its error, and the others go on. With a `folder` each embedding is written there
    at once, and one from an earlier run with the same data, probe and settings is not computed again. No other file is
    overwritten: an embedding whose name is taken gets a longer one.

    Args:
        tasks: in any order; results come as they are finished, with the number of their task.
        probe: what `load_probe` returns.
        settings: see `EmbedSettings`. With `rel_tol` or the variational method tasks share only their features.
        folder: where to save the embeddings, one file each; None saves none.
        library: where else to look them up and keep them. What one of the two has, the other gets.
        gigabytes: about how much memory features and sums may take in each process. It does not change the numbers,
            nor does any of the arguments below.
        device: "cpu", "cuda"; None uses a GPU if there is one.
        num_workers: threads that decode images; None takes one per core.
        batch_size: images per step; None chooses one. It is halved automatically when GPU memory runs out.
        backend: "processes" (of this machine), "ray", or what `open_backend` returns. Tasks that share images go to the
            same worker. Only this process writes results. None computes here.
        progress: show progress bars on standard error.

    Example:
        >>> from task2vec import sample_tasks
        >>> digits = sample_tasks(images_per_task=30)[0]
        >>> tasks = digits.one_vs_rest()[:3]  # is it a 0? a 1? a 2?
        >>> for result in embed_many(tasks, load_probe(size=64), settings=EmbedSettings(max_samples=8)):
        ...     print(result.number, result.embedding)
        0 Embedding(digits: 0, probe=tf_efficientnet_lite0, 21008 filters, 30 images)
        1 Embedding(digits: 1, probe=tf_efficientnet_lite0, 21008 filters, 30 images)
        2 Embedding(digits: 2, probe=tf_efficientnet_lite0, 21008 filters, 30 images)
    """
    if not 0 < gigabytes < math.inf:
        raise UsageError(f"gigabytes={gigabytes} must be a positive number. Try 2.")
    tasks, probe = _check_tasks(tasks), probe or load_probe()
    work = GroupWork(probe, settings, gigabytes * _GIGABYTE, device, num_workers, batch_size)
    # Invalid arguments are refused now, and not with the first result; the device may be that of other machines.
    (work if backend is None else replace(work, device="cpu")).check()
    if folder is not None:
        _check_names(tasks)
        folder = open_folder(Path(folder))
    return _Run(tasks, work, folder, library, backend).results(progress)


def embed_batches(
    task: Task,
    probe: Probe | None = None,
    *,
    batches: int | None = None,
    classes: int | None = 5,
    images: int = 10,
    seed: int = 0,
    settings: EmbedSettings = EmbedSettings(),
    device: str | None = None,
    num_workers: int | None = None,
    backend: Backend | str | None = None,
    progress: bool | Report = False,
) -> tuple[list[Embedding], list[Embedding]]:
    """Embeddings of random batches of a task, and of their twins: the arguments of `distance.diversity`.

    Args:
        task: the collection.
        probe: what `load_probe` returns.
        batches: how many; None takes as many as there are images for, 20 at most.
        classes: how many of its classes are in each batch; None takes all.
        images: of each class in a batch, and as many again in its twin.
        seed: of the draw of batches.
        settings: how each is embedded, see `EmbedSettings`.
        device: "cpu", "cuda"; None uses a GPU if there is one.
        num_workers: threads that decode images; None takes one per core.
        backend: who computes, see `embed_many`.
        progress: show progress bars on standard error.

    Raises:
        Task2VecError: A batch could not be embedded; a mean without it would be that of another collection.

    Example:
        >>> from task2vec import distance, load_probe, sample_tasks
        >>> digits = sample_tasks(images_per_task=120)[0]
        >>> small = EmbedSettings(max_samples=6, l2=0.01)
        >>> batches, twins = embed_batches(digits, load_probe(size=32), classes=2, images=2, batches=4, settings=small)
        >>> distance.diversity(batches, twins).batches
        4
    """
    drawn = draw_batches(task, batches, classes=classes, images=images, seed=seed)
    tasks = [one for pair in drawn for one in pair]
    options = {"device": device, "num_workers": num_workers, "backend": backend, "progress": progress}
    found: dict[int, Embedding] = {}
    for result in embed_many(tasks, probe, settings=settings, **options):
        if result.embedding is None:
            raise result.error or AssertionError("neither an embedding nor an error")
        found[result.number] = result.embedding
    ordered = [found[number] for number in range(len(tasks))]
    return ordered[::2], ordered[1::2]


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
    """Refuses two tasks that would be saved in one file, unless they are the same."""
    for name, count in Counter(name for name, _ in {(name_file(task), task.fingerprint) for task in tasks}).items():
        if count > 1:
            raise UsageError(
                f"{count} tasks would be saved in one file, {name!r}, and all but one would be lost. Give each its own "
                "name: dataclasses.replace(task, name=...)."
            )


@dataclass(frozen=True)
class _Run:
    """One call of `embed_many`."""

    tasks: tuple[Task, ...]
    work: "GroupWork"
    folder: Path | None
    library: Store | None
    backend: Backend | str | None
    stored: set[str] = field(default_factory=set)

    def results(self, progress: bool | Report) -> Iterator[TaskResult]:
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
                name = self.tasks[number].name
                if isinstance(outcome, Embedding):
                    self._save(outcome, self.tasks[number])
                    self._store(outcome, self.tasks[number])
                    yield TaskResult(number, name, outcome)
                else:  # the frames of a traceback would keep images and features of the whole group in memory
                    yield TaskResult(number, name, error=outcome.with_traceback(None))

    def _embed(self, numbers: list[int], report: Report) -> Iterator[Outcome]:
        """The outcome of these tasks. The backend does not change the groups, and so no byte of the results."""
        most = max(1, int(self.work.room / 2 / (4 * self.work.probe.feature_dim)))
        groups = group_tasks([self.tasks[number] for number in numbers], most=most)
        members = [[(numbers[own], self.tasks[numbers[own]]) for own in group] for group in groups]
        if self.backend is None:
            for group in members:
                yield from self.work.embed(group, report)
            return
        units = {f"task {group[0][0]} ({group[0][1].name})": group for group in members}
        with borrow_backend(self.backend) as backend:
            for result in backend.run(self.work, [Unit(key, group) for key, group in units.items()] if units else []):
                if not result.is_last:
                    units[result.key] = [member for member in units[result.key] if member[0] != result.value[0]]
                    yield result.value
                elif result.failure is not None:  # of a whole group
                    yield from ((number, result.failure.error()) for number, _ in units[result.key])

    def _find(self, task: Task) -> Embedding | None:
        """The embedding of a task from an earlier run, copied to where it is missing."""
        saved = stored = None
        if self.folder is not None:
            saved = find_saved(self.folder, task, self.work.probe, settings=self.work.settings)[1]
        if self.library is not None:
            stored = self.library.find(task, self.work.probe, settings=self.work.settings)
        if saved is None and stored is not None:
            self._save(replace(stored, task=task.name), task)
        elif saved is not None and stored is None:
            self._store(saved, task)
        return stored if saved is None else saved

    def _save(self, embedding: Embedding, task: Task) -> None:
        if self.folder is not None:
            embedding.save(find_saved(self.folder, task, self.work.probe, settings=self.work.settings)[0])

    def _store(self, embedding: Embedding, task: Task) -> None:
        """Keeps an embedding in the library, once: a task that is given twice may differ from itself by rounding."""
        if self.library is not None and task.fingerprint not in self.stored:
            self.library.keep(embedding, source=task.source)
            self.stored.add(task.fingerprint)


# --- common images ----------------------------------------------------------------------------------------------------


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
        """Its name in its task."""
        images, number = self.sources[index]
        return images.name(number)


def gather_images(tasks: Sequence[Task]) -> tuple[CommonImages, list[np.ndarray]]:
    """The common images of canonical tasks, and for each task the numbers of its own among them.

    The order is that of the content, which is also the canonical order of every single task. Copies of an image within
    one task are images of their own, by their number.
    """
    sources: dict[tuple[str, int], tuple[Images, int]] = {}
    keys = []
    for task in tasks:
        seen: dict[str, int] = defaultdict(int)
        keys.append([])
        for number, digest in enumerate(task.digests):
            keys[-1].append((digest, seen[digest]))
            sources.setdefault(keys[-1][-1], (task.images, number))
            seen[digest] += 1
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

    def find_leader(number: int) -> int:
        while leader[number] != number:
            leader[number] = leader[leader[number]]
            number = leader[number]
        return number

    first: dict[str, int] = {}
    for number, task in enumerate(tasks):
        for digest in task.digests:
            a, b = sorted((find_leader(first.setdefault(digest, number)), find_leader(number)))
            leader[b] = a
    kin: dict[int, list[int]] = defaultdict(list)
    for number in range(len(tasks)):
        kin[find_leader(number)].append(number)
    groups = []
    for numbers in kin.values():
        held: set[str] = set()
        for number in numbers:
            own = set(tasks[number].digests)
            if not held or len(held | own) > most:
                groups.append([])
                held = set()
            groups[-1].append(number)
            held |= own
    return sorted(groups)


@dataclass(frozen=True)
class _Member:
    """One task of a group: as it was given, its job, and where its images are among the common ones."""

    number: int
    given: Task
    job: Job
    places: Tensor


@dataclass(frozen=True)
class GroupWork:
    """How tasks on common images are embedded, here or in a worker (see `task2vec.parallel.Work`).

    Attributes:
        probe: the probe.
        settings: what changes the numbers.
        room: about how many bytes features and sums may take.
        device: where to compute; None uses a GPU if there is one.
        num_workers: threads that decode images; None takes one per core, or, in a worker, as many as it computes with.
        batch_size: images per step; None chooses one.
    """

    probe: Probe
    settings: EmbedSettings
    room: float
    device: str | None = None
    num_workers: int | None = None
    batch_size: int | None = None

    def open(self) -> Callable[[Sequence[Member]], Iterator[Outcome]]:
        """A function from a group to the outcomes of its tasks."""
        here = replace(self, num_workers=self.num_workers or torch.get_num_threads())
        here.check()
        return partial(here.embed, report=silent)

    def check(self) -> None:
        """Refuses invalid arguments, and makes the network ready."""
        self._prepare(CommonImages((), ()))

    def _prepare(self, images: Images) -> tuple[Passes, Pixels]:
        options = {"device": self.device, "num_workers": self.num_workers, "batch_size": self.batch_size}
        return prepare_passes(images, self.probe, settings=self.settings, **options)

    def embed(self, group: Sequence[Member], report: Report) -> Iterator[Outcome]:
        """The outcomes of tasks that share images; those with an image that cannot be used fail, the rest go on."""
        waiting = [list(group)]
        while waiting:
            waiting = (yield from self._try_group(waiting[0], report)) + waiting[1:]

    def _try_group(self, group: list[Member], report: Report) -> Generator[Outcome, None, list[list[Member]]]:
        """Yields outcomes as long as images can be read; returns what is left, to be tried again, in groups."""
        tasks = [task.canonical() for _, task in group]
        images, places = gather_images(tasks)
        passes, pixels = self._prepare(images)
        settled: set[int] = set()
        try:
            features = passes.features(pixels, report)
            is_bad = ~torch.isfinite(features).all(1).cpu().numpy()
            members = []
            for (number, given), task, place in zip(group, tasks, places, strict=True):
                if is_bad[place].any():
                    settled.add(number)
                    yield number, infinite_features(task.images.name(int(is_bad[place].argmax())))
                    continue
                # With halves or a draw of its own a task has passes over images of its own.
                has_own = self.settings.split_half or not self._can_share
                part = pixels.part(place.tolist(), task.images) if has_own else pixels
                job = Job(task, self.settings, passes, part, as_targets(task, pixels.device))
                members.append(_Member(number, given, job, torch.from_numpy(place)))
            for number, outcome in self._embed_members(members, features, pixels, images.digests, report):
                settled.add(number)
                yield number, outcome
            return []
        except DataError as error:
            cause = error
        unreadable = list(_find_unreadable(pixels, range(len(pixels))))
        for (number, _), task, place in zip(group, tasks, places, strict=True):
            # Another task that has the same image may have it from another file, which is intact.
            own = np.flatnonzero(np.isin(place, unreadable)).tolist() if number not in settled else []
            for error in _find_unreadable(pixels.part(place.tolist(), task.images), own).values():
                settled.add(number)
                yield number, error
                break
        rest = [member for member in group if member[0] not in settled]
        if len(rest) < len(group):
            return [rest] if rest else []
        if len(rest) == 1:
            yield rest[0][0], cause
            return []
        return [rest[: len(rest) // 2], rest[len(rest) // 2 :]]  # the image can be read again, whatever it was

    @property
    def _can_share(self) -> bool:
        """Whether tasks share backward passes; otherwise each draws by itself, until it is enough."""
        return self.settings.method != "variational" and self.settings.rel_tol is None

    def _embed_members(
        self, members: list[_Member], features: Tensor, pixels: Pixels, digests: tuple[str, ...], report: Report
    ) -> Iterator[Outcome]:
        """The embedding of every member, or why there is none."""
        if not self._can_share:
            for member in members:
                try:
                    yield member.number, member.job.embed(member.given, features[member.places], report)
                except Task2VecError as error:
                    yield member.number, error
            return
        account = 5 * 8 * self.probe.n_filters * (3 if self.settings.split_half else 1)
        size = max(1, min(_TOGETHER, int(self.room / 2 / account)))
        for start in range(0, len(members), size):
            yield from self._embed_together(members[start : start + size], features, pixels, digests, report)

    def _embed_together(
        self, members: list[_Member], features: Tensor, pixels: Pixels, digests: tuple[str, ...], report: Report
    ) -> Iterator[Outcome]:
        """Members whose backward passes share the forward pass of each image, with their halves if wanted."""
        heads = self._fit(members, features)
        work: list[tuple[Job, Part]] = []
        owned: list[range | DataError] = []  # the numbers of each member's work
        for member, head in zip(members, heads, strict=True):
            first = len(work)
            try:
                halves = member.job.split() if self.settings.split_half else []
            except DataError as error:
                owned.append(error)
                continue
            jobs = [(member.places, member.job, head)]
            jobs += [(member.places[own], half, half.fit(features[member.places[own]])) for own, half in halves]
            for places, job, fitted in jobs:
                part = job.part(features[places], fitted)
                work.append((job, replace(part, images=places[part.images])))
            owned.append(range(first, len(work)))
        ledger = None
        if work:
            backward = start_backward(members[0].job.passes, pixels, work, digests)
            ledger = backward.ledger
            drawn = torch.nonzero(backward.counts).flatten().tolist()
            backward.run(drawn, report("fisher", sum(len(part.images) for _, part in work)))
        for member, head, numbers in zip(members, heads, owned, strict=True):
            try:
                if ledger is None or isinstance(numbers, DataError):
                    raise numbers if isinstance(numbers, DataError) else AssertionError("no work")
                check_rows(ledger.sums[list(numbers), 1], self.probe.layers)
                whole, *halves = (ledger.estimate(number) for number in numbers)
                found = member.job.describe(member.given, head, whole, *member.job.judge(whole))
                both = np.stack([half.fisher.numpy() for half in halves]) if halves else None
                yield member.number, replace(found, halves=both)
            except Task2VecError as error:
                yield member.number, error

    def _fit(self, members: list[_Member], features: Tensor) -> list[Head]:
        """The heads of all members; those on the very same images with as many classes are fitted together."""
        alike: dict[tuple, list[int]] = defaultdict(list)
        for position, member in enumerate(members):
            kind = (member.places.numpy().tobytes(), len(member.given.classes), member.given.is_multilabel)
            alike[kind].append(position)
        heads: dict[int, Head] = {}
        for (_, classes, _), positions in alike.items():
            own = features[members[positions[0]].places]
            targets = torch.stack([members[position].job.targets for position in positions])
            memory = members[0].job.passes.memory
            heads |= dict(zip(positions, self._fit_alike(own, targets, classes, memory.on_shortage), strict=True))
        return [heads[position] for position in range(len(members))]

    def _fit_alike(
        self, features: Tensor, targets: Tensor, classes: int, on_shortage: Callable[[], None]
    ) -> list[Head]:
        """Heads on the same features; half of them at a time, and so on, if a GPU has not enough memory for all."""
        try:
            return fit_heads(features, targets, classes=classes, l2=self.settings.l2, balance=self.settings.balance)
        except torch.cuda.OutOfMemoryError:
            if len(targets) == 1:
                raise
        on_shortage()
        torch.cuda.empty_cache()
        halves = targets.chunk(2)
        return [head for half in halves for head in self._fit_alike(features, half, classes, on_shortage)]


def _find_unreadable(pixels: Pixels, numbers: Iterable[int]) -> dict[int, DataError]:
    """An error for each of the images that does not load."""
    found: dict[int, DataError] = {}
    for number in numbers:
        try:
            pixels.load(number)
        except DataError as error:
            found[number] = error
    return found
