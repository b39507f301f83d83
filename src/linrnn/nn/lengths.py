"""How many steps each row of a padded batch has."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.errors import ArgumentError, DTypeError, ShapeError, show


def as_lengths(where: str, lengths: Any) -> Tensor:
    """Lengths as a tensor: it may be one, an array, or a list as of `pack_padded_sequence`.

    Raises:
        DTypeError: they are no integers.

    Example:
        >>> as_lengths("here", [6, 3])
        tensor([6, 3])
    """
    try:
        tensor: Tensor = (
            lengths if isinstance(lengths, Tensor) else torch.as_tensor(lengths, device="cpu")
        )
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise DTypeError(f"{where}: lengths must be integers, got {show(lengths)}.") from error
    if not isinstance(lengths, Tensor) and tensor.numel() == 0:
        return tensor.long()  # an empty list has no dtype
    real = tensor.is_floating_point() or tensor.is_complex() or tensor.is_quantized
    if real or tensor.dtype == torch.bool:
        raise DTypeError(f"{where}: lengths must be integers, got {tensor.dtype}.")
    return tensor.long()  # of small integers 255 + 1 is 0, and uint8 is a mask where it is an index


def steps_before(lengths: Tensor, time: int, device: torch.device) -> Tensor:
    """Mask the steps that are not padding: boolean (batch, time), from lengths (batch,).

    Example:
        >>> steps_before(torch.tensor([1, 2]), 3, torch.device("cpu"))
        tensor([[ True, False, False],
                [ True,  True, False]])
    """
    return torch.arange(time, device=device) < lengths.to(device)[..., None]


def without_padding(x: Tensor, valid: Tensor | None, filler: float = 0) -> Tensor:
    """``x`` (batch, time, ...) with one number in all padding, whatever is there, NaN too."""
    if valid is None:
        return x
    return torch.where(valid.view(*valid.shape, *[1] * (x.ndim - valid.ndim)), x, filler)


def check_lengths(where: str, lengths: Any, x: Tensor, least: int = 0) -> Tensor:
    """The lengths as a tensor: an integer from ``least`` for each row of ``x`` (batch, time).

    Their range is checked where the numbers can be seen without waiting for a device.

    Raises:
        DTypeError, ShapeError, ArgumentError: other numbers.
    """
    result = as_lengths(where, lengths)
    if tuple(result.shape) != (x.shape[0],):
        raise ShapeError(
            f"{where}: lengths must have shape (batch={x.shape[0]}), got {tuple(result.shape)}."
        )
    if result.device.type != "cpu" or torch.compiler.is_compiling() or result.shape[0] == 0:
        return result
    low, high = result.aminmax()
    if low < least or high > x.shape[1]:
        wrong = int(low if low < least else high)
        raise ArgumentError(
            f"{where}: lengths must be in {least}..{x.shape[1]}, the steps of x, got {wrong}."
        )
    return result


def reverse(x: Tensor, stop: Tensor | None = None, start: Tensor | None = None) -> Tensor:
    """``x`` with the steps ``start <= t < stop`` of each row in reverse order; its own inverse.

    Args:
        x: (batch, time, ...).
        stop: (batch,), exclusive; None is the end of the row.
        start: (batch,); None is 0.

    Example:
        >>> reverse(torch.arange(4)[None], torch.tensor([3]))
        tensor([[2, 1, 0, 3]])
    """
    if stop is None and start is None:
        return x.flip(1)
    batch, time = x.shape[:2]
    t = torch.arange(time, device=x.device)
    first = 0 if start is None else start.to(x.device)[:, None]
    last = time if stop is None else stop.to(x.device)[:, None]
    t = torch.where((t >= first) & (t < last), first + last - 1 - t, t)  # (B, T)
    return x[torch.arange(batch, device=x.device)[:, None], t]


def until_next(dt: Tensor, stop: Tensor | None = None, ends: Tensor | None = None) -> Tensor:
    """Times since the step before, read backward: those until the next step, of the last one 1.

    Args:
        dt: (batch, time).
        stop: (batch,), where each row stops, exclusive; None is the end of the row.
        ends: boolean (batch, time); True at the last step of a sequence.

    Example:
        >>> until_next(torch.tensor([[0.1, 0.2, 0.3]]), torch.tensor([2]))
        tensor([[0.2000, 1.0000, 1.0000]])
    """
    later = F.pad(dt[:, 1:], (0, 1), value=1.0)
    if stop is not None:
        t = torch.arange(dt.shape[1], device=dt.device)
        later = later.masked_fill(t >= stop.to(dt.device)[:, None] - 1, 1.0)
    return later if ends is None else later.masked_fill(ends, 1.0)
