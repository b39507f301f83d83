"""States carried over blocks by the native kernel ``src/native/kernels/block_carry.cpp``."""

import torch
from torch import Tensor

from linrnn.compute import native
from linrnn.compute.layout import dense
from linrnn.compute.native import pointer

_CARRY = native.Kernel(
    "block_carry", "channels seqs blocks modes left first last decay backward before grad_decay"
)


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernel cannot compute on that device and dtype, or None."""
    if dtype in (torch.bfloat16, torch.float16):
        return f"it has no kernel for {dtype}"
    return native.unavailable(device, dtype, kernel="block_carry")


def forward(left: Tensor, first: Tensor, decay: Tensor) -> Tensor:
    """`linrnn.ops.conv._block_carry.carry`."""
    first, decay = dense(first), dense(decay)
    last = torch.empty_like(first)
    _run(left, first, last, decay, False, 0, 0)
    return last


def backward(left: Tensor, states: Tensor, grad: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    """`linrnn.ops.conv._block_carry.carry_back`."""
    grad, decay, states = dense(grad), dense(decay), dense(states)
    first, of_decay = torch.empty_like(grad), torch.empty_like(decay)
    _run(left, first, grad, decay, True, pointer(states), pointer(of_decay))
    return first, of_decay


def _run(left: Tensor, *operands: Tensor | int) -> None:
    addresses = (x.data_ptr() if isinstance(x, Tensor) else x for x in operands)
    _CARRY(left.dtype, *left.shape, left.data_ptr(), *addresses)
