"""The columns of a table (CSV, Parquet, a frame or a dict), and labels from cells."""

import csv
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from PIL import Image

from task2vec.errors import DataError, MissingExtraError, UsageError
from task2vec.text import quote

SUFFIXES = (".csv", ".tsv", ".txt", ".parquet", ".pq")
SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|", "space": " "}
# Rows by which the separator of a text is found.
MOST_SAMPLED_ROWS = 100
PATH = "path"
# Usual names of columns, without spaces and marks: of images or their paths, of labels, and of neither.
PATH_NAMES = (
    "path paths filepath imagepath imgpath file filename imagefile imagename image images img pfad datei dateiname"
)
LABEL_NAMES = "label labels class classname classlabel target targets category klasse kategorie"
OTHER_NAMES = "split set subset fold partition isvalid istest index unnamed0 id imageid uid uuid"
# Names of image files. Those of a format that cannot be read here are listed as bad, not ignored.
SUPPORTED = "jpg jpeg jpe jfif mpo png apng gif bmp dib tif tiff webp ppm pgm pbm pnm pfm avif"
UNSUPPORTED = "heic heif jp2 j2k jxl tga psd ico svg"
IMAGE_SUFFIXES = frozenset(f".{ending}" for ending in f"{SUPPORTED} {UNSUPPORTED}".split())
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
        has_header: Whether its first row names the columns.
    """

    source: str
    lines: Sequence[int] = ()
    delimiter: str = ","
    has_header: bool = True

    def locate(self, row: int) -> str:
        """The table and the line of a row, or the number of the row, both counted from 1."""
        return f"{self.source}, {f'line {self.lines[row]}' if self.lines else f'row {row + 1}'}"


def is_frame(table: Any) -> bool:
    """Whether something is a pandas or polars frame, or a dict of columns."""
    return isinstance(table, Mapping) or all(hasattr(table, name) for name in ("columns", "shape", "__getitem__"))


def read_frame(table: Any) -> Columns:
    """The cells of a frame, of a dict of columns, or of a dict from classes to images, as Python values."""
    if not is_frame(table):
        raise UsageError(f"a {type(table).__name__} is not a table. Pass the path of one, or a pandas or polars frame.")
    columns = Columns()
    columns.source = "the table" if isinstance(table, Mapping) else f"the {type(table).__name__}"
    for name in table if isinstance(table, Mapping) else table.columns:
        columns[str(name)] = [*map(to_plain, table[name])]
    is_of_columns = any(simplify(name) in PATH_NAMES.split() for name in columns)
    if isinstance(table, Mapping) and not is_of_columns and all(map(are_images, columns.values())):
        rows = [(image, kind) for kind, images in columns.items() for image in images]
        columns.clear()
        columns |= {PATH: [image for image, _ in rows], "label": [kind for _, kind in rows]}
    lengths = sorted({len(cells) for cells in columns.values()})
    if len(lengths) > 1:
        raise UsageError(
            f"the columns have {quote([*map(str, lengths)])} cells, so rows are unclear. Pass equally long ones."
        )
    return columns


def read_columns(
    path: Path, path_column: str = PATH, *, separator: str | None = None, header: bool | None = None
) -> Columns:
    """The cells of a table by column: text for CSV, Python values for Parquet.

    Separator and header of a text are found if they are not given. A Parquet table that holds images, and no column of
    their paths, is refused before they are read.
    """
    if separator is not None and separator not in SEPARATORS:
        known = ", ".join(SEPARATORS)
        raise UsageError(f"separator={separator!r} (--separator) separates no cells. Choose one of {known}.")
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(
            f"{path} does not end in .csv, .tsv, .txt or .parquet, so its format is unknown. Convert or rename it."
        )
    if not path.is_file():
        raise DataError(f"{path} is not a file, so there is no table to read. Check the path.")
    is_text = suffix in (".csv", ".tsv", ".txt")
    columns = _read_text(path, separator, header) if is_text else _read_parquet(path, path_column)
    columns.source = str(path)
    return columns


def _read_text(path: Path, separator: str | None, header: bool | None) -> Columns:
    """The columns of a text in UTF-8, or UTF-16 with its mark; a row of another length is refused by its line.

    Without a header, columns are called "1", "2" and so on.
    """
    try:
        encoding = "utf-16" if read_start(path, 2) in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        with path.open(encoding=encoding, newline="") as file:
            text = file.read()
        delimiter = SEPARATORS[separator] if separator else _find_delimiter(path, text)
        rows = [*_split_rows(text, delimiter)]
    except (UnicodeDecodeError, csv.Error, OSError) as error:
        raise DataError(f"{path} cannot be read as CSV ({error}). Save it as comma-separated UTF-8 text.") from error
    first = rows[0][1] if rows else []
    for line, row in rows:
        if len(row) != len(first):
            raise DataError(
                f"{path}, line {line}: {len(row)} cells where the first line has {len(first)}, so values are in the "
                f"wrong columns. Quote cells that contain {delimiter!r}, or name the separator: separator=, --separator"
            )
    if header is None:
        header = not _is_first_row_data(path, [row for _, row in rows])
    names = first if header else [str(number + 1) for number in range(len(first))]
    if repeated := [column for column in dict.fromkeys(names) if names.count(column) > 1]:
        raise DataError(f"{path} has two columns with the same name ({quote(repeated)}). Rename one.")
    rows = rows[1:] if header else rows
    columns = Columns({column: [row[index] for _, row in rows] for index, column in enumerate(names)})
    columns.lines, columns.delimiter, columns.has_header = [line for line, _ in rows], delimiter, header
    return columns


def _split_rows(text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The rows of a text that are not empty, each with the line that it begins in."""
    is_space = delimiter == " "  # any number of them is one separator
    lines = (f"{line.strip()}\n" for line in text.split("\n")) if is_space else StringIO(text, newline="")
    reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=is_space, strict=True)
    end = 0
    for row in reader:
        begin, end = end + 1, reader.line_num
        if row:
            yield begin, row


