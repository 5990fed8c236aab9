"""The library: one SQLite file with every task, embedding, expert and measured error."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from sqlite3 import Connection
from typing import TYPE_CHECKING, Any

from task2vec.embedding import Embedding
from task2vec.errors import NotInLibraryError, Task2VecError, UsageError
from task2vec.library import entries, search, tables
from task2vec.library import export as sharing
from task2vec.library.database import Database, cannot_write, connect, find_file, find_library
from task2vec.library.entries import Added, EmbeddingEntry, Expert, MeasuredError, Neighbour, RunEntry, TaskEntry
from task2vec.library.verify import Repaired, Verification, repair, verify
from task2vec.progress import Report, silent
from task2vec.storage import replacing

if TYPE_CHECKING:
    from task2vec.embedding import EmbedSettings
    from task2vec.probe import Probe
    from task2vec.tasks import Task

_KINDS = ("tasks", "embeddings", "experts", "errors", "runs")


class Library(AbstractContextManager["Library"]):
    """Tasks with their embeddings, experts, and measured errors, in one SQLite file.

    Any number of processes and threads may use it at the same time. When `add` has returned, everything is on disk; if
    a process is killed, every entry is complete or absent. A file that is not writable is opened for reading.

    Example:
        >>> import tempfile
        >>> import task2vec as t2v
        >>> folder = tempfile.TemporaryDirectory()
        >>> probe = t2v.load_probe(size=32)
        >>> with t2v.Library.open(folder.name) as library:
        ...     for task in t2v.sample_tasks(images_per_task=24)[:2]:
        ...         embedding = t2v.embed(task, probe, settings=t2v.EmbedSettings(max_samples=8))
        ...         added = library.add(embedding, tags=["sample"])
        ...     print(library)
        ...     print(library.nearest("digits", k=1)[0].task.name)
        Library(2 tasks, 2 embeddings, 0 experts, 0 errors)
        digit parity
        >>> folder.cleanup()
    """

    def __init__(self, folder: str | Path | None = None, *, read_only: bool | None = None):
        """Opens the library in `folder`, and creates it if there is none; see `find_library` for the default.

        Args:
            folder: of the library, or its .sqlite file.
            read_only: True changes nothing; None does so where the file cannot be written to.
        """
        self.folder = find_library(folder)
        path = find_file(self.folder)
        self.is_read_only = cannot_write(path) if read_only is None else read_only
        self._database = Database(path, read_only=self.is_read_only)

    @classmethod
    def open(cls, folder: str | Path | None = None, *, read_only: bool | None = None) -> "Library":
        """The library in `folder`; the same as `Library(folder)`."""
        return cls(folder, read_only=read_only)

    def __exit__(self, *_: object) -> None:
        """Closes the library."""
        self.close()

    def close(self) -> None:
        """Closes all connections."""
        self._database.close()

    def __repr__(self) -> str:
        """The library in one line."""
        try:
            stats = self.stats()
        except Task2VecError:
            return f"Library('{self.folder}', closed or damaged)"
        return "Library({tasks} tasks, {embeddings} embeddings, {experts} experts, {errors} errors)".format(**stats)

    def __len__(self) -> int:
        """The number of tasks."""
        with self._database.read() as connection:
            return connection.execute("SELECT count(*) FROM tasks").fetchone()[0]

    # --- writing -----------------------------------------------------------------------------------------------------

    def add(
        self,
        *things: "Embedding | Task | Expert | MeasuredError",
        tags: Iterable[str] = (),
        taxon: str | None = None,
        source: str = "",
        replace: bool = False,
    ) -> list[Added]:
        """Adds all of `things` in one transaction or, if one of them is refused, none; returns which of them were new.

        Adding the same thing again changes nothing. A different one under the same key (other numbers for the same
        images, probe and settings; another expert of that name; another error for that cell) is refused.

        Args:
            things: embeddings with their tasks, tasks alone, experts, measured errors.
            tags: for the tasks.
            taxon: the tasks' place in a taxonomy.
            source: where the tasks were read from; a `Task` knows that itself.
            replace: overwrite instead of refusing.
        """
        about: dict[str, Any] = {"tags": entries.check_tags(tags)}
        about["taxon"] = entries.check_text(taxon, "taxon", may_be_none=True)
        if entries.check_text(source, "source"):
            about["source"] = source
        with self._database.write() as connection:
            return [tables.write(connection, thing, about=about, replace=replace) for thing in things]

    def tag(self, what: str, *tags: str, remove: bool = False) -> TaskEntry:
        """Adds tags to a task, or removes them, and returns it."""
        statement = "INSERT OR IGNORE INTO tags VALUES (:id, :new)"
        if remove:
            statement = "DELETE FROM tags WHERE task = :id AND tag = :new"
        return self._edit(what, statement, entries.check_tags(tags))

    def rename(self, what: str, name: str) -> TaskEntry:
        """Gives a task another name, and returns it."""
        if not entries.check_text(name, "name").strip():
            raise UsageError("a task without a name could not be found. Give a text that is not empty.")
        return self._edit(what, "UPDATE tasks SET name = :new WHERE id = :id", [name])

    def _edit(self, what: str, statement: str, values: Iterable[str]) -> TaskEntry:
        """Runs a statement on a task with each of the values, and returns the task."""
        with self._database.write() as connection:
            number = tables.find_task(connection, what).id
            connection.executemany(statement, [{"id": number, "new": value} for value in values])
            return tables.list_tasks(connection, "t.id = ?", number)[0]

    def remove(self, what: str, *, with_errors: bool = False) -> list[EmbeddingEntry]:
        """Removes a task with all its embeddings, or one embedding named by its key; returns these embeddings.

        A task for which errors were measured is kept, unless `with_errors` removes these, too.
        """
        with self._database.write() as connection:
            task = tables.find_task(connection, what) if tables.find_tasks(connection, what) else None
            removed = [tables.find_embedding(connection, what)[1]] if task is None else list(task.embeddings)
            for entry in removed:
                tables.delete_embedding(connection, entry.id)
            if task is not None:
                _remove_with_errors(connection, "task", task.id, task.name, with_errors)
        if task is not None:
            for suffix in (".html", ".json"):  # they show images of the task, and name them
                self.report_file(task.fingerprint).with_suffix(suffix).unlink(missing_ok=True)
        return removed

    def report_file(self, fingerprint: str) -> Path:
        """The file of the report on a task, if there is one; it is not exported."""
        return find_file(self.folder).parent / "reports" / f"{fingerprint}.html"

    def remove_expert(self, name: str, *, with_errors: bool = False) -> None:
        """Removes an expert; see `remove`."""
        with self._database.write() as connection:
            row = connection.execute("SELECT id FROM experts WHERE name = ?", (name,)).fetchone()
            if row is None:
                raise NotInLibraryError(
                    f"there is no expert '{name}' in the library. List them: task2vec library experts"
                )
            _remove_with_errors(connection, "expert", row[0], name, with_errors)

    @contextmanager
    def record(self, what: str, details: Mapping[str, Any] | None = None) -> Iterator[int]:
        """Records a run: what was started, and at the end of the block how it ended."""
        text = entries.to_json(dict(details or {}), "details of the run")
        with self._database.write() as connection:
            run = {"what": entries.check_text(what, "run"), "details": text, "started": tables.now()}
            number = tables.insert(connection, "runs", run)
        outcome = "done"
        try:
            yield number
        except BaseException as error:
            outcome = f"{type(error).__name__}: {error}"[:1000]
            raise
        finally:
            with self._database.write() as connection:
                ended = (tables.now(), outcome, number)
                connection.execute("UPDATE runs SET ended = ?, outcome = ? WHERE id = ?", ended)

    # --- reading -----------------------------------------------------------------------------------------------------

    def tasks(self, *, tag: str | None = None, probe: str | None = None) -> list[TaskEntry]:
        """All tasks by name, or those with a tag, or with an embedding by that probe."""
        with self._database.read() as connection:
            tasks = tables.list_tasks(connection)
        return [
            task
            for task in tasks
            if (tag is None or tag in task.tags)
            and (probe is None or any(embedding.probe == probe for embedding in task.embeddings))
        ]

    def task(self, what: str) -> TaskEntry:
        """The task with that name, or whose fingerprint begins with it."""
        with self._database.read() as connection:
            return tables.find_task(connection, what)

    def experts(self) -> list[Expert]:
        """All experts by name."""
        with self._database.read() as connection:
            return tables.list_experts(connection)

    def errors(self, protocol: str | None = None) -> list[MeasuredError]:
        """All measured errors, or those of one protocol."""
        with self._database.read() as connection:
            return tables.list_errors(connection, protocol)

    def runs(self) -> list[RunEntry]:
        """All recorded runs, oldest first."""
        with self._database.read() as connection:
            return tables.read_rows(connection, RunEntry, "SELECT * FROM runs ORDER BY id")

    def get(self, what: str, *, probe: str | None = None, method: str | None = None) -> Embedding:
        """The embedding of a task: by the name or the first digits of the fingerprint, or of the embedding's key.

        Args:
            what: which task or embedding.
            probe: by which probe, where the task has several: a name, or the first digits of a fingerprint.
            method: by which method, where the task has several.
        """
        with self._database.read() as connection:
            task, entry = tables.find_embedding(connection, what, probe=probe, method=method)
            return tables.read_embedding(connection, entry.id, entry.sha256, name=task.name)

    def find(self, task: "Task", probe: "Probe", *, settings: "EmbedSettings") -> Embedding | None:
        """The embedding that embedding this task by this probe with these settings would give again.

        None if it is not here, or is damaged; then `add` replaces the damaged one.
        """
        with self._database.read() as connection:
            return tables.load_embedding(connection, "key", entries.key_of(task, probe, settings))

    def stats(self) -> dict[str, Any]:
        """The number of entries of every kind, the bytes of all embeddings, and the spaces that these are in."""
        counts = [f"(SELECT count(*) FROM {kind}) AS {kind}" for kind in _KINDS]
        spaces = (
            "SELECT s.probe, s.probe_fingerprint, s.settings, s.filters, count(*) AS embeddings FROM spaces s "
            "JOIN embeddings e ON e.space = s.id GROUP BY s.id ORDER BY count(*) DESC, s.id"
        )
        with self._database.read() as connection:
            query = f"SELECT {', '.join(counts)}, (SELECT coalesce(sum(bytes), 0) FROM embeddings) AS bytes"
            totals = tables.read_rows(connection, dict, query)[0]
            return totals | {"spaces": tables.read_rows(connection, dict, spaces)}

    # --- searching ---------------------------------------------------------------------------------------------------

    def nearest(
        self,
        what: "str | Embedding",
        k: int = 10,
        *,
        probe: str | None = None,
        method: str | None = None,
        exact: bool = False,
        kind: str = "symmetric",
        report: Report = silent,
    ) -> list[Neighbour]:
        """The `k` tasks nearest to one, among those that can be compared; never the task itself.

        With up to 2,000 embeddings, all distances are computed. With more, sketches select 1,000 candidates whose
        distances are computed; `exact` computes all of them, and so does any kind but the symmetric distance, more
        slowly. A damaged embedding is left out, and `verify` reports it.

        Args:
            what: an embedding, which need not be in the library, or what `get` takes.
            k: how many.
            probe: see `get`.
            method: see `get`.
            exact: compute all distances, however many there are.
            kind: a name of `task2vec.distance.KINDS`; an asymmetric one is measured from the task.
            report: opens a progress bar, see `task2vec.progress`.
        """
        if k < 1:
            raise UsageError(f"k={k}: there are no {k} nearest tasks. Ask for at least one.")
        embedding = what if isinstance(what, Embedding) else self.get(what, probe=probe, method=method)
        if kind != "symmetric":
            return self._rank(embedding, kind, report)[:k]
        with tables.expect_sound_rows(), self._database.read() as connection:
            key, _ = entries.describe_space(embedding)
            space = connection.execute("SELECT id FROM spaces WHERE key = ?", (key,)).fetchone()
            if space is None:
                return []
            query = "SELECT id FROM embeddings WHERE task = (SELECT id FROM tasks WHERE fingerprint = ?)"
            same_task = connection.execute(query, (embedding.provenance.get("task_fingerprint"),)).fetchall()
            nearest = search.find_nearest(
                connection,
                space[0],
                embedding,
                k=k,
                load=partial(tables.load_embedding, connection, "id"),
                exact=exact,
                without=[number for (number,) in same_task],
            )
            condition = "t.id IN (SELECT task FROM embeddings WHERE id IN (SELECT value FROM json_each(?)))"
            tasks = tables.list_tasks(connection, condition, json.dumps([number for number, _ in nearest]))
        by_id = {entry.id: (task, entry) for task in tasks for entry in task.embeddings}
        return [Neighbour(*by_id[number], distance) for number, distance in nearest if number in by_id]

    def _rank(self, embedding: Embedding, kind: str, report: Report) -> list[Neighbour]:
        """All other tasks that can be compared, the nearest by any distance first."""
        from task2vec.distance.distances import check_comparable, find_kind

        measure = find_kind(kind)
        fingerprint = embedding.provenance.get("task_fingerprint")
        tasks = [task for task in self.tasks(probe=embedding.probe) if task.fingerprint != fingerprint]
        neighbours = []
        step = report("nearest", len(tasks))
        for task in tasks:
            for entry in task.embeddings:
                with suppress(Task2VecError):  # damaged, or of another space
                    candidate = self.get(entry.key)
                    check_comparable(embedding, candidate)
                    neighbours.append(Neighbour(task, entry, float(measure(embedding, candidate))))
            step(1)
        return sorted(neighbours, key=lambda neighbour: neighbour.distance)

    # --- maintenance and sharing -------------------------------------------------------------------------------------

    def verify(self, *, quick: bool = False, report: Report = silent) -> Verification:
        """Reads everything, and reports any damage.

        `quick` checks only the tables and the lengths of embeddings: it is much faster, but finds less.
        """
        return verify(self._database, quick=quick, report=report)

    @classmethod
    def repair(cls, folder: str | Path | None = None, *, report: Report = silent) -> Repaired:
        """Copies everything readable into a new file, which replaces the damaged one.

        The damaged file is kept in the folder `backups`. No other process may use the library meanwhile.
        """
        return repair(find_file(find_library(folder)), report=report)

    def export(self, path: str | Path, *, tag: str | None = None, report: Report = silent) -> Path:
        """Writes everything, or the tasks with a tag and what was measured for them, to one file for `merge`.

        Where tasks were read from (`source`) is left out: it is a path on this machine.
        """
        if Path(path).resolve().is_relative_to(self.folder.resolve()) and Path(path).suffix != sharing.SUFFIX:
            raise UsageError(
                f"'{path}' is in the library's own folder, and could overwrite a part of it. Choose another place."
            )
        with self._database.read() as old, replacing(Path(path)) as temporary:
            temporary.touch()  # else its folder would be made, too
            sharing.copy_to_file(old, temporary, tag=tag, report=report)
            with closing(connect(temporary, "mode=rw")) as connection:
                connection.execute("PRAGMA journal_mode = DELETE")  # who reads it needs no other files
        return Path(path)

    def merge(self, origin: "str | Path | Library", *, report: Report = silent) -> sharing.Merged:
        """Adds everything in an exported file or another library that is not here yet.

        It is added in one transaction: all of it or, if anything in it is invalid, nothing. Entries here that have the
        same key but other content stay as they are, and are listed in the result.
        """
        path = origin._database.path if isinstance(origin, Library) else Path(origin)
        path = find_file(path) if path.is_dir() else path
        if path.resolve() == self._database.path.resolve():
            raise UsageError(f"'{origin}' is this library itself, so there is nothing to merge. Name another one.")
        with sharing.open_origin(path) as old, self._database.write() as new:
            return sharing.copy_library(old, new, report=report)


def _remove_with_errors(connection: Connection, kind: str, number: int, name: str, with_errors: bool) -> None:
    """Removes a task or expert, and the errors measured for it; refuses if there are any and `with_errors` is False."""
    count = connection.execute(f"SELECT count(*) FROM errors WHERE {kind} = ?", (number,)).fetchone()[0]
    if count and not with_errors:
        raise UsageError(
            f"{count} errors were measured for the {kind} '{name}' and would be removed with it. To remove them too: "
            "with_errors=True, --force"
        )
    connection.execute(f"DELETE FROM errors WHERE {kind} = ?", (number,))
    connection.execute(f"DELETE FROM {kind}s WHERE id = ?", (number,))
