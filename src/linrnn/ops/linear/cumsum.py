"""The diagonal recurrence by its unrolled solution with cumulative sums, inside its range.

``h_t = exp(G_t) (h_0 + sum_{s<=t} exp(-G_s) b_s)``, ``G_t = g_1 + ... + g_t``, is exact on paper.
In floating point the weights ``exp(-G_s)`` must fit into the numbers there are, and so must the
products with gradients on the way back. They are scaled by the largest of them, inputs likewise,
and a call whose exponents span more than `LIMITS` is refused.
"""

import torch
from torch import Tensor

from linrnn.compute.modes import plain
from linrnn.errors import ArgumentError
from linrnn.ops.linear.weighted_mean import EMPTY

#: Largest span of the exponents. Measured against float64 up to 75 (700): outputs within 4e-6
#: (5e-13) of the largest, as a loop's are, gradients within 4e-5 (5e-13); at 86 (740) they overflow
#: to NaN. The limits leave 12 (46) orders of magnitude for the size of gradients.
LIMITS = {torch.float32: 60.0, torch.float64: 600.0}
_RULES = {  # worded here, for a compiler may take the numbers for variables
    dtype: f"exponents of form='cumsum' must span at most {limit:g} in {dtype}"
    for dtype, limit in LIMITS.items()
}


def cumsum_scan(
    where: str, log_modulus: Tensor, phase: Tensor, b: Tensor, h0: Tensor
) -> tuple[Tensor, Tensor]:
    """``h_t = exp(log_modulus_t + i phase) h_{t-1} + b_t``: all states, and the last one.

    Args:
        where: who asks, for messages.
        log_modulus: real (B, T, N).
        phase: (N,), radians.
        b: real (B, T, N).
        h0: complex (B, N).

    Raises:
        ArgumentError: the exponents span more than `LIMITS`.
    """
    if b.shape[1] == 0:
        return b.to(h0.dtype), h0
    total = log_modulus.cumsum(1)
    scale = _scale(where, total, torch.zeros_like(total[:, 0]))
    turn, size = _turns(phase, b.shape[1]), _size(b, h0)
    weight = torch.exp(-total - scale)
    sums = (weight * (b / size) * turn.conj()).cumsum(1) + (-scale).exp() * (h0[:, None] / size)
    h = torch.exp(total + scale) * turn * sums * size
    return h, h[:, -1].clone()


def cumsum_mean(
    where: str, log_decay: Tensor, phase: Tensor, v: Tensor, state: dict[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """`mean_of_past` with weights that are 1 when new: all means, and the state.

    Raises:
        ArgumentError: the exponents span more than `LIMITS`.
    """
    if v.shape[1] == 0:
        return v.to(state["mean"].dtype), state
    total = log_decay.cumsum(1)
    scale = _scale(where, total, state["log_norm"])
    turn, size = _turns(phase, v.shape[1]), _size(v, state["mean"])
    weight = torch.exp(-total - scale)
    first = torch.exp(state["log_norm"][:, None] - scale)
    sums = (weight * (v / size) * turn.conj()).cumsum(1) + first * (state["mean"][:, None] / size)
    norm = weight.cumsum(1) + first
    mean = turn * sums / norm * size
    log_norm = total[:, -1] + scale[:, 0] + norm[:, -1].log()
    return mean, {"mean": mean[:, -1].clone(), "log_norm": log_norm}


def _turns(phase: Tensor, time: int) -> Tensor:
    """``exp(i phase t)`` for t = 1..T, (T, N); a float32 product would lose ``t`` roundings."""
    steps = torch.arange(1, time + 1, device=phase.device, dtype=torch.float64)
    angle = torch.remainder(steps[:, None] * phase.double(), 2 * torch.pi).to(phase.dtype)
    return torch.polar(torch.ones_like(angle), angle)


@torch.no_grad()
def _size(b: Tensor, h0: Tensor) -> Tensor:
    """The largest input of each channel, (B, 1, N): tiny ones would underflow with their weights.

    Like `_scale` it cancels out of the results.
    """
    size = torch.maximum(b.abs().amax(1), h0.abs())[:, None]
    return torch.where(size > 0, size, 1)


@torch.no_grad()
def _scale(where: str, total: Tensor, start: Tensor) -> Tensor:
    """The largest exponent of each channel, (B, 1, N), after checking how far they span.

    The results do not depend on it, so no gradient flows through it.
    """
    start = torch.where(start > EMPTY / 2, start, 0)
    largest = torch.maximum((-total).amax(1), start)
    smallest = torch.minimum((-total).amin(1), torch.zeros_like(start))
    _check_span(where, largest.clamp_min(0) - smallest)
    return largest[:, None]


def _check_span(where: str, spans: Tensor) -> None:
    if spans.numel() == 0 or spans.device.type == "meta":
        return
    span, limit = spans.amax(), LIMITS[spans.dtype]  # NaN where there is one, within no limit
    if torch.compiler.is_compiling():  # a graph has no numbers to look at
        torch._assert_async(span <= limit, f'{where}: {_RULES[spans.dtype]}. Use form="scan".')
    elif not (got := plain(span).amax().item()) <= limit:
        raise ArgumentError(
            f"{where}: {_RULES[spans.dtype]}, got {got:.4g}. "
            'Use form="scan", which has no such limit.'
        )
