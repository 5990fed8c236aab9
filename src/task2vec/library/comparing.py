"""Queries meet rows: the exact distances of some entries, or of all, a few hundred at a time."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from task2vec.distance.symmetric import symmetric
from task2vec.embedding import Embedding
from task2vec.library.memory import Memory, Places
from task2vec.library.rows import Rows, distances, make_row, sign_vector
from task2vec.library.sketch import Sketcher
from task2vec.library.spaces import Space, fetch_rows

# From so many embeddings of a space on, its sketches are used.
SKETCH_FROM = 2000
# Rows that are read at once: 20 MB of the default probe's.
READ_AT_ONCE = 256

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

    def measure(self, places: Places, rows: np.ndarray, is_good: np.ndarray, load: Load) -> np.ndarray:
        """The distances of entries: from their rows where these are good, else from the embeddings; NaN without any."""
        if self.row is None:
            is_good = np.zeros_like(is_good)
        found = np.full(len(places), np.nan)
        if self.row is not None and is_good.any():
            found[is_good] = distances(self.row, rows if is_good.all() else rows[is_good])
        for at in np.flatnonzero(~is_good):
            other = load(int(places.ids[at]))
            if other is not None:
                found[at] = symmetric(self.embedding, other)
        return found


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
    """The `k` nearest entries of every query; each row is read once for all of them."""
    best = [(np.empty(0, dtype=np.int64), np.empty(0)) for _ in queries]
    for part in parts:
        places = part.take(np.argsort(part.slots))
        rows, is_good = fetch_rows(known.rows, places, known.checked)
        for at, query in enumerate(queries):
            is_wanted = ~np.isin(places.ids, without[at])
            found = query.measure(places.take(is_wanted), rows[is_wanted], is_good[is_wanted], load)
            best[at] = _merge(best[at], places.ids[is_wanted], found, k)
        step(len(places))
    return [list(zip(ids.tolist(), found.tolist(), strict=True)) for ids, found in best]


def _merge(best: tuple[np.ndarray, np.ndarray], ids: np.ndarray, found: np.ndarray, k: int) -> tuple:
    """The `k` nearest of those so far and of these, nearest first, equal ones by id."""
    is_known = ~np.isnan(found)
    ids, found = np.concatenate([best[0], ids[is_known]]), np.concatenate([best[1], found[is_known]])
    order = np.lexsort((ids, found))[:k]
    return ids[order], found[order]
