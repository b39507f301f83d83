"""Attention behind the functions of `linrnn.interop.fla`, with this library's attention."""

from typing import Any

import torch
from torch import Tensor

from linrnn.compute.precision import wide
from linrnn.interop._fla_ops import Call, Results
from linrnn.nn.features import second_powers
from linrnn.nn.heads import for_each_head
from linrnn.ops import outer_scan
from linrnn.ops.attention import attend
from linrnn.ops.attention.forgetting import forgotten
from linrnn.ops.attention.path import carried_keys


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    window_size: int | None,
    sink_bias: Tensor | None = None,
    *,
    call: Call,
) -> Tensor:
    """Softmax attention, with decays of scores (g), and a logit that has no value (sink_bias)."""
    if sink_bias is not None:
        return _with_sinks(q, k, v, g, window_size, sink_bias, call)
    keys, kind = wide(k), "softmax"
    if g is not None:
        keys, kind = torch.cat([keys, wide(g).unflatten(2, (k.shape[2], -1))], -1), "forgetting"
    return _attend(kind, q, keys, v, window_size, call).to(q.dtype)


def forgetting_attention(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, window_size: int | None, call: Call
) -> Tensor:
    """Forgetting attention: decays of all steps between the two are added to a score."""
    return attention(q, k, v, g, window_size, call=call)


def stick_breaking(q: Tensor, k: Tensor, v: Tensor, attend_current: bool, call: Call) -> Results:
    """Stick-breaking attention: outputs, and the remainder of each stick."""
    kind = "stick_breaking_current" if attend_current else "stick_breaking"
    shares = torch.cat([wide(v), torch.ones_like(wide(v[..., :1]))], -1)
    o = _attend(kind, q, wide(k), shares, None, call)  # (B, T, HQ, V + 1)
    return o[..., :-1].to(q.dtype), (1 - o[..., -1]).to(q.dtype)


def path_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    beta: Tensor,
    g: Tensor | None,
    use_cache: bool,
    call: Call,
) -> Results:
    """PaTH attention: outputs, and with use_cache the keys after the last step.

    The scale multiplies decays (g) as well, as in fla's kernels.
    """
    heads, scale = q.shape[2], call.options(q)["scale"]
    u = wide(w) * wide(beta).sqrt().unsqueeze(-1)
    cached = _carried(wide(k), u, call).to(k.dtype) if use_cache else None
    parts = [x.repeat_interleave(heads // x.shape[2], 2) for x in (wide(k), u)]
    if g is not None:
        parts.append(wide(g).unsqueeze(-1) * scale)
    values = v.repeat_interleave(heads // v.shape[2], 2)
    return _attend("path", q, torch.cat(parts, -1), values, None, call).to(q.dtype), cached


def rebased(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    eps: float,
    use_scale: bool,
    use_normalize: bool,
    return_both: bool,
    call: Call,
) -> Any:
    """ReBased: attention with squared products for weights.

    With return_both the sums of weights besides, both (batch, heads, time, ...).
    """
    size = q.shape[-1] ** -1.0 if use_scale else 1.0
    left, right = second_powers(wide(q)), second_powers(wide(k))
    o, _ = outer_scan(left, right, wide(v), normalizer=True, scale=size)  # (B, T, H, V + 1)
    y, total = o[..., :-1], o[..., -1:]
    if return_both:
        return y.transpose(1, 2).to(q.dtype), total[..., 0].transpose(1, 2).to(q.dtype)
    return (y / (total + eps) if use_normalize else y).to(q.dtype)


def _attend(kind: str, q: Tensor, k: Tensor, v: Tensor, window: int | None, call: Call) -> Tensor:
    """Attention of each step to its sequence, in at least float32."""
    size = q.shape[-1] ** 0.5  # what the library divides by
    return attend(
        *(kind, wide(q) * (call.options(q)["scale"] * size), k, wide(v)),
        *(_sight(q, window, call),),
        window=window,
        whole=False,
    )


def _sight(q: Tensor, window: int | None, call: Call) -> Tensor:
    """How many steps before each are of its sequence, and in the window: (B, T)."""
    step = torch.arange(q.shape[1], device=q.device)
    if call.cu_seqlens is not None:
        cuts = call.cu_seqlens.to(step)
        step = step - cuts[torch.searchsorted(cuts, step, right=True) - 1]
    sight = step if window is None else step.clamp(max=window - 1)
    return sight.expand(q.shape[0], -1)


def _with_sinks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    window: int | None,
    sinks: Tensor,
    call: Call,
) -> Tensor:
    """All scores at once, with one column more."""
    heads, time = q.shape[2], q.shape[1]
    keys, values = (for_each_head(wide(x), heads) for x in (k, v))
    scores = torch.einsum("bthk,bshk->bhts", wide(q), keys) * call.options(q)["scale"]
    if g is not None:
        scores = scores + forgotten(wide(g), time)
    step = torch.arange(time, device=q.device)
    age = step[:, None] - step
    visible = (age >= 0) & (age <= _sight(q, window, call)[..., None])  # (B, T, T)
    scores = scores.masked_fill(~visible[:, None], float("-inf"))
    column = wide(sinks).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    weights = torch.cat([scores, column], -1).softmax(-1)[..., :-1]
    return torch.einsum("bhts,bshv->bthv", weights, values).to(q.dtype)


def _carried(k: Tensor, u: Tensor, call: Call) -> Tensor:
    """Keys after the last step of their sequence."""
    if call.cu_seqlens is None:
        return carried_keys(k, u)
    lengths = call.cu_seqlens.diff().tolist()
    pairs = zip(k.split(lengths, 1), u.split(lengths, 1), strict=True)
    return torch.cat([carried_keys(*pair) for pair in pairs], 1)
