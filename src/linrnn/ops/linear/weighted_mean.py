"""The weighted mean over the past that RWKV calls wkv.

Written as two sums, ``Y_t = sum_s exp(k_s - (t - s) w) v_s`` and the same without ``v``, it
overflows as soon as a key reaches 88. The state kept here is the mean ``Y / Z`` and ``log Z``: no
running maximum is needed, every operation is smooth, and the same past is always the same state.
The mean's two weights are sigmoids of one number, so they add up to 1 however large keys become.
"""

from typing import Any

import torch
from torch import Tensor

from linrnn.cells import Cell
from linrnn.compute.layout import previous_state
from linrnn.ops.linear.linear_scan import linear_scan
from linrnn.ops.linear.log_linear_scan import log_linear_scan

EMPTY = -1e30  # the logarithm of an empty sum: finite, so that differences with it are no NaN


def mean_of_past(
    log_decay: Tensor,
    log_weight: Tensor,
    v: Tensor,
    state: dict[str, Tensor],
    reset: Tensor | None = None,
    rotation: Tensor | None = None,
    **layout: Any,
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Weighted mean of all values so far, the weights of the past decaying.

    Equation::

        L_t = logaddexp(L_{t-1} + log_decay_t, log_weight_t)
        m_t = exp(L_{t-1} + log_decay_t - L_t) rotation m_{t-1} + exp(log_weight_t - L_t) v_t

    Args:
        log_decay: (B, T, N) or, constant in time, (N,).
        log_weight: (B, T, N).
        v: values, (B, T, N), real or complex.
        state: ``mean`` and ``log_norm`` before the first step, (B, N) each.
        reset: boolean (B, T).
        rotation: numbers of modulus 1 that the mean turns by every step, (N,) or (B, T, N).
        layout: ``cu_seqlens`` and ``reverse`` of a scan.

    Returns:
        ``mean`` and ``log_norm`` of shape (B, T, N), and the state after the last step.
    """
    layout["reset"] = reset
    start = state["log_norm"]
    log_norm, last_norm = log_linear_scan(log_decay, log_weight, start, **layout)
    past, new = shares(
        previous_state(log_norm, start, **layout, empty=EMPTY) + log_decay - log_weight
    )
    past = past if rotation is None else past * rotation
    mean, last = linear_scan(past, new * v, state["mean"], **layout)
    return mean, log_norm, {"mean": last, "log_norm": last_norm}


def softmax_of_past(
    logits: Tensor, log_norm: Tensor, reset: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The softmax over all steps so far, as a recurrence: what the past keeps, what now weighs.

    Equation::

        z_t = logaddexp(z_{t-1}, s_t),   log decay_t = z_{t-1} - z_t,   weight_t = exp(s_t - z_t)

    so that ``M_t = decay_t M_{t-1} + weight_t v_t`` is the mean of all v weighted by exp(s). Where
    nothing was read before, log decay is 0: there is nothing to keep, and no infinity to carry.

    Args:
        logits: s, (B, T, ...).
        log_norm: z before the first step, (B, ...); `EMPTY` at a start.
        reset: boolean (B, T).

    Returns:
        Logarithms of decays and the weights, both (B, T, ...), and z after the last step.

    Example:
        >>> decay, weight, _ = softmax_of_past(torch.zeros(1, 3, 1), torch.full((1, 1), EMPTY))
        >>> decay.exp().flatten(), weight.flatten()
        (tensor([1.0000, 0.5000, 0.6667]), tensor([1.0000, 0.5000, 0.3333]))
    """
    keep_all = log_norm.new_zeros(log_norm.shape[1:])
    z, last = log_linear_scan(keep_all, logits, log_norm, reset=reset)
    # not by `previous_state`, whose writes in place no recorded step knows
    previous = torch.cat([log_norm.unsqueeze(1), z[:, :-1]], 1)  # (B, T, ...)
    begins = previous <= EMPTY / 2
    if reset is not None:
        begins = begins | reset.view(*reset.shape, *[1] * (logits.ndim - 2))  # (B, T, ...)
    return torch.where(begins, 0, previous - z), (logits - z).exp(), last


def shares(log_odds: Any) -> tuple[Any, Any]:
    """Two weights that add up to 1, given the logarithm of their ratio; in a cell too."""
    return torch.sigmoid(log_odds), torch.sigmoid(-log_odds)


def wkv_at_once(
    mean: Tensor,
    log_norm: Tensor,
    k: Tensor,
    v: Tensor,
    r: Tensor,
    decay: Tensor,
    bonus: Tensor,
    turn: Tensor | None = None,
    c: Tensor | None = None,
    **layout: Any,
) -> tuple[Tensor, Any]:
    """All steps of `wkv` by scans; of a mean that turns by ``turn``, read through ``c``."""
    state = {"mean": mean, "log_norm": log_norm}
    means, log_norms, last = mean_of_past(-decay, k, v, state, rotation=turn, **layout)
    past, now = shares(previous_state(log_norms, log_norm, **layout, empty=EMPTY) - bonus - k)
    y = past * previous_state(means, mean, **layout) + now * v
    y = y if c is None else (c * y).real
    return torch.sigmoid(r) * y, (last["mean"], last["log_norm"])


def _wkv(
    mean: Any, log_norm: Any, k: Any, v: Any, r: Any, decay: Any, bonus: Any
) -> tuple[Any, Any]:
    y = torch.lerp(v, mean, torch.sigmoid(log_norm - bonus - k))
    mean = torch.lerp(v, mean, torch.sigmoid(log_norm - decay - k))
    return torch.sigmoid(r) * y, (mean, torch.logaddexp(log_norm - decay, k))


wkv = Cell(
    _wkv,
    state="mean log_norm",
    constant="decay bonus",
    start={"log_norm": EMPTY},
    parallel=wkv_at_once,
    name="wkv",
)
"""The mean of the past and, with a bonus, the present value, times a gate r."""
