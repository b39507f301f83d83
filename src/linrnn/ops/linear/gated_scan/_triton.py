"""`gated_scan` by the kernels of `linear_scan`, in which gates are computed as rows arrive."""

import functools
from typing import Any

import torch
from torch import Tensor

from linrnn.compute import gpu
from linrnn.compute.launch import layout
from linrnn.compute.layout import accumulator_dtype, dense, n_sequences, unit_channels
from linrnn.ops.linear.linear_scan.triton_plan import (
    Launches,
    launches,
    make_plan,
    offsets_on,
    strides,
)

#: Steps of a stretch: of two parts, and of three or backward, of which more would not fit in
#: registers beside what exponentials need.
MOST_STEPS, MOST_STEPS_BACK = 8, 4
#: The gradient of a final state that nobody reads is None, and costs no kernel that writes zeros.
SPARSE_GRADS = (1,)


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot compute on that device and dtype, or None."""
    return f"it has no kernel for {dtype}" if dtype.is_complex else gpu.unavailable(device, dtype)


def form(x: Tensor, *remaining: Any) -> str:
    """How the kernels are laid out for a call, and why."""
    (batch, time, _, channels), seqs = x.shape, n_sequences(x, remaining[2])
    return make_plan((batch, time, channels), x.dtype, seqs, x.device).why(seqs, x.device)


def forward(
    x: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    *options: Any,
) -> tuple[Tensor, Tensor]:
    """``(h, final_state)``, from one read of the pre-activations unless time is split."""
    x = unit_channels(x)
    batch, time, _, channels = x.shape
    seqs = n_sequences(x, cu_seqlens)
    h = torch.empty((batch, time, channels), dtype=x.dtype, device=x.device)
    final = torch.empty((seqs, channels), dtype=accumulator_dtype(x.dtype), device=x.device)
    layouts = (layout(x), None, layout(reset))
    scan = _launches(layouts, seqs, x.device, options)
    offsets = offsets_on(x.device, cu_seqlens)
    with torch.cuda.device_of(x):
        initial = None if initial_state is None else dense(initial_state)
        scan.run(x, reset, offsets, initial, h, final, *scan.handed(x.device))
    return h, final


def backward(
    x: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    *remaining: Any,
) -> tuple[Tensor, Tensor]:
    """Gradients of ``(x, initial_state)``."""
    *options, h, grad_h, grad_final = remaining
    x, h, grad_h = unit_channels(x), dense(h), unit_channels(grad_h)
    seqs = n_sequences(x, cu_seqlens)
    layouts = (layout(x), layout(grad_h), layout(reset))
    scan = _launches(layouts, seqs, x.device, tuple(options))
    grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    of_state = (seqs, h.shape[2])
    grad_initial = torch.empty(of_state, dtype=accumulator_dtype(x.dtype), device=x.device)
    offsets = offsets_on(x.device, cu_seqlens)
    initial = None if initial_state is None else dense(initial_state)
    with torch.cuda.device_of(x):
        entering = None if grad_final is None else dense(grad_final)
        grads = (grad_x, grad_initial)
        scan.run(x, grad_h, h, reset, offsets, initial, entering, *grads, *scan.handed(x.device))
    return grad_x, grad_initial


@functools.lru_cache(maxsize=256)
def _launches(
    layouts: tuple[Any, ...],
    seqs: int,
    device: torch.device,
    options: tuple[Any, ...],
) -> Launches:
    """How calls of one layout are computed.

    Args:
        layouts: of the pre-activations, of the gradient of the states, of resets; without the
            second it is the forward pass.
        seqs: how many sequences there are.
        device: of all tensors, on which kernels are loaded.
        options: of the call.
    """
    inputs, grads, resets = layouts
    (batch, time, parts, channels), steps, dtype = inputs
    positive, normalise, start, reverse = options
    adjoint = grads is not None
    plan = make_plan((batch, time, channels), dtype, seqs, device)
    fixed: dict[str, Any] = {
        "a": None, "part": steps[2], "time": time, "channels": channels,
        "GATES": 1 if parts == 2 else 2 if normalise else 3, "POSITIVE": positive,
        "START": float(start), "CONSTANT": False, "FLIP": reverse != adjoint, "ADJOINT": adjoint,
        **strides("b", inputs), **strides("reset", resets),
    }  # fmt: skip
    if adjoint:
        states = {"h_seq": time * channels, "h_step": channels}
        fixed |= {"grad_a": None, **strides("g", grads), **states}
    else:
        fixed["g"] = None
    most = MOST_STEPS_BACK if adjoint or parts > 2 else MOST_STEPS
    return launches(plan, seqs, dtype, fixed, parts + 2 * adjoint, most)
