"""The library: a folder that keeps every task and every expert, and never loses one."""

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from task2vec.embedding import Embedding
from task2vec.errors import LibraryError, NotInLibraryError, ResourceError, Task2VecError, UsageError
from task2vec.library import exchange, listing, repairing, verifying
from task2vec.library.blobs import Blobs
from task2vec.library.database import INDEX, Database
from task2vec.library.entries import Added, EmbeddingEntry, Expert, MeasuredError, Neighbour, RunEntry, TaskEntry
from task2vec.library.identity import describe_task, key_of
from task2vec.library.keeping import Keeper, Note, check_tags, load_blob, now
from task2vec.library.neighbours import Neighbours
from task2vec.library.place import find_library
from task2vec.library.search import Search, SearchReport
from task2vec.library.sweeping import Sweeper, is_left
from task2vec.library.texts import check_text, write_plain
from task2vec.progress import Report, silent
from task2vec.storage import sync_folder

if TYPE_CHECKING:
    from task2vec.embedding import EmbedSettings
    from task2vec.probe import Probe
    from task2vec.tasks import Task

_Sent = TypeVar("_Sent")


class Library:
    """Tasks with their embeddings, experts, and the errors that were measured: kept in one folder.

    Any number of processes and threads may use it at the same time. What `add` has returned is on the disk; a process
    that is killed leaves every entry whole or absent. A folder that cannot be written to is opened for reading.

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
        """Opens the library in `folder`, and makes it if there is none; see `find_library` for the default.

        Args:
            folder: of the library.
            read_only: True changes nothing, not even by accident; None does so where the folder cannot be written to.
        """
        self.folder = find_library(folder)
        self.is_read_only = _cannot_write(self.folder) if read_only is None else read_only
        if not self.is_read_only:
            _make_folder(self.folder)
        repairing.check_finished(self.folder)
        self._blobs, self._search = Blobs(self.folder), Search(self.folder)
        was_left = is_left(self.folder)
        self._database = Database(self.folder, read_only=self.is_read_only, may_make=self._blobs.is_empty())
        self._database.in_child.append(self._search.become_child)
        self._keeper = Keeper(self._blobs, self._search)
        parts = (self._database, self._blobs, self._search)
        self._neighbours, self._sweeper = Neighbours(*parts), Sweeper(*parts)
        if was_left and not self.is_read_only:
            self._sweeper.sweep_after_crash()

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
        """Lets go of all files."""
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
        with self._database.reading() as connection:
            return connection.execute("SELECT count(*) FROM tasks").fetchone()[0]

    # --- what comes in ---------------------------------------------------------------------------------------------

    def add(
        self,
        *things: "Embedding | Task | Expert | MeasuredError",
        tags: Iterable[str] = (),
        taxon: str | None = None,
        source: str = "",
        replace: bool = False,
    ) -> list[Added]:
        """Keeps all of `things` or, if one of them is refused, none; says of each whether it was new.

        The very same again changes nothing. Something else under the same key (other numbers for the same images, probe
        and settings; another expert of that name; another error for that cell) is refused.

        Args:
            things: embeddings with their tasks, tasks alone, experts, measured errors.
            tags: for the tasks.
            taxon: the tasks' place in a taxonomy.
            source: where the tasks come from; a `Task` knows that itself.
            replace: put the new in the place of the old instead of refusing it.
        """
        note = Note(check_tags(tags), taxon, source)
        added, stale = [], []
        with self._database.writing() as connection:
            for thing in things:
                found, old = self._keep(connection, thing, note, replace)
                added.append(found)
                stale += [old] if old else []
            self._search.sync()
            self._blobs.note(stale)
        self._sweeper.drop_blobs(stale)
        self._sweeper.settle()
        return added

    def _keep(self, connection: sqlite3.Connection, thing: Any, note: Note, replace: bool) -> tuple[Added, str | None]:
        if isinstance(thing, Embedding):
            return self._keeper.keep_embedding(connection, thing, note, replace=replace)
        if isinstance(thing, Expert):
            return self._keeper.keep_expert(connection, thing, replace=replace), None
        if isinstance(thing, MeasuredError):
            return self._keeper.keep_error(connection, thing, replace=replace), None
        if hasattr(thing, "fingerprint") and hasattr(thing, "targets"):
            note = Note(note.tags, note.taxon, note.source or thing.source)
            return self._keeper.keep_task(connection, describe_task(thing), note), None
        raise UsageError(
            f"a library does not keep a {type(thing).__name__}: nobody could ask for it. Add embeddings, tasks, "
            "experts or measured errors."
        )

    def tag(self, what: str, *tags: str, remove: bool = False) -> TaskEntry:
        """Gives tags to a task, or takes them away, and returns it."""
        with self._database.writing() as connection:
            number = listing.find_task(connection, what).id
            statement = (
                "DELETE FROM tags WHERE task = ? AND tag = ?" if remove else "INSERT OR IGNORE INTO tags VALUES (?, ?)"
            )
            connection.executemany(statement, [(number, tag) for tag in check_tags(tags)])
            return listing.list_tasks(connection, [number])[0]

    def rename(self, what: str, name: str) -> TaskEntry:
        """Gives a task another name, and returns it."""
        if not check_text(name, "name").strip():
            raise UsageError("a task needs a name, or nobody could ask for it. Give a text that is not empty.")
        with self._database.writing() as connection:
            number = listing.find_task(connection, what).id
            connection.execute("UPDATE tasks SET name = ? WHERE id = ?", (name, number))
            return listing.list_tasks(connection, [number])[0]

    def remove(self, what: str, *, with_errors: bool = False) -> list[EmbeddingEntry]:
        """Takes a task with all its embeddings out, or one embedding named by its key; returns these embeddings.

        A task that errors were measured for stays, unless `with_errors` gives them up, too.
        """
        with self._database.writing() as connection:
            tasks = listing.find_tasks(connection, what)
            if tasks:
                task = listing.find_task(connection, what)
                gone = list(task.embeddings)
                self._give_up_errors(connection, "task", task.id, task.name, with_errors)
            else:
                task, only = listing.find_embedding(connection, what)
                gone = [only]
            for entry in gone:
                space = connection.execute("SELECT space FROM embeddings WHERE id = ?", (entry.id,)).fetchone()[0]
                self._search.leave(connection, space, entry.id)
                connection.execute("DELETE FROM embeddings WHERE id = ?", (entry.id,))
            if tasks:
                connection.execute("DELETE FROM tasks WHERE id = ?", (task.id,))
            self._blobs.note(entry.sha256 for entry in gone)
        self._sweeper.drop_blobs([entry.sha256 for entry in gone])
        self._sweeper.settle()
        return gone

    def remove_expert(self, name: str, *, with_errors: bool = False) -> None:
        """Takes an expert out; see `remove`."""
        with self._database.writing() as connection:
            row = connection.execute("SELECT id FROM experts WHERE name = ?", (name,)).fetchone()
            if row is None:
                raise NotInLibraryError(f"there is no expert '{name}' in the library.")
            self._give_up_errors(connection, "expert", row[0], name, with_errors)
            connection.execute("DELETE FROM experts WHERE id = ?", row)

    def _give_up_errors(
        self, connection: sqlite3.Connection, side: str, number: int, name: str, with_errors: bool
    ) -> None:
        """Raise if errors were measured for it that nobody wanted to give up; otherwise they go."""
        count = connection.execute(f"SELECT count(*) FROM errors WHERE {side} = ?", (number,)).fetchone()[0]
        if count and not with_errors:
            raise UsageError(
                f"{count} errors were measured for the {side} '{name}' and would be lost with it. If that is meant: "
                "with_errors=True, --with-errors"
            )
        connection.execute(f"DELETE FROM errors WHERE {side} = ?", (number,))

    @contextmanager
    def record(self, what: str, story: Mapping[str, Any] | None = None) -> Iterator[int]:
        """Notes a run: what was begun, and at the end of the block how it ended."""
        check_text(what, "run")
        text = write_plain(dict(story or {}), "story of the run")
        with self._database.writing() as connection:
            number = connection.execute(
                "INSERT INTO runs(what, story, begun) VALUES (?, ?, ?)", (what, text, now())
            ).lastrowid
        assert number is not None
        outcome = "done"
        try:
            yield number
        except BaseException as error:
            outcome = f"{type(error).__name__}: {error}"[:1000]
            raise
        finally:
            with self._database.writing() as connection:
                connection.execute("UPDATE runs SET ended = ?, outcome = ? WHERE id = ?", (now(), outcome, number))

    # --- what is there ---------------------------------------------------------------------------------------------

    def tasks(self, *, tag: str | None = None, probe: str | None = None) -> list[TaskEntry]:
        """All tasks by name, or those with a tag, or with an embedding by that probe."""
        with self._database.reading() as connection:
            found = listing.list_tasks(connection)
        return [
            task
            for task in found
            if (tag is None or tag in task.tags)
            and (probe is None or any(one.probe == probe for one in task.embeddings))
        ]

    def task(self, what: str) -> TaskEntry:
        """The task of that name, or whose fingerprint begins so."""
        with self._database.reading() as connection:
            return listing.find_task(connection, what)

    def experts(self) -> list[Expert]:
        """All experts by name."""
        with self._database.reading() as connection:
            return listing.list_experts(connection)

    def errors(self, protocol: str | None = None) -> list[MeasuredError]:
        """All measured errors, or those of one protocol."""
        with self._database.reading() as connection:
            return listing.list_errors(connection, protocol)

    def runs(self) -> list[RunEntry]:
        """What was done with this library, oldest first."""
        with self._database.reading() as connection:
            return listing.list_runs(connection)

    def get(self, what: str, *, probe: str | None = None, method: str | None = None) -> Embedding:
        """The embedding of a task: by the name or the first digits of the fingerprint, or of the embedding's key.

        Args:
            what: which task or embedding.
            probe: by which probe, where the task has several: a name, or the first digits of a fingerprint.
            method: by which method, where the task has several.
        """
        seen = None
        while True:
            with self._database.reading() as connection:
                task, entry = listing.find_embedding(connection, what, probe=probe, method=method)
            try:
                return load_blob(self._blobs, entry.sha256, name=task.name)
            except LibraryError:
                if entry == seen:
                    raise
                seen = entry  # another process may have replaced or removed it since it was found

    def find(self, task: "Task", probe: "Probe", *, settings: "EmbedSettings") -> Embedding | None:
        """The embedding that embedding this task by this probe with these settings would give again.

        None if it is not here, or is damaged: then it is to be made, and `add` puts it in the place of the damaged one.
        """
        with self._database.reading() as connection:
            row = connection.execute(
                "SELECT e.sha256, t.name FROM embeddings e JOIN tasks t ON t.id = e.task WHERE e.key = ?",
                (key_of(task, probe, settings),),
            ).fetchone()
        try:
            return None if row is None else load_blob(self._blobs, row[0], name=row[1])
        except LibraryError:
            return None

    def stats(self) -> dict[str, Any]:
        """How many of everything there are, and the bytes of all embeddings."""
        with self._database.reading() as connection:
            return listing.count_everything(connection)

    # --- who is near -----------------------------------------------------------------------------------------------

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
        distances are computed; `exact` computes all. `check_search` says what that misses. An embedding that is damaged
        is left out, and `verify` names it.

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
        return self._neighbours.find(embedding, k, exact=exact, report=report)

    def check_search(self, *, queries: int = 50, report: Report = silent) -> list[tuple[dict[str, Any], SearchReport]]:
        """How well sketches find what exact search finds: every space of this library, and its figures."""
        return self._neighbours.check(queries=queries, report=report)

    def refit_search(self, *, report: Report = silent) -> None:
        """Makes the sketches of all spaces anew, from the tasks that are there today."""
        self._neighbours.refit(report=report)

    # --- care ------------------------------------------------------------------------------------------------------

    def verify(self, *, report: Report = silent) -> "verifying.Verification":
        """Reads everything, and names what is damaged."""
        return verifying.verify(self._database, self._blobs, self._search, report=report)

    def glance(self) -> "verifying.Verification":
        """Looks at the index and at the lengths of files, and names what is damaged: much faster, and finds less."""
        return verifying.glance(self._database, self._blobs)

    @classmethod
    def repair(cls, folder: str | Path | None = None, *, report: Report = silent) -> "repairing.Repaired":
        """Makes the index anew from all that can still be read: its own tables and every blob.

        The old index is kept in the folder `backups`. Nobody else may use the library meanwhile.
        """
        return repairing.repair(find_library(folder), report=report)

    def compact(self, *, report: Report = silent) -> dict[str, int]:
        """Takes away what nobody needs; returns the bytes of the folder before and after."""
        return self._sweeper.compact(report=report)

    def export(self, path: str | Path, *, tag: str | None = None, report: Report = silent) -> Path:
        """Writes everything, or the tasks with a tag and what was measured for them, to one file to be imported.

        Where tasks came from (`source`) is not told: it is a path on this machine.
        """
        place, own = Path(path).resolve(), self.folder.resolve()
        if place.is_relative_to(own) and place.suffix != exchange.SUFFIX:
            raise UsageError(
                f"'{path}' lies in the library itself, and could take the place of a part of it. Choose another one."
            )
        return self._send(lambda parcel: exchange.write_parcel(parcel, Path(path), report=report), tag)

    def _send(self, send: Callable[[exchange.Parcel], _Sent], tag: str | None = None) -> _Sent:
        """What `send` makes of all that is here; again, if entries were removed by others while it was at it."""
        while True:
            with self._database.reading() as connection:
                parcel = exchange.pack(connection, self._blobs, tag=tag)
            try:
                return send(parcel)
            except LibraryError:
                with self._database.reading() as connection:
                    now_there = exchange.pack(connection, self._blobs, tag=tag)
                if set(parcel.embeddings) <= set(now_there.embeddings):
                    raise

    def merge(self, origin: "str | Path | Library", *, report: Report = silent) -> "exchange.Merged":
        """Takes in all that an exported file or another library has and this one has not.

        A file is read to its end and checked before anything of it is taken. What is here under the same key with
        another content stays as it is, and is named in the answer.
        """
        if self.is_read_only:
            with self._database.writing():
                pass
        if isinstance(origin, Library):
            return self._merge_library(origin, report)
        if Path(origin).is_dir():
            with Library.open(origin, read_only=True) as other:
                return self._merge_library(other, report)
        with exchange.read_parcel(Path(origin), report=report) as parcel:
            return exchange.unpack(parcel, self._database, self._keeper, settle=self._sweeper.settle, report=report)

    def _merge_library(self, other: "Library", report: Report) -> "exchange.Merged":
        if other.folder.resolve() == self.folder.resolve():
            raise UsageError(f"'{other.folder}' is this library itself: there is nothing to take from it.")

        def take(parcel: exchange.Parcel) -> exchange.Merged:
            exchange.check_parcel(parcel, report=report)
            return exchange.unpack(parcel, self._database, self._keeper, settle=self._sweeper.settle, report=report)

        return other._send(take)


def _cannot_write(folder: Path) -> bool:
    """Whether there is a library in `folder` that this process may not change."""
    index = folder / INDEX
    return index.exists() and not (os.access(folder, os.W_OK) and os.access(index, os.W_OK))


def _make_folder(folder: Path) -> None:
    new = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for place in new:
            sync_folder(place.parent)
    except OSError as error:
        raise ResourceError(
            f"the library cannot be made in '{folder}': {error.strerror}. Choose a folder that can be written to: "
            "--library DIR, or set TASK2VEC_LIBRARY."
        ) from error
    if not os.access(folder, os.W_OK):
        raise ResourceError(
            f"there is no library in '{folder}', and none can be made there: the folder is read-only. Choose another: "
            "--library DIR, or set TASK2VEC_LIBRARY."
        )
