"""Scans to be tried on a GPU: tiles whose warps lie along time, and tiles that hand over.

They know no resets, packed rows or gradients: what is to be decided is the shape of a tile.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-any-return"

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
def _of_row(x, row, which, AXIS: tl.constexpr):
    """One row of an axis, by a sum of a selection."""
    return tl.sum(tl.where(row == which, x, 0.0), AXIS)


@triton.jit
def _before(y, x, warp, W: tl.constexpr, C: tl.constexpr):
    """What enters each warp: the row of the warp before, or ``x``."""
    at = tl.broadcast_to(tl.maximum(warp - 1, 0)[:, None], (W, C))
    return tl.where((warp == 0)[:, None], x[None, :], tl.gather(y, at, 0))


@triton.jit
def _again(a, b, enter, step):
    """States of a tile from what enters its warps, in the order of a loop."""
    b = tl.where((step == 0)[None, :, None], a * enter[:, None, :] + b, b)
    _, h = tl.associative_scan((a, b), 1, _combine)
    return h


@triton.jit
def tile_kernel(
    a, b, h, time, channels,
    S: tl.constexpr, W: tl.constexpr, C: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One program a sequence and C channels; a tile is W warps of S steps each."""
    blocks = tl.cdiv(channels, C)
    c = (tl.program_id(0) % blocks) * C + tl.arange(0, C)
    start = (tl.program_id(0) // blocks).to(tl.int64) * time * channels
    step, warp = tl.arange(0, S), tl.arange(0, W)
    t = warp[:, None, None] * S + step[None, :, None]  # (W, S, 1)
    last = tl.full((), S - 1, tl.int32)
    x = tl.zeros([C], tl.float32)
    for t0 in tl.range(0, time, S * W, num_stages=STAGES):
        mask = (t0 + t < time) & (c < channels)[None, None, :]
        at = start + (t0 + t).to(tl.int64) * channels + c[None, None, :]
        a_now = tl.load(a + at, mask=mask, other=1.0).to(tl.float32)
        b_now = tl.load(b + at, mask=mask, other=0.0).to(tl.float32)
        A, B = tl.associative_scan((a_now, b_now), 1, _combine)  # inside a thread
        A = _of_row(A, step[None, :, None], last, 1)  # (W, C), of each warp
        B = _of_row(B, step[None, :, None], last, 1)
        B = tl.where((warp == 0)[:, None], A * x[None, :] + B, B)
        _, y = tl.associative_scan((A, B), 0, _combine)
        states = _again(a_now, b_now, _before(y, x, warp, W, C), step)
        tl.store(h + at, states.to(h.dtype.element_ty), mask=mask)
        x = _of_row(y, warp[:, None], W - 1, 0)


@triton.jit
def complex_kernel(
    a, b, h, time, channels,
    W: tl.constexpr, C: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Constant complex decays, 8 steps a warp: rows are loaded as 2 C real numbers and split."""
    S: tl.constexpr = 8
    blocks = tl.cdiv(channels, C)
    block = tl.program_id(0) % blocks
    c, lanes = block * C + tl.arange(0, C), block * 2 * C + tl.arange(0, 2 * C)
    start = (tl.program_id(0) // blocks).to(tl.int64) * time * channels * 2
    step, warp = tl.arange(0, S), tl.arange(0, W)
    t = (warp[:, None] * S + step[None, :])[:, :, None]
    pair = 2 * c[:, None] + tl.arange(0, 2)[None, :]
    ar, ai = tl.split(tl.load(a + pair, mask=(c < channels)[:, None], other=0.0))
    Ar = tl.broadcast_to(ar[None, None, :], (W, S, C))
    Ai = tl.broadcast_to(ai[None, None, :], (W, S, C))
    for _ in tl.static_range(3):  # to the power of a warp's steps
        ar, ai = ar * ar - ai * ai, 2 * ar * ai
    Pr, Pi = tl.broadcast_to(ar[None, :], (W, C)), tl.broadcast_to(ai[None, :], (W, C))
    xr, xi = tl.zeros([C], tl.float32), tl.zeros([C], tl.float32)
    row, zero, last = step[None, :, None], (warp == 0)[:, None], tl.full((), S - 1, tl.int32)
    for t0 in tl.range(0, time, S * W, num_stages=STAGES):
        mask = (t0 + t < time) & (lanes < 2 * channels)[None, None, :]
        at = start + (t0 + t).to(tl.int64) * channels * 2 + lanes[None, None, :]
        br, bi = tl.split(tl.reshape(tl.load(b + at, mask=mask, other=0.0), (W, S, C, 2)))
        _, _, Br, Bi = tl.associative_scan((Ar, Ai, br, bi), 1, _combine_complex)
        Br, Bi = _of_row(Br, row, last, 1), _of_row(Bi, row, last, 1)
        Br = tl.where(zero, Pr * xr[None, :] - Pi * xi[None, :] + Br, Br)
        Bi = tl.where(zero, Pr * xi[None, :] + Pi * xr[None, :] + Bi, Bi)
        _, _, yr, yi = tl.associative_scan((Pr, Pi, Br, Bi), 0, _combine_complex)
        er, ei = _before(yr, xr, warp, W, C)[:, None, :], _before(yi, xi, warp, W, C)[:, None, :]
        br = tl.where(row == 0, Ar * er - Ai * ei + br, br)
        bi = tl.where(row == 0, Ar * ei + Ai * er + bi, bi)
        _, _, hr, hi = tl.associative_scan((Ar, Ai, br, bi), 1, _combine_complex)
        tl.store(h + at, tl.reshape(tl.join(hr, hi), (W, S, 2 * C)), mask=mask)
        xr, xi = _of_row(yr, warp[:, None], W - 1, 0), _of_row(yi, warp[:, None], W - 1, 0)


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
    a_now = tl.load(a + at, mask=mask, other=1.0)
    b_now = tl.load(b + at, mask=mask, other=0.0)
    last = tl.full((), S - 1, tl.int32)
    A, B = tl.associative_scan((a_now, b_now), 1, _combine)
    A, B = _of_row(A, step[None, :, None], last, 1), _of_row(B, step[None, :, None], last, 1)
    P, Q = tl.associative_scan((A, B), 0, _combine)  # over warps
    PA, QB = _of_row(P, warp[:, None], W - 1, 0), _of_row(Q, warp[:, None], W - 1, 0)
    mine = parts + (lane + k) * 2 * C + tl.arange(0, C)
    tl.store(mine, PA)
    tl.store(mine + C, QB)
    _signal(flags + lane + k)
    x = _entering(parts, states, flags, done, lane, k, C, GROUP)
    if (k % GROUP == GROUP - 1) & (k < tiles - 1):
        tl.store(states + (lane + k // GROUP) * C + tl.arange(0, C), PA * x + QB)
        _signal(done + lane + k // GROUP)
    enter = _before(P * x[None, :] + Q, x, warp, W, C)
    tl.store(h + at, _again(a_now, b_now, enter, step), mask=mask)


def tiled(a: Tensor, b: Tensor, S: int, W: int, C: int, stages: int) -> Tensor:
    """States by tiles; complex ones of constant decays, with 8 steps a warp."""
    batch, time, channels = b.shape
    h, grid = torch.empty_like(b), (batch * -(-channels // C),)
    more = {"W": W, "C": C, "STAGES": stages, "num_warps": W}
    if b.is_complex():
        real = (torch.view_as_real(x) for x in (a, b, h))
        complex_kernel[grid](*real, time, channels, **more)
    else:
        tile_kernel[grid](a, b, h, time, channels, S=S, **more)
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
