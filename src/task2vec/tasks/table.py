"""A table of paths and labels becomes a task: CSV, or Parquet where pyarrow is installed."""

import csv
import os
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from task2vec.errors import DataError, MissingExtraError, UsageError
from task2vec.tasks.check import quote
from task2vec.tasks.files import read_files
from task2vec.tasks.foreign import refuse_embedded_images
from task2vec.tasks.regression import refuse_regression
from task2vec.tasks.task import Task

SUFFIXES = (".csv", ".parquet", ".pq")
PATH = "path"
# What a Parquet table may take in memory: its size many times over, and a gigabyte in any case.
LEAST_ROOM, MOST_GROWTH = 1 << 30, 50
CELL_BYTES = 40  # of a number in a list
BATCH = 1 << 14
BINARY = {"0": 0, "0.0": 0, "False": 0, "false": 0, "1": 1, "1.0": 1, "True": 1, "true": 1}


class Columns(dict[str, list]):
    """The cells of a table by column, and for CSV the line that each row begins in."""

    lines: Sequence[int] = ()

    def tell_row(self, row: int) -> str:
        """Where a row stands: its line, or its number, both counted from 1 as editors and people do."""
        return f"line {self.lines[row]}" if self.lines else f"row {row + 1}"


def read_table(
    table: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    path_column: str = PATH,
    label_columns: str | Sequence[str] | None = None,
    name: str | None = None,
    allow_bad: bool = False,
    workers: int | None = None,
    progress: bool = False,
) -> Task:
    r"""The task of a CSV or Parquet table with one image per row.

    One label column makes a single-label task, its values verbatim the class names. Several make a multi-label task of
    their 0 and 1, the columns' names being the classes.

    Args:
        table: A file ending in .csv or .parquet; its first row or its schema names the columns.
        root: The folder that the paths are relative to and must not leave; the table's own folder if not given.
        path_column: The column of paths.
        label_columns: The columns of labels; all but the path column if not given.
        name: What to call the task; the table's name without its ending if not given.
        allow_bad: Go on when more than 5 % of the images cannot be read.
        workers: Threads that decode; chosen from the number of processors if not given. It does not change the task.
        progress: Show a progress bar when reading takes longer than two seconds.

    Raises:
        BadImagesError: More than 5 % of the images cannot be read, and `allow_bad` is false.
        DataError: The table is not a task: it has no path or no label, or several label columns are not 0 and 1.
        MissingExtraError: The table is Parquet and pyarrow is not installed.
        UsageError: A column that was named is not there or named twice, or there is no such root.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for shade in range(2):
        ...         Image.new("L", (8, 8), shade).save(Path(folder, f"{shade}.png"))
        ...     table = Path(folder, "skies.csv")
        ...     _ = table.write_text("path,label\n0.png,dawn\n1.png,dusk\n")
        ...     read_table(table)
        Task(skies, 2 images, 2 classes)
    """
    place = Path(table)
    columns = read_columns(place, path_column=path_column)
    label_columns = [label_columns] if isinstance(label_columns, str) else label_columns
    wanted = [column for column in columns if column != path_column] if label_columns is None else list(label_columns)
    _check_columns(place, columns, [path_column, *wanted])
    paths = _check_cells(place, columns, path_column)
    if len(wanted) == 1:
        cells = _check_cells(place, columns, wanted[0])
        classes = sorted(set(cells))
        _refuse_decimals(place, wanted[0], classes)
        number = {kind: index for index, kind in enumerate(classes)}
        labels = np.asarray([number[cell] for cell in cells], dtype=np.int64)
    else:
        classes = wanted
        labels = np.asarray([_binary(place, columns, column) for column in wanted], dtype=np.uint8).T
    return read_files(
        _check_root(place.parent if root is None else Path(root)),
        paths,
        labels,
        classes=classes,
        name=place.stem if name is None else name,
        source=str(table),
        allow_bad=allow_bad,
        workers=workers,
        progress=progress,
    )


def read_columns(place: Path, *, path_column: str | None = None) -> Columns:
    """The cells of a table by column: text for CSV, Python values for Parquet.

    With `path_column`, a table that holds images instead of paths is refused before they are read.
    """
    suffix = place.suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(f"{place} does not end in .csv or .parquet, so its format is unknown. Convert or rename it.")
    if not place.is_file():
        raise DataError(f"{place} is not a file, so there is no table to read. Check the path.")
    return _read_csv(place) if suffix == ".csv" else _read_parquet(place, path_column)


def _read_csv(place: Path) -> Columns:
    """The columns of a comma-separated file in UTF-8; a row with too few or too many cells is refused by its line."""
    try:
        with place.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, [])
            rows, lines, end = [], array("q"), reader.line_num
            for row in reader:
                begin, end = end + 1, reader.line_num
                if not row:
                    continue
                if len(row) != len(header):
                    raise DataError(
                        f"{place}, line {begin}: {len(row)} cells where the header has {len(header)}, so "
                        "values stand in the wrong columns. Separate by commas, and quote cells that contain one."
                    )
                rows.append(row)
                lines.append(begin)
    except (UnicodeDecodeError, csv.Error, OSError) as error:
        raise DataError(f"{place} cannot be read as CSV ({error}). Save it as comma-separated UTF-8 text.") from error
    if len(set(header)) < len(header):
        twice = [column for column in dict.fromkeys(header) if header.count(column) > 1]
        raise DataError(f"{place} has two columns of one name ({quote(twice)}): which is meant? Rename one.")
    columns = Columns({column: [row[index] for row in rows] for index, column in enumerate(header)})
    columns.lines = lines
    return columns


