"""Files that are called by the SHA-256 of their content: written once, never changed, checked when they are read.

Writers note which blobs they are about to write or to give up. So after one was killed it is known which whole blobs
are nobody's. Any other whole blob that the index does not know is kept: it may be all that is left of an entry, if an
older index was put in the place of a newer one.
"""

import hashlib
import os
import re
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from task2vec.errors import DataError, LibraryError, ResourceError
from task2vec.storage import PARTIAL, sync_folder, write_whole

FOLDER = "blobs"
NOTES = "pending"
SUFFIX = ".t2v.safetensors"
LARGEST = 1 << 28  # bytes; an embedding of a million filters has 40 MB
_HASH = re.compile("[0-9a-f]{64}")


class Blobs:
    """The blobs of a library. Writing and sweeping are for who holds the write lock of the index."""

    def __init__(self, folder: Path):
        """`folder` is that of the library; the one of the blobs is made with the first of them."""
        self.folder = folder / FOLDER
        self._notes = folder / NOTES
        self._synced: set[Path] = set()

    def path(self, sha256: str) -> Path:
        """Where the blob of that hash lies: in one of 256 folders, so that none grows too long to list.

        Raises:
            LibraryError: It is no hash, and might lead anywhere.
        """
        if not isinstance(sha256, str) or not _HASH.fullmatch(sha256):
            raise LibraryError(f"the index names a blob {sha256!r}, which is no SHA-256: the index is damaged. {_MEND}")
        return self.folder / sha256[:2] / f"{sha256}{SUFFIX}"

    def write(self, content: bytes) -> str:
        """Puts the content on the disk and returns its hash; what is there already and whole is left alone.

        Raises:
            DataError: It is larger than what `read` would read.
            ResourceError: The disk is full or cannot be written to.
        """
        if len(content) > LARGEST:
            raise DataError(
                f"the embedding has {len(content)} bytes, and a library keeps none of more than {LARGEST}: it could "
                "not be read again. Keep it as a file: embedding.save(FILE)"
            )
        sha256 = hashlib.sha256(content).hexdigest()
        path = self.path(sha256)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if self.is_whole(sha256):
                sync_folder(path.parent)  # who wrote it may have been killed before this
            else:
                self.note([sha256])
                write_whole(path, content)
            self._sync_folders(path.parent)
        except OSError as error:
            raise ResourceError(
                f"cannot write '{path}': {error.strerror}. Nothing was added to the library. Make room on the disk, or "
                "choose another folder: --library DIR"
            ) from error
        return sha256

    def _sync_folders(self, folder: Path) -> None:
        """Flushes the name of a folder of blobs, and of the folder of these: whoever made them may have been killed."""
        for place in (folder, self.folder):
            if place not in self._synced:
                sync_folder(place.parent)
                self._synced.add(place)

    def read(self, sha256: str) -> bytes:
        """The content, if it still is what it was.

        Raises:
            LibraryError: The file is missing, too long, or has other bytes.
        """
        path = self.path(sha256)
        try:
            found = path.stat()
            if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST:
                raise LibraryError(f"'{path}' is no file, or larger than any embedding, so it was not opened. {_MEND}")
            content = path.read_bytes()
        except OSError as error:
            raise LibraryError(f"'{path}' cannot be read: {error.strerror}. {_MEND}") from error
        if hashlib.sha256(content).hexdigest() != sha256:
            raise LibraryError(f"'{path}' was changed after it was written: its SHA-256 is another one. {_MEND}")
        return content

    def note(self, hashes: Iterable[str]) -> None:
        """Writes down blobs that are nobody's if this process is killed before its transaction ends."""
        text = "".join(f"{sha256}\n" for sha256 in hashes)
        if text:
            self._notes.mkdir(parents=True, exist_ok=True)
            with self._own_notes().open("a", encoding="ascii") as file:
                file.write(text)

    def noted(self) -> set[str]:
        """All blobs that writers have noted and not settled."""
        return {sha256 for file in _list(self._notes) for sha256 in _read_hashes(file)}

    def settle(self, is_known: Callable[[str], bool]) -> None:
        """Forgets what this thread noted and an entry knows, or what is gone: after a transaction, without the lock."""
        own = self._own_notes()
        hashes = _read_hashes(own)
        left = [sha256 for sha256 in hashes if not is_known(sha256) and self.path(sha256).exists()]
        if hashes and not left:
            remove_files([own])

    def forget_notes(self) -> None:
        """Forgets all notes: for who holds the write lock and has swept what they name."""
        remove_files(_list(self._notes))

    def _own_notes(self) -> Path:
        """The notes of this thread: nobody else writes to them."""
        return self._notes / f"{os.getpid()}-{threading.get_ident()}"

    def remove(self, sha256: str) -> None:
        """Takes the blob away."""
        remove_files([self.path(sha256)])

    def list_files(self) -> Iterator[Path]:
        """Every file in the folders of blobs, whatever it is."""
        for folder in _list(self.folder):
            if folder.is_dir() and not folder.is_symlink():
                yield from _list(folder)

    def is_empty(self) -> bool:
        """Whether there is no blob at all."""
        return not any(name_of(path) for path in self.list_files())

    def find_orphans(self, known: set[str]) -> list[Path]:
        """Files that nobody needs: unfinished ones, and of the blobs that no entry knows the noted and the damaged."""
        noted = self.noted()
        return [
            path for path in self.list_files() if path.name.endswith(PARTIAL) or self._is_rubbish(path, known, noted)
        ]

    def find_strangers(self, known: set[str]) -> list[Path]:
        """Whole blobs that no entry knows and nobody noted: `Library.repair` takes them in."""
        noted = self.noted()
        return [
            path for path in self.list_files() if _is_unknown(path, known) and not self._is_rubbish(path, known, noted)
        ]

    def _is_rubbish(self, path: Path, known: set[str], noted: set[str]) -> bool:
        name = name_of(path)
        return name is not None and name not in known and (name in noted or not self.is_whole(name))

    def is_whole(self, sha256: str) -> bool:
        """Whether the blob is there with its content: a damaged one is to be written anew."""
        try:
            self.read(sha256)
        except LibraryError:
            return False
        return True


def name_of(path: Path) -> str | None:
    """The hash that a file is called by, or None if it is no blob."""
    name = path.name.removesuffix(SUFFIX)
    return name if path.name.endswith(SUFFIX) and _HASH.fullmatch(name) else None


def remove_files(paths: list[Path]) -> None:
    """Takes the files away, those that can be."""
    for path in paths:
        with suppress(OSError):
            os.unlink(path)


def _list(folder: Path) -> list[Path]:
    """What is in a folder, by name; nothing if it is not there or cannot be listed."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _read_hashes(file: Path) -> list[str]:
    """The hashes in a file of notes; none if it is not there."""
    try:
        return _HASH.findall(file.read_text(encoding="ascii", errors="replace"))
    except OSError:
        return []


def _is_unknown(path: Path, known: set[str]) -> bool:
    name = name_of(path)
    return name is not None and name not in known


_MEND = "See what else is damaged: task2vec library verify; then embed the task again, or import a good copy."
