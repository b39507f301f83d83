"""`pair_scan` by the native kernel ``src/native/kernels/scan.cpp``."""

from typing import Any

import torch
from torch import Tensor

from linrnn.compute import native
from linrnn.compute.layout import aligned, dense
from linrnn.ops.linear._scan_kernel import SCAN


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernel cannot compute on that device and dtype of ``b``, or None."""
    if dtype is not torch.bfloat16:
        return f"it has no kernel for pairs of {dtype}"
    return native.unavailable(device, dtype)


def forward(b: Tensor, a: Tensor, initial_state: Tensor, reset: Tensor | None) -> Any:
    """``h_t = a h_{t-1} + b_t``, and the state after the last step."""
    h, first = torch.empty(b.shape, dtype=b.dtype, device="cpu"), dense(initial_state)
    final = torch.empty(first.shape, dtype=first.dtype, device="cpu")
    _run(a, b, h, reset, (first.data_ptr(), final.data_ptr(), 0, 0, 0))
    return h, final


def backward(
    b: Tensor,
    a: Tensor,
    initial_state: Tensor,
    reset: Tensor | None,
    h: Tensor,
    grad_h: Tensor,
    grad_final: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of ``(b, a, initial_state)`` in one pass over ``h`` and ``grad_h``."""
    first, into_final = dense(initial_state), dense(grad_final)
    grad_a, grad_b, grad_first = (
        torch.empty(z.shape, dtype=z.dtype, device="cpu") for z in (a, b, first)
    )
    outputs = (grad_a.data_ptr(), grad_b.data_ptr(), grad_first.data_ptr())
    _run(a, grad_h, h, reset, (first.data_ptr(), into_final.data_ptr(), *outputs), backward=True)
    return grad_b, grad_a, grad_first


def _run(
    a: Tensor,
    b: Tensor,
    h: Tensor,
    reset: Tensor | None,
    states: tuple[int, int, int, int, int],
    *,
    backward: bool = False,
) -> None:
    a, b, h = dense(a), _pairs_side_by_side(b), _pairs_side_by_side(h)
    batch, time, channels, _ = h.shape
    code = native.PAIRS[b.dtype]
    sizes = False, backward, True, batch, time, channels, 0
    places = a.data_ptr(), 0, 0, *_array(b), *_array(h), *native.array(reset)
    native.run(SCAN.name, SCAN.pack(code, native.threads(), *sizes, *places, *states))


def _pairs_side_by_side(x: Tensor) -> Tensor:
    """``x`` (B, T, N, 2) with any strides of whole pairs for batch and time."""
    batch, time, *inner = x.stride()
    whole = not (batch % 2 or time % 2) and inner == [2, 1]
    return x if whole and aligned(x) else dense(x)


def _array(x: Tensor) -> tuple[int, int, int]:
    """Address and strides in pairs."""
    return x.data_ptr(), x.stride(0) // 2, x.stride(1) // 2
