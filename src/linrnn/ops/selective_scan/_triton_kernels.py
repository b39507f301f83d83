"""Triton kernels of `selective_scan`; `_triton` says what runs where.

One program owns a sequence and a block of channels and walks along time with their states,
(BLOCK, MODES), in registers; the rows of UNROLL steps are on their way at once, which hides the
latency of memory. The adjoint runs each chunk forward again from the state kept before it, to find
the state that enters each part of UNROLL steps. Then, from the last part to the first, it finds the
states of a part again and goes back over them: no more than a part's are there at once, and none
leaves the registers. Sums over channels (for B and C) are written block by block, sums over time
(for A, D and the bias) sequence by sequence.
"""

# Triton compiles the source of these functions: no annotations, and names as in a kernel.
# mypy: ignore-errors
# ruff: noqa: RUF005  # Triton knows no unpacking into a tuple

import triton
import triton.language as tl

from linrnn.compute.triton_kernel import kernel


@triton.jit
def _softplus(v):
    e = tl.exp(-tl.abs(v))
    u = 1 + e
    # log(1 + e) to the relative precision of e
    tail = tl.where(u == 1, e, tl.log(u) * e / tl.where(u == 1, 1, u - 1))
    return tl.maximum(v, 0) + tail


@triton.jit
def _sigmoid(v):
    e = tl.exp(-tl.abs(v))
    return tl.where(v >= 0, 1, e) / (1 + e)


@triton.jit
def _discretise(dt, lam, ZOH: tl.constexpr):
    """Decay and the weight of the input."""
    v = dt[:, None] * lam
    a = tl.exp(v)
    w = dt[:, None] + 0 * lam
    if ZOH:
        near = tl.abs(v) < 0.5
        # exp(v) - 1 to the relative precision of v
        ratio = (a - 1) / tl.where(near & (a != 1), tl.log(a), 1)
        less = tl.where(near, tl.where(a == 1, v, ratio * v), a - 1)
        w = tl.where(lam == 0, w, less / tl.where(lam == 0, 1, lam))
    return a, w


@triton.jit
def _slope(dt, lam, a, w):
    """The derivative of the zero-order hold's weight with respect to A."""
    dt = dt[:, None]
    v = dt * lam
    near = tl.abs(v) < 0.3
    series = 1 / 6227020800.0 + 0 * v
    series = series * 12 * v + 11 / 479001600.0
    series = series * v + 10 / 39916800.0
    series = series * v + 9 / 3628800.0
    series = series * v + 8 / 362880.0
    series = series * v + 7 / 40320.0
    series = series * v + 6 / 5040.0
    series = series * v + 5 / 720.0
    series = series * v + 4 / 120.0
    series = series * v + 3 / 24.0
    series = series * v + 2 / 6.0
    series = series * v + 1 / 2.0
    return tl.where(near, dt * dt * series, (dt * a - w) / tl.where(near, 1, lam))


