"""Read a sequence a few steps back, and cut off the past that the next call needs."""

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute.layout import mirrored


def recall(
    x: Tensor,
    past: Tensor,
    delay: int,
    reset: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """``x_{t - delay}``, zero where a reset lies between the two.

    Args:
        x: (batch, time, channels).
        past: what came before ``x``, (batch, at least ``delay``, channels).
        delay: steps back, 0 or more.
        reset: boolean (batch, time); True where a new sequence starts.
        cu_seqlens: offsets of packed sequences, each with its own ``past``.

    Example:
        >>> x = torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1)
        >>> recall(x, torch.zeros(1, 1, 1), 1).flatten()
        tensor([0., 1., 2.])
    """
    if delay == 0:
        return x
    time = x.shape[1]
    if cu_seqlens is not None:
        t, offsets = torch.arange(time, device=x.device), cu_seqlens.to(x.device, torch.long)
        sequence = torch.searchsorted(offsets[1:], t, right=True)
        return _packed(x, past, sequence, t - delay, t + 1, reset, offsets)[None]
    recent = past[:, past.shape[1] - delay :]
    y = torch.cat([recent.to(x.dtype), x], 1)[:, :time]  # (B, T, C)
    if reset is None:
        return y
    # (B, delay + T)
    started = F.pad(reset.cumsum(1), (delay, 0))  # sequences begun up to t, and up to t - delay
    return torch.where((started[:, delay:] == started[:, :time])[..., None], y, 0)


def last_inputs(
    x: Tensor,
    past: Tensor,
    reset: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    reverse: bool = False,
) -> Tensor:
    """The newest ``past.shape[1]`` inputs after reading ``x``, those before a reset zero."""
    if reverse:
        last = last_inputs(*mirrored(x, past, reset, cu_seqlens))
        return last if cu_seqlens is None else last.flip(0)
    time, width = x.shape[1], past.shape[1]
    if cu_seqlens is not None:
        offsets = cu_seqlens.to(x.device, torch.long)
        end, steps = offsets[1:, None], torch.arange(-width, 0, device=x.device)
        sequence = torch.arange(past.shape[0], device=x.device)[:, None]
        return _packed(x, past, sequence, end + steps, end, reset, offsets).to(past.dtype)
    if reset is not None:
        started = reset.cumsum(1)
        x = torch.where((started == started[:, -1:])[..., None], x, 0)
        past = torch.where(reset.any(1)[:, None, None], 0, past)
    if torch.compiler.is_compiling():  # a graph must not depend on which of the two is longer
        return torch.cat([past, x.to(past.dtype)], 1).narrow(1, time, width)  # (B, P, C)
    # (B, P, C)
    return torch.cat([past[:, min(time, width) :], x[:, max(0, time - width) :].to(past.dtype)], 1)


def _packed(
    x: Tensor,
    past: Tensor,
    sequence: Tensor,
    place: Tensor,
    until: Tensor,
    reset: Tensor | None,
    offsets: Tensor,
) -> Tensor:
    """Read packed sequences at ``place``; zero where a reset lies between that and ``until``.

    A place before the first step of its sequence is one in its ``past``.
    """
    width, start = past.shape[1], offsets[sequence]
    memory = torch.cat([past.flatten(0, 1), x[0].to(past.dtype)])  # (seqs * width + time, channels)
    earlier = sequence * width + width + place - start
    y = memory[torch.where(place < start, earlier, past.shape[0] * width + place)]
    if reset is None:
        return y
    # (T + 1,)
    resets_before = F.pad(reset[0].cumsum(0), (1, 0))  # resets before each step
    cut = resets_before[until] > resets_before[torch.maximum(place + 1, start)]
    return torch.where(cut[..., None], 0, y)
