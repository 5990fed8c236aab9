"""Sharing: a library, or a part of it, as one file; and merging of such a file or of another library.

The exported file has no file names, no compression and no code in it: a line with the format, the length and SHA-256 of
a JSON text, that text, and the embeddings one after the other, in the order and with the lengths and hashes that the
text lists. So there is nothing to unpack and no path to escape to, and the length of the file is known beforehand.
"""

import hashlib
import json
import os
import re
import stat
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from sqlite3 import Connection
from typing import Any, BinaryIO

from task2vec.embedding import Embedding
from task2vec.embedding.embedding import decode_embedding
from task2vec.errors import ConflictError, LibraryError, Task2VecError, UsageError
from task2vec.library import tables
from task2vec.library.database import Database
from task2vec.library.entries import Expert, MeasuredError, TaskEntry, check_text, identify_with_task, read_task
from task2vec.library.search import Search
from task2vec.progress import Report, silent
from task2vec.storage import open_output

MAGIC = b"task2vec library 1\n"
SUFFIX = ".t2vlib"
_LARGEST_TEXT = 1 << 28
_MOST_VALUES = 1 << 24  # of that text: each takes some 70 bytes of memory
_TOGETHER = 64  # embeddings that are added in one transaction: others may write in between
_TASK = ("fingerprint", "name", "images", "classes", "counts", "is_multilabel", "tags", "taxon", "added")


@dataclass(frozen=True)
class Shared:
    """What is in an exported file or another library.

    Attributes:
        origin: where it comes from, for messages.
        tasks: of all embeddings, and those without.
        experts: all of them.
        errors: all of them.
        embeddings: SHA-256, length and moment of adding of each, in the order of their contents.
        read: gives the bytes of the embedding at that place.
    """

    origin: str
    tasks: Sequence[TaskEntry]
    experts: Sequence[Expert]
    errors: Sequence[MeasuredError]
    embeddings: Sequence[Mapping[str, Any]]
    read: Callable[[int], bytes]

    def load(self, place: int) -> Embedding:
        """The embedding at that place, checked."""
        sha256, content = self.embeddings[place]["sha256"], self.read(place)
        name = f"{self.origin}, embedding {place + 1}"
        if hashlib.sha256(content).hexdigest() != sha256:
            raise LibraryError(f"{name} ({sha256[:8]}) is damaged: its SHA-256 differs. Ask for a good copy.")
        return decode_embedding(content, name)


@dataclass
class Merged:
    """The outcome of a merge.

    Attributes:
        added: how many of each kind were new.
        known: how many were here already.
        conflicts: what is here under the same key with another content, and was left as it is.
    """

    added: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("task", "embedding", "expert", "error"), 0))
    known: int = 0
    conflicts: list[str] = field(default_factory=list)


def share_library(connection: Connection, origin: str, *, tag: str | None = None) -> Shared:
    """All that the connection's snapshot has, or the tasks with a tag and what was measured for them."""
    tasks = [task for task in tables.list_tasks(connection) if tag is None or tag in task.tags]
    chosen = {task.fingerprint for task in tasks}
    errors = [error for error in tables.list_errors(connection) if error.task in chosen]
    needed = {error.expert for error in errors}
    experts = [one for one in tables.list_experts(connection) if tag is None or one.name in needed]
    every = [one for task in tasks for one in task.embeddings]
    lengths = dict(connection.execute("SELECT embedding, length(content) FROM contents"))
    listed = [{"sha256": one.sha256, "bytes": lengths.get(one.id, 0), "added": one.added} for one in every]
    own = [replace(task, source="") for task in tasks]  # a path on this machine

    def read(place: int) -> bytes:
        return tables.read_content(connection, every[place].id, every[place].sha256)

    return Shared(origin, own, experts, errors, listed, read)


def write_export(shared: Shared, path: Path, *, report: Report = silent) -> Path:
    """Writes it to one file, whole or not at all."""
    fields = {
        "tasks": [{name: getattr(task, name) for name in _TASK} for task in shared.tasks],
        "experts": [asdict(expert) for expert in shared.experts],
        "errors": [asdict(error) for error in shared.errors],
        "embeddings": shared.embeddings,
    }
    text = json.dumps(fields, sort_keys=True, allow_nan=False).encode()
    if len(text) > _LARGEST_TEXT or _count_values(text) > _MOST_VALUES:
        raise UsageError(
            f"the list of {len(shared.tasks)} tasks is too long for one file, and could not be imported. Export parts "
            "of the library: tag=..., --tag TAG"
        )
    step = report("exporting", len(shared.embeddings))
    with open_output(path) as file:
        file.write(MAGIC + struct.pack("<Q", len(text)) + hashlib.sha256(text).digest() + text)
        for place in range(len(shared.embeddings)):
            file.write(shared.read(place))
            step(1)
    return path


