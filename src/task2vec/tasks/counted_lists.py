"""Text lists that begin with their length and a header, as DeepFashion's: a name or a path, blanks, a word."""

from collections.abc import Iterator
from pathlib import Path

from task2vec.errors import DataError

# A count and a header stand above the first entry.
FIRST_LINE = 3


def read_pairs(place: Path, what: str) -> Iterator[tuple[int, str, str]]:
    r"""Line number, name and last word of every entry; names may hold single blanks.

    Args:
        place: The file.
        what: What an entry tells, for messages: "category".

    Raises:
        DataError: The file cannot be read, an entry has one word only, or there are more or fewer entries than the
            first line promises.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     place = Path(folder, "list.txt")
        ...     _ = place.write_text("2\nattribute_name  attribute_type\na-line     3\nabstract floral   1\n")
        ...     list(read_pairs(place, "type"))
        [(3, 'a-line', '3'), (4, 'abstract floral', '1')]
    """
    try:
        with place.open(encoding="utf-8-sig") as file:
            count, found = read_count(place, file.readline().encode()), 0
            file.readline()
            for number, line in enumerate(file, start=FIRST_LINE):
                words = line.rsplit(None, 1)
                if len(words) == 2:
                    found += 1
                    yield number, words[0].strip(), words[1]
                elif words:
                    raise DataError(
                        f"{place}, line {number}: {words[0]!r} has no {what} beside it, so nothing is known of it. "
                        "The file is cut or edited; unpack it again."
                    )
    except OSError as error:
        raise DataError(f"{place} cannot be read ({error.strerror}). Check the path and its permissions.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{place} is not UTF-8 text ({error.reason}). Use the file as published.") from error
    check_count(place, found, count)


def read_count(place: Path, line: bytes) -> int:
    """The number of entries that the first line promises."""
    word = line.removeprefix(b"\xef\xbb\xbf").strip()
    if not word.isdigit() or len(word) > 18:  # int refuses thousands of digits
        raise DataError(
            f"{place}, line 1: {line[:40].decode(errors='replace').strip()!r} is not the number of entries that the "
            "file should begin with, so nothing tells whether it is whole. Use the file as published."
        )
    return int(word)


def check_count(place: Path, found: int, promised: int) -> None:
    """Refuses a list that is shorter or longer than its first line says."""
    if found != promised:
        raise DataError(
            f"{place} has {found} entries, and line 1 promises {promised}: some are missing or too many. "
            "Unpack the file again."
        )
