"""Blocks of time with every product written down once, and a hand-written gradient.

What `linrnn.ops.conv._blocks` composes of PyTorch's operators, for plain tensors that nothing cuts:
one layout for all products, the states carried where they lie, and in the gradient no copy but
those of input and output. States are kept for it, one a block.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute.derivatives import through_definition
from linrnn.compute.modes import eager
from linrnn.compute.pairs import pairs, rows
from linrnn.ops.conv._block_carry import carry, carry_back, carry_dense, carry_dense_back
from linrnn.ops.conv._block_layout import cut, joined, joined_gradient, to_blocks

Definition = Callable[..., tuple[Tensor, Tensor]]


class FusedBlocks(torch.autograd.Function):
    """``(y, h)`` of u, h, and a system's ``kernel, into, out, decay``."""

    @staticmethod
    def forward(ctx: Any, definition: Definition, *arguments: Tensor) -> tuple[Tensor, Tensor]:
        u, h, kernel, into, out, decay = arguments
        shape = (*u.shape[:2], into.shape[1])
        x, marks = cut(u, into.shape[1])  # (H, B * T/Q, Q)
        entering = x @ into  # (H, B * T/Q, K)
        entering = entering if marks is None else entering.add_(marks.states)
        first = h.transpose(0, 1)  # (H, B, M)
        if decay.ndim == 3:
            last = pairs(carry_dense(_blocks(entering, shape), rows(first), decay), h)
        else:
            last = carry(_states(entering, h, shape), first, decay)
        y = torch.baddbmm(x @ toeplitz(kernel), entering, out)  # (H, B * T/Q, Q)
        ctx.marked = marks is not None
        ctx.save_for_backward(*arguments, x, entering)
        ctx.definition = definition
        return joined(y, marks, u.shape), last.transpose(0, 1).contiguous()  # (B, T, H), (B, H, M)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        *arguments, x, entering = ctx.saved_tensors
        if torch.is_grad_enabled() or not eager(*grads):
            needs_grad = ctx.needs_input_grad[1:]
            return None, *through_definition(ctx.definition, arguments, needs_grad, grads)
        u, h, kernel, into, out, decay = arguments
        shape = (*u.shape[:2], into.shape[1])
        g = to_blocks(grads[0], into.shape[1])  # (H, B * T/Q, Q)
        left = g @ out.mT  # the gradient of the states before each block, then of what is added
        first = grads[1].transpose(0, 1)  # (H, B, M)
        if decay.ndim == 3:
            first = pairs(carry_dense_back(_blocks(left, shape), rows(first), decay), h)
            grad_decay = entering.mT @ left  # (H, K, K)
        else:
            first, grad_decay = carry_back(
                _states(left, h, shape), _states(entering, h, shape), first, decay
            )
        grad_x = None
        if ctx.needs_input_grad[1]:
            grad_x = torch.baddbmm(g @ toeplitz(kernel).mT, left, into.mT)  # (H, B * T/Q, Q)
            grad_x = joined_gradient(grad_x, u, marked=ctx.marked)
        return (
            None,
            grad_x,
            first.transpose(0, 1),  # (B, H, M)
            _diagonals(x.mT @ g),  # (H, Q)
            x.mT @ left,  # (H, Q, K)
            (g.mT @ entering).mT,  # (H, K, Q), in the layout of `out`
            grad_decay,
        )


def toeplitz(kernel: Tensor) -> Tensor:
    """(H, Q, Q): entry (j, i) is ``kernel[i - j]``, zero for i < j."""
    channels, size = kernel.shape
    row = F.pad(kernel, (size - 1, 0))  # (H, 2 Q - 1)
    # read with a period of one more than its length, each copy begins one later; ``unfold`` would
    # be shorter, but PyTorch has no batching rule for its gradient
    copies = row[:, None].expand(-1, size + 1, -1).reshape(channels, -1)  # (H, (Q + 1) (2 Q - 1))
    shifted = copies[:, : size * 2 * size].view(channels, size, 2 * size)  # (H, Q, 2 Q)
    return shifted[..., :size].flip(1)


def _diagonals(matrix: Tensor) -> Tensor:
    """Sums (H, Q) along the main diagonal and those above, the adjoint of `toeplitz`."""
    channels, size = matrix.shape[:2]
    # each row is read one place later than the one below it
    # (C, Q (2 Q - 1))
    rows = F.pad(matrix.flip(1), (0, size)).view(channels, -1)[:, : size * (2 * size - 1)]
    return rows.view(channels, size, 2 * size - 1).sum(1)[:, size - 1 :]  # (H, Q)


def _states(columns: Tensor, h: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """(H, B * T/Q, K) as the numbers of states (H, B, T/Q, M)."""
    view = _blocks(columns, shape)
    # (H, B, T/Q, M)
    return torch.view_as_complex(view.unflatten(-1, (-1, 2))) if h.is_complex() else view


def _blocks(columns: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """(H, B * T/Q, K) as real numbers (H, B, T/Q, K)."""
    batch, time, size = shape
    return columns.view(columns.shape[0], batch, time // size, -1)  # (H, B, T/Q, K)
