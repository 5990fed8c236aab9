"""The columns of a table (CSV, Parquet, a frame or a dict), and labels from cells."""

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from task2vec.errors import DataError, MissingExtraError, UsageError
from task2vec.text import quote

SUFFIXES = (".csv", ".tsv", ".parquet", ".pq")
DELIMITERS = ",;\t|"
PATH = "path"
BINARY = {"0": 0, "0.0": 0, "False": 0, "false": 0, "1": 1, "1.0": 1, "True": 1, "true": 1}
# A Parquet table may need this many times its size in memory, and a gigabyte in any case.
MAX_GROWTH = 50
MIN_MEMORY = 1 << 30
CELL_BYTES = 40  # of a number in a list
BATCH_ROWS = 1 << 14


class HuggingFaceFilesError(DataError):
    """The files of a Hugging Face dataset where a folder of class folders or a table of paths is expected."""


def refuse_huggingface(path: Path, evidence: str) -> NoReturn:
    """Raise the error for the files of a Hugging Face dataset."""
    raise HuggingFaceFilesError(
        f"{path} is a Hugging Face dataset ({evidence}): its images are inside its data files. Read it with "
        f"task2vec.from_huggingface({str(path)!r}), or name it to a command: task2vec embed PATH"
    )


def read_start(file: Path, size: int) -> bytes:
    """The first bytes of a file; none of one that may not be read."""
    try:
        with file.open("rb") as content:
            return content.read(size)
    except OSError:
        return b""


# --- columns ---------------------------------------------------------------------------------------------------------


class Columns(dict[str, list]):
    """The cells of a table by column.

    Attributes:
        source: The path of the file, or the type of the frame.
        lines: The line of the file that each row begins in; empty if rows are not lines.
        delimiter: What separates the cells of a text file.
    """

    source: str
    lines: Sequence[int] = ()
    delimiter: str = ","

    def locate(self, row: int) -> str:
        """The table and the line of a row, or the number of the row, both counted from 1."""
        return f"{self.source}, {f'line {self.lines[row]}' if self.lines else f'row {row + 1}'}"


def is_frame(table: Any) -> bool:
    """Whether something is a pandas or polars frame, or a dict of columns."""
    return isinstance(table, Mapping) or all(hasattr(table, name) for name in ("columns", "shape", "__getitem__"))


def read_frame(table: Any) -> Columns:
    """The cells of a frame, or of a dict of columns, as Python values."""
    if not is_frame(table):
        raise UsageError(f"a {type(table).__name__} is not a table. Pass the path of one, or a pandas or polars frame.")
    columns = Columns()
    columns.source = f"the {type(table).__name__}"
    for name in table if isinstance(table, Mapping) else table.columns:
        cells = table[name]
        columns[str(name)] = cells.tolist() if hasattr(cells, "tolist") else list(cells)
    lengths = sorted({len(cells) for cells in columns.values()})
    if len(lengths) > 1:
        raise UsageError(
            f"the columns have {quote([*map(str, lengths)])} cells, so rows are unclear. Pass equally long ones."
        )
    return columns


