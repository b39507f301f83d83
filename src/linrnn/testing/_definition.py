"""The definition of `linear_scan`, as short as it can be written; differentiated by PyTorch."""

import itertools

import torch
from torch import Tensor


def loop_scan(
    a: Tensor,
    b: Tensor,
    initial_state: Tensor | None = None,
    *,
    reset: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    reverse: bool = False,
) -> tuple[Tensor, Tensor]:
    """``h_t = a_t * h_{t-1} + b_t`` one step at a time, in the dtype of ``b``.

    Arguments and results are those of `linrnn.ops.linear_scan` for one channel axis.

    Example:
        >>> import torch
        >>> loop_scan(torch.tensor([0.5]), torch.ones(1, 3, 1))[0].flatten()
        tensor([1.0000, 1.5000, 1.7500])
    """
    batch, time, channels = b.shape
    # unbind, not b[:, t]: the gradient of an index is as large as the whole tensor
    inputs, decays = b.unbind(1), (a,) * time if a.ndim == 1 else a.unbind(1)
    offsets = [0, time] if cu_seqlens is None else cu_seqlens.tolist()
    h: dict[int, Tensor] = {}
    finals = []
    for s, (start, end) in enumerate(itertools.pairwise(offsets)):
        if initial_state is None:
            state = b.new_zeros(batch, channels)
        else:
            state = initial_state if cu_seqlens is None else initial_state[s : s + 1]
        for t in range(end - 1, start - 1, -1) if reverse else range(start, end):
            if reset is not None:
                state = torch.where(reset[:, t, None], 0, state)
            state = h[t] = decays[t] * state + inputs[t]
        finals.append(state)
    outputs = torch.stack([h[t] for t in range(time)], 1) if time else b
    return outputs, torch.cat(finals)
