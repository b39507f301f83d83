"""Sums of powers: the kernel of a diagonal system, without an array of modes times length."""

import importlib
from math import isqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linrnn.compute.backend import choose
from linrnn.compute.derivatives import through_definition
from linrnn.compute.modes import eager
from linrnn.compute.pairs import columns, products, rows
from linrnn.compute.product import Product


class Factors(NamedTuple):
    """The powers ``a^0 .. a^(T-1)`` as ``a^(i Q) a^j``: about 2 sqrt(T) of them for every mode."""

    fine: Tensor  # (H, Q, M): a^j
    coarse: Tensor  # (H, T / Q, M): a^(i Q), as many as it takes
    across: Tensor  # (H, M): a^T

    @classmethod
    def of(cls, a: Tensor, time: int, dtype: torch.dtype, channels: int) -> "Factors":
        """From ``a`` (H, M) in double precision, (1, M) if all ``channels`` share their modes."""
        # shared modes have one matrix of fine powers, and every channel coarse ones times its c
        size = min(time, isqrt(time * channels // a.shape[0] - 1) + 1)
        count = -(-time // size)
        fine = powers(a, size + 1)
        coarse = powers(fine[..., -1], count + 1).to(dtype)  # (H, M, T / Q + 1)
        across = coarse[..., time // size] * fine[..., time % size].to(dtype)
        fine = fine[..., :-1].to(dtype).transpose(1, 2)  # (H, Q, M)
        return cls(fine, coarse[..., :count].transpose(1, 2), across)  # coarse: (H, T/Q, M)

    def product(self, c: Tensor, time: int) -> Tensor:
        """``Re sum_n c_n a_n^t`` for ``c`` (rows, H, M): real (rows, H, T)."""
        left = columns(c.transpose(0, 1)[:, :, None] * self.coarse[:, None])  # (H, rows, T/Q, 2M)
        # (H, rows * T/Q, Q)
        response: Tensor = products(left.flatten(1, 2), rows(self.fine).transpose(1, 2))
        response = response.view(*c.shape[1::-1], -1)[..., :time]  # (H, rows, T)
        return response.transpose(0, 1)  # (rows, H, T)


def vandermonde(c: Tensor, a: Tensor, time: int) -> Tensor:
    r"""The Vandermonde product ``Re sum_n c_n a_n^t`` for t = 0 .. time - 1.

    Step t is ``i Q + j``, so that ``a^t = (a^Q)^i a^j``: a matrix product of two factors of
    sqrt(time) powers each, in real arithmetic. The (channels, modes, time) powers are never
    written, nor kept for the gradient.

    Args:
        c: weights (rows, channels, modes), real if ``a`` is real, else complex.
        a: bases (channels, modes), or (1, modes) if the channels share them; float64 or
            complex128, for a rounding of ``a`` is an error that grows with t.
        time: how many powers.

    Returns:
        (rows, channels, time), real, in the precision of ``c``.

    Example:
        >>> import torch
        >>> halves = torch.tensor([[0.5]], dtype=torch.float64)
        >>> vandermonde(torch.ones(1, 1, 1), halves, 4)
        tensor([[[1.0000, 0.5000, 0.2500, 0.1250]]])
    """
    if time == 0:
        return c.real.new_empty((*c.shape[:2], 0))
    if not a.is_complex():
        return _by_factors(c, a, time)[0]
    return _PRODUCT(c, a, time)[0]


def _by_factors(c: Tensor, a: Tensor, time: int) -> tuple[Tensor]:
    return (Factors.of(a, time, c.dtype, c.shape[1]).product(c, time),)


def powers(a: Tensor, count: int) -> Tensor:
    """``a^0 .. a^(count - 1)`` along a new last axis, each from its binary digits."""
    result, square = torch.ones_like(a)[..., None], a[..., None]
    while result.shape[-1] < count:
        result, square = torch.cat([result, result * square], -1), square * square  # (H, M, 2 n)
    return result[..., :count]


def table(a: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """``a^0 .. a^(count - 1)`` of ``a`` (H, M) as (H, count, M), in a precision to compute in."""
    if not eager(a):
        return _rounded(a, count, dtype)
    result: Tensor = _Table.apply(a, count, dtype)
    return result


def _rounded(a: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    return powers(a, count).to(dtype).transpose(1, 2)  # (H, count, M)


class _Table(torch.autograd.Function):
    """`_rounded` as one product in double precision, and a gradient in that of the result."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, count: int, dtype: torch.dtype) -> Tensor:
        power_table = _tabled(a, count, dtype)
        ctx.save_for_backward(a, power_table)
        ctx.dtype = dtype
        return power_table

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, power_table = ctx.saved_tensors
        count = power_table.shape[1]
        if torch.is_grad_enabled() or not eager(grad):
            arguments = (a, count, ctx.dtype)
            return *through_definition(_rounded, arguments, (True,), (grad,)), None, None
        exponents = torch.arange(1, count, dtype=power_table.real.dtype, device=a.device)
        terms = (exponents[:, None] * grad[:, 1:]).mul_(power_table[:, :-1].conj())
        return terms.sum(1).to(a.dtype), None, None


def _tabled(a: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """Compute `_rounded` by one kernel where there is one, or by two factors."""
    name, _ = choose("power_table", _TABLES, None, a.device, a.dtype)
    if name == "triton":
        in_one: Tensor = importlib.import_module(_TABLES[0][1]).powers(a, count, dtype)
        return in_one
    size = 1 << (count.bit_length() // 2)
    fine = powers(a, size + 1).mT  # (H, size + 1, M)
    coarse = powers(fine[:, -1], -(-count // size)).mT  # (H, count / size, M)
    # (H, count, M)
    power_table = (coarse[:, :, None] * fine[:, None, :-1]).flatten(1, 2)[:, :count].to(dtype)
    return power_table  # (H, count, M)


_TABLES = (("triton", "linrnn.ops.conv._block_carry_triton"),)

_PRODUCT = Product(
    "vandermonde",
    _by_factors,
    gradients=2,
    kernels={"cpu": "linrnn.ops.conv._vandermonde_cpu"},
)
