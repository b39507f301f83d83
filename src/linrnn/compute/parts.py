"""Parts of a tensor side by side along its last axis, whose gradients lie as they do.

A projection gives all gates in one tensor, or all vectors of heads. PyTorch's ``chunk`` copies
their gradients together again; an op that writes them side by side from the first saves that.
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
    return sections(x, [x.shape[-1] // count] * count)


def sections(x: Tensor, widths: Sequence[int]) -> list[Tensor]:
    """``x.split(widths, -1)``.

    Example:
        >>> [p.tolist() for p in sections(torch.arange(3.0), [1, 2])]
        [[0.0], [1.0, 2.0]]
    """
    recorded = x.requires_grad and torch.is_grad_enabled()
    if not recorded or len(widths) == 1 or not eager(x):
        return list(x.split(list(widths), -1))
    return list(_apply(x, widths))


class _Parts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, widths: Sequence[int]) -> tuple[Tensor, ...]:
        return tuple(x.split(list(widths), -1))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _joined(grads), None


_apply = eager_apply(_Parts)


def _joined(grads: Sequence[Tensor]) -> Tensor:
    """Join the parts, without a copy where they lie side by side."""
    if torch.is_grad_enabled() or not eager(*grads) or not _side_by_side(grads):
        return torch.cat(list(grads), -1)
    first = grads[0]
    shape = (*first.shape[:-1], sum([x.shape[-1] for x in grads]))
    return first.as_strided(shape, first.stride(), first.storage_offset())


def _side_by_side(tensors: Sequence[Tensor]) -> bool:
    """Whether all make one dense tensor along the last axis."""
    first = tensors[0]
    dense = sum([x.shape[-1] for x in tensors])
    for size, stride in zip(first.shape[-2::-1], first.stride()[-2::-1], strict=True):
        if stride != dense:
            return False
        dense *= size
    memory = first.untyped_storage().data_ptr()
    if first.stride(-1) != 1:
        return False
    rows, place = (first.shape[:-1], first.dtype, first.stride()), first.storage_offset()
    for x in tensors:
        if (x.shape[:-1], x.dtype, x.stride()) != rows or x.storage_offset() != place:
            return False
        if x.untyped_storage().data_ptr() != memory:
            return False
        place += x.shape[-1]
    return True


def like_parts(tensors: Sequence[Tensor]) -> list[Tensor] | None:
    """New tensors that lie side by side as these do; None where they do not."""
    if len(tensors) < 2 or not _side_by_side(tensors):
        return None
    widths = [x.shape[-1] for x in tensors]
    return list(tensors[0].new_empty(*tensors[0].shape[:-1], sum(widths)).split(widths, -1))
