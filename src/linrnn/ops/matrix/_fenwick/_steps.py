"""Levels by one step: joined where the position says, then read, all in a few operators."""

import torch
from torch import Tensor

from linrnn.ops.matrix._fenwick._levels import Rule, filled


def read_step(
    rule: Rule, scales: Tensor, state: Tensor | None, position: Tensor
) -> tuple[Tensor, Tensor]:
    """Outputs and levels of a single step.

    Args:
        rule: of the step, (B, 1, ...).
        scales: (B, 1, H, L).
        state: levels before it, (B, H, L, K, V), or None.
        position: (B,).
    """
    levels = scales.shape[3]
    each = rule.v.shape[2] // max(1, rule.q.shape[2])
    q, k = (x[:, 0].repeat_interleave(each, 1) for x in (rule.q, rule.k))  # (B, H, K)
    v = rule.v[:, 0] if rule.beta is None else rule.beta[:, 0, :, None] * rule.v[:, 0]
    write = k[..., None] * v[..., None, :]  # (B, H, K, V)
    if state is None:
        older = write.new_zeros(*write.shape[:2], levels, *write.shape[2:])
    else:
        older = joined(filled(state, position), position)
        if rule.g is not None:
            g = rule.g[:, 0] if rule.g.ndim == 4 else rule.g[:, 0, :, None]
            older = g.exp()[:, :, None, :, None] * older
        if rule.beta is not None:
            read = k[:, :, None, None] @ older  # (B, H, L, 1, V)
            older = older - (rule.beta[:, 0, :, None] * k)[:, :, None, :, None] * read
    newest = write + older[:, :, 0] if levels == 1 else write
    S = torch.cat([newest[:, :, None], older[:, :, 1:]], 2)  # (B, H, L, K, V)
    weighed = scales[:, 0, :, :, None] * q[:, :, None]  # (B, H, L, K)
    o = (weighed.flatten(2).unsqueeze(2) @ S.flatten(2, 3)).transpose(1, 2)  # (B, 1, H, V)
    return o, S


def joined(state: Tensor, position: Tensor) -> Tensor:
    """Let levels that a step at these positions no longer tells apart be one."""
    levels = state.shape[2]
    level = torch.arange(levels, device=state.device)
    # the oldest level takes what joins it and never joins another
    low = (position[:, None] & ((1 << level) - 1) == 0) & (level < levels - 1)  # (B, L)
    into = torch.cat([torch.zeros_like(low[:, :1]), low[:, :-1]], 1) & ~low
    low, into = (x.to(state.dtype)[:, None, :, None, None] for x in (low, into))
    return state * (1 - low) + into * (state * low).sum(2, keepdim=True)
