"""How the kernels of a scan walk along time: Triton functions for the kernels of other ops, too.

Numbers are pairs (re, im), and ``PAIR`` says of what. 0 is a real number, whose second part is
never computed with. 1 is a complex one: a row of them travels as the real numbers that lie side by
side in memory, which is how the compiler loads 128 bits at once, and is split in registers. 2 is a
logarithm, real in memory, and what its last digit lost. A logarithm of size L is rounded by
``eps L`` at every step, and as a relative error of the number that adds up. What a sum loses is
found as in D. E. Knuth, "The art of computer programming", volume 2, 4.2.2.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-any-return"
# ruff: noqa: RUF005  # Triton knows no unpacking into a tuple
# no_type_check keeps the shape checker from wrapping kernels: Triton compiles what the source says

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def place(cu_seqlens, time, channels, chunks, chunk, FLIP: tl.constexpr, BLOCK: tl.constexpr):
    """The chunk and channels that this program computes, and the chunk's start in time."""
    program = tl.program_id(0)
    blocks = tl.cdiv(channels, BLOCK)
    c = (program % blocks) * BLOCK + tl.arange(0, BLOCK)
    k = ((program // blocks) % chunks).to(tl.int64)
    s = (program // blocks // chunks).to(tl.int64)
    row, t, left, n = span(cu_seqlens, s, k, time, chunk, FLIP)
    return s, k, row, t, left, n, c


@triton.jit
@no_type_check
def turn(handed, time, lanes, chunks, TILE: tl.constexpr, CHAINED: tl.constexpr):
    """The lane of this program, its place along time, and the steps of a place.

    Chained programs take tickets along time, so whoever is waited for runs already.
    """
    lane, k, chunk = tl.program_id(0), 0, time
    if CHAINED:
        ticket = tl.atomic_add(handed + 2 * lanes.to(tl.int64) * chunks, 1, sem="relaxed")
        lane, k, chunk = ticket % lanes, ticket // lanes, TILE
    return lane, k, chunk


@triton.jit
@no_type_check
def state_or(re, im, p, at, inside, PAIR: tl.constexpr, DTYPE: tl.constexpr):
    """The row of states that ``p`` points to, or the first two arguments where it is None."""
    if p is not None:
        re, im = parts(tl.load(p + at, mask=inside, other=0), PAIR, DTYPE)
    return re, im


@triton.jit
@no_type_check
def span(cu_seqlens, s, k, time, chunk, FLIP: tl.constexpr):
    """Row and first step of a chunk, the steps from there on, and those of the chunk."""
    if cu_seqlens is not None:
        start = tl.load(cu_seqlens + s)
        length = tl.load(cu_seqlens + s + 1) - start
        row = s * 0
    else:
        start = s * 0
        length = start + time
        row = s
    first = k * chunk
    n = tl.maximum(tl.minimum(length - first, chunk), 0).to(tl.int32)
    t = start + length - 1 - first if FLIP else start + first
    return row, t, length - first, n


@triton.jit
@no_type_check
def rows(p, by, at, n, UNROLL: tl.constexpr):
    """Start loading the next rows; lane by lane, from the ``n``-th on they read as 0."""
    loaded = ()
    for i in tl.static_range(UNROLL):
        loaded = loaded + (tl.load(p + i * by + at, mask=i < n, other=0),)
    return loaded


@triton.jit
@no_type_check
def flags(p, by, n, UNROLL: tl.constexpr):
    """The same for the reset mask: one flag a step."""
    loaded = ()
    for i in tl.static_range(UNROLL):
        loaded = loaded + (tl.load(p + i * by, mask=i < n, other=0) != 0,)
    return loaded


@triton.jit
@no_type_check
def queued_rows(p, by, at, n, UNROLL: tl.constexpr, AHEAD: tl.constexpr):
    """Start loading the rows of several groups: a tuple for each group."""
    queue = ()
    for i in tl.static_range(AHEAD):
        queue = queue + (rows(p + i * UNROLL * by, by, at, n - i * UNROLL, UNROLL),)
    return queue


@triton.jit
@no_type_check
def queued_flags(p, by, n, UNROLL: tl.constexpr, AHEAD: tl.constexpr):
    """The same for the reset mask."""
    queue = ()
    for i in tl.static_range(AHEAD):
        queue = queue + (flags(p + i * UNROLL * by, by, n - i * UNROLL, UNROLL),)
    return queue


@triton.jit
@no_type_check
def parts(x, PAIR: tl.constexpr, DTYPE: tl.constexpr):
    """Real and imaginary parts of rows (warps, numbers)."""
    if PAIR == 1:
        pairs = tl.reshape(x.to(DTYPE), (x.shape[0], x.shape[1] // 2, 2))
        re, im = tl.split(pairs)
    else:
        re = x.to(DTYPE)
        im = re
        if PAIR == 2:
            im = tl.zeros_like(re)
    return re, im


@triton.jit
@no_type_check
def put(p, re, im, inside, PAIR: tl.constexpr):
    """Store rows."""
    if PAIR == 1:
        pairs = tl.join(re, im)
        tl.store(p, tl.reshape(pairs, (re.shape[0], 2 * re.shape[1])), mask=inside)
    else:
        tl.store(p, re, mask=inside)


@triton.jit
@no_type_check
def multiply(a_re, a_im, x_re, x_im, PAIR: tl.constexpr):
    """Multiply two rows."""
    if PAIR == 2:
        re = a_re + x_re
        im = _finite(re, _lost(a_re, x_re, re) + (a_im + x_im))
    elif PAIR:
        re = a_re * x_re - a_im * x_im
        im = a_re * x_im + a_im * x_re
    else:
        re = a_re * x_re
        im = x_im
    return re, im


@triton.jit
@no_type_check
def add(x_re, x_im, y_re, y_im, PAIR: tl.constexpr):
    """Add two rows. Equal logarithms have no distance, even infinite ones."""
    if PAIR == 2:
        more = x_im - y_im
        distance = tl.where(x_re == y_re, more, (x_re - y_re) + more)
        larger = tl.where(distance > 0, x_re, y_re)
        e = tl.exp(-tl.abs(distance))
        u = 1 + e
        added = tl.where(u == 1, e, tl.log(u) * (e / tl.where(u == 1, 1, u - 1)))
        added += tl.where(distance > 0, x_im, y_im)
        re = larger + added
        im = _finite(re, _lost(larger, added, re))
    else:
        re, im = x_re + y_re, x_im
        if PAIR:
            im = x_im + y_im
    return re, im


@triton.jit
@no_type_check
def _lost(u, v, total):
    """The part of u + v that rounding took."""
    from_v = total - u
    return (u - (total - from_v)) + (v - from_v)


@triton.jit
@no_type_check
def _finite(whole, rest):
    """Return the lost part of a sum: 0 of an infinite one, where it would be NaN."""
    return tl.where(tl.abs(whole) < float("inf"), rest, 0)


@triton.jit
@no_type_check
def share(log_part, log_whole):
    """``part / whole`` of positive numbers; a part of 0 has no share, even of nothing.

    By rounding a part may be more than the whole, and in half precision far more.
    """
    is_zero = log_part == float("-inf")
    log_share = tl.where(is_zero, 0, log_part) - tl.where(is_zero, 0, log_whole)
    return tl.where(is_zero, 0, tl.exp(tl.where(log_share > 0, 0, log_share)))


@triton.jit
@no_type_check
def choose(which, re, im, other_re, other_im, PAIR: tl.constexpr):
    """A selection, never a product with 0, which would let NaN and infinity through."""
    re = tl.where(which, re, other_re)
    if PAIR:
        im = tl.where(which, im, other_im)
    return re, im
