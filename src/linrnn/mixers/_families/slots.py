"""Shared by layers that attend to a fixed number of slots, each with a key and a value."""

import torch
from torch import Tensor

from linrnn.ops.matrix.outer_scan import outer_scan
from linrnn.state_spec import Part, real


def slots_spec(n_heads: int, slots: int, d_key: int, d_value: int) -> dict[str, Part]:
    """The slots of every head: their keys, one a column, and their values, one a row."""
    keys = real(n_heads=n_heads, d_key=d_key, slots=slots)
    return {"keys": keys, "values": real(n_heads=n_heads, slots=slots, d_value=d_value)}


def read_slots(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    write: Tensor,
    log_decay: Tensor,
    state: dict[str, Tensor],
    *,
    scale: float,
    reset: Tensor | None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Write key and value into every slot, and attend to the slots.

    Equation, in every head::

        K_t = diag(exp(log_decay_t)) K_{t-1} + write_t k_t^T          (slots, d_key)
        V_t = diag(exp(log_decay_t)) V_{t-1} + write_t v_t^T          (slots, d_value)
        o_t = V_t^T softmax(scale K_t q_t)

    Args:
        q, k: (B, T, H, d_key).
        v: (B, T, H, d_value).
        write, log_decay: (B, T, H, slots).
        state: as `slots_spec` says; ``keys`` is the transpose of K.
        scale: of the products.
        reset: boolean (B, T).
    """
    scores, keys = outer_scan(
        q, k, write, None, state["keys"], value_decay=log_decay, scale=scale, reset=reset
    )  # (B, T, H, slots)
    shares = torch.softmax(scores, -1)
    o, values = outer_scan(shares, write, v, log_decay, state["values"], reset=reset)
    return o, {"keys": keys, "values": values}  # (B, T, H, d_value)
