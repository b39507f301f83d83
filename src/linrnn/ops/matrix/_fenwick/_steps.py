"""Levels by one step: joined where the position says, then read, in two passes over them all.

A level after the step is ``exp(g) (keep S + take z) + k u^T`` with z, the sum of the levels that
become one. Reads are linear in the levels, so they come from the pass that makes z: what is kept
is written once. Whole numbers are told apart by division, which a recorded step knows.
"""

import torch
from torch import Tensor

from linrnn.ops.matrix._fenwick._levels import Rule, occupied


def read_step(
    rule: Rule, scales: Tensor, state: Tensor | None, position: Tensor
) -> tuple[Tensor, Tensor]:
    """Outputs and levels of a single step.

    Args:
        rule: of the step, (B, 1, ...).
        scales: (B, 1, H, L).
        state: levels before it, (B, H, L, K, V), or None; finite where a level holds nothing.
        position: (B,).
    """
    batch, heads, levels = scales.shape[0], scales.shape[2], scales.shape[3]
    each = heads // max(1, rule.q.shape[2])
    q, k = (x[:, 0].repeat_interleave(each, 1).flatten(0, 1) for x in (rule.q, rule.k))  # (R, K)
    v = rule.v[:, 0] if rule.beta is None else rule.beta[:, 0, :, None] * rule.v[:, 0]
    v, weights = v.flatten(0, 1), scales[:, 0].flatten(0, 1)  # (R, V), (R, L)
    if state is None:
        o = ((q * k).sum(1, keepdim=True) * weights[:, :1]) * v
        write = (k[:, :, None] * v[:, None])[:, None]  # (R, 1, K, V)
        empty = write.new_zeros(write.shape[0], levels - 1, *write.shape[2:])
        S = torch.cat([write, empty], 1)  # (R, L, K, V)
        # (B, 1, H, V), (B, H, L, K, V)
        return o.view(batch, 1, heads, -1), S.unflatten(0, (batch, heads))
    masks = _moves(position, levels, state.dtype).repeat_interleave(heads, 0)  # (R, 3, L)
    # (R,) or (R, K)
    g = torch.ones_like(q[:, :1]) if rule.g is None else rule.g[:, 0].flatten(0, 1).exp()
    g = g if g.ndim == 2 else g[:, None]  # (R, K or 1)
    S = state.flatten(0, 1)  # (R, L, K, V)
    decayed = (masks[:, 1, :, None] * g[:, None])[..., None] * S
    if rule.beta is None:
        z, o = _read_outer(g * q, S, masks, weights)
        o = o + ((q * k).sum(1, keepdim=True) * weights[:, :1]) * v
        # the sum goes to one level, the write to the newest: a product that writes each once
        first = torch.eye(levels, 1, device=masks.device).to(masks)  # (L, 1)
        first = first.T.expand(masks.shape[0], 1, levels)  # (R, 1, L)
        into = torch.cat([masks[:, 2:], first], 1).mT  # (R, L, 2)
        new = torch.stack([g[..., None] * z, k[..., None] * v[:, None]], 1)  # (R, 2, K, V)
        S = torch.baddbmm(decayed.flatten(2), into, new.flatten(2)).view_as(S)  # (R, L, K, V)
    else:
        rate = rule.beta[:, 0].flatten()[:, None, None]  # (R, 1, 1)
        z, o, u = _read_delta(q, k, v, rate, g, S, masks, weights)
        S = decayed + masks[:, 2, :, None, None] * (g[..., None] * z)[:, None]
        S = S + k[:, None, :, None] * u[:, :, None]
    # (B, 1, H, V), (B, H, L, K, V)
    return o.view(batch, 1, heads, -1), S.unflatten(0, (batch, heads))


def _read_outer(q: Tensor, S: Tensor, masks: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return z (R, K, V), and what decayed queries read before the write, (R, V)."""
    join, keep, take = masks.unbind(1)  # (R, L) each
    both = torch.stack([join, weights * keep], 1) @ S.flatten(2)  # (R, 2, K V)
    z, decayed_sum = both.unflatten(2, S.shape[2:]).unbind(1)  # (R, K, V) each
    total = decayed_sum + (weights * take).sum(1)[:, None, None] * z  # (R, K, V)
    return z, (q[:, None] @ total)[:, 0]


def _read_delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rate: Tensor,
    g: Tensor,
    S: Tensor,
    masks: Tensor,
    weights: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return z (R, K, V), outputs (R, V), and what each level is written, (R, L, V)."""
    join, keep, take = (mask[..., None] for mask in masks.unbind(1))  # (R, L, 1)
    z = (masks[:, :1] @ S.flatten(2)).view(S.shape[0], *S.shape[2:])  # (R, K, V)
    reads = torch.stack([g * k, g * q], 1)[:, None].expand(-1, S.shape[1], -1, -1)  # (R, L, 2, K)
    by_level = (reads.flatten(0, 1) @ S.flatten(0, 1)).unflatten(0, S.shape[:2])  # (R, L, 2, V)
    of_k, of_q = (keep * x + take * (join * x).sum(1, keepdim=True) for x in by_level.unbind(2))
    # (R, L, V)
    first = torch.cat([v[:, None], v.new_zeros(v.shape[0], S.shape[1] - 1, v.shape[1])], 1)
    u = first - rate * of_k
    outputs = of_q + (q * k).sum(1)[:, None, None] * u  # (R, L, V)
    return z, (weights[..., None] * outputs).sum(1), u


def _moves(position: Tensor, levels: int, dtype: torch.dtype) -> Tensor:
    """Return which levels a step joins, keeps and lets take the sum of those joined: (B, 3, L)."""
    level = torch.arange(levels, device=position.device)
    # the oldest level takes what joins it and never joins another
    ends = torch.remainder(position[:, None], 1 << level) == 0
    join = ends & (level < levels - 1)  # (B, L)
    take = torch.cat([torch.zeros_like(join[:, :1]), join[:, :-1]], 1) & ~join  # (B, L)
    filled = occupied(position, levels)
    return torch.stack([join & filled, ~join & filled, take], 1).to(dtype)  # (R, 3, L)
