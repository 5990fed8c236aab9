"""Libraries become one file and are merged.

The file has no names of files in it, no compression and no code: a line that says what it is, the length and SHA-256 of
a JSON text, that text, and the blobs one after the other, in the order and with the lengths and hashes that the text
gives. So there is nothing to unfold and nowhere to escape to, and the length of the file is known before it is read.
"""

import hashlib
import json
import os
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from sqlite3 import Connection
from typing import Any, BinaryIO

from task2vec.embedding import Embedding
from task2vec.embedding.embedding import decode_embedding
from task2vec.errors import ConflictError, LibraryError, ResourceError, Task2VecError, UsageError
from task2vec.library import listing
from task2vec.library.blobs import LARGEST, Blobs
from task2vec.library.database import Database
from task2vec.library.entries import Added, Expert, MeasuredError
from task2vec.library.identity import TaskFacts, identify, read_facts
from task2vec.library.keeping import Keeper, Note, check_tags
from task2vec.library.texts import check_text
from task2vec.progress import Report, silent
from task2vec.storage import open_whole

MAGIC = b"task2vec library 1\n"
SUFFIX = ".t2vlib"
_LARGEST_TEXT = 1 << 28
_MOST_VALUES = 1 << 24  # of that text: each takes some 70 bytes of memory
_TOGETHER = 64  # embeddings that are entered in one transaction: others may write in between


@dataclass(frozen=True)
class Sent:
    """An embedding in a parcel: the hash and length of its blob, and when it was first added."""

    sha256: str
    bytes: int
    added: str | None


@dataclass(frozen=True)
class Parcel:
    """What is in a library, on its way to another one.

    Attributes:
        origin: where it comes from, for the words of an error.
        tasks: with what is noted of them; those of the embeddings, too.
        experts: all of them.
        errors: all of them.
        embeddings: in the order of their blobs.
        read: gives the bytes of the embedding of that number.
    """

    origin: str
    tasks: tuple[tuple[TaskFacts, Note], ...]
    experts: tuple[Expert, ...]
    errors: tuple[MeasuredError, ...]
    embeddings: tuple[Sent, ...]
    read: Callable[[int], bytes]

    def load(self, number: int) -> Embedding:
        """The embedding of that number, checked."""
        sent = self.embeddings[number]
        place = f"{self.origin}, embedding {number + 1}"
        content = self.read(number)
        if len(content) != sent.bytes or hashlib.sha256(content).hexdigest() != sent.sha256:
            raise LibraryError(f"{place} ({sent.sha256[:8]}) is damaged: its SHA-256 does not fit. {_MEND}")
        return decode_embedding(content, place)


@dataclass
class Merged:
    """What a merge brought.

    Attributes:
        added: how many of each kind were new.
        known: how many were here already.
        conflicts: what is here under the same key with another content, which was left as it is.
    """

    added: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("task", "embedding", "expert", "error"), 0))
    known: int = 0
    conflicts: list[str] = field(default_factory=list)


def pack(connection: Connection, blobs: Blobs, *, tag: str | None = None) -> Parcel:
    """All that a library has, or the tasks with a tag and what was measured for them."""
    entries = [task for task in listing.list_tasks(connection) if tag is None or tag in task.tags]
    chosen = {task.fingerprint for task in entries}
    errors = [error for error in listing.list_errors(connection) if error.task in chosen]
    needed = {error.expert for error in errors}
    experts = [one for one in listing.list_experts(connection) if tag is None or one.name in needed]
    sent = [one for task in entries for one in task.embeddings]
    tasks = [
        (
            TaskFacts(task.fingerprint, task.name, task.images, task.classes, task.counts, task.is_multilabel),
            Note(task.tags, task.taxon, "", task.added),
        )
        for task in entries
    ]
    return Parcel(
        f"'{blobs.folder.parent}'",
        tuple(tasks),
        tuple(experts),
        tuple(errors),
        tuple(Sent(one.sha256, one.bytes, one.added) for one in sent),
        lambda number: blobs.read(sent[number].sha256),
    )


