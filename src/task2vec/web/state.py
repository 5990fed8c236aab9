"""What a server holds: a view of the library and the bundled meta-task, maps, cached responses, folders and jobs.

Other processes may change the library at any time. A change of its files (size and time) invalidates the view, so that
checking costs three system calls.
"""

import hashlib
import json
import os
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, BinaryIO, TypeVar

import numpy as np
from anyio import CapacityLimiter, to_thread
from cachetools import LRUCache
from pydantic_core import to_json
from scipy.spatial.distance import cdist
from starlette.responses import Response

from task2vec.distance import SCALING, sign_vector, symmetric_to_rows
from task2vec.embedding import Embedding
from task2vec.errors import LibraryError, MissingExtraError, Task2VecError
from task2vec.library import Library, MeasuredError, find_library
from task2vec.library.database import find_file, stamp
from task2vec.library.entries import TaskEntry
from task2vec.library.search import Sketcher, fit_sketcher
from task2vec.metatask import MetaTask, bundled_metatask, format_space
from task2vec.plots.layout import TaskMap, lay_out
from task2vec.text import printable
from task2vec.web.jobs import Folders, Jobs, make_id
from task2vec.web.schemas import MapProgress, Space, TaskSummary
from task2vec.web.security import RequestError, ServeSettings, look_up

_CACHE = 48 << 20  # bytes of responses
# Threads for responses that take milliseconds, and for slow ones; requests that may wait for either.
_THREADS = 2
MOST_WAITING = {False: 256, True: 64}
_OLDER = 50  # embeddings that a newer one of the same task hides, among the nearest
# Maps: tasks with exact distances, and landmarks beyond.
MOST_EXACT, LANDMARKS = 600, 1000
T = TypeVar("T")


class Entry(TaskSummary):
    """A task in one space: what lists show of it, and more.

    Attributes:
        fingerprint: of its images and their partition.
        key: of its embedding in the library, or the name of its space in the meta-task.
        counts: images per class.
        class_names: empty where they are not known.
        row: of its embedding in the meta-task.
        tags: of the library.
        is_multilabel: whether an image may have any number of classes.
        added: the day it was added to the library.
        has_report: whether the library has a report on it.
    """

    fingerprint: str
    key: str
    counts: tuple[int, ...]
    class_names: tuple[str, ...] = ()
    row: int = -1
    tags: tuple[str, ...] = ()
    is_multilabel: bool = False
    added: str | None = None
    has_report: bool = False

    def matches(self, words: Sequence[str]) -> bool:
        """Whether each lower-case word is in its name, dataset, taxon, tags or classes."""
        text = "\n".join([self.name, self.dataset or "", self.taxon or "", *self.tags, *self.class_names]).casefold()
        return all(word in text for word in words)


@dataclass(frozen=True)
class View:
    """Everything that is served, at one moment.

    Attributes:
        revision: changes with the content.
        entries: by id, sorted by name.
        spaces: by id, the default one first.
        members: the entries of every space.
        has_errors: whether the library has measured errors.
    """

    revision: str
    entries: Mapping[str, Entry]
    spaces: Mapping[str, Space]
    members: Mapping[str, Sequence[Entry]]
    has_errors: bool

    def find_entry(self, text: str) -> Entry:
        """The task of an id."""
        return look_up(self.entries, text, "task")

    def find_space(self, text: str | None) -> Space:
        """The space of an id; the default one for None."""
        return next(iter(self.spaces.values())) if text is None else look_up(self.spaces, text, "space")


@dataclass
class Chart:
    """The map of one space: the landmarks that it was made of, and the positions of all tasks.

    Beyond 600 tasks, landmarks and all others are compared by sketches (docs/how-to/library.md), a thousand times
    faster.
    """

    base: TaskMap
    rows: np.ndarray
    sketcher: Sketcher | None
    positions: dict[str, list[float]]

    def measure(self, row: np.ndarray) -> np.ndarray:
        """The distances of a task from the landmarks."""
        if self.sketcher is None:
            return symmetric_to_rows(row, self.rows)
        return np.linalg.norm(self.rows - self.sketcher.project(row[None])[:, :-2], axis=1)


