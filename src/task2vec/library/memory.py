"""What a process remembers of a space: where each row lies, and all sketches, ready to be searched.

Entries come in blocks that are filled and never changed, so one thread can search while another one goes on filling.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from task2vec.library.sketch import LEFT_WEIGHT, LEVEL_WEIGHT

BLOCK = 1 << 16
NO_SLOT = -1
Entry = tuple[int, int | None, int | None, bytes | None]  # of the table of places: embedding, slot, crc, sketch


@dataclass(frozen=True, eq=False)
class Places:
    """Some entries of a space.

    Attributes:
        ids: of the embeddings.
        slots: of their rows, NO_SLOT without one.
        crcs: checksums of the rows.
    """

    ids: np.ndarray
    slots: np.ndarray
    crcs: np.ndarray

    def __len__(self) -> int:
        """Number of entries."""
        return len(self.ids)

    def take(self, which: np.ndarray | slice) -> "Places":
        """Some of these entries."""
        return Places(self.ids[which], self.slots[which], self.crcs[which])

    def split(self, size: int) -> Iterator["Places"]:
        """All of them, at most `size` at a time, in the order of their slots: rows that lie together come together."""
        ordered = self.take(np.argsort(self.slots, kind="stable"))
        return (ordered.take(slice(at, at + size)) for at in range(0, len(self), size))

    @classmethod
    def from_entries(cls, entries: Sequence[tuple]) -> "Places":
        """From rows that begin with embedding, slot and crc."""
        return cls(
            np.array([entry[0] for entry in entries], dtype=np.int64),
            np.array([NO_SLOT if entry[1] is None else entry[1] for entry in entries], dtype=np.int64),
            np.array([entry[2] or 0 for entry in entries], dtype=np.int64),
        )


@dataclass(frozen=True, eq=False)
class Block:
    """Up to BLOCK entries with their sketches.

    Attributes:
        places: ids in ascending order.
        shares: (entries, directions), the numbers along the basis; zero without a sketch.
        squares: of the shares; minus infinity without a sketch, so that such an entry is always a candidate.
        left: squares of what the principal directions leave out.
        levels: mean logarithms.
    """

    places: Places
    shares: np.ndarray
    squares: np.ndarray
    left: np.ndarray
    levels: np.ndarray

    def take(self, which: slice) -> "Block":
        """Some of these entries."""
        rest = (array[which] for array in (self.shares, self.squares, self.left, self.levels))
        return Block(self.places.take(which), *rest)

    def score(self, sketch: np.ndarray) -> np.ndarray:
        """How far the entries seem to be from a task: smaller is closer."""
        left, level = np.square(sketch[-2]), sketch[-1]
        scores = self.squares - 2 * (self.shares @ sketch[:-2])
        scores += np.square(sketch[:-2]).sum() + np.float32(LEFT_WEIGHT) * (self.left + left)
        scores *= 1 + np.float32(LEVEL_WEIGHT) * np.square(self.levels - level)
        return scores


class Memory:
    """The entries of a space as they were at one moment, and those that came since."""

    def __init__(self, width: int):
        """`width` is that of the sketches; 2, the least, if there are none."""
        self.width, self.last = width, -1
        self._blocks: list[Block] = []
        self._filled = BLOCK

    def add(self, entries: Sequence[Entry]) -> None:
        """Takes over entries whose ids are larger than any before, in their order."""
        while entries:
            if self._filled == BLOCK:
                self._blocks.append(_make_block(self.width - 2))
                self._filled = 0
            some, entries = entries[: BLOCK - self._filled], entries[BLOCK - self._filled :]
            self._fill(self._blocks[-1].take(slice(self._filled, self._filled + len(some))), some)
            self._filled += len(some)
            self.last = some[-1][0]

    def _fill(self, block: Block, entries: Sequence[Entry]) -> None:
        places = Places.from_entries(entries)
        block.places.ids[:], block.places.slots[:], block.places.crcs[:] = places.ids, places.slots, places.crcs
        nothing = np.full(self.width, np.nan, dtype="<f4").tobytes()
        blobs = (entry[3] for entry in entries)
        whole = b"".join(blob if blob is not None and len(blob) == len(nothing) else nothing for blob in blobs)
        sketches = np.frombuffer(whole, dtype="<f4").reshape(len(entries), -1)
        has_sketch = np.isfinite(sketches[:, -1])
        sketches = np.where(has_sketch[:, None], sketches, 0)
        block.shares[:], block.left[:], block.levels[:] = sketches[:, :-2], np.square(sketches[:, -2]), sketches[:, -1]
        block.squares[:] = np.where(has_sketch, np.vecdot(block.shares, block.shares), -np.inf)

    def view(self) -> "View":
        """The entries as they are now; what comes later does not appear in it."""
        return View(tuple(self._blocks[:-1]) + tuple(block.take(slice(self._filled)) for block in self._blocks[-1:]))


@dataclass(frozen=True, eq=False)
class View:
    """Entries of a space that no longer change."""

    blocks: tuple[Block, ...]

    def __len__(self) -> int:
        """Number of entries."""
        return sum(len(block.places) for block in self.blocks)

    def list_places(self, size: int) -> Iterator[Places]:
        """All entries, at most `size` at a time."""
        for block in self.blocks:
            yield from block.places.split(size)

    def find_candidates(self, sketch: np.ndarray, count: int, *, without: np.ndarray) -> Places:
        """The `count` entries that seem closest by their sketches, and all entries that have none.

        Args:
            sketch: of the task whose neighbours are wanted.
            count: how many.
            without: ids of entries that are left out, in ascending order.
        """
        count += sum(int(np.isneginf(block.squares).sum()) for block in self.blocks)
        scores, found = np.empty(0, dtype=np.float32), Places.from_entries([])
        limit = np.inf
        for block in self.blocks:
            here = block.score(sketch)
            here[_find(block.places.ids, without)] = np.inf
            closer = np.flatnonzero(here < limit)
            some = block.places.take(closer)
            scores = np.concatenate([scores, here[closer]])
            found = Places(*(np.concatenate(pair) for pair in zip(_arrays(found), _arrays(some), strict=True)))
            if len(scores) > count:
                best = np.argpartition(scores, count - 1)[:count]
                scores, found = scores[best], found.take(best)
                limit = scores.max()
        return found

    def explained(self, principal: int, *, up_to: int) -> tuple[float, float]:
        """The mean share that the first directions hold of entries with ids up to `up_to`, and of later ones.

        NaN of none.
        """
        shares, is_old = [np.empty(0)], [np.empty(0, dtype=bool)]
        for block in self.blocks:
            held = np.square(block.shares[:, :principal]).sum(1)
            has_sketch = np.isfinite(block.squares) & (held + block.left > 0)
            shares.append(held[has_sketch] / (held + block.left)[has_sketch])
            is_old.append(block.places.ids[has_sketch] <= up_to)
        every, old = np.concatenate(shares), np.concatenate(is_old)
        return _mean(every[old]), _mean(every[~old])


def _find(ids: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Where the wanted ids stand, those that do."""
    at = np.searchsorted(ids, wanted)
    at, wanted = at[at < len(ids)], wanted[at < len(ids)]
    return at[ids[at] == wanted]


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _arrays(places: Places) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return places.ids, places.slots, places.crcs


def _make_block(size: int) -> Block:
    """Room for BLOCK entries; what is not filled costs no memory."""
    places = Places(*(np.empty(BLOCK, dtype=np.int64) for _ in range(3)))
    shares = np.empty((BLOCK, size), dtype=np.float32)
    return Block(places, shares, *(np.empty(BLOCK, dtype=np.float32) for _ in range(3)))
