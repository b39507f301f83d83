"""Attention to a window of the last steps and to the first steps of the sequence."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from linrnn.compute.composed import composed
from linrnn.compute.layout import gathered, like
from linrnn.ops.attention import queries, softmax_read


def first_entries(
    first: Tensor, entries: Tensor, time: int, at: Tensor, position: Tensor
) -> Tensor:
    """The first entries of the sequence that is read at a step of each row.

    Args:
        first: those of the sequence that an earlier call read, (B, sinks, ...).
        entries: (B, S, ...), the last ``time`` of which are the call's.
        time: steps of the call.
        at: a step of the call (B,).
        position: how many steps of its sequence that step has before it, (B,).

    Returns:
        (B, sinks, ...), zero where the sequence has not come so far.
    """
    if first.shape[1] == 0:
        return first
    number = torch.arange(first.shape[1], device=first.device)
    step = number + (at - position)[:, None]  # of the call; below 0 in an earlier one
    every = torch.cat([first, entries[:, entries.shape[1] - time :]], 1)  # (B, sinks + T, ...)
    place = torch.where(step < 0, number, step + first.shape[1]).clamp(max=every.shape[1] - 1)
    read = number <= position[:, None]
    return torch.where(like(read, every), gathered(every, place), 0)


def attend_with_sinks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    first_k: Tensor,
    first_v: Tensor,
    position: Tensor,
    recent: int,
) -> Tensor:
    """Softmax attention to the last ``recent`` steps and to the first ones of the sequence.

    What is out of sight cannot reach a result, as in `linrnn.ops.attention.attend`.

    Args:
        q, k, v: queries (B, T, H, K); keys and values (B, S, H, K) of ``recent - 1`` steps before
            and of the same steps.
        first_k, first_v: those of the first steps of the sequence before, (B, sinks, H, K).
        position: how many steps of the same sequence come before each step, (B, T).
        recent: steps that are always seen, the current one included.
    """
    k_bad, v_bad = (~z.isfinite().flatten(2).all(-1) for z in (k, v))  # (B, S) each
    bad = k_bad | v_bad
    k, v = (torch.where(bad[..., None, None], 0, z) for z in (k, v))
    y = _in_chunks(q, k, v, first_k, first_v, position, recent)[0]
    time, past = q.shape[1], k.shape[1] - q.shape[1]
    count = F.pad(bad.cumsum(1), (1, 0))  # (B, S + 1)
    step = torch.arange(past, past + time, device=q.device)
    begin = (step - position).clamp(min=0)
    in_view = count[:, past + 1 :] - count.gather(1, torch.maximum(begin, step - recent + 1))
    sunk = torch.minimum(begin + first_k.shape[1], step + 1)
    # a sink that is a step of an earlier call was not zeroed, and is seen by all that follow
    fresh = torch.where(step >= position, count.gather(1, sunk) - count.gather(1, begin), 0)
    return torch.where((in_view + fresh > 0)[..., None, None], float("nan"), y)


def _shapes(
    q: Tensor, k: Tensor, v: Tensor, fk: Tensor, fv: Tensor, position: Tensor, recent: int
) -> tuple[Tensor]:
    return (v.new_empty(*q.shape[:-1], v.shape[-1]),)


@composed(
    "attend_sinks",
    "Tensor q, Tensor k, Tensor v, Tensor fk, Tensor fv, Tensor position, int recent",
    _shapes,
)
def _in_chunks(
    q: Tensor, k: Tensor, v: Tensor, fk: Tensor, fv: Tensor, position: Tensor, recent: int
) -> tuple[Tensor]:
    """The queries a few at a time, each with the steps near them and the first of all."""
    time, size = q.shape[1], min(queries(q), max(recent, queries(q) // 4))
    if time == 0:
        return _shapes(q, k, v, fk, fv, position, recent)
    ys = []
    for begin in range(0, time, size):
        args = q, k, v, fk, fv, position, recent, begin, min(begin + size, time)
        if time > size and torch.is_grad_enabled():  # no masks are kept for the backward
            ys.append(checkpoint(_chunk, *args, use_reentrant=False, preserve_rng_state=False))
        else:
            ys.append(_chunk(*args))
    return (torch.cat(ys, 1),)  # (B, T, H, V)


def _chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    fk: Tensor,
    fv: Tensor,
    position: Tensor,
    recent: int,
    begin: int,
    end: int,
) -> Tensor:
    time, sinks = q.shape[1], fk.shape[1]
    past, low = k.shape[1] - time, begin - (recent - 1)  # the first step near by
    near = slice(past + low, past + end)
    position = position[:, begin:end]
    step = torch.arange(begin, end, device=q.device)
    age = step[:, None] - torch.arange(low, end, device=q.device)
    place = position[..., None] - age  # in the sequence of the query
    visible = (age >= 0) & (place >= 0) & ((age < recent) | (place < sinks))
    # sequences that begin in the chunk have their first steps near by; of the others a row has one
    start = torch.full_like(position[:, 0], begin)
    firsts = [first_entries(f, z, time, start, position[:, 0]) for f, z in ((fk, k), (fv, v))]
    same = position - position[:, :1] == step - begin
    number = torch.arange(sinks, device=q.device)
    far = number + (begin - position[:, :1]) < low  # others are near by
    visible = torch.cat([same[..., None] & far[:, None], visible], -1)  # (B, Q, sinks + near)
    # (B, sinks + near, H, ...)
    keys, values = (torch.cat([f, z[:, near]], 1) for f, z in zip(firsts, (k, v), strict=True))
    return softmax_read(q[:, begin:end], keys, values, visible)
