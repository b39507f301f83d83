"""Relatives of the delta rule behind the functions of `linrnn.interop.fla`."""

from typing import Any

import torch
from torch import Tensor

from linrnn.compute.precision import wide
from linrnn.errors import ArgumentError
from linrnn.interop._fla_ops import Call, Results, check_rates, unit
from linrnn.mixers.gated_oja import oja_scan
from linrnn.nn.heads import for_each_head
from linrnn.ops import outer_scan
from linrnn.ops.matrix.fenwick_scan import fenwick_scan
from linrnn.ops.matrix.momentum_delta import momentum_scan
from linrnn.ops.matrix.ridge_solve import ridge_solve

_WHERE = "linrnn.interop.fla"


def momentum_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_alpha: Tensor,
    log_mu: Tensor,
    p: Tensor | None,
    beta: Tensor | None,
    eta: Tensor | None,
    use_qk_l2norm_in_kernel: bool,
    use_p_times_alpha: bool,
    call: Call,
) -> Results:
    """The delta rule with momentum; its states are the memory and the momentum, stacked."""
    p = k if p is None else p
    if use_qk_l2norm_in_kernel:
        q, k, p = unit(q), unit(k), unit(p)
    keys, p, alpha = wide(k), wide(p), wide(log_alpha).exp()
    p = p * alpha.unsqueeze(-1) if use_p_times_alpha else p
    keys = keys if eta is None else keys * wide(eta).unsqueeze(-1)
    beta = torch.ones_like(alpha) if beta is None else wide(beta)
    B, _, H, K = q.shape
    rows = B if call.cu_seqlens is None else len(call.cu_seqlens) - 1
    empty = keys.new_zeros(rows, H, K, v.shape[-1])
    S, M = (empty, empty) if call.initial_state is None else call.initial_state
    queries = wide(q) * call.options(q)["scale"]
    states = wide(S), -wide(M)  # their momentum is a gradient, which is subtracted
    o, S, M = momentum_scan(
        *(
            queries,
            keys,
            wide(v),
            p,
            alpha,
            wide(log_mu).exp(),
            beta,
            *states,
            None,
            call.cu_seqlens,
        )
    )
    return o.to(q.dtype), torch.stack([S, -M]) if call.output_final_state else None


def gated_oja_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gv: Tensor | None,
    beta: Tensor | None,
    use_q_l2norm: bool,
    use_k_l2norm: bool,
    call: Call,
) -> Results:
    """The gated Oja rule: the delta rule with keys and values exchanged, decays of values."""
    check_rates(beta, v)
    q, k = unit(q) if use_q_l2norm else q, unit(k) if use_k_l2norm else k
    q, k = (wide(for_each_head(x, v.shape[2])) for x in (q, k))
    values = wide(v)
    decay = torch.zeros_like(values) if gv is None else wide(gv)
    rate = values.new_ones(values.shape[:3]) if beta is None else wide(beta)
    packed = call.cu_seqlens
    rows = len(q) if packed is None else len(packed) - 1
    start = call.start()
    if start is None:
        start = values.new_zeros(rows, v.shape[2], q.shape[-1], v.shape[-1])
    o, memory = oja_scan(
        *(q, k, values, rate, decay, wide(start), call.options(q)["scale"], None, packed)
    )
    return o.to(v.dtype), call.end(memory)


def mesa_net(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    lamb: Tensor,
    h_kk_init: Tensor | None,
    h_kv_init: Tensor | None,
    max_CG_iteration: int,
    use_qk_l2norm_in_kernel: bool,
    call: Call,
) -> tuple[Tensor, Any, Any]:
    """MesaNet: outputs, and the sums of keys by keys and of keys by values."""
    if call.cu_seqlens is not None:
        raise ArgumentError(
            f"{_WHERE}: cu_seqlens must be None in MesaNet, got {call.cu_seqlens.tolist()!r:.60}. "
            "Give each sequence its own row."
        )
    if use_qk_l2norm_in_kernel:
        q, k = unit(q), unit(k)
    rows, keys, decays, rates = (wide(x) for x in (q, k, g, beta))
    start = keys.new_zeros(k.shape[0], *k.shape[2:], k.shape[3])  # (B, H, K, K)
    start = start if h_kk_init is None else wide(h_kk_init)
    system = (rows, keys, rates, decays, wide(lamb), start, None)
    solution = ridge_solve(*system, max_CG_iteration)[0]  # (B, T, H, K)
    written = rates[..., None] * keys
    o, memory = outer_scan(solution, written, wide(v), decays, h_kv_init)
    if not call.output_final_state:
        return o.to(q.dtype), None, None
    return o.to(q.dtype), outer_scan(rows, written, keys, decays, start)[1], memory


def log_linear(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, level_scales: Tensor, call: Call
) -> Results:
    """Log-linear attention; its state is the levels and how many steps they hold."""
    levels, position = call.initial_state or (None, None)
    options: Any = {"scale": call.options(q)["scale"], "cu_seqlens": call.cu_seqlens}
    o, levels, position = fenwick_scan(q, k, v, g, level_scales, levels, position, **options)
    return o.to(q.dtype), (levels, position) if call.output_final_state else None