class State:
    """What the routes work with, for any number of threads."""

    def __init__(self, settings: ServeSettings, *, metatask: MetaTask | None = None):
        """The library need not exist yet."""
        self.settings, self.metatask = settings, metatask or bundled_metatask()
        self.folder = find_library(settings.library).resolve()
        self.folders = Folders(settings.roots)
        # Public names of folders, by absolute path: a name as short as "." is in every sentence.
        self.names = {str(path): printable(path.name) or "root" for path in (self.folder, *self.folders.roots.values())}
        self.jobs = Jobs(self.folder, limits=settings.limits, names=self.names)
        self._library: Library | None = None
        self._seen: tuple[Any, Any] = (None, None)  # a stamp, and the view that was read then
        self._reading, self._opening = threading.Lock(), threading.Lock()
        self._responses: LRUCache[Hashable, bytes] = LRUCache(_CACHE, lambda content: len(content) + 500)
        self._bundled: dict[str, list[Entry]] = defaultdict(list)
        for entry in _list_bundled(self.metatask):
            self._bundled[entry.space].append(entry)
        self._rows = {space: self.load_rows(entries) for space, entries in self._bundled.items()}
        self._limiters = {is_slow: CapacityLimiter(_THREADS) for is_slow in (False, True)}
        self._maps: dict[str, tuple[str, Future[Chart], MapProgress]] = {}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="task2vec-map")

    def close(self) -> None:
        """Ends all work."""
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
            why = "More would wait too long and fill the memory."
            raise RequestError(503, f"too many requests are waiting. {why} Try again in a few seconds.")
        return await to_thread.run_sync(work, limiter=limiter, abandon_on_cancel=True)

    async def respond(self, key: Hashable, make: Callable[[], Any], *, is_slow: bool = False) -> Response:
        """What `make` returns as JSON, computed in a thread and cached."""
        content = self._responses.get(key)
        if content is None:
            content = await self.run(lambda: to_json(make(), inf_nan_mode="null"), is_slow=is_slow)
            with suppress(ValueError):  # larger than the whole cache
                self._responses[key] = content
        return Response(content, media_type="application/json")

    # --- the library ------------------------------------------------------------------------------------------------

    async def look(self) -> View:
        """The current view."""
        seen, view = self._seen
        return view if seen == self._stamp() else await self.run(self.read_view)

    def read_view(self) -> View:
        """The current view; reads the library if it has changed."""
        with self._reading:
            if self._seen[0] != self._stamp():
                self.open_library()  # creates the journal
                seen = self._stamp()  # before reading: a change meanwhile is seen at the next look
                self._seen = (seen, self._read())
            return self._seen[1]

    def _stamp(self) -> tuple:
        """Changes whenever the library is written to."""
        file = find_file(self.folder)
        return stamp(file), stamp(file.with_name(f"{file.name}-wal")), stamp(file.with_name("reports"))

    def open_library(self) -> Library | None:
        """The library; None if it does not exist, for reading creates nothing."""
        with self._opening:
            if self._library is None and find_file(self.folder).exists():
                self._library = Library.open(self.folder)
            return self._library

    def can_embed(self) -> bool:
        """Whether there is a root, and a library that can be written to."""
        library = self.open_library()
        return bool(self.folders.roots) and (library is None or not library.is_read_only)

    def load(self, entry: Entry) -> Embedding:
        """The embedding of an entry.

        Raises:
            LibraryError: It is damaged, or was removed just now.
        """
        if entry.origin == "bundled":
            return self.metatask.embeddings[entry.key][entry.row]
        library = self.open_library()
        if library is None:
            what = f"the library was removed, so '{entry.name}' cannot be read"
            raise LibraryError(f"{what}. Restore it, and reload the page.")
        return library.get(entry.key)

    def open_report(self, entry: Entry) -> BinaryIO:
        """The file of the report on a task.

        Raises:
            RequestError: There is none, or a link in its place.
        """
        library, flags = self.open_library(), sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK"))
        if library is not None and entry.has_report:  # else its fingerprint could be any text
            with suppress(OSError):
                file = library.report_file(entry.fingerprint)
                return open(file, "rb", opener=lambda path, usual: os.open(path, usual | flags))
        why = "A report is made from images, which a library does not contain."
        fix = "Make one where they are: task2vec report FOLDER --library DIR"
        raise RequestError(404, f"there is no report on the task {entry.id!r}. {why} {fix}")

    def load_row(self, entry: Entry) -> np.ndarray:
        """The vector of an entry in float32, as `task2vec.library` compares them."""
        return sign_vector(self.load(entry)).astype(np.float32)

    def load_rows(self, entries: Sequence[Entry]) -> np.ndarray:
        """The vectors of entries of one space."""
        return np.stack([self.load_row(entry) for entry in entries])

    def find_near(self, view: View, entry: Entry, limit: int) -> list[tuple[Entry, float]]:
        """The nearest tasks of the library, and all bundled ones, with their symmetric distances, nearest first."""
        near: list[tuple[Entry, float]] = []
        if entry.space in self._rows:
            apart = symmetric_to_rows(self.load_row(entry), self._rows[entry.space]).tolist()
            pairs = zip(self._bundled[entry.space], apart, strict=True)
            near = [(one, far) for one, far in pairs if one.id in view.entries and one.fingerprint != entry.fingerprint]
        library = self.open_library()
        # Older embeddings of a task are behind its newest one, which alone has an id.
        for found in library.nearest(self.load(entry), limit + _OLDER) if library is not None else ():
            if (one := view.entries.get(make_id("l", found.embedding.key))) is not None:
                near.append((one, found.distance))
        return sorted(near, key=lambda pair: (pair[1], pair[0].id))

    def _read(self) -> View:
        library = self.open_library()
        errors = [] if library is None else library.errors()
        tasks = [] if library is None else library.tasks()
        reports = set()
        with suppress(OSError), os.scandir(find_file(self.folder).with_name("reports")) as inside:
            reports = {one.name for one in inside if one.is_file(follow_symlinks=False)}
        own = _list_library(tasks, errors, reports)
        known = {(entry.fingerprint, entry.space) for entry in own}
        bundled = [one for one in chain(*self._bundled.values()) if (one.fingerprint, one.space) not in known]
        ordered = sorted([*own, *bundled], key=lambda one: (one.name.casefold(), one.id))
        members: dict[str, list[Entry]] = defaultdict(list)
        for entry in ordered:
            members[entry.space].append(entry)
        content = [(one.id, one.name, one.tags, one.taxon, one.best_error, one.has_report) for one in ordered]
        content += [(error.task, error.expert, error.error) for error in errors]
        revision = hashlib.blake2b(repr(content).encode(), digest_size=10).hexdigest()
        entries = {one.id: one for one in ordered}
        return View(revision, entries, self._list_spaces(members, own), members, bool(errors))

    def _list_spaces(self, members: Mapping[str, Sequence[Entry]], own: Sequence[Entry]) -> dict[str, Space]:
        """The spaces by id: first the default probe's, unless the whole library is in others."""
        counts, first = Counter(entry.space for entry in own), next(iter(self._bundled), "")
        if own and not counts[first]:
            first = counts.most_common(1)[0][0]
        found = {}
        for space in sorted(members, key=lambda space: (space != first, -len(members[space]), space)):
            name = "unreadable embeddings"
            for entry in members[space][:9]:
                with suppress(Task2VecError):  # damaged
                    name = format_space(self.load(entry))
                    break
            found[space] = Space(id=space, name=name, tasks=len(members[space]), is_default=space == first)
        return found

    # --- maps -------------------------------------------------------------------------------------------------------

    def find_chart(self, view: View, space: Space) -> Chart | MapProgress:
        """The map of a space, or its progress; it is made in the background, one at a time.

        Raises:
            Exception: It could not be made.
        """
        known = self._maps.get(space.id)
        if known is None or known[0] != view.revision:
            progress = MapProgress(stage="waiting", done=0)
            future = self._pool.submit(self._make_map, view.members[space.id], known and known[1], progress)
            known = self._maps[space.id] = (view.revision, future, progress)
        _, future, progress = known
        if not future.done():
            return progress
        if (error := future.exception()) is not None:
            raise error.with_traceback(None)  # else the traceback grows with every request
        return future.result()

    def _make_map(self, entries: Sequence[Entry], old: Future[Chart] | None, progress: MapProgress) -> Chart:
        """The old map with all new tasks of a space added to it, or a new one."""

        def step(stage: str, done: float) -> None:
            progress.stage, progress.done = stage, done

        chart = self.make_chart(entries, step) if old is None or old.exception() else old.result()
        self.place(chart, entries, step)
        return chart

    def make_chart(self, entries: Sequence[Entry], step: Callable[[str, float], None]) -> Chart:
        """A new map of some tasks: of all that can be read, or of a random sample that the others are added to."""
        is_large = len(entries) > MOST_EXACT
        order = sorted(entries, key=lambda entry: hashlib.blake2b(entry.id.encode()).digest())
        read = self._read_rows(order[:LANDMARKS] if is_large else order, lambda done: step("reading", 0.3 * done))
        used = {entry.id: (entry.name, row) for entry, row in read}
        if not used:
            raise LibraryError("no embedding of this space can be read. List what is damaged: task2vec library verify")
        step("comparing", 0.3)
        names, rows = zip(*used.values(), strict=True)
        known, sketcher = np.array(rows), None
        if is_large:
            sketcher = fit_sketcher(known)
            known = sketcher.project(known)[:, :-2]
        apart = cdist(known, known) if is_large else compare_rows(known)
        step("laying out", 0.4)
        try:
            base = lay_out(apart, names)
        except MissingExtraError:
            base = lay_out(apart, names, method="classical scaling")
        return Chart(base, known, sketcher, dict(zip(used, base.positions.tolist(), strict=True)))

    def place(self, chart: Chart, entries: Sequence[Entry], step: Callable[[str, float], None]) -> None:
        """Adds tasks to a map, whose own stay where they are; damaged ones go to the middle."""
        new = [entry for entry in entries if entry.id not in chart.positions]
        read = self._read_rows(new, lambda done: step("placing", 0.6 + 0.3 * done))
        apart = {entry.id: chart.measure(row) for entry, row in read}
        middle: list[float] = chart.base.positions.mean(axis=0).tolist()
        places = chart.base.place(np.array(list(apart.values()))).tolist() if apart else []
        chart.positions |= {entry.id: middle for entry in new} | dict(zip(apart, places, strict=True))

    def _read_rows(self, entries: Sequence[Entry], step: Callable[[float], None]) -> Iterator[tuple[Entry, np.ndarray]]:
        """The rows of all tasks that can be read; `task2vec library verify` names the others."""
        for number, entry in enumerate(entries):
            step(number / len(entries))
            with suppress(Task2VecError):
                yield entry, self.load_row(entry)


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


