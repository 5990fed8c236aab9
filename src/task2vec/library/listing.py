"""Rows of the index become entries, and names become rows."""

import difflib
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from sqlite3 import Connection
from typing import Any

from task2vec.errors import AmbiguousNameError, LibraryError, NotInLibraryError, Task2VecError, UsageError
from task2vec.library.entries import EmbeddingEntry, Expert, MeasuredError, RunEntry, TaskEntry
from task2vec.library.texts import check_text

_SHORTEST = 4  # digits of a fingerprint or key that may stand for the whole
_TASK = "id, fingerprint, name, images, classes, counts, is_multilabel, taxon, source, added"
_EMBEDDING = (
    "e.id, e.key, s.probe, s.probe_fingerprint, e.settings, e.recipe, e.norm, e.cv_error, e.has_halves, e.sha256, "
    "e.bytes, e.added, e.task"
)


@contextmanager
def expecting_rows() -> Iterator[None]:
    """Rows that are no longer what was written say so, instead of failing anyhow."""
    try:
        yield
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        if isinstance(error, Task2VecError) and not isinstance(error, UsageError):
            raise
        raise LibraryError(
            f"a row of the index is damaged ({type(error).__name__}: {error}), so the list cannot be trusted. See what "
            "is damaged: task2vec library verify; then: task2vec library repair"
        ) from error


@expecting_rows()
def list_tasks(connection: Connection, numbers: Sequence[int] | None = None) -> list[TaskEntry]:
    """All tasks with their embeddings and tags by name, or those with the given numbers in that order."""
    if numbers is None:
        rows = connection.execute(f"SELECT {_TASK} FROM tasks ORDER BY name, id").fetchall()
        embeddings = connection.execute(
            f"SELECT {_EMBEDDING} FROM embeddings e JOIN spaces s ON s.id = e.space"
        ).fetchall()
        tags = connection.execute("SELECT task, tag FROM tags").fetchall()
    else:
        text = (json.dumps(list(numbers)),)
        chosen = "(SELECT value FROM json_each(?))"
        rows = connection.execute(f"SELECT {_TASK} FROM tasks WHERE id IN {chosen}", text).fetchall()
        order = {number: place for place, number in enumerate(numbers)}
        rows.sort(key=lambda row: order[row[0]])
        embeddings = connection.execute(
            f"SELECT {_EMBEDDING} FROM embeddings e JOIN spaces s ON s.id = e.space WHERE e.task IN {chosen}", text
        ).fetchall()
        tags = connection.execute(f"SELECT task, tag FROM tags WHERE task IN {chosen}", text).fetchall()
    own_embeddings, own_tags = defaultdict(list), defaultdict(list)
    for *fields, task in sorted(embeddings):
        own_embeddings[task].append(_make_embedding(fields))
    for task, tag in sorted(tags):
        own_tags[task].append(tag)
    return [_make_task(row, own_tags[row[0]], own_embeddings[row[0]]) for row in rows]


@expecting_rows()
def list_experts(connection: Connection) -> list[Expert]:
    """All experts by name."""
    rows = connection.execute(
        "SELECT name, source, location, task, recipe, parameters, input_size, cost, sha256 FROM experts ORDER BY name"
    )
    return [
        Expert(name, source, location, task, json.loads(recipe), *sizes)
        for name, source, location, task, recipe, *sizes in rows
    ]


@expecting_rows()
def list_errors(connection: Connection, protocol: str | None = None) -> list[MeasuredError]:
    """All measured errors, or those of one protocol, by task, expert and seed."""
    rows = connection.execute(
        "SELECT t.fingerprint, x.name, e.error, e.protocol, e.seed, e.low, e.high, e.measured, e.measured_by FROM "
        "errors e JOIN tasks t ON t.id = e.task JOIN experts x ON x.id = e.expert WHERE ? IS NULL OR e.protocol = ? "
        "ORDER BY t.name, t.id, x.name, e.protocol, e.seed",
        (protocol, protocol),
    )
    return [MeasuredError(*row) for row in rows]


@expecting_rows()
def list_runs(connection: Connection) -> list[RunEntry]:
    """What was done, oldest first."""
    rows = connection.execute("SELECT id, what, story, begun, ended, outcome FROM runs ORDER BY id")
    return [RunEntry(row[0], row[1], json.loads(row[2]), *row[3:]) for row in rows]


@expecting_rows()
def count_everything(connection: Connection) -> dict[str, Any]:
    """How many of everything there are, the bytes of all embeddings, and the spaces that these are in."""
    kinds = ("tasks", "embeddings", "experts", "errors", "runs")
    counts = {kind: connection.execute(f"SELECT count(*) FROM {kind}").fetchone()[0] for kind in kinds}
    size = connection.execute("SELECT coalesce(sum(bytes), 0) FROM embeddings").fetchone()[0]
    spaces = connection.execute(
        "SELECT s.probe, s.probe_fingerprint, s.settings, s.filters, count(e.id) FROM spaces s "
        "JOIN embeddings e ON e.space = s.id GROUP BY s.id ORDER BY count(e.id) DESC, s.id"
    ).fetchall()
    names = ("probe", "probe_fingerprint", "settings", "filters", "embeddings")
    told = [dict(zip(names, row, strict=True)) | {"settings": json.loads(row[2])} for row in spaces]
    return {**counts, "bytes": size, "spaces": told}


