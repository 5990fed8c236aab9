"""Many tasks at once: tasks on the same images share decoding, forward passes and the fitting of heads."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from task2vec.embedding.batching import OomRetry, Part, Passes, choose_device, refuse_infinite
from task2vec.embedding.embedding import (
    Embedding,
    EmbedSettings,
    Store,
    TaskResult,
    find_saved,
    name_file,
    open_folder,
)
from task2vec.embedding.single import Job, add_priors, draw_parts, start_backward
from task2vec.errors import DataError, NotFiniteError, ResourceError, Task2VecError, UsageError
from task2vec.fisher import check_rows
from task2vec.head import Head, fit_heads, is_small
from task2vec.parallel import Backend, Unit, borrow_backend
from task2vec.probe import Probe, load_probe
from task2vec.progress import Report, show_progress, silent
from task2vec.tasks import Images, Task, draw_batches, to_task, to_tasks
from task2vec.tasks.images import SIGNATURE_SIDE, ChosenImages

# More tasks at a time would save little of the forward passes, and delay the first result.
_TOGETHER = 256
# Images that keep a GPU busy: tasks without common ones share their batches up to so many.
_BUSY = 2048
# Devices that wait for the host in every step of a small fit.
_WAITS = ("cuda",)
_GIGABYTE = 1 << 30
# Bytes that are kept of an image to find its near copies by.
_SIGNATURE = 2 * 3 * SIGNATURE_SIDE**2
# Images times classes of the tasks whose pairs are drawn together, at most.
_TERMS = 1 << 20

NO_IMAGES = ChosenImages((), ())

# A task with its number among all that were given, and what becomes of it.
Member = tuple[int, Task]
Outcome = tuple[int, Embedding | Task2VecError]
# Its number, and the jobs of the task itself and of its halves, if wanted.
Family = tuple[int, list[Job]]


def embed_many(
    tasks: Iterable[Any],
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
    """The embeddings of many tasks as they are finished; tasks on the same images cost little more than one.

    A task that fails is returned with its error, and the others continue. With a `folder`, each embedding is written
    there at once, and one from an earlier run with the same data, probe and settings is not computed again. No other
    file is overwritten: an embedding whose name is taken gets a longer one.

    Args:
        tasks: tasks, or anything that `to_task` accepts, which is read at the call, in any order; results come as they
            are finished, with the number of their task.
        probe: what `load_probe` returns.
        settings: see `EmbedSettings`. With `rel_tol` or the variational method tasks share only their features.
        folder: where to save the embeddings, one file each; None saves none.
        library: a `Library` where they are looked up and added, unless it is read-only. Embeddings that only the folder
            or only the library has are copied to the other. One that the library refuses is returned with the error.
        gigabytes: about how much memory features and sums may take in each process. Neither this nor any of the
            arguments below changes the numbers.
        device: "cpu", "cuda"; None uses a GPU if there is one.
        num_workers: threads that decode images; None takes one per core.
        batch_size: images per step; None chooses one. It is halved automatically when GPU memory runs out.
        backend: "ray", or what `open_backend` returns; None computes here. Tasks that share images go to the same
            worker. Only this process writes results.
        progress: show progress bars on standard error.

    Example:
        >>> from task2vec import sample_tasks
        >>> digits = sample_tasks(images_per_task=20)[0]
        >>> tasks = digits.one_vs_rest()[:2]  # is it a 0? a 1?
        >>> for result in embed_many(tasks, load_probe(size=32), settings=EmbedSettings(max_samples=8)):
        ...     print(result.number, result.embedding)
        0 Embedding(digits: 0, probe=tf_efficientnet_lite0, 21008 filters, 20 images)
        1 Embedding(digits: 1, probe=tf_efficientnet_lite0, 21008 filters, 20 images)
    """
    if not 0 < gigabytes < math.inf:
        raise UsageError(f"gigabytes={gigabytes} must be a positive number: features and sums need memory. Try 2.")
    tasks = to_tasks(tasks, num_workers=num_workers, progress=progress is True)
    probe = probe or load_probe()
    options = {"device": device, "num_workers": num_workers, "batch_size": batch_size}
    work = GroupWork(probe, settings, gigabytes * _GIGABYTE, options)
    # Invalid arguments are refused now, and not with the first result; the device may be that of other machines.
    work.prepare(device=device if backend is None else "cpu")
    if folder is not None:
        _check_names(tasks)
        folder = open_folder(Path(folder))
    return _find_and_embed(tasks, work, folder=folder, library=library, backend=backend, progress=progress)


def embed_batches(
    task: Any,
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
        task: the collection, or anything that `to_task` accepts.
        probe: what `load_probe` returns.
        batches: how many; None takes as many as there are images for, 20 at most.
        classes: how many of its classes are in each batch; None takes all.
        images: of each class in a batch, and as many again in its twin.
        seed: of the draw of batches.
        settings: how each is embedded, see `EmbedSettings`.
        device: "cpu", "cuda"; None uses a GPU if there is one.
        num_workers: threads that decode images; None takes one per core.
        backend: where to compute, see `embed_many`.
        progress: show progress bars on standard error.

    Raises:
        Task2VecError: A batch could not be embedded; a mean without it would describe another collection.

    Example:
        >>> from task2vec import distance, load_probe, sample_tasks
        >>> digits = sample_tasks(images_per_task=60)[0]
        >>> small = EmbedSettings(max_samples=2, l2=0.01)
        >>> batches, twins = embed_batches(digits, load_probe(size=32), classes=2, images=1, batches=3, settings=small)
        >>> distance.diversity(batches, twins).batches
        3
    """
    task = to_task(task, num_workers=num_workers, progress=progress is True)
    drawn = draw_batches(task, batches, classes=classes, images=images, seed=seed)
    tasks = [batch for pair in drawn for batch in pair]
    options = {"device": device, "num_workers": num_workers, "backend": backend, "progress": progress}
    embeddings: dict[int, Embedding] = {}
    for result in embed_many(tasks, probe, settings=settings, **options):
        if result.embedding is None:
            raise result.error or AssertionError("neither an embedding nor an error")
        embeddings[result.number] = result.embedding
    ordered = [embeddings[number] for number in range(len(tasks))]
    return ordered[::2], ordered[1::2]


