"""Tables of strangers: CSV files, read so that every complaint has its line."""

import csv
import io
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from task2vec.errors import DataError

_UNKNOWN = ("", "nan", "na", "n/a", "none", "-")


@dataclass(frozen=True)
class Table:
    """A file of comma-separated values: its headings, and its rows with the lines that they stand in."""

    path: Path
    heads: tuple[str, ...]
    rows: tuple[tuple[int, tuple[str, ...]], ...]

    def fail(self, line: int, what: str, mend: str) -> DataError:
        """The error that says where it is."""
        return DataError(f"line {line} of '{self.path}' {what}. {mend}")


def read_table(path: str | Path) -> Table:
    """The table in a file; commas, semicolons or tabs between its cells, empty lines do not count."""
    path = Path(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise DataError(f"'{path}' cannot be read as a table: {reason}. Give a CSV file in UTF-8.") from error
    first = text.split("\n", 1)[0]
    mark = max(",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text), delimiter=mark)
    try:
        lines = [(reader.line_num, tuple(cell.strip() for cell in row)) for row in reader]
    except csv.Error as error:
        raise DataError(f"line {reader.line_num} of '{path}' is no line of a CSV file: {error}. Mend it.") from error
    lines = [(line, row) for line, row in lines if any(row)]
    if len(lines) < 2 or len(lines[0][1]) < 2:
        raise DataError(
            f"'{path}' has {len(lines)} lines and {len(lines[0][1]) if lines else 0} columns, and no table is that "
            "small. Give a heading and a row for each task, comma-separated."
        )
    table = Table(path, lines[0][1], tuple(lines[1:]))
    doubled = [head for head, count in Counter(table.heads).items() if count > 1 and head]
    if doubled:
        raise table.fail(lines[0][0], f"has two columns '{doubled[0]}'", "Rename or remove one.")
    for line, row in table.rows:
        if len(row) != len(table.heads):
            raise table.fail(line, f"has {len(row)} cells where the heading has {len(table.heads)}", "Mend that line.")
    return table


def parse_number(table: Table, line: int, text: str, what: str) -> float:
    """A number, NaN for what is not known."""
    if text.lower() in _UNKNOWN:
        return np.nan
    try:
        value = float({"true": "1", "false": "0"}.get(text.lower(), text))
    except ValueError:
        raise table.fail(
            line, f"has '{text}' where {what} is a number", "Correct it, or leave the cell empty."
        ) from None
    if not np.isfinite(value):
        raise table.fail(line, f"has '{text}' where {what} is a finite number", "Correct it, or leave the cell empty.")
    return value
