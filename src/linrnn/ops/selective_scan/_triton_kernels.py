"""Triton kernels of `selective_scan`; `_triton` says what runs where.

One program owns a sequence and a block of channels and walks along time with their states,
(BLOCK, MODES), in registers. The adjoint runs each chunk forward again from the state kept before
it, leaving the states of one chunk in ``scratch``, and then backward. Sums over channels (for B
and C) are written block by block, sums over time (for A, D and the bias) sequence by sequence.
"""

# Triton compiles the source of these functions: no annotations, and names as in a kernel.
# mypy: ignore-errors

import triton
import triton.language as tl

from linrnn.ops._triton_kernel import kernel


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
    before = s * tl.cdiv(time, chunk)
    if cu_seqlens is not None:
        before = start // chunk + s
    return before


@triton.jit
def _channels(p, c, channels, DTYPE: tl.constexpr):
    """A parameter of each channel, 0 where there is none."""
    v = tl.zeros(c.shape, DTYPE)
    if p is not None:
        v = tl.load(p + c, mask=c < channels, other=0)
    return v


@triton.jit
def _row(p, s, seq, t, step, lanes, size, DTYPE: tl.constexpr):
    return tl.load(p + s * seq + t * step + lanes, mask=lanes < size, other=0).to(DTYPE)


@triton.jit
def _step_size(raw, SOFTPLUS: tl.constexpr):
    dt = raw
    if SOFTPLUS:
        dt = _softplus(raw)
    return dt


@triton.jit
def _clear(h, reset, s, seq, t, step):
    """The state without what came before a reset; a selection, which also stops NaN."""
    if reset is not None:
        h = tl.where(tl.load(reset + s * seq + t * step) != 0, 0, h)
    return h


@kernel
def run_forward(
    x, x_seq, x_step, dt, dt_seq, dt_step, B, B_seq, B_step, C, C_seq, C_step, z, z_seq, z_step,
    reset, reset_seq, reset_step, A, D, bias, cu_seqlens,
    initial, y, y_seq, y_step, final, kept, time, channels, modes, chunk,
    SOFTPLUS: tl.constexpr, ZOH: tl.constexpr, REVERSE: tl.constexpr, DTYPE: tl.constexpr,
    BLOCK: tl.constexpr, MODES: tl.constexpr,
):  # fmt: skip
    s, _, c, n, tile, inside = _place(channels, modes, BLOCK, MODES)
    lam = tl.load(A + tile, mask=inside, other=0)
    skip = _channels(D, c, channels, DTYPE)
    shift = _channels(bias, c, channels, DTYPE)
    size = channels * modes
    h = tl.zeros((BLOCK, MODES), DTYPE)
    if initial is not None:
        h = tl.load(initial + s * size + tile, mask=inside, other=0)
    row, start, count = _span(cu_seqlens, s, time)
    before = _kept_before(cu_seqlens, s, start, time, chunk)
    for i in range(0, count):
        if kept is not None:  # noqa: SIM102
            if i % chunk == 0:
                k = before + i // chunk
                tl.store(kept + k * size + tile, h, mask=inside)
        t = _where(start, count, i, REVERSE)
        x_t = _row(x, row, x_seq, t, x_step, c, channels, DTYPE)
        d_t = _step_size(_row(dt, row, dt_seq, t, dt_step, c, channels, DTYPE) + shift, SOFTPLUS)
        b_t = _row(B, row, B_seq, t, B_step, n, modes, DTYPE)
        c_t = _row(C, row, C_seq, t, C_step, n, modes, DTYPE)
        a, w = _discretise(d_t, lam, ZOH)
        h = a * _clear(h, reset, row, reset_seq, t, reset_step) + w * b_t[None, :] * x_t[:, None]
        out = tl.sum(h * c_t[None, :], 1) + skip * x_t
        if z is not None:
            z_t = _row(z, row, z_seq, t, z_step, c, channels, DTYPE)
            out = out * z_t * _sigmoid(z_t)
        tl.store(y + row * y_seq + t * y_step + c, out, mask=c < channels)
    tl.store(final + s * size + tile, h, mask=inside)


