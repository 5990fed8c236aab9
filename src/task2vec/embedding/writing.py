"""Files that are whole or absent, and still there after a power cut."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

PARTIAL = ".partial"


def write_whole(path: Path, content: bytes) -> None:
    """Writes `content` to `path`, whole or not at all; see `open_whole`."""
    with open_whole(path) as file:
        file.write(content)


@contextmanager
def open_whole(path: Path) -> Iterator[BinaryIO]:
    """A file that becomes `path` at the end of the block, flushed to the disk, and is gone if the block fails.

    It is a temporary file beside it, which is renamed; what was there before is there until then.
    """
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=f".{path.name}.", suffix=PARTIAL, delete=False
        ) as file:
            temporary = file.name
            yield file  # type: ignore[misc]
            file.flush()
            os.fsync(file.fileno())
        # A temporary file is private; the result gets the permissions of any new file.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        if temporary is not None:
            with suppress(OSError):
                os.unlink(temporary)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flushes the names in a folder to the disk, where the system can (Windows cannot open folders, and need not)."""
    with suppress(PermissionError, IsADirectoryError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
