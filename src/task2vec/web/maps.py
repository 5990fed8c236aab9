"""Maps of spaces, laid out in the background: whoever asks gets what is there, or how far it is.

Up to 600 tasks all distances are exact. Of more, a thousand make the map, and the others are put on it by their
distances from these; both are those of sketches (docs/search.md), which keep neighbours and cost a thousandth. A task
that comes later is put on the map, and nothing else moves; the map is made anew when it has grown by half.
"""

import hashlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from task2vec.atlas.layout import TaskMap, lay_out
from task2vec.distance import symmetric_to_rows
from task2vec.errors import MissingExtraError, Task2VecError
from task2vec.library.search import Sketcher, fit_sketcher, sign_vector
from task2vec.web import answers
from task2vec.web.entries import Entry
from task2vec.web.problems import NotServedError, split_text
from task2vec.web.tables import measure_table
from task2vec.web.world import Space, View, World

MOST_EXACT, LANDMARKS = 600, 1000
_GROWTH = 0.5
_KEPT = 8  # maps of so many spaces
Step = Callable[[str, float], None]


@dataclass
class Chart:
    """The map of one space: the tasks that made it, and the places of all that are on it."""

    base: TaskMap
    landmarks: tuple[str, ...]
    rows: np.ndarray
    sketcher: Sketcher | None
    places: dict[str, tuple[float, float]] = field(default_factory=dict)

    def measure(self, row: np.ndarray) -> np.ndarray:
        """The distances of a new task from those that made the map."""
        if self.sketcher is None:
            return symmetric_to_rows(row, self.rows)
        return np.linalg.norm(self.rows - self.sketcher.project(row[None])[:, :-2], axis=1)


@dataclass
class _Work:
    """A map that is being made, or could not be."""

    stage: str = "waiting"
    done: float = 0.0
    error: Exception | None = None
    is_running: bool = True

    def step(self, stage: str, done: float) -> None:
        """How far it is."""
        self.stage, self.done = stage, min(max(done, 0.0), 1.0)