def _check_names(tasks: Sequence[Task]) -> None:
    """Refuses two tasks that would be saved in one file, unless they are the same."""
    names = Counter(name for name, _ in {(name_file(task), task.fingerprint) for task in tasks})
    for name, count in names.items():
        if count > 1:
            conflict = f"{count} tasks would be saved in one file, {name!r}, and all but one would be lost"
            raise UsageError(f"{conflict}. Give each its own name: dataclasses.replace(task, name=...).")


def _find_and_embed(
    tasks: Sequence[Task],
    work: "GroupWork",
    *,
    folder: Path | None,
    library: Store | None,
    backend: Backend | str | None,
    progress: bool | Report,
) -> Iterator[TaskResult]:
    """What was found, then what is computed, group by group."""
    probe, settings = work.probe, work.settings
    added: set[tuple[str, str]] = set()  # a task that is given twice may differ from itself by rounding

    def save(
        number: int, embedding: Embedding, *, is_found: bool = False, is_saved: bool = False, is_stored: bool = False
    ) -> TaskResult:
        """The result for an embedding, which is saved where it is not yet."""
        task, error = tasks[number], None
        if folder is not None and not is_saved:
            embedding.save(find_saved(folder, task, probe, settings=settings)[0])
        is_stored = is_stored or (task.fingerprint, task.groups_key) in added
        if library is not None and not library.is_read_only and not is_stored:
            try:
                library.add(embedding, source=task.source)
                added.add((task.fingerprint, task.groups_key))
            except Task2VecError as refusal:
                error = refusal
        return TaskResult(number, task.name, embedding, error, is_found)

    with show_progress(progress) as report:
        step = report("tasks", len(tasks))
        waiting = []
        for number, task in enumerate(tasks):
            saved = None if folder is None else find_saved(folder, task, probe, settings=settings)[1]
            stored = None if library is None else library.find(task, probe, settings=settings)
            known = stored if saved is None else saved
            if known is None:
                waiting.append((number, task))
                continue
            step(1)
            known = replace(known, task=task.name)
            yield save(number, known, is_found=True, is_saved=saved is not None, is_stored=stored is not None)
        for number, outcome in _embed_groups(waiting, work, backend, report):
            step(1)
            if isinstance(outcome, Embedding):
                yield save(number, outcome)
            else:  # the frames of a traceback would keep images and features of the whole group in memory
                yield TaskResult(number, tasks[number].name, error=outcome.with_traceback(None))


