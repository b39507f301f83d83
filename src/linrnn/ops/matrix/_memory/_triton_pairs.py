"""Triton kernels of the pairs of steps: ``A_ij = sum_c x_ic y_jc exp(sum of g from j to i)_c``.

Decays by head are numbers of a pair. Those by channel are not: rows go in blocks of SIDE steps,
inside of which every pair has its own exponentials; with steps before the block the sum is cut at
the block's first step, so that both parts are products of rows, and no exponent is above 0. Sums
of logarithms are always sums over the steps between, never differences of longer ones.
"""

# Triton compiles the source of these functions: no annotations, and names as in a kernel.
# mypy: ignore-errors

import triton
import triton.language as tl

from linrnn.compute.triton_kernel import kernel
from linrnn.ops.matrix._memory._triton_steps import (
    between,
    left,
    numbers,
    place,
    product,
    resets,
    rows,
    since,
    span,
)


@triton.jit
def _pairs(
    x, y, g, bonus, reset, slots, cu_seqlens, A, time, heads, x_heads, y_heads, keys,
    CHUNK: tl.constexpr, KEYS: tl.constexpr, G: tl.constexpr, CONSTANT: tl.constexpr,
    EARLY: tl.constexpr, STRICT: tl.constexpr, REVERSE: tl.constexpr, DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """All pairs of a chunk, of decays by head or none; 0 where i does not see j."""
    SIGN: tl.constexpr = -1 if REVERSE else 1
    h, slot = tl.program_id(0) % heads, (tl.program_id(0) // heads).to(tl.int64)
    row, start, count, n = span(slots, cu_seqlens, slot, time, CHUNK)
    i = tl.arange(0, CHUNK)
    t = n * CHUNK + i
    position, inside = place(t, row, start, count, time, REVERSE), t < count
    cut = resets(reset, position, inside)
    pairs, diagonal = tl.zeros((CHUNK, CHUNK), DTYPE), tl.zeros((CHUNK,), DTYPE)
    for d0 in range(0, keys, KEYS):
        d = d0 + tl.arange(0, KEYS)
        ask = rows(x, position, inside, x_heads, h // (heads // x_heads), keys, d, DTYPE)
        key = rows(y, position, inside, y_heads, h // (heads // y_heads), keys, d, DTYPE)
        pairs += product(ask, tl.trans(key), PRECISION)
        if bonus is not None:
            diagonal += tl.sum(ask * numbers(bonus, h, keys, d, DTYPE)[None, :] * key, 1)
    if G == 1:
        pairs *= tl.exp(between(g, i, position, inside, heads, h, EARLY, SIGN, CONSTANT, DTYPE))
    visible = (i[:, None] >= i[None, :] + STRICT) & (cut[:, None] == cut[None, :])
    pairs = tl.where(visible, pairs, 0)
    if bonus is not None:
        pairs = tl.where(i[:, None] == i[None, :], diagonal[:, None], pairs)
    tl.store(A + ((slot * heads + h) * CHUNK + i[:, None]) * CHUNK + i[None, :], pairs)


@kernel
def run_pairs(
    q, k, w, a, g, bonus, reset, slots, cu_seqlens, near, mix, past, system,
    time, heads, q_heads, k_heads, w_heads, a_heads, keys,
    CHUNK: tl.constexpr, KEYS: tl.constexpr, G: tl.constexpr, CONSTANT: tl.constexpr,
    EARLY: tl.constexpr, ASKS_EARLY: tl.constexpr, STRICT: tl.constexpr, REVERSE: tl.constexpr,
    DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """All pairs of a chunk, of everything that reads with everything that is written."""
    if near is not None:
        _pairs(
            q, k, g, bonus, reset, slots, cu_seqlens, near, time, heads, q_heads, k_heads, keys,
            CHUNK, KEYS, G, CONSTANT, EARLY, STRICT, REVERSE, DTYPE, PRECISION,
        )  # fmt: skip
    if mix is not None:  # of what corrects a memory alone, there is no bonus
        pair_bonus = bonus if k is None else None
        _pairs(
            q, w, g, pair_bonus, reset, slots, cu_seqlens, mix, time, heads, q_heads, w_heads, keys,
            CHUNK, KEYS, G, CONSTANT, EARLY, STRICT, REVERSE, DTYPE, PRECISION,
        )  # fmt: skip
    if past is not None:
        _pairs(
            a, k, g, None, reset, slots, cu_seqlens, past, time, heads, a_heads, k_heads, keys,
            CHUNK, KEYS, G, CONSTANT, ASKS_EARLY, True, REVERSE, DTYPE, PRECISION,
        )  # fmt: skip
    if system is not None:
        _pairs(
            a, w, g, None, reset, slots, cu_seqlens, system, time, heads, a_heads, w_heads, keys,
            CHUNK, KEYS, G, CONSTANT, ASKS_EARLY, True, REVERSE, DTYPE, PRECISION,
        )  # fmt: skip


@triton.jit
def _channel_pairs(
    x, y, g, bonus, reset, slots, cu_seqlens, A, time, heads, x_heads, y_heads, keys,
    CHUNK: tl.constexpr, SIDE: tl.constexpr, KEYS: tl.constexpr, G: tl.constexpr,
    CONSTANT: tl.constexpr, EARLY: tl.constexpr, STRICT: tl.constexpr, REVERSE: tl.constexpr,
    DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The same of decays by channel, SIDE rows a program."""
    SIGN: tl.constexpr = -1 if REVERSE else 1
    BLOCKS: tl.constexpr = CHUNK // SIDE
    block, h = tl.program_id(0) % BLOCKS * SIDE, tl.program_id(0) // BLOCKS % heads
    slot = (tl.program_id(0) // BLOCKS // heads).to(tl.int64)
    row, start, count, n = span(slots, cu_seqlens, slot, time, CHUNK)
    hx, hy = h // (heads // x_heads), h // (heads // y_heads)
    i, j = tl.arange(0, SIDE), tl.arange(0, CHUNK)
    t, u = n * CHUNK + block + i, n * CHUNK + j
    position, inside = place(t, row, start, count, time, REVERSE), t < count
    other_position = place(u, row, start, count, time, REVERSE)
    cut = resets(reset, other_position, u < count)
    far, near = tl.zeros((SIDE, CHUNK), DTYPE), tl.zeros((SIDE, CHUNK), DTYPE)
    diagonal = tl.zeros((SIDE,), DTYPE)
    for d0 in range(0, keys, KEYS):
        d = d0 + tl.arange(0, KEYS)
        ask = rows(x, position, inside, x_heads, hx, keys, d, DTYPE)
        log = since(g, i, position, inside, heads, h, keys, d, EARLY, SIGN, G, CONSTANT, DTYPE)
        key = rows(y, other_position, (u < count) & (j < block), y_heads, hy, keys, d, DTYPE)
        behind = (u + 1 < count) & (j + 1 < block)
        key *= tl.exp(left(g, other_position, behind, heads, h, keys, d, SIGN, G, CONSTANT, DTYPE))
        far += product(ask * tl.exp(log), tl.trans(key), PRECISION)
        log = tl.zeros((SIDE, KEYS), DTYPE)  # from step m to each
        for back in range(0, SIDE):
            m = SIDE - 1 - back
            at = tl.sum(tl.where(i == m, position, 0), 0)
            mask = (n * CHUNK + block + m < count) & (d < keys)
            key_m = tl.load(y + (at * y_heads + hy) * keys + d, mask, 0).to(DTYPE)
            g_m = tl.load(g + (at * (1 - CONSTANT) * heads + h) * keys + d, mask, 0).to(DTYPE)
            pair = tl.where((i >= m + STRICT)[:, None], ask * key_m[None, :] * tl.exp(log), 0)
            near = tl.where(j[None, :] == block + m, near + tl.sum(pair, 1)[:, None], near)
            log = tl.where((i >= m + EARLY)[:, None], log + g_m[None, :], 0)
        if bonus is not None:
            key = rows(y, position, inside, y_heads, hy, keys, d, DTYPE)
            diagonal += tl.sum(ask * numbers(bonus, h, keys, d, DTYPE)[None, :] * key, 1)
    r = block + i
    cut_r = tl.sum(tl.where(j[None, :] == r[:, None], cut[None, :], 0), 1)
    visible = (r[:, None] >= j[None, :] + STRICT) & (cut_r[:, None] == cut[None, :])
    pairs = tl.where(visible, tl.where((j < block)[None, :], far, near), 0)
    if bonus is not None:
        pairs = tl.where(r[:, None] == j[None, :], diagonal[:, None], pairs)
    tl.store(A + ((slot * heads + h) * CHUNK + r[:, None]) * CHUNK + j[None, :], pairs)


@kernel
def run_channel_pairs(
    q, k, w, a, g, bonus, reset, slots, cu_seqlens, near, mix, past, system,
    time, heads, q_heads, k_heads, w_heads, a_heads, keys,
    CHUNK: tl.constexpr, SIDE: tl.constexpr, KEYS: tl.constexpr, G: tl.constexpr,
    CONSTANT: tl.constexpr, EARLY: tl.constexpr, ASKS_EARLY: tl.constexpr, STRICT: tl.constexpr,
    REVERSE: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The same of decays by channel, SIDE rows a program."""
    if near is not None:
        _channel_pairs(
            q, k, g, bonus, reset, slots, cu_seqlens, near, time, heads, q_heads, k_heads, keys,
            CHUNK, SIDE, KEYS, G, CONSTANT, EARLY, STRICT, REVERSE, DTYPE, PRECISION,
        )  # fmt: skip
    if mix is not None:  # of what corrects a memory alone, there is no bonus
        pair_bonus = bonus if k is None else None
        _channel_pairs(
            q, w, g, pair_bonus, reset, slots, cu_seqlens, mix, time, heads, q_heads, w_heads, keys,
            CHUNK, SIDE, KEYS, G, CONSTANT, EARLY, STRICT, REVERSE, DTYPE, PRECISION,
        )  # fmt: skip
    if past is not None:
        _channel_pairs(
            a, k, g, None, reset, slots, cu_seqlens, past, time, heads, a_heads, k_heads, keys,
            CHUNK, SIDE, KEYS, G, CONSTANT, ASKS_EARLY, True, REVERSE, DTYPE, PRECISION,
        )  # fmt: skip
    if system is not None:
        _channel_pairs(
            a, w, g, None, reset, slots, cu_seqlens, system, time, heads, a_heads, w_heads, keys,
            CHUNK, SIDE, KEYS, G, CONSTANT, ASKS_EARLY, True, REVERSE, DTYPE, PRECISION,
        )  # fmt: skip