@kernel
def run_backward(
    x, x_seq, x_step, dt, dt_seq, dt_step, B, B_seq, B_step, C, C_seq, C_step, z, z_seq, z_step,
    reset, reset_seq, reset_step, A, D, bias, cu_seqlens,
    grad_y, y_seq, y_step, grad_final, kept, scratch,
    grad_x, grad_dt, grad_z, grad_B, grad_C, grad_A, grad_D, grad_bias, grad_initial,
    batch, time, channels, modes, chunk,
    SOFTPLUS: tl.constexpr, ZOH: tl.constexpr, REVERSE: tl.constexpr, DTYPE: tl.constexpr,
    BLOCK: tl.constexpr, MODES: tl.constexpr,
):  # fmt: skip
    s, block, c, n, tile, inside = _place(channels, modes, BLOCK, MODES)
    lam = tl.load(A + tile, mask=inside, other=0)
    skip = _channels(D, c, channels, DTYPE)
    shift = _channels(bias, c, channels, DTYPE)
    size = channels * modes
    row, first, count = _span(cu_seqlens, s, time)
    rows = (block * batch + row) * time  # of this block's sums over channels
    chunks = tl.cdiv(count, chunk)
    before_it = _kept_before(cu_seqlens, s, first, time, chunk)
    carry = tl.load(grad_final + s * size + tile, mask=inside, other=0)
    for_A = tl.zeros((BLOCK, MODES), DTYPE)
    for_D = tl.zeros((BLOCK,), DTYPE)
    for_bias = tl.zeros((BLOCK,), DTYPE)
    for i in range(0, chunks):
        start = (chunks - 1 - i) * chunk
        steps = tl.minimum(chunk, count - start)
        h = tl.load(kept + (before_it + chunks - 1 - i) * size + tile, mask=inside, other=0)
        for j in range(0, steps):
            t = _where(first, count, start + j, REVERSE)
            x_t = _row(x, row, x_seq, t, x_step, c, channels, DTYPE)
            d_t = _step_size(
                _row(dt, row, dt_seq, t, dt_step, c, channels, DTYPE) + shift, SOFTPLUS
            )
            b_t = _row(B, row, B_seq, t, B_step, n, modes, DTYPE)
            c_t = _row(C, row, C_seq, t, C_step, n, modes, DTYPE)
            g = _row(grad_y, row, y_seq, t, y_step, c, channels, DTYPE)
            h = _clear(h, reset, row, reset_seq, t, reset_step)
            tl.store(scratch + (s * chunk + j) * size + tile, h, mask=inside)
            a, w = _discretise(d_t, lam, ZOH)
            h = a * h + w * b_t[None, :] * x_t[:, None]
            if z is not None:
                z_t = _row(z, row, z_seq, t, z_step, c, channels, DTYPE)
                gate = _sigmoid(z_t)
                out = tl.sum(h * c_t[None, :], 1) + skip * x_t
                slope = gate * (1 + z_t * (1 - gate))
                tl.store(grad_z + (row * time + t) * channels + c, g * out * slope, c < channels)
                g = g * z_t * gate
            tl.store(grad_C + (rows + t) * modes + n, tl.sum(g[:, None] * h, 0), mask=n < modes)
            for_D += g * x_t
        tl.debug_barrier()  # what is read back may have been written by another thread
        for j in range(0, steps):
            t = _where(first, count, start + steps - 1 - j, REVERSE)
            x_t = _row(x, row, x_seq, t, x_step, c, channels, DTYPE)
            raw = _row(dt, row, dt_seq, t, dt_step, c, channels, DTYPE) + shift
            d_t = _step_size(raw, SOFTPLUS)
            b_t = _row(B, row, B_seq, t, B_step, n, modes, DTYPE)
            c_t = _row(C, row, C_seq, t, C_step, n, modes, DTYPE)
            g = _row(grad_y, row, y_seq, t, y_step, c, channels, DTYPE)
            if z is not None:
                z_t = _row(z, row, z_seq, t, z_step, c, channels, DTYPE)
                g = g * z_t * _sigmoid(z_t)
            before = tl.load(
                scratch + (s * chunk + steps - 1 - j) * size + tile, mask=inside, other=0
            )
            a, w = _discretise(d_t, lam, ZOH)
            delta = carry + c_t[None, :] * g[:, None]
            through = a * delta * before
            from_b = delta * b_t[None, :]
            weigh = from_b * x_t[:, None]  # gradient of w
            for_x = tl.sum(from_b * w, 1) + skip * g
            for_dt = tl.sum(through * lam, 1)
            for_A += through * d_t[:, None]
            if ZOH:
                for_dt += tl.sum(weigh * a, 1)
                for_A += weigh * _slope(d_t, lam, a, w)
            else:
                for_dt += tl.sum(weigh, 1)
            if SOFTPLUS:
                for_dt = for_dt * _sigmoid(raw)
            for_bias += for_dt
            for_b = tl.sum(delta * w * x_t[:, None], 0)
            tl.store(grad_B + (rows + t) * modes + n, for_b, mask=n < modes)
            tl.store(grad_x + (row * time + t) * channels + c, for_x, mask=c < channels)
            tl.store(grad_dt + (row * time + t) * channels + c, for_dt, mask=c < channels)
            carry = _clear(a * delta, reset, row, reset_seq, t, reset_step)
        tl.debug_barrier()  # before the next chunk overwrites the scratch
    tl.store(grad_initial + s * size + tile, carry, mask=inside)
    tl.store(grad_A + s * size + tile, for_A, mask=inside)
    tl.store(grad_D + s * channels + c, for_D, mask=c < channels)
    tl.store(grad_bias + s * channels + c, for_bias, mask=c < channels)
