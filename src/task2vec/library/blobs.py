"""Files that are called by the SHA-256 of their content: written once, never changed, checked when they are read."""

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from task2vec.embedding.writing import PARTIAL, sync_folder, write_whole
from task2vec.errors import DataError, LibraryError, ResourceError

FOLDER = "blobs"
SUFFIX = ".t2v.safetensors"
LARGEST = 1 << 28  # bytes; an embedding of a million filters has 40 MB
_HASH = re.compile("[0-9a-f]{64}")


class Blobs:
    """The blobs of a library. Writing and sweeping are for who holds the write lock of the index."""

    def __init__(self, folder: Path):
        """`folder` is that of the library; the one of the blobs is made with the first of them."""
        self.folder = folder / FOLDER
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
        """Files that writers left behind that were killed: unfinished ones, and blobs that no entry knows."""
        return [path for path in self.list_files() if path.name.endswith(PARTIAL) or _is_unknown(path, known)]

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


def _is_unknown(path: Path, known: set[str]) -> bool:
    name = name_of(path)
    return name is not None and name not in known


_MEND = "See what else is damaged: task2vec library verify; then embed the task again, or import a good copy."
