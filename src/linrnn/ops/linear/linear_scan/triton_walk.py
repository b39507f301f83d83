"""How the kernels of a scan walk along time: Triton functions for the kernels of other ops, too.

Numbers are pairs (re, im); for a real recurrence the second is never computed with. A row of
complex numbers travels as the real numbers that lie side by side in memory, which is how the
compiler loads 128 bits at once, and is split in registers.
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
def parts(x, CX: tl.constexpr, DTYPE: tl.constexpr):
    """Real and imaginary parts of rows (warps, numbers)."""
    if CX:
        pairs = tl.reshape(x.to(DTYPE), (x.shape[0], x.shape[1] // 2, 2))
        re, im = tl.split(pairs)
    else:
        re = x.to(DTYPE)
        im = re
    return re, im


@triton.jit
@no_type_check
def put(p, re, im, inside, CX: tl.constexpr):
    """Store rows."""
    if CX:
        pairs = tl.join(re, im)
        tl.store(p, tl.reshape(pairs, (re.shape[0], 2 * re.shape[1])), mask=inside)
    else:
        tl.store(p, re, mask=inside)


@triton.jit
@no_type_check
def multiply(a_re, a_im, x_re, x_im, CX: tl.constexpr):
    """Multiply two rows."""
    if CX:
        re = a_re * x_re - a_im * x_im
        im = a_re * x_im + a_im * x_re
    else:
        re = a_re * x_re
        im = x_im
    return re, im


@triton.jit
@no_type_check
def choose(which, re, im, other_re, other_im, CX: tl.constexpr):
    """A selection, never a product with 0, which would let NaN and infinity through."""
    re = tl.where(which, re, other_re)
    if CX:
        im = tl.where(which, im, other_im)
    return re, im
