"""The library: one SQLite file with every task, embedding, expert and measured error."""

import dataclasses
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from task2vec.embedding import Embedding
from task2vec.errors import NotInLibraryError, ResourceError, Task2VecError, UsageError
from task2vec.library import entries, writes
from task2vec.library import export as sharing
from task2vec.library import verify as verification
from task2vec.library.database import Database, cannot_write, find_file, find_library
from task2vec.library.entries import (
    Added,
    EmbeddingEntry,
    Expert,
    MeasuredError,
    Neighbour,
    RunEntry,
    TaskEntry,
    check_tags,
    check_text,
    to_json,
)
from task2vec.library.identity import describe_space, describe_task, key_of
from task2vec.library.search import Search, SearchReport
from task2vec.progress import Report, silent

if TYPE_CHECKING:
    from task2vec.embedding import EmbedSettings
    from task2vec.probe import Probe
    from task2vec.tasks import Task

_PATIENCE_WITH_READERS = 1000  # milliseconds: a WAL that somebody still reads is merged another time


class Library:
    """Tasks with their embeddings, experts, and measured errors, in one SQLite file.

    Any number of processes and threads may use it at the same time. When `add` has returned, everything is on the disk;
    a process that is killed leaves every entry whole or absent. A file that cannot be written to is opened for reading.

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
        self._search = Search()
        self._database = Database(path, read_only=self.is_read_only)

    @classmethod
    def open(cls, folder: str | Path | None = None, *, read_only: bool | None = None) -> "Library":
        """The library in `folder`; the same as `Library(folder)`."""
        return cls(folder, read_only=read_only)

    def __enter__(self) -> "Library":
        """The library itself; it is closed at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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

        The very same again changes nothing. Something else under the same key (other numbers for the same images, probe
        and settings; another expert of that name; another error for that cell) is refused.

        Args:
            things: embeddings with their tasks, tasks alone, experts, measured errors.
            tags: for the tasks.
            taxon: the tasks' place in a taxonomy.
            source: where the tasks were read from; a `Task` knows that itself.
            replace: overwrite instead of refusing.
        """
        about = TaskEntry(0, "", "", 0, (), (), False, taxon, source, "", check_tags(tags))
        with self._database.write() as connection:
            return [self._add(connection, thing, about, replace) for thing in things]

    def _add(self, connection: sqlite3.Connection, thing: Any, about: TaskEntry, replace: bool) -> Added:
        if isinstance(thing, Embedding):
            return writes.write_embedding(connection, self._search, thing, about, replace=replace)
        if isinstance(thing, Expert):
            return writes.write_expert(connection, thing, replace=replace)
        if isinstance(thing, MeasuredError):
            return writes.write_error(connection, thing, replace=replace)
        if hasattr(thing, "fingerprint") and hasattr(thing, "targets"):
            task, source = describe_task(thing), about.source or thing.source
            return writes.write_task(
                connection, dataclasses.replace(task, tags=about.tags, taxon=about.taxon, source=source)
            )
        raise UsageError(
            f"a {type(thing).__name__} cannot be added to a library. Add embeddings, tasks, experts or measured errors."
        )

    def tag(self, what: str, *tags: str, remove: bool = False) -> TaskEntry:
        """Adds tags to a task, or removes them, and returns it."""
        with self._database.write() as connection:
            number = entries.find_task(connection, what).id
            statement = (
                "DELETE FROM tags WHERE task = ? AND tag = ?" if remove else "INSERT OR IGNORE INTO tags VALUES (?, ?)"
            )
            connection.executemany(statement, [(number, tag) for tag in check_tags(tags)])
            return entries.list_tasks(connection, [number])[0]

    def rename(self, what: str, name: str) -> TaskEntry:
        """Gives a task another name, and returns it."""
        if not check_text(name, "name").strip():
            raise UsageError("a task without a name could not be found. Give a text that is not empty.")
        with self._database.write() as connection:
            number = entries.find_task(connection, what).id
            connection.execute("UPDATE tasks SET name = ? WHERE id = ?", (name, number))
            return entries.list_tasks(connection, [number])[0]

    def remove(self, what: str, *, with_errors: bool = False) -> list[EmbeddingEntry]:
        """Removes a task with all its embeddings, or one embedding named by its key; returns these embeddings.

        A task that errors were measured for stays, unless `with_errors` removes these, too.
        """
        with self._database.write() as connection:
            is_task = bool(entries.find_tasks(connection, what))
            if is_task:
                task = entries.find_task(connection, what)
                removed = list(task.embeddings)
                _remove_errors(connection, "task", task.id, task.name, with_errors)
            else:
                task, only = entries.find_embedding(connection, what)
                removed = [only]
            for entry in removed:
                writes.delete_embedding(connection, entry.id)
            if is_task:
                connection.execute("DELETE FROM tasks WHERE id = ?", (task.id,))
        return removed

    def remove_expert(self, name: str, *, with_errors: bool = False) -> None:
        """Removes an expert; see `remove`."""
        with self._database.write() as connection:
            row = connection.execute("SELECT id FROM experts WHERE name = ?", (name,)).fetchone()
            if row is None:
                raise NotInLibraryError(
                    f"there is no expert '{name}' in the library. List them: task2vec library experts"
                )
            _remove_errors(connection, "expert", row[0], name, with_errors)
            connection.execute("DELETE FROM experts WHERE id = ?", row)

    @contextmanager
    def record(self, what: str, details: Mapping[str, Any] | None = None) -> Iterator[int]:
        """Records a run: what was started, and at the end of the block how it ended."""
        check_text(what, "run")
        text = to_json(dict(details or {}), "details of the run")
        with self._database.write() as connection:
            number = connection.execute(
                "INSERT INTO runs(what, details, started) VALUES (?, ?, ?)", (what, text, writes.now())
            ).lastrowid
        assert number is not None
        outcome = "done"
        try:
            yield number
        except BaseException as error:
            outcome = f"{type(error).__name__}: {error}"[:1000]
            raise
        finally:
            with self._database.write() as connection:
                connection.execute(
                    "UPDATE runs SET ended = ?, outcome = ? WHERE id = ?", (writes.now(), outcome, number)
                )

    # --- reading -----------------------------------------------------------------------------------------------------

    def tasks(self, *, tag: str | None = None, probe: str | None = None) -> list[TaskEntry]:
        """All tasks by name, or those with a tag, or with an embedding by that probe."""
        with self._database.read() as connection:
            found = entries.list_tasks(connection)
        return [
            task
            for task in found
            if (tag is None or tag in task.tags)
            and (probe is None or any(one.probe == probe for one in task.embeddings))
        ]

    def task(self, what: str) -> TaskEntry:
        """The task of that name, or whose fingerprint begins so."""
        with self._database.read() as connection:
            return entries.find_task(connection, what)

    def experts(self) -> list[Expert]:
        """All experts by name."""
        with self._database.read() as connection:
            return entries.list_experts(connection)

    def errors(self, protocol: str | None = None) -> list[MeasuredError]:
        """All measured errors, or those of one protocol."""
        with self._database.read() as connection:
            return entries.list_errors(connection, protocol)

    def runs(self) -> list[RunEntry]:
        """All recorded runs, oldest first."""
        with self._database.read() as connection:
            return entries.list_runs(connection)

    def get(self, what: str, *, probe: str | None = None, method: str | None = None) -> Embedding:
        """The embedding of a task: by the name or the first digits of the fingerprint, or of the embedding's key.

        Args:
            what: which task or embedding.
            probe: by which probe, where the task has several: a name, or the first digits of a fingerprint.
            method: by which method, where the task has several.
        """
        with self._database.read() as connection:
            task, entry = entries.find_embedding(connection, what, probe=probe, method=method)
            return writes.read_embedding(connection, entry.id, entry.sha256, name=task.name)

    def find(self, task: "Task", probe: "Probe", *, settings: "EmbedSettings") -> Embedding | None:
        """The embedding that embedding this task by this probe with these settings would give again.

        None if it is not here, or is damaged; then `add` replaces the damaged one.
        """
        with self._database.read() as connection:
            row = connection.execute(
                "SELECT id FROM embeddings WHERE key = ?", (key_of(task, probe, settings),)
            ).fetchone()
            return None if row is None else writes.make_loader(connection)(row[0])

    def stats(self) -> dict[str, Any]:
        """The number of entries of every kind, and the bytes of all embeddings."""
        with self._database.read() as connection:
            return entries.count_everything(connection)

    # --- searching ---------------------------------------------------------------------------------------------------

    def nearest(
        self,
        what: "str | Embedding",
        k: int = 10,
        *,
        probe: str | None = None,
        method: str | None = None,
        exact: bool = False,
        report: Report = silent,
    ) -> list[Neighbour]:
        """The `k` tasks nearest by the symmetric distance, among those that can be compared; never the task itself.

        Up to 2,000 embeddings all distances are computed. Above, sketches give 100 candidates (400 of a million) whose
        distances are computed; `exact` computes all. `check_search` measures what that misses. A damaged embedding is
        left out, and `verify` names it.

        Args:
            what: an embedding, which need not be in the library, or what `get` takes.
            k: how many.
            probe: see `get`.
            method: see `get`.
            exact: compute all distances, however many there are.
            report: opens a progress bar, see `task2vec.progress`.
        """
        if k < 1:
            raise UsageError(f"k={k}: there are no {k} nearest tasks. Ask for at least one.")
        embedding = what if isinstance(what, Embedding) else self.get(what, probe=probe, method=method)
        with entries.expect_sound_rows():
            return self._find_nearest(embedding, k, exact, report)

    def _find_nearest(self, embedding: Embedding, k: int, exact: bool, report: Report) -> list[Neighbour]:
        with self._database.read() as connection:
            row = connection.execute("SELECT id FROM spaces WHERE key = ?", describe_space(embedding)[:1]).fetchone()
            needs_fit = row is not None and not exact and self._search.needs_fit(connection, row[0])
        if row is None:
            return []
        if needs_fit and not self.is_read_only:
            with suppress(ResourceError):  # no space for sketches: all are compared
                self._fit(row[0], report, again=False)
        with self._database.read() as connection:
            own = connection.execute(
                "SELECT e.id FROM embeddings e JOIN tasks t ON t.id = e.task WHERE t.fingerprint = ?",
                (embedding.provenance.get("task_fingerprint"),),
            ).fetchall()
            without = frozenset(number for (number,) in own)
            load = writes.make_loader(connection)
            found = self._search.nearest(connection, row[0], embedding, k=k, exact=exact, without=without, load=load)
            return _make_neighbours(connection, found)

    def check_search(self, *, queries: int = 50, report: Report = silent) -> list[tuple[dict[str, Any], SearchReport]]:
        """Every space of this library, with the recall and speed of the search by sketches in it."""
        with entries.expect_sound_rows(), self._database.read() as connection:
            spaces = connection.execute(
                "SELECT id, probe, probe_fingerprint, settings FROM spaces WHERE id IN (SELECT space FROM embeddings) "
                "ORDER BY id"
            ).fetchall()
            load = writes.make_loader(connection)
            return [
                (
                    {"probe": probe, "probe_fingerprint": fingerprint, "settings": json.loads(settings)},
                    self._search.check(connection, number, queries=queries, load=load, report=report),
                )
                for number, probe, fingerprint, settings in spaces
            ]

    def refit_search(self, *, report: Report = silent) -> None:
        """Fits the sketches of all spaces again, to the tasks that are there today."""
        with self._database.read() as connection:
            spaces = connection.execute("SELECT id FROM spaces").fetchall()
        for (space,) in spaces:
            self._fit(space, report, again=True)

    def _fit(self, space: int, report: Report, *, again: bool) -> None:
        with self._database.write() as connection:
            if again or self._search.needs_fit(connection, space):  # else another process was faster
                self._search.fit(connection, space, load=writes.make_loader(connection), report=report)

    # --- maintenance and sharing -------------------------------------------------------------------------------------

    def verify(self, *, report: Report = silent) -> verification.Verification:
        """Reads everything, and names what is damaged."""
        return verification.verify(self._database, report=report)

    def glance(self) -> verification.Verification:
        """Checks the tables and the lengths of embeddings: much faster than `verify`, and finds less."""
        return verification.verify(self._database, quick=True)

    @classmethod
    def repair(cls, folder: str | Path | None = None, *, report: Report = silent) -> verification.Repaired:
        """Copies everything readable into a new file, which replaces the damaged one.

        The damaged file is kept in the folder `backups`. Nobody else may use the library meanwhile. If the trees of
        pages are damaged, embeddings that were removed shortly before may come back.
        """
        return verification.repair(find_file(find_library(folder)), report=report)

    def compact(self, *, report: Report = silent) -> dict[str, int]:
        """Frees the space of removed entries (VACUUM); returns the bytes of the file before and after."""
        path, step = self._database.path, report("compacting", 1)
        with self._database.write():
            files = (path, path.with_name(f"{path.name}-wal"))
            before = sum(file.stat().st_size for file in files if file.exists())
        with self._database.connect() as connection:
            connection.execute("VACUUM")
            patience = connection.execute("PRAGMA busy_timeout").fetchone()[0]
            connection.execute(f"PRAGMA busy_timeout = {_PATIENCE_WITH_READERS}")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()  # reports whether readers were in the way
            connection.execute(f"PRAGMA busy_timeout = {patience}")
        step(1)
        return {"before": before, "after": path.stat().st_size}

    def export(self, path: str | Path, *, tag: str | None = None, report: Report = silent) -> Path:
        """Writes everything, or the tasks with a tag and what was measured for them, to one file for `merge`.

        Where tasks were read from (`source`) is left out: it is a path on this machine.
        """
        if Path(path).resolve().is_relative_to(self.folder.resolve()) and Path(path).suffix != sharing.SUFFIX:
            raise UsageError(
                f"'{path}' is in the library's own folder, and could overwrite a part of it. Choose another place."
            )
        with self._database.read() as connection:
            shared = sharing.share_library(connection, f"'{self.folder}'", tag=tag)
            return sharing.write_export(shared, Path(path), report=report)

    def merge(self, origin: "str | Path | Library", *, report: Report = silent) -> sharing.Merged:
        """Adds everything of an exported file or another library that is not here yet.

        It is read to its end and checked before anything is added. What is here under the same key with another content
        stays as it is, and is named in the result.
        """
        with self._database.write():
            pass  # refused right away if nothing can be written
        if isinstance(origin, Library):
            return self._merge_library(origin, report)
        if Path(origin).is_dir() or Path(origin).suffix == ".sqlite":
            with Library.open(origin, read_only=True) as other:
                return self._merge_library(other, report)
        with sharing.open_export(Path(origin), report=report) as shared:
            return sharing.merge(shared, self._database, self._search, report=report)

    def _merge_library(self, other: "Library", report: Report) -> sharing.Merged:
        if other._database.path.resolve() == self._database.path.resolve():
            raise UsageError(f"'{other.folder}' is this library itself: there is nothing to merge.")
        with other._database.read() as connection:
            shared = sharing.share_library(connection, f"'{other.folder}'")
            sharing.check_shared(shared, report=report)
            return sharing.merge(shared, self._database, self._search, report=report)


def _remove_errors(connection: sqlite3.Connection, side: str, number: int, name: str, with_errors: bool) -> None:
    """Removes the errors of a task or expert; refuses if there are any and `with_errors` is False."""
    count = connection.execute(f"SELECT count(*) FROM errors WHERE {side} = ?", (number,)).fetchone()[0]
    if count and not with_errors:
        raise UsageError(
            f"{count} errors were measured for the {side} '{name}' and would be removed with it. To remove them too: "
            "with_errors=True, --force"
        )
    connection.execute(f"DELETE FROM errors WHERE {side} = ?", (number,))


def _make_neighbours(connection: sqlite3.Connection, found: list[tuple[int, float]]) -> list[Neighbour]:
    numbers = json.dumps([number for number, _ in found])
    owners = dict(
        connection.execute("SELECT id, task FROM embeddings WHERE id IN (SELECT value FROM json_each(?))", (numbers,))
    )
    tasks = {task.id: task for task in entries.list_tasks(connection, sorted(set(owners.values())))}
    every = {entry.id: (task, entry) for task in tasks.values() for entry in task.embeddings}
    return [Neighbour(*every[number], distance) for number, distance in found if number in every]
