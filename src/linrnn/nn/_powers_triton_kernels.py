"""Triton kernels of all products of two channels; `linrnn.nn.features` has the equations."""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-any-return"
# no_type_check keeps the shape checker from wrapping kernels: Triton compiles what the source says

from typing import no_type_check

import triton
import triton.language as tl

from linrnn.compute.triton_kernel import kernel


@triton.jit
@no_type_check
def _first(i, D: tl.constexpr):
    """The number of the product of channel i with itself, after those of the channels before."""
    return i * D - i * (i - 1) // 2


@triton.jit
@no_type_check
def _channels(f, D: tl.constexpr):
    """Both channels of product f."""
    root = tl.sqrt(((2 * D + 1) * (2 * D + 1) - 8 * f).to(tl.float32))
    i = ((2 * D + 1 - root) / 2).to(tl.int32)
    i = tl.where(_first(i, D) > f, i - 1, i)  # a root is rounded
    i = tl.where(_first(i + 1, D) <= f, i + 1, i)
    return i, i + f - _first(i, D)


@triton.jit
@no_type_check
def _weights(is_square, DIAGONAL: tl.constexpr, OTHER: tl.constexpr, DTYPE: tl.constexpr):
    """A number that is no tensor has single precision."""
    square, other = tl.full([1], DIAGONAL, DTYPE), tl.full([1], OTHER, DTYPE)
    return tl.where(is_square, square, other)


@kernel
@no_type_check
def run_forward(
    x, y, batch,
    DIAGONAL: tl.constexpr, OTHER: tl.constexpr, LINEAR: tl.constexpr, D: tl.constexpr,
    FEATURES: tl.constexpr, DTYPE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Some features of some rows."""
    blocks: tl.constexpr = (FEATURES + BLOCK - 1) // BLOCK
    program = tl.program_id(0)
    row = (program // blocks).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    feature = program % blocks * BLOCK + tl.arange(0, BLOCK)
    inside = (row < batch) & (feature[None, :] < FEATURES)
    lead: tl.constexpr = 1 + D if LINEAR else 0
    f = feature - lead
    is_product = (f >= 0) & (feature < FEATURES)
    i, j = _channels(tl.where(is_product, f, 0), D)
    weight = _weights(i == j, DIAGONAL, OTHER, DTYPE)
    if LINEAR:
        i = tl.where(is_product, i, tl.where(feature == 0, 0, feature - 1))
    left = tl.load(x + row * D + i[None, :], mask=inside, other=0).to(DTYPE)
    right = tl.load(x + row * D + j[None, :], mask=inside & is_product[None, :], other=0)
    product = left * (right.to(DTYPE) * weight[None, :])
    if LINEAR:
        product = tl.where(is_product[None, :], product, left)
        product = tl.where(feature[None, :] == 0, 1, product)
    tl.store(y + row * FEATURES + feature[None, :], product, mask=inside)


@kernel
@no_type_check
def run_backward(
    x, grad, grad_x, batch,
    DIAGONAL: tl.constexpr, OTHER: tl.constexpr, LINEAR: tl.constexpr, D: tl.constexpr,
    FEATURES: tl.constexpr, DTYPE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient of all channels of some rows: a channel is in D products, in a fixed order."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    i = tl.arange(0, BLOCK)[None, :]
    inside = (row < batch) & (i < D)
    grad += row * FEATURES
    total = tl.zeros([ROWS, BLOCK], DTYPE)
    if LINEAR:
        total += tl.load(grad + 1 + i, mask=inside, other=0).to(DTYPE)
        grad += 1 + D
    for j in range(D):
        low = tl.minimum(i, j)
        f = _first(low, D) + tl.maximum(i, j) - low
        g = tl.load(grad + f, mask=inside, other=0).to(DTYPE)
        beside = tl.load(x + row * D + j, mask=row < batch, other=0).to(DTYPE)
        total += g * beside * _weights(i == j, 2 * DIAGONAL, OTHER, DTYPE)
    tl.store(grad_x + row * D + i, total, mask=inside)
