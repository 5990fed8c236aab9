"""A table of paths and labels becomes a task: a frame, CSV, or Parquet where pyarrow is installed."""

import csv
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from task2vec.errors import DataError, MissingExtraError, UsageError
from task2vec.tasks.folder import IMAGE_SUFFIXES, read_start, refuse_huggingface
from task2vec.tasks.images import StrPath, open_files
from task2vec.tasks.task import Task, make_task, refuse_regression
from task2vec.text import quote

SUFFIXES = (".csv", ".tsv", ".parquet", ".pq")
DELIMITERS = ",;\t|"
SAMPLE_ROWS = 20  # that must agree on a delimiter
PATH = "path"
# Usual names of columns, without spaces and marks: paths, labels, and what is neither.
PATHS = "path filepath imagepath imgpath file filename imagefile imagename image img pfad datei dateiname"
LABELS = "label class classname classlabel target category klasse kategorie"
NO_LABELS = "split set subset fold partition isvalid istest index unnamed0"
BINARY = {"0": 0, "0.0": 0, "False": 0, "false": 0, "1": 1, "1.0": 1, "True": 1, "true": 1}
# A Parquet table may need this many times its size in memory, and a gigabyte in any case.
MIN_MEMORY, MAX_GROWTH = 1 << 30, 50
CELL_BYTES = 40  # of a number in a list
BATCH_ROWS = 1 << 14


class Columns(dict[str, list]):
    """The cells of a table by column, and for CSV the line that each row begins in and what separates cells."""

    lines: Sequence[int] = ()
    delimiter: str = ","

    def format_row(self, row: int) -> str:
        """The line of a row in the file, or its number, both counted from 1."""
        return f"line {self.lines[row]}" if self.lines else f"row {row + 1}"


