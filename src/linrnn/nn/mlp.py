"""Feed-forward networks of a residual block."""

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.errors import check_in, check_positive, check_positive_int
from linrnn.nn.linear import Linear


def _squared_relu(x: Tensor) -> Tensor:
    return F.relu(x).square()


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "relu2": _squared_relu,
}
"""The functions of feed-forward networks, by the names of options."""


class MLP(nn.Module):
    """``W2 GELU(W1 z)``, both maps affine.

    Args:
        d_model: channels in and out.
        d_inner: hidden width. Default: ``4 * d_model``.
        activation: "gelu", or "relu2" for the square of max(W1 z, 0)
            (So et al. 2021, arXiv:2109.08668).
        bias: whether the maps are affine.
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
        activation: Literal["gelu", "relu2"] = "gelu",
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        d_inner = 4 * d_model if d_inner is None else d_inner
        check_positive_int("MLP", d_model=d_model, d_inner=d_inner)
        check_in("MLP", "activation", activation, ("gelu", "relu2"))
        self.activation = activation
        self.up = Linear(d_model, d_inner, bias=bias, device=device, dtype=dtype)
        self.down = Linear(d_inner, d_model, bias=bias, device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        self.up.reset_parameters()
        self.down.reset_parameters()

    def forward(self, z: Tensor) -> Tensor:
        """Transform the last axis, whatever precedes it."""
        y: Tensor = self.down(ACTIVATIONS[self.activation](self.up(z)))
        return y


class GatedMLP(nn.Module):
    """``W3 (act(W1 z) * W2 z)``: a gated feed-forward network.

    With factors a and b, ``b W3 (act(a W1 z) * W2 z)``, as in Falcon-H1.

    Initially with ``init="lecun"``, as in Griffin, weights are N(0, 1 / channels in), those of W3
    N(0, 2 / (n_layers d_inner)); with ``init="small"``, as in xLSTM, N(0, 0.4 / d_model), those of
    W3 N(0, 4 / (n_layers^2 d_model)), or with ``init="small_inner"``, as in xLSTM 7B,
    N(0, 4 / (n_layers^2 d_inner)). Biases are 0.

    Args:
        d_model: channels in and out.
        d_inner: hidden width. Default: ``3 * d_model``.
        bias: whether the maps are affine.
        activation: of the gate: "gelu", the same by its tanh formula, "gelu_tanh", or "silu".
        init: see above.
        gate_scale, out_scale: a and b.
        n_layers: depth of the stack it stands in.
        device, dtype: of the parameters, as in torch.nn.

    Raises:
        ArgumentError: a size below 1.
        UnknownNameError: another ``activation`` or ``init``.

    Example:
        >>> GatedMLP(4)(torch.zeros(2, 3, 4)).shape
        torch.Size([2, 3, 4])

    Reference:
        Shazeer, "GLU Variants Improve Transformer", 2020, arXiv:2002.05202.
    """

    def __init__(
        self,
        d_model: int,
        *,
        d_inner: int | None = None,
        bias: bool = True,
        activation: Literal["gelu", "gelu_tanh", "silu"] = "gelu_tanh",
        init: Literal["lecun", "small", "small_inner"] = "lecun",
        gate_scale: float = 1.0,
        out_scale: float = 1.0,
        n_layers: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_inner = 3 * d_model if d_inner is None else d_inner
        check_positive_int("GatedMLP", d_model=d_model, d_inner=self.d_inner, n_layers=n_layers)
        check_in("GatedMLP", "activation", activation, ("gelu", "gelu_tanh", "silu"))
        check_in("GatedMLP", "init", init, ("lecun", "small", "small_inner"))
        check_positive("GatedMLP", gate_scale=gate_scale, out_scale=out_scale)
        self.activation, self.init, self.n_layers = activation, init, n_layers
        self.gate_scale, self.out_scale = gate_scale, out_scale
        self.gate, self.up = (
            Linear(d_model, self.d_inner, bias=bias, device=device, dtype=dtype) for _ in range(2)
        )
        self.down = Linear(self.d_inner, d_model, bias=bias, device=device, dtype=dtype)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        width, depth = self.gate.in_features, self.n_layers
        last = {
            "lecun": 2 / depth / self.d_inner,
            "small": 4 / depth**2 / width,
            "small_inner": 4 / depth**2 / self.d_inner,
        }
        inner, outer = 1 if self.init == "lecun" else 0.4, last[self.init]
        for linear, variance in (
            (self.gate, inner / width),
            (self.up, inner / width),
            (self.down, outer),
        ):
            nn.init.normal_(linear.weight, std=variance**0.5)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def forward(self, z: Tensor) -> Tensor:
        """Transform the last axis, whatever precedes it."""
        gate = self.gate(z)
        gate = gate if self.gate_scale == 1 else gate * self.gate_scale
        y: Tensor = self.down(ACTIVATIONS[self.activation](gate) * self.up(z))
        return y if self.out_scale == 1 else y * self.out_scale
