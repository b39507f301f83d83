"""Triton kernels of states that are carried over blocks of time, and of tables of powers.

A program owns a channel and some of its sequences and modes, and walks along the blocks. It reads
and writes the same rows: those of the next blocks are on their way, which nothing has changed yet.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-any-return"
# no_type_check keeps the shape checker from wrapping kernels: Triton compiles what the source says

from typing import no_type_check

import triton
import triton.language as tl

from linrnn.compute.triton_kernel import kernel
from linrnn.ops.linear.linear_scan.triton_walk import (
    choose,
    multiply,
    parts,
    put,
    queued_rows,
    rows,
)


@triton.jit
@no_type_check
def _places(
    seqs, blocks, modes, channels, PAIR: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """Where a program's rows are: of the channel, of single rows, and of those of all blocks."""
    width: tl.constexpr = 2 if PAIR else 1
    cuts = tl.cdiv(modes, BLOCK)
    groups = tl.cdiv(seqs, ROWS)
    program = tl.program_id(0)
    mode = (program % cuts) * (BLOCK * width) + tl.arange(0, BLOCK * width)[None, :]
    s = (program // cuts % groups) * ROWS + tl.arange(0, ROWS)[:, None]
    channel = (program // cuts // groups).to(tl.int64)
    lane = channel * seqs + s  # of the states of one block
    inside = (s < seqs) & (mode < modes * width)
    return (
        channel * modes * width + mode,
        mode < modes * width,
        lane * modes * width + mode,
        lane * blocks * modes * width + mode,
        inside,
    )


@kernel
@no_type_check
def run_forward(
    left,
    first,
    last,
    decay,
    batch,
    chunks,
    modes,
    channels,
    PAIR: tl.constexpr,
    DTYPE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    UNROLL: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """Write the state before each block over what the block adds."""
    own, known, state, at, inside = _places(batch, chunks, modes, channels, PAIR, ROWS, BLOCK)
    a_re, a_im = parts(tl.load(decay + own, mask=known, other=0), PAIR, DTYPE)
    h_re, h_im = parts(tl.load(first + state, mask=inside, other=0), PAIR, DTYPE)
    by = tl.full((), 2 if PAIR else 1, tl.int64) * modes
    steps = tl.where(inside, chunks, 0)
    more = queued_rows(left, by, at, steps, UNROLL, AHEAD)
    for j in range(0, chunks, UNROLL):
        now = more[0]
        ahead = left + AHEAD * UNROLL * by
        more = more[1:] + (rows(ahead, by, at, steps - j - AHEAD * UNROLL, UNROLL),)  # noqa: RUF005
        for i in tl.static_range(UNROLL):
            put(left + i * by + at, h_re, h_im, i < steps - j, PAIR)
            y_re, y_im = multiply(a_re, a_im, h_re, h_im, PAIR)
            added_re, added_im = parts(now[i], PAIR, DTYPE)
            y_re += added_re
            if PAIR:
                y_im += added_im
            h_re, h_im = choose(i < chunks - j, y_re, y_im, h_re, h_im, PAIR)
        left += UNROLL * by
    put(last + state, h_re, h_im, inside, PAIR)


@kernel
@no_type_check
def run_backward(
    left,
    states,
    entering,
    first,
    of_decay,
    decay,
    batch,
    chunks,
    modes,
    channels,
    PAIR: tl.constexpr,
    DTYPE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    UNROLL: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """Write the gradient of what each block adds over that of the state before it.

    Each sequence has a separate sum in the gradient of the decay.
    """
    own, known, state, at, inside = _places(batch, chunks, modes, channels, PAIR, ROWS, BLOCK)
    a_re, a_im = parts(tl.load(decay + own, mask=known, other=0), PAIR, DTYPE)
    x_re, x_im = parts(tl.load(entering + state, mask=inside, other=0), PAIR, DTYPE)
    total_re, total_im = tl.zeros_like(x_re), tl.zeros_like(x_re)
    by = tl.full((), -2 if PAIR else -1, tl.int64) * modes
    steps = tl.where(inside, chunks, 0)
    left -= (chunks - 1) * by
    states -= (chunks - 1) * by
    g_more = queued_rows(left, by, at, steps, UNROLL, AHEAD)
    h_more = queued_rows(states, by, at, steps, UNROLL, AHEAD)
    for j in range(0, chunks, UNROLL):
        g_now, h_now = g_more[0], h_more[0]
        ahead, remaining = AHEAD * UNROLL * by, steps - j - AHEAD * UNROLL
        g_more = g_more[1:] + (rows(left + ahead, by, at, remaining, UNROLL),)  # noqa: RUF005
        h_more = h_more[1:] + (rows(states + ahead, by, at, remaining, UNROLL),)  # noqa: RUF005
        for i in tl.static_range(UNROLL):
            put(left + i * by + at, x_re, x_im, i < steps - j, PAIR)
            g_re, g_im = parts(g_now[i], PAIR, DTYPE)
            h_re, h_im = parts(h_now[i], PAIR, DTYPE)
            to_re, to_im = multiply(h_re, -h_im, x_re, x_im, PAIR)
            y_re, y_im = multiply(a_re, -a_im, x_re, x_im, PAIR)
            exists = i < chunks - j
            to_re, to_im = choose(exists, to_re, to_im, 0, 0, PAIR)
            total_re += to_re
            y_re += g_re
            if PAIR:
                total_im += to_im
                y_im += g_im
            x_re, x_im = choose(exists, y_re, y_im, x_re, x_im, PAIR)
        left += UNROLL * by
        states += UNROLL * by
    put(first + state, x_re, x_im, inside, PAIR)
    put(of_decay + state, total_re, total_im, inside, PAIR)


@kernel
@no_type_check
def run_dense(
    left,
    first,
    last,
    decay,
    batch,
    chunks,
    numbers,
    BACK: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The same for states that a matrix maps from block to block, or backward its transpose.

    A program owns a channel and some of its sequences; its matrix stays on chip.
    """
    groups = tl.cdiv(batch, ROWS)
    channel = (tl.program_id(0) // groups).to(tl.int64)
    s = (tl.program_id(0) % groups) * ROWS + tl.arange(0, ROWS)[:, None]
    to, by = tl.arange(0, BLOCK)[None, :], tl.arange(0, BLOCK)[:, None]
    entry = to * numbers + by if BACK else by * numbers + to
    square = (to < numbers) & (by < numbers)
    matrix = tl.load(decay + channel * numbers * numbers + entry, mask=square, other=0)
    inside = (s < batch) & (to < numbers)
    state = (channel * batch + s) * numbers + to
    h = tl.load(first + state, mask=inside, other=0)
    step = tl.full((), -1 if BACK else 1, tl.int64) * numbers
    at = left + (channel * batch + s) * chunks * numbers + to
    at += (chunks - 1) * numbers if BACK else 0
    more = tl.load(at, mask=inside & (chunks > 0), other=0)
    for j in range(chunks):
        added = more
        more = tl.load(at + step, mask=inside & (j + 1 < chunks), other=0)
        tl.store(at, h, mask=inside)
        h = tl.dot(h, matrix, added, input_precision=PRECISION)
        at += step
    tl.store(last + state, h, mask=inside)


@triton.jit
@no_type_check
def power(re, im, t, DIGITS: tl.constexpr, PAIR: tl.constexpr):
    """Powers (rows, numbers) of a row of numbers, in double precision."""
    y_re = tl.full([t.shape[0], re.shape[1]], 1, tl.float64)
    y_im = tl.zeros_like(y_re)
    for i in tl.static_range(DIGITS):
        more_re, more_im = multiply(re, im, y_re, y_im, PAIR)
        y_re, y_im = choose((t >> i) & 1 != 0, more_re, more_im, y_re, y_im, PAIR)
        re, im = multiply(re, im, re, im, PAIR)
    return y_re, y_im


@kernel
@no_type_check
def run_powers(
    a,
    table,
    chunks,
    modes,
    PAIR: tl.constexpr,
    DTYPE: tl.constexpr,
    DIGITS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Powers of double precision, each from its binary digits, rounded once."""
    width: tl.constexpr = 2 if PAIR else 1
    cuts, groups = tl.cdiv(modes, BLOCK), tl.cdiv(chunks, ROWS)
    program = tl.program_id(0)
    mode = (program % cuts) * (BLOCK * width) + tl.arange(0, BLOCK * width)[None, :]
    t = (program // cuts % groups) * ROWS + tl.arange(0, ROWS)[:, None]
    channel = (program // cuts // groups).to(tl.int64)
    known = mode < modes * width
    base = tl.load(a + channel * modes * width + mode, mask=known, other=0)
    re, im = parts(base, PAIR, tl.float64)
    y_re, y_im = power(re, im, t, DIGITS, PAIR)
    at = (channel * chunks + t) * modes * width + mode
    put(table + at, y_re.to(DTYPE), y_im.to(DTYPE), (t < chunks) & known, PAIR)
