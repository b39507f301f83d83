"""`linear_scan` by the native kernels in ``src/native/kernels/scan.cpp``."""

import torch
from torch import Tensor

from linrnn.compute import native
from linrnn.compute.layout import dense, empty_results, unit_channels
from linrnn.compute.native import pointer
from linrnn.ops.linear._scan_kernel import prepare, run


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot compute on that device and dtype, or None."""
    return native.unavailable(device, dtype)


def forward(
    a: Tensor,
    b: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """``h_t = a_t * h_{t-1} + b_t``."""
    a, b, initial_state, cu_seqlens = prepare(a, b, initial_state, cu_seqlens)
    h, final = empty_results(b, cu_seqlens)
    run(a, b, h, reset, cu_seqlens, reverse, (pointer(initial_state), final.data_ptr(), 0, 0, 0))
    return h, final


def backward(
    a: Tensor,
    b: None,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    reverse: bool,
    h: Tensor,
    grad_h: Tensor,
    grad_final: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The adjoint in one pass over ``a``, ``h`` and ``grad_h``."""
    a, grad_h, initial_state, cu_seqlens = prepare(a, grad_h, initial_state, cu_seqlens)
    h, grad_final = unit_channels(h), dense(grad_final)
    grad_a = torch.empty_like(a, memory_format=torch.contiguous_format)
    grad_b = torch.empty_like(h, memory_format=torch.contiguous_format)
    grad_initial = torch.empty_like(grad_final)
    outputs = (grad_a.data_ptr(), grad_b.data_ptr(), grad_initial.data_ptr())
    states = (pointer(initial_state), grad_final.data_ptr(), *outputs)
    run(a, grad_h, h, reset, cu_seqlens, reverse, states, backward=True)
    return grad_a, grad_b, grad_initial