def _find_delimiter(path: Path, text: str) -> str:
    """What separates the cells: what gives all rows the same cells, and a column the names of images."""
    readings: dict[str, list[list[str]]] = {}
    for name, delimiter in SEPARATORS.items():
        with suppress(csv.Error):
            rows = [row for _, row in islice(_split_rows(text, delimiter), MOST_SAMPLED_ROWS)]
            if len({len(row) for row in rows}) == 1 < len(rows[0]):
                readings[name] = rows
    clear = [name for name, rows in readings.items() if any(map(are_images, zip(*(rows[1:] or rows), strict=True)))]
    clear = [name for name in clear if name != "space"] or clear  # names of files contain spaces
    if len(clear) > 1:
        shown = " or ".join(f"by {name} ({quote(readings[name][-1])})" for name in clear)
        raise DataError(
            f"{path}: its cells may be separated {shown}, so it is unclear which are the labels. Name the separator: "
            f"separator={clear[0]!r} (--separator {clear[0]})"
        )
    wide = sorted(readings, key=lambda name: (name == "space", -len(readings[name][0])))
    unquoted = re.sub(r'"[^"]*"', "", text.partition("\n")[0])
    counts = {delimiter: unquoted.count(delimiter) for delimiter in SEPARATORS.values()}
    most = max(counts, key=lambda delimiter: (counts[delimiter] > 0, delimiter != " ", counts[delimiter]))
    return SEPARATORS[[*clear, *wide][0]] if readings else most


