"""The precision to compute in: outside `torch.autocast`, and at least float32."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from linrnn.compute.layout import accumulator_dtype

_UNCHANGED = nullcontext()


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Inside it no operator lowers its precision; nothing where there is no autocast."""
    kind = device.type
    if kind == "meta" or not torch.amp.is_autocast_available(kind):
        return _UNCHANGED
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else _UNCHANGED


def autocast_again(device: torch.device) -> Callable[[], AbstractContextManager[object]]:
    """Remember whether there is an autocast: the result makes a context with it, or without.

    For what a gradient, around which there is none, computes once more.
    """
    kind = device.type
    if kind == "meta" or not torch.amp.is_autocast_available(kind):
        return nullcontext
    enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    return partial(torch.autocast, kind, dtype=dtype, enabled=enabled)


def wide(x: Tensor) -> Tensor:
    """At least float32: half precision cannot hold a decay near 1, nor a sum of many terms."""
    return x if x.dtype is torch.float32 else x.to(accumulator_dtype(x.dtype))


def autocast_dtype(x: Any) -> torch.dtype:
    """The dtype that `torch.autocast` gives products of ``x``: its own where there is no autocast.

    Args:
        x: a tensor, or a quantised weight: its ``dtype`` and ``device`` are read.

    Example:
        >>> with torch.autocast("cpu", torch.bfloat16):
        ...     autocast_dtype(torch.ones(2))
        torch.bfloat16
    """
    kind: str = x.device.type
    dtype: torch.dtype = x.dtype
    if dtype is torch.float64 or kind == "meta" or not torch.amp.is_autocast_available(kind):
        return dtype
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else dtype


def in_dtype_of(weight: Any, x: Tensor) -> Tensor:
    """``x`` as a product with ``weight`` takes it: in its dtype, or as `torch.autocast` has it.

    The weight is a tensor, or stands for one as that of a quantized layer does.

    Inside of autocast, half precision that became float32 would only be rounded again.

    Example:
        >>> weight, x = torch.ones(2, 2), torch.ones(2, dtype=torch.bfloat16)
        >>> with torch.autocast("cpu", torch.bfloat16):
        ...     in_dtype_of(weight, x).dtype
        torch.bfloat16
    """
    return x if x.dtype is weight.dtype else x.to(autocast_dtype(weight))
