"""The triangular systems of the delta rule, a chunk at a time."""

# Triton compiles the source of these functions: no annotations, and names as in a kernel.
# mypy: ignore-errors

import triton
import triton.language as tl

from linrnn.compute.triton_kernel import kernel
from linrnn.ops.matrix._memory._triton_steps import finite, marks, product


@triton.jit
def _block(p, row, column, CHUNK: tl.constexpr, SIDE: tl.constexpr):
    i = tl.arange(0, SIDE)
    return p + (row * SIDE + i[:, None]) * CHUNK + column * SIDE + i[None, :]


@triton.jit
def _substituted(A, SIDE: tl.constexpr, DTYPE: tl.constexpr):
    """The inverse of 1 - A, which is strictly lower triangular, row after row."""
    i = tl.arange(0, SIDE)
    T = (i[:, None] == i[None, :]).to(DTYPE)
    for r in range(1, SIDE):
        weight = tl.sum(tl.where(i[:, None] == r, A, 0), 0)[:, None]
        # of steps that are not seen, weight 0, nothing is taken, not even infinity
        row = tl.sum(tl.where(weight != 0, weight * T, 0), 0)
        T = tl.where(i[:, None] == r, row[None, :] + (i[None, :] == r).to(DTYPE), T)
    return T


@kernel
def run_solve(A, T, CHUNK: tl.constexpr, SIDE: tl.constexpr, DTYPE: tl.constexpr,
              SOLVING: tl.constexpr):  # fmt: skip
    """``T = (1 - A)^-1`` by blocks; NaN on the diagonal marks a row that is not finite."""
    BLOCKS: tl.constexpr = CHUNK // SIDE
    A += tl.program_id(0).to(tl.int64) * CHUNK * CHUNK
    T += tl.program_id(0).to(tl.int64) * CHUNK * CHUNK
    i = tl.arange(0, SIDE)
    done = ()  # the rows of blocks so far, without what is not finite
    for row in tl.static_range(BLOCKS):
        diagonal = tl.load(_block(A, row, row, CHUNK, SIDE))
        bad = marks(diagonal)
        diagonal = _substituted(tl.where(finite(diagonal), diagonal, 0), SIDE, DTYPE)
        bad = tl.maximum(bad, marks(diagonal))
        diagonal = tl.where(finite(diagonal), diagonal, 0)
        for column in tl.static_range(BLOCKS):
            tile = tl.zeros((SIDE, SIDE), DTYPE)
            if column < row:
                for m in tl.static_range(column, row):
                    near = tl.load(_block(A, row, m, CHUNK, SIDE))
                    bad = tl.maximum(bad, marks(near))
                    near = tl.where(finite(near), near, 0)
                    tile += product(near, done[m * (m + 1) // 2 + column], SOLVING)
                bad = tl.maximum(bad, marks(tile))
                tile = product(diagonal, tl.where(finite(tile), tile, 0), SOLVING)
                bad = tl.maximum(bad, marks(tile))
                tile = tl.where(finite(tile), tile, 0)
                done = done + (tile,)  # noqa: RUF005  # Triton knows no unpacking into a tuple
            if column != row:
                tl.store(_block(T, row, column, CHUNK, SIDE), tile)
        done = done + (diagonal,)  # noqa: RUF005
        marked = (i[:, None] == i[None, :]) & (bad > 0)[:, None]
        tl.store(_block(T, row, row, CHUNK, SIDE), tl.where(marked, float("nan"), diagonal))
