"""`log_linear_scan` by the Triton kernels of `linear_scan`, which compute with logarithms, too."""

import functools

import torch

from linrnn.compute import gpu
from linrnn.ops.linear.linear_scan.triton_scan import adjoint as backward
from linrnn.ops.linear.linear_scan.triton_scan import form as form
from linrnn.ops.linear.linear_scan.triton_scan import scan

__all__ = ["SPARSE_GRADS", "backward", "form", "forward", "unavailable"]

#: The gradient of a final state that nobody reads is None, and costs no kernel that writes zeros.
SPARSE_GRADS = (1,)


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot compute on that device and dtype, or None."""
    return f"it has no kernel for {dtype}" if dtype.is_complex else gpu.unavailable(device, dtype)


#: ``log h_t = logaddexp(log a_t + log h_{t-1}, log b_t)``, by arguments as of `scan`.
forward = functools.partial(scan, log=True)
