"""Records of JSON files that are too large to be held in memory.

The files look like {"info": {...}, "images": [{...}, ...], "annotations": [...], ...}, with the keys in any order. They
are read a chunk at a time, and decoded by the standard library, some records at a time. Memory is that of a chunk and a
record.
"""

import codecs
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from task2vec.errors import DataError
from task2vec.progress import track
from task2vec.tasks.check import quote

Record = dict[str, Any]

CHUNK = 1 << 20
# No honest record is larger. Without a limit, one missing quote would bring the whole file into memory.
LARGEST_RECORD = 1 << 24
# Characters that are decoded at once: one call for some hundred records costs half of a call for each.
BATCH = 1 << 16
_BLANKS = " \t\r\n"


class _RepeatedKeyError(ValueError):
    """A record has one key twice."""


def keep_keys(pairs: list[tuple[str, Any]]) -> Record:
    """The record of these pairs, for `object_pairs_hook`; a repeated key, of which json takes the last, is refused."""
    record = dict(pairs)
    if len(record) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise _RepeatedKeyError(f"the key {_shorten(twice)} stands twice in {_shorten(pairs)}")
    return record


_DECODER = json.JSONDecoder(object_pairs_hook=keep_keys)


def read_records(
    file: str | os.PathLike[str], keys: Sequence[str], *, progress: bool = False
) -> Iterator[tuple[str, int, Record]]:
    """Every record of the arrays `keys`, as (key, number from 0, record), in the order of the file.

    Args:
        file: A JSON file with an object at its top.
        keys: Which of the object's arrays to read; each must be there. All else is passed over.
        progress: Show a progress bar, in MiB, when reading takes longer than two seconds.

    Raises:
        DataError: The file is missing, no such JSON, or ends too soon; the message names the key and the record.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "train.json")
        ...     _ = file.write_text('{"info": {"year": 2018}, "images": [{"id": 7}, {"id": 9}]}')
        ...     list(read_records(file, ["images"]))
        [('images', 0, {'id': 7}), ('images', 1, {'id': 9})]
    """
    place = Path(file)
    if not place.is_file():
        raise DataError(f"{place} is not a file, so there are no records to read. Check the path, and unpack archives.")
    try:
        with place.open("rb") as source:
            total = -(-place.stat().st_size // CHUNK)
            chunks = track(
                iter(lambda: source.read(CHUNK), b""), total, what=f"reading {place.name} (MiB)", progress=progress
            )
            yield from _Reader(place, chunks).records(keys)
    except OSError as error:
        raise DataError(f"{place} cannot be read ({error.strerror}), so records are missing. Mend the disk.") from error


class _Reader:
    """A text that grows at its end and is forgotten at its start."""

    def __init__(self, place: Path, chunks: Iterator[bytes]):
        self.place = place
        self.chunks = chunks
        self.decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self.text = ""
        self.at = 0
        self.is_complete = False
        self.slow_until = 0
        self.key = ""
        self.number: int | None = None

    def records(self, keys: Sequence[str]) -> Iterator[tuple[str, int, Record]]:
        """All records of the wanted arrays."""
        seen: list[str] = []
        self.expect("{")
        while self.peek() != "}":
            if seen:
                self.expect(",")
            self.key, self.number = self.new_key(seen), None
            seen.append(self.key)
            self.expect(":")
            if self.peek() != "[":
                if self.key in keys:
                    raise self.broken("it is no list of records")
                self.value()
                continue
            for number, record in self.items():
                if self.key in keys:
                    if not isinstance(record, dict):
                        raise self.broken(f"{_shorten(record)} is no record with fields")
                    yield self.key, number, record
        self.expect("}")
        if self.peek():
            raise self.broken("something follows the end of all")
        missing = [key for key in keys if key not in seen]
        if missing:
            raise DataError(
                f"{self.place} has no {quote(missing)} (it has {quote(seen, 20)}), so labels would be missing. "
                "Take the dataset's own file, unchanged; lists of test images have no labels."
            )

    def new_key(self, seen: Sequence[str]) -> str:
        """The next key, which must be text and new."""
        key = self.value()
        if not isinstance(key, str) or key in seen:
            what = "there already" if key in seen else "no key"
            raise self.broken(f"after it comes {_shorten(key)}, which is {what}")
        return key

    def items(self) -> Iterator[tuple[int, object]]:
        """The values of an array with their numbers."""
        self.expect("[")
        number = 0
        while self.peek() != "]":
            if number:
                self.expect(",")
            self.number = number
            for value in self.values():
                self.number = number
                yield number, value
                number += 1
        self.expect("]")

    def values(self) -> list[object]:
        """The next values of an array: many if a stretch up to some "}" is a list of whole ones, else one."""
        self.peek()
        end = self.text.rfind("}", self.at, self.at + BATCH) + 1
        if end and self.at >= self.slow_until:
            try:
                found = _DECODER.decode(f"[{self.text[self.at : end]}]")
            except (ValueError, RecursionError):
                # A bracket within a record or a text, the end of the array, or damage: look closely as far as this.
                self.slow_until = end
            else:
                self.at = end
                return found
        return [self.value()]

    def value(self) -> Any:
        """The next value, whole."""
        self.peek()
        wanted = CHUNK
        while True:
            try:
                found, end = _DECODER.raw_decode(self.text, self.at)
            except RecursionError:
                raise self.broken("it is nested too deeply") from None
            except _RepeatedKeyError as error:
                raise self.broken(str(error)) from None
            except ValueError as error:  # no JSON, or a number of thousands of digits
                if self.is_complete or len(self.text) - self.at > LARGEST_RECORD:
                    raise self.broken(_explain(error, self.text)) from None
            else:
                # A number that ends where the text does may go on in the next chunk.
                if end < len(self.text) or self.is_complete:
                    self.at = end
                    return found
            self.grow(wanted)
            wanted *= 2

    def peek(self) -> str:
        """The next character that is no blank; "" at the end of the file."""
        while True:
            text, at = self.text, self.at
            while at < len(text) and text[at] in _BLANKS:
                at += 1
            self.at = at
            if at < len(text):
                return text[at]
            if self.is_complete:
                return ""
            self.grow(CHUNK)

    def expect(self, mark: str) -> None:
        """Goes past one character, which must be the next."""
        found = self.peek()
        if found != mark:
            raise self.broken(f"{found!r} stands where {mark!r} should" if found else "the file ends there")
        self.at += 1

    def grow(self, wanted: int) -> None:
        """Forgets what was read and adds at least so many bytes, if the file has them."""
        parts = [self.text[self.at :]]
        self.slow_until -= self.at
        self.at = 0
        try:
            while wanted > 0 and not self.is_complete:
                chunk = next(self.chunks, b"")
                self.is_complete = not chunk
                wanted -= len(chunk)
                parts.append(self.decoder.decode(chunk, final=self.is_complete))
        except UnicodeDecodeError as error:
            raise self.broken(f"it is not UTF-8: {error.reason}") from error
        self.text = "".join(parts)

    def broken(self, what: str) -> DataError:
        """The error for a file that is no such JSON."""
        where = f"{self.key!r}" if self.key else "at its start"
        where += "" if self.number is None else f", record {self.number}"
        return DataError(
            f"{self.place} is damaged or no such JSON ({where}: {what}), so records would be missing or wrong. "
            "Unpack or fetch it again."
        )


def _explain(error: ValueError, text: str) -> str:
    """What the decoder says, or that the file ends too soon."""
    if not isinstance(error, json.JSONDecodeError):
        return str(error)
    is_cut = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
    return "the file ends in the middle of it" if is_cut else error.msg


def _shorten(value: object, at_most: int = 60) -> str:
    """A value as text, cut."""
    shown = repr(value)
    return shown if len(shown) <= at_most else f"{shown[:at_most]}..."
