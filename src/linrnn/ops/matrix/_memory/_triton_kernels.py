"""Triton kernels of the matrix memories, but for the pairs of steps in ``_triton_pairs*``.

``S <- exp(g) S + w u^T + k v^T``, where ``u`` is solved for in every chunk and there may be no
``w`` or no ``k``. `run_states` walks over the chunks of a sequence with a tile of the memory and
stores it before each, `run_outputs` then reads in all chunks at once; `run_adjoint` and the
kernels behind it mirror that. Products of steps with steps come as matrices (CHUNK, CHUNK).
"""

# Triton compiles the source of these functions: no annotations, and names as in a kernel.
# mypy: ignore-errors

import triton
import triton.language as tl

from linrnn.compute.triton_kernel import kernel
from linrnn.ops.matrix._memory._triton_steps import (
    add,
    finite,
    left,
    logs,
    marks,
    mixed,
    place,
    product,
    put,
    reached,
    resets,
    rows,
    sequence,
    since,
    span,
    sums,
    values_of,
)


@triton.jit
def _square(p, slot, heads, h, CHUNK: tl.constexpr):
    i = tl.arange(0, CHUNK)
    return tl.load(p + ((slot * heads + h) * CHUNK + i[:, None]) * CHUNK + i[None, :])


@triton.jit
def _sees(i, cut):
    """A mask of the steps (first axis) that read what other steps (second axis) write."""
    return (i[:, None] >= i[None, :]) & (cut[:, None] == cut[None, :])


@triton.jit
def _settled(A, T, z, visible, PRECISION: tl.constexpr):
    """``u`` of ``u = z + A u``, from ``T = (1 - A)^-1``; a row of it with NaN marks a step.

    An inverse loses what keys alike make large in it, so what it leaves over is solved for again:
    that is as exact as one step after the other.
    """
    bad = tl.maximum(marks(T), marks(z))
    A, T = tl.where(finite(A), A, 0), tl.where(finite(T), T, 0)
    z = tl.where(finite(z), z, 0)
    u = product(T, z, PRECISION)
    bad = tl.maximum(bad, marks(u))
    u = tl.where(finite(u), u, 0)
    u += product(T, z - u + product(A, u, PRECISION), PRECISION)
    return tl.where(reached(visible, bad)[:, None], float("nan"), u)


