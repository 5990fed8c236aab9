"""The spaces of a library as searching sees them: what the index says, and the files that lie beside it.

A space holds the embeddings that can be compared with each other. Its rows lie in one file per generation, its basis in
a file that is called by its hash: both are named in the index, and a file that is not is nobody's.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from sqlite3 import Connection

import numpy as np

from task2vec.errors import LibraryError, ResourceError, UsageError
from task2vec.library.memory import NO_SLOT, Places
from task2vec.library.rows import Rows, checksum
from task2vec.library.sketch import Sketcher
from task2vec.storage import sync_folder, write_whole

ROWS, BASIS = ".f32", ".basis"
_LARGEST_BASIS = 1 << 30


@dataclass(frozen=True)
class Space:
    """A row of the table of spaces; `basis` is what `Basis` says of itself."""

    id: int
    key: str
    filters: int
    generation: int
    changes: int
    basis: bytes | None

    @property
    def rows_name(self) -> str:
        """The file of the rows."""
        return f"{self.key[:16]}-{self.generation}{ROWS}"


@dataclass(frozen=True)
class Basis:
    """A fitted basis: the hash that its file is called by, and the last embedding that was there at the time."""

    key: str
    sha256: str
    last: int

    @property
    def name(self) -> str:
        """Its file."""
        return f"{self.key[:16]}-{self.sha256[:16]}{BASIS}"

    def to_bytes(self) -> bytes:
        """As it stands in the index."""
        return json.dumps({"sha256": self.sha256, "last": self.last}).encode()


def read_space(connection: Connection, space: int) -> Space:
    """What the index says about the space.

    Raises:
        UsageError: There is no such space.
    """
    found = connection.execute(
        "SELECT id, key, filters, generation, changes, basis FROM spaces WHERE id = ?", (space,)
    ).fetchone()
    if found is None:
        raise UsageError(f"the library has no space {space}, so nothing can be searched in it. Add an embedding first.")
    made = Space(*found)
    _check_key(made.key)
    return made


def read_basis(space: Space) -> Basis | None:
    """The basis of the space, if it has one."""
    if space.basis is None:
        return None
    try:
        told = json.loads(space.basis)
        sha256, last = told["sha256"], told["last"]
        if not re.fullmatch("[0-9a-f]{64}", sha256) or not isinstance(last, int):
            return None
    except (ValueError, KeyError, TypeError):
        return None
    return Basis(space.key, sha256, last)


def load_sketcher(folder: Path, space: Space) -> Sketcher | None:
    """The basis from its file; None if there is none, or if it is not what was written."""
    basis = read_basis(space)
    if basis is None:
        return None
    path = folder / basis.name
    try:
        if path.stat().st_size > _LARGEST_BASIS:
            return None
        content = path.read_bytes()
    except OSError:
        return None
    if hashlib.sha256(content).hexdigest() != basis.sha256:
        return None
    try:
        sketcher = Sketcher.from_bytes(content)
    except LibraryError:
        return None
    return sketcher if len(sketcher.mean) == space.filters else None


def save_sketcher(folder: Path, space: Space, sketcher: Sketcher, *, last: int) -> Basis:
    """Writes the basis to its file, whole or not at all, and returns what the index is to say about it."""
    content = sketcher.to_bytes()
    basis = Basis(space.key, hashlib.sha256(content).hexdigest(), last)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / basis.name, content)
        sync_folder(folder.parent)
    except OSError as error:
        raise ResourceError(
            f"cannot write '{folder / basis.name}': {error.strerror}. Nothing was changed. Make room on the disk, "
            "and try again."
        ) from error
    return basis


def fetch_rows(rows: Rows, places: Places, checked: set[int]) -> tuple[np.ndarray, np.ndarray]:
    """The rows of these places, and which of them can be used: there, whole, and with the right checksum.

    Those that pass are added to `checked`, and are not summed up again.
    """
    has_row = np.flatnonzero(places.slots != NO_SLOT)
    found, is_there = rows.read(places.slots[has_row])
    for at in np.flatnonzero(is_there):
        slot = int(places.slots[has_row[at]])
        if slot in checked:
            continue
        if checksum(found[at]) == places.crcs[has_row[at]]:
            checked.add(slot)
        else:
            is_there[at] = False
    if len(has_row) == len(places):
        return found, is_there
    every, is_good = np.zeros((len(places), rows.filters), dtype=np.float32), np.zeros(len(places), dtype=bool)
    every[has_row], is_good[has_row] = found, is_there
    return every, is_good


def _check_key(key: str) -> None:
    # The key becomes the name of a file; an index from elsewhere must not choose where that lies.
    if not re.fullmatch("[0-9a-f]{16,}", key):
        raise LibraryError(
            f"the index names a space '{key}', which is no hash, so its files cannot be found safely. The index is "
            "damaged: task2vec library verify"
        )