def _list_library(tasks: Iterable[TaskEntry], errors: Iterable[MeasuredError], reports: Collection[str]) -> list[Entry]:
    """One entry per task and space; of several embeddings in one space the newest. `reports` are names of files."""
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
            more = {
                "id": make_id("l", one.key),
                "space": space,
                "dataset": task.tags[0] if task.tags else None,
                "origin": "library",
                "classes": len(task.counts),
                "head_error": one.cv_error,
                "norm": one.norm,
                "best_error": best.get(task.fingerprint),
                "key": one.key,
                "class_names": task.classes,
                "added": task.added[:10],
                "has_report": f"{task.fingerprint}.html" in reports,
            }
            found[task.fingerprint, space] = Entry.model_validate(vars(task) | more)
    return list(found.values())


def _list_bundled(metatask: MetaTask) -> Iterator[Entry]:
    """The tasks of a meta-task in every space of its embeddings; errors are those of the last protocol."""
    means = np.where(metatask.is_candidate, metatask.errors[:, :, -1].mean(axis=2), np.nan)
    for name in metatask.spaces:
        for row, (task, embedding) in enumerate(zip(metatask.tasks, metatask.embeddings[name], strict=False)):
            info: dict[str, Any] = embedding.provenance
            space = name_space(embedding.probe_fingerprint, info.get("settings"))
            counts = tuple((info.get("counts") or {}).get("per_class") or ())
            classes = task.classes or len(counts)
            more = {
                "id": make_id("m", space, task.fingerprint),
                "space": space,
                "taxon": task.family,
                "origin": "bundled",
                "classes": classes,
                "head_error": (info.get("head") or {}).get("cv_error"),
                "norm": embedding.norm(),
                "best_error": None if np.isnan(means[row]).all() else np.nanmin(means[row]),
                "key": name,
                "counts": counts if len(counts) == classes else (0,) * classes,
                "row": row,
            }
            yield Entry.model_validate(vars(task) | more)
