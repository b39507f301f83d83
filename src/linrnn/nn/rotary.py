"""Rotary positions."""

import torch
from torch import Tensor


def rotate(
    x: Tensor, position: Tensor, base: float = 10_000.0, *, endpoint: bool = False
) -> Tensor:
    """Turn channels (2i, 2i+1) of ``x`` by ``position * base**(-2i / channels)`` radians.

    The product of two turned vectors depends on the difference of their positions only.

    Args:
        x: (batch, time, ..., channels), an even number of them, at least float32.
        position: integers (batch, time), or (1, time) for all rows.
        base: sets the slowest turn, about ``1 / base`` radians per step.
        endpoint: exactly ``1 / base``: exponents are ``-2i / (channels - 2)``.

    Example:
        >>> rotate(torch.tensor([[[1.0, 0.0]]]), torch.tensor([[1]]))
        tensor([[[0.5403, 0.8415]]])
    """
    count = max(x.shape[-1] - 2, 1) if endpoint else x.shape[-1]
    exponent = torch.arange(0, x.shape[-1], 2, dtype=torch.float64, device=x.device) / count
    angle = position.unsqueeze(-1) * base**-exponent  # in float32, 1e-3 wrong at 16,384 steps
    angle = angle.view(*position.shape, *[1] * (x.ndim - 3), len(exponent))
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)
