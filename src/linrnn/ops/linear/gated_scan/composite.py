"""`gated_scan` composed of PyTorch's operators and `linear_scan`: its definition.

Computes wherever the native kernel does not: other devices, `torch.func`, second derivatives.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute.layout import accumulator_dtype, n_sequences
from linrnn.ops.linear.linear_scan import linear_scan


def gated_scan(
    x: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    positive: bool,
    normalise: bool,
    start: float,
    reverse: bool,
    *,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """``(h, final_state)`` with every intermediate in memory."""
    pre_activations = x.to(accumulator_dtype(x.dtype))
    keep, b = keep_and_input(pre_activations, positive, normalise)
    if start:
        if initial_state is None:
            shape = (n_sequences(x, cu_seqlens), x.shape[-1])
            initial_state = pre_activations.new_full(shape, start)
        if reset is not None:
            b = torch.where(reset[..., None], b + start * keep, b)
    layout = {"reset": reset, "cu_seqlens": cu_seqlens}
    h, final = linear_scan(keep, b, initial_state, **layout, reverse=reverse, backend=backend)
    return h.to(x.dtype), final


def keep_and_input(x: Tensor, positive: bool, normalise: bool) -> tuple[Tensor, Tensor]:
    """Share of the old state that stays, and what is added, from (..., 2 or 3, channels)."""
    value, *gates = x.unbind(-2)  # (B, T, C) each
    if positive:
        value = positive_value(value)
    if len(gates) == 2 and not normalise:
        forget, take = gates
        return forget.sigmoid(), take.sigmoid() * value
    logit = gates[0] if len(gates) == 1 else log_odds(*gates)
    return (-logit).sigmoid(), logit.sigmoid() * value


def log_odds(forget: Tensor, take: Tensor) -> Tensor:
    """``log(i / f)`` of two sigmoids: finite where both underflow.

    ``softplus`` would round to its argument above 20; ``logsigmoid`` does not.
    """
    return F.logsigmoid(take) - F.logsigmoid(forget)


def positive_value(a: Tensor) -> Tensor:
    """``g(a) = a + 1/2`` for ``a >= 0``, ``sigmoid(a)`` below: positive and continuous."""
    return torch.where(a >= 0, a + 0.5, a.sigmoid())
