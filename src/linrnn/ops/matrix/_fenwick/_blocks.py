"""Levels by blocks: all rows at one position, a decay a head, no resets.

A stretch of time is cut into the largest blocks whose length is a power of two that divides their
position. In such a block every step reads what lies before the block at the same levels, and
inside it the second half of each smaller block reads the first half at one level. So each level
is one batched product. Decays are sums over the steps between, never differences of sums.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

#: Steps whose pairs are one matrix with all their levels. At (1, 16384, 8, 64, 64) 16 and 64 take
#: 1.1 and 1.3 times as long; a training step of log-linear Mamba-2 (64 channels, 1 row of 2,048
#: steps) 1.02 and 1.09
#: (2026-11-29, EPYC with AVX-512, one core of a shared machine, in turn).
PAIRS = 32
#: Numbers of queries or values of the rows computed together, which stay in a core's cache. The
#: same layer with 16 rows of 1,024 steps takes 0.96 times as long with 2^18 and 0.92 with 2^22
#: (2026-11-29, EPYC with AVX-512, one core of a shared machine, in turn).
ROWS = 1 << 20


class Steps(NamedTuple):
    """A stretch of time, one memory a row; E heads share its queries and keys."""

    q: Tensor  # (R, T, K)
    k: Tensor  # (R, T, K)
    v: Tensor  # (R, T, E, V)
    g: Tensor  # (R, T, E)
    scales: Tensor  # (R, T, E, L)

    def cut(self, begin: int, end: int) -> "Steps":
        """The steps from ``begin`` to before ``end``."""
        return Steps(*(x[:, begin:end] for x in self))

    def blocks(self, size: int) -> "Steps":
        """Blocks of ``size`` steps as rows: (R blocks, size, ...)."""
        return Steps(*(x.reshape(-1, size, *x.shape[2:]) for x in self))


def read_blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    scales: Tensor,
    state: Tensor | None,
    position: int,
) -> tuple[Tensor, Tensor]:
    """Outputs and last levels of rows that are all at one position.

    Args:
        q, k: (B, T, G, K), of at least one step.
        v: (B, T, H, V).
        g: logarithms of decays (B, T, H).
        scales: (B, T, H, L).
        state: levels before the first step, (B, H, L, K, V); None only at position 0.
        position: of the first step.
    """
    batch, time, groups = q.shape[:3]
    heads = (groups, v.shape[2] // groups)
    v, g, scales = (x.unflatten(2, heads) for x in (v, g, scales))
    levels = None if state is None else state.unflatten(1, heads)  # (B, G, E, L, K, V)
    count = max(1, ROWS // (time * max(q.shape[3], heads[1] * v.shape[4])))
    by_group, by_row = min(groups, count), max(1, count // groups)
    outputs, finals = [], []
    for i in range(0, batch, by_row):
        parts = []
        for j in range(0, groups, by_group):
            row, group = slice(i, i + by_row), slice(j, j + by_group)
            rows = (x[row, :, group].transpose(1, 2).flatten(0, 1) for x in (q, k, v, g, scales))
            first = None if levels is None else levels[row, group].flatten(0, 1)
            o, final = _read_rows(Steps(*rows), first, position)
            shape = (-1, min(by_group, groups - j))
            parts.append((o.unflatten(0, shape).transpose(1, 2), final.unflatten(0, shape)))
        of_rows = list(zip(*parts, strict=True))
        outputs.append(_joined(of_rows[0], 2).flatten(2, 3))  # (rows, T, H, V)
        finals.append(_joined(of_rows[1], 1).flatten(1, 2))
    return _joined(outputs, 0), _joined(finals, 0)


def _read_rows(steps: Steps, state: Tensor | None, position: int) -> tuple[Tensor, Tensor]:
    """Outputs (R, T, E, V) and levels (R, E, L, K, V)."""
    time, top = steps.q.shape[1], steps.scales.shape[3] - 1
    levels = _levels_of(state, position)
    outputs, begin = [], 0
    while begin < time:
        size = _block_size(position + begin, time - begin)
        block = steps.cut(begin, begin + size)
        _merge(levels, position + begin, top)
        o, joined, inner = _read_within(block, last=begin + size == time)
        outputs.append(_read_before(block, levels, o))
        decay = block.g.sum(1).exp()[:, None, :, None]  # (R, 1, E, 1)
        levels = {level: decay * S for level, S in levels.items()}
        begin += size
        if begin < time:
            levels[-1] = joined  # joins a level before the next step
        for level, S in inner.items():
            _add(levels, min(level, top), S)
    return _joined(outputs, 1), _stacked(levels, top + 1)


def _joined(parts: Sequence[Tensor], axis: int) -> Tensor:
    """One after the other along an axis; one alone as it is, which a copy of all would cost."""
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts), axis)


def _block_size(position: int, steps: int) -> int:
    """The largest power of two that divides a position and is at most ``steps``."""
    largest: int = 1 << (steps.bit_length() - 1)
    return largest if position == 0 else min(largest, position & -position)


def _levels_of(state: Tensor | None, position: int) -> dict[int, Tensor]:
    """The levels that hold something after ``position`` steps, each (R, K, E, V)."""
    if state is None or position == 0:
        return {}
    top, newest = state.shape[2] - 1, position - 1
    filled = [level for level in range(top) if level == 0 or newest >> (level - 1) & 1]
    if top == 0 or newest >> (top - 1):
        filled.append(top)
    return {level: state[:, :, level].transpose(1, 2) for level in filled}


def _merge(levels: dict[int, Tensor], position: int, top: int) -> None:
    """Let the levels of what a step at this position no longer tells apart be one."""
    if position == 0:
        return
    zeros = (position & -position).bit_length() - 1
    for level in [n for n in levels if n <= zeros and n < top]:
        _add(levels, min(zeros + 1, top), levels.pop(level))


def _add(levels: dict[int, Tensor], level: int, S: Tensor) -> None:
    levels[level] = levels[level] + S if level in levels else S


def _stacked(levels: dict[int, Tensor], count: int) -> Tensor:
    """All levels (R, E, L, K, V), zeros where one holds nothing."""
    empty = torch.zeros_like(next(iter(levels.values())))
    S = torch.stack([levels.get(n, empty) for n in range(count)], 1)  # (R, L, K, E, V)
    return S.movedim(3, 1)


def _read_before(block: Steps, levels: dict[int, Tensor], o: Tensor) -> Tensor:
    """Add what every step of a block reads of the levels before it."""
    if not levels:
        return o
    since = block.g.cumsum(1).exp()  # (R, T, E)
    for level, S in levels.items():
        read = (block.q @ S.flatten(2)).view_as(o)
        o = torch.addcmul(o, (since * block.scales[..., level])[..., None], read)
    return o


def _read_within(block: Steps, last: bool) -> tuple[Tensor, Tensor, dict[int, Tensor]]:
    """Read what a block has written itself.

    Returns:
        outputs (R, T, E, V), the sum of all writes (R, K, E, V), and of the last block each level
        of it.
    """
    time, top = block.q.shape[1], block.scales.shape[3] - 1
    size = min(time, PAIRS)
    o = _read_pairs(block.blocks(size)).reshape(block.v.shape)
    states = _steps_of_a_state(block)
    inner = _short_levels(block, min(time, states)) if last else {}
    S = None
    while size < time:
        pairs = block.blocks(2 * size)  # (R pairs, 2 size, ...)
        first, second = pairs.cut(0, size), pairs.cut(size, 2 * size)
        if size >= states and S is None:
            S = _written(block.blocks(size))  # (R blocks, K, E, V)
        if S is None:
            read = second.q @ first.k.mT @ _decayed(first).flatten(2)  # (R pairs, size, E V)
        else:
            read = second.q @ S[::2].flatten(2)
        level = min(size.bit_length(), top)
        weight = second.g.cumsum(1).exp() * second.scales[..., level]  # (R pairs, size, E)
        outputs_of_half = o.view(-1, 2 * size, *o.shape[2:])[:, size:]
        outputs_of_half.addcmul_(weight[..., None], read.view_as(outputs_of_half))
        if S is not None:
            across = second.g.sum(1).exp()[:, None, :, None]  # (R pairs, 1, E, 1)
            if last:
                ends = slice(time // (2 * size) - 1, None, time // (2 * size))
                inner[size.bit_length()] = across[ends] * S[::2][ends]
            S = torch.addcmul(S[1::2], across, S[::2])
        size *= 2
    return o, _written(block) if S is None else S, inner


def _steps_of_a_state(block: Steps) -> int:
    """From how many steps on a state is read with fewer products than they are, at least 64."""
    keys, values = block.k.shape[2], block.v.shape[2] * block.v.shape[3]
    break_even_steps = keys * values // (keys + values)
    return 64 if break_even_steps <= 64 else 1 << (break_even_steps - 1).bit_length()


def _read_pairs(block: Steps) -> Tensor:
    """Read inside of short blocks: pairs of steps, weighed by level and decay."""
    q, k, v, g, scales = block
    size, top = q.shape[1], scales.shape[3] - 1
    step = torch.arange(size, device=q.device)
    differing_bits = step[:, None] ^ step  # the level of a pair is how many binary digits this has
    digits = torch.arange(size.bit_length() - 1, device=q.device)
    level = (differing_bits[..., None] >> digits > 0).sum(-1).clamp(max=top)  # (C, C)
    g, scales = g.transpose(1, 2), scales.transpose(1, 2)  # (R, E, C), (R, E, C, L)
    decay = g[..., None].expand(*g.shape, size).tril(-1).cumsum(2).exp()  # (R, E, C, C)
    weight = scales.gather(3, level.expand(*scales.shape[:3], size)) * decay
    pairs = ((q @ k.mT)[:, None] * weight).tril()
    o: Tensor = pairs @ v.transpose(1, 2)  # (R, E, C, V)
    return o.transpose(1, 2)


def _decayed(rows: Steps) -> Tensor:
    """Values as they are at the end of their rows, (R, C, E, V)."""
    later = torch.cat([rows.g[:, 1:], torch.zeros_like(rows.g[:, :1])], 1)
    remaining = later.flip(1).cumsum(1).flip(1).exp()  # (R, C, E)
    return remaining[..., None] * rows.v


def _written(rows: Steps) -> Tensor:
    """The writes of each row, at its end, (R, K, E, V)."""
    S: Tensor = rows.k.mT @ _decayed(rows).flatten(2)  # (R, K, E V)
    heads: Tensor = S.unflatten(2, rows.v.shape[2:])
    return heads


def _short_levels(block: Steps, steps: int) -> dict[int, Tensor]:
    """The levels of the last ``steps`` steps of a block, at its end."""
    time = block.q.shape[1]
    values = _decayed(block.cut(time - steps, time)).flatten(2)  # (R, steps, E V)
    k, levels, level, end = block.k[:, time - steps :], {}, 0, steps
    while end > 0:
        begin = end - 1 if level == 0 else steps - (1 << level)
        S = k[:, begin:end].mT @ values[:, begin:end]
        levels[level] = S.unflatten(2, block.v.shape[2:])
        level, end = level + 1, begin
    return levels
