"""A first-order recurrence one step at a time, in PyTorch's operators: the definition.

Every derivative of it, in any mode and nested in any way, is PyTorch's own; nothing is written in
place.
"""

import itertools

import torch
from torch import Tensor

from linrnn.compute.layout import accumulator_dtype
from linrnn.ops.linear.tree import LINEAR, Semiring


def loop(
    ring: Semiring,
    a: Tensor,
    b: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """``h_t = a_t times h_{t-1} plus b_t``; arguments and results as of a kernel's ``forward``."""
    batch, time, channels = b.shape
    compute_dtype = accumulator_dtype(b.dtype)
    # unbind, not b[:, t]: the gradient of an index is as large as the whole tensor
    inputs = b.to(compute_dtype).unbind(1)  # T times (B, C)
    # T times (C,) or (B, C)
    decays = (a.to(compute_dtype),) * time if a.ndim == 1 else a.to(compute_dtype).unbind(1)
    offsets = [0, time] if cu_seqlens is None else cu_seqlens.tolist()
    h: dict[int, Tensor] = {}
    finals = []
    for s, (start, end) in enumerate(itertools.pairwise(offsets)):
        if initial_state is None:
            state = b.new_full((batch, channels), ring.zero, dtype=compute_dtype)
        else:
            state = initial_state if cu_seqlens is None else initial_state[s : s + 1]
        for t in range(end - 1, start - 1, -1) if reverse else range(start, end):
            if reset is not None:
                state = torch.where(reset[:, t, None], ring.zero, state)
            state = h[t] = ring.plus(ring.times(decays[t], state), inputs[t])
        finals.append(state)
    outputs = torch.stack([h[t] for t in range(time)], 1).to(b.dtype) if time else b  # (B, T, C)
    return outputs, torch.cat(finals)  # (B, T, C), (S, C)


def _add_exponentials(x: Tensor, y: Tensor) -> Tensor:
    """``logaddexp`` whose derivatives are 0 with respect to a logarithm of 0, and finite."""
    largest = torch.maximum(x, y).detach()  # cancels out of the result
    both_zero = largest == float("-inf")
    shift = torch.where(both_zero, 0, largest)
    total = (x - shift).exp() + (y - shift).exp()
    return torch.where(both_zero, largest, shift + torch.where(both_zero, 1, total).log())


#: The logarithms of positive quantities, to be differentiated.
LOG = Semiring(torch.add, _add_exponentials, float("-inf"))

__all__ = ["LINEAR", "LOG", "loop"]
