"""A library whose index is damaged gets a new one, from all that can still be read.

Embeddings and their tasks come back from the blobs, which know everything about themselves. Tags, experts, errors and
runs come back as far as the old index can be read. The new index is built aside and takes the old one's place when it
is finished. A mark says that a repair has begun: until one is finished the library is not opened, for to an index that
is half filled the other half of the blobs would be nobody's.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from task2vec.embedding.embedding import decode_embedding
from task2vec.errors import ConflictError, DataError, EmbeddingFileError, LibraryError, ResourceError, UsageError
from task2vec.library.blobs import Blobs, name_of
from task2vec.library.connecting import DAMAGE, connect, make_address
from task2vec.library.database import INDEX, Database
from task2vec.library.keeping import Keeper, Note
from task2vec.library.preparing import BACKUPS
from task2vec.library.salvaging import Salvaged, salvage
from task2vec.library.schema import APPLICATION, SCHEMA
from task2vec.library.search import FOLDER as SEARCH
from task2vec.library.search import Search
from task2vec.progress import Report, silent
from task2vec.storage import sync_folder, write_whole

MARK = "repair-unfinished"
_FILES = (f"{INDEX}-wal", INDEX)  # in this order: a journal that another process puts back meanwhile is in one of both
_TOGETHER = 64  # embeddings that are entered in one transaction


@dataclass(frozen=True)
class Repaired:
    """What a repair brought back.

    Attributes:
        embeddings: how many are in the library now.
        lost: what could not be read, in words.
        kept: where the damaged index lies.
    """

    embeddings: int
    lost: tuple[str, ...]
    kept: Path


def repair(folder: Path, *, report: Report = silent) -> Repaired:
    """Makes the index anew; see `Library.repair`."""
    if not (folder / INDEX).exists() and Blobs(folder).is_empty():
        raise LibraryError(f"there is no library in '{folder}', so there is nothing to repair. Check the path.")
    try:
        with _holding(folder / INDEX):
            return _repair(folder, report)
    except OSError as error:
        if isinstance(error, ResourceError):
            raise
        raise ResourceError(
            f"the library '{folder}' cannot be repaired: {error.strerror} ('{error.filename}'). Nothing is lost. Make "
            "room on the disk or get the right to write there, and try again."
        ) from error


def check_finished(folder: Path) -> None:
    """Raises an error if a repair of the library was begun and not finished."""
    if (folder / MARK).exists():
        raise LibraryError(
            f"a repair of the library '{folder}' was not finished, and to use it now could lose what is not back yet. "
            "Nothing is lost. Repair it again: task2vec library repair"
        )


def _repair(folder: Path, report: Report) -> Repaired:
    _refuse_newer(folder / INDEX)
    place = _set_aside(folder)
    salvaged = Salvaged()
    for name in folder.joinpath(MARK).read_text(encoding="utf-8").splitlines():
        salvage(folder / BACKUPS / name / INDEX, salvaged)
    new = place / "new"
    new.mkdir()
    database = Database(new, read_only=False)
    try:
        found = _refill(salvaged, database, Keeper(Blobs(folder), Search(new)), report)
        with database.borrowing() as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    finally:
        database.close()
    _swap(folder, new, place)
    return Repaired(found, tuple(salvaged.lost), place)


def _refuse_newer(path: Path) -> None:
    """Raises if the index is of a newer version, which may know what would be lost here."""
    version = 0
    try:
        if path.is_file():
            connection = connect(make_address(path, "mode=ro"))
            try:
                own = connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION
                version = connection.execute("PRAGMA user_version").fetchone()[0] if own else 0
                is_sound = connection.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok"
                version = version if is_sound else 0
            finally:
                connection.close()
    except DAMAGE:
        return
    if version > SCHEMA:
        raise LibraryError(
            f"'{path}' has schema {version}, and this version knows up to {SCHEMA}: a repair here would lose what "
            "only a newer task2vec can read. Upgrade: pip install -U task2vec"
        )


def _set_aside(folder: Path) -> Path:
    """Copies the index into the folder of backups, and notes that place in the mark, after those of earlier tries."""
    place = folder / BACKUPS / f"damaged-{datetime.now(UTC).strftime('%Y%m%d-%H%M%S-%f')}"
    place.mkdir(parents=True)
    for name in _FILES:
        file = folder / name
        if file.is_file():
            with file.open("rb") as old, (place / file.name).open("xb") as copy:
                shutil.copyfileobj(old, copy)
                copy.flush()
                os.fsync(copy.fileno())
    sync_folder(place)
    sync_folder(place.parent)
    mark = folder / MARK
    earlier = mark.read_text(encoding="utf-8") if mark.exists() else ""
    write_whole(mark, f"{earlier}{place.name}\n".encode())
    return place


def _refill(salvaged: Salvaged, database: Database, keeper: Keeper, report: Report) -> int:
    """Puts all of it, and every blob that is whole, into a new index; returns how many embeddings that has."""
    with database.writing() as connection:
        for facts, note in salvaged.tasks:
            keeper.keep_task(connection, facts, note)
        for expert, added in salvaged.experts:
            with _noting(salvaged.lost):
                keeper.keep_expert(connection, expert, added=added)
        for error in salvaged.errors:
            with _noting(salvaged.lost):
                keeper.keep_error(connection, error)
        connection.executemany(
            "INSERT INTO runs(what, story, begun, ended, outcome) VALUES (?, ?, ?, ?, ?)", salvaged.runs
        )
    hashes = [name for path in keeper.blobs.list_files() if (name := name_of(path))]
    hashes.sort(key=lambda name: name not in salvaged.embeddings)  # of two with one key, that of the old index wins
    count, step = 0, report("repairing", len(hashes))
    for start in range(0, len(hashes), _TOGETHER):
        some = hashes[start : start + _TOGETHER]
        with database.writing() as connection:
            for sha256 in some:
                with _noting(salvaged.lost):
                    embedding = decode_embedding(keeper.blobs.read(sha256), keeper.blobs.path(sha256))
                    note = Note(added=salvaged.embeddings.get(sha256))
                    count += keeper.keep_embedding(connection, embedding, note)[0].is_new
            keeper.search.sync()
        step(len(some))
    return count


@contextmanager
def _noting(lost: list[str]) -> Iterator[None]:
    """Notes what cannot be kept, and goes on; a disk that is full is not for going on."""
    try:
        yield
    except (LibraryError, EmbeddingFileError, DataError, ConflictError, UsageError) as error:
        lost.append(str(error))


def _swap(folder: Path, new: Path, place: Path) -> None:
    """Puts the new index and its rows into the place of the old ones, and takes the mark away."""
    if (folder / SEARCH).exists():
        os.replace(folder / SEARCH, place / SEARCH)
    if (new / SEARCH).exists():
        os.replace(new / SEARCH, folder / SEARCH)
    for companion in ("-wal", "-shm"):  # to the new index the old journal would be poison
        folder.joinpath(f"{INDEX}{companion}").unlink(missing_ok=True)
    if (folder / INDEX).is_dir():
        os.replace(folder / INDEX, place / INDEX)
    os.replace(new / INDEX, folder / INDEX)
    sync_folder(folder)
    folder.joinpath(MARK).unlink()
    sync_folder(folder)
    shutil.rmtree(place / SEARCH, ignore_errors=True)  # copies of what the embeddings say
    shutil.rmtree(new, ignore_errors=True)


@contextmanager
def _holding(path: Path) -> Iterator[None]:
    """The write lock of the old index, if it can still be locked: what others wrote to it now would be lost."""
    with ExitStack() as stack:
        try:
            if path.is_file():
                connection = connect(make_address(path, "mode=rw"))
                stack.callback(connection.close)
                connection.execute("BEGIN IMMEDIATE")
        except DAMAGE as error:
            if (getattr(error, "sqlite_errorname", None) or "").startswith("SQLITE_BUSY"):
                raise ResourceError(
                    f"another process writes to '{path}' without end, and what it writes would be lost. Nothing was "
                    "changed. End it, and try again."
                ) from error
        yield
