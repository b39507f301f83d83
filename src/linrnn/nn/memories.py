"""Memories that several layers share, written with the ops of matrix memories."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from linrnn.compute.precision import wide, without_autocast
from linrnn.nn.heads import for_each_head
from linrnn.ops.matrix.delta_scan import delta_scan
from linrnn.ops.matrix.outer_scan import outer_scan


def erase_scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    p: Tensor,
    beta: Tensor | None,
    g: Tensor | None,
    initial_state: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """The delta rule where what is erased is read along another vector than it is written.

    Equation, in every head::

        S' = exp(g_t) S_{t-1},   S_t = S' + beta_t k_t (v_t - S'^T p_t)^T,   o_t = scale S_t^T q_t

    Args:
        q, k, p: (B, T, key_heads, K); p is k in the delta rule.
        v: (B, T, H, V).
        beta: (B, T, H); None is 1.
        g: (B, T, H) or (B, T, H, K), or None where nothing is forgotten.
        initial_state: S before the first step, (B, H, K, V), or None.
        options: ``scale``, ``reset``, ``cu_seqlens`` and ``reverse`` of `linrnn.ops.delta_scan`.
    """
    q, k, p = (for_each_head(z, v.shape[2]) for z in (q, k, p))
    a, b = wide(p), -wide(k)
    if g is not None:  # a reads the memory before it decays
        a = (g if g.ndim == 4 else g[..., None]).exp() * a
    if beta is not None:
        b = beta[..., None] * b
    a, b = a.to(k.dtype), b.to(k.dtype)
    with without_autocast(q.device):
        return delta_scan(q, k, v, beta, g, initial_state, a=a, b=b, **options)


def read_slots(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    write: Tensor,
    log_decay: Tensor,
    state: Mapping[str, Tensor | None],
    *,
    scale: float,
    **layout: Any,
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
        state: ``keys``, (B, H, d_key, slots), the transpose of K, and ``values``,
            (B, H, slots, d_value); None where nothing was written.
        scale: of the products.
        layout: ``reset``, ``cu_seqlens`` and ``reverse`` of `linrnn.ops.outer_scan`.
    """
    write = write.to(v.dtype)
    scores, keys = outer_scan(
        q, k, write, None, state["keys"], value_decay=log_decay, scale=scale, **layout
    )  # (B, T, H, slots)
    shares = torch.softmax(wide(scores), -1).to(v.dtype)
    o, values = outer_scan(shares, write, v, log_decay, state["values"], **layout)
    return o, {"keys": keys, "values": values}  # (B, T, H, d_value)
