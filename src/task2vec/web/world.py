"""What is served: the library as it is now, and the bundled meta-task beside it.

The library may be changed by anybody at any time. Its files tell when (their sizes and times), so a look costs
two questions to the disk, and what was read of it is kept for as long as it holds.
"""

import hashlib
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from task2vec.distance import symmetric_to_rows
from task2vec.embedding import Embedding
from task2vec.errors import LibraryError, Task2VecError
from task2vec.experts.measured import MeasuredMetaTask, bundled_metatask
from task2vec.library import Library, find_library
from task2vec.library.database import FILE
from task2vec.library.search import sign_vector
from task2vec.select.evidence.spaces import list_spaces, word_space
from task2vec.web.cache import Cache
from task2vec.web.entries import LIBRARY, MEASURED, Entry, list_library, list_measured, name_space

_EMBEDDINGS = 48 << 20  # bytes of embeddings that are kept at hand


@dataclass(frozen=True)
class Space:
    """A space.

    Attributes:
        id: that the server issued.
        name: in words.
        entries: the tasks in it, by name.
        is_default: whether it is meant where none is named.
        spare: older embeddings of the library that stand behind others.
        shipped: those of the tasks that come with the package.
    """

    id: str
    name: str
    entries: tuple[Entry, ...]
    is_default: bool
    spare: int = 0
    shipped: tuple[Entry, ...] = ()

    @property
    def has_own(self) -> bool:
        """Whether tasks of the library lie in it."""
        return len(self.shipped) < len(self.entries)


@dataclass(frozen=True)
class View:
    """All that is served, as of one moment.

    Attributes:
        revision: another one, other content.
        entries: by id.
        by_key: those of the library, by the keys of their embeddings.
        spaces: by id, the default one first.
        has_errors: whether the library has errors of experts.
    """

    revision: str
    entries: Mapping[str, Entry]
    by_key: Mapping[str, Entry]
    spaces: Mapping[str, Space]
    has_errors: bool

    @property
    def default(self) -> Space:
        """The space that is meant where none is named."""
        return next(iter(self.spaces.values()))