def write_parcel(parcel: Parcel, path: Path, *, report: Report = silent) -> Path:
    """Writes a parcel to one file, whole or not at all."""
    text = json.dumps(_tell(parcel), sort_keys=True, allow_nan=False).encode()
    if len(text) > _LARGEST_TEXT or _count_values(text) > _MOST_VALUES:
        raise UsageError(
            f"the list of {len(parcel.tasks)} tasks is too long for one file: nobody could import it. Export parts of "
            "the library: tag=..., --tag TAG"
        )
    step = report("exporting", len(parcel.embeddings))
    try:
        with open_whole(path) as file:
            file.write(MAGIC + struct.pack("<Q", len(text)) + hashlib.sha256(text).digest() + text)
            for number, sent in enumerate(parcel.embeddings):
                content = parcel.read(number)
                if len(content) != sent.bytes:
                    raise LibraryError(
                        f"the index says that the embedding {sent.sha256[:8]} has {sent.bytes} bytes, and it has "
                        f"{len(content)}: the index is damaged. Nothing was written. Mend it: task2vec library repair"
                    )
                file.write(content)
                step(1)
    except OSError as error:
        raise ResourceError(
            f"cannot write '{path}': {error.strerror}. Nothing was left behind. Choose another place."
        ) from error
    return path


