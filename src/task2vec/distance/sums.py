"""The symmetric distance of many pairs at once.

With q = b / (a + b) and p = 1 - q, filter by filter, the distance of a pair needs two sums only, s of q and v of q^2:

    p.p = n - 2 s + v,   q.q = v,   p.q = s - v,   (p.p) (q.q) - (p.q)^2 = n v - s^2

so a pair costs one addition, one division and two sums per filter and no exponential. Each q is computed in float32
from values scaled by the filter's geometric mean, and the sums over some thousand filters are added up in float64.
Rounding is about 1e-7 of q, whatever its size, and what is left of p.p after subtracting is large if b is the smaller
of the two: so tasks are taken in the order of their mean logarithm. What does not fit into this is treated apart:

- a filter whose values spread over more than e^30 on either side is computed from logarithms in float64;
- a filter that is dead in some tasks gets a term in its denominator that is huge when it is dead in both and zero
  otherwise: then it adds nothing to either sum, and it is not counted in n;
- a pair for which p.p is still small, or q.q vanishes, or whose distance is less than rounding, comes back as NaN: it
  is for `symmetric_from_logs`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from task2vec.distance.symmetric import BELOW_ONE

# Numbers of a block that a processor's cache holds, or that keep a GPU busy; filters that are summed in float32.
BLOCK = {"cpu": 1 << 19, "cuda": 1 << 24}
ROWS = {"cpu": 1, "cuda": 16}
CHUNK = 2048
WIDEST = 30.0
# The product of two is the largest power of ten in float32.
HUGE = 1e19
SMALLEST_SHARE, SMALLEST_SQUARES, SMALLEST_DISTANCE = 1 / 8, 1e-25, 1e-6


@dataclass(frozen=True)
class Side:
    """Some tasks: their log-embeddings (tasks, filters) in float64, and which filters are dead."""

    logs: Tensor
    dead: Tensor

    def take(self, which: Tensor | slice) -> "Side":
        """Some of these tasks."""
        return Side(self.logs[which], self.dead[which])


@dataclass(frozen=True)
class Chunk:
    """Some filters of all tasks: values in float32, or logs in float64, and HUGE where dead if some share it."""

    rows: Tensor
    columns: Tensor
    are_logs: bool
    dead_rows: Tensor | None = None
    dead_columns: Tensor | None = None


def make_chunks(rows: Side, columns: Side) -> list[Chunk]:
    """The filters in groups that are treated alike, each in pieces of at most CHUNK."""
    middle = (rows.logs.sum(0) + columns.logs.sum(0)) / (len(rows.logs) + len(columns.logs))
    spread = torch.maximum(*[(side.logs - middle).abs_().amax(0) for side in (rows, columns)])
    is_wild, is_shared = spread > WIDEST, rows.dead.any(0) & columns.dead.any(0)
    sides = [rows] if rows is columns else [rows, columns]
    chunks = []
    for wild, shared in ((False, False), (False, True), (True, False), (True, True)):
        members = torch.nonzero((is_wild == wild) & (is_shared == shared)).flatten()
        for some in members.split(CHUNK) if len(members) else ():
            parts = [side.logs[:, some] - middle[some] for side in sides]
            parts = parts if wild else [part.exp_().float() for part in parts]
            masks = [(side.dead[:, some] * HUGE).to(parts[0].dtype) for side in sides] if shared else [None]
            chunks.append(Chunk(parts[0], parts[-1], wild, masks[0], masks[-1]))
    return chunks


def sum_block(chunk: Chunk, rows: slice, columns: slice, *, is_row_smaller: bool, room: Tensor, sums: Tensor) -> None:
    """Writes the chunk's sums of q and roots of the sums of q^2, for `rows` with `columns`, to `sums`."""
    a, b = chunk.rows[rows, None], chunk.columns[None, columns]
    small, large = (a, b) if is_row_smaller else (b, a)
    dead = None
    if chunk.dead_rows is not None and chunk.dead_columns is not None:
        dead = chunk.dead_rows[rows, None], chunk.dead_columns[None, columns]
    if chunk.are_logs:
        q = torch.sigmoid(small - large)
        if dead is not None:
            q.masked_fill_((dead[0] > 0) & (dead[1] > 0), 0)
    else:
        shape = (len(a), b.shape[1], a.shape[2])
        q = torch.add(a, b, out=room[: shape[0] * shape[1] * shape[2]].view(shape))
        if dead is not None:
            q.addcmul_(*dead)
        torch.div(small, q, out=q)
    torch.sum(q, -1, out=sums[0])
    torch.linalg.vector_norm(q, dim=-1, out=sums[1])


def finish(sums: Tensor, counted: Tensor) -> Tensor:
    """The distances from s and v and the number of filters that count, NaN where they are not to be trusted."""
    s, v = sums
    pp = counted - 2 * s + v
    root = (pp * v).clamp_min(0).sqrt()
    distance = (counted * v - s.square()) / (root * (root + s - v))
    doubtful = (pp < SMALLEST_SHARE * counted) | (v < SMALLEST_SQUARES * counted) | (distance < SMALLEST_DISTANCE)
    distance = distance.clamp_max(BELOW_ONE).masked_fill(doubtful, float("nan"))
    return distance.masked_fill(counted == 0, 0)


def blocks(start: int, stop: int, width: int) -> Iterator[slice]:
    """Slices from `start` to `stop` of at most `width`."""
    return (slice(at, min(at + width, stop)) for at in range(start, stop, width))
