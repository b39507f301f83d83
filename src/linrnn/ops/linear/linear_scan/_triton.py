"""`linear_scan` by the Triton kernels in ``_triton_kernels.py``."""

import torch

from linrnn.compute import gpu
from linrnn.ops.linear.linear_scan.triton_scan import adjoint as backward
from linrnn.ops.linear.linear_scan.triton_scan import form as form
from linrnn.ops.linear.linear_scan.triton_scan import scan as forward

__all__ = ["SPARSE_GRADS", "backward", "form", "forward", "unavailable"]

#: The gradient of a final state that nobody reads is None, and costs no kernel that writes zeros.
SPARSE_GRADS = (1,)


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot compute on that device and dtype, or None."""
    return gpu.unavailable(device, dtype)
