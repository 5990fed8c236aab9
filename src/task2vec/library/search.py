"""The nearest tasks, by comparing the rows of a space block by block.

A library has three copies of every embedding: the embedding itself, which is the authority; its row (float32, what
distances are computed from); and its sketch of 257 numbers. Where a row is missing or unusable, the embedding itself is
compared. Up to 2,000 embeddings all rows are compared. Among more, sketches select a thousand candidates first, and
only these are compared: at 100,000 that takes a hundredth of the time (docs/how-to/library.md).

With u = log a - log b the symmetric distance is a function of u alone, and for small u it is half of its variance. So
the Euclidean distance between logarithms, each centred over its own filters, ranks much like it. Random projections
keep that distance (Johnson and Lindenstrauss 1984), and 256 of them are a sketch. Tasks of different size are farther
apart than that, by a factor of 1 + 0.085 c^2 for a difference c of their mean logarithms,
so the mean logarithm is one more number.
"""

import hashlib
import heapq
import math
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from sqlite3 import Connection

import numpy as np

from task2vec.distance import make_row, sign_vector, symmetric, symmetric_to_rows
from task2vec.embedding import Embedding
from task2vec.library.database import read_blob

SKETCH_FROM = 2000  # embeddings of a space, from which on sketches are used
CANDIDATES = 1000
DIRECTIONS = 256
LEVEL_WEIGHT = 0.085
ROWS_AT_ONCE = 128  # 10 MB of the default probe's
SKETCHES_AT_ONCE = 8192
_THREADS = min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
Load = Callable[[int], Embedding | None]


# --- sketches --------------------------------------------------------------------------------------------------------


