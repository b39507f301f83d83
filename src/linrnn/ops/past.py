"""What came before: a sequence a few steps back, and what to keep of it."""

import torch
import torch.nn.functional as F
from torch import Tensor


def recall(x: Tensor, past: Tensor, delay: int, reset: Tensor | None = None) -> Tensor:
    """``x_{t - delay}``, zero where a reset lies between the two.

    Args:
        x: (batch, time, channels).
        past: what came before ``x``, (batch, at least ``delay``, channels).
        delay: steps back, 0 or more.
        reset: boolean (batch, time); True where a new sequence starts.

    Example:
        >>> x = torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1)
        >>> recall(x, torch.zeros(1, 1, 1), 1).flatten()
        tensor([0., 1., 2.])
    """
    if delay == 0:
        return x
    time, before = x.shape[1], past[:, past.shape[1] - delay :]
    y = torch.cat([before.to(x.dtype), x], 1)[:, :time]
    if reset is None:
        return y
    started = F.pad(reset.cumsum(1), (delay, 0))  # sequences begun up to t, and up to t - delay
    return torch.where((started[:, delay:] == started[:, :time])[..., None], y, 0)


def last_inputs(x: Tensor, past: Tensor, reset: Tensor | None = None) -> Tensor:
    """The newest ``past.shape[1]`` inputs after reading ``x``, those before a reset zero."""
    time, width = x.shape[1], past.shape[1]
    if reset is not None:
        started = reset.cumsum(1)
        x = torch.where((started == started[:, -1:])[..., None], x, 0)
        past = torch.where(reset.any(1)[:, None, None], 0, past)
    if torch.compiler.is_compiling():  # a graph must not depend on which of the two is longer
        return torch.cat([past, x.to(past.dtype)], 1).narrow(1, time, width)
    return torch.cat([past[:, min(time, width) :], x[:, max(0, time - width) :].to(past.dtype)], 1)
