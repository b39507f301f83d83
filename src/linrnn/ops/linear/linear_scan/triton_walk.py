"""How the kernels of a scan walk along time: Triton functions for the kernels of other ops, too.

Numbers are pairs (re, im); for a real recurrence the second is never computed with. They travel as
(BLOCK,) or, complex, (BLOCK, 2): one access a complex number, which the compiler only dares when it
sees that rows begin at even places, so strides count numbers and are doubled here.
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
    return s, k, row, t, length - first, n, c


@triton.jit
@no_type_check
def lanes(c, channels, CX: tl.constexpr):
    """Offsets of the channels inside a row, in real numbers, and which of them exist."""
    if CX:
        at = 2 * c[:, None] + tl.arange(0, 2)[None, :]
        inside = (c < channels)[:, None] & (tl.arange(0, 2) < 2)[None, :]
    else:
        at = c
        inside = c < channels
    return at, inside


@triton.jit
@no_type_check
def last(left, k, chunk, inside):
    """Lanes of a sequence's last chunk; an empty sequence has one empty chunk."""
    left = tl.where(inside, left, chunk + 1)
    return (left <= chunk) & (left + (k == 0).to(tl.int32) > 0)


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
def parts(x, CX: tl.constexpr, DTYPE: tl.constexpr):
    """Real and imaginary parts of a row."""
    if CX:
        re, im = tl.split(x.to(DTYPE))
    else:
        re = x.to(DTYPE)
        im = re
    return re, im


@triton.jit
@no_type_check
def put(p, re, im, inside, CX: tl.constexpr):
    """Store a row."""
    if CX:
        tl.store(p, tl.join(re, im), mask=inside)
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