@cache
def draw_directions(filters: int) -> np.ndarray:
    """Random signs (filters, directions), the same for ever: sketches that are stored depend on them."""
    bits = np.frombuffer(hashlib.shake_128(b"task2vec").digest(filters * DIRECTIONS // 8), dtype=np.uint8)
    return 2 * np.unpackbits(bits).reshape(filters, DIRECTIONS).astype(np.float32) - 1


def make_sketch(embedding: Embedding) -> np.ndarray:
    """The random projections of the centred logarithm of an embedding, and its mean logarithm, in float16.

    Example:
        >>> from task2vec.probe import FilterLayer
        >>> layer, prior = FilterLayer("conv", "convolution", 2, 9, 0.1), np.full(2, 0.25)
        >>> make_sketch(Embedding("birds", "net", np.array([1.0, 0.0]), prior, prior, (layer,))).shape
        (257,)
    """
    vector = sign_vector(embedding)
    logs = np.log(np.abs(vector))
    is_alive = vector > 0
    level = logs[is_alive].mean() if is_alive.any() else logs.mean()
    projections = (logs - level).astype(np.float32) @ draw_directions(len(vector)) / np.sqrt(len(vector))
    return np.append(projections, level).astype("<f2")


def choose_candidates(connection: Connection, space: int, sketch: np.ndarray, count: int) -> list[int]:
    """Ids of the `count` embeddings that seem closest by their sketches, and of all without a usable sketch.

    Libraries of earlier versions have sketches of another length, which count as none.
    """
    query = "SELECT e.id, s.sketch FROM embeddings e LEFT JOIN sketches s ON s.embedding = e.id WHERE e.space = ?"
    cursor = connection.execute(query, (space,))
    wanted = sketch.astype(np.float32)
    closest: list[tuple[float, int]] = []
    without: list[int] = []
    while entries := cursor.fetchmany(SKETCHES_AT_ONCE):
        blobs = {number: blob for number, blob in entries if isinstance(blob, bytes) and len(blob) == sketch.nbytes}
        sketches = np.frombuffer(b"".join(blobs.values()), dtype="<f2").reshape(len(blobs), len(sketch))
        differences = sketches.astype(np.float32) - wanted
        scores = np.vecdot(differences[:, :-1], differences[:, :-1])
        scores *= 1 + np.float32(LEVEL_WEIGHT) * np.square(differences[:, -1])
        is_usable = np.isfinite(scores)
        ids = np.array([*blobs], dtype=np.int64)
        without += [number for number, _ in entries if number not in blobs] + ids[~is_usable].tolist()
        pairs = zip(scores[is_usable].tolist(), ids[is_usable].tolist(), strict=True)
        closest = heapq.nsmallest(count, [*closest, *pairs])
    return without + [number for _, number in closest]


# --- rows ------------------------------------------------------------------------------------------------------------


def add_to_search(connection: Connection, space: int, number: int, embedding: Embedding) -> None:
    """Writes the row of an embedding, if float32 can hold it, and its sketch."""
    if (row := _pack_row(embedding)) is not None:
        connection.execute("INSERT INTO rows VALUES (?, ?)", (number, row))
    connection.execute("INSERT INTO sketches VALUES (?, ?, ?)", (number, space, make_sketch(embedding).tobytes()))


def find_damage(connection: Connection, number: int, embedding: Embedding) -> str | None:
    """What differs between an embedding and its row or sketch, or None."""
    sketch = make_sketch(embedding)
    stored = read_blob(connection, "sketches", "sketch", number)
    if stored is None or len(stored) != sketch.nbytes:  # without one it is always compared
        stored = sketch.tobytes()
    damaged = None
    if read_blob(connection, "rows", "vector", number) != _pack_row(embedding):
        damaged = "row"
    elif not np.allclose(np.frombuffer(stored, dtype="<f2"), sketch, rtol=1e-2, atol=1e-2):
        damaged = "sketch"
    return damaged and f"its {damaged} does not match its content. Write it again: task2vec library repair"


def _pack_row(embedding: Embedding) -> bytes | None:
    row = make_row(embedding)
    return None if row is None else row.astype("<f4").tobytes()


def find_nearest(
    connection: Connection,
    space: int,
    embedding: Embedding,
    *,
    k: int,
    load: Load,
    exact: bool = False,
    without: Iterable[int] = (),
) -> list[tuple[int, float]]:
    """The ids of the `k` nearest embeddings and their symmetric distances, nearest first, equal ones by id.

    Args:
        connection: to the library.
        space: where to look; `embedding` must belong to it.
        embedding: whose neighbours are wanted.
        k: how many.
        load: returns an embedding by its id, or None if it is damaged.
        exact: compare all embeddings.
        without: ids that are left out.
    """
    left_out = {*without}
    (count,) = connection.execute("SELECT count(*) FROM embeddings WHERE space = ?", (space,)).fetchone()
    if exact or count <= max(SKETCH_FROM, CANDIDATES):
        ids = (number for (number,) in connection.execute("SELECT id FROM embeddings WHERE space = ?", (space,)))
    else:
        ids = choose_candidates(connection, space, make_sketch(embedding), max(k, CANDIDATES) + len(left_out))
    nearest: list[tuple[float, int]] = []
    with ThreadPoolExecutor(_THREADS, initializer=partial(np.seterr, all="ignore")) as pool:  # rows may be damaged
        for block in _split(number for number in ids if number not in left_out):
            distances = _measure(connection, block, embedding, load, pool)
            pairs = [(distance, number) for number, distance in distances.items() if math.isfinite(distance)]
            nearest = heapq.nsmallest(k, [*nearest, *pairs])
    return [(number, distance) for distance, number in nearest]


def _split(ids: Iterator[int]) -> Iterator[list[int]]:
    """Some ids at a time."""
    block = []
    for number in ids:
        block.append(number)
        if len(block) == ROWS_AT_ONCE:
            yield block
            block = []
    if block:
        yield block


def _measure(
    connection: Connection, ids: list[int], embedding: Embedding, load: Load, pool: ThreadPoolExecutor
) -> dict[int, float]:
    """The distances of embeddings by id; NaN where one is damaged."""
    distances = dict.fromkeys(ids, np.nan)
    if (query := make_row(embedding)) is not None:
        blobs = {number: read_blob(connection, "rows", "vector", number) or b"" for number in ids}
        blobs = {number: blob for number, blob in blobs.items() if len(blob) == query.nbytes}
        rows = np.frombuffer(b"".join(blobs.values()), dtype="<f4").reshape(len(blobs), len(query))
        measured = pool.map(partial(symmetric_to_rows, query), np.array_split(rows, _THREADS))
        distances |= zip(blobs, np.concatenate([*measured]).tolist(), strict=True)
    for number, distance in distances.items():
        if not math.isfinite(distance) and (neighbour := load(number)) is not None:
            distances[number] = symmetric(embedding, neighbour)
    return distances
