"""The nearest tasks: by comparing all of a few thousand, or 100 to 400 candidates that sketches find among a million.

A library has three copies of every embedding: the embedding itself, which is the authority; its row (float32, what
exact distances are computed from); and, once a space has 2,000 embeddings, a sketch of 130 numbers. All sketches of a
space are held in memory. Where a row is missing or unusable, the embedding itself is compared. A fit of the basis is
redone by `task2vec library repair`, which drops all sketches.

With u = log a - log b the symmetric distance is a function of u alone, and for small u it is half of its variance. So
the Euclidean distance between logarithms, each centred over its own filters, ranks much like it. A sketch keeps that
distance in a hundred numbers: along the principal directions of a sample of tasks, and along random directions for all
that these leave out. Principal directions alone would do for a library of a few datasets. But every new dataset has
something of its own, and a thousand of them do not fit into a hundred directions. Three more things make the ranks
agree better, on real tasks and simulated ones (docs/how-to/library.md):

- Beyond a few units a difference no longer moves a task away, because a / (a + b) is 0 or 1 by then. So the deviation
  of a filter from its mean is clipped, and a dead filter counts as a fixed step below it, whatever its prior is.
- Tasks of different size are farther apart than their centred logarithms are, by a factor of 1 + 0.085 c^2 for a
  difference c of their mean logarithms (over the filters that are alive). So that mean is kept as one more number.
- The part along random directions is noisy, and is shrunk towards what unrelated tasks have: there the residuals add
  up. So the size of the residual is kept as a number, too.

The basis is fitted once, on a sample. A new task is projected on it, and nothing else changes.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from sqlite3 import Connection
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from task2vec.distance import make_row, sign_vector, symmetric, symmetric_to_rows
from task2vec.embedding import Embedding
from task2vec.library.database import read_blob
from task2vec.library.tables import load_embedding
from task2vec.progress import Report, silent

# From this many embeddings of a space on, its sketches are used.
SKETCH_FROM = 2000
# Directions of a basis, how many of them are principal ones, and tasks that it is fitted on.
SIZE, PRINCIPAL, SAMPLE = 128, 32, 1000
# Beyond this many units from a filter's mean a logarithm is clipped, and a dead filter counts this far below it.
CLIP, DEAD = 2.5, 1.25
# How much the size of tasks counts, and the fraction of the residual that is not left to random directions.
LEVEL_WEIGHT, LEFT_WEIGHT = 0.085, 0.3
# One of so many entries is compared exactly, and at least and at most so many: among more entries the nearest ones are
# nearer to each other than sketches resolve (docs/how-to/library.md).
_ONE_OF, _FEWEST, _MOST = 1000, 100, 400
# Rows that are read at once: 10 MB of the default probe's.
READ_AT_ONCE = 128
BLOCK = 1 << 16  # entries of a block of sketches in memory
_FETCH = 8192  # sketches that are fetched from the file at once
_PROJECT = 64  # vectors that are projected at once
_SEED = 20190610
_THREADS = min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)

# --- sketches ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Sketcher:
    """A basis of the space of tasks.

    Attributes:
        mean: of the centred logarithms of the sample, filter by filter, where it is alive.
        principal: (filters, directions), orthonormal.
        random: (filters, directions), orthogonal to those and to each other, as long as they have to be to stand for
            all the others.
    """

    mean: np.ndarray
    principal: np.ndarray
    random: np.ndarray

    @property
    def width(self) -> int:
        """Numbers of a sketch."""
        return self.principal.shape[1] + self.random.shape[1] + 2

    def project(self, vectors: np.ndarray) -> np.ndarray:
        """The sketches (tasks, width) of signed vectors (tasks, filters), which are negative where a filter is dead.

        The numbers along the principal directions come first, then those along the random ones; in squares they are
        means over the filters. Then come the root of the mean square that the principal directions leave out, and the
        mean logarithm.
        """
        sketches = np.empty((len(vectors), self.width), dtype=np.float32)
        count, root = self.principal.shape[1], np.sqrt(np.float32(len(self.mean)))
        for at in range(0, len(vectors), _PROJECT):
            part, into = vectors[at : at + _PROJECT], sketches[at : at + _PROJECT]
            logs, into[:, -1] = _centre(part)
            parts = _clip(logs, part, self.mean)
            shares = into[:, :count] = parts @ self.principal / root
            into[:, count:-2] = parts @ self.random / root
            left = np.vecdot(parts, parts) / len(self.mean) - np.vecdot(shares, shares)
            into[:, -2] = np.sqrt(np.maximum(left, 0))
        return sketches


def fit_sketcher(vectors: np.ndarray, *, size: int = SIZE, principal: int = PRINCIPAL) -> Sketcher:
    """The `principal` directions in which these tasks differ most, and random ones for the rest, `size` in all.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> vectors = np.exp(rng.normal(size=(40, 3)) @ rng.normal(size=(3, 500)))
        >>> sketcher = fit_sketcher(vectors, size=8, principal=4)
        >>> sketches = sketcher.project(vectors)
        >>> sketches.shape
        (40, 10)
    """
    logs = np.concatenate([_centre(vectors[at : at + _PROJECT])[0] for at in range(0, len(vectors), _PROJECT)])
    is_alive = vectors > 0
    mean = (np.where(is_alive, logs, 0).sum(0, dtype=np.float64) / np.maximum(is_alive.sum(0), 1)).astype(np.float32)
    parts = _clip(logs, vectors, mean)
    values, directions = np.linalg.eigh((parts @ parts.T).astype(np.float64))
    most = min(principal, size)
    values, directions = values[::-1][:most], directions[:, ::-1][:, :most]
    is_real = values > 1e-6 * max(values[0], np.finfo(np.float32).tiny)  # the rest is rounding
    best = parts.T @ (directions[:, is_real] / np.sqrt(values[is_real])).astype(np.float32)
    return Sketcher(mean, best, _draw_directions(best, size - best.shape[1]))


def _draw_directions(principal: np.ndarray, count: int) -> np.ndarray:
    """Random directions, orthogonal to the principal ones and to each other.

    They are so long that the squares along them add up, on average, to what a vector has outside of the principal
    directions, but for the share that is not left to chance.
    """
    filters, taken = principal.shape
    count = min(count, filters - taken)
    drawn = np.random.default_rng(_SEED).standard_normal((filters, count))
    drawn -= principal @ (principal.T @ drawn)
    length = np.sqrt((1 - LEFT_WEIGHT) * (filters - taken) / max(count, 1))
    return np.ascontiguousarray(length * np.linalg.qr(drawn)[0], dtype=np.float32)


def _centre(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms in float32, from each its mean over the filters that are alive taken off, and these means."""
    logs, is_alive = np.log(np.abs(vectors)), vectors > 0
    is_alive |= ~is_alive.any(1, keepdims=True)  # a task without anything alive has the mean of its priors
    means = logs.mean(1, keepdims=True, dtype=np.float64, where=is_alive)
    return (logs - means).astype(np.float32), means[:, 0]


