"""A table of paths and labels becomes a task: a frame, CSV, or Parquet where pyarrow is installed."""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from task2vec.errors import DataError, UsageError
from task2vec.tasks.columns import (
    BINARY,
    LABEL_NAMES,
    OTHER_NAMES,
    PATH,
    PATH_NAMES,
    SEPARATORS,
    Columns,
    are_images,
    check_cells,
    encode_labels,
    is_image,
    is_image_name,
    match_paths,
    read_columns,
    read_frame,
    simplify,
)
from task2vec.tasks.images import StrPath, open_files, read_inside
from task2vec.tasks.task import UNNAMED, Task, make_task
from task2vec.tasks.torch_dataset import from_dataset
from task2vec.text import quote


def read_table(
    table: StrPath | Any,
    *,
    root: StrPath | None = None,
    path_column: str | None = None,
    label_columns: str | Sequence[str] | None = None,
    separator: str | None = None,
    header: bool | None = None,
    group: str | None = None,
    name: str | None = None,
    allow_bad: bool = False,
    num_workers: int | None = None,
    progress: bool = False,
) -> Task:
    r"""The task of a CSV or Parquet table, or of a pandas or polars frame, with one image per row.

    One label column makes a single-label task; its values are the class names, verbatim. Several make a multi-label
    task of their 0 and 1; the column names are the classes. So does one column of lists of classes.

    Args:
        table: A file ending in .csv, .tsv, .txt or .parquet; or a frame, a dict of columns, or a dict from classes to
            images. Columns in memory may hold images instead of paths: of Pillow, pixels or encoded bytes.
        root: The folder that the paths are relative to and must not leave. If not given, they are relative to the
            table's own folder (in memory: the current one) and may name any file, but no link out of its folder.
        path_column: The column of paths; found by its name (path, file_name, image ...) or content if not given.
        label_columns: The columns of labels. If not given, all but those of paths, splits and ids; if these are not all
            0 and 1, the one that is named like a label (label, class, target ...).
        separator: What separates the cells of a text: comma, semicolon, tab, pipe or space; found if not given.
        header: Whether the first row of a text names the columns; found if not given. If not, they are "1", "2", ...
        group: A column, or a regular expression on the path whose group called "group", or else first group, is the
            same for images of one patient, scene or object (see `Task.groups`).
        name: The name of the task; that of the file without its ending, or of the folder of all images, if not given.
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
    folder = Path(root if root is not None else file.parent if file else os.curdir).resolve()
    if not folder.is_dir():
        raise UsageError(f"the root {folder} is not a folder. Pass the folder that holds the images: root=, --root.")
    columns = table if isinstance(table, Columns) else None  # one that `read_folder` has found
    if columns is None:
        text: dict[str, Any] = {"separator": separator, "header": header}
        columns = read_frame(table) if file is None else read_columns(file, path_column or PATH, **text)
    is_told = columns is not table and path_column is not None
    label_columns = [label_columns] if isinstance(label_columns, str) else label_columns
    path_column, label_columns, notes = _choose_columns(columns, path_column, label_columns, group)
    separated = next(f"separated by {name}s" for name, mark in SEPARATORS.items() if mark == columns.delimiter)
    remarks = [*([] if columns.has_header else ["no header"]), *([] if columns.delimiter == "," else [separated])]
    if remarks or not (is_told or path_column == PATH):
        shown = quote if columns.has_header else ", ".join
        remarks += [f"paths in column {shown([path_column])}", f"labels in column {shown(label_columns)}"]
        notes.insert(0, ", ".join(remarks))

    def locate(column: str, row: int) -> str:
        return f"{columns.locate(row)}, column {column!r}"

    labels, classes = encode_labels({column: columns[column] for column in label_columns}, locate)
    cells = columns[path_column]
    has_images = any(map(is_image, cells))
    paths = [] if has_images else check_cells(cells, partial(locate, path_column))
    groups = None
    if group is not None and group in columns:
        groups = check_cells(["" if cell is None else str(cell) for cell in columns[group]], partial(locate, group))
    elif group is not None:
        groups = match_paths("group", group, paths)
    source = str(table) if file else columns.source.removeprefix("the ")
    options: dict[str, Any] = {"groups": groups, "allow_bad": allow_bad, "progress": progress}
    if has_images:
        task = from_dataset([*zip(cells, labels, strict=True)], classes=classes, name=name, **options)
        return replace(task, notes=(*notes, *task.notes), source=source)
    if remote := [row for row, path in enumerate(paths) if "://" in path]:
        raise DataError(
            f"{locate(path_column, remote[0])}: {paths[remote[0]]!r} is a URL, as {len(remote)} of {len(paths)} paths "
            "are, and nothing is downloaded while reading. Download these images, and name their files instead."
        )
    images = open_files(folder, paths)
    if root is None:
        images = replace(images, read=partial(_read_named, folder))
    if name is None and file is None and paths:
        name = os.path.basename(os.path.commonpath({os.path.dirname(folder / path) for path in paths}))
    name = name or (file.stem if file else UNNAMED)
    return make_task(images, labels, classes, name, source, notes, num_workers=num_workers, **options)


def _read_named(folder: Path, path: str) -> bytes:
    """The bytes of a file that the user's own table names, inside of its folder or anywhere else.

    As in a folder of images, no link leads out: of the table's folder, or elsewhere of that which the path names.
    """
    location = os.path.normpath(os.path.join(folder, path))
    if "\0" not in path and not location.startswith(os.path.join(folder, "")):
        folder, path = Path(os.path.realpath(os.path.dirname(location))), os.path.basename(location)
    return read_inside(folder, path)


def _choose_columns(
    columns: Columns, path_column: str | None, label_columns: Sequence[str] | None, group: str | None
) -> tuple[str, Sequence[str], list[str]]:
    """The column of paths, those of labels, and notes; missing arguments are found by name, then by content."""
    lost = [column for column in columns if is_image_name(column) and all(map(is_image_name, columns[column]))]
    if lost:
        raise DataError(
            f"{columns.source} has no line with the names of its columns: it begins with {lost[0]!r}, an image, which "
            "would be lost. Read it without a header: header=False (--no-header), or with pandas header=None."
        )
    paths = [path_column] if path_column else _find_path_columns(columns, label_columns or ())
    labels = _find_label_columns(columns, (*paths, group)) if label_columns is None else label_columns
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
    unused = [column for column in columns if column not in (*paths, *labels, group)] if label_columns is None else []
    notes = [f"columns that are not used as labels: {quote(unused)}; all rows are used"] if unused else []
    return paths[0], labels, notes


def _find_path_columns(columns: Columns, label_columns: Sequence[str]) -> list[str]:
    """The columns that may be paths: the one called "path", else those with a usual name or with names of images."""
    if PATH in columns:
        return [PATH]
    free = [column for column in columns if column not in label_columns]
    named = [column for column in free if simplify(column) in PATH_NAMES.split()]
    filled = [column for column in free if columns[column] and are_images(columns[column])]
    return [column for column in named if column in filled] or filled or named


def _find_label_columns(columns: Columns, others: Sequence[str | None]) -> list[str]:
    """All columns but others, splits and ids; if they are not all 0 and 1, the one with a usual name."""
    free = [column for column in columns if column not in ("", *others)]  # "": pandas' row names
    free = [column for column in free if simplify(column) not in OTHER_NAMES.split()]
    named = [column for column in free if simplify(column) in LABEL_NAMES.split()]
    are_binary = all(str(cell).strip() in BINARY for column in free for cell in columns[column])
    return named if len(named) == 1 and not are_binary else free