class Maps:
    """The maps of all spaces; one is made at a time."""

    def __init__(self, world: World):
        """Nothing is laid out before somebody asks."""
        self.world = world
        self._charts: dict[str, Chart] = {}
        self._work: dict[tuple[str, str], _Work] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="task2vec-map")

    def close(self) -> None:
        """Nothing new is begun."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def find(self, view: View, space: Space) -> answers.MapAnswer | answers.LayingOutAnswer:
        """The map with all tasks of a space, or how far it is."""
        key = (space.id, view.revision)
        with self._lock:
            chart, work = self._charts.get(space.id), self._work.get(key)
            if chart is not None and all(entry.id in chart.places for entry in space.entries):
                return tell_map(chart, view, space)
            # One that has ended well, and whose map is not there, was made and let go for maps of other spaces.
            if work is None or (not work.is_running and work.error is None):
                self._work = {old: one for old, one in self._work.items() if one.is_running}
                work = self._work[key] = _Work()
                self._pool.submit(self._make, work, space)
        if work.error is not None:
            raise work.error.with_traceback(None)  # raised for each who asks, it would grow each time
        return answers.LayingOutAnswer(stage=work.stage, done=work.done)

    def _make(self, work: _Work, space: Space) -> None:
        """Lays a space out, or puts its new tasks on the map that there is."""
        try:
            chart = self._charts.get(space.id)
            new = [entry for entry in space.entries if chart is None or entry.id not in chart.places]
            if chart is None or len(chart.places) + len(new) > (1 + _GROWTH) * max(len(chart.base), LANDMARKS / 10):
                chart = make_chart(self.world, space.entries, work.step)
            else:
                put_on(chart, self.world, new, work.step)
            with self._lock:
                self._charts.pop(space.id, None)
                self._charts[space.id] = chart
                for old in list(self._charts)[:-_KEPT]:
                    self._charts.pop(old)
        except Task2VecError as error:
            work.error = error
        except Exception as error:  # said to whoever asks, and not lost in a thread
            problem = split_text(f"the map could not be laid out ({type(error).__name__}). This is a bug of task2vec.")
            work.error = NotServedError(problem, status=500)
        finally:
            work.is_running = False


def make_chart(world: World, entries: Sequence[Entry], step: Step) -> Chart:
    """A new map of some tasks."""
    order = sorted(entries, key=lambda entry: hashlib.blake2b(entry.id.encode()).digest())
    is_large = len(order) > MOST_EXACT
    first = order[:LANDMARKS] if is_large else order
    step("reading", 0.0)
    rows, used = _read(world, first, lambda done: step("reading", 0.3 * done))
    sketcher = None
    if is_large:
        sketcher = fit_sketcher(rows)
        rows = sketcher.project(rows)[:, :-2]
        apart = np.sqrt(np.maximum(np.square(rows).sum(1)[:, None] + np.square(rows).sum(1) - 2 * rows @ rows.T, 0))
        apart = (apart + apart.T) / 2
        np.fill_diagonal(apart, 0)
    else:
        step("comparing", 0.3)
        apart = measure_table(list(rows))
    step("laying out", 0.4)
    base = _lay_out(apart, [entry.name for entry in used])
    chart = Chart(base, tuple(entry.id for entry in used), rows, sketcher)
    _note(chart, used, base.places)
    skipped = [entry for entry in first if entry.id not in chart.places]
    _note(chart, skipped, np.tile(base.places.mean(axis=0), (len(skipped), 1)))  # damaged: in the middle, not lost
    put_on(chart, world, order[len(first) :], lambda stage, done: step(stage, 0.6 + 0.4 * done))
    return chart


def put_on(chart: Chart, world: World, entries: Sequence[Entry], step: Step) -> None:
    """Puts further tasks on a map, whose own stay where they are."""
    apart, placed = [], []
    for number, entry in enumerate(entries):
        rows, used = _read(world, [entry], lambda done: None)
        if used:
            apart.append(chart.measure(rows[0]))
        placed.append(bool(used))
        if number % 32 == 0:
            step("placing", 0.8 * number / len(entries))
    middle = chart.base.places.mean(axis=0)
    places = np.tile(middle, (len(entries), 1))
    if apart:
        places[np.array(placed)] = chart.base.place(np.array(apart))
    _note(chart, entries, places)


def tell_map(chart: Chart, view: View, space: Space) -> answers.MapAnswer:
    """A map as an answer."""
    points = [
        answers.PointAnswer(
            id=one.id,
            x=chart.places[one.id][0],
            y=chart.places[one.id][1],
            name=one.name,
            dataset=one.dataset,
            taxon=one.taxon,
            origin=one.origin,
            images=one.images,
            classes=len(one.counts),
            head_error=one.head_error,
            norm=one.norm,
            best_error=one.best_error,
        )
        for one in space.entries
    ]
    more = len(points) - len(chart.base)
    method = chart.base.describe() + (f"; {more} more were put on it afterwards" if more > 0 else "")
    return answers.MapAnswer(space=space.id, revision=view.revision, method=method, points=points)


def word_layout() -> str:
    """How maps are laid out on this machine."""
    from importlib.util import find_spec

    if find_spec("openTSNE") is not None:
        return "t-SNE"
    return "classical scaling, for openTSNE is not installed: pip install 'task2vec[map]'"


def _lay_out(apart: np.ndarray, names: Sequence[str]) -> TaskMap:
    """By t-SNE, or by classical scaling where openTSNE is not installed."""
    try:
        return lay_out(apart, names)
    except MissingExtraError:
        return lay_out(apart, names, method="classical scaling")


def _read(world: World, entries: Sequence[Entry], step: Callable[[float], None]) -> tuple[np.ndarray, list[Entry]]:
    """The vectors of the tasks whose embeddings can be read, in float32, and these tasks."""
    rows, used = [], []
    for number, entry in enumerate(entries):
        try:
            rows.append(sign_vector(world.read(entry)).astype(np.float32))
            used.append(entry)
        except Task2VecError:
            continue  # damaged: `task2vec library verify` names it
        if number % 16 == 0:
            step(number / len(entries))
    if not rows and len(entries) > 1:
        raise NotServedError(
            answers.Problem(
                what="no embedding of this space can be read.",
                why="A map needs the vectors of its tasks.",
                mend="See what is damaged: task2vec library verify",
            ),
            status=500,
        )
    return np.array(rows), used


def _note(chart: Chart, entries: Sequence[Entry], places: np.ndarray) -> None:
    chart.places |= {entry.id: (float(x), float(y)) for entry, (x, y) in zip(entries, places, strict=True)}
