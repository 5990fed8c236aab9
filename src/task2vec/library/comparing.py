"""Queries meet rows: the exact distances of some entries, or of all, a few hundred at a time."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from task2vec.distance import symmetric
from task2vec.embedding import Embedding
from task2vec.library.memory import Memory, Places
from task2vec.library.rows import Rows, distances, make_row, sign_vector
from task2vec.library.sketch import Sketcher
from task2vec.library.spaces import Space, fetch_rows

# From so many embeddings of a space on, its sketches are used.
SKETCH_FROM = 2000
# Rows that are read at once: 5 MB of the default probe's.
READ_AT_ONCE = 64
_THREADS = min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)

Done = TypeVar("Done")
Load = Callable[[int], Embedding | None]


@dataclass
class Known:
    """What this process knows of a space: its entries, its basis, and the slots whose rows it has checked."""

    space: Space
    rows: Rows
    sketcher: Sketcher | None
    memory: Memory
    checked: set[int] = field(default_factory=set)


class Query:
    """An embedding whose neighbours are wanted."""

    def __init__(self, embedding: Embedding):
        self.embedding, self.row = embedding, make_row(embedding)

    def sketch(self, sketcher: Sketcher) -> np.ndarray:
        """Its sketch."""
        return sketcher.project(self.vector[None])[0]

    @property
    def vector(self) -> np.ndarray:
        """The row, or the same in float64 if there is none."""
        return sign_vector(self.embedding) if self.row is None else self.row

    def measure(self, rows: np.ndarray, is_good: np.ndarray) -> np.ndarray:
        """The distances from rows; NaN where a row or the query's own cannot be used."""
        found = np.full(len(rows), np.nan)
        if self.row is not None and is_good.any():
            found[is_good] = distances(self.row, rows if is_good.all() else rows[is_good])
        return found

    def fill(self, places: Places, found: np.ndarray, load: Load) -> None:
        """Puts the distances from the embeddings themselves where there are none; NaN stays where these are missing."""
        for at in np.flatnonzero(np.isnan(found)):
            other = load(int(places.ids[at]))
            if other is not None:
                found[at] = symmetric(self.embedding, other)


def scan(
    known: Known,
    parts: Iterable[Places],
    queries: Sequence[Query],
    *,
    k: int,
    without: Sequence[np.ndarray],
    load: Load,
    step: Callable[[int], None] = lambda done: None,
) -> list[list[tuple[int, float]]]:
    """The `k` nearest entries of every query; each row is read once for all of them.

    Rows are read and compared by a few threads, side by side; embeddings are loaded by the caller's.
    """

    def compare(places: Places) -> tuple[Places, list[np.ndarray]]:
        rows, is_good = fetch_rows(known.rows, places, known.checked)
        return places, [query.measure(rows, is_good) for query in queries]

    best = [(np.empty(0, dtype=np.int64), np.empty(0)) for _ in queries]
    with ThreadPoolExecutor(_THREADS) as pool:
        for places, measured in _hand_out(pool, compare, parts):
            for at, (query, found) in enumerate(zip(queries, measured, strict=True)):
                is_wanted = ~np.isin(places.ids, without[at])
                wanted, found = places.take(is_wanted), found[is_wanted]
                query.fill(wanted, found, load)
                best[at] = _merge(best[at], wanted.ids, found, k)
            step(len(places))
    return [list(zip(ids.tolist(), found.tolist(), strict=True)) for ids, found in best]


def _hand_out(pool: ThreadPoolExecutor, work: Callable[[Places], Done], parts: Iterable[Places]) -> Iterator[Done]:
    """What `work` makes of every part, in their order, with no more parts in hand than threads can use."""
    waiting: deque[Future[Done]] = deque()
    for part in parts:
        waiting.append(pool.submit(work, part))
        if len(waiting) > 2 * _THREADS:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _merge(best: tuple[np.ndarray, np.ndarray], ids: np.ndarray, found: np.ndarray, k: int) -> tuple:
    """The `k` nearest of those so far and of these, nearest first, equal ones by id."""
    is_known = ~np.isnan(found)
    ids, found = np.concatenate([best[0], ids[is_known]]), np.concatenate([best[1], found[is_known]])
    order = np.lexsort((ids, found))[:k]
    return ids[order], found[order]