def read_table(
    table: StrPath | Any,
    *,
    root: StrPath | None = None,
    path_column: str | None = None,
    label_columns: str | Sequence[str] | None = None,
    name: str | None = None,
    allow_bad: bool = False,
    num_workers: int | None = None,
    progress: bool = False,
) -> Task:
    r"""The task of a CSV or Parquet table, or of a pandas or polars frame, with one image per row.

    One label column makes a single-label task; its values are the class names, verbatim. Several make a multi-label
    task of their 0 and 1; the column names are the classes.

    Args:
        table: A file ending in .csv, .tsv or .parquet, whose first row or schema names the columns; cells are separated
            by commas, semicolons, tabs or bars. Or a frame, or a dict of columns.
        root: The folder that the paths are relative to and must not leave; the table's own folder if not given. Paths
            of a frame are relative to the current folder if not given, and may name any file.
        path_column: The column of paths; found by its name (path, file_name, image ...) or content if not given.
        label_columns: The columns of labels. If not given, all but those of paths and splits; if these are not all 0
            and 1, the one that is named like a label (label, class, target ...).
        name: The name of the task; the file name without its ending if not given.
        allow_bad: Continue if more than 5% of the images cannot be read.
        num_workers: Threads that decode; by default chosen from the number of CPU cores. The task is the same.
        progress: Show a progress bar when reading takes longer than two seconds.

    Raises:
        BadImagesError: More than 5% of the images cannot be read, and `allow_bad` is false.
        DataError: The table is not a task: it has no path or no label, or several label columns are not 0 and 1.
        MissingExtraError: The table is Parquet and pyarrow is not installed.
        UsageError: A named column does not exist or is named twice, or the root is not a folder.

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
    is_file = isinstance(table, str | os.PathLike)
    place = Path(table) if is_file else f"the {type(table).__name__}"
    columns = read_columns(place, path_column or PATH) if isinstance(place, Path) else _read_frame(table)
    label_columns = [label_columns] if isinstance(label_columns, str) else label_columns
    path, wanted, notes = _choose_columns(place, columns, path_column, label_columns)

    def where(column: str, row: int) -> str:
        return f"{place}, {columns.format_row(row)}, column {column!r}"

    paths = check_cells(columns[path], partial(where, path))
    labels, classes = encode_labels({column: columns[column] for column in wanted}, where)
    folder = Path(root if root is not None else place.parent if isinstance(place, Path) else os.curdir)
    if not folder.is_dir():
        raise UsageError(f"the root {folder} is not a folder. Pass the folder that holds the images: root=, --root.")
    if root is None and not is_file:
        images = replace(open_files(Path(folder.resolve().anchor), [*map(os.path.abspath, paths)]), names=paths)
    else:
        images = open_files(folder.resolve(), paths)
    default_name, source = (place.stem, str(table)) if isinstance(place, Path) else (type(table).__name__,) * 2
    about = {"classes": classes, "name": name or default_name, "source": source, "notes": notes}
    return make_task(images, labels, **about, allow_bad=allow_bad, num_workers=num_workers, progress=progress)


def _choose_columns(
    place: Path | str, columns: Columns, path: str | None, labels: Sequence[str] | None
) -> tuple[str, list[str], list[str]]:
    """The column of paths, those of labels, and notes; what is not given is found by its name, then by its content."""

    def is_path(column: str) -> bool:
        return bool(columns[column]) and all(
            os.path.splitext(str(cell))[1].lower() in IMAGE_SUFFIXES for cell in columns[column]
        )

    def is_id(column: str) -> bool:
        """Whether every cell is another one, so none is a label; of few cells, some may be attributes."""
        cells = {str(cell).strip() for cell in columns[column]}
        return 2 < len(columns[column]) == len(cells) > 2 * len(cells.intersection(BINARY))

    def find(usual: str) -> list[str]:
        return [column for column in columns if _simplify(column) in usual.split()]

    data = [one for one in columns if os.path.splitext(one)[1].lower() in IMAGE_SUFFIXES and is_path(one)]
    if data:
        raise DataError(
            f"{place} has no line with the names of its columns: it begins with {data[0]!r}, an image, which would be "
            "lost. Add a first line, such as path,label."
        )
    if path or PATH in columns:
        paths = [path or PATH]
    else:
        named = [column for column in find(PATHS) if column not in (labels or ())]
        likely = [column for column in columns if is_path(column) and column not in (labels or ())]
        paths = [column for column in named if column in likely] or likely or named
    wanted, unused = list(labels or ()), []
    if labels is None:
        wanted = [column for column in columns if column not in ("", *paths, *find(NO_LABELS))]  # "": pandas' row names
        wanted = [column for column in wanted if not is_id(column)] or wanted
        named = [column for column in find(LABELS) if column in wanted]
        if len(named) == 1 and not all(str(cell).strip() in BINARY for one in wanted for cell in columns[one]):
            wanted = named
        unused = [column for column in columns if column not in (*paths, *wanted)]
    missing = [column for column in (*paths, *wanted) if column not in columns]
    is_twice = len({*paths, *wanted}) < len(paths) + len(wanted)
    if missing or is_twice or not wanted or len(paths) != 1:
        if len(paths) > 1:
            what = f"has several columns that may be paths ({quote(paths)})"
        elif missing or not paths:
            what = f"has no column {quote(missing or [PATH])}"
        else:
            what = "needs one column of labels or more"
        raise (UsageError if is_twice or missing else DataError)(
            f"{place} {what}; its columns are {quote(list(columns), 20)}. "
            "Name them, each once: path_column= and label_columns= (--path-column, --label-columns)."
        )
    notes = [f"columns that are not used as labels: {quote(unused)}; all rows are used"] if unused else []
    if (not path and paths[0] != PATH) or columns.delimiter != ",":
        cells = "" if columns.delimiter == "," else f"; cells are separated by {columns.delimiter!r}"
        notes.append(f"paths are those of column {paths[0]!r}, labels of {quote(wanted)}{cells}")
    return paths[0], wanted, notes


def _simplify(column: str) -> str:
    """The name of a column in lower case, without spaces and marks."""
    return re.sub(r"[\W_]", "", column).lower()


def is_frame(table: Any) -> bool:
    """Whether something is a pandas or polars frame, or a dict of columns."""
    return isinstance(table, Mapping) or all(hasattr(table, name) for name in ("columns", "shape", "__getitem__"))


def _read_frame(table: Any) -> Columns:
    """The cells of a frame, or of a dict of columns, as Python values."""
    if not is_frame(table):
        raise UsageError(f"a {type(table).__name__} is not a table. Pass the path of one, or a pandas or polars frame.")
    given = {str(name): table[name] for name in (table if isinstance(table, Mapping) else table.columns)}
    columns = Columns({name: one.tolist() if hasattr(one, "tolist") else list(one) for name, one in given.items()})
    if len(counts := {len(cells) for cells in columns.values()}) > 1:
        raise UsageError(
            f"the columns have {quote([*map(str, sorted(counts))])} cells, so rows are unclear. Pass equally long ones."
        )
    return columns


def read_columns(place: Path, path_column: str = PATH) -> Columns:
    """The cells of a table by column: text for CSV, Python values for Parquet.

    A table that holds images, and no column of their paths, is refused before they are read.
    """
    suffix = place.suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(
            f"{place} does not end in .csv, .tsv or .parquet, so its format is unknown. Convert or rename it."
        )
    if not place.is_file():
        raise DataError(f"{place} is not a file, so there is no table to read. Check the path.")
    return _read_csv(place, path_column) if suffix in (".csv", ".tsv") else _read_parquet(place, path_column)


def _find_delimiter(place: Path, encoding: str, path_column: str) -> str:
    """What separates the cells of a text file: that which gives its first rows equally many, two or more."""
    found: dict[str, list[str]] = {}
    for delimiter in DELIMITERS:
        with place.open(encoding=encoding, newline="") as file, suppress(csv.Error):
            rows = list(filter(None, islice(csv.reader(file, delimiter=delimiter, strict=True), SAMPLE_ROWS)))
            if rows and {len(row) for row in rows} == {len(rows[0])} and len(rows[0]) > 1:
                found[delimiter] = rows[0]
    usual = [path_column, *PATHS.split()]
    named = [one for one in found if any({name, _simplify(name)} & {*usual} for name in found[one])]
    chosen = named if len(named) == 1 else list(found)
    if len(chosen) > 1:
        raise DataError(
            f"{place} may be separated by {' or '.join(map(repr, chosen))}: all give rows of equal length. Save it "
            "with commas, and quote cells that contain one."
        )
    return chosen[0] if chosen else ","


def _read_csv(place: Path, path_column: str) -> Columns:
    """The columns of a text file in UTF-8, or UTF-16 with its mark; a row of another length is refused by its line."""
    try:
        encoding = "utf-16" if read_start(place, 2) in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        delimiter = _find_delimiter(place, encoding, path_column)
        with place.open(encoding=encoding, newline="") as file:
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            header = next(reader, [])
            rows, lines, end = [], [], reader.line_num
            for row in reader:
                begin, end = end + 1, reader.line_num
                if row and len(row) != len(header):
                    raise DataError(
                        f"{place}, line {begin}: {len(row)} cells where the header has {len(header)}, so values are in "
                        f"the wrong columns. Quote cells that contain {delimiter!r}."
                    )
                if row:
                    rows.append(row)
                    lines.append(begin)
    except (UnicodeDecodeError, csv.Error, OSError) as error:
        raise DataError(f"{place} cannot be read as CSV ({error}). Save it as comma-separated UTF-8 text.") from error
    if len(set(header)) < len(header):
        twice = [column for column in dict.fromkeys(header) if header.count(column) > 1]
        raise DataError(f"{place} has two columns with the same name ({quote(twice)}). Rename one.")
    columns = Columns({column: [row[index] for row in rows] for index, column in enumerate(header)})
    columns.lines, columns.delimiter = lines, delimiter
    return columns


def _read_parquet(place: Path, path_column: str) -> Columns:
    """The columns of a Parquet file, equal texts kept once; refused if they need far more memory than the file's size.

    A few bytes of such a file may stand for any number of rows, and for a text of any length.
    """
    try:
        from pyarrow import ArrowException, parquet, types
    except ImportError as error:
        raise MissingExtraError(
            f"{place} is Parquet, which needs pyarrow, and that is not installed. Run: pip install 'task2vec[table]'"
        ) from error
    try:
        kinds = {field.name: field.type for field in parquet.read_schema(place)}
        if path_column not in kinds or types.is_struct(kinds[path_column]):
            for name, kind in kinds.items():
                if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
                    raise refuse_huggingface(place, f"its column {name!r} holds the images themselves")
        texts = [name for name, kind in kinds.items() if types.is_string(kind) or types.is_large_string(kind)]
        with parquet.ParquetFile(place, read_dictionary=texts) as file:
            left = max(MIN_MEMORY, MAX_GROWTH * place.stat().st_size)
            stored = sum(file.metadata.row_group(group).total_byte_size for group in range(file.num_row_groups))
            _check_memory(left - max(stored, CELL_BYTES * file.metadata.num_rows * len(kinds)), place)
            columns = Columns({name: [] for name in kinds})
            for batch in file.iter_batches(batch_size=BATCH_ROWS):
                left -= batch.nbytes + CELL_BYTES * batch.num_rows * batch.num_columns
                _check_memory(left, place)
                for name, cells in zip(batch.schema.names, batch.columns, strict=True):
                    columns[name] += _take_cells(cells)
            return columns
    except DataError:
        raise
    except (ArrowException, OSError, ValueError) as error:
        raise DataError(f"{place} cannot be read as Parquet ({error}). Write it again, or save it as CSV.") from error


def _check_memory(left: int, place: Path) -> None:
    """Raise `DataError` if no memory is left for a Parquet table."""
    if left < 0:
        raise DataError(
            f"{place} has {place.stat().st_size} bytes, and its cells would fill the memory, unlike any list of "
            "images. Check where it comes from; save it as CSV if it is valid."
        )


def _take_cells(cells: Any) -> list:
    """The cells of a column as Python values; a text that a dictionary holds once is created once."""
    if not hasattr(cells, "dictionary"):
        return cells.to_pylist()
    values = cells.dictionary.to_pylist()
    return [None if place is None else values[place] for place in cells.indices.to_pylist()]


def encode_labels(columns: Mapping[str, list], where: Callable[[str, int], str]) -> tuple[np.ndarray, Sequence[str]]:
    """Labels and classes of label columns, one of classes or several of 0 and 1; `where` names a cell in messages."""
    if len(columns) > 1:
        labels = []
        for column, cells in columns.items():
            labels.append([BINARY.get(str(cell).strip()) for cell in cells])
            if None in labels[-1]:
                row = labels[-1].index(None)
                raise DataError(
                    f"{where(column, row)}: {cells[row]!r} is not 0 or 1, as it must be with several label columns: "
                    f"{quote(list(columns), 20)}. For one class per image name one: label_columns= (--label-columns)."
                )
        return np.array(labels, np.uint8).T, list(columns)
    ((column, cells),) = columns.items()
    names = check_cells(cells, partial(where, column))
    try:
        decimal = [row for row, name in enumerate(names) if float(name) % 1]
    except ValueError:  # a name among them
        decimal = []
    if decimal:
        refuse_regression(where(column, decimal[0]), names[decimal[0]])
    number = {str(cell): index for index, cell in enumerate(sorted(set(cells)))}
    return np.array([number[name] for name in names], dtype=np.int64), list(number)


def check_cells(cells: Sequence[object], where: Callable[[int], str]) -> list[str]:
    """The cells of a column as text; an empty, missing or floating-point one names neither a file nor a class."""
    for row, value in enumerate(cells):
        if isinstance(value, float) and value == value:
            refuse_regression(where(row), repr(value))
        if value is None or str(value).strip().lower() in ("", "nan"):
            raise DataError(
                f"{where(row)}: {value!r} is missing, so the image has no path or class. Fill it in, or drop the row; "
                "test splits are often published without labels."
            )
    return list(map(str, cells))