class World:
    """The library and the meta-task, for any number of threads."""

    def __init__(self, folder: Path | None = None, *, measured: MeasuredMetaTask | None = None):
        """`folder` is that of the library, which need not be there yet."""
        self.folder, self.measured = find_library(folder).resolve(), measured or bundled_metatask()
        self._lock, self._opening = threading.Lock(), threading.Lock()
        self._library: Library | None = None
        self._seen: tuple[tuple, View] | None = None
        self._embeddings: Cache[Embedding] = Cache(_EMBEDDINGS)
        self._rows: dict[str, np.ndarray] = {}
        self._names: dict[str, str] = {}
        self._measured_entries = list_measured(self.measured)

    @property
    def name(self) -> str:
        """What the library is called: the last part of its path."""
        return self.folder.name

    def peek(self) -> View | None:
        """What is served now, if that is known without reading; costs microseconds."""
        seen = self._seen
        return seen[1] if seen is not None and seen[0] == self._stamp() else None

    def look(self) -> View:
        """What is served now."""
        with self._lock:
            if (known := self.peek()) is not None:
                return known
            self.open()  # makes a journal
            stamp = self._stamp()  # before reading: what changes meanwhile is seen at the next look
            view = self._read()
            self._seen = (stamp, view)
            return view

    def open(self) -> Library | None:
        """The library; None as long as there is none, for a look makes nothing."""
        with self._opening:
            if self._library is None and (self.folder / FILE).exists():
                self._library = Library.open(self.folder)
            return self._library

    def close(self) -> None:
        """Lets go of the library."""
        with self._opening:
            if self._library is not None:
                self._library.close()
            self._library = None

    def embedding(self, entry: Entry) -> Embedding:
        """The embedding of an entry, kept at hand for the next question about it."""
        if entry.origin == MEASURED:
            return self.read(entry)
        if (known := self._embeddings.get(entry.key)) is not None and known.task == entry.name:
            return known
        found = self.read(entry)
        self._embeddings.put(entry.key, found, size=found.fisher.nbytes * (3 if found.halves is None else 5))
        return found

    def read(self, entry: Entry) -> Embedding:
        """The embedding of an entry.

        Raises:
            LibraryError: It is damaged, or was removed this very moment.
        """
        if entry.origin == MEASURED:
            return self.measured.embeddings[entry.key][entry.row]
        library = self.open()
        if library is None:
            raise LibraryError(
                f"the library '{self.name}' is gone, so '{entry.name}' cannot be read. Put it back, and reload."
            )
        return library.get(entry.key)

    def measure(self, embedding: Embedding, entries: Sequence[Entry]) -> np.ndarray:
        """The symmetric distances of an embedding from tasks of the meta-task in its space."""
        if not entries:
            return np.empty(0)
        rows = self._find_rows(entries[0].key)[[entry.row for entry in entries]]
        return symmetric_to_rows(sign_vector(embedding).astype(np.float32), rows)

    def _find_rows(self, name: str) -> np.ndarray:
        """The vectors of all tasks of the meta-task in one space, in float32."""
        if name not in self._rows:
            embeddings = self.measured.embeddings[name][: len(self.measured.tasks)]
            self._rows[name] = np.stack([sign_vector(one).astype(np.float32) for one in embeddings])
        return self._rows[name]

    def _stamp(self) -> tuple:
        """What tells whether the library was written to: its index and its journal."""
        return tuple(_describe(self.folder / name) for name in (FILE, f"{FILE}-wal"))

    def _read(self) -> View:
        library = self.open()
        errors = [] if library is None else library.errors()
        tasks = [] if library is None else library.tasks()
        own = list_library(tasks, errors)
        known = {(entry.fingerprint, entry.space) for entry in own}
        others = [one for one in self._measured_entries if (one.fingerprint, one.space) not in known]
        spare: dict[str, int] = {}
        for task in tasks:
            for one in task.embeddings:
                space = name_space(one.probe_fingerprint, one.settings)
                spare[space] = spare.get(space, 0) + 1
        entries = {entry.id: entry for entry in sorted([*own, *others], key=lambda one: (one.name.casefold(), one.id))}
        by_key = {entry.key: entry for entry in own}
        digest = hashlib.blake2b(digest_size=10)
        for entry in entries.values():
            digest.update(repr((entry.id, entry.name, entry.tags, entry.taxon, entry.best_error)).encode())
        digest.update(repr([(error.task, error.expert, error.error) for error in errors]).encode())
        return View(digest.hexdigest(), entries, by_key, self._list_spaces(entries, spare), bool(errors))

    def _list_spaces(self, entries: Mapping[str, Entry], spare: Mapping[str, int]) -> dict[str, Space]:
        """The spaces by id: first the default probe's, unless the library lies elsewhere as a whole."""
        lying: dict[str, list[Entry]] = {}
        for entry in entries.values():
            lying.setdefault(entry.space, []).append(entry)
        own = {space: sum(entry.origin == LIBRARY for entry in lying[space]) for space in lying}
        usual = [
            name_space(one.probe_fingerprint, one.provenance.get("settings"))
            for one in list_spaces(self.measured).values()
        ]
        first = usual[0] if usual else ""
        if any(own.values()) and not own.get(first):
            first = max(own, key=lambda space: own[space])
        order = sorted(lying, key=lambda space: (space != first, -len(lying[space]), space))
        return {
            space: Space(
                space,
                self._word(space, lying[space]),
                tuple(lying[space]),
                space == first,
                spare.get(space, 0) - own[space],
                tuple(entry for entry in lying[space] if entry.origin == MEASURED),
            )
            for space in order
        }

    def _word(self, space: str, entries: Sequence[Entry]) -> str:
        """The name of a space, by any of its embeddings that can be read."""
        if space not in self._names:
            for entry in sorted(entries, key=lambda one: one.origin == LIBRARY)[:3]:
                with suppress(Task2VecError):
                    self._names[space] = word_space(self.embedding(entry))
                    break
        return self._names.get(space, "a space whose embeddings are damaged")


def _describe(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
