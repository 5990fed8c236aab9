"""The nearest tasks of one space: exactly among a few thousand, by sketches and then exactly among a million.

For every embedding there is a place in the index: the slot of its row, the row's checksum, and from some number of
embeddings on a sketch. Rows and bases lie in files beside the index. They are copies of what the embeddings say, made
for speed: where one is damaged or missing the embedding itself is compared, and `verify` names it.

Whoever calls what changes something (`enter`, `leave`, `fit`, `compact`, `sweep`) holds the write lock of the index, in
a transaction. Row files only grow, and a slot is given once: so a reader that knows an entry knows where its row
is, whatever others write meanwhile. `spaces.changes` counts what is more than growth.
"""

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from sqlite3 import Connection

import numpy as np

from task2vec.embedding import Embedding
from task2vec.errors import DataError, UsageError
from task2vec.library import upkeep
from task2vec.library.checking import SearchReport, check
from task2vec.library.comparing import READ_AT_ONCE, SKETCH_FROM, Known, Load, Query, scan
from task2vec.library.memory import Memory, View
from task2vec.library.rows import Rows, checksum
from task2vec.library.spaces import load_sketcher, read_space
from task2vec.progress import Report, silent

__all__ = ["Search", "SearchReport"]

FOLDER = "search"
# Of how many entries one is compared exactly, and how many at least and at most: among more entries the nearest ones
# are nearer to each other than sketches tell apart (docs/search.md).
_ONE_OF, _FEWEST, _MOST = 1000, 100, 400
# Entries that are taken from the index at once.
_ENTRIES = 8192