def _embed_groups(
    members: Sequence[Member], work: "GroupWork", backend: Backend | str | None, report: Report
) -> Iterator[Outcome]:
    """The outcome of these tasks. The backend does not change the groups, and so no byte of the results."""
    most = max(1, int(work.room / 2 / (4 * work.probe.feature_dim + _SIGNATURE)))
    tasks = [task for _, task in members]
    groups = [[members[number] for number in group] for group in group_tasks(tasks, most=most)]
    if backend is None:
        if choose_device(work.options["device"]).type == "cuda":
            groups = _merge(groups, min(most, _BUSY))
        for group in groups:
            yield from work.embed(group, report)
        return
    left = {f"task {group[0][0]} ({group[0][1].name})": dict(group) for group in groups}
    units = [Unit(key, list(group.items())) for key, group in left.items()]
    with borrow_backend(backend) as open_one:
        for result in open_one.run(work, units):
            if not result.is_last:
                left[result.key].pop(result.value[0], None)
                yield result.value
            elif result.failure is not None:  # of a whole group
                yield from ((number, result.failure.error()) for number in left[result.key])


def _merge(groups: Sequence[list[Member]], most: int) -> list[list[Member]]:
    """Small groups together, in their order, as long as their tasks have at most so many images in all."""
    merged, held = [], most
    for group in groups:
        size = sum(len(task) for _, task in group)
        if held + size > most:
            merged.append([])
            held = 0
        merged[-1] += group
        held += size
    return merged


# --- common images ----------------------------------------------------------------------------------------------------


def gather_images(tasks: Sequence[Task]) -> tuple[Images, tuple[str, ...], list[np.ndarray]]:
    """The common images of canonical tasks, their digests, and for each task the numbers of its own among them.

    The order is that of the content, which is also the canonical order of every single task. Copies of an image within
    one task are images of their own, by their number. Each image is taken from the first task that has it.
    """
    sources: dict[tuple[str, int], tuple[int, int]] = {}
    keys: dict[tuple[str, ...], list[tuple[str, int]]] = {}
    for source, task in enumerate(tasks):
        if task.digests in keys:  # other labels of the same images
            continue
        seen: Counter[str] = Counter()
        task_keys = keys[task.digests] = []
        for number, digest in enumerate(task.digests):
            task_keys.append((digest, seen[digest]))
            sources.setdefault(task_keys[-1], (source, number))
            seen[digest] += 1
    order = sorted(sources)
    positions = {key: position for position, key in enumerate(order)}
    labels = tuple(f"{task.name}: " for task in tasks)
    common = ChosenImages(tuple(task.images for task in tasks), [sources[key] for key in order], labels)
    numbers = {digests: np.array([positions[key] for key in task_keys]) for digests, task_keys in keys.items()}
    return common, tuple(digest for digest, _ in order), [numbers[task.digests] for task in tasks]


def group_tasks(tasks: Sequence[Task], *, most: int) -> list[list[int]]:
    """The numbers of tasks that share images, directly or through others, together; at most `most` images in a group.

    Tasks on the same images, if these are more than that, are a group of their own. Groups are in the order of their
    first tasks.

    Example:
        >>> from task2vec import sample_tasks
        >>> group_tasks(sample_tasks(images_per_task=20), most=1000)  # digits and their parity; photos and coin flips
        [[0, 1], [2], [3], [4], [5], [6, 7]]
    """
    from scipy.cluster.hierarchy import DisjointSet

    joined, first, alike = DisjointSet(range(len(tasks))), {}, {}
    for number, task in enumerate(tasks):
        twin = alike.setdefault(task.digests, number)
        for relative in [twin] if twin < number else {first.setdefault(digest, number) for digest in task.digests}:
            joined.merge(number, relative)
    groups = []
    for related in joined.subsets():
        held: set[str] = set()
        for number in sorted(related):
            united = held.union(tasks[number].digests)
            if not held or (len(united) > most and united != held):  # images that are held cost nothing more
                groups.append([])
                united = set(tasks[number].digests)
            groups[-1].append(number)
            held = united
    return sorted(groups)


