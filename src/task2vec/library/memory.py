"""What a process remembers of a space: where each row lies, and all sketches, ready to be searched.

Entries come in blocks that are filled and never changed, so one thread can search while another one goes on filling.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from task2vec.library.sketch import Sketcher, Sketches

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
    """Up to BLOCK entries, by ascending id, with their sketches."""

    places: Places
    sketches: Sketches

    def take(self, which: slice) -> "Block":
        """Some of these entries."""
        return Block(self.places.take(which), self.sketches.take(which))


class Memory:
    """The entries of a space as they were at one moment, and those that came since."""

    def __init__(self, sketcher: Sketcher | None):
        """Without a sketcher, sketches are not remembered."""
        self.sketcher, self.last = sketcher, -1
        self._blocks: list[Block] = []
        self._filled = BLOCK

    def add(self, entries: Sequence[Entry]) -> None:
        """Takes over entries whose ids are larger than any before, in their order."""
        while entries:
            if self._filled == BLOCK:
                self._blocks.append(self._make_block())
                self._filled = 0
            some, entries = entries[: BLOCK - self._filled], entries[BLOCK - self._filled :]
            self._fill(self._blocks[-1].take(slice(self._filled, self._filled + len(some))), some)
            self._filled += len(some)
            self.last = some[-1][0]

    def _make_block(self) -> Block:
        sizes = (0, 0) if self.sketcher is None else (self.sketcher.principal.shape[1], self.sketcher.random.shape[1])
        return Block(Places(*(np.empty(BLOCK, dtype=np.int64) for _ in range(3))), Sketches.make_room(BLOCK, *sizes))

    def _fill(self, block: Block, entries: Sequence[Entry]) -> None:
        places = Places.from_entries(entries)
        block.places.ids[:], block.places.slots[:], block.places.crcs[:] = places.ids, places.slots, places.crcs
        nothing = np.full(2 if self.sketcher is None else self.sketcher.width, np.nan, dtype="<f4").tobytes()
        blobs = (entry[3] for entry in entries)
        whole = b"".join(blob if blob is not None and len(blob) == len(nothing) else nothing for blob in blobs)
        block.sketches.fill(np.frombuffer(whole, dtype="<f4").reshape(len(entries), -1))

    def view(self) -> "View":
        """The entries as they are now; what comes later does not appear in it."""
        blocks = [*self._blocks[:-1], *(block.take(slice(self._filled)) for block in self._blocks[-1:])]
        return View(self.sketcher, tuple(blocks))


@dataclass(frozen=True, eq=False)
class View:
    """Entries of a space that no longer change."""

    sketcher: Sketcher | None
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
        assert self.sketcher is not None, "there are no sketches"
        count += sum(int(np.isneginf(block.sketches.squares[0]).sum()) for block in self.blocks)
        scores, found, limit = np.empty(0, dtype=np.float32), Places.from_entries([]), np.inf
        for block in self.blocks:
            here = self.sketcher.score(sketch, block.sketches)
            here[_find(block.places.ids, without)] = np.inf
            closer = np.flatnonzero(here < limit)
            closer = closer[_find_least(here[closer], count)]
            some, scores = block.places.take(closer), np.concatenate([scores, here[closer]])
            found = Places(*(np.concatenate(pair) for pair in zip(_arrays(found), _arrays(some), strict=True)))
            best = _find_least(scores, count)
            scores, found = scores[best], found.take(best)
            limit = scores.max() if len(scores) == count else np.inf
        return found

    def explained(self, *, up_to: int) -> tuple[float, float]:
        """The mean share that principal directions hold of entries with ids up to `up_to`, and of later ones.

        NaN of none.
        """
        if self.sketcher is None or not self.blocks:
            return float("nan"), float("nan")
        every = np.concatenate([self.sketcher.explain(block.sketches) for block in self.blocks])
        is_old = np.concatenate([block.places.ids for block in self.blocks]) <= up_to
        is_known = ~np.isnan(every)
        return _mean(every[is_old & is_known]), _mean(every[~is_old & is_known])


def _find(ids: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Where the wanted ids stand, those that do."""
    at = np.searchsorted(ids, wanted)
    at, wanted = at[at < len(ids)], wanted[at < len(ids)]
    return at[ids[at] == wanted]


def _find_least(values: np.ndarray, count: int) -> np.ndarray:
    """Where the `count` smallest stand, in no order."""
    return np.argpartition(values, count - 1)[:count] if len(values) > count else np.arange(len(values))


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _arrays(places: Places) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return places.ids, places.slots, places.crcs
