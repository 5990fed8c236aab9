"""Things enter the library, inside the transaction of a caller that holds the write lock.

What is there already under the same key is left alone if it is the same, and refused if it is not.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from sqlite3 import Connection

from task2vec.embedding import Embedding
from task2vec.embedding.embedding import decode_embedding, encode_embedding
from task2vec.errors import ConflictError, LibraryError, NotInLibraryError, Task2VecError, UsageError
from task2vec.library.blobs import Blobs
from task2vec.library.entries import Added, Expert, MeasuredError
from task2vec.library.identity import Identity, Space, TaskFacts, identify, is_same_vector
from task2vec.library.search import Search
from task2vec.library.texts import check_text, write_plain


@dataclass(frozen=True)
class Note:
    """What a caller says of a task beyond what its embedding does.

    Attributes:
        tags: to be added to those that it has.
        taxon: its place in a taxonomy.
        source: where it comes from.
        added: the moment, if it was added to another library before.
    """

    tags: tuple[str, ...] = ()
    taxon: str | None = None
    source: str = ""
    added: str | None = None


class Keeper:
    """Puts things into one library."""

    def __init__(self, blobs: Blobs, search: Search):
        """`blobs` and `search` of that library."""
        self.blobs, self.search = blobs, search

    def keep_embedding(
        self, connection: Connection, embedding: Embedding, note: Note, *, replace: bool = False
    ) -> tuple[Added, str | None]:
        """Keeps an embedding with its task; returns also the hash of a blob that nothing may need any more."""
        identity = identify(embedding)
        content = encode_embedding(embedding)
        row = connection.execute(
            "SELECT e.id, e.sha256, e.space, t.name FROM embeddings e JOIN tasks t ON t.id = e.task WHERE e.key = ?",
            (identity.key,),
        ).fetchone()
        if row is not None and (
            self._is_kept(row[1], content)
            if replace
            else self._is_known(row[1], embedding, name=row[3], key=identity.key)
        ):
            self.keep_task(connection, identity.task, note)
            return Added("embedding", row[3], identity.key, False), None
        stale = None
        if row is not None:
            self.search.leave(connection, row[2], row[0])
            connection.execute("DELETE FROM embeddings WHERE id = ?", (row[0],))
            stale = row[1]
        sha256 = self.blobs.write(content)
        task = self.keep_task(connection, identity.task, note)
        self._insert(connection, embedding, identity, sha256, len(content), note)
        return Added("embedding", task.name, identity.key, True), stale if stale != sha256 else None

    def _is_kept(self, sha256: str, content: bytes) -> bool:
        """Whether the blob that is there is this very one, and whole."""
        return sha256 == hashlib.sha256(content).hexdigest() and self.blobs.is_whole(sha256)

    def _is_known(self, sha256: str, embedding: Embedding, *, name: str, key: str) -> bool:
        """Whether the blob that is there holds the same numbers; a damaged one does not, and is to be replaced."""
        try:
            known = decode_embedding(self.blobs.read(sha256), self.blobs.path(sha256))
        except Task2VecError:
            return False
        if is_same_vector(known, embedding):
            return True
        made = (_word_maker(one) for one in (known, embedding))
        raise ConflictError(
            f"the library has another embedding of '{name}' with the same images, probe and settings ({key[:8]}), and "
            f"its numbers differ: that one was made with {next(made)}, this one with {next(made)}. It was not "
            "overwritten. To take the new one instead: replace=True, --force"
        )

    def _insert(
        self, connection: Connection, embedding: Embedding, identity: Identity, sha256: str, size: int, note: Note
    ) -> None:
        task = connection.execute(
            "SELECT id FROM tasks WHERE fingerprint = ?", (identity.task.fingerprint,)
        ).fetchone()[0]
        space = _keep_space(connection, identity.space)
        has_halves = embedding.halves is not None
        number = connection.execute(
            "INSERT INTO embeddings(key, task, space, settings, recipe, sha256, bytes, norm, cv_error, has_halves, "
            "added) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (identity.key, task, space, identity.settings, identity.recipe, sha256, size, identity.norm,
             identity.cv_error, has_halves, note.added or now()),
        ).lastrowid  # fmt: skip
        assert number is not None
        self.search.enter(connection, space, number, embedding)

    def keep_task(self, connection: Connection, task: TaskFacts, note: Note) -> Added:
        """Keeps a task; one that is known keeps its name, and learns what it did not know."""
        check_text(task.name, "name of the task")
        check_text(note.source, "source")
        for name in ("taxon", "added"):
            check_text(getattr(note, name), name, may_be_none=True)
        row = connection.execute("SELECT id, name FROM tasks WHERE fingerprint = ?", (task.fingerprint,)).fetchone()
        if row is None:
            number = connection.execute(
                "INSERT INTO tasks(fingerprint, name, images, classes, counts, is_multilabel, taxon, source, added) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (task.fingerprint, task.name, task.images, json.dumps(task.classes), json.dumps(task.counts),
                 task.is_multilabel, note.taxon, note.source, note.added or now()),
            ).lastrowid  # fmt: skip
        else:
            number = row[0]
            # Only what changes is written: the very same again leaves every byte as it was.
            if note.taxon:
                update = "UPDATE tasks SET taxon = ? WHERE id = ? AND taxon IS NULL"
                connection.execute(update, (note.taxon, number))
            if note.source:
                connection.execute("UPDATE tasks SET source = ? WHERE id = ? AND source = ''", (note.source, number))
        connection.executemany("INSERT OR IGNORE INTO tags VALUES (?, ?)", ((number, tag) for tag in note.tags))
        return Added("task", task.name if row is None else row[1], task.fingerprint, row is None)

    def keep_expert(
        self, connection: Connection, expert: Expert, *, replace: bool = False, added: str | None = None
    ) -> Added:
        """Keeps an expert; another one of the same name is refused, or replaced with the errors measured on it.

        Another place of the very same file is news, and not another expert.
        """
        fields = ("source", "location", "task", "recipe", "parameters", "input_size", "cost", "sha256")
        recipe = write_plain(dict(expert.recipe), "recipe")
        told = {name: getattr(expert, name) for name in fields} | {"recipe": recipe}
        told["cost"] = None if expert.cost is None else float(expert.cost)
        values = tuple(told.values())
        row = connection.execute(f"SELECT {', '.join(fields)} FROM experts WHERE name = ?", (expert.name,)).fetchone()
        if row == values:
            return Added("expert", expert.name, expert.name, False)
        is_same_file = row is not None and expert.sha256 is not None and row[-1] == expert.sha256
        if row is None:
            marks = ", ".join("?" * (len(fields) + 2))
            connection.execute(
                f"INSERT INTO experts(name, {', '.join(fields)}, added) VALUES ({marks})",
                (expert.name, *values, added or now()),
            )
        elif replace or is_same_file:
            if not is_same_file:
                connection.execute(
                    "DELETE FROM errors WHERE expert = (SELECT id FROM experts WHERE name = ?)", (expert.name,)
                )
            settings = ", ".join(f"{name} = ?" for name in fields)
            connection.execute(f"UPDATE experts SET {settings} WHERE name = ?", (*values, expert.name))
        else:
            other = next(name for name, known, new in zip(fields, row, values, strict=True) if known != new)
            raise ConflictError(
                f"the library has another expert called '{expert.name}' (its {other} differs), and errors were "
                "measured with that one. Give this one a name of its own, or put it in its place: replace=True"
            )
        return Added("expert", expert.name, expert.name, True)

    def keep_error(self, connection: Connection, error: MeasuredError, *, replace: bool = False) -> Added:
        """Keeps a measured error of a task and an expert that are known; another value for it is refused."""
        task = connection.execute("SELECT id, name FROM tasks WHERE fingerprint = ?", (error.task,)).fetchone()
        expert = connection.execute("SELECT id FROM experts WHERE name = ?", (error.expert,)).fetchone()
        for what, name, row in (("task", error.task, task), ("expert", error.expert, expert)):
            if row is None:
                raise NotInLibraryError(
                    f"there is no {what} '{name}' in the library, so an error of it would mean nothing to anybody. Add "
                    f"the {what} first: library.add({what})"
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
        connection.execute(f"DELETE FROM errors WHERE {where}", cell)
        connection.execute(
            "INSERT INTO errors(task, expert, protocol, seed, error, low, high, measured, measured_by) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*cell, error.error, error.low, error.high, error.measured or now(), error.measured_by),
        )
        return Added("error", task[1], error.task, True)


def check_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """The tags, each a text; a single text would be taken for its letters."""
    found = (tags,) if isinstance(tags, str) else tuple(tags)
    for tag in found:
        if not check_text(tag, "tag").strip():
            raise UsageError(f"{tag!r} is no tag: nobody could ask for it. Give texts that are not empty.")
    return found


def now() -> str:
    """This moment in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def load_blob(blobs: Blobs, sha256: str, *, name: str) -> Embedding:
    """The embedding in a blob, under the name that its task has in the library."""
    try:
        embedding = decode_embedding(blobs.read(sha256), blobs.path(sha256))
    except Task2VecError as error:
        raise LibraryError(f"the embedding of '{name}' is damaged: {error}") from error
    return embedding if embedding.task == name else dataclasses.replace(embedding, task=name)


