"""Levels of the delta rule by blocks, whose decays are matrices.

In a chunk of steps, what is read of each earlier value is a lower triangular matrix, the product of
the queries' pairs and an inverse, as in `delta_scan`. All decays are in it, so numbers are as large
as in the recurrence. A pair's level weighs its number. A chunk also makes the queries that read
memories before it, and the matrix that such memories are multiplied with. Two blocks then make one
of twice the length by products of these: the second reads what the first has written at one level.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from linrnn.ops.matrix._fenwick._parts import Steps, Within, halves, pair_decays, pair_weights

#: Steps whose pairs are one matrix with all their levels.
CHUNK = 64


class _Blocks(NamedTuple):
    """Blocks as rows: their reads, and what they do to memories before them, with all decays."""

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
    (o, queries, erased, S), each_write = _chunks(block.blocks(size), sure)
    levels = _last_levels(each_write, block.blocks(size).v, time // size) if last else {}
    while size < time:
        level = min(size.bit_length(), block.scales.shape[3] - 1)
        weight = block.scales[:, :, 0, level].reshape(-1, size)  # (N, C)
        pairs = (o, queries, S, erased, weight)
        (o_1, o_2), (q_1, q_2), (S_1, S_2), (erased_1, erased_2), (_, weight) = map(halves, pairs)
        o = torch.cat([o_1, torch.addcmul(o_2, weight[..., None], q_2 @ S_1)], 1)  # (R, C, V)
        moved = erased_2 @ S_1  # (N / 2, K, V)
        S = S_2 + moved
        if last:
            levels[size.bit_length()] = _ends(moved, time // (2 * size))
        size *= 2
        if joins or size < time:
            queries = torch.cat([q_1, q_2 @ erased_1], 1)  # (R, C, K)
            erased = erased_2 @ erased_1
    o, S = o.view(block.v.shape), S[:, :, None]  # (R, C, E, V), (R, K, E, V)
    levels = {level: x[:, :, None] for level, x in levels.items()}
    if not joins:
        return Within(o, S, levels)
    # (R, C, E, V), (R, K, E, V)
    return Within(o, S, levels, queries.reshape(block.q.shape), None, erased)


def _chunks(rows: Steps, sure: bool) -> tuple[_Blocks, Tensor]:
    """Chunks, and what a chunk keeps of each of its values at its end, (N, K, C)."""
    q, k, v, g, scales, beta = rows
    assert beta is not None
    v, g, beta, size = v[:, :, 0], g[..., 0], beta[..., 0], q.shape[1]
    decays, since = pair_decays(g), g.cumsum(1).exp()[..., None]  # (N, C, C), (N, C, 1)
    of_q, of_k = (torch.cat([q, k], 1) @ k.mT).split(size, 1)  # (N, C, C)
    inverse = torch.linalg.solve_triangular(
        beta[..., None] * of_k * decays, torch.diag_embed(beta), upper=False, unitriangular=True
    )  # (R, C, C)
    keys, spoilt = since * k, None  # (N, C, K): what each step erases with in memories before
    if not sure:
        inverse, keys, v, spoilt = _apart(inverse, keys, v)
    at_end = decays[:, -1:] * k.mT  # (N, K, C)
    to_values = torch.cat([(of_q * decays).tril(), at_end], 1) @ inverse  # (N, C + K, C)
    if spoilt is not None:
        of_end = spoilt[:, -1:].expand(-1, k.shape[2])  # (R, K)
        to_values = to_values + torch.cat([spoilt, of_end], 1)[..., None]  # (R, C + K, C)
    by_queries, of_keys = (to_values @ keys).split([size, k.shape[2]], 1)  # (R, C, K), (R, K, K)
    reads, writes = to_values.split([size, k.shape[2]], 1)  # (R, C, C), (R, K, C)
    o = (reads * pair_weights(scales[:, :, 0])) @ v
    identity = torch.eye(k.shape[2], dtype=k.dtype, device=k.device)
    erased = since[:, -1:] * identity - of_keys
    return _Blocks(o, since * q - by_queries, erased, writes @ v), writes


def _apart(inverse: Tensor, keys: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Zeros for steps that are not finite, and (N, C) numbers to add: 0 before these, then NaN.

    Zero times NaN, of a step that another does not see, would be NaN.
    """
    total = torch.cat([inverse, keys, v], 2).detach().sum(2)  # (R, C)
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
    return x.reshape(-1, blocks, *x.shape[1:])[:, -1]  # (R, ...)
