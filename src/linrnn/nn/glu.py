"""Gated linear unit."""

import torch
from torch import Tensor, nn

from linrnn.nn.linear import Linear


class GLU(nn.Module):
    """``W1 z * sigmoid(W2 z)``, both maps affine (Dauphin et al. 2017, arXiv:1612.08083).

    Example:
        >>> GLU(4)(torch.zeros(2, 3, 4)).shape
        torch.Size([2, 3, 4])
    """

    def __init__(
        self,
        d_model: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.linear = Linear(d_model, 2 * d_model, device=device, dtype=dtype)

    def forward(self, z: Tensor) -> Tensor:
        """Gate the last axis, whatever precedes it."""
        return nn.functional.glu(self.linear(z), -1)
