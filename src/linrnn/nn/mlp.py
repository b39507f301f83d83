"""Feed-forward network of a residual block."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.errors import check_positive_int


class MLP(nn.Module):
    """``W2 GELU(W1 z)``, both maps affine.

    Args:
        d_model: channels in and out.
        d_inner: hidden width. Default: ``4 * d_model``.
        device, dtype: of the parameters, as in torch.nn.

    Example:
        >>> MLP(4)(torch.zeros(2, 3, 4)).shape
        torch.Size([2, 3, 4])
    """

    def __init__(
        self,
        d_model: int,
        *,
        d_inner: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        d_inner = 4 * d_model if d_inner is None else d_inner
        check_positive_int("MLP", d_model=d_model, d_inner=d_inner)
        self.up = nn.Linear(d_model, d_inner, device=device, dtype=dtype)
        self.down = nn.Linear(d_inner, d_model, device=device, dtype=dtype)

    def forward(self, z: Tensor) -> Tensor:
        """Transform the last axis, whatever precedes it."""
        y: Tensor = self.down(F.gelu(self.up(z)))
        return y
