"""What a server holds: a view of the library and the bundled meta-task, maps, cached responses, folders and jobs.

Other processes may change the library at any time. A change of its files (size and time) invalidates the view, so that
checking costs two system calls.
"""

import hashlib
import json
import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from anyio import CapacityLimiter, to_thread
from cachetools import LRUCache
from starlette.responses import Response

from task2vec.distance import SCALING, symmetric_to_rows
from task2vec.embedding import Embedding
from task2vec.errors import LibraryError, MissingExtraError, Task2VecError
from task2vec.experts import MetaTask, bundled_metatask
from task2vec.library import Library, MeasuredError, find_library
from task2vec.library.database import find_file
from task2vec.library.entries import TaskEntry
from task2vec.library.search import Sketcher, fit_sketcher, sign_vector
from task2vec.plots.layout import TaskMap, lay_out
from task2vec.select.evidence import format_space
from task2vec.web.jobs import Folders, Jobs, make_id
from task2vec.web.schemas import Map, MapProgress, Point, Schema, Space, TaskSummary
from task2vec.web.security import RequestError, ServeSettings, unknown

_CACHE = 48 << 20  # bytes of embeddings, and of responses
# Threads for responses that take milliseconds, and for slow ones; requests that may wait for either.
_THREADS = 2
MOST_WAITING = {False: 256, True: 64}
# Maps: tasks with exact distances, and landmarks beyond.
MOST_EXACT, LANDMARKS = 600, 1000
T = TypeVar("T")


@dataclass(frozen=True)
class Entry:
    """A task in one space.

    Attributes:
        summary: what lists show of it.
        fingerprint: of its images and their partition.
        key: of its embedding in the library, or the name of its space in the meta-task.
        counts: images per class.
        class_names: empty where they are not known.
        row: of its embedding in the meta-task.
        tags: of the library.
        is_multilabel: whether an image may have any number of classes.
        added: the day it was added to the library.
    """

    summary: TaskSummary
    fingerprint: str
    key: str
    counts: tuple[int, ...]
    class_names: tuple[str, ...] = ()
    row: int = -1
    tags: tuple[str, ...] = ()
    is_multilabel: bool = False
    added: str | None = None

    @property
    def id(self) -> str:
        """That the server issued."""
        return self.summary.id

    @property
    def is_bundled(self) -> bool:
        """Whether it comes with the package."""
        return self.summary.origin == "bundled"

    def matches(self, words: Sequence[str]) -> bool:
        """Whether each lower-case word is in its name, dataset, taxon, tags or classes."""
        one = self.summary
        text = "\n".join([one.name, one.dataset or "", one.taxon or "", *self.tags, *self.class_names]).casefold()
        return all(word in text for word in words)


@dataclass(frozen=True)
class View:
    """Everything that is served, at one moment.

    Attributes:
        revision: changes with the content.
        entries: by id, sorted by name.
        by_key: those of the library, by the keys of their embeddings.
        spaces: by id, the default one first.
        members: the entries of every space.
        spare: number of older embeddings of the library that newer ones of the same task hide, by space.
        has_errors: whether the library has measured errors.
    """

    revision: str
    entries: Mapping[str, Entry]
    by_key: Mapping[str, Entry]
    spaces: Mapping[str, Space]
    members: Mapping[str, Sequence[Entry]]
    spare: Mapping[str, int]
    has_errors: bool

    def find_entry(self, text: str) -> Entry:
        """The task of an id."""
        if text not in self.entries:
            raise unknown("task", text)
        return self.entries[text]

    def find_space(self, text: str | None) -> Space:
        """The space of an id; the default one for None."""
        if text is not None and text not in self.spaces:
            raise unknown("space", text)
        return next(iter(self.spaces.values())) if text is None else self.spaces[text]


@dataclass
class Chart:
    """The map of one space: the landmarks that it was made of, and the positions of all tasks.

    Beyond 600 tasks, landmarks and all others are compared by sketches (docs/how-to/library.md), a thousand times
    faster.
    """

    base: TaskMap
    rows: np.ndarray
    sketcher: Sketcher | None
    positions: dict[str, tuple[float, float]] = field(default_factory=dict)

    def add(self, entries: Sequence[Entry], positions: np.ndarray) -> None:
        """Sets the positions of some tasks."""
        self.positions |= {entry.id: (float(x), float(y)) for entry, (x, y) in zip(entries, positions, strict=True)}


