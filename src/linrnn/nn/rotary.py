"""Rotary positions."""

from collections.abc import Callable

import torch
from torch import Tensor

from linrnn.compute.modes import eager
from linrnn.errors import ArgumentError
from linrnn.ops.matrix.turns import in_pairs


def rotate(
    x: Tensor,
    position: Tensor,
    base: float = 10_000.0,
    *,
    endpoint: bool = False,
    rescale: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Turn channels (2i, 2i+1) of ``x`` by ``position * base**(-2i / channels)`` radians.

    The product of two turned vectors depends on the difference of their positions only.

    Args:
        x: (batch, time, ..., channels), an even number of them, at least float32.
        position: integers (batch, time), or (1, time) for all rows.
        base: sets the slowest turn, about ``1 / base`` radians per step.
        endpoint: exactly ``1 / base``: exponents are ``-2i / (channels - 2)``.
        rescale: makes other turns, in radians per step, of these.

    Example:
        >>> rotate(torch.tensor([[[1.0, 0.0]]]), torch.tensor([[1]]))
        tensor([[[0.5403, 0.8415]]])
    """
    count = max(x.shape[-1] - 2, 1) if endpoint else x.shape[-1]
    exponent = torch.arange(0, x.shape[-1], 2, dtype=torch.float64, device=x.device) / count
    turn = base**-exponent if rescale is None else rescale(base**-exponent)
    plainly = eager(x, position)
    if plainly and _same_rows(position):
        position = position[:1]
    angle = position.unsqueeze(-1) * turn  # in float32, 1e-3 wrong at 16,384 steps
    # (rows, time, ..., channels / 2)
    angle = angle.view(*position.shape, *[1] * (x.ndim - 3), len(exponent))
    if plainly and in_pairs(x):  # the same numbers in one pass
        phases = torch.polar(torch.ones_like(angle), angle).to(x.dtype.to_complex())
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))  # (..., channels / 2)
        return torch.view_as_real(pairs * phases).flatten(-2)  # (batch, time, ..., channels)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)


def _same_rows(position: Tensor) -> bool:
    """Whether one look says that all rows are at the same places."""
    if not position.is_cpu or 1 in position.shape[:2]:
        return False
    return bool((position == position[:1]).all())


def rotate_first(
    x: Tensor,
    count: int,
    position: Tensor,
    base: float,
    rescale: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """`rotate` of the first ``count`` channels; the others stay as they are.

    Example:
        >>> rotate_first(torch.ones(1, 1, 3), 2, torch.tensor([[1]]), 10_000.0)
        tensor([[[-0.3012,  1.3818,  1.0000]]])
    """
    if count == x.shape[-1]:
        return rotate(x, position, base, rescale=rescale)
    if count == 0:
        return x
    rotated = rotate(x[..., :count], position, base, rescale=rescale)
    return torch.cat([rotated, x[..., count:]], -1)


def with_relative(x: Tensor, b: Tensor, base: float, start: int = 0) -> Tensor:
    """Queries or keys with ``R^t b`` as further channels: a relative bias is a product of these.

    Args:
        x: (batch, time, channels).
        b: a vector of an even number of channels.
        base: of `rotate`.
        start: position of the first step.

    Example:
        >>> with_relative(torch.zeros(1, 1, 1), torch.tensor([1.0, 0.0]), 10_000.0, 1)
        tensor([[[0.0000, 0.5403, 0.8415]]])
    """
    place = torch.arange(start, start + x.shape[1], device=x.device)[None]
    rotated = rotate(b.to(x.dtype).expand(1, x.shape[1], -1), place, base)
    return torch.cat([x, rotated.expand(x.shape[0], -1, -1)], -1)


def check_rotary(where: str, d_rotary: int, d_head: int) -> None:
    """Raise `ArgumentError` unless ``d_rotary`` channels of a head can be turned in pairs."""
    if isinstance(d_rotary, bool) or not isinstance(d_rotary, int) or not 0 <= d_rotary <= d_head:
        raise ArgumentError(
            f"{where}: d_rotary must be an integer from 0 to d_head={d_head}, got {d_rotary!r}."
        )
    if d_rotary % 2:
        raise ArgumentError(
            f"{where}: d_rotary must be even, and is d_head by default, got {d_rotary}. "
            "Choose an even d_head, or d_rotary."
        )
