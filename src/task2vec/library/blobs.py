"""Files that are called by the SHA-256 of their content: written once, never changed, checked when they are read."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from task2vec.embedding.writing import PARTIAL, sync_folder, write_whole
from task2vec.errors import LibraryError

SUFFIX = ".t2v.safetensors"
LARGEST = 1 << 28  # bytes; an embedding of a million filters has 40 MB
_DIGITS = 64


class Blobs:
    """The blobs in a folder. Writing and sweeping are for who holds the write lock of the index."""

    def __init__(self, folder: Path):
        """The folder is made with the first blob."""
        self.folder = folder

    def path(self, sha256: str) -> Path:
        """Where the blob of that hash lies: in one of 256 folders, so that none grows too long to list."""
        return self.folder / sha256[:2] / f"{sha256}{SUFFIX}"

    def write(self, content: bytes) -> str:
        """Puts the content on the disk and returns its hash; what is there already and whole is left alone."""
        sha256 = hashlib.sha256(content).hexdigest()
        path = self.path(sha256)
        if self._is_whole(path, sha256):
            return sha256
        for folder in (self.folder, path.parent):
            if not folder.is_dir():
                folder.mkdir(parents=True, exist_ok=True)
                sync_folder(folder.parent)
        write_whole(path, content)
        return sha256

    def read(self, sha256: str) -> bytes:
        """The content, if it still is what it was.

        Raises:
            LibraryError: The file is missing, too long, or has other bytes.
        """
        path = self.path(sha256)
        try:
            if path.stat().st_size > LARGEST:
                raise LibraryError(f"'{path}' is larger than any embedding, so it was not opened. {_MEND}")
            content = path.read_bytes()
        except OSError as error:
            raise LibraryError(f"'{path}' cannot be read: {error.strerror}. {_MEND}") from error
        if hashlib.sha256(content).hexdigest() != sha256:
            raise LibraryError(f"'{path}' was changed after it was written: its SHA-256 is another one. {_MEND}")
        return content

    def remove(self, sha256: str) -> None:
        """Takes the blob away."""
        self.path(sha256).unlink(missing_ok=True)

    def list_files(self) -> Iterator[Path]:
        """Every file in the folders of blobs, whatever it is."""
        with suppress(FileNotFoundError):
            for folder in sorted(self.folder.iterdir()):
                if folder.is_dir() and not folder.is_symlink():
                    yield from sorted(folder.iterdir())

    def find_orphans(self, known: set[str]) -> list[Path]:
        """Files that writers left behind that were killed: unfinished ones, and blobs that no entry knows."""
        return [path for path in self.list_files() if path.name.endswith(PARTIAL) or _is_unknown(path, known)]

    def _is_whole(self, path: Path, sha256: str) -> bool:
        """Whether the blob is there with its content: a damaged one is to be written anew."""
        try:
            return hashlib.sha256(path.read_bytes()).hexdigest() == sha256
        except OSError:
            return False


def name_of(path: Path) -> str | None:
    """The hash that a file is called by, or None if it is no blob."""
    name = path.name.removesuffix(SUFFIX)
    is_blob = path.name.endswith(SUFFIX) and len(name) == _DIGITS and set(name) <= set("0123456789abcdef")
    return name if is_blob else None


def remove_files(paths: list[Path]) -> int:
    """Takes the files away and returns how many there were."""
    for path in paths:
        with suppress(OSError):
            os.unlink(path)
    return len(paths)


def _is_unknown(path: Path, known: set[str]) -> bool:
    name = name_of(path)
    return name is not None and name not in known


_MEND = "See what else is damaged: task2vec library verify; then embed the task again, or import a good copy."
