"""`log_linear_scan` by the Triton kernel in ``_triton_kernel.py``; its adjoint is a linear scan."""

import functools
import importlib
from typing import Any

import torch
from torch import Tensor

from linrnn.compute import gpu
from linrnn.compute.launch import Launch, layout
from linrnn.compute.layout import dense, empty_results, unit_channels
from linrnn.ops.linear.linear_scan.triton_plan import dtype_of, offsets_on, strides
from linrnn.ops.linear.log_linear_scan._cpu import backward as backward

#: Numbers of a row that a thread has at once where programs are many, in bytes.
VECTOR = 16
#: Steps at once, and groups of them whose rows are on their way.
UNROLL, AHEAD = 4, 4


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernel cannot compute on that device and dtype, or None."""
    return f"it has no kernel for {dtype}" if dtype.is_complex else gpu.unavailable(device, dtype)


def forward(
    log_a: Tensor,
    log_b: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """``log h_t = logaddexp(log a_t + log h_{t-1}, log b_t)`` in one pass."""
    h, final = empty_results(log_b, cu_seqlens)
    a, b = unit_channels(log_a), unit_channels(log_b)
    run = _launch(layout(a), layout(b), layout(reset), final.shape[0], b.device, reverse)
    offsets = offsets_on(b.device, cu_seqlens)
    with torch.cuda.device_of(b):
        initial = None if initial_state is None else dense(initial_state)
        run(a, b, reset, offsets, initial, h, final)
    return h, final


@functools.lru_cache(maxsize=256)
def _launch(
    decay: Any, added: Any, resets: Any, seqs: int, device: torch.device, flip: bool
) -> Launch:
    """How calls of one layout are computed.

    Args:
        decay, added, resets: layouts of ``log_a``, ``log_b`` and the reset mask.
        seqs: how many sequences there are.
        device: of all tensors.
        flip: from the last step to the first.
    """
    (_, time, channels), _, dtype = added
    wide = max(VECTOR // dtype.itemsize, 1)
    while wide > 1 and seqs * -(-channels // (32 * wide)) < gpu.ENOUGH * gpu.processors(device):
        wide //= 2
    fixed = {
        "time": time, "channels": channels, "CONSTANT": len(decay[0]) == 1, "FLIP": flip,
        "DTYPE": dtype_of(dtype), **strides("a", decay), **strides("b", added),
        **strides("reset", resets),
    }  # fmt: skip
    options = {"BLOCK": 32 * wide, "UNROLL": UNROLL, "AHEAD": max(AHEAD // wide, 1)}
    options |= {"num_warps": 1, "enable_fp_fusion": True}
    kernel = importlib.import_module("linrnn.ops.linear.log_linear_scan._triton_kernel").run_forward
    return Launch(kernel, seqs * -(-channels // (32 * wide)), fixed, options)