def _read_parquet(place: Path, path_column: str | None) -> Columns:
    """The columns of a Parquet file."""
    try:
        from pyarrow import ArrowException, parquet, types
    except ImportError as error:
        raise MissingExtraError(
            f"{place} is Parquet, which needs pyarrow, and that is not installed. Run: pip install 'task2vec[table]'"
        ) from error
    try:
        schema = parquet.read_schema(place)
        if path_column is not None:
            refuse_embedded_images(place, schema, path_column)
        texts = [field.name for field in schema if types.is_string(field.type) or types.is_large_string(field.type)]
        with parquet.ParquetFile(place, read_dictionary=texts) as file:
            return _take_batches(file, place)
    except DataError:
        raise
    except (ArrowException, OSError, ValueError) as error:
        raise DataError(f"{place} cannot be read as Parquet ({error}). Write it again, or save it as CSV.") from error


def _take_batches(file: Any, place: Path) -> Columns:
    """The columns of an open Parquet file, equal texts kept once; `DataError` if they take far more room than the file.

    A few bytes of such a file may stand for any number of rows, and for a text of any length.
    """
    size, groups = place.stat().st_size, range(file.num_row_groups)
    room = max(LEAST_ROOM, MOST_GROWTH * size)
    columns = Columns({name: [] for name in file.schema_arrow.names})
    _check_room(room - sum(file.metadata.row_group(group).total_byte_size for group in groups), place)
    _check_room(room - CELL_BYTES * file.metadata.num_rows * len(columns), place)
    for batch in file.iter_batches(batch_size=BATCH):
        room -= batch.nbytes + CELL_BYTES * batch.num_rows * batch.num_columns
        _check_room(room, place)
        for name, cells in zip(batch.schema.names, batch.columns, strict=True):
            columns[name] += _take_cells(cells)
    return columns


def _check_room(left: int, place: Path) -> None:
    """Raise `DataError` if there is no room left."""
    if left < 0:
        raise DataError(
            f"{place} has {place.stat().st_size} bytes, and its cells would fill the memory, as those of no list of "
            "images do. Check who made it; save it as CSV if it is meant so."
        )


def _take_cells(cells: Any) -> list:
    """The cells of a column as Python values; a text that a dictionary holds once is made once."""
    if not hasattr(cells, "dictionary"):
        return cells.to_pylist()
    values = cells.dictionary.to_pylist()
    return [None if place is None else values[place] for place in cells.indices.to_pylist()]


def _check_columns(place: Path, columns: Columns, wanted: list[str]) -> None:
    """Raise an error unless every wanted column is there, once, and there is a label column among them."""
    missing = [column for column in wanted if column not in columns]
    if missing or len(wanted) < 2 or len(set(wanted)) < len(wanted):
        what = f"has no column {quote(missing)}" if missing else "needs one path column and at least one label column"
        is_named = len(set(wanted)) < len(wanted) or any(column != PATH for column in missing)
        raise (UsageError if is_named else DataError)(
            f"{place} {what}; its columns are {quote(list(columns), 20)}, and images or labels would be missing. "
            "Name them, each once: path_column= and label_columns= (--path-column, --label-column)."
        )


def _refuse_decimals(place: Path, column: str, classes: list[str]) -> None:
    """Raise `DataError` if all labels are numbers and one of them is a decimal number: that is measured, not named."""
    try:
        decimal = [cell for cell in classes if float(cell) % 1]
    except ValueError:  # a name among them
        return
    if decimal:
        refuse_regression(f"{place}, column {column!r}", example=decimal[0])


def _check_cells(place: Path, columns: Columns, column: str) -> list[str]:
    """The cells of a column as text; an empty, missing or floating-point one names neither a file nor a class."""
    return [
        _as_name(value, lambda row=row: f"{place}, {columns.tell_row(row)}, column {column!r}")
        for row, value in enumerate(columns[column])
    ]


def _as_name(value: object, tell: Callable[[], str]) -> str:
    """The cell as text, if it names anything."""
    is_missing = value is None or (isinstance(value, str) and value.strip().lower() in ("", "nan"))
    if isinstance(value, float) and value == value:
        refuse_regression(tell(), example=repr(value))
    if is_missing or isinstance(value, float):
        raise DataError(
            f"{tell()}: {value!r} is missing, so the image has no path or class. "
            "Fill it in, write classes as whole numbers or text, or drop the row."
        )
    return str(value)


def _binary(place: Path, columns: Columns, column: str) -> list[int]:
    """The 0 and 1 of one column of a multi-label table; anything else is refused by its row."""
    cells = columns[column]
    values = [BINARY.get(str(cell).strip()) for cell in cells]
    if None in values:
        row = values.index(None)
        raise DataError(
            f"{place}, {columns.tell_row(row)}, column {column!r}: {cells[row]!r} is not 0 or 1, as several label "
            "columns must be: nothing else says yes or no. For one class per image name that column alone: "
            "label_columns= (--label-column)."
        )
    return [value for value in values if value is not None]


def _check_root(root: Path) -> Path:
    """The resolved root, which must be a folder."""
    if not root.is_dir():
        raise UsageError(
            f"the root {root} is not a folder, so no path leads anywhere. Give the folder of the images: root=, --root."
        )
    return root.resolve()
