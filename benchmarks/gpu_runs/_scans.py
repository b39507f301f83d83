"""Scans to be tried on a GPU: tiles whose warps lie along time, and tiles that hand over.

They know no resets, packed rows or gradients: what is to be decided is the shape of a tile.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-any-return"
# ruff: noqa: RUF005  # Triton knows no unpacking into a tuple

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _combine(a1, b1, a2, b2):
    return a1 * a2, a2 * b1 + b2


@triton.jit
def _combine_complex(ar, ai, br, bi, cr, ci, dr, di):
    return cr * ar - ci * ai, cr * ai + ci * ar, cr * br - ci * bi + dr, cr * bi + ci * br + di


@triton.jit
def _scan(a, b, AXIS: tl.constexpr, PARTS: tl.constexpr):
    """The recurrence along an axis; numbers are tuples, (x,) or (real, imaginary)."""
    if PARTS == 2:
        p, q, r, s = tl.associative_scan((a[0], a[1], b[0], b[1]), AXIS, _combine_complex)
        return (p, q), (r, s)
    else:
        p, r = tl.associative_scan((a[0], b[0]), AXIS, _combine)
        return (p,), (r,)


@triton.jit
def _affine(a, x, b, where, PARTS: tl.constexpr):
    """``a x + b`` where that is to be, elsewhere b."""
    if PARTS == 2:
        real = tl.where(where, a[0] * x[0] - a[1] * x[1] + b[0], b[0])
        return real, tl.where(where, a[0] * x[1] + a[1] * x[0] + b[1], b[1])
    else:
        return (tl.where(where, a[0] * x[0] + b[0], b[0]),)


@triton.jit
def _of_row(x, row, which, AXIS: tl.constexpr, PARTS: tl.constexpr):
    """One row of an axis, by a sum of a selection."""
    y = ()
    for i in tl.static_range(PARTS):
        y = y + (tl.sum(tl.where(row == which, x[i], 0.0), AXIS),)
    return y


@triton.jit
def _before(y, x, warp, W: tl.constexpr, C: tl.constexpr, PARTS: tl.constexpr):
    """The state that enters each warp, (W, 1, C): the row of the warp before, or ``x``."""
    at, enter = tl.broadcast_to(tl.maximum(warp - 1, 0)[:, None], (W, C)), ()
    for i in tl.static_range(PARTS):
        here = tl.where((warp == 0)[:, None], x[i][None, :], tl.gather(y[i], at, 0))
        enter = enter + (here[:, None, :],)
    return enter


@triton.jit
def _load(p, mask, other, W: tl.constexpr, S: tl.constexpr, C: tl.constexpr, PARTS: tl.constexpr):
    """A tile as float32. Complex rows are loaded as real numbers side by side, and then split."""
    x = tl.load(p, mask=mask, other=other).to(tl.float32)
    if PARTS == 2:
        r, i = tl.split(tl.reshape(x, (x.shape[0], x.shape[1], C, 2)))
        return tl.broadcast_to(r, (W, S, C)), tl.broadcast_to(i, (W, S, C))
    else:
        return (tl.broadcast_to(x, (W, S, C)),)


@triton.jit
def tile_kernel(
    a, b, h, time, channels, PARTS: tl.constexpr, CONSTANT: tl.constexpr,
    S: tl.constexpr, W: tl.constexpr, C: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One program a sequence and C channels; a tile is W warps of S steps each."""
    blocks, width = tl.cdiv(channels, C), channels * PARTS
    lanes = (tl.program_id(0) % blocks) * (C * PARTS) + tl.arange(0, C * PARTS)[None, None, :]
    start = (tl.program_id(0) // blocks).to(tl.int64) * time * width
    step, warp = tl.arange(0, S), tl.arange(0, W)
    t = warp[:, None, None] * S + step[None, :, None]  # (W, S, 1)
    first, last = (step == 0)[None, :, None], tl.full((), S - 1, tl.int32)
    zero = tl.zeros([C], tl.float32)
    x = (zero, zero) if PARTS == 2 else (zero,)
    if CONSTANT:
        a_now = _load(a + lanes, lanes < width, 0.0, W, S, C, PARTS)
    for t0 in tl.range(0, time, S * W, num_stages=STAGES):
        mask = (t0 + t < time) & (lanes < width)
        at = start + (t0 + t).to(tl.int64) * width + lanes
        if not CONSTANT:
            a_now = _load(a + at, mask, 1.0, W, S, C, PARTS)
        b_now = _load(b + at, mask, 0.0, W, S, C, PARTS)
        A, B = _scan(a_now, b_now, 1, PARTS)  # inside a thread
        A = _of_row(A, step[None, :, None], last, 1, PARTS)  # (W, C), of each warp
        B = _of_row(B, step[None, :, None], last, 1, PARTS)
        _, y = _scan(A, _affine(A, x, B, (warp == 0)[:, None], PARTS), 0, PARTS)
        b_now = _affine(a_now, _before(y, x, warp, W, C, PARTS), b_now, first, PARTS)
        _, states = _scan(a_now, b_now, 1, PARTS)  # again, in the order of a loop
        rows = states[0]
        if PARTS == 2:
            rows = tl.reshape(tl.join(states[0], states[1]), (W, S, 2 * C))
        tl.store(h + at, rows.to(h.dtype.element_ty), mask=mask)
        x = _of_row(y, warp[:, None], W - 1, 0, PARTS)


@triton.jit
def _wait(flag):
    """Until a flag is set; whoever sets it took its ticket before."""
    ready = tl.atomic_add(flag, 0, sem="acquire")
    while ready == 0:
        ready = tl.atomic_add(flag, 0, sem="acquire")


@triton.jit
def _signal(flag):
    tl.debug_barrier()
    tl.atomic_xchg(flag, 1, sem="release")


@triton.jit
def _entering(parts, states, flags, done, lane, k, C: tl.constexpr, GROUP: tl.constexpr):
    """The state that enters a tile: behind the group before, then tile by tile, in fixed order."""
    group, c = k // GROUP, tl.arange(0, C)
    x = tl.zeros([C], tl.float32)
    if group > 0:
        _wait(done + lane + group - 1)
        x = tl.load(states + (lane + group - 1) * C + c, volatile=True)
    for j in range(group * GROUP, k):
        _wait(flags + lane + j)
        p = parts + (lane + j) * 2 * C + c
        x = tl.load(p, volatile=True) * x + tl.load(p + C, volatile=True)
    return x


@triton.jit
def chain_kernel(
    a, b, h, ticket, flags, done, parts, states, time, channels, seqs, tiles,
    S: tl.constexpr, W: tl.constexpr, C: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One tile a program; tickets go along time, so whoever is waited for is running already."""
    me = tl.atomic_add(ticket, 1, sem="relaxed")
    blocks = tl.cdiv(channels, C)
    k, of_all = me // (blocks * seqs), me % (blocks * seqs)
    s, lane = (of_all // blocks).to(tl.int64), of_all.to(tl.int64) * tiles
    c = of_all % blocks * C + tl.arange(0, C)
    step, warp = tl.arange(0, S), tl.arange(0, W)
    t = k * (S * W) + warp[:, None, None] * S + step[None, :, None]
    mask = (t < time) & (c < channels)[None, None, :]
    at = (s * time + t) * channels + c[None, None, :]
    a_now, b_now = (_load(a + at, mask, 1.0, W, S, C, 1), _load(b + at, mask, 0.0, W, S, C, 1))
    last = tl.full((), S - 1, tl.int32)
    A, B = _scan(a_now, b_now, 1, 1)
    A, B = _of_row(A, step[None, :, None], last, 1, 1), _of_row(B, step[None, :, None], last, 1, 1)
    P, Q = _scan(A, B, 0, 1)  # over warps
    PA, QB = _of_row(P, warp[:, None], W - 1, 0, 1)[0], _of_row(Q, warp[:, None], W - 1, 0, 1)[0]
    mine = parts + (lane + k) * 2 * C + tl.arange(0, C)
    tl.store(mine, PA)
    tl.store(mine + C, QB)
    _signal(flags + lane + k)
    x = _entering(parts, states, flags, done, lane, k, C, GROUP)
    if (k % GROUP == GROUP - 1) & (k < tiles - 1):
        tl.store(states + (lane + k // GROUP) * C + tl.arange(0, C), PA * x + QB)
        _signal(done + lane + k // GROUP)
    enter = _before((P[0] * x[None, :] + Q[0],), (x,), warp, W, C, 1)
    b_now = _affine(a_now, enter, b_now, (step == 0)[None, :, None], 1)
    _, states = _scan(a_now, b_now, 1, 1)
    tl.store(h + at, states[0], mask=mask)


def tiled(a: Tensor, b: Tensor, S: int, W: int, C: int, stages: int) -> Tensor:
    """States by tiles, of real and complex numbers; decays (channels,), or of every step."""
    batch, time, channels = b.shape
    h, parts = torch.empty_like(b), 1 + b.is_complex()
    numbers = (torch.view_as_real(x) if x.is_complex() else x for x in (a, b, h))
    tile_kernel[(batch * -(-channels // C),)](
        *numbers, time, channels, S=S, W=W, C=C, STAGES=stages, PARTS=parts,
        CONSTANT=a.ndim == 1, num_warps=W,
    )  # fmt: skip
    return h


def chained(a: Tensor, b: Tensor, S: int, W: int, C: int, group: int) -> Tensor:
    """States by tiles that hand over, in a single pass."""
    batch, time, channels = b.shape
    lanes, tiles = batch * -(-channels // C), -(-time // (S * W))
    h, count = torch.empty_like(b), lanes * tiles
    flags = torch.zeros(1 + 2 * count, dtype=torch.int32, device=b.device)
    parts, states = b.new_empty(count, 2, C), b.new_empty(count, C)
    chain_kernel[(count,)](
        a, b, h, flags[:1], flags[1 : 1 + count], flags[1 + count :], parts, states,
        time, channels, batch, tiles, S=S, W=W, C=C, GROUP=group, num_warps=W,
    )  # fmt: skip
    return h
