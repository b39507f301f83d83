"""Levels of the delta rule by blocks, whose decays are matrices.

What a head forgets is a number and commutes with what it erases, so both are computed apart. In a
chunk of steps, what is read of each earlier value is a lower triangular matrix, the product of the
queries' pairs and an inverse, as in `delta_scan`. A pair's level and decay weigh its number in it.
A chunk also makes the queries that read memories before it, and the matrix that erases in such
memories. Two blocks then make one of twice the length by products of these: the second reads what
the first has written at one level.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from linrnn.ops.matrix._fenwick._parts import Steps, Within, halves, pair_decays, pair_weights

#: Steps whose pairs are one matrix with all their levels.
CHUNK = 64


class _Blocks(NamedTuple):
    """Blocks as rows: their reads, and what they do to memories before them, undecayed."""

    o: Tensor  # (N, C, V)
    queries: Tensor  # (N, C, K)
    erased: Tensor  # (N, K, K)
    S: Tensor  # (N, K, V): what they have written


def read_within(block: Steps, last: bool, joins: bool, sure: bool) -> Within:
    """Read what a block has written itself; ``joins`` where there are levels before it.

    With ``sure`` no step is kept from those before it that is not finite.
    """
    time = block.q.shape[1]
    size = min(time, CHUNK)
    rows = block.blocks(size)
    (o, queries, erased, S), each_write = _chunks(rows, sure)
    levels = _last_levels(each_write, rows.v, time // size) if last else {}
    for decay, weight in zip(*_decays(block, size), strict=True):
        pairs = (o, queries, S, erased, decay.view(-1, size), weight.view(-1, size))
        (o_1, o_2), (q_1, q_2), (S_1, S_2), (erased_1, erased_2), (_, decay), (_, weight) = map(
            halves, pairs
        )
        o = torch.cat([o_1, torch.addcmul(o_2, weight[..., None], q_2 @ S_1)], 1)
        moved = decay[:, -1, None, None] * (erased_2 @ S_1)  # (N / 2, K, V)
        S = S_2 + moved
        if last:
            levels[size.bit_length()] = _ends(moved, time // (2 * size))
        size *= 2
        if joins or size < time:
            queries = torch.cat([q_1, q_2 @ erased_1], 1)
            erased = erased_2 @ erased_1
    o, S = o.view(block.v.shape), S[:, :, None]
    levels = {level: x[:, :, None] for level, x in levels.items()}
    if not joins:
        return Within(o, S, levels)
    decay = block.g[..., 0].cumsum(1).exp()  # (R, T)
    kept = decay[:, -1, None, None] * erased
    return Within(o, S, levels, queries.reshape(block.q.shape), decay[..., None], kept)


def _decays(block: Steps, size: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """For blocks of this size, and all that pairs of them make: decays and weights, (R, T) each.

    From a block's beginning to each of its steps, and that times the scale of its level.
    """
    rows, time, top = block.q.shape[0], block.q.shape[1], block.scales.shape[3] - 1
    since, sums = block.g.reshape(-1, size).cumsum(1), []
    levels = range(size.bit_length(), time.bit_length())
    for _ in levels:
        sums.append(since.view(rows, time))
        first, second = halves(since)
        since = torch.cat([first, second + first[:, -1:]], 1)
    if not sums:
        return (), ()
    decays = torch.stack(sums).exp()  # (levels, R, T)
    scales = block.scales[:, :, 0, min(levels[0], top) : levels[-1] + 1].movedim(2, 0)
    if len(scales) < len(levels):  # the last level takes what there are no more levels for
        scales = torch.cat([scales, scales[-1:].expand(len(levels) - len(scales), -1, -1)])
    return decays.unbind(0), (decays * scales).unbind(0)


def _chunks(rows: Steps, sure: bool) -> tuple[_Blocks, Tensor]:
    """Chunks, and what a chunk keeps of each of its values at its end, (N, K, C)."""
    q, k, v, g, scales, beta = rows
    assert beta is not None
    v, beta, size = v[:, :, 0], beta[..., 0], q.shape[1]
    of_q, of_k = (torch.cat([q, k], 1) @ k.mT).split(size, 1)  # (N, C, C)
    inverse = torch.linalg.solve_triangular(
        beta[..., None] * of_k, torch.diag_embed(beta), upper=False, unitriangular=True
    )
    keys, spoilt = k, None
    if not sure:
        inverse, keys, v, spoilt = _apart(inverse, keys, v)
    to_values = torch.cat([of_q.tril(), k.mT], 1) @ inverse  # (N, C + K, C)
    if spoilt is not None:
        at_end = spoilt[:, -1:].expand(-1, k.shape[2])
        to_values = to_values + torch.cat([spoilt, at_end], 1)[..., None]
    by_queries, of_keys = (to_values @ keys).split([size, k.shape[2]], 1)
    reads, writes = to_values.split([size, k.shape[2]], 1)
    decays = pair_decays(g[..., 0])  # (N, C, C)
    o = (reads * (decays * pair_weights(scales[:, :, 0]))) @ v
    writes = writes * decays[:, -1:]
    identity = torch.eye(k.shape[2], dtype=k.dtype, device=k.device)
    return _Blocks(o, q - by_queries, identity - of_keys, writes @ v), writes


def _apart(inverse: Tensor, keys: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Zeros for steps that are not finite, and (N, C) numbers to add: 0 before these, then NaN.

    Zero times NaN, of a step that another does not see, would be NaN.
    """
    total = torch.cat([inverse, keys, v], 2).detach().sum(2)
    nothing = total - total
    finite = (nothing == 0)[..., None]
    inverse, keys, v = (torch.where(finite, x, 0) for x in (inverse, keys, v))
    return inverse, keys, v, nothing.cumsum(1)


def _last_levels(writes: Tensor, v: Tensor, chunks: int) -> dict[int, Tensor]:
    """The levels of the last chunk of each row, at its end."""
    writes, v = _ends(writes, chunks), _ends(v, chunks)[:, :, 0]  # (R, K, C), (R, C, V)
    size = v.shape[1]
    count = size.bit_length()
    age = torch.arange(size - 1, -1, -1, device=v.device)  # at the last step, whose bits are ones
    digits = torch.arange(count - 1, device=v.device)
    level = (age[:, None] >> digits > 0).sum(1)  # (C,)
    of_level = level == torch.arange(count, device=v.device)[:, None]  # (levels, C)
    by_level = torch.where(of_level[:, None], writes[:, None], 0)  # (R, levels, K, C)
    S = by_level.flatten(1, 2) @ v  # (R, levels K, V)
    return dict(enumerate(S.unflatten(1, (count, -1)).unbind(1)))


def _ends(x: Tensor, blocks: int) -> Tensor:
    """The last of each row's blocks."""
    return x.reshape(-1, blocks, *x.shape[1:])[:, -1]
