"""The weighted mean over the past that RWKV calls wkv.

Written as two sums, ``Y_t = sum_s exp(k_s - (t - s) w) v_s`` and the same without ``v``, it
overflows as soon as a key reaches 88. The state kept here is the mean ``Y / Z`` and ``log Z``: no
running maximum is needed, every operation is smooth, and the same past is always the same state.
The mean's two weights are sigmoids of one number, so they add up to 1 however large keys become.
"""

import torch
from torch import Tensor

from linrnn.ops.linear_scan import linear_scan
from linrnn.ops.log_linear_scan import log_linear_scan

EMPTY = -1e30  # the logarithm of an empty sum: finite, so that differences with it are no NaN


def mean_of_past(
    log_decay: Tensor,
    log_weight: Tensor,
    v: Tensor,
    state: dict[str, Tensor],
    reset: Tensor | None = None,
    rotation: Tensor | None = None,
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

    Returns:
        ``mean`` and ``log_norm`` of shape (B, T, N), and the state after the last step.
    """
    log_norm, last_norm = log_linear_scan(log_decay, log_weight, state["log_norm"], reset=reset)
    past, new = shares(before(log_norm, state["log_norm"], reset, EMPTY) + log_decay - log_weight)
    past = past if rotation is None else past * rotation
    mean, last = linear_scan(past, new * v, state["mean"], reset=reset)
    return mean, log_norm, {"mean": last, "log_norm": last_norm}


def shares(log_odds: Tensor) -> tuple[Tensor, Tensor]:
    """Two weights that add up to 1, given the logarithm of their ratio."""
    return log_odds.sigmoid(), (-log_odds).sigmoid()


def before(h: Tensor, start: Tensor, reset: Tensor | None, empty: float) -> Tensor:
    """The state each step of a scan started from: ``start``, then ``h`` but for the last."""
    previous = torch.cat([start[:, None], h], 1)[:, : h.shape[1]]
    return previous if reset is None else torch.where(reset[..., None], empty, previous)
