"""Walks of matrix memories to be tried on a GPU: states before chunks of 64 steps alone.

Decays come as sums of logarithms to base 2 inside of chunks. Keys, values and chunks fill tiles.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-any-return"

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def walk_kernel(
    k, v, g, kept, time, heads,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, CHUNK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """The memory before each chunk: a program owns a tile of it and walks."""
    tile, of_head = (
        tl.program_id(0) % (V // BV * (K // BK)),
        tl.program_id(0) // (V // BV * (K // BK)),
    )
    d = tile // (V // BV) * BK + tl.arange(0, BK)
    c = tile % (V // BV) * BV + tl.arange(0, BV)
    i = tl.arange(0, CHUNK)[:, None]
    first = (of_head // heads).to(tl.int64) * time * heads + of_head % heads
    S = tl.zeros((BK, BV), tl.float32)
    p = kept + of_head.to(tl.int64) * (time // CHUNK) * K * V + d[:, None] * V + c[None, :]
    for n in tl.range(0, time // CHUNK, num_stages=STAGES):
        row = first + (n * CHUNK + i) * heads
        k_now, g_now = tl.load(k + row * K + d[None, :]), tl.load(g + row * K + d[None, :])
        v_now = tl.load(v + row * V + c[None, :])
        last = tl.load(g + (first + (n * CHUNK + CHUNK - 1) * heads) * K + d)
        tl.store(p + n * K * V, S.to(kept.dtype.element_ty))
        k_now = (k_now * tl.exp2(last[None, :] - g_now)).to(v_now.dtype)
        S = S * tl.exp2(last)[:, None] + tl.dot(tl.trans(k_now), v_now)


@triton.jit
def products_kernel(
    k, v, g, added, time, heads, K: tl.constexpr, V: tl.constexpr, CHUNK: tl.constexpr
):
    """The contribution of each chunk to the memory: all chunks at once."""
    chunks = time // CHUNK
    n, of_head = tl.program_id(0) % chunks, tl.program_id(0) // chunks
    d, c, i = tl.arange(0, K)[None, :], tl.arange(0, V)[None, :], tl.arange(0, CHUNK)[:, None]
    first = ((of_head // heads).to(tl.int64) * time + n * CHUNK) * heads + of_head % heads
    row = first + i * heads
    last = tl.load(g + (first + (CHUNK - 1) * heads) * K + d)
    v_now = tl.load(v + row * V + c)
    k_now = tl.load(k + row * K + d) * tl.exp2(last - tl.load(g + row * K + d))
    p = added + (of_head.to(tl.int64) * chunks + n) * K * V + tl.arange(0, K)[:, None] * V + c
    tl.store(p, tl.dot(tl.trans(k_now.to(v_now.dtype)), v_now))


@triton.jit
def pass_kernel(
    added, g, kept, time, heads, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr,
    CHUNK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The memory before each chunk from what all of them add: one after the other, no product."""
    of_head = tl.program_id(0) // (K // BK)
    d, c = tl.program_id(0) % (K // BK) * BK + tl.arange(0, BK), tl.arange(0, V)
    first = (of_head // heads).to(tl.int64) * time * heads + of_head % heads
    at = of_head.to(tl.int64) * (time // CHUNK) * K * V + d[:, None] * V + c[None, :]
    S = tl.zeros((BK, V), tl.float32)
    for n in tl.range(0, time // CHUNK, num_stages=STAGES):
        last = tl.load(g + (first + (n * CHUNK + CHUNK - 1) * heads) * K + d)
        tl.store(kept + at + n * K * V, S.to(kept.dtype.element_ty))
        S = S * tl.exp2(last)[:, None] + tl.load(added + at + n * K * V)


def _kept(k: Tensor, v: Tensor, chunk: int) -> Tensor:
    batch, time, heads, keys = k.shape
    return v.new_empty(batch * heads, time // chunk, keys, v.shape[3])


def walked(
    k: Tensor, v: Tensor, g: Tensor, chunk: int, side: tuple[int, int], stages: int, warps: int
) -> Tensor:
    """States by a walk that has tiles of the memory in registers."""
    kept, (K, V) = _kept(k, v, chunk), (k.shape[3], v.shape[3])
    tiles = K // side[0] * (V // side[1])
    walk_kernel[(kept.shape[0] * tiles,)](
        k, v, g, kept, k.shape[1], k.shape[2], K=K, V=V, BK=side[0], BV=side[1], CHUNK=chunk,
        STAGES=stages, num_warps=warps,
    )  # fmt: skip
    return kept


def passed(
    k: Tensor, v: Tensor, g: Tensor, chunk: int, rows: int, stages: int, warps: int
) -> Tensor:
    """States by products of all chunks at once and a pass without products."""
    kept, (K, V) = _kept(k, v, chunk), (k.shape[3], v.shape[3])
    added = torch.empty(kept.shape, dtype=torch.float32, device=kept.device)
    time, heads = k.shape[1:3]
    products_kernel[(kept.shape[0] * kept.shape[1],)](
        k, v, g, added, time, heads, K=K, V=V, CHUNK=chunk, num_warps=warps
    )
    pass_kernel[(kept.shape[0] * (K // rows),)](
        added, g, kept, time, heads, K=K, V=V, BK=rows, CHUNK=chunk, STAGES=stages, num_warps=warps
    )
    return kept
