"""Triton kernels of the gated recurrence and its adjoint: gates are computed as rows arrive.

They walk as those of `linear_scan` do, which says how: a program owns a chunk of a sequence and a
block of channels, and nothing crosses a thread. Decay and input exist in registers alone, and the
adjoint computes them again.

``KIND`` is 0 for two parts (a, z), 1 for three (a, u, w) whose gates sum to one, 2 for three.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-any-return"
# no_type_check keeps the shape checker from wrapping kernels: Triton compiles what the source says

from typing import no_type_check

import triton
import triton.language as tl

from linrnn.compute.triton_kernel import kernel
from linrnn.ops.linear.linear_scan.triton_walk import flags, last, place, rows


@triton.jit
@no_type_check
def _log_sigmoid(x):
    return tl.minimum(x, 0) - tl.log(1 + tl.exp(-tl.abs(x)))


@triton.jit
@no_type_check
def _gates(first, second, KIND: tl.constexpr):
    """Share of the old state that stays, and share of the value that is added."""
    if KIND == 2:
        keep, take = tl.sigmoid(first), tl.sigmoid(second)
    else:
        logit = first
        if KIND == 1:  # of their ratio, so both may underflow
            logit = _log_sigmoid(second) - _log_sigmoid(first)
        keep, take = tl.sigmoid(-logit), tl.sigmoid(logit)
    return keep, take


@triton.jit
@no_type_check
def _value(a, POSITIVE: tl.constexpr):
    if POSITIVE:
        a = tl.where(a >= 0, a + 0.5, tl.sigmoid(a))
    return a


@kernel
@no_type_check
def run_forward(
    x,
    x_seq,
    x_step,
    x_part,
    reset,
    reset_seq,
    reset_step,
    cu_seqlens,
    entering,
    h,
    final,
    time,
    channels,
    chunks,
    chunk,
    KIND: tl.constexpr,
    POSITIVE: tl.constexpr,
    START: tl.constexpr,
    FLIP: tl.constexpr,
    DTYPE: tl.constexpr,
    BLOCK: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """All states of one chunk from the state that enters it; the last chunk writes the final."""
    s, k, row, t, left, n, c = place(cu_seqlens, time, channels, chunks, chunk, FLIP, BLOCK)
    inside = c < channels
    steps = tl.where(inside, n, 0)  # of each lane: the mask of a row is one comparison
    sign = tl.full((), -1 if FLIP else 1, tl.int64)  # a step of time may be 2**31 apart
    by, h_by = sign * x_step, sign * channels
    state = tl.zeros([BLOCK], DTYPE)
    start = state + START
    if entering is not None:
        start_of = entering + (s * chunks + k) * channels + c
        state = tl.load(start_of, mask=inside, other=0).to(DTYPE)
    x += row * x_seq + t * x_step
    a_next = rows(x, by, c, steps, UNROLL)
    u_next = rows(x + x_part, by, c, steps, UNROLL)
    if KIND > 0:
        w_next = rows(x + 2 * x_part, by, c, steps, UNROLL)
    if reset is not None:
        reset_by = sign * reset_step
        reset += row * reset_seq + t * reset_step
        reset_next = flags(reset, reset_by, n, UNROLL)
    h += (row * time + t) * channels
    for j in range(0, n, UNROLL):
        a_now, u_now = a_next, u_next
        w_now = u_now
        x += UNROLL * by
        a_next = rows(x, by, c, steps - j - UNROLL, UNROLL)
        u_next = rows(x + x_part, by, c, steps - j - UNROLL, UNROLL)
        if KIND > 0:
            w_now = w_next
            w_next = rows(x + 2 * x_part, by, c, steps - j - UNROLL, UNROLL)
        if reset is not None:
            reset_now = reset_next
            reset += UNROLL * reset_by
            reset_next = flags(reset, reset_by, n - j - UNROLL, UNROLL)
        for i in tl.static_range(UNROLL):
            keep, take = _gates(u_now[i].to(DTYPE), w_now[i].to(DTYPE), KIND)
            before = state
            if reset is not None:
                before = tl.where(reset_now[i], start, before)
            after = keep * before + take * _value(a_now[i].to(DTYPE), POSITIVE)
            state = tl.where(i < n - j, after, state)
            tl.store(h + i * h_by + c, state, mask=i < steps - j)
        h += UNROLL * h_by
    tl.store(final + s * channels + c, state, mask=last(left, k, chunk, inside))


@kernel
@no_type_check
def run_backward(
    x,
    x_seq,
    x_step,
    x_part,
    g,
    g_seq,
    g_step,
    h,
    reset,
    reset_seq,
    reset_step,
    cu_seqlens,
    initial,
    entering,
    grad_x,
    grad_initial,
    time,
    channels,
    chunks,
    chunk,
    KIND: tl.constexpr,
    POSITIVE: tl.constexpr,
    START: tl.constexpr,
    FLIP: tl.constexpr,
    DTYPE: tl.constexpr,
    BLOCK: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """The adjoint of one chunk, from its last step to its first, given the cotangent entering."""
    s, k, row, t, left, n, c = place(cu_seqlens, time, channels, chunks, chunk, FLIP, BLOCK)
    PARTS: tl.constexpr = 2 if KIND == 0 else 3
    inside = c < channels
    steps = tl.where(inside, n, 0)  # of each lane: the mask of a row is one comparison
    sign = tl.full((), -1 if FLIP else 1, tl.int64)  # a step of time may be 2**31 apart
    by, g_by, h_by, out_by = sign * x_step, sign * g_step, sign * channels, sign * PARTS * channels
    start = tl.zeros([BLOCK], DTYPE) + START
    start_of = entering + (s * chunks + k) * channels + c
    carried = tl.load(start_of, mask=inside, other=0).to(DTYPE)
    first = tl.zeros([BLOCK], DTYPE)
    if initial is not None:
        first = tl.load(initial + s * channels + c, mask=inside, other=0).to(DTYPE)
    x += row * x_seq + t * x_step
    a_next = rows(x, by, c, steps, UNROLL)
    u_next = rows(x + x_part, by, c, steps, UNROLL)
    if KIND > 0:
        w_next = rows(x + 2 * x_part, by, c, steps, UNROLL)
    g += row * g_seq + t * g_step
    g_next = rows(g, g_by, c, steps, UNROLL)
    # the state a step started from is that of the step the adjoint comes to next
    h += (row * time + t + sign) * channels
    previous = tl.where(inside, tl.minimum(left - 1, n).to(tl.int32), 0)
    h_next = rows(h, h_by, c, previous, UNROLL)
    if reset is not None:
        reset_by = sign * reset_step
        reset += row * reset_seq + t * reset_step
        reset_next = flags(reset, reset_by, n, UNROLL)
    grad_x += (row * time + t) * PARTS * channels
    for j in range(0, n, UNROLL):
        a_now, u_now, g_now, h_now = a_next, u_next, g_next, h_next
        w_now = u_now
        x += UNROLL * by
        a_next = rows(x, by, c, steps - j - UNROLL, UNROLL)
        u_next = rows(x + x_part, by, c, steps - j - UNROLL, UNROLL)
        if KIND > 0:
            w_now = w_next
            w_next = rows(x + 2 * x_part, by, c, steps - j - UNROLL, UNROLL)
        g += UNROLL * g_by
        g_next = rows(g, g_by, c, steps - j - UNROLL, UNROLL)
        h += UNROLL * h_by
        h_next = rows(h, h_by, c, previous - j - UNROLL, UNROLL)
        if reset is not None:
            reset_now = reset_next
            reset += UNROLL * reset_by
            reset_next = flags(reset, reset_by, n - j - UNROLL, UNROLL)
        for i in tl.static_range(UNROLL):
            a, u, w = a_now[i].to(DTYPE), u_now[i].to(DTYPE), w_now[i].to(DTYPE)
            keep, take = _gates(u, w, KIND)
            value = _value(a, POSITIVE)
            delta = g_now[i].to(DTYPE) + carried
            before = tl.where(i < left - 1 - j, h_now[i].to(DTYPE), first)
            passed = keep * delta
            if reset is not None:
                before = tl.where(reset_now[i], start, before)
                passed = tl.where(reset_now[i], 0, passed)
            carried = tl.where(i < n - j, passed, carried)
            exists = i < steps - j
            to_a = delta * take
            if POSITIVE:
                to_a = tl.where(a >= 0, to_a, to_a * value * (1 - value))
            out = grad_x + i * out_by + c
            tl.store(out, to_a, mask=exists)
            if KIND == 2:
                tl.store(out + channels, delta * before * keep * (1 - keep), mask=exists)
                tl.store(out + 2 * channels, delta * value * take * (1 - take), mask=exists)
            else:
                to_logit = delta * (value - before) * keep * take
                if KIND == 0:
                    tl.store(out + channels, to_logit, mask=exists)
                else:
                    tl.store(out + channels, -to_logit * tl.sigmoid(-u), mask=exists)
                    tl.store(out + 2 * channels, to_logit * tl.sigmoid(-w), mask=exists)
        grad_x += UNROLL * out_by
    tl.store(grad_initial + s * channels + c, carried, mask=last(left, k, chunk, inside))


@kernel
@no_type_check
def summarise(
    x,
    x_seq,
    x_step,
    x_part,
    g,
    g_seq,
    g_step,
    reset,
    reset_seq,
    reset_step,
    cu_seqlens,
    product,
    state,
    cut,
    time,
    channels,
    chunks,
    chunk,
    ADJOINT: tl.constexpr,
    KIND: tl.constexpr,
    POSITIVE: tl.constexpr,
    START: tl.constexpr,
    FLIP: tl.constexpr,
    DTYPE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """The map of a state, or of its cotangent, by a chunk, as in `linear_scan`."""
    s, k, row, t, _, n, c = place(cu_seqlens, time, channels, chunks, chunk, FLIP, BLOCK)
    inside = c < channels
    steps = tl.where(inside, n, 0)  # of each lane: the mask of a row is one comparison
    sign = tl.full((), -1 if FLIP else 1, tl.int64)  # a step of time may be 2**31 apart
    by, g_by, reset_by = sign * x_step, sign * g_step, sign * reset_step
    value = tl.zeros([BLOCK], DTYPE)
    start = value + START
    factor = tl.zeros([BLOCK], WIDE) + 1
    was_cut = n < 0
    x += row * x_seq + t * x_step
    if ADJOINT:
        g += row * g_seq + t * g_step
    if reset is not None:
        reset += row * reset_seq + t * reset_step
    for j in range(0, n, UNROLL):
        u_now = rows(x + x_part, by, c, steps - j, UNROLL)
        w_now = u_now
        if KIND > 0:
            w_now = rows(x + 2 * x_part, by, c, steps - j, UNROLL)
        if ADJOINT:
            a_now = rows(g, g_by, c, steps - j, UNROLL)
            g += UNROLL * g_by
        else:
            a_now = rows(x, by, c, steps - j, UNROLL)
        x += UNROLL * by
        if reset is not None:
            reset_now = flags(reset, reset_by, n - j, UNROLL)
            reset += UNROLL * reset_by
        for i in tl.static_range(UNROLL):
            exists = i < n - j
            keep, take = _gates(u_now[i].to(DTYPE), w_now[i].to(DTYPE), KIND)
            if ADJOINT:
                y = keep * (value + a_now[i].to(DTYPE))
                if reset is not None:
                    y = tl.where(reset_now[i], 0, y)
            else:
                before = value
                if reset is not None:
                    before = tl.where(reset_now[i], start, before)
                y = keep * before + take * _value(a_now[i].to(DTYPE), POSITIVE)
            if reset is not None:
                was_cut = was_cut | reset_now[i]
            value = tl.where(exists, y, value)
            factor = tl.where(exists, keep.to(WIDE) * factor, factor)
    summary = (s * chunks + k) * channels + c
    tl.store(product + summary, factor, mask=inside)
    tl.store(state + summary, value, mask=inside)
    if reset is not None:
        tl.store(cut + s * chunks + k, was_cut.to(tl.int8))  # the same from every block of channels
