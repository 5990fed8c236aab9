"""Files that are whole or absent, and still there after a power cut."""

import csv
import io
import math
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from task2vec.errors import ResourceError

PARTIAL = ".partial"
_LONGEST = 200  # letters of a name that leave room for more


def write_file(path: Path, content: bytes, *, makes_folder: bool = False) -> Path:
    """Writes `content` to `path`, whole or not at all, flushed to the disk, and returns the path; see `replacing`."""
    with replacing(path, makes_folder=makes_folder) as temporary, open(temporary, "xb") as file:  # usual permissions
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return path


def write_csv(path: str | Path, rows: Sequence[Mapping[str, Any]], heads: Sequence[str]) -> Path:
    """Writes a table of rows by heading; see `write_rows`."""
    return write_rows(path, [heads, *([row.get(head) for head in heads] for row in rows)])


def write_rows(path: str | Path, rows: Iterable[Iterable[Any]], *, digits: int | None = None) -> Path:
    """Writes a CSV table, whole or not at all, with no cell that a spreadsheet evaluates, and returns the path.

    With `digits`, floating-point numbers have so many significant ones, and those that are not finite are left empty.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     print(write_rows(f"{folder}/t.csv", [["task", "norm"], ["=cats", 1 / 3]], digits=6).read_text().strip())
        task,norm
        '=cats,0.333333
    """

    def format_cell(cell: Any) -> Any:
        if isinstance(cell, str):
            return f"'{cell}" if cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell  # no formula
        if digits is None or not (isinstance(cell, float) or hasattr(cell, "dtype")):
            return cell
        return f"{float(cell):.{digits}g}" if math.isfinite(cell) else ""

    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([format_cell(cell) for cell in row] for row in rows)
    return write_file(Path(path), text.getvalue().encode(errors="backslashreplace"))  # half of a surrogate pair


@contextmanager
def replacing(path: Path, *, makes_folder: bool = False) -> Iterator[Path]:
    """Where to write a file that becomes `path` at the end of the block, and is gone if the block fails.

    It is a temporary file beside it, which is renamed; what was there before is there until then.

    Raises:
        ResourceError: It cannot be written there.
    """
    temporary = path.with_name(f".{path.name[:_LONGEST]}.{secrets.token_hex(8)}{PARTIAL}")
    try:
        if makes_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            os.replace(temporary, path)
        finally:
            with suppress(OSError):  # it is not there any more if all went well
                os.unlink(temporary)
        sync_folder(path.parent)
    except OSError as error:
        if isinstance(error, ResourceError):
            raise
        raise ResourceError(
            f"cannot write '{path}': {error.strerror or error}. What was there before is unchanged. "
            "Free space on the disk, or choose a folder that exists and that you may write to."
        ) from error


def sync_folder(folder: Path) -> None:
    """Flushes the names in a folder to the disk, where the system can (Windows cannot open folders, and need not)."""
    with suppress(PermissionError, IsADirectoryError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
