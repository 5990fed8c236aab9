"""The tables of a library: reading them as entries, and adding to them inside a transaction of the caller.

What is there already under the same key is left alone if it is the same, and refused if it is not.
"""

import difflib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from dataclasses import replace as change
from datetime import UTC, datetime
from sqlite3 import Connection
from types import UnionType
from typing import Any, Literal, TypeVar, get_origin, get_type_hints

from task2vec import errors
from task2vec.embedding import Embedding
from task2vec.embedding.embedding import decode_embedding, encode_embedding
from task2vec.library import entries
from task2vec.library.database import MAX_BYTES, read_blob
from task2vec.library.entries import Added, EmbeddingEntry, Expert, MeasuredError, RunEntry, TaskEntry
from task2vec.library.search import add_to_search

_FIX = "List all damage: task2vec library verify; then embed the task again, or import a good copy."
_AMBIGUOUS = "{}, so the name is ambiguous. Name one by the first digits of its {}: {}"
_MIN_DIGITS = 4  # digits of a fingerprint or key that may stand for the whole
_TAGS = "(SELECT json_group_array(tag) FROM (SELECT tag FROM tags WHERE task = t.id ORDER BY tag))"
_IDS = "(SELECT json_group_array(id) FROM (SELECT id FROM embeddings WHERE task = t.id ORDER BY id))"
# Columns that are kept as JSON texts or integers, and what makes values of them; `recipe` is a number of an embedding.
_CONVERT: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("settings", "details"), json.loads),
    **dict.fromkeys(("classes", "counts", "tags"), lambda text: tuple(json.loads(text))),
    **dict.fromkeys(("is_multilabel", "has_halves"), bool),
    "recipe": lambda value: json.loads(value) if isinstance(value, str) else value,
}
Entry = TypeVar("Entry", TaskEntry, EmbeddingEntry, Expert, MeasuredError, RunEntry, dict)


# --- reading ---------------------------------------------------------------------------------------------------------


@contextmanager
def expect_sound_rows() -> Iterator[None]:
    """Turns whatever a damaged row of a table raises into a errors.LibraryError."""
    try:
        yield
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        if isinstance(error, errors.Task2VecError) and not isinstance(error, errors.UsageError):
            raise
        raise errors.LibraryError(
            f"a row of the library is damaged ({type(error).__name__}: {error}), so the list cannot be trusted. "
            "List what is damaged: task2vec library verify; then run: task2vec library repair"
        ) from error


