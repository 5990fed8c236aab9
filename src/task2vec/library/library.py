"""The library: one SQLite file with every task, embedding, expert and measured error."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace as change
from datetime import UTC, datetime
from pathlib import Path
from sqlite3 import Connection
from types import TracebackType
from typing import TYPE_CHECKING, Any

from task2vec.embedding import Embedding
from task2vec.embedding.embedding import encode_embedding
from task2vec.errors import (
    ConflictError,
    DataError,
    LibraryError,
    NotInLibraryError,
    ResourceError,
    Task2VecError,
    UsageError,
)
from task2vec.library import entries
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
    describe_space,
    describe_task,
    identify_with_task,
    is_same_vector,
    key_of,
    load_embedding,
    read_embedding,
    to_json,
)
from task2vec.library.search import Search
from task2vec.progress import Report, silent

if TYPE_CHECKING:
    from task2vec.embedding import EmbedSettings
    from task2vec.library.export import Merged
    from task2vec.library.verify import Repaired, Verification
    from task2vec.probe import Probe
    from task2vec.tasks import Task

LARGEST = 1 << 28  # bytes of an embedding; one of a million filters has 40 MB
_EXPERT = ("source", "location", "task", "recipe", "parameters", "input_size", "cost", "sha256")


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
        self._searches: dict[int, Search] = {}
        self._database = Database(path, read_only=self.is_read_only)

    @property
    def _search(self) -> Search:
        """What this process knows of the rows; a fork begins anew, for another thread may have held the lock."""
        if os.getpid() not in self._searches:
            self._searches = {os.getpid(): Search()}
        return self._searches[os.getpid()]

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

    def _add(self, connection: Connection, thing: Any, about: TaskEntry, replace: bool) -> Added:
        if isinstance(thing, Embedding):
            return write_embedding(connection, lambda: self._search, thing, about, replace=replace)
        if isinstance(thing, Expert):
            return write_expert(connection, thing, replace=replace)
        if isinstance(thing, MeasuredError):
            return write_error(connection, thing, replace=replace)
        if hasattr(thing, "fingerprint") and hasattr(thing, "targets"):
            task, source = describe_task(thing), about.source or thing.source
            return write_task(connection, change(task, tags=about.tags, taxon=about.taxon, source=source))
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
                delete_embedding(connection, entry.id)
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
                "INSERT INTO runs(what, details, started) VALUES (?, ?, ?)", (what, text, _now())
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
                connection.execute("UPDATE runs SET ended = ?, outcome = ? WHERE id = ?", (_now(), outcome, number))

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
            return read_embedding(connection, entry.id, entry.sha256, name=task.name)

    def find(self, task: "Task", probe: "Probe", *, settings: "EmbedSettings") -> Embedding | None:
        """The embedding that embedding this task by this probe with these settings would give again.

        None if it is not here, or is damaged; then `add` replaces the damaged one.
        """
        with self._database.read() as connection:
            row = connection.execute(
                "SELECT id FROM embeddings WHERE key = ?", (key_of(task, probe, settings),)
            ).fetchone()
            return None if row is None else load_embedding(connection, row[0])

    def stats(self) -> dict[str, Any]:
        """The number of entries of every kind, the bytes of all embeddings, and the spaces that these are in."""
        kinds = ("tasks", "embeddings", "experts", "errors", "runs")
        names = ("probe", "probe_fingerprint", "settings", "filters", "embeddings")
        with entries.expect_sound_rows(), self._database.read() as connection:
            counts = {kind: connection.execute(f"SELECT count(*) FROM {kind}").fetchone()[0] for kind in kinds}
            size = connection.execute("SELECT coalesce(sum(bytes), 0) FROM embeddings").fetchone()[0]
            spaces = connection.execute(
                "SELECT s.probe, s.probe_fingerprint, s.settings, s.filters, count(e.id) FROM spaces s "
                "JOIN embeddings e ON e.space = s.id GROUP BY s.id ORDER BY count(e.id) DESC, s.id"
            ).fetchall()
            found = [dict(zip(names, row, strict=True)) | {"settings": json.loads(row[2])} for row in spaces]
        return {**counts, "bytes": size, "spaces": found}

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
        distances are computed; `exact` computes all. A damaged embedding is left out, and `verify` names it.

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
            space = self._find_space(embedding, None if exact else report)
            return [] if space is None else self._find_nearest(space, embedding, k, exact)

    def _find_space(self, embedding: Embedding, fit: Report | None) -> int | None:
        """The space of an embedding; with `fit` its sketches are fitted if they are missing and can be written."""
        with self._database.read() as connection:
            row = connection.execute("SELECT id FROM spaces WHERE key = ?", describe_space(embedding)[:1]).fetchone()
            if row is None:
                return None
            needs_fit = fit is not None and self._search.needs_fit(connection, row[0])
        if needs_fit and fit is not None and not self.is_read_only:
            with suppress(ResourceError), self._database.write() as connection:  # without sketches all are compared
                if self._search.needs_fit(connection, row[0]):  # else another process was faster
                    self._search.fit(connection, row[0], report=fit)
        return row[0]

    def _find_nearest(self, space: int, embedding: Embedding, k: int, exact: bool) -> list[Neighbour]:
        with self._database.read() as connection:
            own = connection.execute(
                "SELECT e.id FROM embeddings e JOIN tasks t ON t.id = e.task WHERE t.fingerprint = ?",
                (embedding.provenance.get("task_fingerprint"),),
            ).fetchall()
            without = [number for (number,) in own]
            found = self._search.nearest(connection, space, embedding, k=k, exact=exact, without=without)
            owners = dict(
                connection.execute(
                    "SELECT id, task FROM embeddings WHERE id IN (SELECT value FROM json_each(?))",
                    (json.dumps([number for number, _ in found]),),
                )
            )
            tasks = entries.list_tasks(connection, sorted(set(owners.values())))
        every = {entry.id: (task, entry) for task in tasks for entry in task.embeddings}
        return [Neighbour(*every[number], distance) for number, distance in found if number in every]

    # --- maintenance and sharing -------------------------------------------------------------------------------------

    def verify(self, *, report: Report = silent) -> "Verification":
        """Reads everything, and names what is damaged."""
        from task2vec.library.verify import verify

        return verify(self._database, report=report)

    def glance(self) -> "Verification":
        """Checks the tables and the lengths of embeddings: much faster than `verify`, and finds less."""
        from task2vec.library.verify import verify

        return verify(self._database, quick=True)

    @classmethod
    def repair(cls, folder: str | Path | None = None, *, report: Report = silent) -> "Repaired":
        """Copies everything readable into a new file, which replaces the damaged one.

        The damaged file is kept in the folder `backups`. Nobody else may use the library meanwhile.
        """
        from task2vec.library.verify import repair

        return repair(find_file(find_library(folder)), report=report)

    def export(self, path: str | Path, *, tag: str | None = None, report: Report = silent) -> Path:
        """Writes everything, or the tasks with a tag and what was measured for them, to one file for `merge`.

        Where tasks were read from (`source`) is left out: it is a path on this machine.
        """
        from task2vec.library import export as sharing

        if Path(path).resolve().is_relative_to(self.folder.resolve()) and Path(path).suffix != sharing.SUFFIX:
            raise UsageError(
                f"'{path}' is in the library's own folder, and could overwrite a part of it. Choose another place."
            )
        with self._database.read() as connection:
            shared = sharing.share_library(connection, f"'{self.folder}'", tag=tag)
            return sharing.write_export(shared, Path(path), report=report)

    def merge(self, origin: "str | Path | Library", *, report: Report = silent) -> "Merged":
        """Adds everything of an exported file or another library that is not here yet.

        It is read to its end and checked before anything is added. What is here under the same key with another content
        stays as it is, and is named in the result.
        """
        from task2vec.library import export as sharing

        with self._database.write():
            pass  # refused right away if nothing can be written
        with ExitStack() as stack:
            if not isinstance(origin, Library) and (Path(origin).is_dir() or Path(origin).suffix == ".sqlite"):
                origin = stack.enter_context(Library.open(origin, read_only=True))
            if isinstance(origin, Library):
                if origin._database.path.resolve() == self._database.path.resolve():
                    raise UsageError(f"'{origin.folder}' is this library itself: there is nothing to merge.")
                connection = stack.enter_context(origin._database.read())
                shared = sharing.share_library(connection, f"'{origin.folder}'")
            else:
                shared = stack.enter_context(sharing.open_export(Path(origin)))
            sharing.check_shared(shared, report=report)
            return sharing.merge(shared, self._database, lambda: self._search, report=report)


def _remove_errors(connection: Connection, side: str, number: int, name: str, with_errors: bool) -> None:
    """Removes the errors of a task or expert; refuses if there are any and `with_errors` is False."""
    count = connection.execute(f"SELECT count(*) FROM errors WHERE {side} = ?", (number,)).fetchone()[0]
    if count and not with_errors:
        raise UsageError(
            f"{count} errors were measured for the {side} '{name}' and would be removed with it. To remove them too: "
            "with_errors=True, --force"
        )
    connection.execute(f"DELETE FROM errors WHERE {side} = ?", (number,))


# --- writing, inside a transaction of the caller ---------------------------------------------------------------------
# What is there already under the same key is left alone if it is the same, and refused if it is not.


def write_embedding(
    connection: Connection, search: Callable[[], Search], embedding: Embedding, about: TaskEntry | None = None, *,
    replace: bool = False, added: str | None = None,
) -> Added:  # fmt: skip
    """Adds an embedding with its task, which gets the tags, taxon and source of `about`."""
    task, own = identify_with_task(embedding)
    if about is not None:
        task = change(task, tags=about.tags, taxon=about.taxon, source=about.source)
    content = encode_embedding(embedding)
    if len(content) > LARGEST:
        raise DataError(
            f"the embedding has {len(content)} bytes, and a library accepts at most {LARGEST}. Save it as a file: "
            "embedding.save(FILE)"
        )
    sha256 = hashlib.sha256(content).hexdigest()
    row = connection.execute(
        "SELECT e.id, e.sha256, t.name FROM embeddings e JOIN tasks t ON t.id = e.task WHERE e.key = ?", (own.key,)
    ).fetchone()
    if row is not None:
        if _is_known(connection, row, embedding, None if replace else own.key, sha256):
            write_task(connection, task)
            return Added("embedding", row[2], own.key, False)
        delete_embedding(connection, row[0])
    name = write_task(connection, task).name
    space = _write_space(connection, embedding)
    number = connection.execute(
        "INSERT INTO embeddings(key, task, space, settings, recipe, sha256, bytes, norm, cv_error, has_halves, added) "
        "VALUES (?, (SELECT id FROM tasks WHERE fingerprint = ?), ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (own.key, task.fingerprint, space, to_json(own.settings, "settings"), own.recipe, sha256, len(content),
         own.norm, own.cv_error, own.has_halves, added or _now()),
    ).lastrowid  # fmt: skip
    assert number is not None
    connection.execute("INSERT INTO contents VALUES (?, ?)", (number, content))
    search().enter(connection, space, number, embedding)
    return Added("embedding", name, own.key, True)


def delete_embedding(connection: Connection, number: int) -> None:
    """Removes an embedding and all that is derived from it."""
    connection.execute(
        "UPDATE spaces SET changes = changes + 1 WHERE id = (SELECT space FROM embeddings WHERE id = ?)", (number,)
    )
    connection.execute("DELETE FROM embeddings WHERE id = ?", (number,))


def _is_known(connection: Connection, row: tuple, embedding: Embedding, key: str | None, sha256: str) -> bool:
    """Whether the embedding in that row has the same numbers (without `key`, the very same bytes).

    A damaged one does not, and is replaced.
    """
    number, known_sha256, name = row
    try:
        known = read_embedding(connection, number, known_sha256, name=name)
    except LibraryError:
        return False
    if key is None or is_same_vector(known, embedding):
        return key is not None or sha256 == known_sha256
    raise ConflictError(
        f"the library has another embedding of '{name}' with the same images, probe and settings ({key[:8]}), and its "
        f"numbers differ: that one was made with {_format_maker(known)}, this one with {_format_maker(embedding)}. It "
        "was not overwritten. To take the new one instead: replace=True, --force"
    )


def _format_maker(embedding: Embedding) -> str:
    """The version and device that an embedding was made with: the usual reasons for other numbers under one key."""
    versions = embedding.provenance.get("versions")
    version = versions.get("torch", "?") if isinstance(versions, dict) else "?"
    return f"torch {version} on {embedding.provenance.get('device', 'an unknown device')}"


def _write_space(connection: Connection, embedding: Embedding) -> int:
    key, settings = describe_space(embedding)
    connection.execute(
        "INSERT OR IGNORE INTO spaces(key, probe, probe_fingerprint, settings, filters) VALUES (?, ?, ?, ?, ?)",
        (key, embedding.probe, embedding.probe_fingerprint, settings, len(embedding)),
    )
    return connection.execute("SELECT id FROM spaces WHERE key = ?", (key,)).fetchone()[0]


def write_task(connection: Connection, task: TaskEntry) -> Added:
    """Adds a task; a known one keeps its name, and gets the tags, taxon and source that it lacks."""
    for name in ("name", "source", "taxon", "added"):
        check_text(getattr(task, name), name, may_be_none=name == "taxon")
    row = connection.execute("SELECT id, name FROM tasks WHERE fingerprint = ?", (task.fingerprint,)).fetchone()
    if row is None:
        number = connection.execute(
            "INSERT INTO tasks(fingerprint, name, images, classes, counts, is_multilabel, taxon, source, added) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (task.fingerprint, task.name, task.images, json.dumps(task.classes), json.dumps(task.counts),
             task.is_multilabel, task.taxon, task.source, task.added or _now()),
        ).lastrowid  # fmt: skip
    else:
        number = row[0]
        connection.execute(  # only what changes: adding the very same again leaves every byte as it was
            "UPDATE tasks SET taxon = coalesce(taxon, ?1), source = iif(source = '', ?2, source) "
            "WHERE id = ?3 AND (taxon IS NULL AND ?1 IS NOT NULL OR source = '' AND ?2 != '')",
            (task.taxon, task.source, number),
        )
    connection.executemany("INSERT OR IGNORE INTO tags VALUES (?, ?)", ((number, tag) for tag in task.tags))
    return Added("task", task.name if row is None else row[1], task.fingerprint, row is None)


def write_expert(connection: Connection, expert: Expert, *, replace: bool = False) -> Added:
    """Adds an expert; another one of the same name is refused, or replaced together with the errors measured on it.

    Another location of the very same file is an update, not another expert.
    """
    values = {name: getattr(expert, name) for name in _EXPERT} | {"recipe": to_json(dict(expert.recipe), "recipe")}
    values["cost"] = None if expert.cost is None else float(expert.cost)
    new = tuple(values.values())
    row = connection.execute(f"SELECT {', '.join(_EXPERT)} FROM experts WHERE name = ?", (expert.name,)).fetchone()
    if row == new:
        return Added("expert", expert.name, expert.name, False)
    is_same_file = row is not None and expert.sha256 is not None and row[-1] == expert.sha256
    if row is not None and not (replace or is_same_file):
        other = next(name for name, old, value in zip(_EXPERT, row, new, strict=True) if old != value)
        raise ConflictError(
            f"the library has another expert called '{expert.name}' (its {other} differs), and errors were measured "
            "with that one. Give this one a name of its own, or replace the other: replace=True"
        )
    if row is not None and not is_same_file:
        connection.execute("DELETE FROM errors WHERE expert = (SELECT id FROM experts WHERE name = ?)", (expert.name,))
    connection.execute(
        f"INSERT INTO experts(name, {', '.join(_EXPERT)}, added) VALUES ({', '.join('?' * (len(_EXPERT) + 2))}) "
        f"ON CONFLICT(name) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _EXPERT)}",
        (expert.name, *new, _now()),
    )
    return Added("expert", expert.name, expert.name, True)


def write_error(connection: Connection, error: MeasuredError, *, replace: bool = False) -> Added:
    """Adds a measured error of a task and an expert that are in the library; another value for it is refused."""
    task = connection.execute("SELECT id, name FROM tasks WHERE fingerprint = ?", (error.task,)).fetchone()
    expert = connection.execute("SELECT id FROM experts WHERE name = ?", (error.expert,)).fetchone()
    for what, name, row in (("task", error.task, task), ("expert", error.expert, expert)):
        if row is None:
            raise NotInLibraryError(
                f"there is no {what} '{name}' in the library, so its error cannot be assigned. Add the {what} first: "
                f"library.add({what})"
            )
    cell = (task[0], expert[0], error.protocol, error.seed)
    where = "task = ? AND expert = ? AND protocol = ? AND seed = ?"
    row = connection.execute(f"SELECT error, low, high FROM errors WHERE {where}", cell).fetchone()
    if row == (error.error, error.low, error.high):
        return Added("error", task[1], error.task, False)
    if row is not None and not replace:
        raise ConflictError(
            f"the library has the error {row[0]:.4f} for the task '{task[1]}' on the expert '{error.expert}' "
            f"({error.protocol}, seed {error.seed}), and this one is {error.error:.4f}. It was not overwritten. To "
            "take the new one: replace=True"
        )
    connection.execute(
        "INSERT OR REPLACE INTO errors(task, expert, protocol, seed, error, low, high, measured, measured_by) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*cell, error.error, error.low, error.high, error.measured or _now(), error.measured_by),
    )
    return Added("error", task[1], error.task, True)


def _now() -> str:
    """This moment in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
