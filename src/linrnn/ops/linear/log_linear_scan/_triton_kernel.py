"""The Triton kernel of ``log h_t = logaddexp(log a_t + log h_{t-1}, log b_t)``.

A program owns one sequence and a block of channels and walks along time; rows of the next steps are
on their way. A logarithm of size L is rounded by ``eps L`` at every step, and as a relative error
of ``h`` that adds up. So the state is two numbers: a logarithm, and what its last digit lost. What
a sum loses is found as in D. E. Knuth, "The art of computer programming", volume 2, 4.2.2.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-any-return"
# no_type_check keeps the shape checker from wrapping kernels: Triton compiles what the source says

from typing import no_type_check

import triton
import triton.language as tl

from linrnn.compute.triton_kernel import kernel
from linrnn.ops.linear.linear_scan.triton_walk import flags, place, queued_rows, rows


@triton.jit
@no_type_check
def _lost(u, v, total):
    """The part of u + v that rounding took."""
    from_v = total - u
    return (u - (total - from_v)) + (v - from_v)


@triton.jit
@no_type_check
def _advanced(x, rest, log_a, log_b):
    """The next state. Equal logarithms have no distance, even infinite ones."""
    kept = log_a + x
    more = _lost(log_a, x, kept) + rest
    more = tl.where(tl.abs(kept) < float("inf"), more, 0)
    distance = tl.where(kept == log_b, more, (kept - log_b) + more)
    larger = tl.where(distance > 0, kept, log_b)
    e = tl.exp(-tl.abs(distance))
    u = 1 + e
    added = tl.where(u == 1, e, tl.log(u) * (e / tl.where(u == 1, 1, u - 1)))
    added += tl.where(distance > 0, more, 0)
    y = larger + added
    return y, _lost(larger, added, y)


@kernel
@no_type_check
def run_forward(
    a,
    a_seq,
    a_step,
    b,
    b_seq,
    b_step,
    reset,
    reset_seq,
    reset_step,
    cu_seqlens,
    initial,
    h,
    final,
    time,
    channels,
    CONSTANT: tl.constexpr,
    FLIP: tl.constexpr,
    DTYPE: tl.constexpr,
    BLOCK: tl.constexpr,
    UNROLL: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """All states of one sequence and block of channels, and the final one."""
    s, _, row, t, _, n, c = place(cu_seqlens, time, channels, 1, time, FLIP, BLOCK)
    inside = c < channels
    steps = tl.where(inside, n, 0)
    sign = tl.full((), -1 if FLIP else 1, tl.int64)
    nothing = tl.full([BLOCK], float("-inf"), DTYPE)
    x, rest = nothing, tl.zeros([BLOCK], DTYPE)
    if initial is not None:
        x = tl.load(initial + s * channels + c, mask=inside, other=0).to(DTYPE)
    b += row * b_seq + t * b_step
    b_by, h_by = sign * b_step, sign * channels
    b_next = queued_rows(b, b_by, c, steps, UNROLL, AHEAD)
    b += AHEAD * UNROLL * b_by
    if CONSTANT:
        decay = tl.load(a + c, mask=inside, other=0).to(DTYPE)
    else:
        a += row * a_seq + t * a_step
        a_by = sign * a_step
        a_next = queued_rows(a, a_by, c, steps, UNROLL, AHEAD)
        a += AHEAD * UNROLL * a_by
    if reset is not None:
        reset_by = sign * reset_step
        reset += row * reset_seq + t * reset_step
    h += (row * time + t) * channels + c
    for j in range(0, n, UNROLL):
        left = steps - j - AHEAD * UNROLL
        b_now = b_next[0]
        b_next = b_next[1:] + (rows(b, b_by, c, left, UNROLL),)  # noqa: RUF005
        b += UNROLL * b_by
        if not CONSTANT:
            a_now = a_next[0]
            a_next = a_next[1:] + (rows(a, a_by, c, left, UNROLL),)  # noqa: RUF005
            a += UNROLL * a_by
        if reset is not None:
            reset_now = flags(reset, reset_by, n - j, UNROLL)
            reset += UNROLL * reset_by
        for i in tl.static_range(UNROLL):
            if reset is not None:
                x = tl.where(reset_now[i], nothing, x)
                rest = tl.where(reset_now[i], 0, rest)
            if not CONSTANT:
                decay = a_now[i].to(DTYPE)
            y, more = _advanced(x, rest, decay, b_now[i].to(DTYPE))
            exists = i < n - j
            x, rest = tl.where(exists, y, x), tl.where(exists, more, rest)
            tl.store(h + i * h_by, y, mask=i < steps - j)
        h += UNROLL * h_by
    tl.store(final + s * channels + c, x, mask=inside)
