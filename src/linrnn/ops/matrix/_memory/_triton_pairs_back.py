"""Triton kernels of the gradients of the pairs of steps in ``_triton_pairs``.

What each pair has to do with the result is a product of what was read and what was written. From
it come the gradients of both rows and of every decay between them.
"""

# Triton compiles the source of these functions: no annotations, and names as in a kernel.
# mypy: ignore-errors

import triton
import triton.language as tl

from linrnn.compute.triton_kernel import kernel
from linrnn.ops.matrix._memory._triton_steps import (
    add,
    between,
    finite,
    left,
    logs,
    marks,
    mixed,
    numbers,
    place,
    product,
    reached,
    resets,
    rows,
    since,
    span,
    values_of,
)


@triton.jit
def _products(x, y, reset, slots, cu_seqlens, slot, h, time, heads, x_size, y_size, columns,
              CHUNK: tl.constexpr, COLUMNS: tl.constexpr, ONES: tl.constexpr, SCALE: tl.constexpr,
              REVERSE: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """The gradient of the pairs of a chunk: products of what was read and what was written."""
    row, start, count, n = span(slots, cu_seqlens, slot, time, CHUNK)
    i = tl.arange(0, CHUNK)
    t = n * CHUNK + i
    position, inside = place(t, row, start, count, time, REVERSE), t < count
    cut = resets(reset, position, inside)
    pairs = tl.zeros((CHUNK, CHUNK), DTYPE)
    for c0 in range(0, columns, COLUMNS):
        c = c0 + tl.arange(0, COLUMNS)
        read = rows(x, position, inside, heads, h, x_size, c, DTYPE) * SCALE
        value = values_of(y, position, inside, heads, h, y_size, c, ONES, DTYPE)
        pairs += product(read, tl.trans(value), PRECISION)
    visible = (i[:, None] >= i[None, :]) & (cut[:, None] == cut[None, :])
    return tl.where(visible, pairs, 0)


@kernel
def run_products(
    do, dz, v, u, reset, slots, cu_seqlens, near, mix, past, system,
    time, heads, values, columns,
    CHUNK: tl.constexpr, COLUMNS: tl.constexpr, ONES: tl.constexpr, SCALE: tl.constexpr,
    REVERSE: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Store the gradients of all pairs of a chunk."""
    h, slot = tl.program_id(0) % heads, (tl.program_id(0) // heads).to(tl.int64)
    i = tl.arange(0, CHUNK)
    where = ((slot * heads + h) * CHUNK + i[:, None]) * CHUNK + i[None, :]
    if near is not None:
        tl.store(near + where, _products(
            do, v, reset, slots, cu_seqlens, slot, h, time, heads, columns, values, columns,
            CHUNK, COLUMNS, ONES, SCALE, REVERSE, DTYPE, PRECISION,
        ))  # fmt: skip
    if mix is not None:
        tl.store(mix + where, _products(
            do, u, reset, slots, cu_seqlens, slot, h, time, heads, columns, columns, columns,
            CHUNK, COLUMNS, False, SCALE, REVERSE, DTYPE, PRECISION,
        ))  # fmt: skip
    if past is not None:
        tl.store(past + where, _products(
            dz, v, reset, slots, cu_seqlens, slot, h, time, heads, columns, values, columns,
            CHUNK, COLUMNS, ONES, 1.0, REVERSE, DTYPE, PRECISION,
        ))  # fmt: skip
    if system is not None:
        tl.store(system + where, _products(
            dz, u, reset, slots, cu_seqlens, slot, h, time, heads, columns, columns, columns,
            CHUNK, COLUMNS, False, 1.0, REVERSE, DTYPE, PRECISION,
        ))  # fmt: skip


@triton.jit
def _pairs_back(
    x, y, read, written, g, bonus, reset, slots, cu_seqlens, dx, dy, dg, dbonus,
    time, heads, x_heads, y_heads, keys, size, columns,
    CHUNK: tl.constexpr, KEYS: tl.constexpr, COLUMNS: tl.constexpr, G: tl.constexpr,
    CONSTANT: tl.constexpr, EARLY: tl.constexpr, STRICT: tl.constexpr, ONES: tl.constexpr,
    SCALE: tl.constexpr, REVERSE: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of x, y, the decays and the bonus from those of the pairs of `run_pairs`."""
    SIGN: tl.constexpr = -1 if REVERSE else 1
    h, slot = tl.program_id(0) % heads, (tl.program_id(0) // heads).to(tl.int64)
    row, start, count, n = span(slots, cu_seqlens, slot, time, CHUNK)
    i = tl.arange(0, CHUNK)
    t = n * CHUNK + i
    position, inside = place(t, row, start, count, time, REVERSE), t < count
    cut = resets(reset, position, inside)
    visible = (i[:, None] >= i[None, :] + STRICT) & (cut[:, None] == cut[None, :])
    dA_tile = _products(
        read, written, reset, slots, cu_seqlens, slot, h, time, heads, columns, size, columns,
        CHUNK, COLUMNS, ONES, SCALE, REVERSE, DTYPE, PRECISION,
    )  # fmt: skip
    diagonal = tl.sum(tl.where(i[:, None] == i[None, :], dA_tile, 0), 1)[:, None]
    if G == 1:
        dA_tile *= tl.exp(between(g, i, position, inside, heads, h, EARLY, SIGN, CONSTANT, DTYPE))
    dA_tile = tl.where(visible, dA_tile, 0)
    pairs = tl.zeros((CHUNK, CHUNK), DTYPE)
    wrong = tl.zeros((CHUNK,), tl.int1)
    for d0 in range(0, keys, KEYS):
        d = d0 + tl.arange(0, KEYS)
        ask = rows(x, position, inside, x_heads, h // (heads // x_heads), keys, d, DTYPE)
        key = rows(y, position, inside, y_heads, h // (heads // y_heads), keys, d, DTYPE)
        for_x = mixed(dA_tile, key, visible, PRECISION)
        for_y = mixed(tl.trans(dA_tile), ask, tl.trans(visible), PRECISION)
        if G == 1:
            wrong |= reached(visible, marks(key)) | reached(tl.trans(visible), marks(ask))
            ask_, key_ = tl.where(finite(ask), ask, 0), tl.where(finite(key), key, 0)
            pairs += product(ask_, tl.trans(key_), PRECISION)
        if bonus is not None:
            more = numbers(bonus, h, keys, d, DTYPE)[None, :]
            for_x += diagonal * more * key
            for_y += diagonal * more * ask
            where = dbonus + (slot * heads + h) * keys + d
            tl.store(where, tl.sum(diagonal * ask * key, 0), d < keys)
        add(dx, for_x, position, inside, heads, h, keys, d)
        add(dy, for_y, position, inside, heads, h, keys, d)
    if G == 1:
        # a decay is in all pairs of a step from it on and one before it
        sums = tl.cumsum(tl.where(visible, dA_tile * pairs, 0), 0, reverse=True)
        log = tl.sum(tl.where(i[:, None] > i[None, :] + EARLY, sums, 0), 1)
        owner, owned = position, inside
        if EARLY:
            owner, owned = position - SIGN, inside & (i > 0)
        log = tl.where(wrong, float("nan"), log)
        add(dg, log[:, None], owner, owned, heads, h, 1, tl.arange(0, 1))


@kernel
def run_pairs_back(
    q, k, w, a, do, dz, v, u, g, bonus, reset, slots, cu_seqlens, dq, dk, dw, da, dg, dbonus,
    time, heads, q_heads, k_heads, w_heads, a_heads, keys, values, columns,
    CHUNK: tl.constexpr, KEYS: tl.constexpr, COLUMNS: tl.constexpr, G: tl.constexpr,
    CONSTANT: tl.constexpr, EARLY: tl.constexpr, ASKS_EARLY: tl.constexpr, STRICT: tl.constexpr,
    ONES: tl.constexpr, SCALE: tl.constexpr, REVERSE: tl.constexpr, DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The same of all pairs, one after the other."""
    if k is not None:
        _pairs_back(
            q, k, do, v, g, bonus, reset, slots, cu_seqlens, dq, dk, dg, dbonus,
            time, heads, q_heads, k_heads, keys, values, columns,
            CHUNK, KEYS, COLUMNS, G, CONSTANT, EARLY, STRICT, ONES, SCALE, REVERSE, DTYPE,
            PRECISION,
        )  # fmt: skip
        tl.debug_barrier()  # the next adds to rows that other threads have just added to
    if w is not None:
        pair_bonus = bonus if k is None else None
        _pairs_back(
            q, w, do, u, g, pair_bonus, reset, slots, cu_seqlens, dq, dw, dg, dbonus,
            time, heads, q_heads, w_heads, keys, columns, columns,
            CHUNK, KEYS, COLUMNS, G, CONSTANT, EARLY, STRICT, False, SCALE, REVERSE, DTYPE,
            PRECISION,
        )  # fmt: skip
        tl.debug_barrier()  # the next adds to rows that other threads have just added to
    if a is not None and k is not None:
        _pairs_back(
            a, k, dz, v, g, None, reset, slots, cu_seqlens, da, dk, dg, dbonus,
            time, heads, a_heads, k_heads, keys, values, columns,
            CHUNK, KEYS, COLUMNS, G, CONSTANT, ASKS_EARLY, True, ONES, 1.0, REVERSE, DTYPE,
            PRECISION,
        )  # fmt: skip
        tl.debug_barrier()  # the next adds to rows that other threads have just added to
    if a is not None and w is not None:
        _pairs_back(
            a, w, dz, u, g, None, reset, slots, cu_seqlens, da, dw, dg, dbonus,
            time, heads, a_heads, w_heads, keys, columns, columns,
            CHUNK, KEYS, COLUMNS, G, CONSTANT, ASKS_EARLY, True, False, 1.0, REVERSE, DTYPE,
            PRECISION,
        )  # fmt: skip
        tl.debug_barrier()  # the next adds to rows that other threads have just added to


@triton.jit
def _any_in_row(visible):
    """Rows that see anything, (rows, 1)."""
    return tl.max(visible.to(tl.int32), 1)[:, None] > 0


@triton.jit
def _around(dA, x, y, g, slot, n, row, start, count, time, block, cut, heads, h, x_heads, y_heads,
            keys, d, block_decay, CHUNK: tl.constexpr, SIDE: tl.constexpr, CONSTANT: tl.constexpr,
            EARLY: tl.constexpr, REVERSE: tl.constexpr, DTYPE: tl.constexpr,
            PRECISION: tl.constexpr):  # fmt: skip
    """Gradients of a block of rows through the steps before and behind it.

    Gradients of x from the steps before, and of y from those behind, up to the decays inside the
    block; and of the logarithm of ``block_decay``, the decay of all the block, from both together.
    With which rows see a step before the block, and which are seen from behind it.
    """
    SIGN: tl.constexpr = -1 if REVERSE else 1
    i, j = tl.arange(0, SIDE), tl.arange(0, CHUNK)
    r, u = block + i, n * CHUNK + j
    other_position, inside = place(u, row, start, count, time, REVERSE), u < count
    base = dA + (slot * heads + h) * CHUNK * CHUNK
    cut_r = tl.sum(tl.where(j[None, :] == r[:, None], cut[None, :], 0), 1)
    same = cut_r[:, None] == cut[None, :]
    behind = (u + 1 < count) & (j + 1 < block)
    key = rows(
        y, other_position, inside & (j < block), y_heads, h // (heads // y_heads), keys, d, DTYPE
    )
    key *= tl.exp(left(g, other_position, behind, heads, h, keys, d, SIGN, 2, CONSTANT, DTYPE))
    visible = same & (j < block)[None, :]
    dA_tile = tl.load(base + r[:, None] * CHUNK + j[None, :], visible, 0)
    for_x, sees = mixed(dA_tile, key, visible, PRECISION), _any_in_row(visible)
    # sums from the first step behind the block on
    inside_ = inside & (j >= block + SIDE)
    log = logs(g, other_position - EARLY * SIGN, inside_ & (j >= block + SIDE + EARLY), heads, h,
               keys, d, 2, CONSTANT, DTYPE)  # fmt: skip
    ask = rows(x, other_position, inside_, x_heads, h // (heads // x_heads), keys, d, DTYPE)
    ask *= tl.exp(tl.cumsum(log, 0))
    visible = same & (j >= block + SIDE)[None, :]
    dA_tile = tl.load(base + j[None, :] * CHUNK + r[:, None], visible, 0)
    for_y, is_seen = mixed(dA_tile, ask, visible, PRECISION), _any_in_row(visible)
    visible = (j >= block + SIDE)[:, None] & (j < block)[None, :] & (cut[:, None] == cut[None, :])
    dA_tile = tl.load(base + j[:, None] * CHUNK + j[None, :], visible, 0)
    across = tl.where(_any_in_row(visible), ask * mixed(dA_tile, key, visible, PRECISION), 0)
    # nothing is taken of decays beyond a cut, not even NaN times 0
    across = tl.where(
        tl.max(_any_in_row(visible).to(tl.int32), 0) > 0, tl.sum(across, 0) * block_decay, 0
    )
    return for_x, for_y, across, sees, is_seen


@triton.jit
def _inside(for_x, for_y, for_g, far_x, far_y, ask, key, decays, dA_tile, cut, SIDE: tl.constexpr,
            EARLY: tl.constexpr, STRICT: tl.constexpr):  # fmt: skip
    """Adds the pairs inside a block, and to the decays' what its pairs with others, far_*, say."""
    i = tl.arange(0, SIDE)
    near = tl.zeros(ask.shape, ask.dtype)  # in row i what belongs to the step i - EARLY
    log = tl.zeros(ask.shape, ask.dtype)
    for back in range(0, SIDE):
        m = SIDE - 1 - back
        mine = (i == m)[:, None]
        key_m = tl.sum(tl.where(mine, key, 0), 0)[None, :]
        g_m = tl.sum(tl.where(mine, decays, 0), 0)[None, :]
        dA_m = tl.sum(tl.where(i[None, :] == m, dA_tile, 0), 1)[:, None]
        visible = ((i >= m + STRICT) & (cut == tl.sum(tl.where(i == m, cut, 0), 0)))[:, None]
        part = tl.where(visible, dA_m * tl.exp(log), 0)
        toward = tl.where(visible, part * key_m, 0)
        for_x += toward
        for_y += tl.where(mine, tl.sum(tl.where(visible, part * ask, 0), 0)[None, :], 0)
        pair = tl.cumsum(tl.where(visible, toward * ask, 0), 0, reverse=True)
        near += tl.where((i > m + EARLY)[:, None], pair, 0)
        # steps up to m, or before it, are between the block's first step and step m ...
        upto = tl.sum(tl.where(mine, far_x, 0), 0)[None, :]
        for_g += tl.where((i <= m - EARLY)[:, None], upto, 0)
        # ... and those behind it between m and the block's end
        for_g += tl.where((i > m)[:, None], tl.sum(tl.where(mine, far_y, 0), 0)[None, :], 0)
        log = tl.where((i >= m + EARLY)[:, None], log + g_m, 0)
    return for_x, for_y, for_g, near


@triton.jit
def _channel_pairs_back(
    x, y, g, bonus, dA, reset, slots, cu_seqlens, dx, dy, dg, dbonus,
    time, heads, x_heads, y_heads, keys,
    CHUNK: tl.constexpr, SIDE: tl.constexpr, KEYS: tl.constexpr, G: tl.constexpr,
    CONSTANT: tl.constexpr, EARLY: tl.constexpr, STRICT: tl.constexpr, REVERSE: tl.constexpr,
    DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The same of `run_channel_pairs`, SIDE rows a program."""
    SIGN: tl.constexpr = -1 if REVERSE else 1
    BLOCKS: tl.constexpr = CHUNK // SIDE
    block, h = tl.program_id(0) % BLOCKS * SIDE, tl.program_id(0) // BLOCKS % heads
    slot = (tl.program_id(0) // BLOCKS // heads).to(tl.int64)
    row, start, count, n = span(slots, cu_seqlens, slot, time, CHUNK)
    hx, hy = h // (heads // x_heads), h // (heads // y_heads)
    i, j = tl.arange(0, SIDE), tl.arange(0, CHUNK)
    t, u = n * CHUNK + block + i, n * CHUNK + j
    position, inside = place(t, row, start, count, time, REVERSE), t < count
    cut = resets(reset, place(u, row, start, count, time, REVERSE), u < count)
    cut_r = tl.sum(tl.where(j[None, :] == block + i[:, None], cut[None, :], 0), 1)
    corner = dA + ((slot * heads + h) * CHUNK + block) * CHUNK + block
    dA_tile = tl.load(corner + i[:, None] * CHUNK + i[None, :])
    for d0 in range(0, keys, KEYS):
        d = d0 + tl.arange(0, KEYS)
        decays = logs(g, position, inside, heads, h, keys, d, 2, CONSTANT, DTYPE)
        for_x, for_y, across, sees, is_seen = _around(
            dA, x, y, g, slot, n, row, start, count, time, block, cut, heads, h, x_heads, y_heads,
            keys, d, tl.exp(tl.sum(decays, 0)), CHUNK, SIDE, CONSTANT, EARLY, REVERSE, DTYPE,
            PRECISION,
        )  # fmt: skip
        ask = rows(x, position, inside, x_heads, hx, keys, d, DTYPE)
        key = rows(y, position, inside, y_heads, hy, keys, d, DTYPE)
        log = since(g, i, position, inside, heads, h, keys, d, EARLY, SIGN, 2, CONSTANT, DTYPE)
        for_x = tl.where(sees, for_x * tl.exp(log), 0)
        behind = (t + 1 < count) & (i + 1 < SIDE)
        log = left(g, position, behind, heads, h, keys, d, SIGN, 2, CONSTANT, DTYPE)
        for_y = tl.where(is_seen, for_y * tl.exp(log), 0)
        far_x, far_y = tl.where(sees, for_x * ask, 0), tl.where(is_seen, for_y * key, 0)
        for_g = tl.zeros((SIDE, KEYS), DTYPE) + across[None, :]
        for_x, for_y, for_g, near = _inside(
            for_x, for_y, for_g, far_x, far_y, ask, key, decays, dA_tile, cut_r, SIDE, EARLY, STRICT
        )
        if bonus is not None:
            diagonal = tl.sum(tl.where(i[:, None] == i[None, :], dA_tile, 0), 1)[:, None]
            more = numbers(bonus, h, keys, d, DTYPE)[None, :]
            for_x += diagonal * more * key
            for_y += diagonal * more * ask
            where = dbonus + ((slot * BLOCKS + block // SIDE) * heads + h) * keys + d
            tl.store(where, tl.sum(diagonal * ask * key, 0), d < keys)
        add(dx, for_x, position, inside, heads, h, keys, d)
        add(dy, for_y, position, inside, heads, h, keys, d)
        add(dg, for_g, position, inside, heads, h, keys, d)
        tl.debug_barrier()  # the next adds to rows that other threads have just added to
        owned = inside & (i >= EARLY)
        add(dg, near, position - EARLY * SIGN, owned, heads, h, keys, d)


@kernel
def run_channel_pairs_back(
    q, k, w, a, g, bonus, near, mix, past, system, reset, slots, cu_seqlens,
    dq, dk, dw, da, dg, dbonus,
    time, heads, q_heads, k_heads, w_heads, a_heads, keys,
    CHUNK: tl.constexpr, SIDE: tl.constexpr, KEYS: tl.constexpr, G: tl.constexpr,
    CONSTANT: tl.constexpr, EARLY: tl.constexpr, ASKS_EARLY: tl.constexpr, STRICT: tl.constexpr,
    REVERSE: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The same of all pairs, one after the other."""
    if k is not None:
        _channel_pairs_back(
            q, k, g, bonus, near, reset, slots, cu_seqlens, dq, dk, dg, dbonus,
            time, heads, q_heads, k_heads, keys,
            CHUNK, SIDE, KEYS, G, CONSTANT, EARLY, STRICT, REVERSE, DTYPE, PRECISION,
        )  # fmt: skip
        tl.debug_barrier()
    if w is not None:
        pair_bonus = bonus if k is None else None
        _channel_pairs_back(
            q, w, g, pair_bonus, mix, reset, slots, cu_seqlens, dq, dw, dg, dbonus,
            time, heads, q_heads, w_heads, keys,
            CHUNK, SIDE, KEYS, G, CONSTANT, EARLY, STRICT, REVERSE, DTYPE, PRECISION,
        )  # fmt: skip
        tl.debug_barrier()
    if a is not None and k is not None:
        _channel_pairs_back(
            a, k, g, None, past, reset, slots, cu_seqlens, da, dk, dg, dbonus,
            time, heads, a_heads, k_heads, keys,
            CHUNK, SIDE, KEYS, G, CONSTANT, ASKS_EARLY, True, REVERSE, DTYPE, PRECISION,
        )  # fmt: skip
        tl.debug_barrier()
    if a is not None and w is not None:
        _channel_pairs_back(
            a, w, g, None, system, reset, slots, cu_seqlens, da, dw, dg, dbonus,
            time, heads, a_heads, w_heads, keys,
            CHUNK, SIDE, KEYS, G, CONSTANT, ASKS_EARLY, True, REVERSE, DTYPE, PRECISION,
        )  # fmt: skip
        tl.debug_barrier()
