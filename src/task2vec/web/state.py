"""What a server holds: a view of the library and the bundled meta-task, maps, and cached responses.

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
from starlette.responses import Response

from task2vec.distance import SCALING, sign_vector, symmetric_to_rows
from task2vec.embedding import Embedding
from task2vec.errors import LibraryError, MissingExtraError, Task2VecError
from task2vec.library import Library, MeasuredError, find_library
from task2vec.library.database import find_file, stamp
from task2vec.library.entries import TaskEntry
from task2vec.metatask import MetaTask, bundled_metatask, format_space
from task2vec.plots.layout import TaskMap, lay_out
from task2vec.text import printable
from task2vec.web.errors import RequestError, look_up
from task2vec.web.schemas import MapProgress, Space, TaskSummary
from task2vec.web.settings import ServeSettings

_CACHE_BYTES = 48 << 20
# Threads for responses that take milliseconds, and for slow ones; requests that may wait for either.
_THREADS = 2
MAX_WAITING = {False: 256, True: 64}
_OLDER_EMBEDDINGS = 50  # that a newer one of the same task hides, among the nearest
MAX_EXACT, LANDMARKS = 600, 1000  # tasks of a map with exact distances; of a larger one, those that it is made of
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
        entries: by id, those of the library first, each part sorted by name.
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
    """The map of one space: the tasks that it was made of, and the positions of all.

    Up to 600 tasks are compared by the symmetric distance. More are compared with landmarks by the Euclidean distance
    between centred logarithms, which ranks much like it and is a matrix product.

    Attributes:
        base: the layout of the landmarks.
        rows: of the landmarks; their centred logarithms on a large map.
        is_large: whether the map has more than 600 tasks.
        positions: of all tasks, by id.
    """

    base: TaskMap
    rows: np.ndarray
    is_large: bool
    positions: dict[str, list[float]]

    def measure(self, row: np.ndarray) -> np.ndarray:
        """The distances of a task from the landmarks."""
        return measure_logs(centre_logs(row), self.rows) if self.is_large else symmetric_to_rows(row, self.rows)


class State:
    """What the routes work with, for any number of threads."""

    def __init__(self, settings: ServeSettings, *, metatask: MetaTask | None = None):
        """The library need not exist yet."""
        self.metatask = metatask or bundled_metatask()
        self.folder = find_library(settings.library).resolve()
        self.names = {str(self.folder): printable(self.folder.name) or "root"}  # public names of folders
        self._library: Library | None = None
        self._seen: tuple[Any, Any] = (None, None)  # a stamp, and the view that was read then
        self._reading = threading.Lock()
        self._opening = threading.Lock()
        self._responses: LRUCache[Hashable, bytes] = LRUCache(_CACHE_BYTES, lambda content: len(content) + 500)
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
        if limiter.statistics().tasks_waiting >= MAX_WAITING[is_slow]:
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

    def load(self, entry: Entry) -> Embedding:
        """The embedding of an entry.

        Raises:
            LibraryError: It is damaged, or was removed just now.
        """
        if entry.origin == "bundled":
            return self.metatask.embeddings[entry.key][entry.row]
        library = self.open_library()
        if library is None:
            problem = f"the library was removed, so '{entry.name}' cannot be read"
            raise LibraryError(f"{problem}. Restore it, and reload the page.")
        return library.get(entry.key)

    def open_report(self, entry: Entry) -> BinaryIO:
        """The file of the report on a task.

        Raises:
            RequestError: There is none, or a link in its place.
        """
        library = self.open_library()
        flags = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK"))
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
            distances = symmetric_to_rows(self.load_row(entry), self._rows[entry.space]).tolist()
            for bundled, distance in zip(self._bundled[entry.space], distances, strict=True):
                if bundled.id in view.entries and bundled.fingerprint != entry.fingerprint:
                    near.append((bundled, distance))
        library = self.open_library()
        if library is not None:
            for neighbour in library.nearest(self.load(entry), limit + _OLDER_EMBEDDINGS):
                # Older embeddings of a task are behind its newest one, which alone has an id.
                neighbour_entry = view.entries.get(make_id("l", neighbour.embedding.key))
                if neighbour_entry is not None:
                    near.append((neighbour_entry, neighbour.distance))
        return sorted(near, key=lambda pair: (pair[1], pair[0].id))

    def _read(self) -> View:
        library = self.open_library()
        errors = [] if library is None else library.errors()
        tasks = [] if library is None else library.tasks()
        reports = set()
        with suppress(OSError), os.scandir(find_file(self.folder).with_name("reports")) as files:
            reports = {file.name for file in files if file.is_file(follow_symlinks=False)}
        stored = _list_library(tasks, errors, reports)
        known = {(entry.fingerprint, entry.space) for entry in stored}
        bundled = chain(*self._bundled.values())
        entries = [*stored, *(entry for entry in bundled if (entry.fingerprint, entry.space) not in known)]
        entries.sort(key=lambda entry: (entry.origin != "library", entry.name.casefold(), entry.id))
        members: dict[str, list[Entry]] = defaultdict(list)
        for entry in entries:
            members[entry.space].append(entry)
        content = [
            (entry.id, entry.name, entry.tags, entry.taxon, entry.best_error, entry.has_report) for entry in entries
        ]
        content += [(error.task, error.expert, error.error) for error in errors]
        revision = hashlib.blake2b(repr(content).encode(), digest_size=10).hexdigest()
        by_id = {entry.id: entry for entry in entries}
        return View(revision, by_id, self._list_spaces(members, stored), members, bool(errors))

    def _list_spaces(self, members: Mapping[str, Sequence[Entry]], stored: Sequence[Entry]) -> dict[str, Space]:
        """The spaces by id: first the default probe's, unless the whole library is in others."""
        counts = Counter(entry.space for entry in stored)
        default = next(iter(self._bundled), "")
        if stored and not counts[default]:
            default = counts.most_common(1)[0][0]
        spaces = {}
        for space in sorted(members, key=lambda space: (space != default, -len(members[space]), space)):
            name = "unreadable embeddings"
            for entry in members[space][:9]:
                with suppress(Task2VecError):  # damaged
                    name = format_space(self.load(entry))
                    break
            spaces[space] = Space(id=space, name=name, tasks=len(members[space]), is_default=space == default)
        return spaces

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
            progress.stage = stage
            progress.done = done

        chart = self.make_chart(entries, step) if old is None or old.exception() else old.result()
        self.place(chart, entries, step)
        return chart

    def make_chart(self, entries: Sequence[Entry], step: Callable[[str, float], None]) -> Chart:
        """A new map of some tasks: of all that can be read, or of a random sample that the others are added to."""
        is_large = len(entries) > MAX_EXACT
        order = sorted(entries, key=lambda entry: hashlib.blake2b(entry.id.encode()).digest())
        readable = self._read_rows(order[:LANDMARKS] if is_large else order, lambda done: step("reading", 0.3 * done))
        landmarks = [(entry, centre_logs(row) if is_large else row) for entry, row in readable]
        if not landmarks:
            raise LibraryError("no embedding of this space can be read. List what is damaged: task2vec library verify")
        step("comparing", 0.3)
        rows = np.array([row for _, row in landmarks])
        names = [entry.name for entry, _ in landmarks]
        distances = measure_logs(rows, rows) if is_large else compare_rows(rows)
        np.fill_diagonal(distances, 0)
        step("laying out", 0.4)
        try:
            base = lay_out(distances, names)
        except MissingExtraError:
            base = lay_out(distances, names, method="classical scaling")
        ids = [entry.id for entry, _ in landmarks]
        return Chart(base, rows, is_large, dict(zip(ids, base.positions.tolist(), strict=True)))

    def place(self, chart: Chart, entries: Sequence[Entry], step: Callable[[str, float], None]) -> None:
        """Adds tasks to a map, whose own stay where they are; damaged ones go to the middle."""
        new = [entry for entry in entries if entry.id not in chart.positions]
        readable = self._read_rows(new, lambda done: step("placing", 0.6 + 0.3 * done))
        distances = {entry.id: chart.measure(row) for entry, row in readable}
        middle: list[float] = chart.base.positions.mean(axis=0).tolist()
        positions = chart.base.place(np.array(list(distances.values()))).tolist() if distances else []
        chart.positions |= {entry.id: middle for entry in new} | dict(zip(distances, positions, strict=True))

    def _read_rows(self, entries: Sequence[Entry], step: Callable[[float], None]) -> Iterator[tuple[Entry, np.ndarray]]:
        """The rows of all tasks that can be read; `task2vec library verify` names the others."""
        for number, entry in enumerate(entries):
            step(number / len(entries))
            with suppress(Task2VecError):
                yield entry, self.load_row(entry)


