"""Parameters before they are drawn."""

from collections.abc import Callable

import torch
from torch import nn


def empty_parameters(
    device: torch.device | str | None, dtype: torch.dtype | None
) -> Callable[..., nn.Parameter]:
    """A function of sizes that makes parameters there and of that dtype, not yet filled.

    Example:
        >>> empty_parameters(None, None)(2, 3).shape
        torch.Size([2, 3])
    """
    return lambda *shape: nn.Parameter(torch.empty(shape, device=device, dtype=dtype))


def lecun_normal(*linears: nn.Linear) -> None:
    """Normal weights of variance one over the channels in, no bias."""
    for linear in linears:
        nn.init.normal_(linear.weight, std=linear.in_features**-0.5)
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)
