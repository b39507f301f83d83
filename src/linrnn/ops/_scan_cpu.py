"""`linear_scan` by native kernels on CPU tensors."""

import torch


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot compute on that device and dtype, or None."""
    return "not built yet"
