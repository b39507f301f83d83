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
    value_decay: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """The delta rule where what is erased is read along another vector than it is written.

    Equation, in every head::

        S' = exp(g_t) S_{t-1} exp(value_decay_t)
        S_t = S' + k_t (beta_t * (v_t - S'^T p_t))^T,   o_t = scale S_t^T q_t

    Args:
        q, k, p: (B, T, key_heads, K); p is k in the delta rule.
        v: (B, T, H, V).
        beta: (B, T, H) or (B, T, H, V); None is 1.
        g: (B, T, H) or (B, T, H, K), or None where nothing is forgotten.
        initial_state: S before the first step, (B, H, K, V), or None.
        value_decay: logarithms of decays of value channels, (B, T, H, V), or None.
        options: ``scale``, ``reset``, ``cu_seqlens`` and ``reverse`` of `linrnn.ops.delta_scan`.
    """
    if value_decay is not None or (beta is not None and beta.ndim == v.ndim):
        return _erase_columns(q, k, v, p, beta, g, initial_state, value_decay, options)
    q, k, p = (for_each_head(z, v.shape[2]) for z in (q, k, p))
    a, b = wide(p), -wide(k)
    if g is not None:  # a reads the memory before it decays
        a = (g if g.ndim == 4 else g[..., None]).exp() * a
    if beta is not None:
        b = beta[..., None] * b
    a, b = a.to(k.dtype), b.to(k.dtype)
    with without_autocast(q.device):
        return delta_scan(q, k, v, beta, g, initial_state, a=a, b=b, **options)


def _erase_columns(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    p: Tensor,
    beta: Tensor | None,
    g: Tensor | None,
    initial_state: Tensor | None,
    value_decay: Tensor | None,
    options: Mapping[str, Any],
) -> tuple[Tensor, Tensor]:
    """`erase_scan` of rates or decays that differ by value channel: a memory for each channel."""
    heads, channels = v.shape[2:]

    def each(x: Tensor) -> Tensor:
        return for_each_head(for_each_head(x, heads), heads * channels)

    if value_decay is not None:
        columns = value_decay.flatten(2)  # (B, T, H V)
        if g is not None:
            g = each(g) + (columns if g.ndim == 3 else columns[..., None])
        g = columns if g is None else g
    elif g is not None:
        g = each(g)
    if beta is not None:
        beta = each(beta) if beta.ndim == 3 else beta.flatten(2)
    if initial_state is not None:
        initial_state = initial_state.mT.flatten(1, 2)[..., None]  # (B, H V, K, 1)
    q, k, p = (each(x) for x in (q, k, p))
    o, last = erase_scan(q, k, v.flatten(2)[..., None], p, beta, g, initial_state, **options)
    return o.view(v.shape), last.view(last.shape[0], heads, channels, -1).mT.contiguous()


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