def compare_rows(rows: np.ndarray) -> np.ndarray:
    """The symmetric distances between rows as `State.load_row` returns them."""
    distances = np.zeros((len(rows), len(rows)))
    for number in range(len(rows) - 1):
        distances[number, number + 1 :] = symmetric_to_rows(rows[number], rows[number + 1 :])
    return distances + distances.T


def centre_logs(row: np.ndarray) -> np.ndarray:
    """The logarithms of a row, centred over its filters."""
    logs = np.log(np.abs(row))
    return logs - logs.mean()


def measure_logs(logs: np.ndarray, landmarks: np.ndarray) -> np.ndarray:
    """Euclidean distances from landmarks, by a matrix product.

    Example:
        >>> measure_logs(np.array([3.0, 4.0]), np.array([[0.0, 0.0], [3.0, 4.0]]))
        array([5., 0.])
    """
    squares = np.vecdot(logs, logs)[..., None] + np.vecdot(landmarks, landmarks) - 2 * logs @ landmarks.T
    return np.sqrt(np.maximum(squares, 0))


def make_id(kind: str, *content: str) -> str:
    """An opaque id: the same content gives the same id.

    Args:
        kind: one letter: l, m or s.
        content: what distinguishes it from others of its kind.

    Example:
        >>> make_id("l", "abc")
        'l-3619b2e9832d748d745e'
    """
    text = "\0".join(content).encode("utf-8", "surrogateescape")
    return f"{kind}-{hashlib.blake2b(text, digest_size=10).hexdigest()}"


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
    entries = {}
    for task in tasks:
        for embedding in task.embeddings:
            space = name_space(embedding.probe_fingerprint, embedding.settings)
            fields = {
                "id": make_id("l", embedding.key),
                "space": space,
                "dataset": task.tags[0] if task.tags else None,
                "origin": "library",
                "classes": len(task.counts),
                "head_error": embedding.cv_error,
                "norm": embedding.norm,
                "best_error": best.get(task.fingerprint),
                "key": embedding.key,
                "class_names": task.classes,
                "added": task.added[:10],
                "has_report": f"{task.fingerprint}.html" in reports,
            }
            entries[task.fingerprint, space] = Entry.model_validate(vars(task) | fields)
    return list(entries.values())


def _list_bundled(metatask: MetaTask) -> Iterator[Entry]:
    """The tasks of a meta-task in every space of its embeddings; errors are those of the last protocol."""
    means = np.where(metatask.is_candidate, metatask.errors[:, :, -1].mean(axis=2), np.nan)
    for name in metatask.spaces:
        for row, (task, embedding) in enumerate(zip(metatask.tasks, metatask.embeddings[name], strict=False)):
            info: dict[str, Any] = embedding.provenance
            space = name_space(embedding.probe_fingerprint, info.get("settings"))
            counts = tuple((info.get("counts") or {}).get("per_class") or ())
            classes = task.classes or len(counts)
            fields = {
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
            yield Entry.model_validate(vars(task) | fields)