@expect_sound_rows()
def read_rows(
    connection: Connection, kind: type[Entry], query: str, *values: object, **convert: Callable[[Any], Any]
) -> list[Entry]:
    """The rows of a query, whose columns are named like the attributes of `kind`, each of its type; or as dictionaries.

    They are converted and checked by column, which takes half the time of doing so by row.
    """
    cursor = connection.execute(query, values)
    names, hints, convert = [column[0] for column in cursor.description], get_type_hints(kind), _CONVERT | convert
    columns: dict[str, Sequence[Any]] = dict(zip(names, zip(*cursor, strict=True), strict=False))  # none without rows
    for name in columns:
        if name in convert:
            columns[name] = [*map(convert[name], columns[name])]
        hint = hints.get(name, object)
        expected = hint if isinstance(hint, UnionType) else get_origin(hint) or hint
        for actual in set(map(type, columns[name])):
            if expected is not Literal and not issubclass(actual, expected):
                raise TypeError(f"{name} is of type {actual.__name__}")
    return [kind(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]


def list_tasks(connection: Connection, condition: str = "1", *values: object) -> list[TaskEntry]:
    """All tasks with their embeddings and tags, by name; or those of the table t for which a condition holds."""
    names = [field.name for field in fields(EmbeddingEntry)]
    columns = ", ".join(f"{'s' if name.startswith('probe') else 'e'}.{name}" for name in names)
    joined = "embeddings e JOIN tasks t ON t.id = e.task JOIN spaces s ON s.id = e.space"
    embeddings = read_rows(connection, EmbeddingEntry, f"SELECT {columns} FROM {joined} WHERE {condition}", *values)
    by_id = {entry.id: entry for entry in embeddings}

    def find(ids: str) -> tuple[EmbeddingEntry, ...]:
        return tuple(by_id[number] for number in json.loads(ids) if number in by_id)

    query = f"SELECT t.*, {_TAGS} AS tags, {_IDS} AS embeddings FROM tasks t WHERE {condition} ORDER BY t.name, t.id"
    return read_rows(connection, TaskEntry, query, *values, embeddings=find)


def list_experts(connection: Connection) -> list[Expert]:
    """All experts by name."""
    columns = ", ".join(field.name for field in fields(Expert))
    return read_rows(connection, Expert, f"SELECT {columns} FROM experts ORDER BY name")


def list_errors(connection: Connection, protocol: str | None = None) -> list[MeasuredError]:
    """All measured errors, or those of one protocol, by task, expert and seed."""
    query = (
        "SELECT t.fingerprint AS task, x.name AS expert, e.error, e.protocol, e.seed, e.low, e.high, e.measured, "
        "e.measured_by FROM errors e JOIN tasks t ON t.id = e.task JOIN experts x ON x.id = e.expert "
        "WHERE e.protocol = coalesce(?, e.protocol) ORDER BY t.name, t.id, x.name, e.protocol, e.seed"
    )
    return read_rows(connection, MeasuredError, query, protocol)


def find_task(connection: Connection, text: str) -> TaskEntry:
    """The task of that name, or whose fingerprint begins so."""
    tasks = find_tasks(connection, text)
    if len(tasks) > 1:
        choices = "; ".join(f"{task.fingerprint[:8]} ({task.images} images, {task.added[:10]})" for task in tasks)
        problem = f"{len(tasks)} tasks of the library are called '{text}'"
        raise errors.AmbiguousNameError(_AMBIGUOUS.format(problem, "fingerprint", choices))
    if not tasks:
        names = [name for (name,) in connection.execute("SELECT DISTINCT name FROM tasks")]
        close = " or ".join(map(repr, difflib.get_close_matches(text, names, n=3)))
        hint = f" Did you mean {close}?" if close else ""
        rest = f".{hint} List all tasks: task2vec library ls" if names else ": it is empty. Add: task2vec embed FOLDER"
        raise errors.NotInLibraryError(f"there is no task '{text}' in the library{rest}")
    return tasks[0]


def find_tasks(connection: Connection, text: str) -> list[TaskEntry]:
    """All tasks of that name; if there is none, those whose fingerprint begins so."""
    tasks = list_tasks(connection, "t.name = ?", entries.check_text(text, "name"))
    prefix = text.lower()
    if not tasks and entries.is_hash(prefix, digits=_MIN_DIGITS):
        tasks = list_tasks(connection, "t.fingerprint >= ? AND t.fingerprint < ? || 'g'", prefix, prefix)
    return tasks


def find_embedding(
    connection: Connection, text: str, *, probe: str | None = None, method: str | None = None
) -> tuple[TaskEntry, EmbeddingEntry]:
    """The embedding of a task, or whose key begins so."""
    prefix = text.lower()
    if entries.is_hash(prefix, digits=_MIN_DIGITS) and not find_tasks(connection, text):
        condition = "t.id IN (SELECT task FROM embeddings WHERE key >= ? AND key < ? || 'g')"
        tasks = list_tasks(connection, condition, prefix, prefix)
        pairs = [(task, entry) for task in tasks for entry in task.embeddings if entry.key.startswith(prefix)]
        if len(pairs) == 1:
            return pairs[0]
        if pairs:
            raise errors.AmbiguousNameError(
                f"the keys of {len(pairs)} embeddings begin with '{text}', so it is ambiguous. Give more digits."
            )
    task = find_task(connection, text)
    matches = [
        entry
        for entry in task.embeddings
        if (probe is None or probe == entry.probe or entry.probe_fingerprint.startswith(probe))
        and (method is None or method == entry.settings.get("method"))
    ]
    if len(matches) == 1:
        return task, matches[0]
    choices = "; ".join(  # probes of one name may differ in weights or image size
        f"{entry.key[:8]} ({entry.probe} {entry.probe_fingerprint[:8]}, {entry.settings.get('method')}, "
        f"{entry.added[:10]})"
        for entry in matches or task.embeddings
    )
    if matches:
        problem = f"the task '{task.name}' has {len(matches)} embeddings"
        raise errors.AmbiguousNameError(_AMBIGUOUS.format(problem, "key", choices))
    asked = " ".join(filter(None, (probe, method)))
    raise errors.NotInLibraryError(
        f"the task '{task.name}' has no embedding by {asked}. It has: {choices}"
        if choices
        else f"the task '{task.name}' is in the library without an embedding. Embed it: task2vec embed FOLDER"
    )


def read_content(connection: Connection, number: int, sha256: str) -> bytes:
    """The bytes of the embedding with that id.

    Raises:
        LibraryError: They are missing, unreadable, or have another SHA-256.
    """
    content = read_blob(connection, "contents", "content", number)
    if content is None:
        raise errors.LibraryError(f"the content of embedding {number} is missing or unreadable. {_FIX}")
    if hashlib.sha256(content).hexdigest() != sha256:
        raise errors.LibraryError(f"embedding {number} was changed after it was saved: its SHA-256 differs. {_FIX}")
    return content


def read_embedding(connection: Connection, number: int, sha256: str, *, name: str) -> Embedding:
    """The embedding with that id, under the name that its task has in the library."""
    try:
        embedding = decode_embedding(read_content(connection, number, sha256), f"embedding {number}")
    except errors.Task2VecError as error:
        raise errors.LibraryError(f"the embedding of '{name}' is damaged: {error}") from error
    return embedding if embedding.task == name else change(embedding, task=name)


def load_embedding(connection: Connection, column: str, value: object) -> Embedding | None:
    """The embedding with that id or key; None if there is none, or if it is damaged."""
    query = "SELECT e.id, e.sha256, t.name FROM embeddings e JOIN tasks t ON t.id = e.task"
    row = connection.execute(f"{query} WHERE e.{column} = ?", (value,)).fetchone()
    try:
        return None if row is None else read_embedding(connection, row[0], row[1], name=row[2])
    except errors.LibraryError:
        return None


# --- adding ----------------------------------------------------------------------------------------------------------


def write(
    connection: Connection,
    thing: Any,
    *,
    about: Mapping[str, Any] | None = None,
    replace: bool = False,
    added: str | None = None,
) -> Added:
    """Adds an embedding, task, expert or measured error; `about` has fields of the task, see `Library.add`."""
    if isinstance(thing, Embedding):
        return _write_embedding(connection, thing, about or {}, replace, added)
    if isinstance(thing, Expert):
        return _write_expert(connection, thing, replace)
    if isinstance(thing, MeasuredError):
        return _write_error(connection, thing, replace)
    if hasattr(thing, "fingerprint") and hasattr(thing, "targets"):
        thing = entries.describe_task(thing)
    if isinstance(thing, TaskEntry):
        return _write_task(connection, change(thing, **about or {}))[0]
    raise errors.UsageError(
        f"a {type(thing).__name__} cannot be added to a library. Add embeddings, tasks, experts or measured errors."
    )


def insert(connection: Connection, table: str, values: Mapping[str, Any], *, unique: str = "") -> int:
    """Adds a row, or changes the one that has the same values in the columns `unique`; returns its id."""
    statement = f"INSERT INTO {table}({', '.join(values)}) VALUES ({', '.join('?' * len(values))})"
    if unique:
        changes = ", ".join(f"{name} = excluded.{name}" for name in values)
        statement += f" ON CONFLICT({unique}) DO UPDATE SET {changes}"
    return connection.execute(statement, tuple(values.values())).lastrowid or 0


def _write_embedding(
    connection: Connection, embedding: Embedding, about: Mapping, replace: bool, added: str | None
) -> Added:
    """Adds an embedding with its task."""
    task, entry = entries.identify_with_task(embedding)
    content = encode_embedding(embedding)
    if len(content) > MAX_BYTES:
        raise errors.DataError(
            f"the embedding has {len(content)} bytes, but a library accepts at most {MAX_BYTES}. Save it as a file: "
            "embedding.save(FILE)"
        )
    task = change(task, **about)
    sha256 = hashlib.sha256(content).hexdigest()
    row = connection.execute("SELECT id, sha256 FROM embeddings WHERE key = ?", (entry.key,)).fetchone()
    if row is not None:
        known = load_embedding(connection, "id", row[0])  # a damaged one is replaced
        if known is not None and (sha256 == row[1] if replace else entries.is_same_vector(known, embedding)):
            return Added("embedding", _write_task(connection, task)[0].name, entry.key, False)
        if known is not None and not replace:
            raise errors.ConflictError(
                f"the library has another embedding of '{known.task}' with the same images, probe and settings "
                f"({entry.key[:8]}), and its numbers differ: that one was made with {_format_maker(known)}, this one "
                f"with {_format_maker(embedding)}. It was not overwritten. To take the new one instead: replace=True, "
                "--force"
            )
        delete_embedding(connection, row[0])
    known_as, task_id = _write_task(connection, task)
    key, scaling = entries.describe_space(embedding)
    connection.execute(
        "INSERT OR IGNORE INTO spaces(key, probe, probe_fingerprint, settings, filters) VALUES (?, ?, ?, ?, ?)",
        (key, embedding.probe, embedding.probe_fingerprint, scaling, len(embedding)),
    )
    (space,) = connection.execute("SELECT id FROM spaces WHERE key = ?", (key,)).fetchone()
    values = {name: getattr(entry, name) for name in ("key", "recipe", "norm", "cv_error", "has_halves")}
    values |= {
        "task": task_id,
        "space": space,
        "settings": entries.to_json(entry.settings, "settings"),
        "sha256": sha256,
    }
    number = insert(connection, "embeddings", values | {"bytes": len(content), "added": added or now()})
    insert(connection, "contents", {"embedding": number, "content": content})
    add_to_search(connection, space, number, embedding)
    return Added("embedding", known_as.name, entry.key, True)


def delete_embedding(connection: Connection, number: int) -> None:
    """Removes an embedding and all that is derived from it."""
    connection.execute("DELETE FROM embeddings WHERE id = ?", (number,))


def _format_maker(embedding: Embedding) -> str:
    """The version and device that an embedding was made with: the usual reasons for other numbers under one key."""
    versions = embedding.provenance.get("versions")
    version = versions.get("torch", "?") if isinstance(versions, dict) else "?"
    return f"torch {version} on {embedding.provenance.get('device', 'an unknown device')}"


def _write_task(connection: Connection, task: TaskEntry) -> tuple[Added, int]:
    """Adds a task; a known one keeps its name, and gets the tags, taxon and source that it lacks. Also its id."""
    row = connection.execute("SELECT id, name FROM tasks WHERE fingerprint = ?", (task.fingerprint,)).fetchone()
    if row is None:
        names = ("fingerprint", "name", "images", "is_multilabel", "taxon", "source")
        values = {name: getattr(task, name) for name in names} | {"added": task.added or now()}
        values |= {name: json.dumps(getattr(task, name)) for name in ("classes", "counts")}
        number = insert(connection, "tasks", values)
        name = task.name
    else:
        number, name = row
        connection.execute(  # only what changes: adding the very same again leaves every byte as it was
            "UPDATE tasks SET taxon = coalesce(taxon, :taxon), source = iif(source = '', :source, source) "
            "WHERE id = :id AND (taxon IS NULL AND :taxon IS NOT NULL OR source = '' AND :source != '')",
            {"id": number, "taxon": task.taxon, "source": task.source},
        )
    connection.executemany("INSERT OR IGNORE INTO tags VALUES (?, ?)", ((number, tag) for tag in task.tags))
    return Added("task", name, task.fingerprint, row is None), number


def _write_expert(connection: Connection, expert: Expert, replace: bool) -> Added:
    """Adds an expert; another one of the same name is refused, or replaced together with the errors measured on it.

    Another location of the very same file is an update, not another expert.
    """
    new = asdict(expert) | {"recipe": entries.to_json(dict(expert.recipe), "recipe")}
    new["cost"] = None if expert.cost is None else float(expert.cost)
    row = connection.execute(f"SELECT id, {', '.join(new)} FROM experts WHERE name = ?", (expert.name,)).fetchone()
    if row is not None:
        changed = [name for name, old, value in zip(new, row[1:], new.values(), strict=True) if old != value]
        if not changed:
            return Added("expert", expert.name, expert.name, False)
        if expert.sha256 is None or "sha256" in changed:
            if not replace:
                raise errors.ConflictError(
                    f"the library has another expert called '{expert.name}' (its {changed[0]} differs), and errors "
                    "were measured with that one. Give this one a name of its own, or replace the other: replace=True"
                )
            connection.execute("DELETE FROM errors WHERE expert = ?", row[:1])
    insert(connection, "experts", new | {"added": now()}, unique="name")
    return Added("expert", expert.name, expert.name, True)


def _write_error(connection: Connection, error: MeasuredError, replace: bool) -> Added:
    """Adds a measured error of a task and an expert that are in the library; another value for it is refused."""
    task = connection.execute("SELECT id, name FROM tasks WHERE fingerprint = ?", (error.task,)).fetchone()
    expert = connection.execute("SELECT id FROM experts WHERE name = ?", (error.expert,)).fetchone()
    if task is None or expert is None:
        kind, name = ("task", error.task) if task is None else ("expert", error.expert)
        raise errors.NotInLibraryError(
            f"there is no {kind} '{name}' in the library, so its error cannot be assigned. Add the {kind} first: "
            f"library.add({kind})"
        )
    values = asdict(error) | {"task": task[0], "expert": expert[0], "measured": error.measured or now()}
    cell = "task = :task AND expert = :expert AND protocol = :protocol AND seed = :seed"
    row = connection.execute(f"SELECT error, low, high FROM errors WHERE {cell}", values).fetchone()
    if row == (error.error, error.low, error.high):
        return Added("error", task[1], error.task, False)
    if row is not None and not replace:
        raise errors.ConflictError(
            f"the library has the error {row[0]:.4f} for the task '{task[1]}' on the expert '{error.expert}' "
            f"({error.protocol}, seed {error.seed}), and this one is {error.error:.4f}. It was not overwritten. To "
            "take the new one: replace=True"
        )
    insert(connection, "errors", values, unique="task, expert, protocol, seed")
    return Added("error", task[1], error.task, True)


def now() -> str:
    """This moment in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
