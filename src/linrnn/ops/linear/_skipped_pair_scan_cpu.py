"""`skipped_pair_scan` by PyTorch's products and native kernels, which share their passes."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute import native
from linrnn.compute.layout import dense
from linrnn.ops._half_linear_cpu import rounded, weight_gradient
from linrnn.ops.linear import _pair_scan_cpu as scan
from linrnn.ops.linear import _skip_cpu as skip

_HALF = torch.bfloat16


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot compute on that device and dtype, or None."""
    if dtype is not torch.float32:
        return f"it has no kernel for {dtype}"
    return native.unavailable(device, dtype, real=True, kernel="weight_gradient")


def forward(
    x: Tensor,
    B: Tensor,
    a: Tensor,
    initial_state: Tensor,
    C: Tensor,
    D: Tensor,
    reset: Tensor | None,
    *,
    keep: bool,
) -> tuple[Tensor, ...]:
    """``y`` and the last state; with ``keep`` also the rounded input and the states."""
    x = dense(x)
    halves = rounded(x)
    b = F.linear(halves, B.to(_HALF)).unflatten(-1, (len(B) // 2, 2))  # (B, T, N, 2)
    h, last = scan.forward(b, a, initial_state, reset)
    (y,) = skip.forward(F.linear(h.flatten(-2), C.to(_HALF)), D, x)  # (B, T, outputs)
    return (y, last, halves, h) if keep else (y, last)


def backward(
    x: Tensor,
    B: Tensor,
    a: Tensor,
    initial_state: Tensor,
    C: Tensor,
    D: Tensor,
    reset: Tensor | None,
    halves: Tensor,
    h: Tensor,
    grad: Tensor,
    grad_last: Tensor,
    needs: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Gradients of the first six arguments; that of ``x`` is written once."""
    grad_z, grad_D = skip.without_x(halves, D, x, grad)
    rows = grad_z.flatten(0, 1)  # (B T, outputs)
    grad_C, _ = weight_gradient(rows, h.flatten(2).flatten(0, 1))  # (outputs, 2 N)
    into_h = (rows @ C.to(_HALF)).view(h.shape)  # (B, T, N, 2)
    grad_b, grad_a, grad_first = scan.backward(h, a, initial_state, reset, h, into_h, grad_last)
    rows = grad_b.flatten(2).flatten(0, 1)  # (B T, 2 N)
    grad_B, _ = weight_gradient(rows, halves.flatten(0, 1))  # (2 N, inputs)
    grad_x = None
    if needs[0]:
        through = (rows @ B.to(_HALF)).view(x.shape)  # (B, T, inputs)
        (grad_x,) = skip.forward(through, D, grad)
    return grad_x, grad_B, grad_a, grad_first, grad_C, grad_D
