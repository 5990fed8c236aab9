"""All pairs of many log-embeddings, block by block: the memory is that of the result, the input and one block."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from task2vec.distance.kernels import KERNELS, Kernel
from task2vec.distance.kind import Distance
from task2vec.distance.sums import BLOCK, ROWS, Chunk, Side, blocks, finish, make_chunks, sum_block
from task2vec.embedding.device import choose_device
from task2vec.progress import Report

# Rows whose sums are kept at a time, and numbers of a block of the other kernels, which hold a few of them.
_GROUP = 64
_KERNEL_BLOCK = {"cpu": 1 << 18, "cuda": 1 << 23}


def measure_blocks(
    rows: np.ndarray,
    columns: np.ndarray | None,
    kind: Distance,
    *,
    dead: tuple[np.ndarray, np.ndarray],
    device: str | None,
    report: Report,
) -> np.ndarray:
    """(rows, columns) in float64; without `columns`, rows against themselves, each pair once if `kind` is symmetric."""
    where = choose_device(device)
    is_once = columns is None and kind.is_symmetric
    one = Side(torch.from_numpy(rows).to(where), torch.from_numpy(dead[0]).to(where))
    other = one
    if columns is not None:
        other = Side(torch.from_numpy(columns).to(where), torch.from_numpy(dead[1]).to(where))
    step = report("distances", len(rows))
    if kind.name == "symmetric":
        values = _sum_blocks(one, other, step)
    else:
        values = _kernel_blocks(one, other, KERNELS[kind.name], is_once=is_once, step=step)
    values = values.cpu().numpy()
    _mend(values, (rows, rows if columns is None else columns), dead, kind, is_once=is_once)
    if columns is None:
        np.fill_diagonal(values, 0)
    return values


def _sum_blocks(rows: Side, columns: Side, step: Callable[[int], None]) -> Tensor:
    """The symmetric distance of all pairs, tasks being taken from the largest to the smallest."""
    is_square, device = rows is columns, rows.logs.device
    means = [side.logs.mean(1) for side in (rows, columns)]
    orders = [mean.argsort(descending=True) for mean in means]
    one = rows.take(orders[0])
    other = one if is_square else columns.take(orders[1])
    chunks = make_chunks(one, other)
    is_shared = one.dead.any(0) & other.dead.any(0)
    dead = [side.dead[:, is_shared].float() for side in (one, other)]
    # For every row, the columns before its place belong to larger tasks.
    places = torch.searchsorted(-means[1][orders[1]], -means[0][orders[0]]).tolist()
    found = torch.empty(len(one.logs), len(other.logs), dtype=torch.float64, device=device)

    def fill(group: slice) -> int:
        room = torch.empty(BLOCK.get(device.type, BLOCK["cpu"]), dtype=torch.float32, device=device)
        sums = torch.zeros(2, group.stop - group.start, found.shape[1], dtype=torch.float64, device=device)
        for chunk in chunks:
            sums += _sum_group(chunk, group, range(len(places)) if is_square else places, room, sums)
        shared = dead[0][group] @ dead[1].T  # small whole numbers, exact in float32
        found[group] = finish(sums, one.logs.shape[1] - shared.double())
        return group.stop - group.start

    for done in run_side_by_side(fill, blocks(0, len(found), _GROUP), device):
        step(done)
    if is_square:
        found = found.triu_(1)
        found += found.T.clone()
    result = torch.empty_like(found)
    result[orders[0][:, None], orders[1]] = found
    return result


def run_side_by_side(work: Callable[[slice], int], parts: Iterable[slice], device: torch.device) -> Iterator[int]:
    """What `work` returns for every part; on a CPU each part has one thread, and as many run as torch would use.

    The blocks are small. Were each one shared between the threads, these would wait for each other most of the time,
    and for ever on a machine that has other things to do.
    """
    if device.type != "cpu":
        yield from map(work, parts)
        return
    from threadpoolctl import threadpool_limits

    def work_alone(part: slice) -> int:
        torch.get_num_threads()  # a thread's first question sets its number, so it comes before the limit
        with threadpool_limits(1, "openmp"):
            return work(part)

    pool = ThreadPoolExecutor(torch.get_num_threads())
    try:
        yield from pool.map(work_alone, parts)
    finally:
        pool.shutdown(cancel_futures=True)


def _sum_group(chunk: Chunk, group: slice, places: Sequence[int], room: Tensor, like: Tensor) -> Tensor:
    """The chunk's part of the two sums of some rows, shaped like `like`: zero before their places if square."""
    is_square = chunk.rows is chunk.columns
    sums = torch.zeros(like.shape, dtype=chunk.rows.dtype, device=like.device)
    for rows in blocks(group.start, group.stop, ROWS.get(like.device.type, 1)):
        part = sums[:, rows.start - group.start : rows.stop - group.start]
        width = max(1, len(room) // ((rows.stop - rows.start) * chunk.rows.shape[1]))
        place = places[rows.start if is_square else (rows.start + rows.stop) // 2]
        for columns in blocks(place, like.shape[2], width):
            sum_block(chunk, rows, columns, is_row_smaller=False, room=room, sums=part[:, :, columns])
        for columns in () if is_square else blocks(0, place, width):
            sum_block(chunk, rows, columns, is_row_smaller=True, room=room, sums=part[:, :, columns])
    sums = sums.double()
    sums[1].square_()
    return sums


def _kernel_blocks(rows: Side, columns: Side, kernel: Kernel, *, is_once: bool, step: Callable[[int], None]) -> Tensor:
    """What `kernel` gives for all pairs, above the diagonal and mirrored if once is enough."""
    filters, device = rows.logs.shape[1], rows.logs.device
    width = max(1, _KERNEL_BLOCK.get(device.type, _KERNEL_BLOCK["cpu"]) // filters)
    result = torch.zeros(len(rows.logs), len(columns.logs), dtype=torch.float64, device=device)
    has_shared_dead = bool((rows.dead.any(0) & columns.dead.any(0)).any())
    for row in range(len(result)):
        for some in blocks(row + 1 if is_once else 0, len(columns.logs), width):
            counted = ~(rows.dead[row] & columns.dead[some])[None] if has_shared_dead else None
            found = kernel(rows.logs[row][None, None], columns.logs[None, some], counted)
            nothing = None if counted is None else ~counted.any(-1)
            result[row, some] = (found if nothing is None else found.masked_fill(nothing, 0))[0]
        step(1)
    return result + result.T if is_once else result


def _mend(
    values: np.ndarray,
    logs: tuple[np.ndarray, np.ndarray],
    dead: tuple[np.ndarray, np.ndarray],
    kind: Distance,
    *,
    is_once: bool,
) -> None:
    """Computes by itself every pair that came back as NaN."""
    for row, column in np.argwhere(np.isnan(values)):
        if is_once and row > column:
            values[row, column] = values[column, row]
            continue
        counted = ~(dead[0][row] & dead[1][column])
        values[row, column] = kind.from_logs(logs[0][row][counted], logs[1][column][counted]) if counted.any() else 0
