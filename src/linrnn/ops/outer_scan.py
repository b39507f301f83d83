"""A matrix that forgets and is written to: linear attention with a decay, in chunks.

This is the plain definition, for any device: matrix products inside chunks of time and
`linear_scan` from chunk to chunk.
"""

import torch
from torch import Tensor

from linrnn.ops._modes import seen_finite
from linrnn.ops._opaque import opaque
from linrnn.ops._precision import wide
from linrnn.ops.linear_scan import linear_scan

CHUNK = 64


def outer_scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    initial_state: Tensor,
    *,
    reset: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """``S_t = exp(g_t) S_{t-1} + k_t v_t^T``, ``o_t = S_t^T q_t``, of every head.

    Args:
        q, k: queries and keys (B, T, H, K).
        v: values (B, T, H, V).
        g: log decays of at most 0, (H,) or (B, T, H).
        initial_state: S before the first step, (B, H, K, V).
        reset: boolean (B, T); True starts from S = 0 at that step.

    Returns:
        ``(o, S)``: outputs (B, T, H, V) and the last S, both at least float32.
    """
    run = _one_step if q.shape[1] == 1 else _chunked
    o, last = run(wide(q), wide(k), wide(v), wide(g), wide(initial_state), reset)
    return o, last


def _one_step(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    if reset is not None:
        state = torch.where(reset[:, :, None, None], 0, state)
    decay = (g if g.ndim == 1 else g[:, 0]).exp().to(state.dtype)
    state = decay[..., None, None] * state + k[:, 0, :, :, None] * v[:, 0, :, None]
    return (state.mT @ q[:, 0, :, :, None]).squeeze(-1)[:, None], state


def _shapes(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    return v.new_empty(v.shape), state.new_empty(state.shape)


@opaque(
    "outer_scan",
    "Tensor q, Tensor k, Tensor v, Tensor g, Tensor state, Tensor? reset",
    _shapes,
)
def _chunked(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    time, outputs = q.shape[1], []
    whole = time - time % CHUNK
    for begin, end in ((0, whole), (whole, time)):
        if begin < end:
            part = slice(begin, end)
            decay = g if g.ndim == 1 else g[:, part]
            cut = None if reset is None else reset[:, part]
            size = min(CHUNK, end - begin)
            o, state = _chunks(q[:, part], k[:, part], v[:, part], decay, state, cut, size)
            outputs.append(o)
    if not outputs:
        return v.clone(), state.clone()
    return torch.cat(outputs, 1) if len(outputs) > 1 else outputs[0], state


def _chunks(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: Tensor, reset: Tensor | None, size: int
) -> tuple[Tensor, Tensor]:
    """A whole number of chunks."""
    # (B, n, H, C, K or V); log decays (.., H, C), added up in double precision
    q, k, v = (x.unflatten(1, (-1, size)).transpose(2, 3) for x in (q, k, v))
    steps = g[:, None].expand(-1, size) if g.ndim == 1 else g.unflatten(1, (-1, size)).mT
    total = steps.double().cumsum(-1)
    decay = (total[..., :, None] - total[..., None, :]).exp()
    seen = torch.ones(size, size, dtype=torch.bool, device=q.device).tril()
    begun = None
    if reset is not None:
        begun = reset.unflatten(1, (-1, size)).cumsum(-1)  # (B, n, C) resets so far in the chunk
        seen = seen & (begun[..., :, None] == begun[..., None, :])[:, :, None]
    weight = torch.where(seen, q @ k.mT * decay.to(q.dtype), 0)
    # zero times NaN is not zero: what is not finite is kept out of the products, and marked
    finite = seen_finite(v)
    v_safe = v if finite else v.nan_to_num(0, 0, 0)
    kept = k * (total[..., -1:] - total).exp().to(k.dtype)[..., None]
    if begun is not None:
        kept = torch.where((begun < begun[..., -1:])[:, :, None, :, None], 0, kept)
    left = kept.mT @ v_safe  # (B, n, H, K, V)
    if not finite:
        bad = ~v.isfinite().all(-1)  # (B, n, H, C)
        now = bad if begun is None else bad & (begun == begun[..., -1:])[:, :, None]
        left = torch.where(now.any(-1)[..., None, None], float("nan"), left)
    across = total[..., -1].exp().to(left.dtype)
    across = across.repeat_interleave(k.shape[-1] * v.shape[-1], -1)
    cut = None if begun is None else begun[..., -1] > 0
    states, last = linear_scan(across, left.flatten(2), state.flatten(1), reset=cut)
    before = torch.cat([state.flatten(1)[:, None], states[:, :-1]], 1)
    before = before.unflatten(-1, state.shape[1:])
    past = (q * total.exp().to(q.dtype)[..., None]) @ before
    if begun is not None:
        past = torch.where((begun > 0)[:, :, None, :, None], 0, past)
    o = weight @ v_safe + past
    if not finite:
        reached = (seen & bad[..., None, :]).any(-1)
        o = torch.where(reached[..., None], float("nan"), o)
    return o.transpose(2, 3).flatten(1, 2), last.view(state.shape)
