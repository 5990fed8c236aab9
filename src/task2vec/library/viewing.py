"""How to read an index without being allowed to write.

SQLite reads an index with a journal if the journal's two companions are there or can be made. On a disk that nobody can
write to it may be told so; in a folder that others can write to, a copy is the only view that stays whole.
"""

import os
import shutil
import sqlite3
import tempfile
import weakref
from pathlib import Path

from task2vec.errors import LibraryError, ResourceError
from task2vec.library.connecting import connect, make_address

_TRIES = 10


class View:
    """Where to read an index: itself, or a copy, which is gone when the view is closed."""

    def __init__(self, address: str, copy: Path | None = None):
        """`copy` is the folder that is to be taken away."""
        self.address = address
        self._remove = None if copy is None else weakref.finalize(self, _remove_folder, copy, os.getpid())

    def close(self) -> None:
        """Takes the copy away."""
        if self._remove is not None:
            self._remove()


def find_view(path: Path) -> View:
    """How the index at `path` can be read from here.

    Raises:
        LibraryError: There is none.
        ResourceError: It may not be read, or is written to all the time and cannot be locked.
    """
    if not path.exists():
        raise LibraryError(f"there is no library in '{path.parent}'. Make one: task2vec embed FOLDER")
    usual = make_address(path, "mode=ro")
    if _can_read(usual):
        return View(usual)
    journal = path.with_name(f"{path.name}-wal")
    try:
        has_journal = journal.exists() and journal.stat().st_size > 0
        if not has_journal and _is_disk_read_only(path.parent):
            return View(make_address(path, "immutable=1"))
        return _copy(path, journal)
    except OSError as error:
        if isinstance(error, ResourceError):
            raise
        raise ResourceError(
            f"'{path}' cannot be read: {error.strerror}. Nothing was changed. Ask for the right to read it, or choose "
            "another folder: --library DIR"
        ) from error


def _can_read(address: str) -> bool:
    try:
        connection = connect(address)
    except sqlite3.OperationalError:
        return False
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        return False
    finally:
        connection.close()
    return True


def _is_disk_read_only(folder: Path) -> bool:
    return hasattr(os, "statvfs") and bool(os.statvfs(folder).f_flag & os.ST_RDONLY)


def _copy(path: Path, journal: Path) -> View:
    """A copy of both files of one moment: nobody has written to them while it was made."""
    folder = Path(tempfile.mkdtemp(prefix="task2vec-"))
    view = View(make_address(folder / path.name, "mode=rw"), folder)
    try:
        for _ in range(_TRIES):
            before = [_describe(file) for file in (path, journal)]
            for file in (path, journal):
                (folder / file.name).unlink(missing_ok=True)
                if file.exists():
                    shutil.copyfile(file, folder / file.name)
            if before == [_describe(file) for file in (path, journal)]:
                return view
        raise ResourceError(
            f"'{path}' changed while it was copied, {_TRIES} times, and cannot be locked for lack of rights. Nothing "
            "was changed. Try again when others have finished writing."
        )
    except BaseException:
        view.close()
        raise


def _describe(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _remove_folder(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a fork only borrows it
        shutil.rmtree(folder, ignore_errors=True)
