"""Queries, keys and values behind a short convolution."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.errors import ArgumentError, check_positive_int
from linrnn.nn.conv import CausalConv
from linrnn.nn.heads import Heads
from linrnn.state_spec import Part, real


class ConvHeads(nn.Module):
    """`Heads`, then one `CausalConv` over all their channels side by side, and SiLU.

    Args:
        d_model, n_heads, sizes: as of `Heads`, without bias.
        d_conv: taps; 1 sees only the current step, None is no convolution.
        conv_bias: add a bias to the convolution.
        silu: apply SiLU, with a convolution or without.
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
        self,
        d_model: int,
        n_heads: int | Sequence[int],
        sizes: Sequence[int],
        *,
        d_conv: int | None = 4,
        conv_bias: bool = False,
        silu: bool = True,
        **factory: Any,
    ) -> None:
        super().__init__()
        self.heads = Heads(d_model, n_heads, sizes, **factory)
        self.silu = silu
        self.conv1d = add_conv(self.heads, d_conv, bias=conv_bias, silu=silu, **factory)

    def reset_parameters(self) -> None:
        """Draw new weights as `torch.nn.Linear` and `torch.nn.Conv1d` do."""
        self.heads.reset_parameters()
        if self.conv1d is not None:
            self.conv1d.reset_parameters()

    def state_spec(self) -> Part:
        """The inputs of the convolution before the first step, oldest first; none without it."""
        if self.conv1d is None:
            return real(past=0, channels=self.heads.proj.out_features)
        return self.conv1d.state_spec()

    def forward(
        self, x: Tensor, past: Tensor, reset: Tensor | None = None
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        """Read (batch, time, d_model): ``(vectors, past)``, in the dtype of the parameters."""
        vectors, carried = self.read(x, {"conv": past}, reset)
        return vectors, carried.get("conv", past)

    def read(
        self, x: Tensor, state: Mapping[str, Any], reset: Tensor | None
    ) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """As `forward`, of a state that holds what `conv_spec` says."""
        proj = self.heads.proj
        z = proj(x.to(proj.weight.dtype))
        z, carried = convolved(self.conv1d, z, state, reset)
        if self.conv1d is None and self.silu:
            z = F.silu(z)
        return self.heads.split(z), carried


def add_conv(
    heads: Heads, d_conv: int | None, *, bias: bool = False, silu: bool = True, **factory: Any
) -> CausalConv | None:
    """A convolution over all channels of ``heads``, or None where there are no taps."""
    if d_conv is None:
        return None
    return CausalConv(heads.proj.out_features, d_conv, bias=bias, silu=silu, **factory)


def check_conv(where: str, d_conv: int | None, conv_bias: bool) -> None:
    """Raise `ArgumentError` unless there are taps, or there is no convolution and no bias of it."""
    if d_conv is not None:
        check_positive_int(where, d_conv=d_conv)
    elif conv_bias:
        raise ArgumentError(
            f"{where}: conv_bias must be False without a convolution, got True. Give d_conv, its "
            "taps."
        )


def conv_spec(conv: CausalConv | None) -> dict[str, Part]:
    """State spec of an optional convolution: its state as ``conv``, empty without one."""
    return {} if conv is None else {"conv": conv.state_spec()}


def convolved(
    conv: CausalConv | None, z: Tensor, state: Mapping[str, Any], reset: Tensor | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """``z`` behind the convolution, if there is one, and what `conv_spec` says is carried on."""
    if conv is None:
        return z, {}
    z, past = conv(z, state["conv"], reset)
    return z, {"conv": past}
