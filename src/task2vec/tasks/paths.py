"""Paths of a large dataset: checked one by one, kept as one run of bytes."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from task2vec.errors import DataError


def check_path(path: object, where: str) -> str:
    """The path, if it is text that stays below its root; `where` begins the message if not.

    Example:
        >>> check_path("train/Aves/1.jpg", "images.txt, line 1")
        'train/Aves/1.jpg'
        >>> check_path("../secret.jpg", "images.txt, line 2")
        Traceback (most recent call last):
        task2vec.errors.DataError: images.txt, line 2: '../secret.jpg' is no path below the dataset's folder (it climbs
        out of it), so the image cannot be read from there. Take the dataset's own file, unchanged.
    """
    if not isinstance(path, str) or not path.strip():
        wrong = "it is no text"
    elif path.startswith(("/", "\\")) or path[1:3] in (":\\", ":/"):
        wrong = "it does not begin in that folder"
    elif ".." in path and ".." in path.replace("\\", "/").split("/"):
        wrong = "it climbs out of it"
    elif not path.isprintable() and any(letter < " " or "\ud800" <= letter <= "\udfff" for letter in path):
        wrong = "it has a character that no name of a file has"
    else:
        return path
    raise DataError(
        f"{where}: {path!r} is no path below the dataset's folder ({wrong}), so the image cannot be read from there. "
        "Take the dataset's own file, unchanged."
    )


@dataclass(frozen=True, eq=False)
class Paths(Sequence[str]):
    """Many paths in UTF-8, one behind the other: path n ends at `ends[n]`. Half a million take 30 MB, not 60.

    Example:
        >>> paths = Paths.pack(["a/1.jpg", "b/é.jpg", "c/3.jpg"])
        >>> len(paths), paths[1], paths.take([2, 0])
        (3, 'b/é.jpg', ['c/3.jpg', 'a/1.jpg'])
    """

    content: np.ndarray
    ends: np.ndarray

    def __post_init__(self):
        """Refuse bytes and ends that do not fit, as a damaged file may hold them."""
        lengths = np.diff(self.ends, prepend=0)
        fits = self.content.dtype == np.uint8 and self.ends.dtype == np.int64 and not (lengths < 0).any()
        if not fits or (self.ends[-1] if len(self.ends) else 0) != len(self.content):
            raise DataError("the packed paths are torn: their ends do not fit their bytes. Read the dataset again.")

    @staticmethod
    def pack(paths: Iterable[str]) -> "Paths":
        """The paths, packed while they come."""
        packer = PathPacker()
        for path in paths:
            packer.append(path)
        return packer.pack()

    def __len__(self) -> int:
        """The number of paths."""
        return len(self.ends)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        """One path, or a list of some."""
        if isinstance(index, slice):
            return self.take(range(*index.indices(len(self))))
        row = range(len(self))[index]
        start = self.ends[row - 1] if row else 0
        return self.content[start : self.ends[row]].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        """The paths in turn."""
        return (path.decode() for path in self._each())

    def take(self, rows: Iterable[int]) -> list[str]:
        """The paths of these rows."""
        return [self[int(row)] for row in rows]

    def find_repeated(self) -> tuple[int, int] | None:
        """The rows of the first path that occurs a second time, or None."""
        hashes = np.fromiter(map(hash, self._each()), np.int64, len(self))
        order = np.argsort(hashes, kind="stable")
        again = order[1:][hashes[order[1:]] == hashes[order[:-1]]]
        known: dict[str, int] = {}
        # Equal hashes are only a suspicion.
        for row in np.flatnonzero(np.isin(hashes, hashes[again])).tolist() if len(again) else ():
            first = known.setdefault(self[row], row)
            if first != row:
                return first, row
        return None

    def _each(self) -> Iterator[bytes]:
        """Every path as bytes; the buffer is not copied as a whole."""
        view, start = self.content.data, 0
        for end in self.ends.tolist():
            yield bytes(view[start:end])
            start = end


class PathPacker:
    """Gathers paths one at a time."""

    def __init__(self):
        self.content = bytearray()
        self.ends = array("q")

    def append(self, path: str) -> None:
        """Adds a path behind the others."""
        self.content += path.encode()
        self.ends.append(len(self.content))

    def pack(self) -> Paths:
        """What was gathered, without a copy: nothing more may be appended."""
        return Paths(np.frombuffer(self.content, np.uint8), np.frombuffer(self.ends, np.int64))
