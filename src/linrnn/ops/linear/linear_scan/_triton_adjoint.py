"""The Triton kernels of the adjoint; ``_triton_kernels.py`` says how it goes along time."""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-any-return"
# ruff: noqa: RUF005  # Triton knows no unpacking into a tuple
# no_type_check keeps the shape checker from wrapping kernels: Triton compiles what the source says

from typing import no_type_check

import triton
import triton.language as tl

from linrnn.compute.triton_kernel import kernel
from linrnn.ops.linear.linear_scan._triton_gates import gated, put_gated
from linrnn.ops.linear.linear_scan.triton_tile import ends_in, entered, of_all_warps, stretched
from linrnn.ops.linear.linear_scan.triton_walk import (
    choose,
    flags,
    multiply,
    parts,
    put,
    rows,
    share,
    span,
    state_or,
    turn,
)


@triton.jit
@no_type_check
def _tile_rows(
    g, g_by, g_at, h, h_by, h_at, b, b_by, b_at, a, a_by, a_at, part, steps, previous,
    GATES: tl.constexpr, LOG: tl.constexpr, CONSTANT: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """Start loading a tile; what a kind of scan does not read is an empty tuple.

    In this order: cotangents, states before, inputs, decays, further gates, and the state after the
    first step.
    """
    b_rows, a_rows, w_rows, after = (), (), (), ()
    g_rows = rows(g, g_by, g_at, steps, STEPS)
    h_rows = rows(h, h_by, h_at, previous, STEPS)
    if (GATES > 0) or LOG:
        b_rows = rows(b, b_by, b_at, steps, STEPS)
    if LOG:
        after = rows(h - h_by, h_by, h_at, steps, 1)
    if not CONSTANT:
        a_rows = rows(a, a_by, a_at, steps, STEPS)
    if GATES > 1:
        w_rows = rows(a + part, a_by, a_at, steps, STEPS)
    return g_rows, h_rows, b_rows, a_rows, w_rows, after


@triton.jit
@no_type_check
def _log_shares(
    log_a, a_rows, b_rows, h_rows, after_first, first, start, resets, goes_on,
    CONSTANT: tl.constexpr, CUTS: tl.constexpr, DTYPE: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """The shares of the decayed state and of the input in the state after each step.

    Of numbers that are given as logarithms these are the decay of a cotangent and its weight.
    """
    decays, weights = (), ()
    for i in tl.static_range(STEPS):
        if not CONSTANT:
            log_a = a_rows[i].to(DTYPE)
        before = tl.where(i < goes_on, h_rows[i].to(DTYPE), first)
        if CUTS:
            before = tl.where(resets[i], start, before)
        after = (after_first[0] if i == 0 else h_rows[i - 1]).to(DTYPE)
        decays = decays + (share(log_a + before, after),)
        weights = weights + (share(b_rows[i].to(DTYPE), after),)
    return decays, weights


@triton.jit
@no_type_check
def _stretch_map(
    p_re, p_im, a_re, a_im, a_rows, b_rows, w_rows, g_rows, resets, zero,
    FIXED: tl.constexpr, GATES: tl.constexpr, POSITIVE: tl.constexpr, CUTS: tl.constexpr,
    PAIR: tl.constexpr, DTYPE: tl.constexpr, PRODUCT: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """The map of the cotangent that enters a stretch: ``p * x + q``, or q behind a cut.

    The product of decays is in ``PRODUCT``, since roundings of many tiles would add up. With one
    decay for all steps it is given, and so is that decay.
    """
    q_re, q_im, cut = zero, zero, tl.zeros(zero.shape, tl.int32)
    for i in tl.static_range(STEPS):
        if not FIXED:
            a_re, a_im = parts(a_rows[i], PAIR, DTYPE)
            if GATES > 0:
                w = a_re
                if GATES > 1:
                    w = w_rows[i].to(DTYPE)
                a_re, w = gated(b_rows[i].to(DTYPE), a_re, w, GATES, POSITIVE)
            f_re, f_im = a_re.to(PRODUCT), (-a_im).to(PRODUCT)
            if i == 0:
                p_re, p_im = f_re, f_im
            else:
                p_re, p_im = multiply(f_re, f_im, p_re, p_im, PAIR)
        d_re, d_im = parts(g_rows[i], PAIR, DTYPE)
        if i > 0:
            d_re += q_re
            if PAIR:
                d_im += q_im
        q_re, q_im = multiply(a_re, -a_im, d_re, d_im, PAIR)
        if CUTS:
            q_re, q_im = choose(resets[i], zero, zero, q_re, q_im, PAIR)
            cut = tl.where(resets[i], 1, cut)
    return p_re.to(DTYPE), p_im.to(DTYPE), q_re, q_im, cut


@triton.jit
@no_type_check
def _put_gradients(
    grad_a, grad_b, out, channels, writes, i, d_re, d_im, h_re, h_im, a_re, b_rows, w_rows, resets,
    start, zero,
    GATES: tl.constexpr, LOG: tl.constexpr, POSITIVE: tl.constexpr, CONSTANT: tl.constexpr,
    CUTS: tl.constexpr, PAIR: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Store the gradients of step ``i`` of a tile, of whose state the cotangent is ``d``.

    Returns the step's decay, which gates may make, and the gradient of the decay without gates.
    """
    to_a_re, to_a_im = zero, zero
    if GATES > 0:
        if CUTS:
            h_re = tl.where(resets[i], start, h_re)
        w = a_re
        if GATES > 1:
            w = w_rows[i].to(DTYPE)
        b = b_rows[i].to(DTYPE)
        a_re = put_gated(grad_b + out, channels, d_re, h_re, b, a_re, w, writes, GATES, POSITIVE)
    else:
        if LOG:
            put(grad_b + out, d_re * b_rows[i], d_im, writes, PAIR)
            h_re = a_re
        else:
            put(grad_b + out, d_re, d_im, writes, PAIR)
        to_a_re, to_a_im = multiply(h_re, -h_im, d_re, d_im, PAIR)
        if CUTS:
            to_a_re, to_a_im = choose(resets[i], zero, zero, to_a_re, to_a_im, PAIR)
        if not CONSTANT:
            put(grad_a + out, to_a_re, to_a_im, writes, PAIR)
    return a_re, to_a_re, to_a_im


@kernel
@no_type_check
def run_backward(
    a,
    a_seq,
    a_step,
    b,
    b_seq,
    b_step,
    part,
    g,
    g_seq,
    g_step,
    h,
    h_seq,
    h_step,
    reset,
    reset_seq,
    reset_step,
    cu_seqlens,
    initial,
    entering,
    grad_a,
    grad_b,
    grad_initial,
    handed,
    maps,
    time,
    channels,
    lanes,
    chunks,
    GATES: tl.constexpr,
    LOG: tl.constexpr,
    POSITIVE: tl.constexpr,
    START: tl.constexpr,
    CONSTANT: tl.constexpr,
    FLIP: tl.constexpr,
    PAIR: tl.constexpr,
    DTYPE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    WARPS: tl.constexpr,
    STEPS: tl.constexpr,
    AHEAD: tl.constexpr,
    CHAINED: tl.constexpr,
    GROUP: tl.constexpr,
):
    """The adjoint, from the last step to the first, given the cotangent of the final state.

    What goes from step to step is a decay times the cotangent of a state. ``grad_a`` is a row for
    each step, or, when ``a`` is constant, a sum for each program in double precision, to which
    every tile adds what it summed in working precision. With gates ``grad_b`` is that of all parts.
    """
    FIXED: tl.constexpr = CONSTANT and not LOG  # whether all steps have one decay
    TILE: tl.constexpr = WARPS * STEPS
    CUTS: tl.constexpr = reset is not None
    lane, k, chunk = turn(handed, time, lanes, chunks, TILE, CHAINED)
    blocks = tl.cdiv(channels, BLOCK)
    s = (lane // blocks).to(tl.int64)
    row, t, left, n = span(cu_seqlens, s, s * 0 + k, time, chunk, FLIP)
    width: tl.constexpr = 2 if PAIR else 1
    PARTS: tl.constexpr = 1 if GATES == 0 else 2 if GATES == 1 else 3
    warp = tl.arange(0, WARPS)[:, None]
    places = warp * 0 + tl.arange(0, BLOCK * width)[None, :]  # whole tiles, so all lie alike
    at = (lane % blocks) * (BLOCK * width) + places
    inside = at < channels * width
    steps = tl.where(inside, n - warp * STEPS, 0)  # of each place: a row's mask is one comparison
    sign = tl.full((), -1 if FLIP else 1, tl.int64)  # a step of time may be 2**31 apart
    g_by = sign * width * g_step
    h_by = sign * width * h_step
    zero = tl.zeros([WARPS, BLOCK], DTYPE)
    start = zero + START
    state = s * channels * width + at
    x_re, x_im = state_or(zero, zero, entering, state, inside, PAIR, DTYPE)
    end_re, end_im = x_re, x_im
    first_re, first_im = state_or(start, zero, initial, state, inside, PAIR, DTYPE)
    a_re, a_im, p_re, p_im = zero, zero, zero, zero
    a_from, a_by, b_from, b_by, b_at = a, sign, a, sign, at  # what is not read lies with ``a``
    if CONSTANT:
        a_re, a_im = parts(tl.load(a + at, mask=inside, other=0), PAIR, DTYPE)
        if FIXED:
            p_re, p_im = stretched(a_re, -a_im, STEPS, PAIR, DTYPE, WIDE)
    elif GATES == 0:
        a_from, a_by = a + (row * a_seq + t * a_step) * width, sign * width * a_step
    if (GATES > 0) or LOG:
        b_by = sign * b_step
        b_from = b + (row * b_seq + t * b_step)
        b_at = warp * (STEPS * b_by) + at
    if GATES > 0:
        a_from, a_by = b_from + part, b_by
    a_at = warp * (STEPS * a_by) + at
    g += (row * g_seq + t * g_step) * width
    g_at = warp * (STEPS * g_by) + at
    # the state a step started from is that of the step the adjoint comes to next
    h += (row * h_seq + (t + sign) * h_step) * width
    h_at = warp * (STEPS * h_by) + at
    previous = tl.minimum(left - 1, n).to(tl.int32) - warp * STEPS
    previous = tl.where(inside, previous, 0)
    if CUTS:
        reset_by = sign * reset_step
        reset += row * reset_seq + t * reset_step + warp * (STEPS * reset_by)
    if AHEAD:
        following = _tile_rows(
            g, g_by, g_at, h, h_by, h_at, b_from, b_by, b_at, a_from, a_by, a_at, part, steps,
            previous, GATES, LOG, CONSTANT, STEPS,
        )  # fmt: skip
    dense = (row * time + t) * PARTS * channels * width
    out_by = sign * PARTS * channels * width
    out_at = warp * (STEPS * out_by) + at
    grad_b += dense
    if grad_a is not None and not CONSTANT:
        grad_a += dense
    total_re, total_im = tl.zeros([WARPS, BLOCK], WIDE), tl.zeros([WARPS, BLOCK], WIDE)
    for j in range(0, n, TILE):
        if AHEAD:
            present = following
            following = _tile_rows(
                g + TILE * g_by, g_by, g_at, h + TILE * h_by, h_by, h_at, b_from + TILE * b_by,
                b_by, b_at, a_from + TILE * a_by, a_by, a_at, part, steps - j - TILE,
                previous - j - TILE, GATES, LOG, CONSTANT, STEPS,
            )  # fmt: skip
        else:
            present = _tile_rows(
                g, g_by, g_at, h, h_by, h_at, b_from, b_by, b_at, a_from, a_by, a_at, part,
                steps - j, previous - j, GATES, LOG, CONSTANT, STEPS,
            )  # fmt: skip
        g_now, h_now, b_now, a_now, w_now, last_now = present
        g += TILE * g_by
        h += TILE * h_by
        if (GATES > 0) or LOG:
            b_from += TILE * b_by
        if not CONSTANT:
            a_from += TILE * a_by
        goes_on = left - 1 - j - warp * STEPS  # the steps from here on that have one before
        reset_now = ()
        if CUTS:
            reset_now = flags(reset, reset_by, n - j - warp * STEPS, STEPS)
            reset += TILE * reset_by
        if LOG:  # once for both runs of a stretch
            a_now, b_now = _log_shares(
                a_re, a_now, b_now, h_now, last_now, first_re, start, reset_now, goes_on,
                CONSTANT, CUTS, DTYPE, STEPS,
            )  # fmt: skip
        y_re, y_im = x_re, x_im
        if (WARPS > 1) or CHAINED:
            r_re, r_im, q_re, q_im, cut = _stretch_map(
                p_re, p_im, a_re, a_im, a_now, b_now, w_now, g_now, reset_now, zero,
                FIXED, GATES, POSITIVE, CUTS, PAIR, DTYPE, WIDE, STEPS,
            )  # fmt: skip
            y_re, y_im, x_re, x_im = entered(
                r_re, r_im, q_re, q_im, cut, x_re, x_im, handed, maps, lane, lanes, k, chunks,
                places, CHAINED, CUTS, PAIR, DTYPE, GROUP,
            )  # fmt: skip
        sum_re, sum_im = zero, zero
        for i in tl.static_range(STEPS):
            decay_re, decay_im = a_re, a_im
            if not FIXED:
                decay_re, decay_im = parts(a_now[i], PAIR, DTYPE)
            d_re, d_im = parts(g_now[i], PAIR, DTYPE)
            d_re += y_re
            if PAIR:
                d_im += y_im
            h_re, h_im = parts(h_now[i], PAIR, DTYPE)
            h_re, h_im = choose(i < goes_on, h_re, h_im, first_re, first_im, PAIR)
            decay_re, to_a_re, to_a_im = _put_gradients(
                grad_a, grad_b, i * out_by + out_at, channels, i < steps - j, i, d_re, d_im, h_re,
                h_im, decay_re, b_now, w_now, reset_now, start, zero,
                GATES, LOG, POSITIVE, CONSTANT, CUTS, PAIR, DTYPE,
            )  # fmt: skip
            if CONSTANT:
                exists = i < n - j - warp * STEPS
                to_a_re, to_a_im = choose(exists, to_a_re, to_a_im, zero, zero, PAIR)
                sum_re += to_a_re
                if PAIR:
                    sum_im += to_a_im
            y_re, y_im = multiply(decay_re, -decay_im, d_re, d_im, PAIR)
            if CUTS:
                y_re, y_im = choose(reset_now[i], zero, zero, y_re, y_im, PAIR)
            is_last = i == n - 1 - j - warp * STEPS
            end_re, end_im = choose(is_last, y_re, y_im, end_re, end_im, PAIR)
        if CONSTANT:
            total_re += sum_re.to(WIDE)
            if PAIR:
                total_im += sum_im.to(WIDE)
        elif GATES == 0:
            grad_a += TILE * out_by
        grad_b += TILE * out_by
        if (WARPS == 1) and not CHAINED:
            x_re, x_im = y_re, y_im
    ends = inside & ends_in(left, k, chunk, n, warp, STEPS)
    put(grad_initial + state, end_re, end_im, ends, PAIR)
    if CONSTANT:
        sums = grad_a + (s * chunks + k) * channels * width + at
        total_re, total_im = of_all_warps(total_re, total_im, PAIR)
        put(sums, total_re, total_im, inside & (warp == 0), PAIR)


@kernel
@no_type_check
def add_rows(
    values, total, batch, columns, DTYPE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """The sum of ``batch`` rows, in their own precision and a fixed order."""
    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    r = tl.arange(0, ROWS)
    by = tl.full((), columns, tl.int64)
    p = values + r[:, None] * by + c[None, :]
    x = tl.zeros([ROWS, BLOCK], values.dtype.element_ty)
    for j in range(0, batch, ROWS):
        x += tl.load(p, mask=(r < batch - j)[:, None] & (c < columns)[None, :], other=0)
        p += ROWS * by
    tl.store(total + c, tl.sum(x, 0).to(DTYPE), mask=c < columns)
