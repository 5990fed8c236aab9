"""Questions about who is near, answered from the index, the rows and sketches, and the blobs."""

import json
from contextlib import suppress
from sqlite3 import Connection
from typing import Any

from task2vec.embedding import Embedding
from task2vec.errors import ResourceError
from task2vec.library import listing
from task2vec.library.blobs import Blobs
from task2vec.library.database import Database
from task2vec.library.entries import Neighbour
from task2vec.library.identity import space_of
from task2vec.library.keeping import make_loader
from task2vec.library.search import Search, SearchReport
from task2vec.progress import Report


class Neighbours:
    """Finds neighbours in one library."""

    def __init__(self, database: Database, blobs: Blobs, search: Search):
        """The parts of that library."""
        self.database, self.blobs, self.search = database, blobs, search

    @listing.expecting_rows()
    def find(self, embedding: Embedding, k: int, *, exact: bool, report: Report) -> list[Neighbour]:
        """The `k` nearest tasks, without the embedding's own."""
        with self.database.reading() as connection:
            row = connection.execute("SELECT id FROM spaces WHERE key = ?", (space_of(embedding).key,)).fetchone()
            needs_fit = row is not None and not exact and self.search.needs_fit(connection, row[0])
        if row is None:
            return []
        if needs_fit and not self.database.is_read_only:
            with suppress(ResourceError):  # no room for sketches: all are compared
                self._fit(row[0], report)
        with self.database.reading() as connection:
            own = connection.execute(
                "SELECT e.id FROM embeddings e JOIN tasks t ON t.id = e.task WHERE t.fingerprint = ?",
                (embedding.provenance.get("task_fingerprint"),),
            ).fetchall()
            found = self.search.nearest(
                connection,
                row[0],
                embedding,
                k=k,
                exact=exact,
                without=frozenset(number for (number,) in own),
                load=make_loader(connection, self.blobs),
            )
            return _describe(connection, found)

    @listing.expecting_rows()
    def check(self, *, queries: int, report: Report) -> list[tuple[dict[str, Any], SearchReport]]:
        """What sketches miss, for every space."""
        with self.database.reading() as connection:
            spaces = connection.execute(
                "SELECT id, probe, probe_fingerprint, settings FROM spaces WHERE id IN (SELECT space FROM embeddings) "
                "ORDER BY id"
            ).fetchall()
            load = make_loader(connection, self.blobs)
            return [
                (
                    {"probe": probe, "probe_fingerprint": fingerprint, "settings": json.loads(settings)},
                    self.search.check(connection, number, queries=queries, load=load, report=report),
                )
                for number, probe, fingerprint, settings in spaces
            ]

    def refit(self, *, report: Report) -> None:
        """Makes all sketches anew."""
        with self.database.reading() as connection:
            spaces = connection.execute("SELECT id FROM spaces").fetchall()
        for (space,) in spaces:
            with self.database.writing() as connection:
                self.search.fit(connection, space, load=make_loader(connection, self.blobs), report=report)

    def _fit(self, space: int, report: Report) -> None:
        """Makes the sketches of a space, unless another process was faster."""
        with self.database.writing() as connection:
            if self.search.needs_fit(connection, space):
                self.search.fit(connection, space, load=make_loader(connection, self.blobs), report=report)


def _describe(connection: Connection, found: list[tuple[int, float]]) -> list[Neighbour]:
    """Numbers of embeddings become neighbours; one that was removed this very moment is left out."""
    numbers = json.dumps([number for number, _ in found])
    owners = dict(
        connection.execute("SELECT id, task FROM embeddings WHERE id IN (SELECT value FROM json_each(?))", (numbers,))
    )
    tasks = {task.id: task for task in listing.list_tasks(connection, sorted(set(owners.values())))}
    return [
        Neighbour(task, entry, distance)
        for number, distance in found
        if number in owners
        for task in [tasks[owners[number]]]
        for entry in task.embeddings
        if entry.id == number
    ]
