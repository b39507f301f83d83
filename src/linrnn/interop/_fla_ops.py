"""The recurrences behind the functions of `linrnn.interop.fla`, written with this library's ops.

Names of arguments and layouts are those of flash-linear-attention: (batch, time, heads, channels),
memories (sequences, heads, d_key, d_value), logarithms of decays.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute.layout import accumulator_dtype
from linrnn.compute.precision import wide
from linrnn.errors import ArgumentError
from linrnn.nn.features import second_taylor
from linrnn.nn.heads import for_each_head, l2_normalise
from linrnn.nn.memories import erase_scan, read_slots
from linrnn.ops import delta_scan, linear_scan, outer_scan
from linrnn.ops.linear.weighted_mean import EMPTY, softmax_of_past

_WHERE = "linrnn.interop.fla"
_SUM_EPS = 1e-10  # added to what linear attention divides by
_BASED_EPS = 1e-6
_CENTER = -0.2  # of the logarithm of squared keys, where none is given

Results = tuple[Tensor, Any]


class Call(NamedTuple):
    """Arguments that every function has besides its tensors."""

    scale: float | None = None
    initial_state: Any = None
    output_final_state: bool = False
    state_v_first: bool = False
    reverse: bool = False
    cu_seqlens: Tensor | None = None

    def options(self, q: Tensor) -> dict[str, Any]:
        """The options of a matrix op; the scale is that of attention unless it is given."""
        scale = q.shape[-1] ** -0.5 if self.scale is None else float(self.scale)
        return {"scale": scale, **self.layout()}

    def layout(self) -> dict[str, Any]:
        """Direction and packing."""
        return {"reverse": self.reverse, "cu_seqlens": self.cu_seqlens}

    def start(self) -> Tensor | None:
        """The memory before the first step, rows its keys."""
        h: Tensor | None = self.initial_state
        return h.mT if self.state_v_first and h is not None else h

    def end(self, memory: Tensor) -> Tensor | None:
        """The memory after the last step as the caller stores it; None where it is not wanted."""
        if not self.output_final_state:
            return None
        return memory.mT if self.state_v_first else memory


def outer(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    call: Call,
    g: Tensor | None = None,
    value_decay: Tensor | None = None,
    bonus: Tensor | None = None,
) -> Results:
    """Linear attention with decays: see `outer_scan`."""
    options = call.options(q)
    o, memory = outer_scan(
        q, k, v, g, call.start(), value_decay=value_decay, bonus=bonus, **options
    )
    return o.to(q.dtype), call.end(memory)


def linear_attention(q: Tensor, k: Tensor, v: Tensor, normalize: bool, call: Call) -> Results:
    """Linear attention; normalised, its state is the memory and the sum of keys."""
    if not normalize:
        return outer(q, k, v, call)
    start = call.initial_state
    if start is not None:
        memory, key_sum = start if isinstance(start, (tuple, list)) else (start, None)
        column = memory.new_zeros(memory.shape[:-1]) if key_sum is None else key_sum.squeeze(1)
        start = torch.cat([memory, column.to(memory.dtype).unsqueeze(-1)], -1)  # (N, H, K, V + 1)
    o, last = outer_scan(q, k, v, None, start, normalizer=True, **call.options(q))
    y = wide(o[..., :-1]) / (wide(o[..., -1:]) + _SUM_EPS)  # (B, T, H, V)
    final = (last[..., :-1], last[..., -1].unsqueeze(1)) if call.output_final_state else None
    return y.to(q.dtype), final


def gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    *,
    call: Call,
) -> Results:
    """Gated linear attention: decays g or gk of key channels, gv of value channels."""
    return outer(q, k, v, call, g if gk is None else gk, gv)


def simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    g_gamma: Tensor | None = None,
    *,
    call: Call,
) -> Results:
    """Linear attention with a decay of every head, by the step (g) or constant (g_gamma)."""
    if g is not None and g_gamma is not None:
        g = g + g_gamma
    return outer(q, k, v, call, g_gamma if g is None else g)


def parallel_simple_gla(q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, call: Call) -> Results:
    """The same without a state; the attention weights, which are not computed, are None."""
    return outer(q, k, v, call, g)[0], None


def retention(q: Tensor, k: Tensor, v: Tensor, call: Call) -> Results:
    """Retention: decays ``1 - 2^(-5 - head)``."""
    return outer(q, k, v, call, torch.log1p(-(2.0 ** (-5 - _heads(q)))))


def parallel_retention(q: Tensor, k: Tensor, v: Tensor, call: Call) -> Results:
    """The same without a state; the attention weights, which are not computed, are None."""
    return retention(q, k, v, call)[0], None


def lightning_attention(
    q: Tensor, k: Tensor, v: Tensor, layer_idx: int, num_layers: int, call: Call
) -> Results:
    """Lightning attention: log decays ``-8 head / heads (1 - layer_idx / num_layers)``."""
    slope = 8 / q.shape[2] * (1 - layer_idx / num_layers)
    return outer(q, k, v, call, -slope * _heads(q))


def based(q: Tensor, k: Tensor, v: Tensor, use_norm: bool, call: Call) -> Tensor:
    """Based: attention with weights ``1 + x + x^2 / 2``, the second Taylor polynomial of exp."""
    scale = call.options(q)["scale"]
    left, right = second_taylor(wide(q) * scale), second_taylor(wide(k))
    o, _ = outer_scan(left, right, wide(v), normalizer=True)  # (B, T, H, V + 1)
    y = o[..., :-1] / (o[..., -1:] + _BASED_EPS) if use_norm else o[..., :-1]
    return y.to(q.dtype)


def rwkv6(r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor, call: Call) -> Results:
    """RWKV-6: log decays w of key channels, and a bonus u of the present step."""
    return outer(r, k, v, call, w, None, u)


def rwkv7(r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, call: Call) -> Results:
    """RWKV-7: log decays w, and ``b a^T`` added to the transition."""
    return low_rank(r, k, v, a, b, w, call=call)


def low_rank(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, gk: Tensor | None = None, *, call: Call
) -> Results:
    """The generalised delta rule: a transition that is diagonal and of rank one."""
    o, memory = delta_scan(q, k, v, None, gk, call.start(), a=a, b=b, **call.options(q))
    return o.to(q.dtype), call.end(memory)


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    use_qk_l2norm_in_kernel: bool,
    call: Call,
) -> Results:
    """The delta rule."""
    if use_qk_l2norm_in_kernel:
        q, k = unit(q), unit(k)
    return _delta(q, k, v, beta, None, call)


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    use_qk_l2norm_in_kernel: bool,
    use_beta_sigmoid_in_kernel: bool,
    allow_neg_eigval: bool,
    use_gate_in_kernel: bool,
    A_log: Tensor | None,
    dt_bias: Tensor | None,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    *,
    call: Call,
) -> Results:
    """The gated delta rule: decays of heads (g), of key channels (gk), of value channels (gv)."""
    if g is not None and (use_gate_in_kernel or A_log is not None):
        g = wide(g) if dt_bias is None else wide(g) + dt_bias
        g = -_rate(A_log) * F.softplus(g)
    g = _decay_of_keys(g, gk)
    if use_qk_l2norm_in_kernel:
        q, k = unit(q), unit(k)
    writes = _beta(beta, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    return _delta(q, k, v, writes, g, call, gv)


def kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    use_qk_l2norm_in_kernel: bool,
    use_gate_in_kernel: bool,
    use_beta_sigmoid_in_kernel: bool,
    allow_neg_eigval: bool,
    A_log: Tensor | None,
    dt_bias: Tensor | None,
    lower_bound: float | None,
    call: Call,
) -> Results:
    """Kimi delta attention: the delta rule with decays of key channels."""
    if use_gate_in_kernel:
        g = _channel_gate(g, A_log, dt_bias, lower_bound)
    if use_qk_l2norm_in_kernel:
        q, k = unit(q), unit(k)
    writes = _beta(beta, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    return _delta(q, k, v, writes, g, call)


def gdn2(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    b: Tensor,
    w: Tensor,
    use_qk_l2norm_in_kernel: bool,
    use_gate_in_kernel: bool,
    A_log: Tensor | None,
    dt_bias: Tensor | None,
    lower_bound: float | None,
    call: Call,
) -> Results:
    """Gated DeltaNet-2: b erases by key channels, w writes by value channels."""
    if use_gate_in_kernel:
        g = _channel_gate(g, A_log, dt_bias, lower_bound)
    if use_qk_l2norm_in_kernel:
        q, k = unit(q), unit(k)
    q, k, g, b = (for_each_head(x, v.shape[2]) for x in (q, k, g, b))
    a = (wide(g).exp() * wide(b) * wide(k)).to(k.dtype)  # reads the memory before its decay
    values = (wide(w) * wide(v)).to(v.dtype)
    o, memory = delta_scan(q, k, values, None, g, call.start(), a=a, b=-k, **call.options(q))
    return o.to(q.dtype), call.end(memory)


def comba(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    p: Tensor | None,
    g: Tensor,
    beta: Tensor | None,
    use_qk_l2norm_in_kernel: bool,
    call: Call,
) -> Results:
    """Comba: p, and not k, reads what is to be erased, of the decayed memory.

    ``fused_recurrent_comba`` of fla-core 0.6 reads the memory before its decay, and so disagrees
    with its ``chunk_comba`` and ``naive_recurrent_comba``; here both read it after.
    """
    p = k if p is None else p
    if use_qk_l2norm_in_kernel:
        q, k, p = unit(q), unit(k), unit(p)
    return _erasing(q, k, v, p, beta, g, call)


def gated_delta_product(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor,
    num_householder: int,
    use_qk_l2norm_in_kernel: bool,
    call: Call,
) -> Results:
    """Gated DeltaProduct: n steps of the delta rule a token, k, v and beta one after another."""
    n = num_householder
    if use_qk_l2norm_in_kernel:
        q, k = unit(q), unit(k)
    check_rates(beta, v)
    k, v, beta = (x.unflatten(1, (-1, n)) for x in (k, v, beta))  # (B, T, n, H, ...)
    o, memory = delta_scan(q, k, v, beta, g, call.start(), **call.options(q))
    return o.to(q.dtype), call.end(memory)


def preconditioned_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    g_atk: Tensor,
    beta_atk: Tensor,
    beta: Tensor | None,
    initial_A_state: Tensor | None,
    transpose_state_layout: bool,
    x: float,
    eps: float,
    log_atk_scale: Tensor | float | None,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    lower_bound: float | None = None,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    *,
    call: Call,
) -> tuple[Tensor, Any, Any]:
    """The preconditioned delta rule: outputs, memory, and the decayed sum of squared keys."""
    if use_gate_in_kernel and g is not None:
        g = _channel_gate(g, A_log, dt_bias, lower_bound)
    g = _decay_of_keys(g, gk)
    if use_qk_l2norm_in_kernel:
        q, k = unit(q), unit(k)
    keys = wide(k)
    decay = wide(g_atk).exp().unsqueeze(-1).expand(keys.shape)  # (B, T, H, K)
    added = wide(beta_atk).unsqueeze(-1) * keys.square()
    squares, last = linear_scan(decay, added, initial_A_state, **call.layout())
    center: Any = _CENTER if log_atk_scale is None else log_atk_scale
    center = wide(center).view(1, 1, -1, 1) if isinstance(center, Tensor) else center
    excess = (squares + eps).log() - center
    written = (keys * float(x) ** -(excess / (1 + excess.abs()))).to(k.dtype)
    call = call._replace(state_v_first=transpose_state_layout)
    o, memory = _erasing(q, written, v, k, beta, g, call, gv)
    return o, memory, last if call.output_final_state else None


def slots(
    q: Tensor, k: Tensor, v: Tensor, s: Tensor, g: Tensor | None = None, *, call: Call
) -> Results:
    """Attention to slots: written by gates (s, g), or means by a softmax of s over time."""
    heads, group = q.shape[2], q.shape[2] // k.shape[2]
    write: Tensor = s
    if g is None:
        g, write = _means(s, call)
    k, v, write, g = (for_each_head(x, heads) for x in (k, v, write, g))
    names = ("keys", "values")
    start = dict(zip(names, call.initial_state or (None, None), strict=True))
    start = {n: x if x is None else for_each_head(x, heads, 1) for n, x in start.items()}
    o, last = read_slots(q, k, v, write, g, start, **call.options(q))
    # heads that share a key have the same memory
    final = tuple(last[n][:, ::group] for n in names) if call.output_final_state else None
    return o.to(q.dtype), final


def _means(s: Tensor, call: Call) -> tuple[Tensor, Tensor]:
    """Decays and weights of a softmax over time."""
    if call.initial_state is not None or call.cu_seqlens is not None or call.reverse:
        raise ArgumentError(
            f"{_WHERE}: slots without g must begin with one sequence a row, got an initial state, "
            "cu_seqlens or reverse. linrnn.mixers.ABC carries the sums of a softmax over time."
        )
    s = wide(s)
    g, weights, _ = softmax_of_past(s, s.new_full((s.shape[0], *s.shape[2:]), EMPTY))
    return g, weights


def hgrn(x: Tensor, g: Tensor, call: Call) -> Results:
    """HGRN: ``h_t = exp(g_t) h_{t-1} + x_t`` for every channel, (batch, time, channels)."""
    h, last = linear_scan(wide(g).exp(), wide(x), call.initial_state, **call.layout())
    return h.to(x.dtype), last if call.output_final_state else None


def _delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    g: Tensor | None,
    call: Call,
    gv: Tensor | None = None,
) -> Results:
    if g is not None and g.ndim == v.ndim:
        g = for_each_head(g, v.shape[2])
    o, memory = delta_scan(q, k, v, beta, g, call.start(), value_decay=gv, **call.options(q))
    return o.to(q.dtype), call.end(memory)


def check_rates(beta: Tensor | None, v: Tensor) -> None:
    """Raise `ArgumentError` for rates of value channels."""
    if beta is not None and beta.ndim == v.ndim:
        raise ArgumentError(
            f"{_WHERE}: beta must have shape (batch, time, heads), got {tuple(beta.shape)}. "
            "Only rules whose values are corrected have one of each value channel."
        )


def _decay_of_keys(g: Tensor | None, gk: Tensor | None) -> Tensor | None:
    """Decays of heads (g) and of key channels (gk) as one."""
    if gk is None:
        return g
    return gk if g is None else g.unsqueeze(-1) + gk


def _erasing(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    p: Tensor,
    beta: Tensor | None,
    g: Tensor | None,
    call: Call,
    gv: Tensor | None = None,
) -> Results:
    """``S_t = S' + k (beta * (v - S'^T p))^T``, of a memory that has decayed."""
    g, beta, gv = (x if x is None else wide(x) for x in (g, beta, gv))
    o, memory = erase_scan(q, k, v, p, beta, g, call.start(), gv, **call.options(q))
    return o.to(q.dtype), call.end(memory)


def unit(x: Tensor) -> Tensor:
    """``x / sqrt(|x|^2 + 1e-6)``, as by fla's kernels, in the dtype of x."""
    return l2_normalise(wide(x)).to(x.dtype)


def _beta(beta: Tensor | None, sigmoid: bool, twice: bool) -> Tensor | None:
    if beta is None or not sigmoid:
        return beta
    return torch.sigmoid(wide(beta)) * (2 if twice else 1)


def _channel_gate(
    g: Tensor, A_log: Tensor | None, dt_bias: Tensor | None, lower_bound: float | None
) -> Tensor:
    """The logarithm of a decay from the logits of a gate, (..., heads, d_key)."""
    g = wide(g) if dt_bias is None else wide(g) + dt_bias.view(g.shape[-2:])
    if lower_bound is None:
        return -_rate(A_log).unsqueeze(-1) * F.softplus(g)
    slope = 1.0 if A_log is None else _rate(A_log).unsqueeze(-1)
    return lower_bound * torch.sigmoid(slope * g)


def _rate(A_log: Tensor | None) -> Tensor:
    if A_log is None:
        raise ArgumentError(
            f"{_WHERE}: A_log must be given with use_gate_in_kernel, got None. "
            "It is one number a head."
        )
    return wide(A_log).exp().flatten()


def _heads(q: Tensor) -> Tensor:
    """The numbers of the heads, from 0."""
    return torch.arange(q.shape[2], device=q.device, dtype=accumulator_dtype(q.dtype))
