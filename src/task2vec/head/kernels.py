"""A step of L-BFGS as two Triton kernels, before and after the objective, one program for each problem.

In torch's own operations it is eighty kernels of a few microseconds each, which take longer to start than to run. Here
a program goes through the vectors of its problem in chunks; an update of a vector and the next sum share a pass.
"""

# Triton compiles kernels from their source: what a type checker sees of them is not what runs.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# The largest chunk, and the numbers of it that one warp works on.
_CHUNK = 4096
_PER_WARP = 256


@triton.jit
def _propose(
    gradient, point, scaled, change, moved, newest, length, trial, slope, stays, size, problems,
    HISTORY: tl.constexpr, ROOM: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    offset = row * size
    new = tl.load(newest + row)
    slots = tl.arange(0, ROOM)
    alphas = tl.zeros((ROOM,), gradient.dtype.element_ty)
    total = tl.zeros((CHUNK,), gradient.dtype.element_ty)
    for start in range(0, size, CHUNK):  # q, in the place of the trial
        at = start + tl.arange(0, CHUNK)
        tl.store(trial + offset + at, tl.load(gradient + offset + at, at < size), at < size)
        latest = tl.load(change + (new * problems + row) * size + at, at < size, 0.0)
        total += latest * latest
    length_of_change = tl.sum(total)
    factor = length_of_change * 0
    before = (new * problems + row) * size
    for back in range(HISTORY):
        slot = (new - back + HISTORY) % HISTORY
        of = (slot * problems + row) * size
        total = tl.zeros((CHUNK,), gradient.dtype.element_ty)
        tl.debug_barrier()
        for start in range(0, size, CHUNK):
            at = start + tl.arange(0, CHUNK)
            q = tl.load(trial + offset + at, at < size, 0.0)
            q -= factor * tl.load(change + before + at, at < size, 0.0)
            tl.store(trial + offset + at, q, at < size)
            total += tl.load(scaled + of + at, at < size, 0.0) * q
        factor = tl.sum(total)
        before = of
        alphas = tl.where(slots == slot, factor, alphas)
    # The first inverse Hessian, if the latest step has curvature; the changes that are left to subtract.
    scale = tl.load(moved + new * problems + row) / tl.maximum(length_of_change, 1.1754944e-38)
    scale = tl.where(scale > 0, scale, 1.0)
    tl.debug_barrier()
    for start in range(0, size, CHUNK):
        at = start + tl.arange(0, CHUNK)
        q = tl.load(trial + offset + at, at < size, 0.0) - factor * tl.load(change + before + at, at < size, 0.0)
        tl.store(trial + offset + at, q * scale, at < size)
    factor *= 0
    for forth in range(HISTORY):
        slot = (new + 1 + forth) % HISTORY
        of = (slot * problems + row) * size
        total = tl.zeros((CHUNK,), gradient.dtype.element_ty)
        tl.debug_barrier()
        for start in range(0, size, CHUNK):
            at = start + tl.arange(0, CHUNK)
            q = tl.load(trial + offset + at, at < size, 0.0)
            q -= factor * tl.load(scaled + before + at, at < size, 0.0)
            tl.store(trial + offset + at, q, at < size)
            total += tl.load(change + of + at, at < size, 0.0) * q
        alpha = tl.sum(tl.where(slots == slot, alphas, 0.0))
        factor = tl.sum(total) - alpha * tl.load(moved + slot * problems + row)
        before = of
    share = tl.load(length + row)
    total = tl.zeros((CHUNK,), gradient.dtype.element_ty)
    changed = tl.zeros((CHUNK,), tl.int32)
    tl.debug_barrier()
    for start in range(0, size, CHUNK):
        at = start + tl.arange(0, CHUNK)
        q = tl.load(trial + offset + at, at < size, 0.0) - factor * tl.load(scaled + before + at, at < size, 0.0)
        here = tl.load(point + offset + at, at < size, 0.0)
        total -= q * tl.load(gradient + offset + at, at < size, 0.0)
        there = here - q * share
        changed = tl.maximum(changed, (there != here).to(tl.int32))
        tl.store(trial + offset + at, there, at < size)
    tl.store(slope + row, tl.sum(total))
    tl.store(stays + row, (tl.max(changed, 0) == 0).to(tl.int8))


@triton.jit
def _accept(
    trial, new_loss, new_gradient, slope, stays, point, loss, gradient, scaled, change, moved, newest, length, left,
    done, limits, size, problems, armijo, shortest,
    HISTORY: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    offset = row * size
    share = tl.load(length + row)
    fall = tl.load(slope + row)
    value = tl.load(new_loss + row)
    is_lower = value - (tl.load(loss + row) + armijo * fall * share) <= 0  # false for what is not a number
    if is_lower & (fall < 0) & (tl.load(done + row) == 0):
        total = tl.zeros((CHUNK,), point.dtype.element_ty)
        squares = tl.zeros((CHUNK,), point.dtype.element_ty)
        for start in range(0, size, CHUNK):
            at = start + tl.arange(0, CHUNK)
            there = tl.load(new_gradient + offset + at, at < size, 0.0)
            step = tl.load(trial + offset + at, at < size, 0.0) - tl.load(point + offset + at, at < size, 0.0)
            total += step * (there - tl.load(gradient + offset + at, at < size, 0.0))
            squares += there * there
        along = tl.sum(total)
        slot = (tl.load(newest + row) + 1) % HISTORY
        # A step without curvature is passed over.
        factor = tl.where(along > 0, 1 / tl.maximum(along, 1.1754944e-38), 0.0)
        of = (slot * problems + row) * size
        for start in range(0, size, CHUNK):
            at = start + tl.arange(0, CHUNK)
            there = tl.load(new_gradient + offset + at, at < size, 0.0)
            here = tl.load(trial + offset + at, at < size, 0.0)
            tl.store(scaled + of + at, (here - tl.load(point + offset + at, at < size, 0.0)) * factor, at < size)
            tl.store(change + of + at, there - tl.load(gradient + offset + at, at < size, 0.0), at < size)
            tl.store(point + offset + at, here, at < size)
            tl.store(gradient + offset + at, there, at < size)
        tl.store(moved + slot * problems + row, along)
        tl.store(newest + row, slot)
        tl.store(loss + row, value)
        steps = tl.load(left + row) - 1
        tl.store(left + row, steps)
        tl.store(length + row, share * 0 + 1)
        is_over = (tl.sqrt(tl.sum(squares)) <= tl.load(limits + row)) | (tl.load(stays + row) != 0) | (steps == 0)
        tl.store(done + row, is_over.to(tl.int8))
    else:
        tl.store(length + row, share / 2)
        if share / 2 <= shortest:
            tl.store(done + row, tl.full((), 1, tl.int8))


def _shape(size: int) -> dict[str, int]:
    """How a program works on the vectors of a problem: in chunks no longer than they are, with few warps if short."""
    chunk = min(_CHUNK, triton.next_power_of_2(size))
    return {"CHUNK": chunk, "num_warps": max(1, chunk // _PER_WARP)}


def propose(gradient: Tensor, point: Tensor, history: Any, length: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The points (p, d) to try next, the slopes (p,) towards them, and which points are where they were."""
    problems, size = point.shape
    slots = len(history.moved)
    trial, slope = torch.empty_like(point), torch.empty_like(length)
    stays = torch.empty_like(length, dtype=torch.int8)
    _propose[(problems,)](
        gradient, point, *history, length, trial, slope, stays, size, problems,
        HISTORY=slots, ROOM=triton.next_power_of_2(slots), **_shape(size),
    )  # fmt: skip
    return trial, slope, stays


def accept(tried: tuple[Tensor, ...], at: tuple[Tensor, ...], history: Any, ends: tuple[Tensor, ...], **limits: float):
    """Moves every problem to the point that was tried, if its loss falls by enough, and else halves its step.

    Args:
        tried: points (p, d), losses (p,), gradients (p, d), slopes (p,) and which points stay where they were.
        at: points, losses and gradients of where the problems are, in whose place the new ones are put.
        history: scaled steps (h, p, d), changes (h, p, d), their products (h, p), and which is the newest (p,).
        ends: (p,) the part of the step that is tried, steps that are left, who is done, and limits of the gradients.
        limits: `armijo` and `shortest`.
    """
    problems, size = at[0].shape
    _accept[(problems,)](
        *tried, *at, *history, *ends, size, problems, *limits.values(),
        HISTORY=len(history.moved), **_shape(size),
    )  # fmt: skip