@contextmanager
def open_export(path: Path) -> Iterator[Shared]:
    """The content of an exported file; `check_shared` reads it to its end."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for ever
            raise _refuse(f"'{path}'", "it is not a regular file")
        with path.open("rb") as file:
            yield _read_list(path, file)
    except OSError as error:
        if isinstance(error, Task2VecError):
            raise
        raise LibraryError(f"cannot read '{path}': {error.strerror}. Check the path.") from error


def check_shared(shared: Shared, *, report: Report = silent) -> None:
    """Raises an error that names the first thing that is not as it should be."""
    listed = {task.fingerprint for task in shared.tasks}
    step = report("checking", len(shared.embeddings))
    for place in range(len(shared.embeddings)):
        try:
            fingerprint = identify_with_task(shared.load(place))[0].fingerprint
        except Task2VecError as error:
            raise LibraryError(f"{shared.origin} was refused, and nothing of it was imported: {error}") from error
        if fingerprint not in listed:
            raise _refuse(shared.origin, f"embedding {place + 1} is of a task that is not listed")
        step(1)
    experts = {expert.name for expert in shared.experts}
    for error in shared.errors:
        if error.task not in listed or error.expert not in experts:
            raise _refuse(shared.origin, f"the task or expert of an error is not listed ({error.expert!r})")


def merge(shared: Shared, database: Database, search: Search, *, report: Report = silent) -> Merged:
    """Adds what is new in something that was checked, and names what is here with another content.

    A task comes in one transaction with its first embedding: a process that is killed leaves no tasks without.
    """
    merged, left = Merged(), {task.fingerprint: task for task in shared.tasks}

    def add(thing: Any, **options: Any) -> bool:
        try:
            added = tables.write(connection, search, thing, **options)
        except ConflictError as error:
            merged.conflicts.append(str(error))
            return False
        merged.known += not added.is_new
        merged.added[added.kind] += added.is_new
        return True

    step = report("importing", len(shared.embeddings))
    for start in range(0, len(shared.embeddings), _TOGETHER):
        places = range(start, min(start + _TOGETHER, len(shared.embeddings)))
        with database.write() as connection:
            for place in places:
                embedding = shared.load(place)
                if task := left.pop(identify_with_task(embedding)[0].fingerprint, None):
                    add(task)
                add(embedding, added=shared.embeddings[place]["added"])
        step(len(places))
    with database.write() as connection:
        for task in left.values():
            add(task)
        others = {expert.name for expert in shared.experts if not add(expert)}
        for error in shared.errors:
            if error.expert not in others:
                add(error)
            else:
                what = f"an error measured with '{error.expert}' was left out: the name belongs to another expert here."
                merged.conflicts.append(f"{what} Rename one of them, and merge again.")
    return merged


def _read_list(path: Path, file: BinaryIO) -> Shared:
    """The list of an exported file, checked; its embeddings are not yet read."""
    origin, size, start = f"'{path}'", os.fstat(file.fileno()).st_size, len(MAGIC) + 8 + 32
    head = file.read(start)
    if not head.startswith(MAGIC[:-2]):
        raise _refuse(origin, f"it was not written by `task2vec library export` (such a file ends in {SUFFIX})")
    if not head.startswith(MAGIC):
        raise LibraryError(f"{origin} was exported by a newer task2vec. Upgrade: pip install -U task2vec")
    if len(head) < start:
        raise _refuse(origin, "it is truncated")
    (length,) = struct.unpack("<Q", head[len(MAGIC) : len(MAGIC) + 8])
    if length > min(_LARGEST_TEXT, size - start):
        raise _refuse(origin, f"its list would have {length} bytes, more than there are or than are allowed")
    text = file.read(length)
    if hashlib.sha256(text).digest() != head[-32:]:
        raise _refuse(origin, "its list was changed after it was written")
    if _count_values(text) > _MOST_VALUES:
        raise _refuse(origin, "its list would fill the memory")
    try:
        fields = json.loads(text)
        tasks = [read_task({name: one[name] for name in _TASK}) for one in fields["tasks"]]
        experts = [Expert(**one) for one in fields["experts"]]
        errors = [MeasuredError(**one) for one in fields["errors"]]
        sizes = [_check_embedding(**one) for one in fields["embeddings"]]
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _refuse(origin, f"its list is not valid ({type(error).__name__}: {error})") from error
    ends = [start + length, *(start + length + end for end in accumulate(sizes))]
    if ends[-1] != size:
        raise _refuse(origin, f"it has {size} bytes, and should have {ends[-1]} by its list")

    def read(place: int) -> bytes:
        file.seek(ends[place])
        return file.read(sizes[place])

    return Shared(origin, tasks, experts, errors, fields["embeddings"], read)


def _check_embedding(*, sha256: str, bytes: int, added: str | None) -> int:
    """The length of a listed embedding, whose values are checked."""
    check_text(added, "added", may_be_none=True)
    if not re.fullmatch("[0-9a-f]{64}", sha256) or type(bytes) is not int or not 0 < bytes <= tables.LARGEST:
        raise ValueError(f"an embedding of {bytes} bytes with the SHA-256 {sha256!r:.80}")
    return bytes


def _count_values(text: bytes) -> int:
    """At least the number of values in a JSON text."""
    return sum(text.count(sign) for sign in (b",", b"[", b"{"))


def _refuse(origin: str, why: str) -> LibraryError:
    return LibraryError(f"{origin} was refused, and nothing of it was imported: {why}. Ask for a good copy.")
