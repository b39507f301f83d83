"""Attention whose keys and values are a state of fixed size: which of them to give up."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from linrnn.compute.composed import composed

# A training step (TOVA, 64 channels, 2 rows of 1,024 steps) takes 1.03 times as long with 16 and
# 0.98 with 256 (2026-11-28, EPYC with AVX-512, one core, in turn).
STEPS = 64
"""Steps of a block; the entries read inside a block are recomputed for the gradient, not stored."""


def _shapes(policy: str, q: Tensor, k: Tensor, v: Tensor, *state: Any) -> tuple[Tensor, ...]:
    memory = state[:3]
    return (v.new_empty(*q.shape[:-1], v.shape[-1]), *(h.new_empty(h.shape) for h in memory))


@composed(
    "attend_evicting",
    "str policy, Tensor q, Tensor k, Tensor v, Tensor kept_k, Tensor kept_v, Tensor weight, "
    "Tensor position",
    _shapes,
    lead=1,
)
def attend_evicting(
    policy: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kept_k: Tensor,
    kept_v: Tensor,
    weight: Tensor,
    position: Tensor,
) -> tuple[Tensor, ...]:
    """Softmax attention of each step to itself and to entries that were kept.

    Where there are more than ``kept_k`` has room for, each head of keys gives up the one with

    * "tova": the least weight in this step, in the mean over all heads;
    * "h2o": the least sum of the weights it has had, but for the newer half.

    Args:
        policy: "tova" or "h2o".
        q: queries (B, T, G, H, K), of H groups of heads that share their keys.
        k, v: keys and values (B, T, H, K).
        kept_k, kept_v: those before, (B, S, H, K), the newest last and zero where there are none.
        weight: the sum of what each has had, (B, S, H); for "tova" of no use and returned as it is.
        position: how many steps of the same sequence come before each step, (B, T).

    Returns:
        ``(y, kept_k, kept_v, weight)``: outputs (B, T, G, H, K), and what is kept.
    """
    ys, memory = [], [kept_k, kept_v, weight]
    if q.shape[1] == 0:
        return (_shapes(policy, q, k, v, *memory)[0], *memory)
    for begin in range(0, q.shape[1], STEPS):
        end = min(begin + STEPS, q.shape[1])
        args = [z[:, begin:end] for z in (q, k, v, position)] + memory
        if q.shape[1] > STEPS and torch.is_grad_enabled():  # a copy of the entries a block
            y, *memory = checkpoint(
                _block, policy, *args, use_reentrant=False, preserve_rng_state=False
            )
        else:
            y, *memory = _block(policy, *args)
        ys.append(y)
    return (torch.cat(ys, 1), *memory)  # y: (B, T, G, H, K)


def _block(
    policy: str, q: Tensor, k: Tensor, v: Tensor, position: Tensor, *memory: Tensor
) -> tuple[Tensor, ...]:
    ys, entries = [], list(memory)
    for t in range(q.shape[1]):
        new = k[:, t, None], v[:, t, None], position[:, t]
        y, *entries = _step(policy, q[:, t], *new, *entries)
        ys.append(y)
    return (torch.stack(ys, 1), *entries)  # y: (B, T, G, H, K)


def _step(
    policy: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    position: Tensor,
    kept_k: Tensor,
    kept_v: Tensor,
    weight: Tensor,
) -> tuple[Tensor, ...]:
    keys, values = torch.cat([kept_k, k], 1), torch.cat([kept_v, v], 1)  # (B, S + 1, H, K)
    room = kept_k.shape[1]
    age = torch.arange(room, -1, -1, device=q.device)
    visible = (age <= position[:, None])[..., None]
    keys, values = (torch.where(visible[..., None], z, 0) for z in (keys, values))
    scores = torch.einsum("bghk,bshk->bghs", q, keys) * q.shape[-1] ** -0.5  # (B, G, H, S + 1)
    share = torch.where(visible[:, None].mT, scores, float("-inf")).softmax(-1)
    y = torch.einsum("bghs,bshk->bghk", share, values)  # (B, G, H, K)
    share = share.detach().sum(1).mT  # (B, S + 1, H)
    if policy == "h2o":
        share = share + torch.where(visible, F.pad(weight, (0, 0, 0, 1)), 0)  # (B, room + 1, H)
        old = torch.where((age < (room + 1) // 2)[:, None], float("inf"), share)
        worst = old.argmin(1)
    else:
        worst = share.sum(-1).argmin(1)[:, None].expand(-1, k.shape[2])  # (B, H)
    worst = torch.where(position[:, None] >= room, worst, 0)  # the first is none yet
    place = torch.arange(room, device=q.device)[:, None]
    place = place + (place >= worst[:, None])  # (B, S, H)
    index = place[..., None].expand(-1, -1, -1, k.shape[3])  # (B, S, H, K)
    if policy == "h2o":
        weight = share.gather(1, place)
    return y, keys.gather(1, index), values.gather(1, index), weight
