"""Functions that generated kernels call: what `triton.language` lacks, or has less exactly.

Its exponential of single precision is a fast one, wrong by some 40 roundings at 50, and its square
root takes small numbers for 0; ``expm1``, ``log1p`` and ``tanh`` are not there. These are made of
operations that are the same on a GPU and in the interpreter, have errors of at most three roundings
(``tl.log`` has one), and PyTorch's values at 0, infinity and NaN.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-any-return"
# ruff: noqa: RUF005  # Triton knows no unpacking into a tuple
# no_type_check keeps the shape checker from wrapping kernels: Triton compiles what the source says

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def _reduced(x):
    """``p`` and ``k`` with ``exp(x) = 2**k (1 + p)``, ``p`` exact to its own size."""
    if x.dtype == tl.float64:
        x = tl.where(x > 710, 710, tl.where(x < -746, -746, x))
        k = tl.floor(x * 1.4426950408889634 + 0.5)
        r = x - k * 6.93147180369123816490e-01 - k * 1.90821492927058770002e-10
        q = r * (1 / 6227020800.0) + 1 / 479001600.0
        q = q * r + 1 / 39916800.0
        q = q * r + 1 / 3628800.0
        q = q * r + 1 / 362880.0
        q = q * r + 1 / 40320.0
        q = q * r + 1 / 5040.0
        q = q * r + 1 / 720.0
    else:
        x = tl.where(x > 89, 89, tl.where(x < -105, -105, x))
        k = tl.floor(x * 1.4426950408889634 + 0.5)
        r = x - k * 0.693359375 - k * -2.12194440e-4
        q = r * (1 / 5040.0) + 1 / 720.0
    q = q * r + 1 / 120.0
    q = q * r + 1 / 24.0
    q = q * r + 1 / 6.0
    q = q * r + 0.5
    return r + r * r * q, tl.where(x == x, k, 0).to(tl.int32)


@triton.jit
@no_type_check
def _power(k, like):
    """``2**k`` for a ``k`` whose power is a normal number."""
    if like.dtype == tl.float64:
        y = ((k.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)
    else:
        y = ((k + 127) << 23).to(tl.float32, bitcast=True)
    return y


@triton.jit
@no_type_check
def exp(x):
    """``exp(x)``."""
    p, k = _reduced(x)
    half = k >> 1  # the power itself may be beyond the normal numbers
    return (1 + p) * _power(half, x) * _power(k - half, x)


@triton.jit
@no_type_check
def expm1(x):
    """``exp(x) - 1``."""
    p, k = _reduced(x)
    half = k >> 1
    large = (1 + p) * _power(half, x) * _power(k - half, x)
    s = _power(tl.where(k < -60, -60, tl.where(k > 60, 60, k)), x)
    y = tl.where(k > 60, large, p * s + (s - 1))
    return tl.where(x == 0, x, y)


@triton.jit
@no_type_check
def log1p(x):
    """``log(1 + x)``."""
    u = 1 + x
    # what the sum lost is what the logarithm lost
    y = tl.log(u) * (x / tl.where(u == 1, 1, u - 1))
    return tl.where((u == 1) | (u == float("inf")), x, y)


@triton.jit
@no_type_check
def sqrt(x):
    """The square root."""
    return tl.sqrt(x) if x.dtype == tl.float64 else tl.sqrt_rn(x)


@triton.jit
@no_type_check
def sigmoid(x):
    """``1 / (1 + exp(-x))``."""
    e = exp(-tl.abs(x))
    return tl.where(x >= 0, 1, e) / (1 + e)


@triton.jit
@no_type_check
def tanh(x):
    """The hyperbolic tangent."""
    t = expm1(-2 * tl.abs(x))
    y = t / (t + 2)
    return tl.where(x == 0, x, tl.where(x < 0, y, -y))


@triton.jit
@no_type_check
def _half_exp(size):
    """``exp(size) / 2``, which overflows no earlier than it has to."""
    root = exp(0.5 * size)
    return (0.5 * root) * root


@triton.jit
@no_type_check
def sinh(x):
    """The hyperbolic sine."""
    size = tl.abs(x)
    m = expm1(tl.where(size > 20, 0, size))
    y = tl.where(size > 20, _half_exp(size), 0.5 * (m + m / (m + 1)))
    y = tl.where(x != x, x, y)
    return tl.where(x == 0, x, tl.where(x < 0, y * -1.0, y))


@triton.jit
@no_type_check
def cosh(x):
    """The hyperbolic cosine."""
    size = tl.abs(x)
    e = exp(tl.where(size > 20, 0, size))
    return tl.where(x != x, x, tl.where(size > 20, _half_exp(size), 0.5 * (e + 1 / e)))


@triton.jit
@no_type_check
def rounded(x):
    """To the nearest integer, of two to the even one."""
    low = tl.floor(x)
    beyond = x - low
    odd = low - 2 * tl.floor(0.5 * low) != 0
    return low + tl.where((beyond > 0.5) | ((beyond == 0.5) & odd), 1, 0)


@triton.jit
@no_type_check
def softplus(x):
    """``log(1 + exp(x))``; from 20 on x, as PyTorch has it."""
    tail = log1p(exp(-tl.abs(x)))
    return tl.where(x > 20, x, tl.where(x > 0, x, 0) + tail)


@triton.jit
@no_type_check
def logsigmoid(x):
    """``log(sigmoid(x))``."""
    return tl.where(x < 0, x, 0) - log1p(exp(-tl.abs(x)))


@triton.jit
@no_type_check
def relu(x):
    """The positive part."""
    return tl.where(x < 0, 0, x)


@triton.jit
@no_type_check
def gelu(x):
    """The product of x and the normal distribution function."""
    return x * (1 + tl.erf(x * 0.7071067811865476)) * 0.5


@triton.jit
@no_type_check
def maximum(a, b):
    """The larger one; NaN if either is."""
    return tl.where((a > b) | (a != a), a, b)


@triton.jit
@no_type_check
def minimum(a, b):
    """The smaller one; NaN if either is."""
    return tl.where((a < b) | (a != a), a, b)


@triton.jit
@no_type_check
def spread(x, narrow: tl.constexpr, n: tl.constexpr, WIDE: tl.constexpr, EACH: tl.constexpr):
    """Each of the first numbers n times, or all of them."""
    j = tl.arange(0, WIDE)
    at = j // n if EACH else j % narrow
    return tl.gather(x, tl.where(j < n * narrow, at, 0), 0)


@triton.jit
@no_type_check
def fold(x, narrow: tl.constexpr, n: tl.constexpr, NARROW: tl.constexpr, EACH: tl.constexpr):
    """The sums of n numbers that lie together, or of n parts."""
    i = tl.minimum(tl.arange(0, NARROW), narrow - 1)
    y = tl.zeros([NARROW], x.dtype)
    for k in range(0, n):
        y += tl.gather(x, i * n + k if EACH else k * narrow + i, 0)
    return y


@triton.jit
@no_type_check
def roll(x, width: tl.constexpr, n: tl.constexpr, BLOCK: tl.constexpr):
    """Each number n places further on."""
    j = tl.arange(0, BLOCK)
    return tl.gather(x, tl.where(j < width, (j + (width - n % width) % width) % width, 0), 0)


@triton.jit
@no_type_check
def matrix(
    p,
    part,
    first,
    rows: tl.constexpr,
    columns: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Some rows of one of the matrices that lie one after the other, zeros around it."""
    m = tl.arange(0, ROWS)[:, None]
    n = tl.arange(0, COLUMNS)[None, :]
    at = p + (part * rows + first) * columns + m * columns + n
    if rows % ROWS == 0 and columns == COLUMNS:  # then its addresses differ by constants
        x = tl.load(at)
    else:
        x = tl.load(at, mask=(first + m < rows) & (n < columns), other=0)
    return x