@dataclass(frozen=True)
class GroupWork:
    """How tasks on common images are embedded, here or in a worker (see `task2vec.parallel.Work`).

    Attributes:
        probe: the probe.
        settings: what changes the numbers.
        room: about how many bytes features and sums may take.
        options: device, num_workers (None takes one per core, or, in a worker, as many threads as it computes with)
            and batch_size.
    """

    probe: Probe
    settings: EmbedSettings
    room: float
    options: dict[str, Any]

    def open(self) -> Callable[[Sequence[Member]], Iterator[Outcome]]:
        """A function from a group to the outcomes of its tasks."""
        threads = self.options["num_workers"] or torch.get_num_threads()
        here = replace(self, options=self.options | {"num_workers": threads})
        here.prepare()
        return partial(here.embed, report=silent)

    def prepare(self, images: Images = NO_IMAGES, **options: Any) -> Passes:
        """The probe made ready to run on some images, or on none: invalid arguments are refused."""
        return Passes(images, self.probe, settings=self.settings, **(self.options | options))

    def embed(self, group: Sequence[Member], report: Report) -> Iterator[Outcome]:
        """The outcomes of tasks that share images; if one cannot be used, each half of the tasks goes on by itself."""
        tasks = [task.canonical() for _, task in group]
        images, digests, places = gather_images(tasks)
        passes, left, jobs = self.prepare(images), dict(group), {}
        for (number, given), task, numbers in zip(group, tasks, places, strict=True):
            jobs[number] = Job(given, task, self.settings, passes, torch.from_numpy(numbers), digests)
        try:
            for number, outcome in self._embed_jobs(jobs, passes.features(report), report):
                del left[number]
                yield number, outcome
            return
        except DataError as error:
            cause = error.with_traceback(None)  # whose frames keep the features in memory
        if len(group) == 1:
            yield group[0][0], cause
            return
        # Each half has its images from its own files, so the tasks with a bad one are soon alone.
        passes.forget()
        rest, middle = list(left.items()), (len(left) + 1) // 2
        for half in filter(None, (rest[:middle], rest[middle:])):
            yield from self.embed(half, report)

    def _embed_jobs(self, jobs: dict[int, Job], features: Tensor, report: Report) -> Iterator[Outcome]:
        """The embedding of every task, or why there is none; `DataError` if an image cannot be read any more."""
        families, are_finite = [], bool(torch.isfinite(features).all())
        for number, job in jobs.items():
            try:
                if not are_finite:
                    refuse_infinite(features[job.places], job.task.images.name)
                families.append((number, [job, *(half for _, half in job.split())]))
            except DataError as error:
                yield number, error
        draws_alone = self.settings.method == "variational" or self.settings.rel_tol is not None
        if draws_alone or len(families) == 1:  # the very steps of `embed`
            for number, (job, *_) in families:
                try:
                    yield number, job.embed(features[job.places], report)
                except (NotFiniteError, ResourceError) as error:
                    yield number, error
            return
        account = 5 * 8 * self.probe.n_filters * (3 if self.settings.split_half else 1)
        size = max(1, min(_TOGETHER, int(self.room / 2 / account)))
        for start in range(0, len(families), size):
            yield from self._embed_together(families[start : start + size], features, report)

    def _embed_together(self, families: Sequence[Family], features: Tensor, report: Report) -> Iterator[Outcome]:
        """Tasks whose backward passes share the forward pass of each image, with their halves if wanted."""
        jobs = [job for _, family in families for job in family]
        heads = self._fit(jobs, features)
        parts = self._draw(jobs, heads, features)
        backward = start_backward(jobs, parts)
        drawn = torch.nonzero(backward.counts).flatten().tolist()
        backward.run(drawn, report("fisher", sum(len(drawn_part.images) for drawn_part in parts)))
        measured = add_priors(jobs, backward.ledger.estimates())
        last, are_finite = 0, bool(torch.isfinite(backward.ledger.sums[:, 1]).all())
        for number, family in families:
            first, last = last, last + len(family)
            try:
                if not are_finite:
                    check_rows(backward.ledger.sums[first:last, 1], self.probe.layers)
                halves = [half.fisher.numpy() for half, *_ in measured[first + 1 : last]]
                yield number, family[0].describe(heads[first], measured[first], halves=halves)
            except NotFiniteError as error:
                yield number, error

    def _fit(self, jobs: Sequence[Job], features: Tensor) -> list[Head]:
        """The heads of all jobs; those on the very same images with as many classes are fitted together.

        On a GPU also small tasks on other images, since it waits for the host in each fit. Half of them at a time, and
        so on, if it has not enough memory for all.
        """
        alike: dict[tuple, list[int]] = defaultdict(list)
        held: Counter[int] = Counter()  # images of small tasks so far, by the number of classes
        for position, job in enumerate(jobs):
            common, classes, is_multilabel = find_kind(job)
            is_plain = not is_multilabel and not job.task.groups_key
            if features.device.type in _WAITS and is_plain and is_small(len(job.task), classes):
                held[classes] += len(job.task)
                common = held[classes] // _BUSY  # each task reads the images of all
            alike[common, classes, is_multilabel].append(position)
        heads: dict[int, Head] = {}
        for (common, classes, _), positions in alike.items():
            alike_jobs = [jobs[position] for position in positions]
            options = {"l2": self.settings.l2, "balance": self.settings.balance, "classes": classes}
            description = f"{classes} classes on {max(len(job.task) for job in alike_jobs)} images"
            memory = OomRetry(description, on_shortage=jobs[0].passes.memory.on_shortage, unit="head")
            if isinstance(common, int):
                fitted = memory.run(lambda jobs, options=options: fit_apart(features, jobs, **options), [alike_jobs])
            else:
                options["groups"] = alike_jobs[0].groups
                targets = torch.stack([job.labels for job in alike_jobs]).to(features.device)
                fitted = memory.run(partial(fit_heads, features[alike_jobs[0].places], **options), [targets])
            heads |= dict(zip(positions, fitted, strict=True))
        return [heads[position] for position in range(len(jobs))]

    def _draw(self, jobs: Sequence[Job], heads: Sequence[Head], features: Tensor) -> list[Part]:
        """The pairs of all jobs; of those on the very same images with as many classes together."""
        alike: dict[tuple, list[int]] = defaultdict(list)
        for position, job in enumerate(jobs):
            alike[find_kind(job)].append(position)
        parts: dict[int, Part] = {}
        for (_, classes, _), positions in alike.items():
            places = jobs[positions[0]].places
            chosen = features[places]
            most = max(1, _TERMS // (len(places) * classes))
            for start in range(0, len(positions), most):
                chunk = positions[start : start + most]
                drawn = draw_parts(
                    [jobs[position] for position in chunk], [heads[position] for position in chunk], chosen
                )
                parts |= dict(zip(chunk, drawn, strict=True))
        return [parts[position] for position in range(len(jobs))]


def find_kind(job: Job) -> tuple[Any, int, bool]:
    """Equal for jobs on the very same images, in the same groups, with as many classes."""
    return (job.places.numpy().tobytes(), job.task.groups_key), len(job.task.classes), job.task.is_multilabel


def fit_apart(features: Tensor, jobs: Sequence[Job], **options: Any) -> list[Head]:
    """The heads of small tasks, each on its own of the common images, fitted together."""
    union, members = torch.cat([job.places for job in jobs]).unique(), []
    targets = torch.zeros(len(jobs), len(union), dtype=torch.long, device=features.device)
    for number, job in enumerate(jobs):
        members.append(torch.searchsorted(union, job.places).to(features.device))
        targets[number, members[-1]] = job.targets
    digests = [jobs[0].digests[number] for number in union.tolist()]
    groups = torch.from_numpy(np.unique(digests, return_inverse=True)[1]).to(features.device)
    return fit_heads(features[union.to(features.device)], targets, groups=groups, members=members, **options)