def read_columns(path: Path, path_column: str = PATH) -> Columns:
    """The cells of a table by column: text for CSV, Python values for Parquet.

    A Parquet table that holds images, and no column of their paths, is refused before they are read.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(
            f"{path} does not end in .csv, .tsv or .parquet, so its format is unknown. Convert or rename it."
        )
    if not path.is_file():
        raise DataError(f"{path} is not a file, so there is no table to read. Check the path.")
    columns = _read_csv(path) if suffix in (".csv", ".tsv") else _read_parquet(path, path_column)
    columns.source = str(path)
    return columns


def _read_csv(path: Path) -> Columns:
    """The columns of a text file in UTF-8, or UTF-16 with its mark; a row of another length is refused by its line.

    Cells are separated by the delimiter that the first line has most of, outside of quotes.
    """
    try:
        encoding = "utf-16" if read_start(path, 2) in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        with path.open(encoding=encoding, newline="") as file:
            unquoted = re.sub(r'"[^"]*"', "", file.readline())
        delimiter = max(DELIMITERS, key=unquoted.count)
        with path.open(encoding=encoding, newline="") as file:
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            header = next(reader, [])
            rows, lines = [], []
            end = reader.line_num
            for row in reader:
                begin, end = end + 1, reader.line_num
                if not row:
                    continue
                if len(row) != len(header):
                    raise DataError(
                        f"{path}, line {begin}: {len(row)} cells where the header has {len(header)}, so values are in "
                        f"the wrong columns. Quote cells that contain {delimiter!r}."
                    )
                rows.append(row)
                lines.append(begin)
    except (UnicodeDecodeError, csv.Error, OSError) as error:
        raise DataError(f"{path} cannot be read as CSV ({error}). Save it as comma-separated UTF-8 text.") from error
    repeated = [column for column in dict.fromkeys(header) if header.count(column) > 1]
    if repeated:
        raise DataError(f"{path} has two columns with the same name ({quote(repeated)}). Rename one.")
    columns = Columns({column: [row[index] for row in rows] for index, column in enumerate(header)})
    columns.lines = lines
    columns.delimiter = delimiter
    return columns


def _read_parquet(path: Path, path_column: str) -> Columns:
    """The columns of a Parquet file, equal texts kept once; refused if they need far more memory than the file's size.

    A few bytes of such a file may stand for any number of rows, and for a text of any length.
    """
    try:
        from pyarrow import ArrowException, parquet, types
    except ImportError as error:
        raise MissingExtraError(
            f"{path} is Parquet, which needs pyarrow, and that is not installed. Run: pip install 'task2vec[table]'"
        ) from error
    size = path.stat().st_size

    def check_memory(needed: int) -> None:
        if needed > max(MIN_MEMORY, MAX_GROWTH * size):
            raise DataError(
                f"{path} has {size} bytes, and its cells would fill the memory, unlike any list of images. Check where "
                "it comes from; save it as CSV if it is valid."
            )

    try:
        kinds = {field.name: field.type for field in parquet.read_schema(path)}
        if path_column not in kinds or types.is_struct(kinds[path_column]):
            for name, kind in kinds.items():
                if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
                    refuse_huggingface(path, f"its column {name!r} holds the images themselves")
        texts = [name for name, kind in kinds.items() if types.is_string(kind) or types.is_large_string(kind)]
        with parquet.ParquetFile(path, read_dictionary=texts) as file:
            stored = sum(file.metadata.row_group(group).total_byte_size for group in range(file.num_row_groups))
            check_memory(max(stored, CELL_BYTES * file.metadata.num_rows * len(kinds)))
            columns = Columns({name: [] for name in kinds})
            needed = 0
            for batch in file.iter_batches(batch_size=BATCH_ROWS):
                needed += batch.nbytes + CELL_BYTES * batch.num_rows * batch.num_columns
                check_memory(needed)
                for name, cells in zip(batch.schema.names, batch.columns, strict=True):
                    columns[name] += _take_cells(cells)
            return columns
    except DataError:
        raise
    except (ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as Parquet ({error}). Write it again, or save it as CSV.") from error


def _take_cells(cells: Any) -> list:
    """The cells of a column as Python values; a text that a dictionary holds once is created once."""
    if not hasattr(cells, "dictionary"):
        return cells.to_pylist()
    values = cells.dictionary.to_pylist()
    return [None if index is None else values[index] for index in cells.indices.to_pylist()]


# --- labels ----------------------------------------------------------------------------------------------------------


def encode_labels(columns: Mapping[str, list], locate: Callable[[str, int], str]) -> tuple[np.ndarray, Sequence[str]]:
    """Labels and classes of label columns, one of classes or several of 0 and 1; `locate` names a cell in messages."""
    if len(columns) > 1:
        labels = []
        for column, cells in columns.items():
            labels.append([BINARY.get(str(cell).strip()) for cell in cells])
            if None in labels[-1]:
                row = labels[-1].index(None)
                raise DataError(
                    f"{locate(column, row)}: {cells[row]!r} is not 0 or 1, as it must be with several label columns: "
                    f"{quote(list(columns), 20)}. For one class per image name one: label_columns= (--label-columns)."
                )
        return np.array(labels, np.uint8).T, list(columns)
    ((column, cells),) = columns.items()
    names = check_cells(cells, partial(locate, column))
    try:
        decimal = [row for row, name in enumerate(names) if float(name) % 1]
    except ValueError:  # a name among them
        decimal = []
    if decimal:
        refuse_regression(locate(column, decimal[0]), names[decimal[0]])
    number = {str(cell): index for index, cell in enumerate(sorted(set(cells)))}
    return np.array([number[name] for name in names], dtype=np.int64), list(number)


def check_cells(cells: Sequence[object], locate: Callable[[int], str]) -> list[str]:
    """The cells of a column as text; an empty, missing or floating-point one names neither a file nor a class."""
    for row, value in enumerate(cells):
        if isinstance(value, float) and value == value:
            refuse_regression(locate(row), repr(value))
        if value is None or str(value).strip().lower() in ("", "nan"):
            raise DataError(
                f"{locate(row)}: {value!r} is missing, so the image has no path or class. Fill it in, or drop the row; "
                "test splits are often published without labels."
            )
    return list(map(str, cells))


def refuse_regression(source: str, example: str) -> NoReturn:
    """Raise the `DataError` for labels that are decimal numbers."""
    raise DataError(
        f"{source} holds decimal numbers (such as {example}): a regression target, and regression is not supported. "
        "Bin it into classes first (numpy.digitize(values, edges)), or write class numbers as integers."
    )
