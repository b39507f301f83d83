"""Two vectors compared: what a model of pairs of documents has before its head."""

import torch
from torch import Tensor, nn

from linrnn.nn.linear import Linear
from linrnn.typing import Float


class Pair(nn.Module):
    r"""Features of two vectors, through one hidden layer.

    Equation::

        y = ReLU(W [a, b, a * b, a - b] + c)

    As in the decoder of Gu, Goel and Re 2022, arXiv:2111.00396 (its public code), for Long Range
    Arena's Retrieval, where a linear head follows.

    Args:
        d_model: width of both vectors and of the output.
        device, dtype: of the parameters, as in torch.nn.

    Example:
        >>> Pair(4)(torch.randn(3, 2, 4)).shape
        torch.Size([3, 4])
    """

    def __init__(
        self,
        d_model: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.linear = Linear(4 * d_model, d_model, device=device, dtype=dtype)

    def forward(self, x: Float[Tensor, "batch 2 d_model"]) -> Float[Tensor, "batch d_model"]:
        """One vector for each two."""
        a, b = x.unbind(1)
        return torch.relu(self.linear(torch.cat([a, b, a * b, a - b], -1)))