def _is_first_row_data(path: Path, rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row names an image as the others do; refused if it also has the name of a column."""
    is_data = any(map(are_images, zip(*rows, strict=True)))
    if is_data and (names := [cell for cell in rows[0] if simplify(cell) in LABEL_NAMES.split()]):
        raise DataError(
            f"{path}: its first line, {quote(rows[0])}, may be the names of the columns, as {names[0]!r} is, or an "
            "image and its label. Say which: header=True or False (--header, --no-header)"
        )
    return is_data


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


def to_plain(cell: Any) -> Any:
    """A cell without the type of the library that it comes from: numbers, and lists of numbers, not images."""
    return cell.tolist() if hasattr(cell, "tolist") and getattr(cell, "ndim", 0) < 2 else cell


def is_image(cell: Any) -> bool:
    """Whether a cell is an image itself: of Pillow, pixels, encoded bytes, or these as Hugging Face stores them."""
    has_bytes = isinstance(cell, bytes) or (isinstance(cell, Mapping) and "bytes" in cell)
    return has_bytes or isinstance(cell, Image.Image) or getattr(cell, "ndim", 0) > 1


def is_image_name(cell: object) -> bool:
    """Whether a cell is named like an image file."""
    return isinstance(cell, str | os.PathLike) and os.path.splitext(cell)[1].lower() in IMAGE_SUFFIXES


def are_images(cells: Iterable[object]) -> bool:
    """Whether all cells are images or named like files of images."""
    return all(is_image_name(cell) or is_image(cell) for cell in cells)


def simplify(column: str) -> str:
    """The name of a column in lower case, without spaces and marks."""
    return re.sub(r"[\W_]", "", column).lower()


# --- labels ----------------------------------------------------------------------------------------------------------


def encode_labels(columns: Mapping[str, list], locate: Callable[[str, int], str]) -> tuple[np.ndarray, Sequence[str]]:
    """Labels and classes of label columns; `locate` names a cell in messages.

    One column of classes, or of lists of classes, or of rows of 0 and 1; or several columns of 0 and 1.
    """
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
    if any(isinstance(cell, list | tuple | set) for cell in cells):
        return _encode_lists(cells, partial(locate, column))
    names = check_cells(cells, partial(locate, column))
    try:
        decimal = [row for row, name in enumerate(names) if float(name) % 1]
    except ValueError:  # a name among them
        decimal = []
    if decimal:
        refuse_regression(locate(column, decimal[0]), names[decimal[0]])
    number = {str(cell): index for index, cell in enumerate(sorted(set(cells)))}
    return np.array([number[name] for name in names], dtype=np.int64), list(number)


def _encode_lists(cells: list, locate: Callable[[int], str]) -> tuple[np.ndarray, Sequence[str]]:
    """Labels and classes of cells that list classes, or are rows of 0 and 1; one-hot rows make one class per image."""
    for row, cell in enumerate(cells):
        if not isinstance(cell, list | tuple | set) or any(isinstance(value, list | tuple) for value in cell):
            raise DataError(f"{locate(row)}: {cell!r} is not a list of classes, as others are. Make it a list.")
    if len({len(cell) for cell in cells}) == 1 < len(cells[0]) and all(
        str(value) in BINARY for cell in cells for value in cell
    ):
        rows = np.array([[BINARY[str(value)] for value in cell] for cell in cells], dtype=np.uint8)
        return from_one_hot(rows), [*map(str, range(rows.shape[1]))]
    names = [check_cells([*cell], lambda _, row=row: locate(row)) for row, cell in enumerate(cells)]
    known = sorted({value for cell in cells for value in cell}, key=lambda value: (isinstance(value, str), value))
    number = {str(value): index for index, value in enumerate(known)}
    labels = np.zeros((len(cells), len(number)), dtype=np.uint8)
    for row, positive in enumerate(names):
        labels[row, [number[name] for name in positive]] = 1
    return labels, [*number]


def from_one_hot(labels: np.ndarray) -> np.ndarray:
    """The class numbers of rows of 0 and 1 that each have a single 1; other labels as they are.

    Example:
        >>> from_one_hot(np.array([[0, 1], [1, 0]])).tolist(), from_one_hot(np.array([[1, 1], [1, 0]])).tolist()
        ([1, 0], [[1, 1], [1, 0]])
    """
    is_one_hot = labels.ndim == 2 and labels.shape[1] > 1 and bool(((labels == 0) | (labels == 1)).all())
    return labels.argmax(1) if is_one_hot and (labels.sum(1) == 1).all() else labels


def check_cells(cells: Sequence[object], locate: Callable[[int], str]) -> list[str]:
    """The cells of a column as text; an empty, missing or floating-point one names neither a file nor a class."""
    for row, value in enumerate(cells):
        if isinstance(value, float) and value == value:
            refuse_regression(locate(row), repr(value))
        if value is None or str(value).strip().lower() in ("", "nan"):
            raise DataError(
                f"{locate(row)}: {value!r} is missing, so the image has no path, class or group. Fill it in, or drop "
                "the row; test splits are often published without labels."
            )
    return list(map(str, cells))


def match_paths(option: str, value: str | int, paths: Sequence[str]) -> list[str]:
    """What every path has at a level of its folders, or what a pattern finds in it, as the option says.

    That is the group of the option's name, else the first group, else the whole match.

    Example:
        >>> match_paths("group", "(p[0-9]+)_", ["cats/p7_a.jpg", "dogs/p12_a.jpg"])
        ['p7', 'p12']
        >>> match_paths("label_level", 2, ["oslo/cats/1.jpg", "rome/dogs/1.jpg"])
        ['cats', 'dogs']
    """
    spelled = f"{option}={value!r} (--{option.replace('_', '-')})"
    if isinstance(value, int):
        value = "^" + (value - 1) * "[^/]+/" + "([^/]+)/" if value > 0 else "(?!)"
    try:
        expression = re.compile(value)
    except re.error as error:
        raise UsageError(f"{spelled} is no regular expression ({error}), so it matches nothing. Correct it.") from None
    name = option.removesuffix("_pattern")
    key = name if name in expression.groupindex else min(1, expression.groups)
    names = [match and match[key] for match in map(expression.search, paths)]
    if missing := [path for path, name in zip(paths, names, strict=True) if name is None]:
        raise UsageError(
            f"{spelled} matches {len(paths) - len(missing)} of {len(paths)} paths, and leaving the others out would "
            f"change the task; without a match: {quote(missing, 3)}. Correct it, so that it matches them all."
        )
    return [str(name) for name in names]


def refuse_regression(source: str, example: str) -> NoReturn:
    """Raise the `DataError` for labels that are decimal numbers."""
    raise DataError(
        f"{source} holds decimal numbers (such as {example}): a regression target, and regression is not supported. "
        "Bin it into classes first (numpy.digitize(values, edges)), or write class numbers as integers."
    )
