"""Queries, keys and values behind a short convolution."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from linrnn.nn.conv import CausalConv
from linrnn.nn.heads import Heads
from linrnn.state_spec import Part


class ConvHeads(nn.Module):
    """`Heads`, then one `CausalConv` with SiLU over all their channels side by side.

    Args:
        d_model, n_heads, sizes: as of `Heads`, without bias.
        d_conv: taps; 1 sees only the current step.
        device, dtype: of the parameters, as in torch.nn.

    Example:
        >>> import torch
        >>> heads = ConvHeads(8, 2, (3, 4), d_conv=4)
        >>> past = torch.zeros(5, *heads.state_spec().shape)
        >>> (k, v), past = heads(torch.zeros(5, 7, 8), past)
        >>> k.shape, v.shape, past.shape
        (torch.Size([5, 7, 2, 3]), torch.Size([5, 7, 2, 4]), torch.Size([5, 3, 14]))
    """

    def __init__(
        self, d_model: int, n_heads: int, sizes: Sequence[int], *, d_conv: int = 4, **factory: Any
    ) -> None:
        super().__init__()
        self.heads = Heads(d_model, n_heads, sizes, **factory)
        width = self.heads.proj.out_features
        self.conv1d = CausalConv(width, d_conv, bias=False, silu=True, **factory)

    def reset_parameters(self) -> None:
        """Draw new weights as `torch.nn.Linear` and `torch.nn.Conv1d` do."""
        self.heads.reset_parameters()
        self.conv1d.reset_parameters()

    def state_spec(self) -> Part:
        """The inputs of the convolution before the first step, oldest first."""
        return self.conv1d.state_spec()

    def forward(
        self, x: Tensor, past: Tensor, reset: Tensor | None = None
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        """Read (batch, time, d_model): ``(vectors, past)``, in the dtype of the parameters."""
        proj = self.heads.proj
        z, past = self.conv1d(proj(x.to(proj.weight.dtype)), past, reset)
        return self.heads.split(z), past