def count_candidates(entries: int) -> int:
    """How many of so many entries are worth an exact comparison.

    Example:
        >>> [count_candidates(entries) for entries in (10_000, 200_000, 1_000_000)]
        [100, 200, 400]
    """
    return min(max(entries // _ONE_OF, _FEWEST), _MOST)


class Search:
    """Rows and sketches of one library, for any number of threads, each with a connection of its own.

    `nearest`, `check` and `verify` want a connection that has written nothing since its last commit: they remember what
    they see. `load` gives the embedding of an id, or None if that entry is to be left out.
    """

    def __init__(self, folder: Path, *, sketch_from: int = SKETCH_FROM):
        """`folder` is that of the library; spaces of fewer embeddings than `sketch_from` are compared as a whole."""
        self.folder, self.sketch_from = folder / FOLDER, sketch_from
        self._lock = threading.Lock()
        self._known: dict[int, Known] = {}
        self._written: dict[Path, Rows] = {}

    def become_child(self) -> None:
        """After a fork: a lock that another thread of the parent holds is given back to nobody here."""
        self._lock = threading.Lock()

    def enter(self, connection: Connection, space: int, embedding_id: int, embedding: Embedding) -> None:
        """Gives an embedding its place: a row, and a sketch if the space has a basis."""
        with self._lock:
            known = self._open(connection, space)
        if len(embedding) != known.space.filters:
            raise DataError(
                f"'{embedding.task}' has {len(embedding)} filters and its space {known.space.filters}: they come from "
                f"different probes. Embed it again: task2vec embed --probe {embedding.probe} {embedding.task}"
            )
        query, slot, crc, sketch = Query(embedding), None, None, None
        if query.row is not None:
            slot, crc = self._next_slot(connection, known), checksum(query.row)
            rows = self._written.setdefault(known.rows.path, known.rows)
            rows.write(slot, query.row)
        if known.sketcher is not None:
            sketch = query.sketch(known.sketcher).astype("<f4").tobytes()
        connection.execute(
            "INSERT INTO places(embedding, space, slot, crc, sketch) VALUES (?, ?, ?, ?, ?)",
            (embedding_id, space, slot, crc, sketch),
        )

    def sync(self) -> None:
        """Puts on the disk what `enter` has written; to be called before the commit."""
        for path, rows in list(self._written.items()):
            rows.sync()
            self._written.pop(path, None)

    def leave(self, connection: Connection, space: int, embedding_id: int) -> None:
        """Takes the place of an embedding away."""
        connection.execute("DELETE FROM places WHERE embedding = ? AND space = ?", (embedding_id, space))
        connection.execute("UPDATE spaces SET changes = changes + 1 WHERE id = ?", (space,))

    def nearest(
        self,
        connection: Connection,
        space: int,
        embedding: Embedding,
        *,
        k: int,
        load: Load,
        candidates: int | None = None,
        exact: bool = False,
        without: Collection[int] = frozenset(),
    ) -> list[tuple[int, float]]:
        """The ids of the `k` nearest embeddings and their symmetric distances, nearest first, equal ones by id.

        Args:
            connection: to the index.
            space: where to look; `embedding` must belong to it.
            embedding: whose neighbours are wanted.
            k: how many.
            load: gives embeddings whose rows cannot be used.
            candidates: how many entries the sketches propose, to be compared exactly; see `count_candidates`.
            exact: compare all entries.
            without: ids that are left out.
        """
        if k < 1:
            raise UsageError(f"k={k} neighbours cannot be found; ask for at least one: k=1")
        known, view = self.look(connection, space)
        query, left_out = Query(embedding), np.array(sorted(without), dtype=np.int64)
        if exact or known.sketcher is None or len(view) < self.sketch_from:
            parts = view.list_places(READ_AT_ONCE)
        else:
            count = max(count_candidates(len(view)) if candidates is None else candidates, k)
            sketch = query.sketch(known.sketcher)
            parts = view.find_candidates(sketch, count, without=left_out).split(READ_AT_ONCE // 2)
        return scan(known, parts, [query], k=k, without=[left_out], load=load)[0]

    def look(self, connection: Connection, space: int) -> tuple[Known, View]:
        """What is known of a space, brought up to now."""
        with self._lock, reading(connection):
            known = self._open(connection, space)
            cursor = connection.execute(
                "SELECT embedding, slot, crc, sketch FROM places WHERE space = ? AND embedding > ? ORDER BY embedding",
                (space, known.memory.last),
            )
            while some := cursor.fetchmany(_ENTRIES):
                known.memory.add(some)
            return known, known.memory.view()

    def _open(self, connection: Connection, space: int) -> Known:
        """What is known of a space; forgotten if more has changed than that it has grown."""
        now, known = read_space(connection, space), self._known.get(space)
        if known is not None and known.space == now:
            return known
        if known is not None and known.sketcher is not None and known.space.basis == now.basis:
            sketcher = known.sketcher
        else:
            sketcher = load_sketcher(self.folder, now)
        checked = known.checked if known is not None and known.space.generation == now.generation else set()
        memory = Memory(2 if sketcher is None else sketcher.width)
        made = Known(now, Rows(self.folder / now.rows_name, now.filters), sketcher, memory, checked)
        self._known[space] = made
        return made

    def _next_slot(self, connection: Connection, known: Known) -> int:
        """A slot that was never given before in this generation: after the last entry's, and after the end of the file.

        Ids and slots grow together, so the last entry has the highest slot. Of entries that were removed or never
        committed only the length of the file still knows.
        """
        last = connection.execute(
            "SELECT slot FROM places WHERE space = ? AND slot IS NOT NULL ORDER BY embedding DESC LIMIT 1",
            (known.space.id,),
        ).fetchone()
        return max(0 if last is None else last[0] + 1, len(known.rows))

    def needs_fit(self, connection: Connection, space: int) -> bool:
        """Whether there are enough embeddings for sketches, and no basis for them that could be used."""
        with self._lock:
            known = self._open(connection, space)
        return known.sketcher is None and upkeep.has_entries(connection, space, self.sketch_from)

    def fit(self, connection: Connection, space: int, *, load: Load | None = None, report: Report = silent) -> None:
        """Makes a basis from a sample of the space's embeddings, and all sketches anew; nothing if these are too few.

        Without `load`, an embedding whose row cannot be used gets no sketch, and is compared with every query.
        """
        if upkeep.has_entries(connection, space, self.sketch_from):
            upkeep.fit(connection, self.folder, read_space(connection, space), load=load, report=report)

    def compact(self, connection: Connection, space: int, *, load: Load | None = None, report: Report = silent) -> None:
        """Writes the rows into a new file without the holes of removed ones; `sweep` takes the old one away.

        With `load`, rows that cannot be used are made anew from their embeddings, too.
        """
        upkeep.compact(connection, self.folder, read_space(connection, space), load=load, report=report)

    def sweep(self, connection: Connection) -> list[Path]:
        """Removes the files of no space and of no generation, and returns them; to be called under the write lock."""
        return upkeep.sweep(connection, self.folder)

    def verify(self, connection: Connection, space: int, load: Load) -> Iterator[tuple[int | None, str]]:
        """What is wrong: the id of an embedding and what its place lacks, or None and what the space lacks."""
        return upkeep.verify(connection, self.folder, read_space(connection, space), load)

    def check(
        self,
        connection: Connection,
        space: int,
        *,
        load: Load,
        queries: int = 50,
        seed: int = 0,
        k: int = 10,
        report: Report = silent,
    ) -> SearchReport:
        """How many of the true neighbours the sketches find, and at what time; asked of some of the entries."""
        known, view = self.look(connection, space)
        nearest = partial(self.nearest, connection, space, k=k, load=load)
        return check(
            known,
            view,
            nearest,
            queries=queries,
            seed=seed,
            k=k,
            load=load,
            sketch_from=self.sketch_from,
            report=report,
        )


@contextmanager
def reading(connection: Connection) -> Iterator[None]:
    """One view of the index for several questions."""
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("COMMIT")
