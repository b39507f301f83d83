"""Norms of heads, each by itself."""

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.ops.gated_norm import gated_norm, has_gpu_kernel, inverse_root


def head_norm(
    o: Tensor, norm: str, eps: float, weight: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """Norm of every head (..., H, d_value) for itself, times a weight (d_value,) plus a bias."""
    if norm == "none":
        return o
    if has_gpu_kernel(o):
        return gated_norm(o, None, weight, bias, groups=1, eps=eps, centre=norm == "layer")
    # PyTorch's layer_norm has a wrong derivative where forward mode is nested in forward mode
    o = o - o.mean(-1, keepdim=True) if norm == "layer" else o
    if o.device.type != "cpu" or o.dtype not in (torch.float32, torch.float64):
        normed = F.rms_norm(o, o.shape[-1:], eps=eps)
    else:
        normed = o * inverse_root(o.square().mean(-1, keepdim=True) + eps)
    normed = normed if weight is None else normed * weight
    return normed if bias is None else normed + bias