def _clip(logs: np.ndarray, vectors: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """What is beyond the mean of each filter, within CLIP, and one value for all dead filters."""
    parts = logs - mean
    np.clip(parts, -CLIP, CLIP, out=parts)
    parts[vectors < 0] = -DEAD
    return parts


# --- sketches in memory ----------------------------------------------------------------------------------------------


class Block(NamedTuple):
    """Up to BLOCK entries with their sketches.

    Attributes:
        ids: of the embeddings, ascending.
        terms: (entries, directions + 1), the numbers along the basis, and what of a score depends on the entry alone:
            minus infinity without a sketch, so that such an entry is always a candidate.
        levels: mean logarithms.
    """

    ids: np.ndarray
    terms: np.ndarray
    levels: np.ndarray

    def join(self, other: "Block") -> "Block":
        """The entries of both."""
        return Block(*map(np.concatenate, zip(self, other, strict=True)))

    def score(self, sketch: np.ndarray) -> np.ndarray:
        """An estimate of the distances from a task: smaller is closer."""
        scores = self.terms @ np.append(-2 * sketch[:-2], np.float32(1))
        scores += np.square(sketch[:-2]).sum() + np.float32(LEFT_WEIGHT) * np.square(sketch[-2])
        scores *= 1 + np.float32(LEVEL_WEIGHT) * np.square(self.levels - sketch[-1])
        return scores


def make_block(entries: Sequence[tuple[int, bytes | None]], width: int) -> Block:
    """Ids, ascending, and sketches of that width as a block; a sketch that is unusable counts as none."""
    nothing = np.full(width, np.nan, dtype="<f4").tobytes()
    whole = b"".join(one if one is not None and len(one) == len(nothing) else nothing for _, one in entries)
    sketches = np.frombuffer(whole, dtype="<f4").reshape(len(entries), width)
    has_sketch = np.asarray(np.isfinite(sketches).all(axis=1))
    sketches = np.where(has_sketch[:, None], sketches, 0)
    own = np.vecdot(sketches[:, :-2], sketches[:, :-2]) + LEFT_WEIGHT * np.square(sketches[:, -2])
    terms, levels = sketches[:, :-1].copy(), sketches[:, -1].copy()
    terms[:, -1] = np.where(has_sketch, own, -np.inf)
    return Block(np.array([number for number, _ in entries], dtype=np.int64), terms, levels)


def find_candidates(blocks: Sequence[Block], sketch: np.ndarray, count: int) -> np.ndarray:
    """Ids of the `count` entries that seem closest by their sketches, and of all that have none, ascending."""
    count += sum(int(np.isneginf(block.terms[:, -1]).sum()) for block in blocks)
    scores, ids, limit = np.empty(0, dtype=np.float32), np.empty(0, dtype=np.int64), np.inf
    for block in blocks:  # block by block, few are closer than the best so far: four times as fast as all at once
        here = block.score(sketch)
        closer = np.flatnonzero(here < limit)
        scores, ids = np.concatenate([scores, here[closer]]), np.concatenate([ids, block.ids[closer]])
        if len(scores) > count:
            best = np.argpartition(scores, count - 1)[:count]
            scores, ids = scores[best], ids[best]
            limit = scores.max()
    return np.sort(ids)


def count_candidates(entries: int) -> int:
    """How many of so many entries are compared exactly.

    Example:
        >>> [count_candidates(entries) for entries in (10_000, 200_000, 1_000_000)]
        [100, 200, 400]
    """
    return min(max(entries // _ONE_OF, _FEWEST), _MOST)


# --- searching -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Known:
    """What this process has read of a space: a value that is replaced and never changed, so it needs no lock.

    Attributes:
        filters: of its embeddings.
        changes: a counter of what is more than growth.
        basis_sha256: of its basis, if it has one.
        sketcher: that basis; None if there is none, or if it is damaged.
        blocks: sketches by ascending id.
    """

    filters: int
    changes: int
    basis_sha256: str | None
    sketcher: Sketcher | None = None
    blocks: tuple[Block, ...] = ()

    @property
    def ids(self) -> np.ndarray:
        """Of all entries, ascending."""
        return np.concatenate([np.empty(0, dtype=np.int64), *(block.ids for block in self.blocks)])

    def add(self, entries: Sequence[tuple[int, bytes | None]]) -> "Known":
        """The same with more entries, of larger ids."""
        *blocks, new = *self.blocks, make_block(entries, 2 if self.sketcher is None else self.sketcher.width)
        if blocks and len(blocks[-1].ids) + len(new.ids) <= BLOCK:
            new = blocks.pop().join(new)
        return replace(self, blocks=(*blocks, new))


class Search:
    """Rows and sketches of one library, for any number of threads, each with a connection of its own.

    A connection must have written nothing since its last commit when it is given to `nearest`, because what that reads
    is remembered.
    """

    sketch_from = SKETCH_FROM

    def __init__(self):
        self._known: dict[int, Known] = {}  # threads may read the same twice, and the last one is remembered

    def enter(self, connection: Connection, space: int, number: int, embedding: Embedding) -> None:
        """Writes the row of an embedding, and its sketch if the space has a basis."""
        row, sketch = self._derive(connection, space, embedding)
        if row is not None:
            connection.execute("INSERT INTO rows VALUES (?, ?)", (number, row))
        sketch = None if sketch is None else sketch.tobytes()
        connection.execute("INSERT INTO sketches VALUES (?, ?, ?)", (number, space, sketch))

    def find_damage(self, connection: Connection, space: int, number: int, embedding: Embedding) -> str | None:
        """What differs between an embedding and its row or sketch, or None."""
        row, sketch = self._derive(connection, space, embedding)
        found, wrong = read_blob(connection, "sketches", "sketch", number), None
        if read_blob(connection, "rows", "vector", number) != row:
            wrong = "row"
        elif sketch is not None and found is not None:  # without a sketch it is always compared
            is_whole = len(found) == sketch.nbytes
            if not (is_whole and np.allclose(np.frombuffer(found, dtype="<f4"), sketch, rtol=1e-3, atol=1e-3)):
                wrong = "sketch"
        return wrong and f"its {wrong} does not match its content. Write it again: task2vec library repair"

    def _derive(
        self, connection: Connection, space: int, embedding: Embedding
    ) -> tuple[bytes | None, np.ndarray | None]:
        """The row of an embedding, if float32 can hold it, and its sketch, if the space has a basis."""
        row, sketcher = make_row(embedding), self.look(connection, space, sketches=False).sketcher
        sketch = None if sketcher is None else sketcher.project(sign_vector(embedding)[None])[0].astype("<f4")
        return None if row is None else row.astype("<f4").tobytes(), sketch

    def nearest(
        self,
        connection: Connection,
        space: int,
        embedding: Embedding,
        *,
        k: int,
        candidates: int | None = None,
        exact: bool = False,
        without: Iterable[int] = (),
    ) -> list[tuple[int, float]]:
        """The ids of the `k` nearest embeddings and their symmetric distances, nearest first, equal ones by id.

        Args:
            connection: to the library.
            space: where to look; `embedding` must belong to it.
            embedding: whose neighbours are wanted.
            k: how many.
            candidates: how many entries the sketches propose, to be compared exactly; see `count_candidates`.
            exact: compare all entries.
            without: ids that are left out.
        """
        known, left_out = self.look(connection, space), np.array([*without], dtype=np.int64)
        entries = sum(len(block.ids) for block in known.blocks)
        if exact or known.sketcher is None or entries < self.sketch_from:
            ids = known.ids
        else:
            count = max(count_candidates(entries) if candidates is None else candidates, k)
            sketch = known.sketcher.project(sign_vector(embedding)[None])[0]
            ids = find_candidates(known.blocks, sketch, count + len(left_out))
        ids = np.setdiff1d(ids, left_out)
        distances = _measure(connection, ids, embedding)
        order = np.lexsort((ids, distances))[: min(k, int(np.isfinite(distances).sum()))]
        return list(zip(ids[order].tolist(), distances[order].tolist(), strict=True))

    def look(self, connection: Connection, space: int, *, sketches: bool = True) -> Known:
        """What is known of a space, its sketches brought up to the connection's snapshot; without them the basis."""
        row = connection.execute("SELECT filters, changes, basis_sha256 FROM spaces WHERE id = ?", (space,)).fetchone()
        known = self._known.get(space)
        if known is None or (known.filters, known.changes, known.basis_sha256) != row:  # has not just grown
            known = Known(*row, sketcher=_load_sketcher(connection, space, row[0], row[2]))
        last = int(known.blocks[-1].ids[-1]) if known.blocks else -1
        query = "SELECT embedding, sketch FROM sketches WHERE space = ? AND embedding > ? ORDER BY embedding"
        cursor = connection.execute(query, (space, last))
        while sketches and (some := cursor.fetchmany(_FETCH)):
            known = known.add(some)
        self._known[space] = known
        return known

    def needs_fit(self, connection: Connection, space: int) -> bool:
        """Whether there are enough embeddings for sketches, and no usable basis."""
        some = "SELECT 1 FROM sketches WHERE space = ? LIMIT ?"
        count = connection.execute(f"SELECT count(*) FROM ({some})", (space, self.sketch_from)).fetchone()[0]
        return count == self.sketch_from and self.look(connection, space, sketches=False).sketcher is None

    def fit(self, connection: Connection, space: int, *, report: Report = silent) -> None:
        """Fits a basis to a sample of the space, and computes all sketches."""
        filters = self.look(connection, space, sketches=False).filters
        rows = connection.execute("SELECT embedding FROM sketches WHERE space = ? ORDER BY embedding", (space,))
        ids = np.array([one for (one,) in rows], dtype=np.int64)
        drawn = np.sort(np.random.default_rng(0).permutation(len(ids))[:SAMPLE])
        sketcher = fit_sketcher(np.concatenate([some for _, some in _read_vectors(connection, filters, ids[drawn])]))
        step = report("sketches", len(ids))
        connection.execute("UPDATE sketches SET sketch = NULL WHERE space = ?", (space,))
        for some, vectors in _read_vectors(connection, filters, ids):
            sketches = sketcher.project(vectors).astype("<f4")
            connection.executemany(
                "UPDATE sketches SET sketch = ? WHERE embedding = ?",
                ((one.tobytes(), int(embedding)) for one, embedding in zip(sketches, some, strict=True)),
            )
            step(len(some))
        basis = save_tensors(vars(sketcher))
        connection.execute(
            "UPDATE spaces SET basis = ?, basis_sha256 = ?, changes = changes + 1 WHERE id = ?",
            (basis, hashlib.sha256(basis).hexdigest(), space),
        )


def _load_sketcher(connection: Connection, space: int, filters: int, sha256: str | None) -> Sketcher | None:
    """The basis of a space; None if it has none, or if that is damaged."""
    (basis,) = connection.execute("SELECT basis FROM spaces WHERE id = ?", (space,)).fetchone()
    if not isinstance(basis, bytes) or hashlib.sha256(basis).hexdigest() != sha256:
        return None
    with suppress(SafetensorError, TypeError):
        sketcher = Sketcher(**load_tensors(basis))
        return sketcher if sketcher.mean.shape == (filters,) else None


def _read_rows(connection: Connection, filters: int, ids: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Ids and rows of the entries that have a usable one, some at a time."""
    for at in range(0, len(ids), READ_AT_ONCE):
        numbers = ids[at : at + READ_AT_ONCE].tolist()
        blobs = {number: read_blob(connection, "rows", "vector", number) or b"" for number in numbers}
        whole = {number: blob for number, blob in blobs.items() if len(blob) == 4 * filters}
        if whole:
            yield np.array([*whole]), np.frombuffer(b"".join(whole.values()), dtype="<f4").reshape(len(whole), filters)


def _read_vectors(connection: Connection, filters: int, ids: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Ids and rows of entries, some at a time; vectors without a row come from the embeddings, in float64."""
    having = [np.empty(0, dtype=np.int64)]
    for some, rows in _read_rows(connection, filters, ids):
        having.append(some)
        yield some, rows
    for number in np.setdiff1d(ids, np.concatenate(having)):
        if (embedding := load_embedding(connection, "e.id = ?", int(number))) is not None:
            yield np.array([number]), sign_vector(embedding)[None]


def _measure(connection: Connection, ids: np.ndarray, embedding: Embedding) -> np.ndarray:
    """The distances of entries, by ascending id, from an embedding; NaN where an entry is damaged."""
    own, found = make_row(embedding), np.full(len(ids), np.nan)
    if own is not None:
        measure = partial(symmetric_to_rows, own)
        with ThreadPoolExecutor(_THREADS, initializer=partial(np.seterr, all="ignore")) as pool:  # rows may be damaged
            for some, rows in _read_rows(connection, len(embedding), ids):
                parts = pool.map(measure, np.array_split(rows, min(_THREADS, len(rows))))
                found[np.searchsorted(ids, some)] = np.concatenate([*parts])
    for place in np.flatnonzero(np.isnan(found)):
        other = load_embedding(connection, "e.id = ?", int(ids[place]))
        found[place] = np.nan if other is None else symmetric(embedding, other)
    return found
