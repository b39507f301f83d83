"""Triton kernels of the short causal convolution and its adjoint.

A program owns a stretch of one sequence and a block of channels and walks along time, with the last
rows in registers: every input is read once and every output written once. Nothing crosses a thread,
so sums have one order in every run. Rows of the next steps are under way while those of the present
ones are used, as in the scans.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-any-return"
# ruff: noqa: RUF005  # Triton knows no unpacking into a tuple
# no_type_check keeps the shape checker from wrapping kernels: Triton compiles what the source says

from typing import no_type_check

import triton
import triton.language as tl

from linrnn.compute.triton_kernel import kernel
from linrnn.ops.linear.linear_scan.triton_walk import flags, place, rows


@triton.jit
@no_type_check
def _taps(weight, c, inside, WIDTH: tl.constexpr, DTYPE: tl.constexpr):
    """The weights of each channel, that of the newest input first."""
    taps = ()
    for j in tl.static_range(WIDTH):
        tap = tl.load(weight + c * WIDTH + (WIDTH - 1 - j), mask=inside, other=0)
        taps = taps + (tap.to(DTYPE),)
    return taps


@triton.jit
@no_type_check
def _cleared(past, flag, zero, WIDTH: tl.constexpr):
    """No sum reaches over a reset: a selection, which stops NaN as well."""
    lines = ()
    for j in tl.static_range(WIDTH - 1):
        lines = lines + (tl.where(flag, zero, past[j]),)
    return lines


@triton.jit
@no_type_check
def _pushed(past, now, WIDTH: tl.constexpr):
    """The newest inputs, oldest first, one step later."""
    lines = ()
    for j in tl.static_range(WIDTH - 2):
        lines = lines + (past[j + 1],)
    return lines + (now,)


@triton.jit
@no_type_check
def _cut(linked, flag, WIDTH: tl.constexpr):
    """The same for flags: none but False where there is a reset."""
    uncut = ()
    for j in tl.static_range(WIDTH - 1):
        uncut = uncut + (linked[j] & (flag == 0),)
    return uncut


@triton.jit
@no_type_check
def _weighed(now, past, taps, bias, WIDTH: tl.constexpr):
    """The output of a step before its SiLU."""
    v = bias + taps[0] * now
    for j in tl.static_range(1, WIDTH):
        v += taps[j] * past[WIDTH - 1 - j]
    return v


@triton.jit
@no_type_check
def _entering(x, by, past, reset, reset_by, s, k, n, c, channels, inside,
              WIDTH: tl.constexpr, DTYPE: tl.constexpr):  # fmt: skip
    """The inputs before a stretch: of the sequence itself, or, before its first, what came."""
    zero = tl.zeros_like(c).to(DTYPE)
    lines = ()
    for _ in tl.static_range(WIDTH - 1):
        lines = lines + (zero,)
    earlier = (k > 0) & (n > 0)
    for j in tl.static_range(WIDTH - 1):
        new = tl.load(x - (WIDTH - 1 - j) * by + c, mask=inside & earlier, other=0).to(DTYPE)
        row = (s * (WIDTH - 1) + j) * channels
        old = tl.load(past + row + c, mask=inside & (k == 0), other=0).to(DTYPE)
        if reset is not None:
            flag = tl.load(reset - (WIDTH - 1 - j) * reset_by, mask=earlier, other=0) != 0
            lines = _cleared(lines, flag, zero, WIDTH)
        lines = _pushed(lines, tl.where(k > 0, new, old), WIDTH)
    return lines


@kernel
@no_type_check
def run_forward(
    x,
    x_seq,
    x_step,
    past,
    weight,
    bias,
    reset,
    reset_seq,
    reset_step,
    cu_seqlens,
    y,
    time,
    channels,
    chunks,
    chunk,
    WIDTH: tl.constexpr,
    SILU: tl.constexpr,
    FLIP: tl.constexpr,
    DTYPE: tl.constexpr,
    BLOCK: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """The outputs of one stretch."""
    s, k, row, t, _, n, c = place(cu_seqlens, time, channels, chunks, chunk, FLIP, BLOCK)
    inside = c < channels
    steps = tl.where(inside, n, 0)  # of each lane: the mask of a row is one comparison
    sign = tl.full((), -1 if FLIP else 1, tl.int64)  # a step of time may be 2**31 apart
    x_by, y_by, reset_by = sign * x_step, sign * channels, sign * reset_step
    taps = _taps(weight, c, inside, WIDTH, DTYPE)
    zero = tl.zeros([BLOCK], DTYPE)
    start = zero
    if bias is not None:
        start = tl.load(bias + c, mask=inside, other=0).to(DTYPE)
    x += row * x_seq + t * x_step
    x_next = rows(x, x_by, c, steps, UNROLL)
    if reset is not None:
        reset += row * reset_seq + t * reset_step
        reset_next = flags(reset, reset_by, n, UNROLL)
    window = _entering(x, x_by, past, reset, reset_by, s, k, n, c, channels, inside, WIDTH, DTYPE)
    y += (row * time + t) * channels
    for j in range(0, n, UNROLL):
        x_now = x_next
        x += UNROLL * x_by
        x_next = rows(x, x_by, c, steps - j - UNROLL, UNROLL)
        if reset is not None:
            reset_now = reset_next
            reset += UNROLL * reset_by
            reset_next = flags(reset, reset_by, n - j - UNROLL, UNROLL)
        for i in tl.static_range(UNROLL):
            if reset is not None:
                window = _cleared(window, reset_now[i], zero, WIDTH)
            now = x_now[i].to(DTYPE)
            v = _weighed(now, window, taps, start, WIDTH)
            if SILU:
                v = v * tl.sigmoid(v)
            tl.store(y + i * y_by + c, v, mask=i < steps - j)
            window = _pushed(window, now, WIDTH)
        y += UNROLL * y_by


@kernel
@no_type_check
def run_backward(
    x,
    x_seq,
    x_step,
    past,
    weight,
    bias,
    reset,
    reset_seq,
    reset_step,
    cu_seqlens,
    g,
    g_seq,
    g_step,
    grad_x,
    grad_past,
    sums,
    time,
    channels,
    chunks,
    chunk,
    WIDTH: tl.constexpr,
    SILU: tl.constexpr,
    FLIP: tl.constexpr,
    DTYPE: tl.constexpr,
    BLOCK: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """Gradients of the inputs of one stretch, and its sums for weights and bias.

    An input waits for ``WIDTH - 1`` steps until it has all of its gradient, so the walk goes on so
    far into the next stretch, whose outputs it computes as well. Before the first stretch lies what
    came before the sequence.
    """
    s, k, row, t, left, n, c = place(cu_seqlens, time, channels, chunks, chunk, FLIP, BLOCK)
    LATE: tl.constexpr = WIDTH - 1
    inside = c < channels
    walked = tl.where((n > 0) | (k == 0), n + LATE, 0)
    read = tl.maximum(tl.minimum(left, walked), 0).to(tl.int32)  # of these there are steps
    steps, owned = tl.where(inside, read, 0), tl.where(inside, n, 0)
    sign = tl.full((), -1 if FLIP else 1, tl.int64)
    x_by, g_by, out_by = sign * x_step, sign * g_step, sign * channels
    reset_by = sign * reset_step
    taps = _taps(weight, c, inside, WIDTH, DTYPE)
    zero = tl.zeros([BLOCK], DTYPE)
    start = zero
    if bias is not None:
        start = tl.load(bias + c, mask=inside, other=0).to(DTYPE)
    x += row * x_seq + t * x_step
    x_next = rows(x, x_by, c, steps, UNROLL)
    g += row * g_seq + t * g_step
    g_next = rows(g, g_by, c, steps, UNROLL)
    if reset is not None:
        reset += row * reset_seq + t * reset_step
        reset_next = flags(reset, reset_by, read, UNROLL)
    window = _entering(x, x_by, past, reset, reset_by, s, k, n, c, channels, inside, WIDTH, DTYPE)
    grad_x += (row * time + t) * channels
    waiting = ()  # gradients of the last inputs, the oldest first
    totals = (zero, zero)  # of the bias, then of every tap, that of the newest input first
    for _ in tl.static_range(LATE):
        waiting = waiting + (zero,)
    for _ in tl.static_range(WIDTH - 1):
        totals = totals + (zero,)
    if reset is not None:
        linked = ()  # whether no reset lies between each of these inputs and the present step
        for _ in tl.static_range(LATE):
            linked = linked + (n >= 0,)
    for j in range(0, walked, UNROLL):
        x_now, g_now = x_next, g_next
        x += UNROLL * x_by
        g += UNROLL * g_by
        x_next = rows(x, x_by, c, steps - j - UNROLL, UNROLL)
        g_next = rows(g, g_by, c, steps - j - UNROLL, UNROLL)
        if reset is not None:
            reset_now = reset_next
            reset += UNROLL * reset_by
            reset_next = flags(reset, reset_by, read - j - UNROLL, UNROLL)
        for i in tl.static_range(UNROLL):
            now = x_now[i].to(DTYPE)
            if reset is not None:
                window = _cleared(window, reset_now[i], zero, WIDTH)
                linked = _cut(linked, reset_now[i], WIDTH)
            delta = g_now[i].to(DTYPE)
            if SILU:
                v = _weighed(now, window, taps, start, WIDTH)
                share = tl.sigmoid(v)
                delta = delta * (share * (1 + v * (1 - share)))
            delta = tl.where(i < read - j, delta, zero)
            of_sums = tl.where(i < n - j, delta, zero)
            added = (totals[0] + of_sums, totals[1] + of_sums * now)
            for m in tl.static_range(1, WIDTH):
                added = added + (totals[m + 1] + of_sums * window[LATE - m],)
            totals = added
            arrived = ()
            for m in tl.static_range(LATE):
                part = taps[LATE - m] * delta
                if reset is not None:
                    part = tl.where(linked[m], part, zero)
                arrived = arrived + (waiting[m] + part,)
            done = j + i - LATE  # the step whose input has all of its gradient now
            p = grad_x + (i - LATE) * out_by + c
            tl.store(p, arrived[0], mask=(done < owned) & (done >= 0))
            first = (k == 0) & (done < 0) & inside
            tl.store(grad_past + (s * LATE + j + i) * channels + c, arrived[0], mask=first)
            if reset is not None:
                linked = _pushed(linked, n >= 0, WIDTH)
            waiting = _pushed(arrived, taps[0] * delta, WIDTH)
            window = _pushed(window, now, WIDTH)
        grad_x += UNROLL * out_by
    sums += (s * chunks + k) * (WIDTH + 1) * channels
    for j in tl.static_range(WIDTH + 1):
        tl.store(sums + j * channels + c, totals[j], mask=inside)


@kernel
@no_type_check
def run_sums(
    sums,
    grad_weight,
    grad_bias,
    batch,
    channels,
    WIDTH: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row of sums for each of ``batch`` stretches, added in double precision and one order."""
    blocks = tl.cdiv(channels, BLOCK)
    c = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    which = tl.program_id(0) // blocks  # the bias, then every tap, that of the newest input first
    inside = c < channels
    r = tl.arange(0, ROWS)
    total = tl.zeros([ROWS, BLOCK], WIDE)
    by = tl.full((), WIDTH + 1, tl.int64) * channels
    sums += which * channels + c[None, :] + r[:, None] * by
    for j in range(0, batch, ROWS):
        total += tl.load(sums, mask=(r < batch - j)[:, None] & inside[None, :], other=0).to(WIDE)
        sums += ROWS * by
    result = tl.sum(total, 0)
    tl.store(grad_bias + c, result, mask=inside & (which == 0))
    tl.store(grad_weight + c * WIDTH + (WIDTH - which), result, mask=inside & (which > 0))
