"""Vectors of one space in a flat file, in float32: what neighbours are compared by, without opening a blob for each.

A row is Fisher + prior; the sign says which filters are alive (positive) and which have no Fisher (negative). The
symmetric distance needs no logarithm of it: with p = a / (a + b) and q = b / (a + b) it is 1 - cos(p, q), over the
filters that are alive in at least one of the two. The embedding itself stays the authority: a row that float32
cannot hold does not exist, and one that does not fit its checksum is not used.

Rows are read, not mapped into memory: of a file that shrinks or of a bad sector of the disk, reading says so, while a
map ends the process.
"""

import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from task2vec.distance import symmetric_from_logs
from task2vec.distance.distances import BELOW_ONE
from task2vec.embedding import Embedding
from task2vec.errors import ResourceError
from task2vec.storage import sync_folder

# Within these, neither a sum of two nor its reciprocal leaves the normal numbers of float32.
LOWEST, HIGHEST = 1e-37, 1e37
# Rows that are compared at once, few enough for a processor's cache, and filters that are summed up in float32.
_ROWS, _FILTERS = 8, 2048
# Below this mean square a sum of squares in float32 may have lost its parts, and below this distance its digits.
_SMALLEST_SQUARES, _SMALLEST_DISTANCE = 1e-25, 1e-4


def make_row(embedding: Embedding) -> np.ndarray | None:
    """The vector in float32, negative where a filter has no Fisher; None if float32 cannot hold it.

    Example:
        >>> from task2vec.probe import FilterLayer
        >>> layer, prior = FilterLayer("conv", "convolution", 2, 9, 0.1), np.full(2, 0.25)
        >>> make_row(Embedding("birds", "net", np.array([1.0, 0.0]), prior, prior, (layer,)))
        array([ 1.25, -0.25], dtype=float32)
    """
    signed = sign_vector(embedding)
    sizes = np.abs(signed)
    return signed.astype(np.float32) if sizes.min() >= LOWEST and sizes.max() <= HIGHEST else None


def sign_vector(embedding: Embedding) -> np.ndarray:
    """Fisher + prior in float64, negative where a filter has no Fisher."""
    return np.where(embedding.fisher == 0, -embedding.vector, embedding.vector)


def checksum(row: np.ndarray) -> int:
    """CRC-32 of a row, as it lies in the file."""
    return zlib.crc32(np.ascontiguousarray(row, dtype="<f4").data)


