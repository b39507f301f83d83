"""Parameters before they are drawn."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

LARGEST_LOG = 40.0
"""Where `bounded_exp` ends: e^40 is 2.4e17, whose square and the inverse of it float32 still holds.

A double has no digit after the point left at 9e15, so that no larger rate, step size or frequency
means anything to a step of length 1; and one of 4.2e-18 changes nothing in 1e10 steps."""


def bounded_exp(log: Tensor) -> Tensor:
    """``exp(log)`` of what is kept as a logarithm, from e^-40 to e^40 for any number.

    The bounds are the same in every dtype, and what is computed from it stays finite, gradients
    included: those of logarithms beyond are 0. Without them ``exp(-exp(100))`` has the gradient
    ``0 * inf`` in float32.

    Example:
        >>> bounded_exp(torch.tensor([0.0, 100.0, -100.0]))
        tensor([1.0000e+00, 2.3539e+17, 4.2484e-18])
    """
    return log.clamp(-LARGEST_LOG, LARGEST_LOG).exp()


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