@triton.jit
@no_type_check
def product(
    p,
    part,
    x,
    rows: tl.constexpr,
    columns: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILE: tl.constexpr,
):
    """A vector times a matrix that is read for it, some rows after the other."""
    if TILE == ROWS:
        y = tl.sum(matrix(p, part, 0, rows, columns, ROWS, COLUMNS) * x[:, None], 0)
    else:
        count: tl.constexpr = ROWS // TILE
        pieces = tl.reshape(x, (count, TILE))
        y = tl.zeros([COLUMNS], x.dtype)
        for k in range(0, count):
            piece = tl.sum(tl.where(tl.arange(0, count)[:, None] == k, pieces, 0), 0)
            tile = matrix(p, part, k * TILE, rows, columns, TILE, COLUMNS)
            y += tl.sum(tile * piece[:, None], 0)
    return y


@triton.jit
@no_type_check
def spans(cu_seqlens, s, sequences, time, FLIP: tl.constexpr):
    """Rows, first steps and lengths of sequences; 0 of those that there are not."""
    if cu_seqlens is not None:
        start = tl.load(cu_seqlens + s, mask=s < sequences, other=0)
        length = tl.load(cu_seqlens + s + 1, mask=s < sequences, other=0) - start
        row = s * 0
    else:
        start = s * 0
        length = tl.where(s < sequences, start + time, 0)
        row = s
    first = start + length - 1 if FLIP else start
    return row, first, length.to(tl.int32)


