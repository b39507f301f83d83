"""Parts shared by the Triton kernels of the matrix memories: addresses, decays, safe products.

A chunk is CHUNK steps of one sequence, in the order of reading. Numbers of a step lie together:
(rows * time, heads, channels), dense. Positions
that no step fills hold 0 and a decay of 1, so a partial chunk needs no special case.
"""

# Triton compiles the source of these functions: no annotations, and names as in a kernel.
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def span(slots, cu_seqlens, slot, time, CHUNK: tl.constexpr):
    """The row of a chunk, the first place and the steps of its sequence, and the chunk's number."""
    if cu_seqlens is not None:
        s = tl.load(slots + slot).to(tl.int64)
        start = tl.load(cu_seqlens + s)
        count = (tl.load(cu_seqlens + s + 1) - start).to(tl.int32)
        n = (slot - (start // CHUNK + s)).to(tl.int32)
        row = s * 0
    else:
        chunks = tl.cdiv(time, CHUNK)
        row = (slot // chunks).to(tl.int64)
        n = (slot % chunks).to(tl.int32)
        start = row * 0
        count = time
    return row, start, count, n


@triton.jit
def sequence(cu_seqlens, s, time, CHUNK: tl.constexpr):
    """The row of a sequence, its first place, its number of steps, and its first chunk's slot."""
    row, start, count, slot = s, s * 0, time, s * tl.cdiv(time, CHUNK)
    if cu_seqlens is not None:
        start = tl.load(cu_seqlens + s)
        count = (tl.load(cu_seqlens + s + 1) - start).to(tl.int32)
        row, slot = s * 0, start // CHUNK + s
    return row, start, count, slot


@triton.jit
def place(t, row, start, count, time, REVERSE: tl.constexpr):
    """Where step t of a sequence lies among those of all rows."""
    where = start + t
    if REVERSE:
        where = start + count - 1 - t
    return row * time + where


@triton.jit
def rows(p, position, inside, heads, h, size, lanes, DTYPE: tl.constexpr):
    """The numbers of some steps (steps, lanes), 0 outside."""
    mask = inside[:, None] & (lanes < size)[None, :]
    return tl.load(p + (position[:, None] * heads + h) * size + lanes[None, :], mask, 0).to(DTYPE)


@triton.jit
def put(p, x, position, inside, heads, h, size, lanes):
    """Store the numbers of some steps."""
    mask = inside[:, None] & (lanes < size)[None, :]
    tl.store(p + (position[:, None] * heads + h) * size + lanes[None, :], x, mask)


@triton.jit
def add(p, x, position, inside, heads, h, size, lanes):
    """Add to the numbers of some steps, which no other program has."""
    mask = inside[:, None] & (lanes < size)[None, :]
    where = p + (position[:, None] * heads + h) * size + lanes[None, :]
    tl.store(where, tl.load(where, mask, 0) + x, mask)


@triton.jit
def values_of(v, position, inside, heads, h, size, lanes, ONES: tl.constexpr, DTYPE: tl.constexpr):
    """Values, with the channel of ones of a normalizer behind the last."""
    x = rows(v, position, inside, heads, h, size, lanes, DTYPE)
    if ONES:
        x = tl.where(inside[:, None] & (lanes == size)[None, :], 1, x)
    return x


@triton.jit
def logs(g, position, inside, heads, h, size, lanes, G: tl.constexpr, CONSTANT: tl.constexpr,
         DTYPE: tl.constexpr):  # fmt: skip
    """Logarithms of the decays of some steps, (steps, 1) by head or (steps, lanes)."""
    if CONSTANT:
        position = position * 0
    if G == 2:
        x = rows(g, position, inside, heads, h, size, lanes, DTYPE)
    elif G == 1:
        x = tl.load(g + position * heads + h, inside, 0).to(DTYPE)[:, None]
    else:
        x = tl.zeros(position.shape, DTYPE)[:, None]
    return x


@triton.jit
def sums(x, reverse: tl.constexpr = False):
    """Sums over all steps up to each, or from each on.

    Of one number a step as a vector: Triton 3.6 stops at a matrix of one column.
    """
    if x.shape[1] == 1:
        return tl.cumsum(tl.sum(x, 1), 0, reverse=reverse)[:, None]
    else:
        return tl.cumsum(x, 0, reverse=reverse)


@triton.jit
def since(g, i, position, inside, heads, h, size, lanes, EARLY: tl.constexpr, SIGN: tl.constexpr,
          G: tl.constexpr, CONSTANT: tl.constexpr, DTYPE: tl.constexpr):  # fmt: skip
    """Sums from the first step up to each; EARLY, up to the one before."""
    if EARLY:
        x = logs(g, position - SIGN, inside & (i > 0), heads, h, size, lanes, G, CONSTANT, DTYPE)
    else:
        x = logs(g, position, inside, heads, h, size, lanes, G, CONSTANT, DTYPE)
    return sums(x)


@triton.jit
def left(g, position, behind, heads, h, size, lanes, SIGN: tl.constexpr, G: tl.constexpr,
         CONSTANT: tl.constexpr, DTYPE: tl.constexpr):  # fmt: skip
    """Sums from behind each step on; ``behind`` says which steps have one to count behind them."""
    x = logs(g, position + SIGN, behind, heads, h, size, lanes, G, CONSTANT, DTYPE)
    return sums(x, reverse=True)


@triton.jit
def resets(reset, position, inside):
    """How many resets there were in a chunk up to each step."""
    x = tl.zeros(position.shape, tl.int32)
    if reset is not None:
        x = tl.cumsum((tl.load(reset + position, inside, 0) != 0).to(tl.int32), 0)
    return x


@triton.jit
def product(x, y, PRECISION: tl.constexpr):
    return tl.dot(x, y, input_precision=PRECISION)


@triton.jit
def finite(x):
    return tl.abs(x) < float("inf")


@triton.jit
def marks(x):
    """1 for each row that holds a number that is not finite, 0 for the others."""
    return tl.max(tl.where(finite(x), 0, 1), 1)


@triton.jit
def reached(visible, bad):
    """A mask of the steps that see a bad one; ``visible`` (steps, others)."""
    return tl.max(tl.where(visible, bad[None, :], 0), 1) > 0


@triton.jit
def mixed(weights, x, visible, PRECISION: tl.constexpr):
    """``weights @ x``, weights being 0 where nothing is seen, also where x is not finite.

    Zero times NaN is not zero: what is not finite is kept out of the product, and reaches those
    who see it.
    """
    y = product(weights, tl.where(finite(x), x, 0), PRECISION)
    return tl.where(reached(visible, marks(x))[:, None], float("nan"), y)


@triton.jit
def numbers(p, h, size, lanes, DTYPE: tl.constexpr):
    """The numbers of a head, one for each channel."""
    return tl.load(p + h * size + lanes, lanes < size, 0).to(DTYPE)


@triton.jit
def between(g, i, position, inside, heads, h, EARLY: tl.constexpr, SIGN: tl.constexpr,
            CONSTANT: tl.constexpr, DTYPE: tl.constexpr):  # fmt: skip
    """Sums over the steps after j up to i, or to the one before it, (i, j), by head."""
    one = tl.arange(0, 1)
    if EARLY:
        x = logs(g, position - SIGN, inside & (i > 0), heads, h, 1, one, 1, CONSTANT, DTYPE)
        x = tl.where(i[:, None] > i[None, :] + 1, x, 0)
    else:
        x = logs(g, position, inside, heads, h, 1, one, 1, CONSTANT, DTYPE)
        x = tl.where(i[:, None] > i[None, :], x, 0)
    return tl.cumsum(x, 0)
