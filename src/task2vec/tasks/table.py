"""A table of paths and labels becomes a task: a frame, CSV, or Parquet where pyarrow is installed."""

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from task2vec.errors import DataError, UsageError
from task2vec.tasks.columns import BINARY, PATH, Columns, check_cells, encode_labels, read_columns, read_frame
from task2vec.tasks.folder import IMAGE_SUFFIXES
from task2vec.tasks.images import StrPath, open_files
from task2vec.tasks.task import Task, make_task
from task2vec.text import quote

# Usual names of columns, without spaces and marks: of paths, of labels, and of neither.
PATH_NAMES = "path filepath imagepath imgpath file filename imagefile imagename image img pfad datei dateiname"
LABEL_NAMES = "label class classname classlabel target category klasse kategorie"
OTHER_NAMES = "split set subset fold partition isvalid istest index unnamed0 id imageid uid uuid"


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
        label_columns: The columns of labels. If not given, all but those of paths, splits and ids; if these are not all
            0 and 1, the one that is named like a label (label, class, target ...).
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
    file = Path(table) if isinstance(table, str | os.PathLike) else None
    columns = read_frame(table) if file is None else read_columns(file, path_column or PATH)
    label_columns = [label_columns] if isinstance(label_columns, str) else label_columns
    path_column, label_columns, notes = _choose_columns(columns, path_column, label_columns)

    def locate(column: str, row: int) -> str:
        return f"{columns.locate(row)}, column {column!r}"

    paths = check_cells(columns[path_column], partial(locate, path_column))
    labels, classes = encode_labels({column: columns[column] for column in label_columns}, locate)
    folder = Path(root if root is not None else file.parent if file else os.curdir)
    if not folder.is_dir():
        raise UsageError(f"the root {folder} is not a folder. Pass the folder that holds the images: root=, --root.")
    if root is None and file is None:
        images = replace(open_files(Path(folder.resolve().anchor), [*map(os.path.abspath, paths)]), names=paths)
    else:
        images = open_files(folder.resolve(), paths)
    default_name, source = (file.stem, str(table)) if file else (type(table).__name__,) * 2
    options: dict[str, Any] = {"allow_bad": allow_bad, "num_workers": num_workers, "progress": progress}
    return make_task(images, labels, classes, name or default_name, source, notes, **options)


def _choose_columns(
    columns: Columns, path_column: str | None, label_columns: Sequence[str] | None
) -> tuple[str, Sequence[str], list[str]]:
    """The column of paths, those of labels, and notes; missing arguments are found by name, then by content."""
    lost = [column for column in columns if _is_image_name(column) and all(map(_is_image_name, columns[column]))]
    if lost:
        raise DataError(
            f"{columns.source} has no line with the names of its columns: it begins with {lost[0]!r}, an image, which "
            "would be lost. Add a first line, such as path,label."
        )
    paths = [path_column] if path_column else _find_path_columns(columns, label_columns or ())
    labels = _find_label_columns(columns, paths) if label_columns is None else label_columns
    missing = [column for column in (*paths, *labels) if column not in columns]
    is_repeated = len({*paths, *labels}) < len(paths) + len(labels)
    if missing or is_repeated or not labels or len(paths) != 1:
        problem = "needs one column of labels or more"
        if len(paths) > 1:
            problem = f"has several columns that may be paths ({quote(paths)})"
        elif missing or not paths:
            problem = f"has no column {quote(missing or [PATH])}"
        raise (UsageError if is_repeated or missing else DataError)(
            f"{columns.source} {problem}; its columns are {quote(list(columns), 20)}. "
            "Name them, each once: path_column= and label_columns= (--path-column, --label-columns)."
        )
    unused = [column for column in columns if column not in (*paths, *labels)] if label_columns is None else []
    notes = [f"columns that are not used as labels: {quote(unused)}; all rows are used"] if unused else []
    if (not path_column and paths[0] != PATH) or columns.delimiter != ",":
        separated = "" if columns.delimiter == "," else f"; cells are separated by {columns.delimiter!r}"
        notes.append(f"paths are those of column {paths[0]!r}, labels of {quote(labels)}{separated}")
    return paths[0], labels, notes


def _find_path_columns(columns: Columns, label_columns: Sequence[str]) -> list[str]:
    """The columns that may be paths: the one called "path", else those with a usual name or with names of images."""
    if PATH in columns:
        return [PATH]
    free = [column for column in columns if column not in label_columns]
    named = [column for column in free if _simplify(column) in PATH_NAMES.split()]
    filled = [column for column in free if columns[column] and all(map(_is_image_name, columns[column]))]
    return [column for column in named if column in filled] or filled or named


def _find_label_columns(columns: Columns, paths: Sequence[str]) -> list[str]:
    """All columns but those of paths, splits and ids; if they are not all 0 and 1, the one with a usual name."""
    free = [column for column in columns if column not in ("", *paths)]  # "": pandas' row names
    free = [column for column in free if _simplify(column) not in OTHER_NAMES.split()]
    named = [column for column in free if _simplify(column) in LABEL_NAMES.split()]
    are_binary = all(str(cell).strip() in BINARY for column in free for cell in columns[column])
    return named if len(named) == 1 and not are_binary else free


def _is_image_name(cell: object) -> bool:
    return os.path.splitext(str(cell))[1].lower() in IMAGE_SUFFIXES


def _simplify(column: str) -> str:
    """The name of a column in lower case, without spaces and marks."""
    return re.sub(r"[\W_]", "", column).lower()
