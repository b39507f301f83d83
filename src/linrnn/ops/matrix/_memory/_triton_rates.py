"""Triton kernels of the delta rule's rates: what a write weighs, and the gradients of that.

Each number is read and written once, where PyTorch's operators would be a kernel for each product,
sum and change of dtype.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-any-return"
# no_type_check keeps the shape checker from wrapping kernels: Triton compiles what the source says

from typing import no_type_check

import triton
import triton.language as tl

from linrnn.compute.triton_kernel import kernel


@triton.jit
@no_type_check
def _rows(width, all_rows, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Rows of this program, places of their numbers, and which of both exist."""
    r = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    c = tl.arange(0, WIDTH)
    exists = r < all_rows
    return r, exists, r[:, None] * width + c[None, :], exists[:, None] & (c < width)[None, :]


@kernel
@no_type_check
def run_rates(
    k,
    v,
    beta,
    a,
    x,
    batch,
    time,
    heads,
    key_heads,
    keys: tl.constexpr,
    values: tl.constexpr,
    DTYPE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """``a = -beta k`` and ``x = beta v`` of every step and head; keys may be of several heads."""
    every = batch.to(tl.int64) * time * heads
    r, exists, at, inside = _rows(keys, every, ROWS, KEYS)
    weight = tl.load(beta + r, mask=exists, other=0).to(DTYPE)[:, None]
    shared = r // heads * key_heads + r % heads // (heads // key_heads)
    from_ = shared[:, None] * keys + tl.arange(0, KEYS)[None, :]
    tl.store(a + at, -tl.load(k + from_, mask=inside, other=0).to(DTYPE) * weight, mask=inside)
    _, _, at, inside = _rows(values, every, ROWS, COLUMNS)
    tl.store(x + at, tl.load(v + at, mask=inside, other=0).to(DTYPE) * weight, mask=inside)


@kernel
@no_type_check
def run_rates_back(
    k,
    v,
    beta,
    dq,
    dw,
    da,
    dv,
    of_q,
    of_k,
    of_v,
    of_beta,
    batch,
    time,
    heads,
    keys: tl.constexpr,
    values: tl.constexpr,
    DTYPE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Gradients of q, k, v and beta in their dtypes, from those of what kernels were given."""
    every = batch.to(tl.int64) * time * heads
    r, exists, at, inside = _rows(keys, every, ROWS, KEYS)
    weight = tl.load(beta + r, mask=exists, other=0).to(DTYPE)[:, None]
    to_a = tl.load(da + at, mask=inside, other=0)
    tl.store(of_k + at, tl.load(dw + at, mask=inside, other=0) - to_a * weight, mask=inside)
    tl.store(of_q + at, tl.load(dq + at, mask=inside, other=0), mask=inside)
    from_k = tl.sum(to_a * tl.load(k + at, mask=inside, other=0).to(DTYPE), 1)
    _, _, at, inside = _rows(values, every, ROWS, COLUMNS)
    to_x = tl.load(dv + at, mask=inside, other=0)
    tl.store(of_v + at, to_x * weight, mask=inside)
    from_v = tl.sum(to_x * tl.load(v + at, mask=inside, other=0).to(DTYPE), 1)
    tl.store(of_beta + r, from_v - from_k, mask=exists)
