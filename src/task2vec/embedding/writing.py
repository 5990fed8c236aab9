"""Files that are whole or absent, and still there after a power cut."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

PARTIAL = ".partial"


def write_whole(path: Path, content: bytes) -> None:
    """Writes `content` to `path`: a temporary file beside it, flushed to the disk, then renamed, and that flushed too.

    Raises:
        OSError: It could not be written; nothing was left behind and what was there before still is.
    """
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=f".{path.name}.", suffix=PARTIAL, delete=False
        ) as file:
            temporary = file.name
            file.write(content)
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