@triton.jit
@no_type_check
def chunks_of_columns(
    p,
    part,
    share,
    rows: tl.constexpr,
    columns: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHUNK: tl.constexpr,
    SPLIT: tl.constexpr,
    MATRIX: tl.constexpr,
):
    """Some columns of one of the matrices that lie one after the other, zeros around it.

    A tuple of chunks of rows: a product with all rows at once would hold its whole other side. With
    ``SPLIT`` one stack of as many parts of the rows, of which each warp multiplies its own.
    """
    SOME: tl.constexpr = min(ROWS, CHUNK)
    n = share * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    if SPLIT > 1:
        PART: tl.constexpr = ROWS // SPLIT
        m = tl.arange(0, SPLIT)[:, None, None] * PART + tl.arange(0, PART)[None, :, None]
        n = n[None, :, :]
        at = p + part * rows * columns + m * columns + n
        chunks = (tl.load(at, mask=(m < rows) & (n < columns), other=0).to(MATRIX),)
    else:
        chunks = ()
        for k in tl.static_range(ROWS // SOME):
            m = k * SOME + tl.arange(0, SOME)[:, None]
            at = p + part * rows * columns + m * columns + n
            chunk = tl.load(at, mask=(m < rows) & (n < columns), other=0).to(MATRIX)
            chunks = chunks + (chunk,)
    return chunks


@triton.jit
@no_type_check
def published_chunks(p, BLOCK: tl.constexpr, CHUNK: tl.constexpr, SPLIT: tl.constexpr):
    """Whole vectors, a chunk of channels after the other, past what a multiprocessor has cached.

    With ``SPLIT`` one stack of as many parts of the channels.
    """
    SOME: tl.constexpr = min(BLOCK, CHUNK)
    if SPLIT > 1:
        PART: tl.constexpr = BLOCK // SPLIT
        first = tl.arange(0, SPLIT)[:, None, None] * PART
        at = p[None, :, :] + first + tl.arange(0, PART)[None, None, :]
        chunks = (tl.load(at, cache_modifier=".cg"),)
    else:
        chunks = ()
        for k in tl.static_range(BLOCK // SOME):
            at = p + k * SOME + tl.arange(0, SOME)[None, :]
            chunks = chunks + (tl.load(at, cache_modifier=".cg"),)
    return chunks


@triton.jit
@no_type_check
def meet(arrived, all_of_them):
    """Count this instance, behind all it has stored, and wait for the others of its group."""
    tl.debug_barrier()
    tl.atomic_add(arrived, 1, sem="release")
    count = tl.atomic_add(arrived, 0, sem="acquire")
    while count < all_of_them:
        count = tl.atomic_add(arrived, 0, sem="acquire")
