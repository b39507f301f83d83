"""Parts of a tensor side by side along its last axis, whose gradients lie as they do.

A projection gives all gates in one tensor. PyTorch's ``chunk`` copies their gradients together
again; an op that writes them side by side from the first saves that.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from linrnn.compute.modes import eager, eager_apply


def parts(x: Tensor, count: int) -> list[Tensor]:
    """``x.chunk(count, -1)``, of an axis that ``count`` parts fill.

    Example:
        >>> [p.tolist() for p in parts(torch.arange(6.0).view(1, 6), 3)]
        [[[0.0, 1.0]], [[2.0, 3.0]], [[4.0, 5.0]]]
    """
    recorded = x.requires_grad and torch.is_grad_enabled()
    if not recorded or count == 1 or not eager(x):
        return list(x.chunk(count, -1))
    return list(_apply(x, count))


class _Parts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, count: int) -> tuple[Tensor, ...]:
        return tuple(x.chunk(count, -1))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _joined(grads), None


_apply = eager_apply(_Parts)


def _joined(grads: Sequence[Tensor]) -> Tensor:
    """Join the parts, without a copy where they lie side by side."""
    if torch.is_grad_enabled() or not eager(*grads) or not _side_by_side(grads):
        return torch.cat(list(grads), -1)
    first = grads[0]
    shape = (*first.shape[:-1], len(grads) * first.shape[-1])
    return first.as_strided(shape, first.stride(), first.storage_offset())


def _side_by_side(tensors: Sequence[Tensor]) -> bool:
    """Whether all make one dense tensor along the last axis."""
    first, width = tensors[0], tensors[0].shape[-1]
    row = len(tensors) * width
    dense = row
    for size, stride in zip(first.shape[-2::-1], first.stride()[-2::-1], strict=True):
        if stride != dense:
            return False
        dense *= size
    memory = first.untyped_storage().data_ptr()
    if first.stride(-1) != 1:
        return False
    for i, x in enumerate(tensors):
        if (x.shape, x.dtype, x.stride()) != (first.shape, first.dtype, first.stride()):
            return False
        if x.storage_offset() != first.storage_offset() + i * width:
            return False
        if x.untyped_storage().data_ptr() != memory:
            return False
    return True


def like_parts(tensors: Sequence[Tensor]) -> list[Tensor] | None:
    """New tensors that lie side by side as these do; None where they do not."""
    if len(tensors) < 2 or not _side_by_side(tensors):
        return None
    *lead, width = tensors[0].shape
    return list(tensors[0].new_empty(*lead, len(tensors), width).unbind(-2))