@triton.jit
def _tile(pid, heads, keys, columns, KEYS: tl.constexpr, COLUMNS: tl.constexpr):
    """The sequence, head, and rows and columns of the memory that a program computes."""
    tiles, blocks = tl.cdiv(columns, COLUMNS), tl.cdiv(keys, KEYS)
    c = pid % tiles * COLUMNS + tl.arange(0, COLUMNS)
    d = pid // tiles % blocks * KEYS + tl.arange(0, KEYS)
    h = pid // tiles // blocks % heads
    s = (pid // tiles // blocks // heads).to(tl.int64)
    tile = d[:, None] * columns + c[None, :]
    return s, h, d, c, tile, (d < keys)[:, None] & (c < columns)[None, :]


@kernel
def run_states(
    k, v, w, a, x, g, past, system, solved, reset, cu_seqlens, initial, states, u, final,
    time, heads, k_heads, w_heads, a_heads, keys, values, columns,
    CHUNK: tl.constexpr, KEYS: tl.constexpr, COLUMNS: tl.constexpr, G: tl.constexpr,
    CONSTANT: tl.constexpr, EARLY: tl.constexpr, ONES: tl.constexpr, REVERSE: tl.constexpr,
    DTYPE: tl.constexpr, PRECISION: tl.constexpr, SOLVING: tl.constexpr,
):  # fmt: skip
    """The memory before each chunk, and what is written with ``w``."""
    SIGN: tl.constexpr = -1 if REVERSE else 1
    s, h, d, c, tile, fits = _tile(tl.program_id(0), heads, keys, columns, KEYS, COLUMNS)
    row, start, count, slot = sequence(cu_seqlens, s, time, CHUNK)
    size = keys * columns
    S = tl.zeros((KEYS, COLUMNS), DTYPE)
    if initial is not None:
        S = tl.load(initial + (s * heads + h) * size + tile, fits, 0)
    i = tl.arange(0, CHUNK)
    for n in range(0, tl.cdiv(count, CHUNK)):
        t = n * CHUNK + i
        position, inside = place(t, row, start, count, time, REVERSE), t < count
        tl.store(states + ((slot + n) * heads + h) * size + tile, S, fits)
        cut = resets(reset, position, inside)
        last = (cut == tl.max(cut, 0))[:, None]
        behind = (t + 1 < count) & (i + 1 < CHUNK)
        keep = tl.exp(left(g, position, behind, heads, h, keys, d, SIGN, G, CONSTANT, DTYPE))
        X = tl.zeros((KEYS, COLUMNS), DTYPE)
        if k is not None:
            key = rows(k, position, inside, k_heads, h // (heads // k_heads), keys, d, DTYPE) * keep
            value = values_of(v, position, inside, heads, h, values, c, ONES, DTYPE)
            X += product(tl.trans(tl.where(last, key, 0)), tl.where(last, value, 0), PRECISION)
        if solved is not None:
            ask = rows(a, position, inside, a_heads, h // (heads // a_heads), keys, d, DTYPE)
            ask *= tl.exp(
                since(g, i, position, inside, heads, h, keys, d, EARLY, SIGN, G, CONSTANT, DTYPE)
            )
            z = tl.where((cut == 0)[:, None], product(ask, S, PRECISION), 0)
            if x is not None:
                z += rows(x, position, inside, heads, h, columns, c, DTYPE)
            if past is not None:
                value = values_of(v, position, inside, heads, h, values, c, ONES, DTYPE)
                near = _square(past, slot + n, heads, h, CHUNK)
                z += mixed(near, value, _sees(i, cut), PRECISION)
            A = _square(system, slot + n, heads, h, CHUNK)
            T = _square(solved, slot + n, heads, h, CHUNK)
            z = _settled(A, T, z, _sees(i, cut), SOLVING)
            put(u, z, position, inside, heads, h, columns, c)
            key = rows(w, position, inside, w_heads, h // (heads // w_heads), keys, d, DTYPE) * keep
            X += product(tl.trans(tl.where(last, key, 0)), tl.where(last, z, 0), PRECISION)
        across = tl.sum(logs(g, position, inside, heads, h, keys, d, G, CONSTANT, DTYPE), 0)
        S = tl.where(tl.max(cut, 0) > 0, 0, tl.exp(across)[:, None] * S) + X
    tl.store(final + (s * heads + h) * size + tile, S, fits)


@kernel
def run_outputs(
    q, v, u, g, near, mix, states, reset, slots, cu_seqlens, o,
    time, heads, q_heads, keys, values, columns,
    CHUNK: tl.constexpr, KEYS: tl.constexpr, COLUMNS: tl.constexpr, G: tl.constexpr,
    CONSTANT: tl.constexpr, EARLY: tl.constexpr, ONES: tl.constexpr, SCALE: tl.constexpr,
    REVERSE: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Outputs of every chunk: read from the memory before it, and from what its steps wrote."""
    SIGN: tl.constexpr = -1 if REVERSE else 1
    tiles = tl.cdiv(columns, COLUMNS)
    c = tl.program_id(0) % tiles * COLUMNS + tl.arange(0, COLUMNS)
    h = tl.program_id(0) // tiles % heads
    slot = (tl.program_id(0) // tiles // heads).to(tl.int64)
    row, start, count, n = span(slots, cu_seqlens, slot, time, CHUNK)
    i = tl.arange(0, CHUNK)
    t = n * CHUNK + i
    position, inside = place(t, row, start, count, time, REVERSE), t < count
    cut = resets(reset, position, inside)
    y = tl.zeros((CHUNK, COLUMNS), DTYPE)
    for d0 in range(0, keys, KEYS):
        d = d0 + tl.arange(0, KEYS)
        ask = rows(q, position, inside, q_heads, h // (heads // q_heads), keys, d, DTYPE)
        ask *= tl.exp(
            since(g, i, position, inside, heads, h, keys, d, EARLY, SIGN, G, CONSTANT, DTYPE)
        )
        tile = states + ((slot * heads + h) * keys + d[:, None]) * columns + c[None, :]
        S = tl.load(tile, (d < keys)[:, None] & (c < columns)[None, :], 0)
        y += product(ask, S, PRECISION)
    y = tl.where((cut == 0)[:, None], y, 0)
    visible = _sees(i, cut)
    if near is not None:
        value = values_of(v, position, inside, heads, h, values, c, ONES, DTYPE)
        y += mixed(_square(near, slot, heads, h, CHUNK), value, visible, PRECISION)
    if mix is not None:
        solved = rows(u, position, inside, heads, h, columns, c, DTYPE)
        y += mixed(_square(mix, slot, heads, h, CHUNK), solved, visible, PRECISION)
    put(o, y * SCALE, position, inside, heads, h, columns, c)


@kernel
def run_adjoint(
    q, do, w, a, g, mix, system, solved, reset, cu_seqlens, grad_final, states, dz, grad_initial,
    time, heads, q_heads, w_heads, a_heads, keys, columns,
    CHUNK: tl.constexpr, KEYS: tl.constexpr, COLUMNS: tl.constexpr, G: tl.constexpr,
    CONSTANT: tl.constexpr, EARLY: tl.constexpr, ASKS_EARLY: tl.constexpr, SCALE: tl.constexpr,
    REVERSE: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
    SOLVING: tl.constexpr,
):  # fmt: skip
    """The gradient of the memory behind each chunk, and of what is solved for."""
    SIGN: tl.constexpr = -1 if REVERSE else 1
    s, h, d, c, tile, fits = _tile(tl.program_id(0), heads, keys, columns, KEYS, COLUMNS)
    row, start, count, slot = sequence(cu_seqlens, s, time, CHUNK)
    size = keys * columns
    D = tl.zeros((KEYS, COLUMNS), DTYPE)
    if grad_final is not None:
        D = tl.load(grad_final + (s * heads + h) * size + tile, fits, 0)
    i = tl.arange(0, CHUNK)
    chunks = tl.cdiv(count, CHUNK)
    for back in range(0, chunks):
        n = chunks - 1 - back
        t = n * CHUNK + i
        position, inside = place(t, row, start, count, time, REVERSE), t < count
        tl.store(states + ((slot + n) * heads + h) * size + tile, D, fits)
        cut = resets(reset, position, inside)
        first, last = (cut == 0)[:, None], (cut == tl.max(cut, 0))[:, None]
        ask = rows(q, position, inside, q_heads, h // (heads // q_heads), keys, d, DTYPE)
        ask *= tl.exp(
            since(g, i, position, inside, heads, h, keys, d, EARLY, SIGN, G, CONSTANT, DTYPE)
        )
        dy = rows(do, position, inside, heads, h, columns, c, DTYPE) * SCALE
        X = product(tl.trans(tl.where(first, ask, 0)), tl.where(first, dy, 0), PRECISION)
        if solved is not None:
            visible = _sees(i, cut)
            z = mixed(
                tl.trans(_square(mix, slot + n, heads, h, CHUNK)), dy, tl.trans(visible), PRECISION
            )
            behind = (t + 1 < count) & (i + 1 < CHUNK)
            key = rows(w, position, inside, w_heads, h // (heads // w_heads), keys, d, DTYPE)
            key *= tl.exp(left(g, position, behind, heads, h, keys, d, SIGN, G, CONSTANT, DTYPE))
            z += tl.where(last, product(key, D, PRECISION), 0)
            A = tl.trans(_square(system, slot + n, heads, h, CHUNK))
            T = tl.trans(_square(solved, slot + n, heads, h, CHUNK))
            z = _settled(A, T, z, tl.trans(visible), SOLVING)
            put(dz, z, position, inside, heads, h, columns, c)
            ask = rows(a, position, inside, a_heads, h // (heads // a_heads), keys, d, DTYPE)
            ask *= tl.exp(
                since(
                    g, i, position, inside, heads, h, keys, d, ASKS_EARLY, SIGN, G, CONSTANT, DTYPE
                )
            )
            X += product(tl.trans(tl.where(first, ask, 0)), tl.where(first, z, 0), PRECISION)
        across = tl.sum(logs(g, position, inside, heads, h, keys, d, G, CONSTANT, DTYPE), 0)
        D = tl.where(tl.max(cut, 0) > 0, 0, tl.exp(across)[:, None] * D) + X
    tl.store(grad_initial + (s * heads + h) * size + tile, D, fits)


@kernel
def run_values(
    k, do, dz, g, near, past, states, reset, slots, cu_seqlens, dv,
    time, heads, k_heads, keys, values, columns,
    CHUNK: tl.constexpr, KEYS: tl.constexpr, COLUMNS: tl.constexpr, G: tl.constexpr,
    CONSTANT: tl.constexpr, SCALE: tl.constexpr, REVERSE: tl.constexpr, DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of the values."""
    SIGN: tl.constexpr = -1 if REVERSE else 1
    tiles = tl.cdiv(values, COLUMNS)
    c = tl.program_id(0) % tiles * COLUMNS + tl.arange(0, COLUMNS)
    h = tl.program_id(0) // tiles % heads
    slot = (tl.program_id(0) // tiles // heads).to(tl.int64)
    row, start, count, n = span(slots, cu_seqlens, slot, time, CHUNK)
    i = tl.arange(0, CHUNK)
    t = n * CHUNK + i
    position, inside = place(t, row, start, count, time, REVERSE), t < count
    behind = (t + 1 < count) & (i + 1 < CHUNK)
    cut = resets(reset, position, inside)
    y = tl.zeros((CHUNK, COLUMNS), DTYPE)
    for d0 in range(0, keys, KEYS):
        d = d0 + tl.arange(0, KEYS)
        key = rows(k, position, inside, k_heads, h // (heads // k_heads), keys, d, DTYPE)
        key *= tl.exp(left(g, position, behind, heads, h, keys, d, SIGN, G, CONSTANT, DTYPE))
        tile = states + ((slot * heads + h) * keys + d[:, None]) * columns + c[None, :]
        D = tl.load(tile, (d < keys)[:, None] & (c < columns)[None, :], 0)
        y += product(key, D, PRECISION)
    y = tl.where((cut == tl.max(cut, 0))[:, None], y, 0)
    visible = tl.trans(_sees(i, cut))
    dy = rows(do, position, inside, heads, h, columns, c, DTYPE) * SCALE
    y += mixed(tl.trans(_square(near, slot, heads, h, CHUNK)), dy, visible, PRECISION)
    if past is not None:
        z = rows(dz, position, inside, heads, h, columns, c, DTYPE)
        y += mixed(tl.trans(_square(past, slot, heads, h, CHUNK)), z, visible, PRECISION)
    put(dv, y, position, inside, heads, h, values, c)


@triton.jit
def _to_decays(dg, x, owner, owned, position, nobody, heads, h, size, lanes, EARLY: tl.constexpr,
               FIRST: tl.constexpr):  # fmt: skip
    """Give sums to the decays of their owners."""
    if FIRST:
        put(dg, x, owner, owned, heads, h, size, lanes)
        if EARLY:
            put(dg, tl.zeros_like(x), position, nobody, heads, h, size, lanes)
    else:
        add(dg, x, owner, owned, heads, h, size, lanes)


@triton.jit
def _asked(
    x, dy, g, states, reset, slots, cu_seqlens, dx, dg, time, heads, x_heads, keys, columns,
    CHUNK: tl.constexpr, KEYS: tl.constexpr, COLUMNS: tl.constexpr, G: tl.constexpr,
    CONSTANT: tl.constexpr, EARLY: tl.constexpr, SCALE: tl.constexpr, FIRST: tl.constexpr,
    REVERSE: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of vectors that read, and of decays: the share of the memory before the chunk.

    The FIRST of a chunk stores those of decays, to which all others add.
    """
    SIGN: tl.constexpr = -1 if REVERSE else 1
    h, slot = tl.program_id(0) % heads, (tl.program_id(0) // heads).to(tl.int64)
    row, start, count, n = span(slots, cu_seqlens, slot, time, CHUNK)
    i = tl.arange(0, CHUNK)
    t = n * CHUNK + i
    position, inside = place(t, row, start, count, time, REVERSE), t < count
    first = (resets(reset, position, inside) == 0)[:, None]
    # a sum over the steps from i on belongs to step i, or to the one before it
    owner, owned = position, inside
    if EARLY:
        owner, owned = position - SIGN, inside & (i > 0)
    nobody = inside & ((i + 1 == CHUNK) | (t + 1 == count))  # EARLY, the last step has no sum
    each = tl.zeros((CHUNK, 1), DTYPE)
    for d0 in range(0, keys, KEYS):
        d = d0 + tl.arange(0, KEYS)
        grad = tl.zeros((CHUNK, KEYS), DTYPE)
        for c0 in range(0, columns, COLUMNS):
            c = c0 + tl.arange(0, COLUMNS)
            y = rows(dy, position, inside, heads, h, columns, c, DTYPE) * SCALE
            tile = states + ((slot * heads + h) * keys + d[:, None]) * columns + c[None, :]
            S = tl.load(tile, (d < keys)[:, None] & (c < columns)[None, :], 0)
            grad += product(y, tl.trans(S), PRECISION)
        grad *= tl.exp(
            since(g, i, position, inside, heads, h, keys, d, EARLY, SIGN, G, CONSTANT, DTYPE)
        )
        grad = tl.where(first, grad, 0)
        put(dx, grad, position, inside, heads, h, keys, d)
        if G > 0:
            ask = rows(x, position, inside, x_heads, h // (heads // x_heads), keys, d, DTYPE)
            grad = tl.where(first, grad * ask, 0)
        if G == 2:
            _to_decays(dg, sums(grad, reverse=True), owner, owned, position, nobody, heads, h, keys,
                       d, EARLY, FIRST)  # fmt: skip
        if G == 1:
            each += tl.sum(grad, 1)[:, None]
    if G == 1:
        _to_decays(dg, sums(each, reverse=True), owner, owned, position, nobody, heads, h, 1,
                   tl.arange(0, 1), EARLY, FIRST)  # fmt: skip


@kernel
def run_asked(
    q, a, do, dz, g, states, reset, slots, cu_seqlens, dq, da, dg,
    time, heads, q_heads, a_heads, keys, columns,
    CHUNK: tl.constexpr, KEYS: tl.constexpr, COLUMNS: tl.constexpr, G: tl.constexpr,
    CONSTANT: tl.constexpr, EARLY: tl.constexpr, ASKS_EARLY: tl.constexpr, SCALE: tl.constexpr,
    REVERSE: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The same of all vectors that read, one after the other."""
    _asked(
        q, do, g, states, reset, slots, cu_seqlens, dq, dg, time, heads, q_heads, keys, columns,
        CHUNK, KEYS, COLUMNS, G, CONSTANT, EARLY, SCALE, True, REVERSE, DTYPE, PRECISION,
    )  # fmt: skip
    if a is not None:
        tl.debug_barrier()  # the next adds to rows that other threads have just stored
        _asked(
            a, dz, g, states, reset, slots, cu_seqlens, da, dg, time, heads, a_heads, keys, columns,
            CHUNK, KEYS, COLUMNS, G, CONSTANT, ASKS_EARLY, 1.0, False, REVERSE, DTYPE, PRECISION,
        )  # fmt: skip


@triton.jit
def _written(
    x, y, g, entering, states, reset, slots, cu_seqlens, dx, dg,
    time, heads, x_heads, keys, values, columns,
    CHUNK: tl.constexpr, KEYS: tl.constexpr, COLUMNS: tl.constexpr, G: tl.constexpr,
    CONSTANT: tl.constexpr, ONES: tl.constexpr, REVERSE: tl.constexpr, DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of vectors that write, and of decays: the share of the memory behind the chunk.

    Those of decays contain the share of the memory that crosses the chunk.
    """
    SIGN: tl.constexpr = -1 if REVERSE else 1
    h, slot = tl.program_id(0) % heads, (tl.program_id(0) // heads).to(tl.int64)
    row, start, count, n = span(slots, cu_seqlens, slot, time, CHUNK)
    i = tl.arange(0, CHUNK)
    t = n * CHUNK + i
    position, inside = place(t, row, start, count, time, REVERSE), t < count
    behind = (t + 1 < count) & (i + 1 < CHUNK)
    cut = resets(reset, position, inside)
    last = (cut == tl.max(cut, 0))[:, None]
    each, cross = tl.zeros((CHUNK, 1), DTYPE), tl.zeros((1,), DTYPE)
    for d0 in range(0, keys, KEYS):
        d = d0 + tl.arange(0, KEYS)
        grad, through = tl.zeros((CHUNK, KEYS), DTYPE), tl.zeros((KEYS,), DTYPE)
        for c0 in range(0, columns, COLUMNS):
            c = c0 + tl.arange(0, COLUMNS)
            value = values_of(y, position, inside, heads, h, values, c, ONES, DTYPE)
            tile = ((slot * heads + h) * keys + d[:, None]) * columns + c[None, :]
            fits = (d < keys)[:, None] & (c < columns)[None, :]
            D = tl.load(states + tile, fits, 0)
            grad += product(value, tl.trans(D), PRECISION)
            if entering is not None:
                through += tl.sum(tl.load(entering + tile, fits, 0) * D, 1)
        grad *= tl.exp(left(g, position, behind, heads, h, keys, d, SIGN, G, CONSTANT, DTYPE))
        grad = tl.where(last, grad, 0)
        put(dx, grad, position, inside, heads, h, keys, d)
        if G > 0:
            key = rows(x, position, inside, x_heads, h // (heads // x_heads), keys, d, DTYPE)
            grad = tl.where(last, grad * key, 0)
            decay = tl.exp(
                tl.sum(logs(g, position, inside, heads, h, keys, d, G, CONSTANT, DTYPE), 0)
            )
            through = tl.where(tl.max(cut, 0) > 0, 0, through * decay)
        if G == 2:
            add(dg, sums(grad), position + SIGN, behind, heads, h, keys, d)
            tl.debug_barrier()  # the next adds to rows that other threads have just added to
            if entering is not None:
                add(dg, through[None, :], position, inside, heads, h, keys, d)
                tl.debug_barrier()
        if G == 1:
            each += tl.sum(grad, 1)[:, None]
            cross += tl.sum(through, 0)
    if G == 1:
        add(dg, sums(each), position + SIGN, behind, heads, h, 1, tl.arange(0, 1))
        tl.debug_barrier()
        if entering is not None:
            add(dg, cross[None, :], position, inside, heads, h, 1, tl.arange(0, 1))


@kernel
def run_written(
    k, w, v, u, g, entering, states, reset, slots, cu_seqlens, dk, dw, dg,
    time, heads, k_heads, w_heads, keys, values, columns,
    CHUNK: tl.constexpr, KEYS: tl.constexpr, COLUMNS: tl.constexpr, G: tl.constexpr,
    CONSTANT: tl.constexpr, ONES: tl.constexpr, REVERSE: tl.constexpr, DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The same of all vectors that write, the first with what crosses the chunk."""
    once = entering if k is None else None
    if k is not None:
        _written(
            k, v, g, entering, states, reset, slots, cu_seqlens, dk, dg, time, heads, k_heads, keys,
            values, columns, CHUNK, KEYS, COLUMNS, G, CONSTANT, ONES, REVERSE, DTYPE, PRECISION,
        )  # fmt: skip
        tl.debug_barrier()
    if w is not None:
        _written(
            w, u, g, once, states, reset, slots, cu_seqlens, dw, dg, time, heads, w_heads, keys,
            columns, columns, CHUNK, KEYS, COLUMNS, G, CONSTANT, False, REVERSE, DTYPE, PRECISION,
        )  # fmt: skip
