"""The Triton kernel of all states; ``_triton_kernels.py`` says how it goes along time."""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-any-return"
# ruff: noqa: RUF005  # Triton knows no unpacking into a tuple
# no_type_check keeps the shape checker from wrapping kernels: Triton compiles what the source says

from typing import no_type_check

import triton
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
    state_or,
    turn,
)


@triton.jit
@no_type_check
def _tile_rows(
    a, a_by, a_at, b, b_by, b_at, part, steps,
    GATES: tl.constexpr, CONSTANT: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """Start loading a tile: decays, inputs, further gates; what is not read is an empty tuple."""
    a_rows, w_rows = (), ()
    b_rows = rows(b, b_by, b_at, steps, STEPS)
    if not CONSTANT:
        a_rows = rows(a, a_by, a_at, steps, STEPS)
    if GATES > 1:
        w_rows = rows(a + part, a_by, a_at, steps, STEPS)
    return a_rows, b_rows, w_rows


@triton.jit
@no_type_check
def _gated_rows(
    a_rows, b_rows, w_rows,
    GATES: tl.constexpr, POSITIVE: tl.constexpr, DTYPE: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """Decays and inputs of a stretch, from its values and the logits of its gates."""
    decays, inputs = (), ()
    for i in tl.static_range(STEPS):
        f, u = b_rows[i].to(DTYPE), a_rows[i].to(DTYPE)
        w = u
        if GATES > 1:
            w = w_rows[i].to(DTYPE)
        u, f = gated(f, u, w, GATES, POSITIVE)
        decays, inputs = decays + (u,), inputs + (f,)
    return decays, inputs


@triton.jit
@no_type_check
def _stretch_map(
    p_re, p_im, a_re, a_im, a_rows, b_rows, resets, start, zero, empty_sum,
    CONSTANT: tl.constexpr, CUTS: tl.constexpr, PAIR: tl.constexpr, DTYPE: tl.constexpr,
    PRODUCT: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """The map of the state that enters a stretch: ``p * x + q``, or q behind a cut.

    The product of decays is in ``PRODUCT``, since roundings of many tiles would add up. With one
    decay for all steps it is given, and so is that decay.
    """
    q_re, q_im, cut = empty_sum, zero, tl.zeros(zero.shape, tl.int32)
    for i in tl.static_range(STEPS):
        if not CONSTANT:
            a_re, a_im = parts(a_rows[i], PAIR, DTYPE)
            f_re, f_im = a_re.to(PRODUCT), a_im.to(PRODUCT)
            if i == 0:
                p_re, p_im = f_re, f_im
            else:
                p_re, p_im = multiply(f_re, f_im, p_re, p_im, PAIR)
        b_re, b_im = parts(b_rows[i], PAIR, DTYPE)
        if CUTS:
            q_re, q_im = choose(resets[i], start, zero, q_re, q_im, PAIR)
            cut = tl.where(resets[i], 1, cut)
        if (i > 0) or CUTS:
            q_re, q_im = multiply(a_re, a_im, q_re, q_im, PAIR)
            b_re, b_im = add(b_re, b_im, q_re, q_im, PAIR)
        q_re, q_im = b_re, b_im
    return p_re.to(DTYPE), p_im.to(DTYPE), q_re, q_im, cut


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
    lane, k, chunk = turn(handed, time, lanes, chunks, TILE, CHAINED)
    blocks = tl.cdiv(channels, BLOCK)
    s = (lane // blocks).to(tl.int64)
    row, t, left, n = span(cu_seqlens, s, s * 0 + k, time, chunk, FLIP)
    width: tl.constexpr = 2 if PAIR == 1 else 1
    warp = tl.arange(0, WARPS)[:, None]
    offsets = warp * 0 + tl.arange(0, BLOCK * width)[None, :]  # whole tiles, so all lie alike
    places = offsets
    if PAIR == 2:
        places = warp * 0 + tl.arange(0, BLOCK * 2)[None, :]
    at = (lane % blocks) * (BLOCK * width) + offsets
    inside = at < channels * width
    steps = tl.where(inside, n - warp * STEPS, 0)  # of each place: a row's mask is one comparison
    sign = tl.full((), -1 if FLIP else 1, tl.int64)  # a step of time may be 2**31 apart
    b_by = sign * width * b_step
    h_by = sign * width * channels
    zero = tl.zeros([WARPS, BLOCK], DTYPE)
    start = zero + START
    empty_sum = zero
    if PAIR == 2:
        empty_sum = start
    state = s * channels * width + at
    x_re, x_im = state_or(start, zero, initial, state, inside, PAIR, DTYPE)
    end_re, end_im = x_re, x_im
    b += (row * b_seq + t * b_step) * width
    b_at = warp * (STEPS * b_by) + at
    a_re, a_im, p_re, p_im, a_from, a_by = zero, zero, zero, zero, a, sign
    if CONSTANT:
        a_re, a_im = parts(tl.load(a + at, mask=inside, other=0), PAIR, DTYPE)
        p_re, p_im = stretched(a_re, a_im, STEPS, PAIR, DTYPE, WIDE)
    elif GATES > 0:
        a_from, a_by = b + part, b_by
    else:
        a_from, a_by = a + (row * a_seq + t * a_step) * width, sign * width * a_step
    a_at = warp * (STEPS * a_by) + at
    if CUTS:
        reset_by = sign * reset_step
        reset += row * reset_seq + t * reset_step + warp * (STEPS * reset_by)
    if AHEAD:
        following = _tile_rows(
            a_from, a_by, a_at, b, b_by, b_at, part, steps, GATES, CONSTANT, STEPS
        )
    h += (row * time + t) * channels * width
    h_at = warp * (STEPS * h_by) + at
    for j in range(0, n, TILE):
        if AHEAD:
            present = following
            following = _tile_rows(
                a_from + TILE * a_by, a_by, a_at, b + TILE * b_by, b_by, b_at, part,
                steps - j - TILE, GATES, CONSTANT, STEPS,
            )  # fmt: skip
        else:
            present = _tile_rows(
                a_from, a_by, a_at, b, b_by, b_at, part, steps - j, GATES, CONSTANT, STEPS
            )
        a_now, b_now, w_now = present
        b += TILE * b_by
        if not CONSTANT:
            a_from += TILE * a_by
        reset_now = ()
        if CUTS:
            reset_now = flags(reset, reset_by, n - j - warp * STEPS, STEPS)
            reset += TILE * reset_by
        if GATES > 0:  # once for both runs of a stretch
            a_now, b_now = _gated_rows(a_now, b_now, w_now, GATES, POSITIVE, DTYPE, STEPS)
        y_re, y_im = x_re, x_im
        if (WARPS > 1) or CHAINED:
            r_re, r_im, q_re, q_im, cut = _stretch_map(
                p_re, p_im, a_re, a_im, a_now, b_now, reset_now, start, zero, empty_sum,
                CONSTANT, CUTS, PAIR, DTYPE, WIDE, STEPS,
            )  # fmt: skip
            y_re, y_im, x_re, x_im = entered(
                r_re, r_im, q_re, q_im, cut, x_re, x_im, handed, maps, lane, lanes, k, chunks,
                places, CHAINED, CUTS, PAIR, DTYPE, GROUP,
            )  # fmt: skip
        for i in tl.static_range(STEPS):
            decay_re, decay_im = a_re, a_im
            if not CONSTANT:
                decay_re, decay_im = parts(a_now[i], PAIR, DTYPE)
            b_re, b_im = parts(b_now[i], PAIR, DTYPE)
            if CUTS:
                y_re, y_im = choose(reset_now[i], start, zero, y_re, y_im, PAIR)
            y_re, y_im = multiply(decay_re, decay_im, y_re, y_im, PAIR)
            y_re, y_im = add(y_re, y_im, b_re, b_im, PAIR)
            put(h + i * h_by + h_at, y_re, y_im, i < steps - j, PAIR)
            is_last = i == n - 1 - j - warp * STEPS
            end_re, end_im = choose(is_last, y_re, y_im, end_re, end_im, PAIR)
        if (WARPS == 1) and not CHAINED:
            x_re, x_im = y_re, y_im
        h += TILE * h_by
    ends = inside & ends_in(left, k, chunk, n, warp, STEPS)
    put(final + state, end_re, end_im, ends, PAIR)
