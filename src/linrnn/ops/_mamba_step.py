"""One streaming step of Mamba by ``src/native/kernels/mamba_step.cpp``, without gradients."""

import struct

import torch
from torch import Tensor

from linrnn.ops import _native
from linrnn.ops._native import DTYPES, pointer
from linrnn.ops._scan_op import _eager, _transformed

# the fields of MambaStepArgs in src/native/mamba_step_args.h, in order
_RECORD = struct.Struct("=26q")
#: More sequences at once are better served by the matrix products of PyTorch.
_MOST_SEQUENCES = 4


def available(x: Tensor, *weights: Tensor) -> bool:
    """Whether the kernel can compute: nobody watches, plain CPU tensors, one wide dtype."""
    return (
        not torch.is_grad_enabled()
        and x.dtype in (torch.float32, torch.float64)
        and x.device.type == "cpu"
        and 0 < len(x) <= _MOST_SEQUENCES
        and _eager(x)
        and not _transformed()
        and not torch.is_autocast_enabled("cpu")
        and all(w.dtype == x.dtype and w.is_contiguous() and not w.is_cuda for w in weights)
        and _native.load()[0] is not None
    )


def mamba_step(
    x: Tensor,
    weights: tuple[Tensor, ...],
    biases: tuple[Tensor | None, Tensor | None, Tensor | None],
    state: dict[str, Tensor],
    *,
    zoh: bool,
) -> tuple[Tensor, dict[str, Tensor]]:
    """``(y, state)`` after a step.

    Args:
        x: (batch, d_model).
        weights: in_proj, convolution, x_proj, dt_proj, its bias, A_log, D and out_proj.
        biases: of in_proj, the convolution and out_proj.
        state: ``h`` and ``conv``.
        zoh: discretise B exactly.
    """
    in_proj, conv, x_proj, dt_proj, dt_bias, A_log, D, out_proj = weights
    in_bias, conv_bias, out_bias = biases
    h, past, x = state["h"], state["conv"], x.contiguous()
    y, new_h, new_past = torch.empty_like(x), torch.empty_like(h), torch.empty_like(past)
    before = (x, in_proj, in_bias, conv, conv_bias, x_proj, dt_proj, dt_bias, A_log, D)
    tensors = (*before, out_proj, out_bias, h, past, y, new_h, new_past)
    record = _RECORD.pack(
        _RECORD.size,
        DTYPES[h.dtype],
        zoh,
        *h.shape,
        x.shape[1],
        conv.shape[1],
        dt_proj.shape[1],
        *[pointer(t) for t in tensors],
    )
    _native.run("mamba_step", record)
    return y, {"h": new_h, "conv": new_past}
