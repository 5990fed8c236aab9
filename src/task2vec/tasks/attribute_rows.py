"""A text table of -1, 0 and 1 becomes bits: one row per image, a path and then one value per attribute.

DeepFashion's has 290 million values in a gigabyte of text. It is read in blocks of whole lines, and each block is
turned into bits by a few passes of numpy over its bytes; only a block that is not what it should be is looked at word
by word, to say where it is wrong.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from task2vec.errors import DataError
from task2vec.progress import track
from task2vec.tasks.check import quote
from task2vec.tasks.counted_lists import FIRST_LINE, check_count, read_count
from task2vec.tasks.paths import check_path

BLOCK_BYTES = 2**22
# What a byte of the values can be; a value is told from its neighbours by the order of these numbers.
_BLANK, _LINE_END, _MINUS, _ZERO, _ONE, _OTHER = range(6)
_KINDS = bytearray([_OTHER] * 256)
for _letters, _kind in ((b" \t\r", _BLANK), (b"\n", _LINE_END), (b"-", _MINUS), (b"0", _ZERO), (b"1", _ONE)):
    for _letter in _letters:
        _KINDS[_letter] = _kind
_KINDS = bytes(_KINDS)


@dataclass(frozen=True)
class AttributeRows:
    """The images of the table and, bit-packed by row, where an attribute is positive and where it is known at all."""

    paths: list[str]
    positive: np.ndarray
    known: np.ndarray


def read_attribute_rows(place: Path, n_attributes: int, *, progress: bool = False) -> AttributeRows:
    """The rows below the count and the header: 1 is positive, -1 negative, and 0 unknown.

    Raises:
        DataError: A row has too few or too many values, a value is none of the three, a path comes twice, or the
            number of rows is not the one of the first line.
    """
    paths: list[str] = []
    bits = []
    try:
        with place.open("rb") as file:
            count = read_count(place, file.readline())
            file.readline()
            total = 1 + (place.stat().st_size - file.tell()) // BLOCK_BYTES
            blocks = track(_read_blocks(file), total, what=f"reading {place.name}", progress=progress)
            begin = FIRST_LINE
            for block in blocks:
                lines = block.splitlines()
                bits.append(_read_block(place, lines, begin, n_attributes, paths))
                begin += len(lines)
    except OSError as error:
        raise DataError(f"{place} cannot be read ({error.strerror}). Check the path and its permissions.") from error
    _check_paths(place, paths, count)
    positive, known = (np.concatenate(parts) for parts in zip(*bits, strict=True))
    return AttributeRows(paths, positive, known)


def _read_blocks(file: BinaryIO) -> Iterator[bytes]:
    """The rest of the file in blocks of whole lines."""
    rest = b""
    while block := file.read(BLOCK_BYTES):
        whole, end, part = (rest + block).rpartition(b"\n")
        yield whole + end
        rest = part
    yield rest


def _read_block(
    place: Path, lines: list[bytes], begin: int, n_attributes: int, paths: list[str]
) -> tuple[np.ndarray, np.ndarray]:
    """The packed rows of some lines, the first of which has the number `begin`; adds their paths."""
    cells = [(number, line.split(None, 1)) for number, line in enumerate(lines, start=begin) if line.strip()]
    values = [pair[1] if len(pair) > 1 else b"" for _, pair in cells]
    found = _find_values(values, n_attributes)
    if found is None:
        raise _explain(place, [number for number, _ in cells], values, n_attributes)
    try:
        paths.extend(check_path(pair[0].decode("utf-8"), f"{place}, line {number}") for number, pair in cells)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{place}, lines {begin} to {begin + len(lines) - 1}: a path is not UTF-8 ({error.reason}), so it names no "
            "file. Use the file as published."
        ) from error
    positive, known = found
    return np.packbits(positive, axis=1), np.packbits(known, axis=1)


def _find_values(rows: list[bytes], n_attributes: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Where the values of the rows are 1, and where they are not 0; None if any row is not what it should be."""
    body = b"".join(part for row in rows for part in (row, b"\n"))
    kinds = np.frombuffer(body.translate(_KINDS), np.uint8)
    digits = np.flatnonzero(kinds >= _ZERO)
    if len(digits) != len(rows) * n_attributes:
        return None
    ends = np.flatnonzero(kinds == _LINE_END)
    by_row = digits.reshape(len(rows), n_attributes)
    if (by_row[:, -1] > ends).any() or (by_row[1:, 0] < ends[:-1]).any():
        return None
    own, after, before = kinds[digits], kinds[digits + 1], kinds[digits - 1]
    is_one, is_signed = own == _ONE, before == _MINUS
    n_signs = np.count_nonzero(kinds == _MINUS)
    # Every value stands alone, every sign belongs to a 1, and nothing else is there.
    if (own == _OTHER).any() or (after > _LINE_END).any() or n_signs != np.count_nonzero(is_signed & is_one):
        return None
    shape = (len(rows), n_attributes)
    return (is_one & ~is_signed).reshape(shape), is_one.reshape(shape)


def _explain(place: Path, numbers: list[int], rows: list[bytes], n_attributes: int) -> DataError:
    """What is wrong with the first row that is wrong."""
    for number, row in zip(numbers, rows, strict=True):
        words = row.split()
        if len(words) != n_attributes:
            return DataError(
                f"{place}, line {number}: {len(words)} values where there are {n_attributes} attributes, so values "
                "would belong to the wrong ones. The file is cut or edited; unpack it again."
            )
        wrong = [word for word in words if word not in (b"-1", b"0", b"1")]
        if wrong:
            return DataError(
                f"{place}, line {number}: the value {quote([wrong[0][:40].decode(errors='replace')])} is neither 1 "
                "(positive), -1 (negative) nor 0 (unknown), and nothing else says what the image shows. Correct it."
            )
    raise AssertionError("a block was refused for no reason")


def _check_paths(place: Path, paths: list[str], count: int) -> None:
    """Refuses a file that is not whole, or that has an image twice."""
    check_count(place, len(paths), count)
    if len(set(paths)) < count:
        known: set[str] = set()
        path = next(path for path in paths if path in known or known.add(path))
        with place.open("rb") as file:
            begins = ((number, line.split(None, 1)[:1]) for number, line in enumerate(file, start=1))
            first, second, *_ = (number for number, words in begins if words == [path.encode()])
        raise DataError(
            f"{place}, line {second}: {path!r} stands in line {first} already, so its values are ambiguous. Drop one."
        )