def find_task(connection: Connection, what: str) -> TaskEntry:
    """The task of that name, or whose fingerprint begins so."""
    found = find_tasks(connection, what)
    if len(found) > 1:
        raise AmbiguousNameError(
            f"{len(found)} tasks of the library are called '{what}', so it is unclear which is meant. Name one by the "
            f"first digits of its fingerprint: {_tell_apart(found)}"
        )
    if not found:
        raise NotInLibraryError(_say_missing(connection, what))
    return found[0]


def find_tasks(connection: Connection, what: str) -> list[TaskEntry]:
    """All tasks of that name; if there is none, those whose fingerprint begins so."""
    check_text(what, "name")
    rows = connection.execute("SELECT id FROM tasks WHERE name = ? ORDER BY id", (what,)).fetchall()
    if not rows and (prefix := _prefix(what)):
        rows = connection.execute(
            "SELECT id FROM tasks WHERE fingerprint >= ? AND fingerprint < ? || 'g' ORDER BY id", (prefix, prefix)
        ).fetchall()
    return list_tasks(connection, [row[0] for row in rows])


def find_embedding(
    connection: Connection, what: str, *, probe: str | None = None, method: str | None = None
) -> tuple[TaskEntry, EmbeddingEntry]:
    """The embedding of a task, or whose key begins so."""
    prefix = _prefix(what)
    if prefix and not find_tasks(connection, what):
        rows = connection.execute(
            "SELECT id, task FROM embeddings WHERE key >= ? AND key < ? || 'g'", (prefix, prefix)
        ).fetchall()
        if len(rows) == 1:
            (task,) = list_tasks(connection, [rows[0][1]])
            return task, next(one for one in task.embeddings if one.id == rows[0][0])
        if rows:
            raise AmbiguousNameError(
                f"the keys of {len(rows)} embeddings begin with '{what}', so it is unclear which is meant. Give more "
                "digits."
            )
    task = find_task(connection, what)
    fitting = [
        one
        for one in task.embeddings
        if (probe is None or probe == one.probe or one.probe_fingerprint.startswith(probe))
        and (method is None or method == one.settings.get("method"))
    ]
    if len(fitting) == 1:
        return task, fitting[0]
    if not task.embeddings:
        raise NotInLibraryError(
            f"the task '{task.name}' is in the library without an embedding. Make one: task2vec embed FOLDER"
        )
    choices = "; ".join(_word_embedding(one) for one in fitting or task.embeddings)
    if not fitting:
        asked = " ".join(part for part in (probe, method) if part)
        raise NotInLibraryError(f"the task '{task.name}' has no embedding by {asked}. It has: {choices}")
    raise AmbiguousNameError(
        f"the task '{task.name}' has {len(fitting)} embeddings, so it is unclear which is meant. Name one by the first "
        f"digits of its key, or choose by --probe and --method: {choices}"
    )


def _word_embedding(entry: EmbeddingEntry) -> str:
    """An embedding in a list of several; probes of one name may differ in weights or image size."""
    probe = f"{entry.probe} {entry.probe_fingerprint[:8]}"
    return f"{entry.key[:8]} ({probe}, {entry.settings.get('method')}, {entry.added[:10]})"


def _tell_apart(tasks: Sequence[TaskEntry]) -> str:
    return "; ".join(f"{task.fingerprint[:8]} ({task.images} images, {task.added[:10]})" for task in tasks)


def _say_missing(connection: Connection, what: str) -> str:
    names = [row[0] for row in connection.execute("SELECT DISTINCT name FROM tasks")]
    if not names:
        return f"there is no '{what}' in the library: it is empty. Put a task into it: task2vec embed FOLDER"
    close = difflib.get_close_matches(what, names, n=3)
    hint = f" Did you mean {' or '.join(repr(name) for name in close)}?" if close else ""
    return f"there is no task '{what}' in the library.{hint} See what there is: task2vec library ls"


def _prefix(what: str) -> str | None:
    """`what` in small letters if it can be the beginning of a fingerprint or key."""
    digits = what.lower()
    return digits if len(digits) >= _SHORTEST and set(digits) <= set("0123456789abcdef") else None


def _make_task(row: Sequence, tags: Sequence[str], embeddings: Sequence[EmbeddingEntry]) -> TaskEntry:
    number, fingerprint, name, images, classes, counts, is_multilabel, taxon, source, added = row
    _check_types(fingerprint, name, source, added, *tags)
    return TaskEntry(
        number, fingerprint, name, images, tuple(json.loads(classes)), tuple(json.loads(counts)), bool(is_multilabel),
        taxon, source, added, tuple(tags), tuple(embeddings),
    )  # fmt: skip


def _make_embedding(row: Sequence) -> EmbeddingEntry:
    number, key, probe, fingerprint, settings, recipe, norm, cv_error, has_halves, sha256, size, added = row
    _check_types(key, probe, fingerprint, sha256, added)
    return EmbeddingEntry(
        number, key, probe, fingerprint, json.loads(settings), recipe, norm, cv_error, bool(has_halves), sha256, size,
        added,
    )  # fmt: skip


def _check_types(*texts: object) -> None:
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{type(text).__name__} instead of a text")