class State:
    """What the routes work with, for any number of threads."""

    def __init__(self, settings: ServeSettings, *, metatask: MetaTask | None = None):
        """The library need not exist yet."""
        self.settings, self.metatask = settings, metatask or bundled_metatask()
        self.folder = find_library(settings.library).resolve()
        self.folders = Folders(settings.roots)
        # Public names of folders, by absolute path: a name as short as "." is in every sentence.
        self.names = {str(path): path.name or "root" for path in self.folders.roots.values()}
        self.names.setdefault(str(self.folder), self.folder.name)
        self.jobs = Jobs(self.folder, limits=settings.limits, names=self.names)
        self.listeners, self.is_closing = 0, False
        self._library: Library | None = None
        self._seen: tuple[tuple, View] | None = None
        self._reading, self._opening, self._lock = threading.Lock(), threading.Lock(), threading.Lock()
        self._embeddings: LRUCache[Hashable, Embedding] = LRUCache(_CACHE, _count_bytes)
        self._responses: LRUCache[Hashable, bytes] = LRUCache(_CACHE, lambda content: len(content) + 500)
        self._rows: dict[str, np.ndarray] = {}
        self._space_names: dict[str, str] = {}
        self._bundled = list(_list_bundled(self.metatask))
        self._limiters = {is_slow: CapacityLimiter(_THREADS) for is_slow in (False, True)}
        self._charts: dict[str, Chart] = {}
        self._layouts: dict[tuple[str, str], tuple[Future[None], MapProgress]] = {}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="task2vec-map")

    def close(self) -> None:
        """Ends all work."""
        self.is_closing = True
        self.jobs.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._opening:
            if self._library is not None:
                self._library.close()
            self._library = None

    # --- responses --------------------------------------------------------------------------------------------------

    async def run(self, work: Callable[[], T], *, is_slow: bool = False) -> T:
        """What `work` returns, in a thread.

        Raises:
            RequestError: Too many requests are waiting.
        """
        limiter = self._limiters[is_slow]
        if limiter.statistics().tasks_waiting >= MOST_WAITING[is_slow]:
            raise RequestError(
                "the server is busy: too many requests are waiting.",
                "More of them would wait long and fill the memory.",
                "Try again in a few seconds.",
                status=503,
            )
        return await to_thread.run_sync(work, limiter=limiter, abandon_on_cancel=True)

    async def respond(
        self, key: tuple[Hashable, ...], make: Callable[[View], Schema], *, is_slow: bool = False
    ) -> Response:
        """The response that `make` computes from the current view, cached until the library changes."""
        view = await self.look()
        known = (view.revision, *key)

        def compute() -> bytes:
            if (content := self._get(self._responses, known)) is None:  # another request may have computed it meanwhile
                content = make(view).model_dump_json().encode()
                self._put(self._responses, known, content)
            return content

        content = self._get(self._responses, known) or await self.run(compute, is_slow=is_slow)
        return Response(content, media_type="application/json")

    def _get(self, cache: LRUCache, key: Hashable) -> Any:
        with self._lock:
            return cache.get(key)

    def _put(self, cache: LRUCache, key: Hashable, value: Any) -> None:
        with self._lock, suppress(ValueError):  # larger than the whole cache
            cache[key] = value

    # --- the library ------------------------------------------------------------------------------------------------

    async def look(self) -> View:
        """The current view."""
        return self._find_seen() or await self.run(self.read_view)

    def read_view(self) -> View:
        """The current view; reads the library if it has changed."""
        with self._reading:
            if (known := self._find_seen()) is not None:
                return known
            self.open_library()  # creates the journal
            stamp = self._stamp()  # before reading: a change meanwhile is seen at the next look
            view = self._read()
            self._seen = (stamp, view)
            return view

    def _find_seen(self) -> View | None:
        seen = self._seen
        return seen[1] if seen is not None and seen[0] == self._stamp() else None

    def _stamp(self) -> tuple:
        """Changes whenever the library is written to."""
        stamps = []
        file = find_file(self.folder)
        for path in (file, file.with_name(f"{file.name}-wal")):
            with suppress(OSError):
                found = path.stat()
                stamps.append((path.name, found.st_ino, found.st_size, found.st_mtime_ns))
        return tuple(stamps)

    def open_library(self) -> Library | None:
        """The library; None if it does not exist, for reading creates nothing."""
        with self._opening:
            if self._library is None and find_file(self.folder).exists():
                self._library = Library.open(self.folder)
            return self._library

    def can_embed(self) -> bool:
        """Whether there is a root, and a library that can be written to."""
        try:
            library = self.open_library()
        except Task2VecError:
            return False
        return bool(self.folders.roots) and (library is None or not library.is_read_only)

    def load(self, entry: Entry, *, keep: bool = True) -> Embedding:
        """The embedding of an entry; `keep` caches it.

        Raises:
            LibraryError: It is damaged, or was removed just now.
        """
        if entry.is_bundled:
            return self.metatask.embeddings[entry.key][entry.row]
        known = self._get(self._embeddings, entry.key)
        if known is not None and known.task == entry.summary.name:
            return known
        library = self.open_library()
        if library is None:
            raise LibraryError(
                f"the library '{self.folder.name}' was removed, so '{entry.summary.name}' cannot be read. Restore it, "
                "and reload the page."
            )
        found = library.get(entry.key)
        if keep:
            self._put(self._embeddings, entry.key, found)
        return found

    def load_row(self, entry: Entry) -> np.ndarray:
        """The vector of an entry in float32, as `task2vec.library` compares them."""
        return sign_vector(self.load(entry, keep=False)).astype(np.float32)

    def find_near(self, view: View, entry: Entry, limit: int) -> list[tuple[Entry, float]]:
        """The nearest tasks of the library, and all bundled ones, with their symmetric distances, nearest first."""
        space, embedding = entry.summary.space, self.load(entry)
        bundled = [one for one in view.members[space] if one.is_bundled and one.fingerprint != entry.fingerprint]
        near: list[tuple[Entry, float]] = []
        if bundled:
            key = bundled[0].key
            if key not in self._rows:
                known = self.metatask.embeddings[key][: len(self.metatask.tasks)]
                self._rows[key] = np.stack([sign_vector(one).astype(np.float32) for one in known])
            rows = self._rows[key][[one.row for one in bundled]]
            apart = symmetric_to_rows(sign_vector(embedding).astype(np.float32), rows)
            near = list(zip(bundled, apart.tolist(), strict=True))
        library = self.open_library()
        if library is not None and any(not one.is_bundled for one in view.members[space]):
            # Older embeddings of a task are behind its newest one, which alone has an id.
            for found in library.nearest(embedding, limit + min(view.spare[space], 50)):
                if (one := view.by_key.get(found.embedding.key)) is not None:
                    near.append((one, found.distance))
        return sorted(near, key=lambda pair: (pair[1], pair[0].id))

    def _read(self) -> View:
        library = self.open_library()
        errors = [] if library is None else library.errors()
        tasks = [] if library is None else library.tasks()
        own = _list_library(tasks, errors)
        known = {(entry.fingerprint, entry.summary.space) for entry in own}
        bundled = [one for one in self._bundled if (one.fingerprint, one.summary.space) not in known]
        ordered = sorted([*own, *bundled], key=lambda one: (one.summary.name.casefold(), one.id))
        members: dict[str, list[Entry]] = defaultdict(list)
        for entry in ordered:
            members[entry.summary.space].append(entry)
        spare = dict.fromkeys(members, 0)
        for task in tasks:
            for one in task.embeddings:
                spare[name_space(one.probe_fingerprint, one.settings)] += 1
        counts = {space: sum(not entry.is_bundled for entry in members[space]) for space in members}
        spare = {space: spare[space] - counts[space] for space in members}
        content = [(one.id, one.summary.name, one.tags, one.summary.taxon, one.summary.best_error) for one in ordered]
        content += [(error.task, error.expert, error.error) for error in errors]
        revision = hashlib.blake2b(repr(content).encode(), digest_size=10).hexdigest()
        entries, by_key = {one.id: one for one in ordered}, {one.key: one for one in own}
        return View(revision, entries, by_key, self._list_spaces(members, counts), members, spare, bool(errors))

    def _list_spaces(self, members: Mapping[str, Sequence[Entry]], counts: Mapping[str, int]) -> dict[str, Space]:
        """The spaces by id: first the default probe's, unless the whole library is in others."""
        usual = next(iter(self.metatask.spaces.values()), None)
        first = "" if usual is None else name_space(usual.probe_fingerprint, usual.provenance.get("settings"))
        if any(counts.values()) and not counts.get(first):
            first = max(counts, key=lambda space: counts[space])
        order = sorted(members, key=lambda space: (space != first, -len(members[space]), space))
        return {
            space: Space(
                id=space,
                name=self._format_space(space, members[space]),
                tasks=len(members[space]),
                is_default=space == first,
            )
            for space in order
        }

    def _format_space(self, space: str, entries: Sequence[Entry]) -> str:
        """The name of a space, from any of its embeddings that can be read."""
        for entry in sorted(entries, key=lambda one: not one.is_bundled)[:3] if space not in self._space_names else ():
            with suppress(Task2VecError):
                self._space_names[space] = format_space(self.load(entry))
                break
        return self._space_names.get(space, "unreadable embeddings")

    # --- maps -------------------------------------------------------------------------------------------------------

    def find_chart(self, view: View, space: Space) -> Chart | MapProgress:
        """The map of a space, or its progress; it is made in the background, one at a time.

        Raises:
            Exception: It could not be made.
        """
        key, entries = (space.id, view.revision), view.members[space.id]
        with self._lock:
            chart = self._charts.get(space.id)
            if chart is not None and all(entry.id in chart.positions for entry in entries):
                return chart
            future, progress = self._layouts.get(key, (None, MapProgress(stage="waiting", done=0)))
            if future is None:
                self._layouts = {old: one for old, one in self._layouts.items() if not one[0].done()}
                future = self._pool.submit(self._make_map, progress, space.id, entries)
                self._layouts[key] = (future, progress)
        error = future.exception() if future.done() else None
        if error is not None:
            raise error.with_traceback(None)  # else the traceback grows with every request
        return progress

    def _make_map(self, progress: MapProgress, space: str, entries: Sequence[Entry]) -> None:
        """Lays a space out, or adds its new tasks to the existing map."""

        def step(stage: str, done: float) -> None:
            progress.stage, progress.done = stage, min(max(done, 0.0), 1.0)

        chart = self._charts.get(space)
        if chart is None:
            chart = self.make_chart(entries, step)
        else:
            self._place(chart, [entry for entry in entries if entry.id not in chart.positions], step)
        self._charts[space] = chart

    def make_chart(self, entries: Sequence[Entry], step: Callable[[str, float], None]) -> Chart:
        """A new map of some tasks: of all of them, or of a random sample that the others are added to."""
        order = sorted(entries, key=lambda entry: hashlib.blake2b(entry.id.encode()).digest())
        first = order[:LANDMARKS] if len(order) > MOST_EXACT else order
        rows, used = [], []
        for number, entry in enumerate(first):
            step("reading", 0.3 * number / len(first))
            with suppress(Task2VecError):  # damaged: `task2vec library verify` names it
                rows.append(self.load_row(entry))
                used.append(entry)
        if not rows:
            what, why = "no embedding of this space can be read.", "A map needs the vectors of its tasks."
            raise RequestError(what, why, "List what is damaged: task2vec library verify", status=500)
        step("comparing", 0.3)
        known, sketcher = np.array(rows), None
        if len(order) > MOST_EXACT:
            sketcher = fit_sketcher(known)
            known = sketcher.project(known)[:, :-2]
            squares = np.square(known).sum(1)
            apart = np.sqrt(np.maximum(squares[:, None] + squares - 2 * known @ known.T, 0))
            apart = (apart + apart.T) / 2
            np.fill_diagonal(apart, 0)
        else:
            apart = compare_rows(known)
        step("laying out", 0.4)
        names = [entry.summary.name for entry in used]
        try:
            base = lay_out(apart, names)
        except MissingExtraError:
            base = lay_out(apart, names, method="classical scaling")
        chart = Chart(base, known, sketcher)
        chart.add(used, base.positions)
        rest = [entry for entry in order if entry.id not in chart.positions]
        self._place(chart, rest, lambda stage, done: step(stage, 0.6 + 0.4 * done))
        return chart

    def _place(self, chart: Chart, entries: Sequence[Entry], step: Callable[[str, float], None]) -> None:
        """Adds tasks to a map, whose own stay where they are; damaged ones go to the middle."""
        apart, is_read = [], np.zeros(len(entries), dtype=bool)
        for number, entry in enumerate(entries):
            step("placing", 0.8 * number / len(entries))
            with suppress(Task2VecError):
                row = self.load_row(entry)
                if chart.sketcher is not None:
                    apart.append(np.linalg.norm(chart.rows - chart.sketcher.project(row[None])[:, :-2], axis=1))
                else:
                    apart.append(symmetric_to_rows(row, chart.rows))
                is_read[number] = True
        positions = np.tile(chart.base.positions.mean(axis=0), (len(entries), 1))
        if apart:
            positions[is_read] = chart.base.place(np.array(apart))
        chart.add(entries, positions)