def make_loader(connection: Connection, blobs: Blobs) -> Callable[[int], Embedding | None]:
    """A function that gives the embedding of a number, or None if it was removed or is damaged: `verify` names it."""

    def load(number: int) -> Embedding | None:
        row = connection.execute(
            "SELECT e.sha256, t.name FROM embeddings e JOIN tasks t ON t.id = e.task WHERE e.id = ?", (number,)
        ).fetchone()
        try:
            return None if row is None else load_blob(blobs, row[0], name=row[1])
        except LibraryError:
            return None

    return load


def _keep_space(connection: Connection, space: Space) -> int:
    connection.execute(
        "INSERT OR IGNORE INTO spaces(key, probe, probe_fingerprint, settings, filters) VALUES (?, ?, ?, ?, ?)",
        (space.key, space.probe, space.probe_fingerprint, space.settings, space.filters),
    )
    return connection.execute("SELECT id FROM spaces WHERE key = ?", (space.key,)).fetchone()[0]


def _word_maker(embedding: Embedding) -> str:
    """By what an embedding was made: the usual reasons for other numbers under one key."""
    versions = embedding.provenance.get("versions")
    told = versions if isinstance(versions, dict) else {}
    return f"torch {told.get('torch', '?')} on {embedding.provenance.get('device', 'an unknown device')}"
