"""What keeps searching fast and right: a basis, a file without holes, no stray files, and a look at every row."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from sqlite3 import Connection

import numpy as np

from task2vec.errors import DataError
from task2vec.library.comparing import READ_AT_ONCE, Load
from task2vec.library.memory import NO_SLOT, Places
from task2vec.library.rows import Rows, checksum, make_row, sign_vector
from task2vec.library.sketch import Sketcher, fit_sketcher
from task2vec.library.spaces import BASIS, ROWS, Space, fetch_rows, load_sketcher, read_basis, save_sketcher
from task2vec.progress import Report
from task2vec.storage import PARTIAL

# Tasks that a basis is fitted on.
SAMPLE = 1000


def has_entries(connection: Connection, space: int, count: int) -> bool:
    """Whether the space has at least `count` entries, without counting more of them."""
    some = "SELECT 1 FROM places WHERE space = ? LIMIT ?"
    return connection.execute(f"SELECT count(*) FROM ({some})", (space, count)).fetchone()[0] == count


def fit(connection: Connection, folder: Path, space: Space, *, load: Load | None, report: Report) -> None:
    """Makes a basis of a sample, and the sketches of all."""
    places = _list_places(connection, space)
    rows, checked = Rows(folder / space.rows_name, space.filters), set()
    drawn = np.sort(np.random.default_rng(0).permutation(len(places))[:SAMPLE])
    sample = [vectors for _, vectors in _read_vectors(rows, places.take(drawn), checked, load)]
    if not sum(map(len, sample)):
        raise DataError(
            f"none of the {len(places)} rows in '{rows.path}' can be used, so there is nothing to make sketches of. "
            "Make them anew from the embeddings: task2vec library compact"
        )
    sketcher = fit_sketcher(np.concatenate(sample))
    step = report("sketches", len(places))
    connection.execute("UPDATE places SET sketch = NULL WHERE space = ?", (space.id,))
    for ids, vectors in _read_vectors(rows, places, checked, load):
        sketches = sketcher.project(vectors).astype("<f4")
        connection.executemany(
            "UPDATE places SET sketch = ? WHERE embedding = ?",
            ((one.tobytes(), int(embedding)) for one, embedding in zip(sketches, ids, strict=True)),
        )
        step(len(ids))
    basis = save_sketcher(folder, space, sketcher, last=int(places.ids[-1]))
    connection.execute(
        "UPDATE spaces SET basis = ?, fitted_on = ?, changes = changes + 1 WHERE id = ?",
        (basis.to_bytes(), len(places), space.id),
    )


def compact(connection: Connection, folder: Path, space: Space, *, load: Load | None, report: Report) -> None:
    """Writes the rows of all entries into the file of the next generation, one after the other."""
    places = _list_places(connection, space)
    old = Rows(folder / space.rows_name, space.filters)
    new = Rows(folder / f"{space.key[:16]}-{space.generation + 1}{ROWS}", space.filters)
    new.path.unlink(missing_ok=True)  # of a process that was killed while it did this
    step, slot = report("rows", len(places)), 0
    connection.execute("UPDATE places SET slot = NULL, crc = NULL WHERE space = ?", (space.id,))
    for ids, vectors in _read_vectors(old, places, set(), load):
        kept = [(int(one), row) for one, row in zip(ids, vectors, strict=True) if row.dtype == np.float32]
        if kept:
            new.write(slot, np.stack([row for _, row in kept]))
        connection.executemany(
            "UPDATE places SET slot = ?, crc = ? WHERE embedding = ?",
            ((slot + at, checksum(row), one) for at, (one, row) in enumerate(kept)),
        )
        slot += len(kept)
        step(len(ids))
    new.sync()
    connection.execute("UPDATE spaces SET generation = generation + 1, changes = changes + 1 WHERE id = ?", (space.id,))


def sweep(connection: Connection, folder: Path) -> list[Path]:
    """Removes what no space names: rows of old generations, old bases, unfinished files."""
    spaces = [Space(*found) for found in connection.execute(_SPACES)]
    bases = [read_basis(space) for space in spaces]
    known = {space.rows_name for space in spaces} | {basis.name for basis in bases if basis is not None}
    gone = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.name.endswith((ROWS, BASIS, PARTIAL)) and path.name not in known:
            with suppress(OSError):  # where open files cannot be removed, the next sweep does it
                path.unlink()
                gone.append(path)
    return gone


def verify(connection: Connection, folder: Path, space: Space, load: Load) -> Iterator[tuple[int | None, str]]:
    """Compares every row with its embedding and every sketch with its row."""
    sketcher = load_sketcher(folder, space)
    if space.basis is not None and sketcher is None:
        yield None, f"its basis is missing or damaged, so all entries are compared. {_REFIT}"
    rows, places = Rows(folder / space.rows_name, space.filters), _list_places(connection, space)
    for at in range(0, len(places), READ_AT_ONCE):
        some = places.take(slice(at, at + READ_AT_ONCE))
        found, is_good = fetch_rows(rows, some, set())
        for number, embedding_id in enumerate(some.ids.tolist()):
            embedding = load(embedding_id)
            if embedding is None:  # a damaged embedding is not for us to name
                continue
            row = make_row(embedding)
            if row is None and some.slots[number] == NO_SLOT:
                row = sign_vector(embedding)
            elif row is None or not is_good[number] or not np.array_equal(row, found[number]):
                yield embedding_id, f"its row in '{rows.path}' is not that of its embedding. {_REPAIR}"
                row = sign_vector(embedding)
            if sketcher is not None and not _is_sketch_right(connection, embedding_id, sketcher, row):
                yield embedding_id, f"its sketch is not that of its embedding. {_REFIT}"


def _is_sketch_right(connection: Connection, embedding_id: int, sketcher: Sketcher, row: np.ndarray) -> bool:
    """Whether the sketch in the index is that of the row, to rounding; none at all is right, too: it is compared."""
    found = connection.execute("SELECT sketch FROM places WHERE embedding = ?", (embedding_id,)).fetchone()
    if found is None or found[0] is None:
        return True
    kept, made = np.frombuffer(found[0], dtype=np.uint8), sketcher.project(row[None])[0]
    return kept.nbytes == made.nbytes and bool(np.allclose(kept.view("<f4"), made, rtol=1e-3, atol=1e-3))


def _list_places(connection: Connection, space: Space) -> Places:
    """All entries of the space, by id."""
    found = connection.execute(
        "SELECT embedding, slot, crc FROM places WHERE space = ? ORDER BY embedding", (space.id,)
    )
    return Places.from_entries(found.fetchall())


def _read_vectors(
    rows: Rows, places: Places, checked: set[int], load: Load | None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Ids and rows of entries, some at a time; rows that cannot be used come from the embeddings, one by one.

    Of an embedding that float32 cannot hold, it is the vector in float64.
    """
    for at in range(0, len(places), READ_AT_ONCE):
        some = places.take(slice(at, at + READ_AT_ONCE))
        found, is_good = fetch_rows(rows, some, checked)
        if is_good.any():
            yield some.ids[is_good], found[is_good]
        for number in np.flatnonzero(~is_good):
            embedding = None if load is None else load(int(some.ids[number]))
            if embedding is not None:
                row = make_row(embedding)
                yield some.ids[[number]], (sign_vector(embedding) if row is None else row)[None]


_SPACES = "SELECT id, key, filters, generation, changes, basis FROM spaces"
_REPAIR = "The embedding itself is compared instead. Mend it: task2vec library compact"
_REFIT = "Mend it: task2vec library check-search --refit"
