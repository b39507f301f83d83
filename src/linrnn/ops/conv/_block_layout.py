"""Inputs and outputs in blocks of time, channels first; what is not finite stays out of products.

Half of a matrix of a block is zero, and zero times infinity is not: what is not finite would reach
steps before it. So products read zeros in its place, and its block is marked from there on.
"""

from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from linrnn.compute.backend import choose, module_of
from linrnn.compute.modes import eager, seen_finite

_MODULES = (("triton", "linrnn.ops.conv._block_layout_triton"),)


class Marks(NamedTuple):
    """Where blocks are not finite; n blocks of H channels."""

    states: Tensor  # (H, n, 1): added to the states that a block leaves, NaN or 0
    outputs: Tensor  # (H, n, Q): added to outputs; of a kernel (H, n), the first bad step


def cut(u: Tensor, size: int) -> tuple[Tensor, Marks | None]:
    """`to_blocks` with zeros for what is not finite, and its marks; None if all is seen to be."""
    kernels = _kernels(u)
    if kernels is not None:
        x, states, first = kernels.cut(u, size)
        return x, Marks(states, first)
    x, mark = finite(to_blocks(u, size))
    return x, None if mark is None else Marks(mark[..., -1:], mark)


def joined(y: Tensor, marks: Marks | None, shape: torch.Size) -> Tensor:
    """`from_blocks` of outputs (H, n, Q), NaN from the first step on that is not finite."""
    if marks is None:
        return from_blocks(y, shape)
    kernels = _kernels(y)
    if kernels is not None:
        outputs: Tensor = kernels.join(y, marks.outputs, None, shape)
        return outputs
    return from_blocks(y + marks.outputs, shape)


def joined_gradient(grad: Tensor, u: Tensor, *, marked: bool) -> Tensor:
    """`from_blocks` of the gradient (H, n, Q) of ``u``, zero where it was cut out."""
    if not marked:
        return from_blocks(grad, u.shape)
    kernels = _kernels(grad)
    if kernels is not None:
        of_u: Tensor = kernels.join(grad, None, u, u.shape)
        return of_u
    return torch.where(u.isfinite(), from_blocks(grad, u.shape), 0)


def finite(x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Inputs for a product, zero where not finite, and a mark of the steps from there on."""
    if seen_finite(x):
        return x, None
    size = x.shape[-1]
    step = torch.arange(size, device=x.device)
    first = torch.where(x.detach().isfinite(), size, step).amin(-1, keepdim=True)
    mark = torch.where(step < first, 0.0, float("nan"))  # NaN from the first bad step on
    return x.nan_to_num(0, 0, 0), mark.to(x.dtype)


def to_blocks(u: Tensor, size: int) -> Tensor:
    """(B, T, H) as (H, B * T/Q, Q): channels first, since every channel has its own matrices."""
    # a transposition of two axes, which PyTorch copies tile by tile, unlike one of more
    return u.reshape(-1, u.shape[2]).t().contiguous().view(u.shape[2], -1, size)  # (C, n, Q)


def from_blocks(y: Tensor, shape: torch.Size) -> Tensor:
    """The inverse of `to_blocks`."""
    return y.reshape(y.shape[0], -1).t().contiguous().view(shape)  # (B, T, C)


def _kernels(x: Tensor) -> ModuleType | None:
    if not eager(x):
        return None
    name, _ = choose("block_layout", _MODULES, None, x.device, x.dtype)
    return module_of(_MODULES, name)
