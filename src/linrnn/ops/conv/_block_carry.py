"""States of diagonal systems before every block of time, written over what the blocks add.

``h_n = decay * h_{n-1} + left_n``, one ``n`` a block. Both directions write where they read, so a
layer holds one state a block and no more.
"""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from linrnn.compute.backend import choose, module_of

_MODULES = (
    ("triton", "linrnn.ops.conv._block_carry_triton"),
    ("cpu", "linrnn.ops.conv._block_carry_cpu"),
)


def carry(left: Tensor, first: Tensor, decay: Tensor) -> Tensor:
    """Write the state before each block over what the block adds; return the last one.

    Args:
        left: (H, B, n, M), in order.
        first: (H, B, M).
        decay: (H, M).
    """
    kernels = _kernels(left)
    if kernels is not None:
        last: Tensor = kernels.forward(left, first, decay)
        return last
    h, decay = first, decay[:, None]
    for block in left.unbind(2):
        # for complex numbers `addcmul` takes four times as long
        next_state = (decay * h).add_(block)
        block.copy_(h)
        h = next_state
    return h


def carry_back(left: Tensor, states: Tensor, grad: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    """Write the gradient of what each block adds over that of the state before it.

    Args:
        left: (H, B, n, M), in order.
        states: those that `carry` left.
        grad: (H, B, M), of the last state.
        decay: (H, M).

    Returns:
        The gradients of the first state and of the decay.
    """
    kernels = _kernels(left)
    if kernels is not None:
        gradients: tuple[Tensor, Tensor] = kernels.backward(left, states, grad, decay)
        return gradients
    decay = decay[:, None].conj_physical()
    total = torch.zeros_like(grad, memory_format=torch.contiguous_format)
    for block, h in zip(reversed(left.unbind(2)), reversed(states.unbind(2)), strict=True):
        total.add_(h * grad.conj_physical())
        earlier = (decay * grad).add_(block)
        block.copy_(grad)
        grad = earlier
    return grad, total.sum(1).conj_physical()


def carry_dense(left: Tensor, first: Tensor, decay: Tensor) -> Tensor:
    """Compute `carry` for states of real numbers, (H, B, n, K), and matrices (H, K, K)."""
    kernels = _dense_kernels(left)
    if kernels is not None:
        last: Tensor = kernels.carry_dense(left, first, decay)
        return last
    h = first
    for block in left.unbind(2):
        next_state = torch.baddbmm(block, h, decay)  # (H, B, K)
        block.copy_(h)
        h = next_state
    return h


def carry_dense_back(left: Tensor, grad: Tensor, decay: Tensor) -> Tensor:
    """Compute `carry_back` for these; returns the gradient of the first state alone."""
    kernels = _dense_kernels(left)
    if kernels is not None:
        first: Tensor = kernels.carry_dense(left, grad, decay, back=True)
        return first
    for block in reversed(left.unbind(2)):
        earlier = torch.baddbmm(block, grad, decay.mT)  # (H, B, K)
        block.copy_(grad)
        grad = earlier
    return grad


def carried_by(states: Tensor) -> tuple[str, str]:
    """The backend that carries such states, and a sentence saying why."""
    return choose("block_carry", _MODULES, None, states.device, states.dtype)


def _dense_kernels(left: Tensor) -> Any:
    """Kernels for matrices; the native ones have none, where products are a library's."""
    kernels: Any = _kernels(left)
    return kernels if hasattr(kernels, "carry_dense") and kernels.carries_dense(left) else None


def _kernels(left: Tensor) -> ModuleType | None:
    name, _ = carried_by(left)
    return module_of(_MODULES, name)
