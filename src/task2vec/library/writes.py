"""Adding to a library, inside a transaction of the caller.

What is there already under the same key is left alone if it is the same, and refused if it is not.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from sqlite3 import Connection

from task2vec.embedding import Embedding
from task2vec.embedding.embedding import decode_embedding, encode_embedding
from task2vec.errors import ConflictError, DataError, LibraryError, NotInLibraryError, Task2VecError
from task2vec.library.database import read_blob
from task2vec.library.entries import Added, Expert, MeasuredError, TaskEntry, check_text, to_json
from task2vec.library.identity import describe_space, identify_with_task, is_same_vector
from task2vec.library.search import Search

LARGEST = 1 << 28  # bytes of an embedding; one of a million filters has 40 MB
_FIX = "List all damage: task2vec library verify; then embed the task again, or import a good copy."
_EXPERT = ("source", "location", "task", "recipe", "parameters", "input_size", "cost", "sha256")


def now() -> str:
    """This moment in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_content(connection: Connection, number: int, sha256: str) -> bytes:
    """The bytes of the embedding with that id.

    Raises:
        LibraryError: They are missing, unreadable, or have another SHA-256.
    """
    content = read_blob(connection, "contents", "content", number)
    if content is None:
        raise LibraryError(f"the content of embedding {number} is missing or unreadable. {_FIX}")
    if hashlib.sha256(content).hexdigest() != sha256:
        raise LibraryError(f"embedding {number} was changed after it was saved: its SHA-256 differs. {_FIX}")
    return content


def read_embedding(connection: Connection, number: int, sha256: str, *, name: str) -> Embedding:
    """The embedding with that id, under the name that its task has in the library."""
    try:
        embedding = decode_embedding(read_content(connection, number, sha256), f"embedding {number}")
    except Task2VecError as error:
        raise LibraryError(f"the embedding of '{name}' is damaged: {error}") from error
    return embedding if embedding.task == name else dataclasses.replace(embedding, task=name)


def make_loader(connection: Connection) -> Callable[[int], Embedding | None]:
    """A function that returns the embedding of an id, or None if it was removed or is damaged: `verify` names it."""

    def load(number: int) -> Embedding | None:
        row = connection.execute(
            "SELECT e.sha256, t.name FROM embeddings e JOIN tasks t ON t.id = e.task WHERE e.id = ?", (number,)
        ).fetchone()
        try:
            return None if row is None else read_embedding(connection, number, row[0], name=row[1])
        except LibraryError:
            return None

    return load


def write_embedding(
    connection: Connection, search: Search, embedding: Embedding, about: TaskEntry | None = None, *,
    replace: bool = False, added: str | None = None,
) -> Added:  # fmt: skip
    """Adds an embedding with its task, which gets the tags, taxon and source of `about`."""
    task, own = identify_with_task(embedding)
    if about is not None:
        task = dataclasses.replace(task, tags=about.tags, taxon=about.taxon, source=about.source)
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
         own.norm, own.cv_error, own.has_halves, added or now()),
    ).lastrowid  # fmt: skip
    assert number is not None
    connection.execute("INSERT INTO contents VALUES (?, ?)", (number, content))
    search.enter(connection, space, number, embedding)
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
             task.is_multilabel, task.taxon, task.source, task.added or now()),
        ).lastrowid  # fmt: skip
    else:
        number = row[0]
        # Only what changes is written, so that adding the very same again leaves every byte as it was.
        if task.taxon:
            update = "UPDATE tasks SET taxon = ? WHERE id = ? AND taxon IS NULL"
            connection.execute(update, (task.taxon, number))
        if task.source:
            connection.execute("UPDATE tasks SET source = ? WHERE id = ? AND source = ''", (task.source, number))
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
    if row is None:
        connection.execute(
            f"INSERT INTO experts(name, {', '.join(_EXPERT)}, added) VALUES ({', '.join('?' * (len(_EXPERT) + 2))})",
            (expert.name, *new, now()),
        )
    elif replace or is_same_file:
        if not is_same_file:
            connection.execute(
                "DELETE FROM errors WHERE expert = (SELECT id FROM experts WHERE name = ?)", (expert.name,)
            )
        updates = ", ".join(f"{name} = ?" for name in _EXPERT)
        connection.execute(f"UPDATE experts SET {updates} WHERE name = ?", (*new, expert.name))
    else:
        other = next(name for name, old, value in zip(_EXPERT, row, new, strict=True) if old != value)
        raise ConflictError(
            f"the library has another expert called '{expert.name}' (its {other} differs), and errors were measured "
            "with that one. Give this one a name of its own, or replace the other: replace=True"
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
    connection.execute(f"DELETE FROM errors WHERE {where}", cell)
    connection.execute(
        "INSERT INTO errors(task, expert, protocol, seed, error, low, high, measured, measured_by) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*cell, error.error, error.low, error.high, error.measured or now(), error.measured_by),
    )
    return Added("error", task[1], error.task, True)