@triton.jit
def _place(channels, modes, BLOCK: tl.constexpr, MODES: tl.constexpr):
    """The sequence, the block and the lanes of a program."""
    blocks = tl.cdiv(channels, BLOCK)
    block = tl.program_id(0) % blocks
    s = (tl.program_id(0) // blocks).to(tl.int64)
    c = block * BLOCK + tl.arange(0, BLOCK)
    n = tl.arange(0, MODES)
    tile = c[:, None] * modes + n[None, :]
    inside = (c < channels)[:, None] & (n < modes)[None, :]
    return s, block, c, n, tile, inside


@triton.jit
def _span(cu_seqlens, s, time):
    """The row of a sequence, its first place in it and how many steps it has."""
    row, start, count = s, s * 0, time
    if cu_seqlens is not None:
        row, start = s * 0, tl.load(cu_seqlens + s).to(tl.int64)
        count = (tl.load(cu_seqlens + s + 1) - start).to(tl.int32)
    return row, start, count


@triton.jit
def _where(start, count, t, REVERSE: tl.constexpr):
    """The place of step t in the order of reading."""
    place = start + t
    if REVERSE:
        place = start + count - 1 - t
    return place


@triton.jit
def _kept_before(cu_seqlens, s, start, time, chunk):
    """How many chunks lie before a sequence; each packed one begins one anew."""
    slots = s * tl.cdiv(time, chunk)
    if cu_seqlens is not None:
        slots = start // chunk + s
    return slots


@triton.jit
def _channels(p, c, channels, DTYPE: tl.constexpr):
    """A parameter of each channel, 0 where there is none."""
    v = tl.zeros(c.shape, DTYPE)
    if p is not None:
        v = tl.load(p + c, mask=c < channels, other=0)
    return v


@triton.jit
def _rows(p, step, t, lanes, size, n, WAY: tl.constexpr, UNROLL: tl.constexpr):
    """Start loading the rows of steps from t on or, WAY -1, down; from the n-th on they are 0."""
    rows = ()
    for j in tl.static_range(UNROLL):
        rows = rows + (tl.load(p + (t + WAY * j) * step + lanes, (lanes < size) & (j < n), 0),)
    return rows


@triton.jit
def _inputs(x, x_step, dt, dt_step, B, B_step, C, C_step, t, c, channels, n, modes, left,
            WAY: tl.constexpr, UNROLL: tl.constexpr):  # fmt: skip
    """The same of what every call has."""
    return (
        _rows(x, x_step, t, c, channels, left, WAY, UNROLL),
        _rows(dt, dt_step, t, c, channels, left, WAY, UNROLL),
        _rows(B, B_step, t, n, modes, left, WAY, UNROLL),
        _rows(C, C_step, t, n, modes, left, WAY, UNROLL),
    )


@triton.jit
def _flags(p, step, t, n, WAY: tl.constexpr, UNROLL: tl.constexpr):
    """The same of resets: one flag a step."""
    flags = ()
    for j in tl.static_range(UNROLL):
        flags = flags + (tl.load(p + (t + WAY * j) * step, j < n, 0) != 0,)
    return flags


@triton.jit
def _step_size(raw, SOFTPLUS: tl.constexpr):
    dt = raw
    if SOFTPLUS:
        dt = _softplus(raw)
    return dt


@kernel
def run_forward(
    x, x_seq, x_step, dt, dt_seq, dt_step, B, B_seq, B_step, C, C_seq, C_step, z, z_seq, z_step,
    reset, reset_seq, reset_step, A, D, bias, cu_seqlens,
    initial, y, y_seq, y_step, final, chunk_states, time, channels, modes, chunk,
    SOFTPLUS: tl.constexpr, ZOH: tl.constexpr, REVERSE: tl.constexpr, DTYPE: tl.constexpr,
    BLOCK: tl.constexpr, MODES: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    WAY: tl.constexpr = -1 if REVERSE else 1
    s, _, c, n, tile, inside = _place(channels, modes, BLOCK, MODES)
    lam = tl.load(A + tile, mask=inside, other=0)
    skip = _channels(D, c, channels, DTYPE)
    shift = _channels(bias, c, channels, DTYPE)
    size = channels * modes
    h = tl.zeros((BLOCK, MODES), DTYPE)
    if initial is not None:
        h = tl.load(initial + s * size + tile, mask=inside, other=0)
    row, start, count = _span(cu_seqlens, s, time)
    first_slot = _kept_before(cu_seqlens, s, start, time, chunk)
    x += row * x_seq
    dt += row * dt_seq
    B += row * B_seq
    C += row * C_seq
    y += row * y_seq
    t = _where(start, count, 0, REVERSE)
    x_next, dt_next, B_next, C_next = _inputs(
        x, x_step, dt, dt_step, B, B_step, C, C_step, t, c, channels, n, modes, count, WAY, UNROLL
    )
    if z is not None:
        z += row * z_seq
        z_next = _rows(z, z_step, t, c, channels, count, WAY, UNROLL)
    if reset is not None:
        reset += row * reset_seq
        cut_next = _flags(reset, reset_step, t, count, WAY, UNROLL)
    for i in range(0, count, UNROLL):
        step = _where(start, count, i, REVERSE)
        t = step + WAY * UNROLL
        left = count - i - UNROLL
        x_now, dt_now, B_now, C_now = x_next, dt_next, B_next, C_next
        x_next, dt_next, B_next, C_next = _inputs(
            x, x_step, dt, dt_step, B, B_step, C, C_step, t, c, channels, n, modes, left, WAY,
            UNROLL,
        )  # fmt: skip
        if z is not None:
            z_now = z_next
            z_next = _rows(z, z_step, t, c, channels, left, WAY, UNROLL)
        if reset is not None:
            cut_now = cut_next
            cut_next = _flags(reset, reset_step, t, left, WAY, UNROLL)
        if chunk_states is not None:  # noqa: SIM102
            if i % chunk == 0:  # a chunk that is no multiple of UNROLL is the only one
                tl.store(chunk_states + (first_slot + i // chunk) * size + tile, h, mask=inside)
        for j in tl.static_range(UNROLL):
            exists = i + j < count
            x_t = x_now[j].to(DTYPE)
            d_t = _step_size(dt_now[j].to(DTYPE) + shift, SOFTPLUS)
            a, w = _discretise(d_t, lam, ZOH)
            past = h
            if reset is not None:
                past = tl.where(cut_now[j], 0, h)
            new = a * past + w * B_now[j].to(DTYPE)[None, :] * x_t[:, None]
            h = tl.where(exists, new, h)
            out = tl.sum(h * C_now[j].to(DTYPE)[None, :], 1) + skip * x_t
            if z is not None:
                z_t = z_now[j].to(DTYPE)
                out = out * z_t * _sigmoid(z_t)
            tl.store(y + (step + WAY * j) * y_step + c, out, mask=(c < channels) & exists)
    tl.store(final + s * size + tile, h, mask=inside)


@triton.jit
def _replaced(tiles, tile, at, N: tl.constexpr):
    """Tiles with another one in one place."""
    new = ()
    for j in tl.static_range(N):
        new = new + (tl.where(at == j, tile, tiles[j]),)
    return new


@triton.jit
def _chosen(tile, tiles, at, N: tl.constexpr):
    """The tile in one place, another one where there is no such place."""
    for j in tl.static_range(N):
        tile = tl.where(at == j, tiles[j], tile)
    return tile


@kernel
def run_backward(
    x, x_seq, x_step, dt, dt_seq, dt_step, B, B_seq, B_step, C, C_seq, C_step, z, z_seq, z_step,
    reset, reset_seq, reset_step, A, D, bias, cu_seqlens,
    grad_y, y_seq, y_step, grad_final, chunk_states,
    grad_x, grad_dt, grad_z, grad_B, grad_C, grad_A, grad_D, grad_bias, grad_initial,
    batch, time, channels, modes, chunk,
    SOFTPLUS: tl.constexpr, ZOH: tl.constexpr, REVERSE: tl.constexpr, DTYPE: tl.constexpr,
    BLOCK: tl.constexpr, MODES: tl.constexpr, UNROLL: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    WAY: tl.constexpr = -1 if REVERSE else 1
    s, block, c, n, tile, inside = _place(channels, modes, BLOCK, MODES)
    lam = tl.load(A + tile, mask=inside, other=0)
    skip = _channels(D, c, channels, DTYPE)
    shift = _channels(bias, c, channels, DTYPE)
    size = channels * modes
    row, first, count = _span(cu_seqlens, s, time)
    rows = (block * batch + row) * time  # of this block's sums over channels
    chunks = tl.cdiv(count, chunk)
    before_it = _kept_before(cu_seqlens, s, first, time, chunk)
    x += row * x_seq
    dt += row * dt_seq
    B += row * B_seq
    C += row * C_seq
    grad_y += row * y_seq
    if z is not None:
        z += row * z_seq
    if reset is not None:
        reset += row * reset_seq
    carry = tl.load(grad_final + s * size + tile, mask=inside, other=0)
    for_A = tl.zeros((BLOCK, MODES), DTYPE)
    for_D = tl.zeros((BLOCK,), DTYPE)
    for_bias = tl.zeros((BLOCK,), DTYPE)
    for k in range(0, chunks):
        start = (chunks - 1 - k) * chunk
        steps = tl.minimum(chunk, count - start)
        enters = chunk_states + (before_it + chunks - 1 - k) * size + tile
        h = tl.load(enters, mask=inside, other=0)
        entering = ()  # the state before each part but the first
        for _ in tl.static_range(PARTS - 1):
            entering = entering + (h,)
        for i in range(UNROLL, steps, UNROLL):
            t = _where(first, count, start + i - UNROLL, REVERSE)
            x_now = _rows(x, x_step, t, c, channels, UNROLL, WAY, UNROLL)
            dt_now = _rows(dt, dt_step, t, c, channels, UNROLL, WAY, UNROLL)
            B_now = _rows(B, B_step, t, n, modes, UNROLL, WAY, UNROLL)
            if reset is not None:
                cut_now = _flags(reset, reset_step, t, UNROLL, WAY, UNROLL)
            for j in tl.static_range(UNROLL):
                d_t = _step_size(dt_now[j].to(DTYPE) + shift, SOFTPLUS)
                a, w = _discretise(d_t, lam, ZOH)
                if reset is not None:
                    h = tl.where(cut_now[j], 0, h)
                h = a * h + w * B_now[j].to(DTYPE)[None, :] * x_now[j].to(DTYPE)[:, None]
            entering = _replaced(entering, h, i // UNROLL - 1, PARTS - 1)
        parts = tl.cdiv(steps, UNROLL)
        for i in range(0, parts):
            at = (parts - 1 - i) * UNROLL
            t = _where(first, count, start + at, REVERSE)
            left = steps - at
            h = _chosen(tl.load(enters, inside, 0), entering, parts - 2 - i, PARTS - 1)
            x_now, dt_now, B_now, C_now = _inputs(
                x, x_step, dt, dt_step, B, B_step, C, C_step, t, c, channels, n, modes, left, WAY,
                UNROLL,
            )  # fmt: skip
            g_now = _rows(grad_y, y_step, t, c, channels, left, WAY, UNROLL)
            if z is not None:
                z_now = _rows(z, z_step, t, c, channels, left, WAY, UNROLL)
            if reset is not None:
                cut_now = _flags(reset, reset_step, t, left, WAY, UNROLL)
            previous, read = (), ()  # states before each step, and gradients of what reads them
            for j in tl.static_range(UNROLL):
                exists = j < left
                step = t + WAY * j
                x_t, g = x_now[j].to(DTYPE), g_now[j].to(DTYPE)
                d_t = _step_size(dt_now[j].to(DTYPE) + shift, SOFTPLUS)
                if reset is not None:
                    h = tl.where(cut_now[j], 0, h)
                previous = previous + (h,)
                a, w = _discretise(d_t, lam, ZOH)
                h = a * h + w * B_now[j].to(DTYPE)[None, :] * x_t[:, None]
                if z is not None:
                    z_t = z_now[j].to(DTYPE)
                    gate = _sigmoid(z_t)
                    out = tl.sum(h * C_now[j].to(DTYPE)[None, :], 1) + skip * x_t
                    slope = gate * (1 + z_t * (1 - gate))
                    tl.store(
                        grad_z + (row * time + step) * channels + c, g * out * slope,
                        (c < channels) & exists,
                    )  # fmt: skip
                    g = g * z_t * gate
                read = read + (g,)
                for_c = tl.sum(g[:, None] * h, 0)
                tl.store(grad_C + (rows + step) * modes + n, for_c, mask=(n < modes) & exists)
                for_D += tl.where(exists, g * x_t, 0)
            x_now, dt_now, B_now, C_now = _inputs(
                x, x_step, dt, dt_step, B, B_step, C, C_step, t, c, channels, n, modes, left, WAY,
                UNROLL,
            )  # fmt: skip
            for j in tl.static_range(UNROLL - 1, -1, -1):
                exists = j < left
                step = t + WAY * j
                x_t, g = x_now[j].to(DTYPE), read[j]
                raw = dt_now[j].to(DTYPE) + shift
                d_t = _step_size(raw, SOFTPLUS)
                b_t, c_t = B_now[j].to(DTYPE), C_now[j].to(DTYPE)
                a, w = _discretise(d_t, lam, ZOH)
                delta = carry + c_t[None, :] * g[:, None]
                through = a * delta * previous[j]
                from_b = delta * b_t[None, :]
                weigh = from_b * x_t[:, None]  # gradient of w
                for_x = tl.sum(from_b * w, 1) + skip * g
                for_dt = tl.sum(through * lam, 1)
                more = through * d_t[:, None]
                if ZOH:
                    for_dt += tl.sum(weigh * a, 1)
                    more += weigh * _slope(d_t, lam, a, w)
                else:
                    for_dt += tl.sum(weigh, 1)
                if SOFTPLUS:
                    for_dt = for_dt * _sigmoid(raw)
                for_A += tl.where(exists, more, 0)
                for_bias += tl.where(exists, for_dt, 0)
                for_b = tl.sum(delta * w * x_t[:, None], 0)
                tl.store(grad_B + (rows + step) * modes + n, for_b, mask=(n < modes) & exists)
                place = (row * time + step) * channels + c
                tl.store(grad_x + place, for_x, mask=(c < channels) & exists)
                tl.store(grad_dt + place, for_dt, mask=(c < channels) & exists)
                back = a * delta
                if reset is not None:
                    back = tl.where(cut_now[j], 0, back)
                carry = tl.where(exists, back, carry)
    tl.store(grad_initial + s * size + tile, carry, mask=inside)
    tl.store(grad_A + s * size + tile, for_A, mask=inside)
    tl.store(grad_D + s * channels + c, for_D, mask=c < channels)
    tl.store(grad_bias + s * channels + c, for_bias, mask=c < channels)
