"""The last linear map of a model, and maps that hand on what they get."""

from typing import Any

import torch
from torch import Tensor, nn

from linrnn.errors import ArgumentError, check_positive
from linrnn.nn.linear import Linear
from linrnn.ops.half_linear import half_linear


class CappedLinear(nn.Linear):
    """A linear map whose outputs stay within a bound: ``cap tanh((W z + b) / cap)``.

    Args:
        *args: of `torch.nn.Linear`.
        cap: the bound.
        **kwargs: of `torch.nn.Linear`.

    Raises:
        ArgumentError: a cap that is not positive and finite.

    Example:
        >>> bool((CappedLinear(2, 3, cap=0.1)(100 * torch.ones(2)).abs() <= 0.1).all())
        True
    """

    def __init__(self, *args: Any, cap: float, **kwargs: Any) -> None:
        check_positive("CappedLinear", cap=cap)
        super().__init__(*args, **kwargs)
        self.cap = cap

    @classmethod
    def of(cls, linear: nn.Linear, cap: float) -> "CappedLinear":
        """The weights of a linear map, with a bound."""
        size, bias = (linear.in_features, linear.out_features), linear.bias is not None
        capped = cls(*size, bias=bias, cap=cap, device="meta")
        capped.weight, capped.bias = linear.weight, linear.bias
        return capped

    def forward(self, z: Tensor) -> Tensor:
        """Map the last axis, whatever precedes it."""
        return self.cap * torch.tanh(half_linear(z, self.weight, self.bias) / self.cap)

    def extra_repr(self) -> str:
        """Arguments, for ``print(layer)``."""
        return f"{super().extra_repr()}, cap={self.cap}"


def make_head(d_model: int, d_output: int, cap: float | None, **factory: Any) -> nn.Linear:
    """A linear map, or one whose outputs are within ``cap``.

    Example:
        >>> make_head(2, 3, None)
        Linear(in_features=2, out_features=3, bias=True)
    """
    if cap is None:
        return Linear(d_model, d_output, **factory)
    return CappedLinear(d_model, d_output, cap=cap, **factory)


def hand_on(where: str, argument: str, value: str, end: nn.Module) -> None:
    """Make a linear map the identity, which is not learned.

    Raises:
        ArgumentError: it is none between as many channels; names the argument concerned.
    """
    if not isinstance(end, nn.Linear) or end.in_features != end.out_features:
        raise ArgumentError(
            f"{where}: {argument} must be 'none' unless that end is a linear map between as many "
            f"channels, got {value!r} with {end}."
        )
    nn.init.eye_(end.weight)
    if end.bias is not None:
        nn.init.zeros_(end.bias)
    end.requires_grad_(False)
