"""`log_linear_scan` by the native kernel in ``src/native/kernels/log_scan.cpp``."""

import functools

import torch
from torch import Tensor

from linrnn.compute import native
from linrnn.compute.layout import empty_results
from linrnn.compute.native import pointer
from linrnn.ops.linear._scan_kernel import LOG_SCAN, prepare, run
from linrnn.ops.linear.linear_scan.op import linear
from linrnn.ops.linear.log_linear_scan._transforms import log_scan_adjoint


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernel cannot compute on that device and dtype, or None."""
    return native.unavailable(device, dtype, real=True)


def forward(
    log_a: Tensor,
    log_b: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """``log h_t = logaddexp(log a_t + log h_{t-1}, log b_t)`` in one pass."""
    a, b, initial_state, cu_seqlens = prepare(log_a, log_b, initial_state, cu_seqlens)
    log_h, final = empty_results(b, cu_seqlens)
    states = (pointer(initial_state), final.data_ptr(), 0, 0, 0)
    run(a, b, log_h, reset, cu_seqlens, reverse, states, kernel=LOG_SCAN)
    return log_h, final


def _shares_backward(
    keep: Tensor,
    grad_h: Tensor,
    grad_final: Tensor,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """Compute `backward_in_time` by the fused adjoint of `linear_scan`."""
    arguments = (keep, None, None, reset, cu_seqlens, reverse)
    _, delta, into_initial = linear.backward(arguments, (keep,), (grad_h, grad_final))
    return delta, into_initial


#: Gradients of ``(log_a, log_b, initial_state)``: the share of the old state is a linear decay.
backward = functools.partial(log_scan_adjoint, _shares_backward)