@contextmanager
def read_parcel(path: Path, *, report: Report = silent) -> Iterator[Parcel]:
    """The parcel in a file, read to its end and checked."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for ever
            raise _refuse(f"'{path}'", "it is no file")
        file = path.open("rb")
    except OSError as error:
        raise LibraryError(f"cannot read '{path}': {error.strerror}. Check the path.") from error
    with file:
        try:
            parcel = _open_parcel(path, file)
            check_parcel(parcel, report=report)
        except OSError as error:
            raise _refuse(f"'{path}'", f"it cannot be read to its end: {error.strerror}") from error
        yield parcel


def check_parcel(parcel: Parcel, *, report: Report = silent) -> None:
    """Raises an error that names the first thing in a parcel that is not what it should be."""
    told = {facts.fingerprint for facts, _ in parcel.tasks}
    step = report("checking", len(parcel.embeddings))
    for number in range(len(parcel.embeddings)):
        try:
            fingerprint = identify(parcel.load(number)).task.fingerprint
        except Task2VecError as error:
            raise LibraryError(f"{parcel.origin} was refused, and nothing of it was taken: {error}") from error
        if fingerprint not in told:
            raise _refuse(parcel.origin, f"embedding {number + 1} is of a task that is not listed")
        step(1)
    experts = {expert.name for expert in parcel.experts}
    for error in parcel.errors:
        if error.task not in told or error.expert not in experts:
            raise _refuse(parcel.origin, f"the task or expert of an error is not listed ({error.expert!r})")


def unpack(
    parcel: Parcel, database: Database, keeper: Keeper, *, settle: Callable[[], None], report: Report = silent
) -> Merged:
    """Takes in what is new in a parcel that was checked; names what is here with another content.

    A task comes in one transaction with its first embedding: whoever is killed meanwhile has no tasks without. `settle`
    is called after every transaction that brings embeddings.
    """
    merged = Merged()
    left: dict[str, list[tuple[TaskFacts, Note]]] = {}
    for told in parcel.tasks:
        left.setdefault(told[0].fingerprint, []).append(told)
    step = report("importing", len(parcel.embeddings))
    for start in range(0, len(parcel.embeddings), _TOGETHER):
        numbers = range(start, min(start + _TOGETHER, len(parcel.embeddings)))
        with database.writing() as connection:
            for number in numbers:
                embedding, note = parcel.load(number), Note(added=parcel.embeddings[number].added)
                for told in left.pop(identify(embedding).task.fingerprint, ()):
                    _count(merged, partial(keeper.keep_task, connection, *told))
                _count(merged, partial(_keep_embedding, keeper, connection, embedding, note))
            keeper.search.sync()
        settle()
        step(len(numbers))
    with database.writing() as connection:
        for told in chain.from_iterable(left.values()):
            _count(merged, partial(keeper.keep_task, connection, *told))
        others = set()
        for expert in parcel.experts:
            if not _count(merged, partial(keeper.keep_expert, connection, expert)):
                others.add(expert.name)
        for error in parcel.errors:
            if error.expert in others:  # measured with another expert than ours of that name
                merged.conflicts.append(
                    f"an error of the expert '{error.expert}' was left out, for it is another one here."
                )
            else:
                _count(merged, partial(keeper.keep_error, connection, error))
    return merged


def _keep_embedding(keeper: Keeper, connection: Connection, embedding: Embedding, note: Note) -> Added:
    return keeper.keep_embedding(connection, embedding, note)[0]


def _count(merged: Merged, keep: Callable[[], Added]) -> bool:
    """Notes what became of one thing; False if it was in conflict with what is here."""
    try:
        added = keep()
    except ConflictError as error:
        merged.conflicts.append(str(error))
        return False
    if added.is_new:
        merged.added[added.kind] += 1
    else:
        merged.known += 1
    return True


def _tell(parcel: Parcel) -> dict[str, Any]:
    """A parcel as plain values, without its blobs."""
    return {
        "tasks": [
            asdict(facts) | {"tags": note.tags, "taxon": note.taxon, "added": note.added}
            for facts, note in parcel.tasks
        ],
        "experts": [asdict(expert) for expert in parcel.experts],
        "errors": [asdict(error) for error in parcel.errors],
        "embeddings": [asdict(sent) for sent in parcel.embeddings],
    }


def _open_parcel(path: Path, file: BinaryIO) -> Parcel:
    """The parcel in an open file, its text checked and its blobs not yet read."""
    origin, size = f"'{path}'", os.fstat(file.fileno()).st_size
    start = len(MAGIC) + 8 + 32
    head = file.read(start)
    if not head.startswith(MAGIC[:-2]):
        raise _refuse(origin, f"it is no file of `task2vec library export` (such a file ends in {SUFFIX})")
    if not head.startswith(MAGIC):
        raise LibraryError(f"{origin} was exported by a newer task2vec. Upgrade: pip install -U task2vec")
    if len(head) < start:
        raise _refuse(origin, "it ends too early")
    length = struct.unpack("<Q", head[len(MAGIC) : len(MAGIC) + 8])[0]
    if length > min(_LARGEST_TEXT, size - start):
        raise _refuse(origin, f"its list would have {length} bytes, more than there are or than are allowed")
    text = file.read(length)
    if hashlib.sha256(text).digest() != head[-32:]:
        raise _refuse(origin, "its list was changed after it was written")
    if _count_values(text) > _MOST_VALUES:
        raise _refuse(origin, "its list would fill the memory")
    try:
        tasks, experts, errors, embeddings = _read_text(text)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError, Task2VecError) as error:
        raise _refuse(origin, f"its list is not sound ({type(error).__name__}: {error})") from error
    places, place = [], start + length
    for sent in embeddings:
        places.append(place)
        place += sent.bytes
    if place != size:
        raise _refuse(origin, f"it has {size} bytes, and its list says {place}")

    def read(number: int) -> bytes:
        file.seek(places[number])
        return file.read(embeddings[number].bytes)

    return Parcel(origin, tasks, experts, errors, embeddings, read)


def _read_text(text: bytes) -> tuple[tuple, tuple, tuple, tuple]:
    """What the text of a file lists; anything that is not as it should be raises."""
    told = json.loads(text, parse_constant=_no_constant)
    tasks = tuple((read_facts(_check_texts(one)), _read_note(one)) for one in told["tasks"])
    experts = tuple(Expert(**_check_texts(one)) for one in told["experts"])
    errors = tuple(MeasuredError(**_check_texts(one)) for one in told["errors"])
    embeddings = tuple(Sent(**_check_texts(one)) for one in told["embeddings"])
    for sent in embeddings:
        is_size = isinstance(sent.bytes, int) and 0 < sent.bytes <= LARGEST
        if not is_size or len(sent.sha256) != 64 or not set(sent.sha256) <= set("0123456789abcdef"):
            raise ValueError(f"the embedding {str(sent.sha256)[:64]!r}")
    return tasks, experts, errors, embeddings


def _read_note(told: dict[str, Any]) -> Note:
    tags, taxon, added = told["tags"], told["taxon"], told["added"]
    if not isinstance(tags, list):
        raise TypeError("tags")
    for name in ("taxon", "added"):
        check_text(told[name], name, may_be_none=True)
    return Note(check_tags(tags), taxon, "", added)


def _check_texts(told: Any) -> dict[str, Any]:
    """The values, none of which is something else where a text should be."""
    if not isinstance(told, dict):
        raise TypeError(f"{type(told).__name__} instead of an entry")
    for name, value in told.items():
        if name in _TEXTS:
            check_text(value, name, may_be_none=True)
    if not isinstance(told.get("recipe", {}), dict):
        raise TypeError("recipe")
    return told


def _count_values(text: bytes) -> int:
    """No fewer than the values that a JSON text has."""
    return sum(text.count(sign) for sign in (b",", b"[", b"{"))


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _refuse(origin: str, why: str) -> LibraryError:
    return LibraryError(f"{origin} was refused, and nothing of it was taken: {why}. {_MEND}")


_TEXTS = {"task", "expert", "protocol", "measured", "measured_by", "sha256", "name", "source", "location", "added"}
_MEND = "Ask for a good copy."