def distances(query: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The symmetric distance of `query` from every one of `rows`, within 1e-6; exactly 0 from its equal.

    Example:
        >>> distances(np.float32([1, 2]), np.float32([[2, 1], [1, 2]])).round(6)
        array([0.2, 0. ])
    """
    sums, counted = _sum_dead(query, rows)
    sizes = np.abs(query)
    # Divided by infinity, a filter that is dead in the query is zero in p and q, and adds nothing here.
    below = np.where(query < 0, np.inf, sizes)
    room = np.empty((3, min(_ROWS, len(rows)), len(query)), dtype=np.float32)
    for at in range(0, len(rows), _ROWS):
        some = rows[at : at + _ROWS]
        p, q, share = room[:, : len(some)]
        np.abs(some, out=q)
        np.add(below, q, out=share)
        np.reciprocal(share, out=share)
        q *= share
        np.multiply(sizes, share, out=p)
        sums[:, at : at + _ROWS] += _sum(p, q)
    return _finish(query, rows, sums, counted)


def _sum_dead(query: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the filters that are dead in the query but not in the row add to the sums, and how many count in all."""
    dead = np.flatnonzero(query < 0)
    others = rows[:, dead]
    is_alive = others > 0
    sizes = np.abs(query[dead])
    share = is_alive / (sizes + np.abs(others))
    return _sum(sizes * share, others * share), len(query) - len(dead) + np.count_nonzero(is_alive, axis=1)


def _sum(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The sums of p^2, q^2 and p q of every row, in float64 over some thousand filters each."""
    sums = np.zeros((3, len(p)))
    for at in range(0, p.shape[1], _FILTERS):
        one, other = p[:, at : at + _FILTERS], q[:, at : at + _FILTERS]
        sums += np.vecdot(one, one), np.vecdot(other, other), np.vecdot(one, other)
    return sums


def _finish(query: np.ndarray, rows: np.ndarray, sums: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """The distances from the sums; where these are not to be trusted, from the logarithms."""
    pp, qq, pq = sums
    with np.errstate(invalid="ignore", divide="ignore"):
        found = 1 - pq / np.sqrt(pp * qq)
    is_plain = (np.minimum(pp, qq) > _SMALLEST_SQUARES * counted) & (found > _SMALLEST_DISTANCE)
    for at in np.flatnonzero(~is_plain):
        found[at] = _measure_by_logs(query, rows[at])
    return np.minimum(found, BELOW_ONE)


def _measure_by_logs(query: np.ndarray, row: np.ndarray) -> float:
    """The same in float64, for vectors that are too far apart or too close for float32."""
    counted = (query > 0) | (row > 0)
    if not counted.any() or np.array_equal(query, row):
        return 0.0
    logs = [np.log(np.abs(one[counted].astype(np.float64))) for one in (query, row)]
    return symmetric_from_logs(logs[0], logs[1])


class Rows:
    """The file of one space: row after row, each at its slot. Writing is for who holds the write lock of the index."""

    def __init__(self, path: Path, filters: int):
        """The file is made with the first row."""
        self.path, self.filters, self.size = path, filters, 4 * filters
        self._is_new, self._is_dirty = False, False

    def __len__(self) -> int:
        """How many slots the file reaches into, the last of them perhaps with a part of its row."""
        try:
            return -(-self.path.stat().st_size // self.size)
        except OSError:
            return 0

    def write(self, slot: int, rows: np.ndarray) -> None:
        """Puts a row at its slot, or several from there on; they are on the disk after `sync`."""
        try:
            if not self.path.exists():
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._is_new = True
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
            with os.fdopen(descriptor, "r+b") as file:
                file.seek(slot * self.size)
                file.write(np.ascontiguousarray(rows, dtype="<f4").data)
        except OSError as error:
            raise self._explain(error) from error
        self._is_dirty = True

    def sync(self) -> None:
        """Flushes what was written to the disk."""
        if not self._is_dirty:
            return
        try:
            with open(self.path, "r+b") as file:
                os.fsync(file.fileno())
            if self._is_new:
                sync_folder(self.path.parent)
                sync_folder(self.path.parent.parent)
        except OSError as error:
            raise self._explain(error) from error
        self._is_new, self._is_dirty = False, False

    def read(self, slots: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rows at these slots, and which of them the file really holds (the others are zero)."""
        found, is_there = np.zeros((len(slots), self.filters), dtype="<f4"), np.zeros(len(slots), dtype=bool)
        try:
            with open(self.path, "rb", buffering=0) as file:
                for first, last in _runs(slots):
                    whole = self._read_run(file, int(slots[first]), found[first:last])
                    is_there[first : first + whole] = True
        except FileNotFoundError:
            pass
        return found.astype(np.float32, copy=False), is_there

    def _read_run(self, file, slot: int, into: np.ndarray) -> int:
        """Reads rows that follow each other; returns how many are whole."""
        room, done = into.data.cast("B"), 0
        try:
            file.seek(slot * self.size)
            while done < len(room) and (got := file.readinto(room[done:])):
                done += got
        except OSError:  # a bad place on the disk: what lies before it is good
            pass
        return done // self.size

    def _explain(self, error: OSError) -> ResourceError:
        return ResourceError(
            f"cannot write to '{self.path}': {error.strerror}. Nothing was added to the library. Make room on the "
            "disk, or choose another folder: --library DIR"
        )


def _runs(slots: Sequence[int] | np.ndarray) -> Iterator[tuple[int, int]]:
    """First and last + 1 position of every run of slots that follow each other."""
    slots = np.asarray(slots)
    ends = [*(np.flatnonzero(np.diff(slots) != 1) + 1).tolist(), len(slots)] if len(slots) else []
    start = 0
    for end in ends:
        yield start, end
        start = end
