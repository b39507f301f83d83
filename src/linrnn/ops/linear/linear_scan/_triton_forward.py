"""The Triton kernel of all states; ``_triton_kernels.py`` says how it goes along time."""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-any-return"
# ruff: noqa: RUF005  # Triton knows no unpacking into a tuple
# no_type_check keeps the shape checker from wrapping kernels: Triton compiles what the source says

from typing import no_type_check

import triton.language as tl

from linrnn.compute.triton_kernel import kernel
from linrnn.ops.linear.linear_scan._triton_gates import gated
from linrnn.ops.linear.linear_scan.triton_tile import ends_in, entered, stretched
from linrnn.ops.linear.linear_scan.triton_walk import (
    add,
    choose,
    flags,
    multiply,
    parts,
    put,
    rows,
    span,
)


@kernel
@no_type_check
def run_forward(
    a,
    a_seq,
    a_step,
    b,
    b_seq,
    b_step,
    part,
    reset,
    reset_seq,
    reset_step,
    cu_seqlens,
    initial,
    h,
    final,
    handed,
    maps,
    time,
    channels,
    lanes,
    chunks,
    GATES: tl.constexpr,
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
    """All states of one sequence and block of channels, and the final; chained, of one tile.

    A state that is not given is ``START``, and so is one after a reset.
    """
    TILE: tl.constexpr = WARPS * STEPS
    CUTS: tl.constexpr = reset is not None
    PRODUCT: tl.constexpr = WIDE  # roundings of many tiles would add up
    lane, k, chunk = tl.program_id(0), 0, time
    if CHAINED:  # tickets go along time, so whoever is waited for runs already
        ticket = tl.atomic_add(handed + 2 * lanes.to(tl.int64) * chunks, 1, sem="relaxed")
        lane, k, chunk = ticket % lanes, ticket // lanes, TILE
    blocks = tl.cdiv(channels, BLOCK)
    s = (lane // blocks).to(tl.int64)
    row, t, left, n = span(cu_seqlens, s, s * 0 + k, time, chunk, FLIP)
    width: tl.constexpr = 2 if PAIR == 1 else 1
    warp = tl.arange(0, WARPS)[:, None]
    own = warp * 0 + tl.arange(0, BLOCK * width)[None, :]  # whole tiles, so that all lie alike
    places = own
    if PAIR == 2:
        places = warp * 0 + tl.arange(0, BLOCK * 2)[None, :]
    at = (lane % blocks) * (BLOCK * width) + own
    inside = at < channels * width
    steps = tl.where(inside, n - warp * STEPS, 0)  # of each place: a row's mask is one comparison
    sign = tl.full((), -1 if FLIP else 1, tl.int64)  # a step of time may be 2**31 apart
    b_by = sign * width * b_step
    h_by = sign * width * channels
    zero = tl.zeros([WARPS, BLOCK], DTYPE)
    start = zero + START
    nothing = zero
    if PAIR == 2:
        nothing = start
    x_re, x_im = start, zero
    if initial is not None:
        p = initial + s * channels * width + at
        x_re, x_im = parts(tl.load(p, mask=inside, other=0), PAIR, DTYPE)
    end_re, end_im = x_re, x_im
    b += (row * b_seq + t * b_step) * width
    b_at = warp * (STEPS * b_by) + at
    if CONSTANT:
        a_re, a_im = parts(tl.load(a + at, mask=inside, other=0), PAIR, DTYPE)
        p_re, p_im = stretched(a_re, a_im, STEPS, PAIR, DTYPE, WIDE)
    elif GATES > 0:
        a_from, a_by = b + part, b_by
    else:
        a_from, a_by = a + (row * a_seq + t * a_step) * width, sign * width * a_step
    if not CONSTANT:
        a_at = warp * (STEPS * a_by) + at
    if reset is not None:
        reset_by = sign * reset_step
        reset += row * reset_seq + t * reset_step + warp * (STEPS * reset_by)
    if AHEAD:
        b_next = rows(b, b_by, b_at, steps, STEPS)
        if not CONSTANT:
            a_next = rows(a_from, a_by, a_at, steps, STEPS)
        if GATES > 1:
            w_next = rows(a_from + part, a_by, a_at, steps, STEPS)
    h += (row * time + t) * channels * width
    h_at = warp * (STEPS * h_by) + at
    for j in range(0, n, TILE):
        if AHEAD:
            b_now = b_next
            b_next = rows(b + TILE * b_by, b_by, b_at, steps - j - TILE, STEPS)
            if not CONSTANT:
                a_now = a_next
                a_next = rows(a_from + TILE * a_by, a_by, a_at, steps - j - TILE, STEPS)
            if GATES > 1:
                w_now = w_next
                w_next = rows(a_from + TILE * a_by + part, a_by, a_at, steps - j - TILE, STEPS)
        else:
            b_now = rows(b, b_by, b_at, steps - j, STEPS)
            if not CONSTANT:
                a_now = rows(a_from, a_by, a_at, steps - j, STEPS)
            if GATES > 1:
                w_now = rows(a_from + part, a_by, a_at, steps - j, STEPS)
        b += TILE * b_by
        if not CONSTANT:
            a_from += TILE * a_by
        if reset is not None:
            reset_now = flags(reset, reset_by, n - j - warp * STEPS, STEPS)
            reset += TILE * reset_by
        if GATES > 0:  # once for both runs of a stretch
            decays, inputs = (), ()
            for i in tl.static_range(STEPS):
                f, u = b_now[i].to(DTYPE), a_now[i].to(DTYPE)
                w = u
                if GATES > 1:
                    w = w_now[i].to(DTYPE)
                u, f = gated(f, u, w, GATES, POSITIVE)
                decays, inputs = decays + (u,), inputs + (f,)
            a_now, b_now = decays, inputs
        y_re, y_im = x_re, x_im
        if (WARPS > 1) or CHAINED:
            q_re, q_im, cut = nothing, zero, tl.zeros([WARPS, BLOCK], tl.int32)
            for i in tl.static_range(STEPS):
                if not CONSTANT:
                    a_re, a_im = parts(a_now[i], PAIR, DTYPE)
                    f_re, f_im = a_re.to(PRODUCT), a_im.to(PRODUCT)
                    if i == 0:
                        p_re, p_im = f_re, f_im
                    else:
                        p_re, p_im = multiply(f_re, f_im, p_re, p_im, PAIR)
                b_re, b_im = parts(b_now[i], PAIR, DTYPE)
                if reset is not None:
                    q_re, q_im = choose(reset_now[i], start, zero, q_re, q_im, PAIR)
                    cut = tl.where(reset_now[i], 1, cut)
                if (i > 0) or (reset is not None):
                    q_re, q_im = multiply(a_re, a_im, q_re, q_im, PAIR)
                    b_re, b_im = add(b_re, b_im, q_re, q_im, PAIR)
                q_re, q_im = b_re, b_im
            p_re, p_im = p_re.to(DTYPE), p_im.to(DTYPE)
            y_re, y_im, x_re, x_im = entered(
                p_re, p_im, q_re, q_im, cut, x_re, x_im, handed, maps, lane, lanes, k, chunks,
                places, CHAINED, CUTS, PAIR, DTYPE, GROUP,
            )  # fmt: skip
        for i in tl.static_range(STEPS):
            if not CONSTANT:
                a_re, a_im = parts(a_now[i], PAIR, DTYPE)
            b_re, b_im = parts(b_now[i], PAIR, DTYPE)
            if reset is not None:
                y_re, y_im = choose(reset_now[i], start, zero, y_re, y_im, PAIR)
            y_re, y_im = multiply(a_re, a_im, y_re, y_im, PAIR)
            y_re, y_im = add(y_re, y_im, b_re, b_im, PAIR)
            put(h + i * h_by + h_at, y_re, y_im, i < steps - j, PAIR)
            is_last = i == n - 1 - j - warp * STEPS
            end_re, end_im = choose(is_last, y_re, y_im, end_re, end_im, PAIR)
        if (WARPS == 1) and not CHAINED:
            x_re, x_im = y_re, y_im
        h += TILE * h_by
    ends = inside & ends_in(left, k, chunk, n, warp, STEPS)
    put(final + s * channels * width + at, end_re, end_im, ends, PAIR)