def _count_bytes(embedding: Embedding) -> int:
    return embedding.fisher.nbytes * (3 if embedding.halves is None else 5)


def describe_chart(chart: Chart, view: View, space: Space) -> Map:
    """The map with all tasks of a space."""
    points = []
    for entry in view.members[space.id]:
        x, y = chart.positions[entry.id]
        points.append(Point(**dict(entry.summary), x=x, y=y))
    later = len(points) - len(chart.base)
    method = chart.base.describe() + (f"; {later} added later" if later > 0 else "")
    return Map(space=space.id, revision=view.revision, method=method, points=points)


def compare_rows(rows: np.ndarray) -> np.ndarray:
    """The symmetric distances between rows as `State.load_row` returns them."""
    values = np.zeros((len(rows), len(rows)))
    for at in range(len(rows) - 1):
        values[at, at + 1 :] = symmetric_to_rows(rows[at], rows[at + 1 :])
    return values + values.T


def name_space(probe_fingerprint: str, settings: object) -> str:
    """The id of the space of embeddings by one probe and one choice of all settings that scale."""
    known = settings if isinstance(settings, Mapping) else {}
    return make_id("s", json.dumps([probe_fingerprint, [known.get(name) for name in SCALING]]))


def _list_library(tasks: Iterable[TaskEntry], errors: Iterable[MeasuredError]) -> list[Entry]:
    """One entry per task and space; of several embeddings in one space the newest."""
    cells: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for error in errors:
        cells[error.task, error.expert, error.protocol].append(error.error)
    best: dict[str, float] = {}
    for (fingerprint, _, _), values in cells.items():
        best[fingerprint] = min(best.get(fingerprint, 1.0), sum(values) / len(values))
    found = {}
    for task in tasks:
        for one in task.embeddings:
            space = name_space(one.probe_fingerprint, one.settings)
            summary = TaskSummary(
                id=make_id("l", one.key),
                name=task.name,
                space=space,
                dataset=task.tags[0] if task.tags else None,
                taxon=task.taxon,
                origin="library",
                images=task.images,
                classes=len(task.counts),
                head_error=one.cv_error,
                norm=one.norm,
                best_error=best.get(task.fingerprint),
            )
            found[task.fingerprint, space] = Entry(
                summary, task.fingerprint, one.key, tuple(task.counts), tuple(task.classes),
                tags=tuple(task.tags), is_multilabel=task.is_multilabel, added=task.added[:10],
            )  # fmt: skip
    return list(found.values())


def _list_bundled(metatask: MetaTask) -> Iterable[Entry]:
    """The tasks of a meta-task in every space of its embeddings; errors are those of the last protocol."""
    means = np.where(metatask.is_candidate, metatask.errors[:, :, -1].mean(axis=2), np.nan)
    for name, embeddings in metatask.embeddings.items():
        for row, (task, embedding) in enumerate(zip(metatask.tasks, embeddings, strict=False)):
            info: dict[str, Any] = embedding.provenance
            space = name_space(embedding.probe_fingerprint, info.get("settings"))
            error = (info.get("head") or {}).get("cv_error")
            counts = tuple((info.get("counts") or {}).get("per_class") or ())
            summary = TaskSummary(
                id=make_id("m", space, task.fingerprint),
                name=task.name,
                space=space,
                dataset=task.dataset,
                taxon=task.family,
                origin="bundled",
                images=task.images or 0,
                classes=task.classes or len(counts),
                head_error=None if error is None else float(error),
                norm=embedding.norm(),
                best_error=None if np.isnan(means[row]).all() else float(np.nanmin(means[row])),
            )
            counts = counts if len(counts) == summary.classes else (0,) * summary.classes
            yield Entry(summary, task.fingerprint, name, counts, row=row)
